"""The daemon: turns on time, reload on SIGHUP, orderly stop on SIGTERM.

Owns the schedule, the signals and the change of configuration. What a turn does is `agent.turns`; what is shown is
`agent.publishing`. An unexpected error costs one turn: it is logged with its traceback and counted.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from apscheduler.events import EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobEvent
from apscheduler.schedulers.background import BackgroundScheduler

from agent import publishing
from agent.assembly import Assembly, assemble
from agent.config import Loaded, load
from agent.errors import SizewatchError
from agent.publishing import Facts
from agent.turns import Turns
from agent.web import WebServer
from agent.web_config import options_of
from exporters.status import AgentStatus, Health

UPKEEP_SECONDS = 3600.0
"""How often retention and Step 13 are looked at."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counts:
    """The daemon's own health, counted since its start."""

    turns: int = 0
    overruns: int = 0
    errors: int = 0
    reloads: int = 0
    last_turn_seconds: float | None = None
    last_turn_at: float | None = None
    config_trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a demo or a test replaces: how parts are put together, the clock, the speed of time, the banner."""

    assemble: Callable[[Loaded], Assembly] = assemble
    clock: Callable[[], float] = time.time
    speed: float = 1.0
    simulated: str = ""
    web: bool = True
    on_turn: Callable[[Daemon], None] = field(default=lambda daemon: None)


class Daemon:
    """One running agent. `run` blocks until `stop` or a signal."""

    def __init__(self, loaded: Loaded, surroundings: Surroundings | None = None) -> None:
        self.surroundings = surroundings or Surroundings()
        self.counts = Counts()
        self.loaded = loaded
        self._clock = self.surroundings.clock
        self._started_at = self._clock()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._reload = threading.Event()
        self._wake = threading.Event()
        self._assembly = self.surroundings.assemble(loaded)
        self._scheduler = BackgroundScheduler(timezone="UTC")
        self.web = WebServer(options_of(loaded.config.web), self.status) if self.surroundings.web else None

    @property
    def turns(self) -> Turns:
        return self._assembly.turns

    def run(self) -> None:
        """Watches until told to stop. Signals are taken when this is the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self.stop())
            signal.signal(signal.SIGHUP, lambda *_: self.ask_reload())
        self.start()
        while not self._stopping.is_set():
            self._wake.wait()
            self._wake.clear()
            if self._reload.is_set() and not self._stopping.is_set():
                self._reload.clear()
                self._take_new_configuration()
        self.close()

    def start(self) -> None:
        """Begins the turns and the web server, and returns."""
        if self.web is not None:
            self.web.start()
        self._scheduler.add_listener(self._overrun, EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES)
        self._scheduler.start()
        self._schedule()

    def _schedule(self) -> None:
        interval = self.loaded.config.scrape_interval_seconds / self.surroundings.speed
        self._scheduler.add_job(
            self._turn,
            "interval",
            seconds=interval,
            id="turn",
            max_instances=1,
            coalesce=True,
            misfire_grace_time=max(1, round(interval / 2)),
            replace_existing=True,
        )
        self._scheduler.add_job(
            self._upkeep,
            "interval",
            seconds=UPKEEP_SECONDS,
            id="upkeep",
            max_instances=1,
            coalesce=True,
            misfire_grace_time=None,
            replace_existing=True,
        )
        self._scheduler.add_job(self._turn, id="first")

    def stop(self) -> None:
        """Asks for an orderly end; safe from a signal handler and from other threads."""
        self._stopping.set()
        self._wake.set()

    def ask_reload(self) -> None:
        """Asks for the configuration to be read again, between two turns."""
        self._reload.set()
        self._wake.set()

    def close(self) -> None:
        """Ends the turns, books what is open, gives everything back."""
        self._scheduler.shutdown(wait=True)
        with self._lock:
            self._assembly.close()
        if self.web is not None:
            self.web.stop()
        _log.info("stopped after %d turns", self.counts.turns)

    def _turn(self) -> None:
        start = time.monotonic()
        with self._lock:
            try:
                self._assembly.turns.turn()
            except Exception:  # noqa: BLE001 - a defect costs one turn, not the daemon; it is logged and counted
                self.counts.errors += 1
                _log.exception("a turn failed; the next one runs as planned")
            self.counts.turns += 1
            self.counts.last_turn_seconds = time.monotonic() - start
            self.counts.last_turn_at = self._clock()
        self.surroundings.on_turn(self)

    def _upkeep(self) -> None:
        with self._lock:
            try:
                self._assembly.upkeep(self._clock())
            except Exception:  # noqa: BLE001 - as above
                self.counts.errors += 1
                _log.exception("upkeep failed; it runs again in %.0f s", UPKEEP_SECONDS)

    def _overrun(self, event: JobEvent) -> None:
        if event.job_id == "turn":
            self.counts.overruns += 1
            _log.warning("a turn was skipped: the one before it was still running")

    def _take_new_configuration(self) -> None:
        """A configuration that cannot be used changes nothing; it is told and counted."""
        try:
            fresh = load(self.loaded.path, role=self.loaded.given_role)
            if self.web is not None:
                self.web.reload()
            assembly = self.surroundings.assemble(fresh)
        except SizewatchError as error:
            self.counts.config_trouble = f"the new configuration is not used: {'; '.join(str(error).splitlines())}"
            _log.error("%s", self.counts.config_trouble)
            return
        with self._lock:
            assembly.take_over(self._assembly)
            self._assembly, self.loaded = assembly, fresh
        self.counts.reloads += 1
        self.counts.config_trouble = None
        self._schedule()
        _log.info("configuration read again: %d targets", len(fresh.config.targets))

    def status(self) -> AgentStatus | None:
        """What the pages show; None before the first turn."""
        if self.counts.turns == 0:
            return None
        with self._lock:
            return publishing.status(self._assembly.turns, self._facts(), self._clock())

    def _facts(self) -> Facts:
        turns, counts = self._assembly.turns, self.counts
        history = turns.history
        health = Health(
            turns=counts.turns,
            overruns=counts.overruns,
            last_turn_seconds=counts.last_turn_seconds,
            last_turn_at=counts.last_turn_at,
            turn_errors=counts.errors,
            scrape_failures=dict(turns.ledger.failures),
            history_trouble=history.trouble if history else None,
            unbooked_minutes=len(history.buffer) if history else 0,
            dropped_minutes=history.buffer.dropped if history else 0,
            config_reloads=counts.reloads,
            config_trouble=counts.config_trouble,
            gpu_problems=turns.gpu_problems,
        )
        return Facts(
            role=self.loaded.config.role,
            started_at=self._started_at,
            health=health,
            simulated=self.surroundings.simulated,
            past=tuple(turns.past),
            step13=self._assembly.step13,
        )
