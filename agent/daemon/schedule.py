"""Scheduler of cycles, upkeep, forecasts and reports, with a check of the system clock.

Cycles run on a grid without drift. A cycle is skipped and reported if the previous one still runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from apscheduler.events import EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

UPKEEP_SECONDS = 3600.0
"""Interval of retention and benchmark checks in seconds."""

JUMP_SECONDS = 5.0
"""Clock change in seconds, against monotonic time, that counts as a jump (clock set, or machine slept)."""

FORECAST_SECONDS = 60.0
"""Interval of replica counts in seconds: a lead is a few minutes. The forecast itself changes once per bin."""

REPORT_SECONDS = 60.0
"""Interval of report checks in seconds, for weekly reports and delivery retries."""

TURN, UPKEEP, FORECAST, REPORT = "turn", "upkeep", "forecast", "report"

_log = logging.getLogger(__name__)


class Schedule:
    """Scheduler of four jobs, each in its own thread and never twice at once.

    `turn` runs every interval, `upkeep` hourly and `report` each minute from now on. `forecast` runs each minute, as
    soon as the last minute is complete. `late` is called with a reason for every skipped cycle. `speed` is the factor
    of time against a real clock.
    """

    def __init__(
        self,
        turn: Callable[[], None],
        upkeep: Callable[[], None],
        late: Callable[[str], None],
        forecast: Callable[[], None],
        report: Callable[[], None] = lambda: None,
        *,
        speed: float = 1.0,
    ) -> None:
        self._turn = turn
        self._upkeep = upkeep
        self._forecast = forecast
        self._report = report
        self._tell_late = late
        self._hour = UPKEEP_SECONDS / speed
        self._minute = FORECAST_SECONDS / speed
        self._report_minute = REPORT_SECONDS / speed
        self._scheduler = BackgroundScheduler(timezone=UTC, executors={"default": ThreadPoolExecutor(4)})
        self._scheduler.add_listener(self._late, EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES)
        self._interval = 0.0
        self._clock_offset = clock_offset()

    def begin(self, interval_seconds: float) -> None:
        """Start, with a first cycle at once."""
        self._scheduler.start()
        self._set(interval_seconds)

    def change(self, interval_seconds: float) -> None:
        """Set another interval. The same interval keeps the grid."""
        if interval_seconds != self._interval:
            self._set(interval_seconds)

    def _set(self, interval_seconds: float) -> None:
        self._interval = interval_seconds
        common = {"coalesce": True, "max_instances": 1, "replace_existing": True}
        self._scheduler.add_job(
            self._turn,
            "interval",
            seconds=interval_seconds,
            id=TURN,
            next_run_time=datetime.now(UTC),
            misfire_grace_time=max(1, round(interval_seconds / 2)),
            **common,
        )
        self._scheduler.add_job(
            self._upkeep, "interval", seconds=self._hour, id=UPKEEP, misfire_grace_time=None, **common
        )
        self._scheduler.add_job(
            self._forecast,
            "interval",
            seconds=self._minute,
            id=FORECAST,
            next_run_time=datetime.fromtimestamp(self._next_forecast(interval_seconds), UTC),
            misfire_grace_time=None,
            **common,
        )
        self._scheduler.add_job(
            self._report,
            "interval",
            seconds=self._report_minute,
            id=REPORT,
            next_run_time=datetime.now(UTC),
            misfire_grace_time=None,
            **common,
        )

    def _next_forecast(self, interval_seconds: float) -> float:
        """Return the next time (unix seconds) at which a minute is complete: at most two intervals after its end."""
        settled = 2 * interval_seconds
        return (time.time() - settled) // self._minute * self._minute + self._minute + settled

    def check_clock_jump(self) -> None:
        """Reschedule after a clock jump; call regularly. A clock set back by an hour would stop cycles for an hour."""
        jump = clock_offset() - self._clock_offset
        if abs(jump) > JUMP_SECONDS:
            _log.warning("clock jumped, cycles rescheduled jump_seconds=%.0f", jump)
            self._clock_offset += jump
            self._set(self._interval)

    def _late(self, event: JobEvent) -> None:
        if event.job_id == TURN:
            still = event.code == EVENT_JOB_MAX_INSTANCES
            self._tell_late("the one before it still ran" if still else "the machine was too busy to begin it in time")

    def end(self) -> None:
        """Stop all jobs and wait for the running ones."""
        self._scheduler.shutdown(wait=True)


def clock_offset() -> float:
    """Return the seconds by which the system clock is ahead of monotonic time."""
    return time.time() - time.monotonic()
