"""Service of the weekly reports in the daemon: what is due, retries and pending deliveries.

`agent.reporting.storage` holds the stored state. Each step is a job in a process of its own: the daemon loads no
library of pages and numbers. A job has the daemon's own configuration: later changes on disk have no effect.
One thread calls `run` every minute; any thread may call `health`.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from agent.config.load import LoadedConfig
from agent.config.notifications import WEEKDAYS, Destination
from agent.errors import SizewatchError
from agent.reporting import storage
from agent.reporting.storage import STATE_FILE, Delivery, ReportState
from agent.worker.process import MIB, WorkerError, WorkerProcess
from exporters.render.text import copy_fields
from exporters.status.records import DeliveryHealth, ReportHealth

SENT, FAILED, GIVEN_UP = "sent", "failed", "given_up"

_log = logging.getLogger(__name__)


def weekly_times(weekday: int, at: time, zone: ZoneInfo, now: float) -> tuple[float, float]:
    """Return the last weekly time at or before `now`, and the next one (unix seconds).

    `weekday` 0 is Monday, `at` is local time in `zone`. A local time that summer time skips counts as the same time
    before the change (02:30 becomes 03:30). A repeated local time counts once, at its first occurrence.
    """
    today = datetime.fromtimestamp(now, zone).date()
    days = (today + timedelta(days=number) for number in range(-8, 9))
    times = [datetime.combine(day, at, zone).timestamp() for day in days if day.weekday() == weekday]
    return max(t for t in times if t <= now), min(t for t in times if t > now)


class ReportService:
    """Reports in `folder`, of the history in `data_dir`. `runner` runs jobs."""

    def __init__(self, data_dir: Path, folder: Path, runner: JobRunner | None = None) -> None:
        self.folders = (data_dir, folder)
        self._folder = folder
        self._path = data_dir / STATE_FILE
        self._runner = runner or JobRunner()
        self._state: ReportState | None = None
        self._trouble = ""
        self._failures = 0
        self._counts: Counter[tuple[str, str]] = Counter()

    def run(self, loaded: LoadedConfig, now: float) -> None:
        """Write and send what is due, and wait for it. Without its state nothing is sent: it could be sent twice."""
        try:
            if self._state is None:
                self._state = storage.read_state(self._path) or ReportState(begun_at=now)
                storage.write_state(self._path, self._state)
            self._generate(self._state, loaded, now)
            for destination in loaded.config.report.deliver:
                delivery = self._state.deliveries.get(destination.name)
                if delivery is not None and delivery.is_pending and delivery.is_due(now):
                    self._deliver(self._state, delivery, destination, loaded, now)
            self._trouble = ""
        except OSError as error:
            trouble = f"{self._path} cannot be read or written: {error.strerror or error}"
            if trouble != self._trouble:
                _log.error('report state failed error="%s"', trouble)
            self._trouble = trouble

    def close(self) -> None:
        """Kill the running job. Its work is repeated after the next start."""
        self._runner.kill()

    def _generate(self, state: ReportState, loaded: LoadedConfig, now: float) -> None:
        due, following = _times(loaded, now)
        if max(state.begun_at, state.made_for) > following:
            # A clock that was ahead left this state. The true state of the present week is unknown.
            state = self._state = ReportState(begun_at=now)
            storage.write_state(self._path, state)
        if due <= max(state.begun_at, state.made_for) or not state.is_due(now):
            return
        name = datetime.fromtimestamp(due, _zone(loaded)).date().isoformat()
        result = self._runner.generate(loaded, due, now, self._folder, name)
        if result.trouble:
            state.attempts, state.tried_at, state.trouble = state.attempts + 1, now, result.trouble
            self._failures += 1
            _log.warning(
                'report failed name=%s error="%s" retry_seconds=%.0f', name, result.trouble, state.retry_at - now
            )
        else:
            _log.info('report written name=%s folder=%s headline="%s"', name, self._folder / name, result.headline)
            for destination, delivery in state.deliveries.items():
                if delivery.is_pending:
                    self._give_up(state, destination, delivery, "a newer report takes its place")
            state.newest, state.made_for, state.made_at, state.headline = name, due, now, result.headline
            state.attempts, state.tried_at, state.trouble = 0, 0.0, ""
            before, state.deliveries = state.deliveries, {}
            for keys in loaded.config.report.deliver:
                sent_at = before[keys.name].sent_at if keys.name in before else None
                state.deliveries[keys.name] = Delivery(sent_at=sent_at)
        storage.write_state(self._path, state)

    def _deliver(
        self, state: ReportState, delivery: Delivery, destination: Destination, loaded: LoadedConfig, now: float
    ) -> None:
        name, link = destination.name, loaded.config.alerting.external_url
        # Stored before it is sent: a daemon that dies here must not repeat it at once.
        delivery.attempts, delivery.tried_at = delivery.attempts + 1, now
        storage.write_state(self._path, state)
        address = f"{link.rstrip('/')}/reports/{state.newest}/report.html" if link else ""
        delivery.trouble = self._runner.deliver(self._folder / state.newest, destination, address).trouble
        if not delivery.trouble:
            delivery.is_pending, delivery.sent_at = False, now
            self._counts[name, SENT] += 1
            _log.info("report sent name=%s destination=%s", state.newest, name)
        elif delivery.retry_at > (state.made_at or now) + loaded.config.report.retry_seconds:
            self._give_up(state, name, delivery, delivery.trouble)
        else:
            self._counts[name, FAILED] += 1
            _log.warning(
                'report delivery failed report=%s destination=%s error="%s" retry_seconds=%.0f',
                *(state.newest, name, delivery.trouble, delivery.retry_at - now),
            )
        storage.write_state(self._path, state)

    def _give_up(self, state: ReportState, name: str, delivery: Delivery, why: str) -> None:
        self._counts[name, GIVEN_UP] += 1
        _log.error('report delivery abandoned name=%s destination=%s reason="%s"', state.newest, name, why)
        delivery.is_pending, delivery.trouble = False, f"the report of {state.newest} was given up: {why}"

    def health(self, loaded: LoadedConfig, now: float) -> ReportHealth:
        state = self._state or ReportState(begun_at=now)
        return ReportHealth(
            next_at=_times(loaded, now)[1],
            **copy_fields(state, "made_at", "newest", "headline"),
            trouble=self._trouble or state.trouble,
            failures=self._failures,
            deliveries=tuple(self._delivery_health(keys.name, state) for keys in loaded.config.report.deliver),
        )

    def _delivery_health(self, name: str, state: ReportState) -> DeliveryHealth:
        delivery = state.deliveries.get(name, Delivery(is_pending=False))
        return DeliveryHealth(
            destination=name,
            **{outcome: self._counts[name, outcome] for outcome in (SENT, FAILED, GIVEN_UP)},
            pending=int(delivery.is_pending),
            next_at=delivery.retry_at if delivery.is_pending else None,
            last_success_at=delivery.sent_at,
            trouble=delivery.trouble,
        )


def _zone(loaded: LoadedConfig) -> ZoneInfo:
    return ZoneInfo(loaded.config.report.zone or loaded.config.forecast.zone)


def _times(loaded: LoadedConfig, now: float) -> tuple[float, float]:
    keys = loaded.config.report
    return weekly_times(WEEKDAYS.index(keys.weekday), time.fromisoformat(keys.at), _zone(loaded), now)


REPORT_MEMORY_BYTES = 768 * MIB
"""Memory limit in bytes (RLIMIT_DATA). Libraries take about 150 MiB, a quarter of 200 replicas as much."""

NETWORK = (
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
)  # fmt: skip
"""Environment of the processes that send: proxies and certificates."""

GENERATE_SECONDS, DELIVERY_SECONDS = 600.0, 90.0
"""Time limits of jobs in seconds. A destination that hangs delays the others by this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """Result of a job. `trouble` is "" on success. `headline` is that of a written report."""

    trouble: str = ""
    headline: str = ""


