"""Daemon process: signals, configuration reload (SIGHUP) and orderly stop (SIGTERM).

An unexpected error costs one cycle: it is logged with its traceback and counted.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import field

from agent.config.load import LoadedConfig, load
from agent.config.web import Web
from agent.daemon import status_builder
from agent.daemon.agent_health import DaemonCounters
from agent.daemon.assembly import Assembly
from agent.daemon.factory import Assemble, assemble
from agent.daemon.followed_files import FollowedFiles, find_broken_files, reloaded_files, secret_files, web_files
from agent.daemon.jobs import CYCLE, FORECAST, REPORT, UPKEEP, UPKEEP_SECONDS, DaemonJobs
from agent.daemon.logs import set_up
from agent.daemon.reload import join_problems, prepare_in_thread
from agent.daemon.status_builder import StatusInputs
from agent.errors import ConfigError, SizewatchError, StartError
from agent.http_server.server import WebServer
from agent.pipeline.loop import EvaluationLoop
from agent.pipeline.runtime_state import RuntimeState
from agent.version import VERSION
from exporters.status.records import AgentStatus
from rules.light_dataclass import light_dataclass

CLOCK_SECONDS = 5.0
"""Interval of the clock check in seconds."""

REPORT_RETRY_SECONDS = 60.0
"""Wait in seconds after a defect in a check of the weekly report."""

LOCK_SECONDS = 0.2
"""Interval in seconds at which a wait for a cycle looks whether the daemon stops."""

_log = logging.getLogger(__name__)


class _StoppingError(Exception):
    """Wait that ended because the daemon stops."""


@light_dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """Replaceable parts of a daemon for demos and tests.

    `web` returns None to serve no pages. `on_start` is called when the port is open, `on_cycle` after each cycle. With
    `reloads` SIGHUP reloads the configuration; otherwise it ends the daemon, as a closed terminal does.
    """

    assemble: Assemble = assemble
    clock: Callable[[], float] = time.time
    speed: float = 1.0
    simulated: str = ""
    web: Callable[[LoadedConfig], Web | None] = lambda loaded: loaded.config.web
    reloads: bool = True
    on_start: Callable[[Daemon], None] = field(default=lambda daemon: None)
    on_cycle: Callable[[Daemon], None] = field(default=lambda daemon: None)


class Daemon:
    """Running agent. `run` blocks until `stop` or a signal.

    The port is opened before the history, so that a second daemon started by mistake fails without changes.
    """

    def __init__(self, loaded: LoadedConfig, surroundings: DaemonOptions | None = None) -> None:
        self.surroundings = surroundings or DaemonOptions()
        self.counts = DaemonCounters()
        self.loaded = loaded
        # The web server keeps the addresses and file names that it was started with.
        self._started_with = loaded.config
        listen = self.surroundings.web(loaded)
        self.web = WebServer(listen, self.status, self.counts.progress) if listen is not None else None
        self._clock = self.surroundings.clock
        self._started_at = self._clock()
        # Held by a cycle and by upkeep while they run. A configuration change waits for both.
        self._cycle_lock, self._upkeep_lock = threading.Lock(), threading.Lock()
        self._stopping = self._reloading = False
        # `put` may interrupt a `get` of the same thread, as in a signal handler. `Event.set` may not.
        # A number is the time (unix seconds) of the next attempt of the weekly report.
        self._wake: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        functions = {CYCLE: self._run_cycle, UPKEEP: self._upkeep, FORECAST: self._forecast, REPORT: self._report}
        self.jobs = DaemonJobs(functions, self._count_skipped, speed=self.surroundings.speed)
        self._assembly: Assembly | None = None
        self._reloaded = FollowedFiles(reloaded_files(loaded))
        self._secrets = FollowedFiles([*web_files(loaded.config.web), *secret_files(loaded.config)])
        self._prepared: Future[tuple[LoadedConfig, Assembly]] | None = None

    @property
    def loop(self) -> EvaluationLoop:
        """Return the evaluation loop of the active configuration, after `start`."""
        return self.assembly.loop

    @property
    def runtime(self) -> RuntimeState:
        """Return the runtime records of the active configuration, after `start`."""
        return self.assembly.runtime

    @property
    def assembly(self) -> Assembly:
        """Return all parts of the active configuration, after `start`."""
        assert self._assembly is not None, "the daemon has not been started"
        return self._assembly

    def run(self) -> None:
        """Run until stopped. In the main thread, handle signals."""
        with ExitStack() as signals:
            if threading.current_thread() is threading.main_thread():
                hangup = self.ask_reload if self.surroundings.reloads else self.stop
                for number, act in ((signal.SIGTERM, self.stop), (signal.SIGINT, self.stop), (signal.SIGHUP, hangup)):
                    signals.callback(signal.signal, number, signal.signal(number, _handler(act)))
            self.start()
            try:
                self.surroundings.on_start(self)
                while not self._stopping:
                    with suppress(_StoppingError):
                        self._wait()
            finally:
                if self._prepared is not None:
                    _log.warning("configuration reload abandoned, stopping")
                self.close()

    def _wait(self) -> None:
        next_report: float | None = None
        try:
            next_report = self._wake.get(timeout=CLOCK_SECONDS)
        except queue.Empty:
            self.jobs.follow_clock()
            if self._prepared is None:
                self._look_around()
        if next_report is not None:
            self.jobs.advance_report(next_report - self._clock())
        if self._prepared is not None and self._prepared.done():
            prepared, self._prepared = self._prepared, None
            self._take_new_configuration(prepared)
        if self._reloading and self._prepared is None and not self._stopping:
            self._reloading = False
            # Files are read now: a change until here needs no reload of its own.
            self._reloaded.changed()
            self._prepared = prepare_in_thread(self._prepare_configuration, lambda: self._wake.put(None))

    @contextmanager
    def _hold(self, *locks: threading.Lock) -> Iterator[None]:
        """Hold locks that cycles or upkeep may keep for long. Raise _StoppingError if the daemon stops before."""
        with ExitStack() as held:
            for lock in locks:
                while not lock.acquire(timeout=LOCK_SECONDS):
                    if self._stopping:
                        raise _StoppingError
                held.callback(lock.release)
            yield

    def _look_around(self) -> None:
        """Take up changes of the plan, of a mounted configuration, of secrets and of pods."""
        if self.surroundings.reloads and self._reloaded.changed():
            _log.info("plan or configuration changed, reloading")
            self._reloading = True
            return
        try:
            changed = self.surroundings.reloads and self._secrets.changed()
            if changed or self.counts.secret_trouble:
                self._read_secrets()
            # A broken secret may be what the configuration was refused for.
            self._reloading = self._reloading or bool(changed and self.counts.config_trouble)
            if self.assembly.has_pod_changes(self.loaded):
                self._change_pods()
        except _StoppingError:
            raise
        except Exception:  # noqa: BLE001 - a defect costs this check, not the daemon
            self.counts.errors += 1
            _log.exception("update of secrets or pods failed retry_seconds=%.0f", CLOCK_SECONDS)

    def _read_secrets(self) -> None:
        """Read secrets and certificates again. What a file cannot give keeps its value before, and is reported."""
        alerting = self.assembly.alerting
        # The web configuration file may name other files now.
        self._secrets.follow([*web_files(self._started_with.web), *secret_files(self.loaded.config)])
        problems: list[str] = []
        for reload in (self.web and self.web.reload, alerting and alerting.reload):
            try:
                if reload:
                    reload()
            except ConfigError as error:
                problems += error.problems
        problems += find_broken_files(self.loaded.config)
        before, trouble = self.counts.secret_trouble, "; ".join(problems) or None
        self.counts.secret_trouble = trouble
        if trouble is None:
            _log.info("secrets reloaded")
        elif trouble != before:
            _log.error('secrets not reloaded, previous in use error="%s"', trouble)

    def _change_pods(self) -> None:
        with self._hold(self._upkeep_lock):
            assembly = self.surroundings.assemble(self.loaded, self._assembly)
        with self._hold(self._upkeep_lock, self._cycle_lock):
            assembly.take_state(self.assembly, self._clock(), pods_only=True)
            self._assembly = assembly
            self._receive()
        _log.info("pod discovery changed targets=%d", len(assembly.loop.source.targets))

    def start(self) -> None:
        """Start the web server and the cycles. Raise SizewatchError with everything closed."""
        try:
            with ExitStack() as undo:
                if self.web is not None:
                    undo.callback(self.web.stop)
                    self.web.start()
                self._assembly = self.surroundings.assemble(self.loaded, None)
                undo.callback(lambda: self.assembly.close(self._clock()))
                self._receive()
                undo.callback(self.jobs.shutdown)
                self.jobs.start(self._interval, self.assembly.weekly_times)
                undo.pop_all()
        except (RuntimeError, MemoryError) as error:
            reason = str(error) or "out of memory"
            text = (
                f"cannot start: {reason}; is a limit of memory (RLIMIT_AS, MemoryMax) or of threads (TasksMax) too low?"
            )
            raise StartError(text) from error
        _log.info(
            'started version=%s watching="%s" interval_seconds=%g role=%s%s',
            VERSION,
            self.loop.source.describe(),
            self.loaded.config.turn_seconds,
            self.loaded.config.role,
            f" status_page={self.web.url}" if self.web is not None else "",
        )

    def _receive(self) -> None:
        """Connect the web server to the active webhook and reports."""
        if self.web is not None:
            alerting = self.assembly.alerting
            self.web.receive(alerting.receiver if alerting is not None else None)
            self.web.serve_reports(self.loaded.config.report_folder)

    @property
    def _interval(self) -> float:
        return self.loaded.config.turn_seconds / self.surroundings.speed

    def stop(self) -> None:
        """Request an orderly stop. Safe in a signal handler and from other threads."""
        self._stopping = True
        self._wake.put(None)

    def ask_reload(self) -> None:
        """Request a configuration reload between two cycles. Safe in a signal handler."""
        self._reloading = True
        self._wake.put(None)

    def close(self) -> None:
        """Stop the cycles, record what is open and release everything."""
        with ExitStack() as ends:
            if self.web is not None:
                ends.callback(self.web.stop)
            ends.callback(lambda: self.assembly.close(self._clock()))
            ends.callback(self.jobs.shutdown)
            # Otherwise the end would wait for hung targets.
            ends.callback(self.loop.interrupt)
            if self.assembly.forecasts is not None:
                # Otherwise the end would wait for a running forecast.
                ends.callback(self.assembly.forecasts.stop)
            if self.assembly.reports is not None:
                ends.callback(self.assembly.reports.stop)
        _log.info("stopped cycles=%d", self.counts.turns)

    def _run_cycle(self) -> None:
        start = time.monotonic()
        with self._cycle_lock:
            try:
                self.loop.run_cycle()
                self.counts.failed_in_row = 0
                self.counts.last_turn_at = self._clock()
                self.counts.succeeded_at = time.monotonic()
            except Exception:  # noqa: BLE001 - a defect costs one cycle, not the daemon; it is logged and counted
                self.counts.errors += 1
                self.counts.failed_in_row += 1
                _log.exception("cycle failed")
            self.counts.turns += 1
            self.counts.last_turn_seconds = time.monotonic() - start
        self.surroundings.on_cycle(self)

    def _upkeep(self) -> None:
        with suppress(_StoppingError), self._hold(self._upkeep_lock):
            try:
                self.assembly.upkeep(self._clock())
            except Exception:  # noqa: BLE001 - as above
                self.counts.errors += 1
                _log.exception("upkeep failed retry_seconds=%.0f", UPKEEP_SECONDS)

    def _forecast(self) -> None:
        try:
            self.assembly.forecast(self._clock())
        except Exception:  # noqa: BLE001 - as above
            self.counts.errors += 1
            _log.exception("forecast failed")

    def _report(self) -> None:
        parts = self.assembly
        if parts.reports is None:
            return
        try:
            next_report = parts.reports.run(parts.loaded, self._clock)
        except Exception:  # noqa: BLE001 - as above
            self.counts.errors += 1
            next_report = self._clock() + REPORT_RETRY_SECONDS
            _log.exception("weekly report check failed retry_seconds=%.0f", REPORT_RETRY_SECONDS)
        # The main thread schedules it: `shutdown` holds the scheduler's lock until this run ends.
        self._wake.put(next_report)

    def _count_skipped(self, why: str) -> None:
        self.counts.overruns += 1
        _log.warning('cycle left out reason="%s"', why)

    def _prepare_configuration(self) -> tuple[LoadedConfig, Assembly]:
        """Load the configuration and its parts beside the cycles. Raise SizewatchError for an unusable one."""
        fresh = load(self.loaded.path, role=self.loaded.given_role)
        if self.web is not None:
            self.web.reload()
        with self._hold(self._upkeep_lock):
            return fresh, self.surroundings.assemble(fresh, self._assembly)

    def _take_new_configuration(self, prepared: Future[tuple[LoadedConfig, Assembly]]) -> None:
        """Change to a configuration. An unusable one changes nothing; it is logged and counted."""
        try:
            fresh, assembly = prepared.result()
        except SizewatchError as error:
            self.counts.config_trouble = join_problems(error)
            _log.error(
                'configuration reload failed, previous configuration active error="%s"', self.counts.config_trouble
            )
            return
        except Exception as error:  # noqa: BLE001 - a defect costs the reload, not the daemon
            self.counts.errors += 1
            self.counts.config_trouble = f"defect in sizewatch: {type(error).__name__}, see its log"
            _log.exception("configuration reload failed, previous configuration active")
            return
        self._reloaded.follow(reloaded_files(fresh))
        self._secrets.follow([*web_files(self._started_with.web), *secret_files(fresh.config)])
        self._change_to(fresh, assembly)

    def _change_to(self, fresh: LoadedConfig, assembly: Assembly) -> None:
        before = self.loaded
        with self._hold(self._upkeep_lock, self._cycle_lock):
            assembly.take_state(self.assembly, self._clock())
            self._assembly, self.loaded = assembly, fresh
            self._receive()
        self.counts.reloads += 1
        self.counts.config_trouble = None
        self.jobs.change(self._interval, assembly.weekly_times)
        if fresh.config.logging != before.config.logging:
            set_up(fresh.config.logging)
        for mistake in fresh.grave:
            _log.error("configuration mistake: %s", mistake)
        for warning in fresh.warnings:
            _log.warning("configuration warning: %s", warning)
        if fresh.config.web != before.config.web:
            _log.warning("web options changed, active after restart file=%s", fresh.path)
        _log.info('configuration reloaded watching="%s"', self.loop.source.describe())

    def status(self) -> AgentStatus | None:
        """Return the status for the pages, or None before the end of the first cycle."""
        if self.counts.turns == 0:
            return None
        parts = self.assembly
        with parts.loop.memory:
            return status_builder.status(parts.loop, parts.runtime, self._facts(parts), self._clock())

    def _facts(self, parts: Assembly) -> StatusInputs:
        alerting = parts.alerting
        return StatusInputs(
            role=parts.loaded.config.role,
            started_at=self._started_at,
            health=self.counts.health(parts, self._clock),
            simulated=self.surroundings.simulated,
            workers=parts.workers(),
            external_alerts=alerting.foreign.alerts if alerting is not None else (),
            step13=parts.step13,
            forecasts=parts.forecasts,
            no_forecasts=parts.no_forecasts,
            external_url=(parts.loaded.config.alerting.external_url or "").rstrip("/"),
        )


def _handler(act: Callable[[], None]) -> Callable[[int, object], None]:
    return lambda number, frame: act()
