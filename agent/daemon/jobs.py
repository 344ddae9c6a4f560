"""Jobs of the daemon on APScheduler: cycle, upkeep, forecast and weekly report.

Each job has a thread from the start and never runs twice at once. A run that is due during the previous one is skipped.
APScheduler follows the system clock, so all jobs are scheduled again after a clock jump.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.events import EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobEvent
from apscheduler.executors.pool import BasePoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.interval import IntervalTrigger

UPKEEP_SECONDS = 3600.0
"""Interval of retention and benchmark checks in seconds."""

FORECAST_SECONDS = 60.0
"""Interval of replica counts in seconds: a lead is a few minutes. The forecast itself changes once per bin."""

SOONEST_SECONDS = 1.0
"""Shortest wait in seconds for another attempt of the weekly report."""

JUMP_SECONDS = 5.0
"""Clock change in seconds, against monotonic time, that counts as a jump (clock set, or machine slept)."""

CYCLE, UPKEEP, FORECAST, REPORT = "cycle", "upkeep", "forecast", "report"

STILL_RAN = "the one before it still ran"
TOO_BUSY = "the machine was too busy to begin it in time"

_log = logging.getLogger(__name__)


class GridTrigger(IntervalTrigger):  # type: ignore[misc]  # APScheduler has no types
    """Times of an interval without drift. Of missed times it returns the last only.

    IntervalTrigger lists every missed time: a clock that is set forward by years would fill the memory.
    """

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """Return the last missed time after the previous one, or the next time."""
        if previous_fire_time is None:
            first: datetime = super().get_next_fire_time(None, now)
            return first
        interval: timedelta = self.interval
        return previous_fire_time + interval * max(1, (now - previous_fire_time) // interval)


class JobThreads(BasePoolExecutor):  # type: ignore[misc]
    """Executor of APScheduler whose threads are all started with it: a later start could fail."""

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__(ThreadPoolExecutor(count, thread_name_prefix="job"))

    def start(self, scheduler: BackgroundScheduler, alias: str) -> None:
        """Start all threads. Raise RuntimeError if the machine gives no thread."""
        super().start(scheduler, alias)
        together = threading.Barrier(self.count)
        try:
            for _ in range(self.count):
                self._pool.submit(together.wait)
        except (RuntimeError, MemoryError):
            together.abort()
            raise


class DaemonJobs:
    """Four jobs of a daemon. `speed` is the factor of time against a real clock.

    `functions` has the function of each job by name. `on_skipped` is called with a reason for every skipped cycle.
    """

    def __init__(
        self, functions: Mapping[str, Callable[[], None]], on_skipped: Callable[[str], None], *, speed: float = 1.0
    ) -> None:
        self._functions = functions
        self._on_skipped = on_skipped
        self._speed = speed
        self._interval = 0.0
        self._weekly: BaseTrigger | None = None
        self._clock_offset = clock_offset()
        self._threads = JobThreads(len(functions))
        self._is_started = False
        # The listeners report skipped cycles in one line of ours.
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        self.scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={"default": self._threads},
            # A late run of upkeep, forecast or report is better than none. A cycle has a limit of its own.
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self.scheduler.add_listener(self._report_skipped, EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES)

    def start(self, interval_seconds: float, weekly: BaseTrigger | None) -> None:
        """Start, with a first cycle and report check at once. Raise RuntimeError if the machine gives no thread.

        `interval_seconds` is the interval of cycles. `weekly` has the times of the report, None without reports."""
        try:
            self.scheduler.start()
        except (RuntimeError, MemoryError):
            self._threads.shutdown()
            raise
        self._is_started = True
        self._schedule_grid(interval_seconds)
        self._schedule_report(weekly)

    def change(self, interval_seconds: float, weekly: BaseTrigger | None) -> None:
        """Set other times. The same interval keeps the grid. The report is checked at once."""
        if interval_seconds != self._interval:
            self._schedule_grid(interval_seconds)
        self._schedule_report(weekly)

    def advance_report(self, wait_seconds: float) -> None:
        """Run the report after so many seconds if its next run is clearly later."""
        job = self.scheduler.get_job(REPORT)
        due = datetime.now(UTC) + timedelta(seconds=max(SOONEST_SECONDS, wait_seconds) / self._speed)
        if job is not None and due < job.next_run_time - timedelta(seconds=SOONEST_SECONDS):
            with suppress(JobLookupError):  # `shutdown` removed it meanwhile
                job.modify(next_run_time=due)

    def follow_clock(self) -> None:
        """Reschedule after a clock jump; call regularly. A clock set back by an hour would stop cycles for an hour."""
        jump = clock_offset() - self._clock_offset
        if abs(jump) > JUMP_SECONDS:
            _log.warning("clock jumped, cycles rescheduled jump_seconds=%.0f", jump)
            self._clock_offset += jump
            self._schedule_grid(self._interval)
            self._schedule_report(self._weekly)

    def shutdown(self) -> None:
        """Stop all jobs and wait for the running ones."""
        if self._is_started:
            self.scheduler.shutdown()

    def _schedule_grid(self, interval_seconds: float) -> None:
        self._interval = interval_seconds
        now, hour, minute = datetime.now(UTC), UPKEEP_SECONDS / self._speed, FORECAST_SECONDS / self._speed
        grace = max(1, int(interval_seconds / 2))
        self._add(
            CYCLE, GridTrigger(seconds=interval_seconds, start_date=now), next_run_time=now, misfire_grace_time=grace
        )
        self._add(UPKEEP, GridTrigger(seconds=hour, start_date=now + timedelta(seconds=hour)))
        # A minute is complete at most two intervals after its end.
        settled = 2 * interval_seconds
        whole = (now.timestamp() - settled) // minute * minute + minute + settled
        self._add(FORECAST, GridTrigger(seconds=minute, start_date=datetime.fromtimestamp(whole, UTC)))

    def _schedule_report(self, weekly: BaseTrigger | None) -> None:
        self._weekly = weekly
        if weekly is not None:
            self._add(REPORT, weekly, next_run_time=datetime.now(UTC))
        elif self.scheduler.get_job(REPORT) is not None:
            self.scheduler.remove_job(REPORT)

    def _add(self, name: str, trigger: BaseTrigger, **options: Any) -> None:
        self.scheduler.add_job(self._functions[name], trigger, id=name, name=name, replace_existing=True, **options)

    def _report_skipped(self, event: JobEvent) -> None:
        if event.job_id == CYCLE:
            self._on_skipped(STILL_RAN if event.code == EVENT_JOB_MAX_INSTANCES else TOO_BUSY)
        elif event.job_id == REPORT:
            # The check of a reload or a retry must not wait for the next week.
            self.advance_report(SOONEST_SECONDS)


def clock_offset() -> float:
    """Return the seconds by which the system clock is ahead of monotonic time."""
    return time.time() - time.monotonic()
