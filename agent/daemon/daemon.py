"""Daemon process: signals, configuration reload (SIGHUP) and orderly stop (SIGTERM).

An unexpected error costs one cycle: it is logged with its traceback and counted. The daemon follows the plan, a mounted
configuration, and the secrets of its own pages and webhook. Connections to others read their files again at each use.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agent.config.files import named_files
from agent.config.load import LoadedConfig, load
from agent.config.web import Web, find_web_file
from agent.daemon import status_builder
from agent.daemon.assembly import Assemble, Assembly, assemble
from agent.daemon.jobs import BACK_FILL, CYCLE, FORECAST, REPORT, UPKEEP, DaemonJobs
from agent.daemon.logs import set_up
from agent.durations import Backoff
from agent.errors import SizewatchError
from agent.http_server.server import WebServer
from agent.pipeline.loop import EvaluationLoop
from agent.version import VERSION
from exporters.status.records import AgentHealth, AgentStatus

CLOCK_SECONDS = 5.0
"""Interval in seconds of the check of the clock, followed files and pods."""

MARK = "..data"
"""Link in a folder that Kubernetes mounts. The kubelet writes a new folder and moves the link to it (atomic writer)."""

RETRY = Backoff(first=60.0, longest=3600.0)
"""Delays after a failure of the history, in seconds."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
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
        self.counts = AgentHealth()
        self.loaded = loaded
        listen = self.surroundings.web(loaded)
        self.web = WebServer(listen, self.status, self.seconds_since_cycle) if listen is not None else None
        self._clock = self.surroundings.clock
        self._started_at = self._clock()
        self._succeeded_at: float | None = None
        # Held by a cycle and by upkeep while they run. A configuration change waits for both.
        self._cycle_lock, self._upkeep_lock = threading.Lock(), threading.Lock()
        self._stopping = self._reloading = False
        self._retry = RETRY
        # `put` may interrupt a `get` of the same thread, as in a signal handler. `Event.set` may not.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        functions = {
            CYCLE: self._run_cycle,
            UPKEEP: self._upkeep,
            FORECAST: self._forecast,
            BACK_FILL: lambda: self._run_job(BACK_FILL, self.assembly.fill_demand),
            REPORT: lambda: self._run_job(REPORT, self.assembly.write_reports),
        }
        self.jobs = DaemonJobs(functions, self._count_skipped, speed=self.surroundings.speed)
        self._assembly: Assembly | None = None
        self._ends = ExitStack()
        # The web server keeps the addresses and file names that it was started with.
        self._web_options = loaded.config.web
        self._stamps = stamp_files(loaded, self._web_options)

    @property
    def loop(self) -> EvaluationLoop:
        """Return the evaluation loop of the active configuration, after `start`."""
        return self.assembly.loop

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
                    signals.callback(signal.signal, number, signal.signal(number, lambda *_, act=act: act()))
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
            self.jobs.follow_clock()
            with self._guard("update of secrets or pods"):
                self._look_around()
        if self._reloading and not self._stopping:
            self._reloading = False
            self._reload()

    @contextmanager
    def _guard(self, work: str) -> Iterator[None]:
        """Count and log a defect: it costs this run of the work, not the daemon."""
        try:
            yield
        except Exception:  # noqa: BLE001 - see above
            self.counts.cycle_errors += 1
            _log.exception("job failed job=%s", work)

    def _look_around(self) -> None:
        # The paths are those of the last reload.
        stamps = {path: stamp_file(path) for path in self._stamps}
        if self.surroundings.reloads and any(self._stamps[path] != stamp for path, stamp in stamps.items()):
            _log.info("plan or secrets changed, reloading")
            self._reloading = True
            return
        pods, targets = self.assembly.pods, self.assembly.loaded.config.targets
        if pods is not None and pods.add_discovered_targets(self.loaded).config.targets != targets:
            self._change_to(self.loaded, "other engine pods were found")
            _log.info("pod discovery changed targets=%d", len(self.loop.source.targets))

    def start(self) -> None:
        """Start the web server and the cycles. Raise SizewatchError with everything closed."""
        with ExitStack() as ends:
            if self.web is not None:
                ends.callback(self.web.stop)
                self.web.start()
            self._assembly = self.surroundings.assemble(self.loaded, None)
            ends.callback(lambda: self.assembly.close(self._clock()))
            self._receive()
            ends.callback(self.jobs.shutdown)
            self.jobs.schedule(self.loaded.config.cycle_seconds)
            ends.callback(lambda: self.assembly.interrupt())
            self._ends = ends.pop_all()
        config, page = self.loaded.config, f" status_page={self.web.url}" if self.web is not None else ""
        started = f'watching="{self.loop.source.describe()}" interval_seconds={config.cycle_seconds:g} role={config.role}{page}'
        _log.info("started version=%s %s", VERSION, started)

    def _receive(self) -> None:
        if self.web is not None:
            receiver = self.assembly.alerting.receiver if self.assembly.alerting is not None else None
            self.web.pages.receiver = receiver.receive if receiver is not None else None
            self.web.pages.reports = self.loaded.config.report_folder

    def stop(self) -> None:
        """Request an orderly stop. Safe in a signal handler and from other threads."""
        self._stopping = True
        self._wake.put(None)

    def ask_reload(self) -> None:
        """Request a configuration reload between two cycles. Safe in a signal handler."""
        self._reloading = True
        self._wake.put(None)

    def close(self) -> None:
        self._ends.close()
        _log.info("stopped cycles=%d", self.counts.cycles)

    def _run_cycle(self) -> None:
        start, failed = time.monotonic(), self.counts.failed_in_row + 1
        with self._cycle_lock:
            with self._guard(CYCLE):
                self.loop.run_cycle()
                failed = 0
                self.counts.last_cycle_at = self._clock()
                self._succeeded_at = time.monotonic()
            self.counts.failed_in_row = failed
            self.counts.cycles += 1
            self.counts.last_cycle_seconds = time.monotonic() - start
        self.surroundings.on_cycle(self)

    def _upkeep(self) -> None:
        with self._guard(UPKEEP), self._upkeep_lock:
            self.assembly.upkeep(self._clock())

    def _forecast(self) -> None:
        history, now = self.assembly.history, self._clock()
        if history is None or not history.read_errors:
            self._retry = RETRY
        elif self._retry.is_due(now):
            # A file that was locked for a moment costs no hour of the rules over days.
            self._retry = self._retry.record_failure(now)
            self._upkeep()
        self._run_job(FORECAST, self.assembly.forecast)

    def _run_job(self, name: str, job: Callable[[float], None]) -> None:
        with self._guard(name):
            job(self._clock())

    def _count_skipped(self, why: str) -> None:
        self.counts.overruns += 1
        _log.warning('cycle left out reason="%s"', why)

    def _reload(self) -> None:
        """Change to the configuration on disk. An unusable one changes nothing; it is logged and counted.

        Secrets of the pages are renewed in any case: a broken configuration must not let a certificate expire.
        """
        before = self.loaded
        # Before the files are read: a change from here on is a reload of its own.
        self._stamps = stamp_files(before, self._web_options)
        try:
            if self.web is not None:
                self.web.reload()
            fresh = load(before.path, role=before.given_role)
            self._change_to(fresh, "the configuration was read again")
        except Exception as error:  # noqa: BLE001 - a defect costs the reload, not the daemon
            is_defect = not isinstance(error, SizewatchError)
            self.counts.cycle_errors += is_defect
            text = f"defect in sizewatch: {type(error).__name__}, see its log" if is_defect else str(error)
            self.counts.config_trouble = text.replace("\n", "; ")
            trouble = self.counts.config_trouble
            _log.error('configuration reload failed, previous stays active error="%s"', trouble, exc_info=is_defect)
            return
        self._stamps = stamp_files(fresh, self._web_options) | self._stamps
        self.counts.config_reloads += 1
        self.counts.config_trouble = None
        if fresh.config.cycle_seconds != before.config.cycle_seconds:
            self.jobs.schedule(fresh.config.cycle_seconds)
        if fresh.config.logging != before.config.logging:
            set_up(fresh.config.logging)
        for mistake in fresh.grave:
            _log.error("configuration mistake: %s", mistake)
        for warning in fresh.warnings:
            _log.warning("configuration warning: %s", warning)
        if fresh.config.web not in (before.config.web, self._web_options):
            _log.warning("web options changed, active after restart file=%s", fresh.path)
        _log.info('configuration reloaded watching="%s"', self.loop.source.describe())

    def _change_to(self, loaded: LoadedConfig, reason: str) -> None:
        with self._upkeep_lock:
            assembly = self.surroundings.assemble(loaded, self._assembly)
            with self._cycle_lock:
                assembly.take_state(self.assembly, self._clock(), reason)
                self._assembly, self.loaded = assembly, loaded
                self._receive()

    def status(self) -> AgentStatus | None:
        """Return the status for the pages, or None before the end of the first cycle."""
        if self.counts.cycles == 0:
            return None
        parts = self.assembly
        with parts.loop.memory:
            now, simulated = self._clock(), self.surroundings.simulated
            health = status_builder.health(self.counts, parts, now)
            return status_builder.status(parts, now, health, started_at=self._started_at, simulated=simulated)

    def seconds_since_cycle(self) -> float | None:
        """Return the seconds since the last cycle that succeeded, None before the first. It waits for no cycle."""
        return time.monotonic() - self._succeeded_at if self._succeeded_at is not None else None


def stamp_files(loaded: LoadedConfig, web: Web) -> dict[Path, tuple[int, int]]:
    """Return the stamps of the plan, of secrets and certificates of pages and webhook, and of a configuration that
    Kubernetes mounts. Elsewhere a person may be editing it: it waits for SIGHUP.
    """
    paths = [loaded.config.plan] if loaded.config.plan else []
    if any((folder / MARK).is_symlink() for folder in loaded.path.absolute().parents):
        paths.append(str(loaded.path))
    for section in (web, find_web_file(web.config_file), loaded.config.alerting.receiver):
        paths += [path for _, path in named_files(section)]
    return {Path(path): stamp_file(path) for path in paths}


def stamp_file(path: str | Path) -> tuple[int, int]:
    """Return the inode of a file and the time of its last change (nanoseconds), zeros if it is missing or unreadable."""
    try:
        seen = os.stat(path)
    except OSError:
        return 0, 0
    return seen.st_ino, seen.st_ctime_ns
