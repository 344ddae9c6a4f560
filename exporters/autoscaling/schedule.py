"""Weekly schedule of a tier in minutes, in the steps that cron can express (five fields, Sunday is 0, as in KEDA).

Counts are never rounded down. A schedule with too many steps takes the highest count of each block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, time
from zoneinfo import ZoneInfo

DAY, WEEK = 1440, 10080

MOST_ENTRIES = 40
"""Maximum number of cron entries. Each entry is an autoscaler metric."""

BLOCKS = (1, 15, 30, 60, 120, 240)
"""Block lengths in minutes, finest first. All divide a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSlot:
    """Replicas that must be warm from `start` (local time, whole minutes) on each of `weekdays` (0 is Monday).

    A slot lasts until the next slot of any day. Raise ValueError for one that cannot be.
    """

    start: time
    weekdays: tuple[int, ...]
    replicas: int

    def __post_init__(self) -> None:
        if self.start.second or self.start.microsecond or self.start.tzinfo is not None:
            raise ValueError(f"a slot starts at a whole local minute, not at {self.start.isoformat()}")
        if not self.weekdays or not set(self.weekdays) <= set(range(7)):
            raise ValueError(f"weekdays are 0 (Monday) to 6, at least one, not {self.weekdays}")
        if self.replicas < 0:
            raise ValueError(f"{self.replicas} replicas cannot be warm")


@dataclass(frozen=True, slots=True, kw_only=True)
class CronEntry:
    """Interval repeated on several days: `minute` of the day, `weekdays` (0 is Monday), duration and replicas."""

    minute: int
    weekdays: tuple[int, ...]
    minutes: int
    replicas: int

    @property
    def start(self) -> str:
        """Return the cron expression of its begin."""
        return cron(self.minute, self.weekdays)

    @property
    def end(self) -> str:
        """Return the cron expression of its end."""
        days, minute = divmod(self.minute + self.minutes, DAY)
        return cron(minute, ((day + days) % 7 for day in self.weekdays))


@dataclass(frozen=True, slots=True, kw_only=True)
class Week:
    """Requested week: `floor` always, and `entries` above it, by blocks of `block` minutes. `cut`: to the maximum."""

    floor: int
    entries: tuple[CronEntry, ...]
    block: int
    cut: bool


def week_of(schedule: tuple[ScheduleSlot, ...], lead_seconds: float, minimum: int, maximum: int) -> Week:
    """Return the requests that make the schedule's replicas warm in time, each earlier by the lead."""
    wanted = _count_minutes(schedule, math.ceil(lead_seconds / 60))
    requested = [min(max(count, minimum), maximum) for count in wanted]
    for block in BLOCKS:
        coarse = [
            count for at in range(0, len(requested), block) for count in [max(requested[at : at + block])] * block
        ]
        floor = min(coarse, default=minimum)
        entries = tuple(entry for entry in _list_entries(coarse) if entry.replicas > floor)
        if len(entries) <= MOST_ENTRIES:
            break
    return Week(floor=floor, entries=entries, block=block, cut=any(count > maximum for count in wanted))


def slots_of(steps: Iterable[tuple[float, int]], zone: str) -> tuple[ScheduleSlot, ...]:
    """Return forecast steps (unix seconds, replicas) as slots of the clock of `zone`, rounded down to the minute.

    Steps of less than a week repeat every day. If two steps have the same local time, as at a clock change, the higher
    counts.
    """
    steps = sorted(steps)
    weekly = bool(steps) and steps[-1][0] - steps[0][0] >= 6 * DAY * 60
    slots: dict[tuple[time, tuple[int, ...]], int] = {}
    for t, replicas in steps:
        local = datetime.fromtimestamp(t, ZoneInfo(zone))
        key = (time(local.hour, local.minute), (local.weekday(),) if weekly else tuple(range(7)))
        slots[key] = max(slots.get(key, 0), replicas)
    return tuple(ScheduleSlot(start=start, weekdays=days, replicas=count) for (start, days), count in slots.items())


def _count_minutes(schedule: Iterable[ScheduleSlot], lead: int) -> list[int]:
    """Return the requested replicas by minute of the week, empty without a schedule."""
    starts: dict[int, int] = {}
    for slot in schedule:
        for day in slot.weekdays:
            at = day * DAY + slot.start.hour * 60 + slot.start.minute
            starts[at] = max(starts.get(at, 0), slot.replicas)
    times = sorted(starts)
    ends = [*times[1:], *(at + WEEK for at in times[:1])]
    week = [0] * WEEK if times else []
    for replicas, begin, end in sorted((starts[at], at - lead, end) for at, end in zip(times, ends, strict=True)):
        for minute in range(begin, min(end, begin + WEEK)):  # the highest is painted last
            week[minute % WEEK] = replicas
    return week


def _list_entries(week: list[int]) -> Iterator[CronEntry]:
    """Yield runs of equal count around the week. Runs that differ only in their day are one entry."""
    edges = [at for at in range(len(week)) if week[at] != week[at - 1]]
    days: dict[tuple[int, int, int], list[int]] = {}
    for at, end in zip(edges, [*edges[1:], *(at + WEEK for at in edges[:1])], strict=True):
        days.setdefault((at % DAY, end - at, week[at]), []).append(at // DAY)
    for (minute, minutes, replicas), weekdays in sorted(days.items(), key=lambda row: (row[1][0], row[0][0], row[1])):
        yield CronEntry(minute=minute, weekdays=tuple(weekdays), minutes=minutes, replicas=replicas)


def cron(minute: int, weekdays: Iterable[int]) -> str:
    """Return a cron expression for this minute of the day on these days (0 is Monday; cron's 0 is Sunday)."""
    days = sorted((day + 1) % 7 for day in weekdays)
    if len(days) == 7:
        spelt = "*"
    elif len(days) > 2 and days[-1] - days[0] == len(days) - 1:
        spelt = f"{days[0]}-{days[-1]}"
    else:
        spelt = ",".join(map(str, days))
    hour, minute = divmod(minute, 60)
    return f"{minute} {hour} * * {spelt}"
