"""Stand-in GPUs for tests: compiles nvml_standin/ and lets a test write the machine's state.

The real binding (pynvml) loads the stand-in because its soname is already in the process. Function pointers are kept
by the binding for the life of the process: there is one library per process, and tests vary the state file.
Import ``nvml_library`` and ``nvml_state`` (asked for as ``nvml``), and with them ``read_machine`` (asked for as
``machine``) where a reader is wanted too, in the test module that uses them.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pynvml
import pytest
from paths import TESTS
from waiting import StandingClock

from agent.gpu.nvml_reader import NvmlReader
from rules.telemetry.snapshots import GpuReadout

SOURCES = sorted((TESTS / "nvml_standin").glob("*.c"))
FLAGS = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden")
SONAME = "libnvidia-ml.so.1"

H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "total": 85_520_809_984,
    "free": 5_520_809_984,
    "reserved": 502_000_000,
    "util": 64,
    "samples": "1000000:50",
    "energy_mj": 5_000_000,
    "power_mw": 400_000,
    "limit_mw": 700_000,
    "celsius": 61,
    "pids": "4242,4300",
    "field.1": 1,
    "field.5": 12,
    "field.6": 0,
    "field.74": 3_000_000_000,
    "field.75": 0,
    "reasons": 0,
    "gpm": 1,
    "gpm.clock": 100,
    "gpm.1": 5_000,
    "gpm.2": 4_000,
    "gpm.5": 3_000,
    "gpm.10": 2_000,
    **dict.fromkeys(("gpm.20", "gpm.21", "gpm.60", "gpm.61"), 1_000),
    "mig": 0,
}
"""A GPU that supports everything: ECC is on, 12 errors were corrected in its life, 3 s it was held down by power."""

HALF = {
    "name": "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
    "gi": 1,
    "total": 42_000_000_000,
    "free": 2_000_000_000,
    "reserved": 200_000_000,
    "pids": "5151",
}
"""A MIG instance, by its own handle."""


class StandIn:
    """The machine's state as ``nvml_standin/standin.h`` describes it: set keys, take keys away, see what was called."""

    def __init__(self, folder: Path, library: ctypes.CDLL) -> None:
        self.state_file = folder / "state"
        self._calls_file = folder / "calls"
        self.folder_of_library = Path(library._name).parent
        self._library = library
        self._state: dict[str, object] = {"driver": "580.95.05", "count": 0}
        self._write()

    def add_gpu(self, **changes: object) -> str:
        """Add an H100; ``changes`` override its values, None leaves one out (not supported). Returns its UUID."""
        number = self._state["count"]
        values = {"uuid": f"GPU-{number}0000000-0000-4000-8000-000000000000", **H100, **changes}
        self.set({f"{number}.{key}": value for key, value in values.items() if value is not None})
        self.set({"count": int(str(number)) + 1})
        return str(values["uuid"])

    def set(self, changes: dict[str, object]) -> None:
        """Change keys; None takes a key away. Seen by the very next call, and by one that hangs."""
        self._state.update(changes)
        self._state = {key: value for key, value in self._state.items() if value is not None}
        self._write()

    def replace(self, state: Mapping[str, object]) -> None:
        """Make this the whole state, as a recording of ``benchmarks/nvml_cycle.py`` holds it."""
        self._state = dict(state)
        self._write()

    def _write(self) -> None:
        fresh = self.state_file.with_suffix(".new")
        fresh.write_text("".join(f"{key}={value}\n" for key, value in self._state.items()), encoding="ascii")
        fresh.replace(self.state_file)

    def calls(self) -> list[str]:
        """The functions called since the last time this was asked."""
        if not self._calls_file.exists():
            return []
        names = self._calls_file.read_text(encoding="ascii").split()
        self._calls_file.unlink()
        return names

    def add_instance(self, gpu: int, place: int, **changes: object) -> str:
        """Add a MIG instance of a half H100 in this place of GPU number ``gpu``. Returns its UUID."""
        values = {"uuid": f"MIG-{gpu}{place}000000-0000-5000-8000-000000000000", **HALF, **changes}
        self.set({f"{gpu}.mig": 1} | {f"{gpu}.mig.{place}.{key}": v for key, v in values.items() if v is not None})
        return str(values["uuid"])

    def remove_instance(self, gpu: int, place: int) -> None:
        """Take the instance in this place away."""
        inside = f"{gpu}.mig.{place}."
        self.set({key: None for key in self._state if key.startswith(inside)})

    def lent(self) -> int:
        """How many samples and event sets were not given back."""
        return int(self._library.standin_lent())

    def opened(self) -> int:
        """How many times the library is open."""
        return int(self._library.standin_opened())


class Machine:
    """A reader, its clock and the stand-in under it: ``turn`` lets 15 s pass and reads."""

    def __init__(self, standin: StandIn) -> None:
        self.standin = standin
        self.clock = StandingClock()
        self.reader = NvmlReader(clock=self.clock)
        self.problems: tuple[str, ...] = ()

    def turn(self, seconds: float = 15.0) -> tuple[GpuReadout, ...]:
        self.clock.now += seconds
        readouts, self.problems = self.reader.read(1_700_000_000.0 + self.clock.now)
        return readouts

    def only(self, seconds: float = 15.0) -> GpuReadout:
        """The readout of a machine with one GPU and nothing wrong."""
        readouts = self.turn(seconds)
        assert self.problems == ()
        assert len(readouts) == 1
        return readouts[0]


def compile_standin(folder: Path) -> Path:
    """Compile the stand-in into ``folder``. Skips the test without a C compiler, but fails in CI."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        missing = "no C compiler (cc, gcc, clang): the NVML tests did not run"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    library = folder / SONAME
    subprocess.run([compiler, *FLAGS, f"-Wl,-soname,{SONAME}", "-o", str(library), *map(str, SOURCES)], check=True)
    return library


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The compiled stand-in, loaded so that pynvml finds it under its soname."""
    return ctypes.CDLL(str(compile_standin(tmp_path_factory.mktemp("nvml"))))


@pytest.fixture(name="nvml")
def nvml_state(nvml_library: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A machine with a driver and no GPU yet."""
    if pynvml.nvmlLib is not nvml_library:
        # Each module that imports the fixture has a library of its own, and their tests may take turns; and a test before this
        # one may have opened the real library of a machine with GPUs: the same soname would find that again.
        pynvml.nvmlLib = nvml_library
        pynvml._nvmlGetFunctionPointer_cache.clear()
    standin = StandIn(tmp_path, nvml_library)
    monkeypatch.setenv("NVML_STANDIN_STATE", str(standin.state_file))
    monkeypatch.setenv("NVML_STANDIN_CALLS", str(tmp_path / "calls"))
    yield standin
    nvml_library.standin_reset()


@pytest.fixture(name="machine")
def read_machine(nvml: StandIn) -> Iterator[Machine]:
    """The same machine with a reader on it."""
    made = Machine(nvml)
    yield made
    made.reader.close()


@pytest.fixture(name="watched")
def read_one_gpu(machine: Machine) -> Machine:
    """The same machine after the first turn over one H100."""
    machine.standin.add_gpu()
    machine.only()
    return machine
