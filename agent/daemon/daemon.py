"""The daemon: turns on time, reload on SIGHUP, orderly stop on SIGTERM.

Owns the signals and the change of configuration. When a turn is due is `agent.daemon.schedule`'s, what it does
`agent.pipeline.loop`',
what is shown `agent.daemon.status_builder`'s. An unexpected error costs one turn: it is logged with its traceback and counted.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from agent.config.load import LoadedConfig, load
from agent.daemon import status_builder
from agent.daemon.assembly import Assemble, Assembly, assemble
from agent.daemon.logs import set_up
from agent.daemon.schedule import UPKEEP_SECONDS, Schedule
from agent.daemon.status_builder import StatusInputs
from agent.errors import SizewatchError
from agent.files import MountedFiles
from agent.http_server.options import WebOptions, options_of
from agent.http_server.server import WebServer
from agent.pipeline.loop import EvaluationLoop
from agent.version import VERSION
from exporters.status.records import AgentHealth, AgentStatus

CLOCK_SECONDS = 5.0
"""How often the machine's clock is looked at."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class DaemonCounters:
    """The daemon's own health, counted since its start."""

    turns: int = 0
    overruns: int = 0
    errors: int = 0
    reloads: int = 0
    last_turn_seconds: float | None = None
    last_turn_at: float | None = None
    config_trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """What a demo or a test replaces: how parts are put together, the clock, the speed of time, where pages are served
    (None: nowhere), the banner. `on_start` is called when the port is open, `on_turn` after each turn.

    `reloads` says whether SIGHUP reads the configuration again; otherwise it ends the daemon, as a closed terminal does.
    """

    assemble: Assemble = assemble
    clock: Callable[[], float] = time.time
    speed: float = 1.0
    simulated: str = ""
    web: Callable[[LoadedConfig], WebOptions | None] = lambda loaded: options_of(loaded.config.web)
    reloads: bool = True
    on_start: Callable[[Daemon], None] = field(default=lambda daemon: None)
    on_turn: Callable[[Daemon], None] = field(default=lambda daemon: None)


