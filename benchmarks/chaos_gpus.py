"""Three stand-in GPUs behind the real NVML binding, whose state a file holds.

Owns the library that is made of the tests' sources and what its GPUs say. What is done to them is `chaos_faults`'.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

STANDIN = Path(__file__).resolve().parent.parent / "tests" / "nvml_standin"


class Gpus:
    """Three stand-in GPUs of the tests; `there` is False where they cannot be compiled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state: dict[str, object] = {"driver": "580.95.05", "count": 3}
        for number in range(3):
            gpu = {"uuid": f"GPU-{number}0000000-0000-4000-8000-000000000000", "name": "NVIDIA H100 80GB HBM3"}
            gpu |= {
                "total": "85520809984",
                "free": "45520809984",
                "reserved": "502000000",
                "util": "64",
                "power_mw": "400000",
            }
            gpu |= {
                "limit_mw": "700000",
                "celsius": "61",
                "energy_mj": "5000000",
                "pids": "",
                "reasons": "0",
                "mig": "0",
            }
            self._state |= {f"{number}.{key}": value for key, value in gpu.items()}
        compiler = shutil.which("cc")
        self.there = compiler is not None
        if compiler is not None:
            library = folder / "libnvidia-ml.so.1"
            sources = [str(path) for path in sorted(STANDIN.glob("*.c"))]
            flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", f"-Wl,-soname,{library.name}"]
            subprocess.run([compiler, *flags, "-o", str(library), *sources], check=True)
        self.set({})

    def surroundings(self, shim: Path | None) -> dict[str, str]:
        found = {"NVML_STANDIN_STATE": str(self._folder / "gpus"), "LD_LIBRARY_PATH": str(self._folder)}
        return found | ({"LD_PRELOAD": str(shim)} if shim is not None else {})

    def set(self, changes: Mapping[str, object]) -> None:
        """Seen by the next call, and by one that hangs; None takes a key away."""
        self._state = {k: v for k, v in (self._state | dict(changes)).items() if v is not None}
        fresh = self._folder / "gpus.new"
        fresh.write_text("".join(f"{key}={value}\n" for key, value in self._state.items()))
        fresh.replace(self._folder / "gpus")
