"""What is attacked: three engines, GPUs, an Alertmanager, a small disk, and two daemons (standalone, node) as processes.

Owns starting, asking and stopping them. What is done to them is `benchmarks/chaos_faults.py`'s, what must hold
`benchmarks/chaos_live.py`'s.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from chaos_engine import Clock, Engine, Manager

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
STANDIN = ROOT / "tests" / "nvml_standin"
PLAN = ROOT / "tests" / "plans" / "cpu-small.yaml"
TIER = "cpu-small"
DISK_MIB = 24
PATIENCE_SECONDS = 90.0
"""For anything at all to happen: the machine may be busy. What is judged is counted in turns."""

Metrics = Mapping[str, float]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as closing:
        return int(closing.getsockname()[1])


def wait_for(what: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> bool:
    """Whether it came true within so many seconds."""
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


class DaemonProcess:
    """One daemon, started again as often as it is stopped; its log is kept over all of its lives."""

    def __init__(
        self, role: str, folder: Path, config: Mapping[str, Any], clock: Clock, surroundings: Mapping[str, str]
    ) -> None:
        self.role, self.folder = role, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.config = folder / "sizewatch.yaml"
        self.log = folder / "log"
        self.shift = folder / "shift"
        self.shift.write_text("0")
        self.bad_disk = folder / "bad_disk"
        self.config.write_text(yaml.safe_dump({**config, "role": role, "web": {"listen": f"127.0.0.1:{self.port}"}}))
        self._clock = clock
        self._surroundings = {**surroundings, "CHAOS_CLOCK": str(self.shift), "CHAOS_DISK": str(self.bad_disk)}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Until its first turn has ended."""
        words = (str(self.config), str(self._clock.speed), repr(self._clock.origin), repr(self._clock.begin))
        command = [sys.executable, str(BENCHMARKS / "chaos_daemon.py"), *words]
        with self.log.open("ab") as log:
            environment = {**os.environ, **self._surroundings}
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        if not wait_for(lambda: bool(self.metrics()) or not self.alive):
            raise RuntimeError(f"{self.role} gave no page; see {self.log}")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self, how: int = signal.SIGTERM) -> int:
        """The exit code."""
        if self.process is None:
            return 0
        self.process.send_signal(how)
        try:
            return self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return 124

    def metrics(self) -> Metrics:
        """Every series of its page by its text; empty while there is no page."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        pairs = (line.rpartition(" ") for line in lines if line and line[0] != "#")
        return {name: float(value) for name, _, value in pairs}

    def size(self) -> tuple[float, int, int]:
        """Resident MiB, open files and threads."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        words = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        handles = len(os.listdir(f"/proc/{self.pid}/fd"))
        return int(words["VmRSS"].split()[0]) / 1024, handles, int(words["Threads"])

    @property
    def history(self) -> Path:
        return self.folder / "data" / "history.db"


def total(metrics: Metrics, name: str, *having: str) -> float:
    """The sum of a metric's series that hold each of these texts; 0 where there is none."""
    return sum(v for k, v in metrics.items() if k.partition("{")[0] == name and all(text in k for text in having))


class World:
    """Everything together, in a folder. `disk` says whether the history has a small disk of its own (root may mount one)."""

    def __init__(self, folder: Path, speed: float) -> None:
        self.folder, self.clock = folder, Clock(speed)
        self.engines = tuple(Engine(self.clock, begin) for begin in (0.0, 20.0, 40.0))
        self.manager = Manager()
        self.gpus = Gpus(folder)
        self.shim = self._shim()
        surroundings = self.gpus.surroundings(self.shim)
        self.standalone = DaemonProcess(
            "standalone", folder / "standalone", self._config(alerts=True), self.clock, surroundings
        )
        self.node = DaemonProcess("node", folder / "node", self._config(alerts=False), self.clock, surroundings)
        self.daemons = (self.standalone, self.node)
        self.disk = self._mount(folder / "standalone" / "data")

    def _config(self, alerts: bool) -> dict[str, Any]:
        targets = [{"url": e.url, "tier": TIER, "replica": f"r{n}", "gpus": [n]} for n, e in enumerate(self.engines)]
        config: dict[str, Any] = {
            "plan": str(PLAN),
            "scrape_interval": "10s",
            "scrape_timeout": "500ms",
            "targets": targets,
            "forecast": {"enabled": False},
            "gpus": {"source": "nvml" if self.gpus.there else "none"},
        }
        if alerts:
            posts = {"path": "posts", "resend": "5s", "alertmanagers": [{"url": self.manager.url, "timeout": "500ms"}]}
            config |= {"data_dir": "data", "alerting": posts}
        return config

    def _shim(self) -> Path | None:
        compiler = shutil.which("cc")
        if compiler is None:
            return None
        made = self.folder / "chaos_shim.so"
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(BENCHMARKS / "chaos_shim.c")], check=True
        )
        return made

    def _mount(self, place: Path) -> bool:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        options = f"size={DISK_MIB}m,mode=0700"
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True)
        return mounted.returncode == 0

    def start(self) -> None:
        for daemon in self.daemons:
            daemon.start()

    def close(self) -> None:
        """Whatever still runs is ended, and the disk given back."""
        for daemon in self.daemons:
            if daemon.alive:
                daemon.stop(signal.SIGKILL)
        for engine in self.engines:
            engine.die()
        self.manager.released.set()
        self.manager.shutdown()
        if self.disk:
            subprocess.run(["umount", "-l", str(self.standalone.folder / "data")], check=False)


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
        self._state = {k: v for k, v in (self._state | changes).items() if v is not None}
        fresh = self._folder / "gpus.new"
        fresh.write_text("".join(f"{key}={value}\n" for key, value in self._state.items()))
        fresh.replace(self._folder / "gpus")
