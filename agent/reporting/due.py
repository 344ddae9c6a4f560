"""When a weekly report is due: a day and a time by the clock of the people who read it.

Owns the calendar alone; it knows neither what was written nor what failed. A time that a change to summer time leaves out counts
as the same time before the change (02:30 comes at 03:30); one that comes twice counts the first time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

WEEK_DAYS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class WeeklySchedule:
    """`weekday` 0 is Monday, `at` the local time in `zone`."""

    weekday: int
    at: time
    zone: str

    def latest(self, now: float) -> float:
        """The last time at or before `now` (unix seconds)."""
        day = self._day(now)
        return max(t for t in (self._instant(day + timedelta(days=d)) for d in (-WEEK_DAYS, 0)) if t <= now)

    def next(self, now: float) -> float:
        """The first time after `now`."""
        day = self._day(now)
        return min(t for t in (self._instant(day + timedelta(days=d)) for d in (0, WEEK_DAYS)) if t > now)

    def name(self, t: float) -> str:
        """What a report of that time is called: its local date."""
        return self._day_of(t).isoformat()

    def _day(self, now: float) -> date:
        """The weekday in question on or before today."""
        today = self._day_of(now)
        return today - timedelta(days=(today.weekday() - self.weekday) % WEEK_DAYS)

    def _day_of(self, t: float) -> date:
        return datetime.fromtimestamp(t, ZoneInfo(self.zone)).date()

    def _instant(self, day: date) -> float:
        return datetime.combine(day, self.at, ZoneInfo(self.zone)).timestamp()
