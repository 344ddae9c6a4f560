"""Jobs of the daemon on APScheduler: cycle, upkeep, forecast, back-fill and the check whether a weekly report is due.

A job never runs twice at once: a run that is due during the previous one is skipped. APScheduler follows the system
clock, so all jobs are scheduled again after a clock jump.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.events import EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobEvent
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

CYCLE, UPKEEP, FORECAST, REPORT, BACK_FILL = "cycle", "upkeep", "forecast", "report", "back-fill"

SECONDS = {UPKEEP: 3600.0, FORECAST: 60.0, REPORT: 60.0, BACK_FILL: 600.0}
"""Intervals in seconds. FORECAST counts replicas and is short, as a lead is minutes; BACK_FILL is for one that stopped."""

_log = logging.getLogger(__name__)


class GridTrigger(IntervalTrigger):  # type: ignore[misc]  # APScheduler has no types
    """Times of an interval without drift, without the missed ones.

    IntervalTrigger lists every missed time: a clock that is set forward by years would fill the memory.
    """

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """Return the first time after the previous one that is not before `now`."""
        if previous_fire_time is not None:
            now = max(now, previous_fire_time + timedelta(milliseconds=1))
        following: datetime = super().get_next_fire_time(None, now)
        return following


class DaemonJobs:
    """Jobs of a daemon. `speed` is the factor of time against a real clock.

    `functions` has the function of each job by name. `on_skipped` is called with a reason for every skipped cycle.
    """

    def __init__(
        self, functions: Mapping[str, Callable[[], None]], on_skipped: Callable[[str], None], *, speed: float = 1.0
    ) -> None:
        self._functions = functions
        self._on_skipped = on_skipped
        self._speed = speed
        self._cycle_seconds = 0.0
        self._clock_offset = clock_offset()
        # The listeners report skipped cycles in one line of ours.
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        self.scheduler = BackgroundScheduler(
            timezone=UTC,
            # A late run of upkeep, forecast or report is better than none. A cycle has a limit of its own.
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self.scheduler.add_listener(self._report_skipped, EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES)

    def schedule(self, cycle_seconds: float) -> None:
        """Set the interval of cycles, with a first cycle, report check and back-fill at once. Start if not yet started."""
        if not self.scheduler.running:
            self.scheduler.start()
        self._cycle_seconds, interval_seconds = cycle_seconds, cycle_seconds / self._speed
        now, intervals = datetime.now(UTC), {name: seconds / self._speed for name, seconds in SECONDS.items()}
        # A minute is complete at most two intervals after its end.
        minute, settled = intervals[FORECAST], 2 * interval_seconds
        whole = (now.timestamp() - settled) // minute * minute + minute + settled
        grace = max(1, int(interval_seconds / 2))
        self._add(CYCLE, interval_seconds, now, next_run_time=now, misfire_grace_time=grace)
        self._add(UPKEEP, intervals[UPKEEP], now + timedelta(seconds=intervals[UPKEEP]))
        self._add(FORECAST, minute, datetime.fromtimestamp(whole, UTC))
        for name in (REPORT, BACK_FILL):
            self._add(name, intervals[name], now, next_run_time=now)

    def _add(self, name: str, seconds: float, start: datetime, **options: Any) -> None:
        trigger = GridTrigger(seconds=seconds, start_date=start)
        self.scheduler.add_job(self._functions[name], trigger, id=name, name=name, replace_existing=True, **options)

    def follow_clock(self) -> None:
        """Reschedule after a clock jump; call regularly. A clock set back by an hour would stop cycles for an hour."""
        jump = clock_offset() - self._clock_offset
        # The clock was set, or the machine slept.
        if abs(jump) > 5.0:
            _log.warning("clock jumped, cycles rescheduled jump_seconds=%.0f", jump)
            self._clock_offset += jump
            self.schedule(self._cycle_seconds)

    def shutdown(self) -> None:
        if self.scheduler.running:
            self.scheduler.shutdown()

    def _report_skipped(self, event: JobEvent) -> None:
        if event.job_id == CYCLE:
            is_running = event.code == EVENT_JOB_MAX_INSTANCES
            self._on_skipped("the one before it still ran" if is_running else "the machine was too busy to begin it")


def clock_offset() -> float:
    """Return the seconds by which the system clock is ahead of monotonic time."""
    return time.time() - time.monotonic()
