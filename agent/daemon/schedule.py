"""When turns, upkeep, forecasts and the look after reports are due.

Owns the scheduler and the watch over the machine's clock. Turns are due on a grid that does not drift; one that cannot
begin because the one before it still runs is left out and told. What is done then is passed in.
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
"""How often retention and Step 13 are looked at."""

JUMP_SECONDS = 5.0
"""A clock that moved by more against the time since start was set, or the machine slept."""

FORECAST_SECONDS = 60.0
"""Replicas are counted anew so often: a lead is a few minutes. What is forecast changes once a bin."""

REPORT_SECONDS = 60.0
"""A weekly report is due at a time of a calendar, and a delivery tried again after minutes: both are looked after so often."""

TURN, UPKEEP, FORECAST, REPORT = "turn", "upkeep", "forecast", "report"

_log = logging.getLogger(__name__)


class Schedule:
    """Runs `turn` every interval, `upkeep` every hour and `forecast` every minute, as soon as the minute before is whole,
    `report` every minute, the first time at once; each in a thread of its own and never twice at once.

    `late` is called for every turn that was left out, with the reason in words. `speed` is how many times faster than a
    clock time runs.
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
        """Starts with a first turn now."""
        self._scheduler.start()
        self._set(interval_seconds)

    def change(self, interval_seconds: float) -> None:
        """Another interval from now on; the same one leaves the grid as it is."""
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
        """A minute is booked with the first turn of the next one, at most two intervals after its end."""
        settled = 2 * interval_seconds
        return (time.time() - settled) // self._minute * self._minute + self._minute + settled

    def check_clock_jump(self) -> None:
        """To be called now and then: turns are due at times of the machine's clock, and one that was set back an hour
        would stop them for as long."""
        jump = clock_offset() - self._clock_offset
        if abs(jump) > JUMP_SECONDS:
            _log.warning("the clock jumped by %.0f s; turns begin anew from now", jump)
            self._clock_offset += jump
            self._set(self._interval)

    def _late(self, event: JobEvent) -> None:
        if event.job_id == TURN:
            still = event.code == EVENT_JOB_MAX_INSTANCES
            self._tell_late("the one before it still ran" if still else "the machine was too busy to begin it in time")

    def end(self) -> None:
        """Begins nothing any more, and waits for what runs."""
        self._scheduler.shutdown(wait=True)


def clock_offset() -> float:
    """What the machine's clock is ahead of the time since it was started, in seconds."""
    return time.time() - time.monotonic()
