"""What is attacked: three engines, Alertmanagers, a store with its collector, and a daemon of each role.

Starts, asks and stops them. Where VictoriaMetrics is not installed there is no role fleet.
"""

from __future__ import annotations

import math
import re
import shutil
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import common
import yaml
from chaos_servers import Address, Clock, Engine, Manager, Store, StoreDoor
from common import PLAN, TIER

AGENTS_TIER = "cpu-agents"
"""Tier of role fleet that has the same engines, as the node agent exports them."""

FLEET_TIERS = (TIER, AGENTS_TIER)
PAST_SECONDS = 4000.0
"""Time for which the store has scraped the engines when the run begins."""

BEFORE_NOW_SECONDS = 1.5 * 86_400.0
"""The clock begins so long ago: no store takes samples that are days ahead of the machine's clock."""

SCRAPE_SECONDS = {"standalone": 10, "node": 15}
FLEET_CYCLE_SECONDS, FLEET_DELAY_SECONDS = 20.0, 10.0
COLLECT_SECONDS = 10.0
FLEET_BEHIND_CYCLES = math.ceil((FLEET_DELAY_SECONDS + COLLECT_SECONDS) / FLEET_CYCLE_SECONDS)
"""The first scrape after a fault comes up to an interval later, and is queried after the delay."""

SPEED = 50.0


class DaemonProcess(common.Agent):
    """One daemon as a process; its log is kept over all of its lives."""

    def __init__(self, role: str, folder: Path, keys: Mapping[str, Any], clock: Clock) -> None:
        self.role = role
        place = folder / role
        script = (Path(__file__).parent / "fast_daemon.py", place / "sizewatch.yaml")
        super().__init__(
            place, {**keys, "role": role}, *script, str(clock.speed), repr(clock.begin), repr(clock.origin)
        )
        self.history = place / "data" / "history.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One page that is scraped into the store; its lines are written with `replaced` texts and these labels."""

    url: Callable[[], str]
    labels: Mapping[str, str]
    replaced: tuple[bytes, bytes] = (b"", b"")


