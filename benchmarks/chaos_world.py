"""What is attacked: three engines, GPUs, Alertmanagers, a small disk, a store, and daemons of each role as processes.

Owns starting, asking and stopping them. Where VictoriaMetrics is not installed there is no role fleet. What is done to them is
`chaos_faults`', what must hold `chaos_live`'s.
"""

from __future__ import annotations

import math
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
from chaos_collector import INTERVAL_SECONDS, Collector, Source, labels_of, past
from chaos_engine import Clock, Engine, Manager
from chaos_gpus import Gpus
from chaos_store import StoreDoor, Victoria, found

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
PLAN = ROOT / "tests" / "plans" / "cpu-small.yaml"
TIER = "cpu-small"
AGENTS_TIER = "cpu-agents"
"""What role fleet calls the same engines, as the node agent tells of them."""

PAST_SECONDS = 4000.0
"""So long the store has scraped the engines when the run begins."""

BEFORE_NOW_SECONDS = 1.5 * 86_400.0
"""The clock begins so long ago: no store takes what is more than days ahead of the machine's."""

SCRAPE_SECONDS = {"standalone": 10, "node": 15}
FLEET_TURN_SECONDS, FLEET_DELAY_SECONDS = 20.0, 10.0
FLEET_TIERS = (TIER, AGENTS_TIER)
FLEET_BEHIND_TURNS = math.ceil((FLEET_DELAY_SECONDS + INTERVAL_SECONDS) / FLEET_TURN_SECONDS)
"""The first scrape after a fault's end comes up to an interval later, and is asked for after the delay: turns until then are not
counted."""
SPEED = 50.0
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
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as result:
                lines = result.read().decode().splitlines()
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
    """Everything together, in a folder. `disk` says whether the history has a small disk of its own (root may mount one), `fleet`
    is None where there is no store."""

    def __init__(self, folder: Path, speed: float = SPEED) -> None:
        self.folder, self.clock = folder, Clock(speed, time.time() - BEFORE_NOW_SECONDS)
        self.engines = tuple(Engine(self.clock, begin) for begin in (0.0, 20.0, 40.0))
        self.managers = (Manager(self.clock), Manager(self.clock))
        self.gpus = Gpus(folder)
        self.shim = self._shim()
        surroundings = self.gpus.surroundings(self.shim)
        self.standalone = self._daemon(
            "standalone", self._config("standalone") | self._posts(self.managers[0]), surroundings
        )
        self.node = self._daemon("node", self._config("node"), surroundings)
        self._store = found(folder)
        self.fleet: DaemonProcess | None = None
        if self._store is not None:
            self.door = StoreDoor(self._store)
            self.collector = Collector(self._store, self.clock, self._sources())
            self.fleet = self._daemon("fleet", self._fleet_config() | self._posts(self.managers[1]), surroundings)
        self.daemons = tuple(one for one in (self.standalone, self.node, self.fleet) if one is not None)
        self.disk = self._mount(folder / "standalone" / "data")

    @property
    def store(self) -> Victoria:
        assert self._store is not None, "there is no role fleet without a store"
        return self._store

    def _daemon(self, role: str, config: Mapping[str, Any], surroundings: Mapping[str, str]) -> DaemonProcess:
        return DaemonProcess(role, self.folder / role, config, self.clock, surroundings)

    def _config(self, role: str) -> dict[str, Any]:
        targets = [{"url": e.url, "tier": TIER, "replica": f"r{n}", "gpus": [n]} for n, e in enumerate(self.engines)]
        return {
            "plan": str(PLAN),
            "scrape_interval": f"{SCRAPE_SECONDS[role]}s",
            # Of the machine's time, as every timeout: a hanging engine must not cost more turns than it would at life's pace.
            "scrape_timeout": "250ms",
            "targets": targets,
            "forecast": {"enabled": False},
            "gpus": {"source": "nvml" if self.gpus.there else "none"},
        }

    def _posts(self, manager: Manager) -> dict[str, Any]:
        alertmanagers = [{"url": manager.place, "timeout": "500ms"}]
        return {"data_dir": "data", "alerting": {"path": "posts", "alertmanagers": alertmanagers}}

    def _fleet_config(self) -> dict[str, Any]:
        """One tier twice: from what the store scraped of the engines, and from what the node agent told."""
        plan = yaml.safe_load(PLAN.read_text())
        plan["tiers"][AGENTS_TIER] = plan["tiers"][TIER]
        path = self.folder / "fleet-plan.yaml"
        path.write_text(yaml.safe_dump(plan))
        return {
            "plan": str(path),
            "store": {"url": self.door.place, "timeout": "500ms"},
            "tiers": {TIER: {"from": "engines", "selector": 'job="engines"', "replica_label": "instance"}},
            "fleet": {"cycle": f"{FLEET_TURN_SECONDS:.0f}s", "delay": f"{FLEET_DELAY_SECONDS:.0f}s", "back_fill": "0s"},
            "forecast": {"enabled": False},
        }

    def _sources(self) -> tuple[Source, ...]:
        named = tuple((f"r{n}", engine) for n, engine in enumerate(self.engines))
        engines = tuple(
            Source(name=name, url=lambda engine=engine: engine.url, labels=labels_of(name))  # type: ignore[misc]
            for name, engine in named
        )
        node = Source(
            name="node",
            url=lambda: f"http://127.0.0.1:{self.node.port}/metrics",
            labels={"job": "sizewatch", "instance": "node-1"},
            renamed=(f'tier="{TIER}"'.encode(), f'tier="{AGENTS_TIER}"'.encode()),
        )
        return (*engines, node)

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
        """The store has an hour of the engines' past before it begins."""
        if self.fleet is not None:
            began = self.clock() - PAST_SECONDS
            past(self.store, {f"r{n}": engine for n, engine in enumerate(self.engines)}, began, self.clock())
        self.standalone.start()
        self.node.start()
        if self.fleet is not None:
            self.collector.start()
            self.fleet.start()

    def close(self) -> None:
        """Whatever still runs is ended, and the disk given back."""
        for daemon in self.daemons:
            if daemon.alive:
                daemon.stop(signal.SIGKILL)
        if self.fleet is not None:
            self.collector.stop()
            self.store.kill()
            self.door.behave()
            self.door.die()
        for one in (*self.engines, *self.managers):
            one.behave()
            one.die()
        if self.disk:
            subprocess.run(["umount", "-l", str(self.standalone.folder / "data")], check=False)