class JobRunner:
    """Runner of one job at a time. Any thread may call `kill`; no job starts after it.

    Every error is a `trouble`, never an exception. `seconds` replaces the time limits.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._process: WorkerProcess | None = None
        self._guard = threading.Lock()
        self._ended = False

    def generate(self, loaded: LoadedConfig, due: float, now: float, folder: Path, name: str) -> JobResult:
        """Write the report of the time before `due` (unix seconds) into `folder`/`name`, at `now`."""
        return self._run(GENERATE_SECONDS, (), run_generate, loaded, due, now, folder, name)

    def deliver(self, place: Path, destination: Destination, link: str) -> JobResult:
        """Send the report in the folder `place`. `link` is the address of the full report, or ""."""
        keep = (*NETWORK, destination.url_env or NETWORK[0])
        return self._run(DELIVERY_SECONDS, keep, run_delivery, place, destination, link)

    def _run(self, seconds: float, keep: Collection[str], function: Callable[..., Any], *arguments: Any) -> JobResult:
        try:
            with self._guard:
                if self._ended:
                    return JobResult(trouble="sizewatch is ending")
                # A library's messages about a delivery may contain the address.
                self._process = WorkerProcess(REPORT_MEMORY_BYTES, keep=keep, silent=True)
            with closing(self._process) as process:
                result: JobResult = process.call(function, *arguments, seconds=self._seconds or seconds)
                return result
        except WorkerError as error:
            if error.trace:
                _log.error("report failed\n%s", error.trace)
            return JobResult(trouble=f"{'defect:' if error.trace else 'its process'} {error}")

    def kill(self) -> None:
        """Kill the running job. Later jobs fail at once."""
        with self._guard:
            self._ended = True
            if self._process is not None:
                self._process.kill()


def run_generate(loaded: LoadedConfig, due: float, now: float, folder: Path, name: str) -> JobResult:
    """Write the report of the time before `due` in this process, at `now`, and remove old reports."""
    from agent.reporting.generate import make_files

    keys = loaded.config.report
    try:
        texts, report = make_files(loaded, keys.since_seconds, due, now)
        files = {file: text.encode("utf-8", "replace") for file, text in texts.items()}
        storage.publish(folder, name, files, keys.keep)
    except SizewatchError as error:
        return JobResult(trouble="; ".join(str(error).splitlines()))
    except OSError as error:
        return JobResult(trouble=f"{folder} cannot be written: {error.strerror or error}")
    return JobResult(headline=report.headline)


def run_delivery(place: Path, destination: Destination, link: str) -> JobResult:
    """Send a report in this process. Of an unexpected error return the type only: its text may have the address."""
    from agent.reporting.delivery import deliver

    try:
        return JobResult(trouble=deliver(place, destination, link))
    except SizewatchError as error:
        return JobResult(trouble=str(error))
    except Exception as error:  # noqa: BLE001 - see above
        return JobResult(trouble=f"defect: {type(error).__name__}")