class Collector:
    """Scrapes engines and node agent into the store, as Prometheus or vmagent would. It has a thread for each page."""

    timeout_seconds = 0.25
    most_bytes, most_lines = 1_000_000, 3_000
    line = re.compile(rb"#.*|[a-zA-Z_:][a-zA-Z0-9_:]*(\{[^\n]*\})? [^ \n]+")

    def __init__(self, store: Store, clock: Clock, sources: tuple[Source, ...]) -> None:
        self._store, self._clock = store, clock
        # What waits for a store that is away; the oldest go first.
        self._waiting: deque[tuple[str, bytes]] = deque(maxlen=400)
        self._ended = threading.Event()
        threads = [threading.Thread(target=self._scrape, args=(source,), daemon=True) for source in sources]
        self._threads = [*threads, threading.Thread(target=self._send, daemon=True)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _scrape(self, source: Source) -> None:
        due, step = time.monotonic(), COLLECT_SECONDS / self._clock.speed
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            due = max(due + step, time.monotonic())
            t = self._clock()
            self._waiting.append(self.import_request(source, self._fetch(source.url()), t))

    @staticmethod
    def import_request(source: Source, page: bytes | None, t: float) -> tuple[str, bytes]:
        """Return path and body by which VictoriaMetrics takes a page of time `t`, or that there was none."""
        body = b"up 0\n"
        if page is not None:
            body = page.replace(*source.replaced) + b"\nup 1\n"
        labels = [("extra_label", f"{name}={value}") for name, value in source.labels.items()]
        return f"/api/v1/import/prometheus?{urlencode([*labels, ('timestamp', round(t * 1000))])}", body

    def _fetch(self, url: str) -> bytes | None:
        """Return a page that Prometheus would take too: whole, in time, of its format, not too long. Else None."""
        until, page = time.monotonic() + self.timeout_seconds, b""
        try:
            with urllib.request.urlopen(url, timeout=self.timeout_seconds) as result:
                length = result.headers.get("Content-Length")
                while piece := result.read1(65536):
                    page += piece
                    if time.monotonic() > until or len(page) > self.most_bytes:
                        return None
        except (OSError, HTTPException, ValueError):
            return None
        lines = [line for line in page.split(b"\n") if line.strip()]
        if len(lines) > self.most_lines or (length is not None and int(length) != len(page)):
            return None
        return page if all(self.line.fullmatch(line) for line in lines) else None

    def _send(self) -> None:
        while not self._ended.wait(0.1):
            # After a silence the newest go first.
            requests = [self._waiting.popleft() for _ in range(len(self._waiting))][::-1]
            try:
                while requests:
                    self._store.ask(*requests[0], seconds=1.0)
                    del requests[0]
                self._store.ask("/internal/force_flush", b"", seconds=1.0)
            except (OSError, HTTPException):
                self._waiting.extendleft(requests)


class World:
    """Everything together, in a folder. `fleet` is None where there is no store."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.clock = folder, Clock(SPEED, time.time() - BEFORE_NOW_SECONDS)
        self.engines = tuple(Engine(self.clock, begin) for begin in (0.0, 20.0, 40.0))
        self.managers = (Manager(), Manager())
        self.addresses: tuple[Address, ...] = (*self.engines, *self.managers)
        self.standalone = self._daemon("standalone", self._config("standalone") | self._posts(self.managers[0]))
        self.node = self._daemon("node", self._config("node"))
        self.daemons: tuple[DaemonProcess, ...] = (self.standalone, self.node)
        self.fleet: DaemonProcess | None = None
        if shutil.which("victoria-metrics"):
            self.store = Store(folder)
            self.store.start()
            self.door = StoreDoor(self.store)
            self.addresses += (self.door,)
            self.collector = Collector(self.store, self.clock, self._sources())
            self.fleet = self._daemon("fleet", self._fleet_config() | self._posts(self.managers[1]))
            self.daemons += (self.fleet,)

    def _daemon(self, role: str, config: Mapping[str, Any]) -> DaemonProcess:
        return DaemonProcess(role, self._folder, config, self.clock)

    def _config(self, role: str) -> dict[str, Any]:
        targets = [{"url": engine.url, "tier": TIER, "replica": f"r{n}"} for n, engine in enumerate(self.engines)]
        return {
            "plan": str(PLAN),
            "scrape_interval": f"{SCRAPE_SECONDS[role]}s",
            # Seconds of the machine: an engine that hangs must not cost more cycles than it would in production.
            "scrape_timeout": "250ms",
            "targets": targets,
            "forecast": {"enabled": False},
            "gpus": {"source": "none"},
        }

    def _posts(self, manager: Manager) -> dict[str, Any]:
        alertmanagers = [{"url": manager.place, "timeout": "500ms"}]
        return {"data_dir": "data", "alerting": {"path": "posts", "alertmanagers": alertmanagers}}

    def _fleet_config(self) -> dict[str, Any]:
        """One tier twice: from the engines' series, and from those of the node agent."""
        plan = yaml.safe_load(PLAN.read_text())
        plan["tiers"][AGENTS_TIER] = plan["tiers"][TIER]
        path = self._folder / "fleet-plan.yaml"
        path.write_text(yaml.safe_dump(plan))
        return {
            "plan": str(path),
            "store": {"url": self.door.place, "timeout": "500ms"},
            "tiers": {TIER: {"from": "engines", "selector": 'job="engines"', "replica_label": "instance"}},
            "fleet": {
                "cycle": f"{FLEET_CYCLE_SECONDS:.0f}s",
                "delay": f"{FLEET_DELAY_SECONDS:.0f}s",
                "back_fill": "0s",
            },
            "forecast": {"enabled": False},
        }

    def _sources(self) -> tuple[Source, ...]:
        sources = []
        for n, engine in enumerate(self.engines):
            labels = {"job": "engines", "instance": f"r{n}"}
            sources.append(Source(url=lambda engine=engine: engine.url, labels=labels))  # type: ignore[misc]
        node = Source(
            url=lambda: f"http://127.0.0.1:{self.node.port}/metrics",
            labels={"job": "sizewatch", "instance": "node-1"},
            replaced=(f'tier="{TIER}"'.encode(), f'tier="{AGENTS_TIER}"'.encode()),
        )
        return (*sources, node)

    def start(self) -> None:
        """Write the past into the store, and start the daemons."""
        if self.fleet is not None:
            began = self.clock() - PAST_SECONDS
            for engine, source in zip(self.engines, self._sources(), strict=False):
                for place in range(int(PAST_SECONDS / COLLECT_SECONDS)):
                    t = began + place * COLLECT_SECONDS
                    self.store.ask(*Collector.import_request(source, engine.page(t), t))
        self.standalone.start()
        self.node.start()
        if self.fleet is not None:
            self.collector.start()
            self.fleet.start()

    def behave(self) -> None:
        """End whatever was done to servers."""
        for address in self.addresses:
            address.behave()

    def close(self) -> None:
        """End whatever still runs."""
        for daemon in self.daemons:
            daemon.kill()
        if self.fleet is not None:
            self.collector.stop()
            self.store.kill()
        self.behave()
        for address in self.addresses:
            address.die()
