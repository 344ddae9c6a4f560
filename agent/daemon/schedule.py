"""Scheduler of cycles, upkeep, forecasts and reports, with a check of the system clock.

Cycles run on a grid of monotonic time without drift. A cycle is skipped and reported if the previous one still runs. No
library: APScheduler loads asyncio and 2 MiB of a node's 56, and lists every run that a clock set forward has missed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

UPKEEP_SECONDS = 3600.0
"""Interval of retention and benchmark checks in seconds."""

JUMP_SECONDS = 5.0
"""Clock change in seconds, against monotonic time, that counts as a jump (clock set, or machine slept)."""

FORECAST_SECONDS = 60.0
"""Interval of replica counts in seconds: a lead is a few minutes. The forecast itself changes once per bin."""

REPORT_SECONDS = 60.0
"""Interval of report checks in seconds, for weekly reports and delivery retries."""

TURN, UPKEEP, FORECAST, REPORT = "turn", "upkeep", "forecast", "report"

STILL_RAN = "the one before it still ran"
TOO_BUSY = "the machine was too busy to begin it in time"

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Job:
    """Job with its interval and next time in seconds of monotonic time. A run later than `grace` is left out."""

    name: str
    run: Callable[[], None]
    interval: float = 0.0
    due: float = 0.0
    grace: float | None = None
    is_running: bool = False

    def skip_to_next(self, now: float) -> float:
        """Move to the next time after `now`. Return the seconds since the last time that has passed."""
        late = (now - self.due) % self.interval
        self.due = now - late + self.interval
        return late


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
        self._jobs = {
            name: _Job(name, run)
            for name, run in ((TURN, turn), (UPKEEP, upkeep), (FORECAST, forecast), (REPORT, report))
        }
        self._tell_late = late
        self._hour = UPKEEP_SECONDS / speed
        self._minute = FORECAST_SECONDS / speed
        self._report_minute = REPORT_SECONDS / speed
        self._changed = threading.Condition()
        self._has_ended = False
        self._pool = ThreadPoolExecutor(len(self._jobs), thread_name_prefix="job")
        self._timer = threading.Thread(target=self._watch_time, name="schedule", daemon=True)
        self._interval = 0.0
        self._clock_offset = clock_offset()

    def begin(self, interval_seconds: float) -> None:
        """Start, with a first cycle at once. Raise RuntimeError if the machine gives no thread."""
        # All threads are started here: a job that finds none later would be left out in silence.
        together = threading.Barrier(len(self._jobs))
        try:
            for _ in self._jobs:
                self._pool.submit(together.wait)
            self._set(interval_seconds)
            self._timer.start()
        except (RuntimeError, MemoryError):
            together.abort()
            raise

    def change(self, interval_seconds: float) -> None:
        """Set another interval. The same interval keeps the grid."""
        if interval_seconds != self._interval:
            self._set(interval_seconds)

    def _set(self, interval_seconds: float) -> None:
        self._interval = interval_seconds
        now, whole_minute = time.monotonic(), self._next_forecast(interval_seconds) - time.time()
        times = {
            TURN: (interval_seconds, 0.0),
            UPKEEP: (self._hour, self._hour),
            FORECAST: (self._minute, whole_minute),
            REPORT: (self._report_minute, 0.0),
        }
        with self._changed:
            for name, (interval, wait) in times.items():
                self._jobs[name].interval, self._jobs[name].due = interval, now + wait
            self._jobs[TURN].grace = max(1.0, interval_seconds / 2)
            self._changed.notify()

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

    def _watch_time(self) -> None:
        while True:
            with self._changed:
                if self._has_ended:
                    return
                now = time.monotonic()
                due = [(job, job.skip_to_next(now)) for job in self._jobs.values() if job.due <= now]
                if not due:
                    self._changed.wait(min(job.due for job in self._jobs.values()) - now)
            for job, late in due:
                self._start(job, late)

    def _start(self, job: _Job, late: float) -> None:
        is_too_late = job.grace is not None and late > job.grace
        if job.is_running or is_too_late:
            if job.name == TURN:
                self._tell_late(STILL_RAN if job.is_running else TOO_BUSY)
            return
        job.is_running = True
        try:
            self._pool.submit(self._run, job)
        except RuntimeError:
            # No thread can be started now; the next time may be better.
            job.is_running = False
            _log.exception("job not started job=%s", job.name)

    def _run(self, job: _Job) -> None:
        try:
            job.run()
        except Exception:  # noqa: BLE001 - a defect costs this run, not the job
            _log.exception("job failed job=%s", job.name)
        finally:
            job.is_running = False

    def end(self) -> None:
        """Stop all jobs and wait for the running ones."""
        with self._changed:
            self._has_ended = True
            self._changed.notify()
        if self._timer.is_alive():
            self._timer.join()
        self._pool.shutdown(wait=True)


def clock_offset() -> float:
    """Return the seconds by which the system clock is ahead of monotonic time."""
    return time.time() - time.monotonic()