class Daemon:
    """One running agent. `run` blocks until `stop` or a signal.

    The port is taken before the history is touched: a second daemon by mistake is told so and has changed nothing.
    """

    def __init__(self, loaded: LoadedConfig, surroundings: DaemonOptions | None = None) -> None:
        self.surroundings = surroundings or DaemonOptions()
        self.counts = DaemonCounters()
        self.loaded = loaded
        listen = self.surroundings.web(loaded)
        self.web = WebServer(listen, self.status) if listen is not None else None
        self._clock = self.surroundings.clock
        self._started_at = self._clock()
        # Held by a turn, and by upkeep, while they are at work; a change of configuration waits for both.
        self._turning, self._keeping = threading.Lock(), threading.Lock()
        self._stopping = self._reloading = False
        # Its `put` may interrupt a `get` of the same thread, as a signal's handler does; an Event's `set` may not.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._schedule = Schedule(
            self._turn, self._upkeep, self._late, self._forecast, self._report, speed=self.surroundings.speed
        )
        self._assembly: Assembly | None = None
        self._files = MountedFiles(_files(loaded))

    @property
    def turns(self) -> EvaluationLoop:
        """The turns of the configuration in use, from `start` on."""
        return self._parts.turns

    @property
    def _parts(self) -> Assembly:
        assert self._assembly is not None, "the daemon has not been started"
        return self._assembly

    def run(self) -> None:
        """Watches until told to stop. Signals are taken while it runs, when this is the main thread."""
        with ExitStack() as signals:
            if threading.current_thread() is threading.main_thread():
                hangup = self.ask_reload if self.surroundings.reloads else self.stop
                for number, act in ((signal.SIGTERM, self.stop), (signal.SIGINT, self.stop), (signal.SIGHUP, hangup)):
                    signals.callback(signal.signal, number, signal.signal(number, _handler(act)))
            self.start()
            try:
                self.surroundings.on_start(self)
                while not self._stopping:
                    self._wait()
            finally:
                self.close()

    def _wait(self) -> None:
        try:
            self._wake.get(timeout=CLOCK_SECONDS)
        except queue.Empty:
            self._schedule.check_clock_jump()
            self._look_around()
        if self._reloading and not self._stopping:
            self._reloading = False
            self._take_new_configuration()

    def _look_around(self) -> None:
        """A mounted file that changed is read again; pods that came or went are watched or not."""
        if self.surroundings.reloads and self._files.changed():
            _log.info("a mounted file has changed")
            self._reloading = True
            return
        try:
            if self._parts.has_pod_changes(self.loaded):
                self._change_pods()
        except Exception:  # noqa: BLE001 - a defect costs this look, not the daemon
            self.counts.errors += 1
            _log.exception("other pods could not be taken; they are looked at again in %.0f s", CLOCK_SECONDS)

    def _change_pods(self) -> None:
        with self._keeping:
            assembly = self.surroundings.assemble(self.loaded, self._assembly)
        with self._keeping, self._turning:
            assembly.inherit_state(self._parts, self._clock(), pods_only=True)
            self._assembly = assembly
            self._receive()
        _log.info("other engine pods were found: %d targets", len(assembly.turns.targets))

    def start(self) -> None:
        """Begins the web server and the turns, and returns. Raises SizewatchError, with nothing left open."""
        with ExitStack() as undo:
            if self.web is not None:
                self.web.start()
                undo.callback(self.web.stop)
            self._assembly = self.surroundings.assemble(self.loaded, None)
            undo.pop_all()
        self._receive()
        _log.info(
            "sizewatch %s watches %s every %g s as %s%s",
            VERSION,
            self._parts.turns.describe_targets,
            self.loaded.config.turn_seconds,
            self.loaded.config.role,
            f"; status page: {self.web.url}" if self.web is not None else "",
        )
        self._schedule.begin(self._interval)

    def _receive(self) -> None:
        """The webhook and the reports that are served are those of the parts in use."""
        if self.web is not None:
            alerting = self._parts.turns.alerting
            self.web.receive(alerting.receiver if alerting is not None else None)
            self.web.serve_reports(self.loaded.config.report_folder)

    @property
    def _interval(self) -> float:
        return self.loaded.config.turn_seconds / self.surroundings.speed

    def stop(self) -> None:
        """Asks for an orderly end; safe from a signal handler and from other threads."""
        self._stopping = True
        self._wake.put(None)

    def ask_reload(self) -> None:
        """Asks for the configuration to be read again, between two turns; safe from a signal handler."""
        self._reloading = True
        self._wake.put(None)

    def close(self) -> None:
        """Ends the turns, books what is open, gives everything back."""
        with ExitStack() as ends:
            if self.web is not None:
                ends.callback(self.web.stop)
            ends.callback(lambda: self._parts.close(self._clock()))
            ends.callback(self._schedule.end)
            if self._parts.forecasts is not None:
                # A forecast that is under way would be waited for.
                ends.callback(self._parts.forecasts.stop)
            if self._parts.reports is not None:
                ends.callback(self._parts.reports.stop)
        _log.info("stopped after %d turns", self.counts.turns)

    def _turn(self) -> None:
        start = time.monotonic()
        with self._turning:
            try:
                self.turns.run_cycle()
            except Exception:  # noqa: BLE001 - a defect costs one turn, not the daemon; it is logged and counted
                self.counts.errors += 1
                _log.exception("a turn failed; the next one runs as planned")
            self.counts.turns += 1
            self.counts.last_turn_seconds = time.monotonic() - start
            self.counts.last_turn_at = self._clock()
        self.surroundings.on_turn(self)

    def _upkeep(self) -> None:
        with self._keeping:
            try:
                self._parts.upkeep(self._clock())
                self._parts.seal(self._clock(), lambda: self._stopping)
            except Exception:  # noqa: BLE001 - as above
                self.counts.errors += 1
                _log.exception("upkeep failed; it runs again in %.0f s", UPKEEP_SECONDS)

    def _forecast(self) -> None:
        try:
            self._parts.forecast(self._clock())
        except Exception:  # noqa: BLE001 - as above
            self.counts.errors += 1
            _log.exception("a forecast failed; the next one runs as planned")

    def _report(self) -> None:
        parts = self._parts
        try:
            if parts.reports is not None and parts.turns.is_leader:
                parts.reports.run(parts.loaded, self._clock)
        except Exception:  # noqa: BLE001 - as above
            self.counts.errors += 1
            _log.exception("looking after the weekly report failed; it is done again in a minute")

    def _late(self, why: str) -> None:
        self.counts.overruns += 1
        _log.warning("a turn was left out: %s", why)

    def _take_new_configuration(self) -> None:
        """A configuration that cannot be used changes nothing; it is told and counted."""
        try:
            fresh = load(self.loaded.path, role=self.loaded.given_role)
            if self.web is not None:
                self.web.reload()
            with self._keeping:
                assembly = self.surroundings.assemble(fresh, self._assembly)
        except SizewatchError as error:
            self.counts.config_trouble = "; ".join(str(error).splitlines())
            _log.error("the new configuration is not used, the one before it still is: %s", self.counts.config_trouble)
            return
        except Exception as error:  # noqa: BLE001 - a defect costs the reload, not the daemon
            self.counts.errors += 1
            self.counts.config_trouble = f"defect in sizewatch: {type(error).__name__}, see its log"
            _log.exception("the new configuration is not used, the one before it still is")
            return
        self._files.follow(_files(fresh))
        self._change_to(fresh, assembly)

    def _change_to(self, fresh: LoadedConfig, assembly: Assembly) -> None:
        before = self.loaded
        with self._keeping, self._turning:
            assembly.inherit_state(self._parts, self._clock())
            self._assembly, self.loaded = assembly, fresh
            self._receive()
        self.counts.reloads += 1
        self.counts.config_trouble = None
        self._schedule.change(self._interval)
        if fresh.config.logging != before.config.logging:
            set_up(fresh.config.logging)
        for mistake in fresh.grave:
            _log.error("%s", mistake)
        for warning in fresh.warnings:
            _log.warning("%s", warning)
        if fresh.config.web != before.config.web:
            _log.warning("%s: web: another address, port or file takes effect at the next start", fresh.path)
        _log.info("configuration read again: %s", self._parts.turns.describe_targets)

    def status(self) -> AgentStatus | None:
        """What the pages show; None before the first turn has ended."""
        if self.counts.turns == 0:
            return None
        parts = self._parts
        with parts.turns.memory:
            return status_builder.status(parts.turns, self._facts(parts), self._clock())

    def _facts(self, parts: Assembly) -> StatusInputs:
        turns, counts = parts.turns, self.counts
        history = turns.history
        posting, webhook = turns.alerting.health() if turns.alerting is not None else ((), None)
        health = AgentHealth(
            turns=counts.turns,
            overruns=counts.overruns,
            last_turn_seconds=counts.last_turn_seconds,
            last_turn_at=counts.last_turn_at,
            turn_errors=counts.errors + turns.defects,
            scrape_failures=dict(turns.ledger.failures),
            history_trouble=history.trouble if history else None,
            unbooked_minutes=len(history.buffer) if history else 0,
            dropped_minutes=history.buffer.dropped if history else 0,
            config_reloads=counts.reloads,
            config_trouble=counts.config_trouble,
            gpu_problems=turns.gpu_problems,
            alertmanagers=posting,
            webhook=webhook,
            forecasting=parts.forecasts.health() if parts.forecasts is not None else None,
            reporting=parts.reports.health(parts.loaded, self._clock()) if parts.reports is not None else None,
            store=turns.store_health(),
            discovery=turns.pods.health() if turns.pods is not None else None,
        )
        return StatusInputs(
            role=parts.loaded.config.role,
            started_at=self._started_at,
            health=health,
            simulated=self.surroundings.simulated,
            past=tuple(turns.past),
            step13=parts.step13,
            forecasts=parts.forecasts,
            no_forecasts=parts.no_forecasts,
        )


def _files(loaded: LoadedConfig) -> tuple[Path, ...]:
    return (loaded.path, *((Path(loaded.config.plan),) if loaded.config.plan else ()))


def _handler(act: Callable[[], None]) -> Callable[[int, object], None]:
    return lambda number, frame: act()
