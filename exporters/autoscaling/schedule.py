"""Weekly schedule of a tier in minutes, in the steps that cron can express.

Cron expressions have five fields with Sunday as 0, as in KEDA. Counts are never rounded down. A
schedule with too many steps takes the highest count of each block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, time
from zoneinfo import ZoneInfo

from exporters.autoscaling.records import Scaling, ScheduleSlot

DAY, WEEK = 1440, 10080

MOST_ENTRIES = 40
"""Maximum number of cron entries. Each entry is an autoscaler metric."""

BLOCKS = (1, 15, 30, 60, 120, 240)
"""Block lengths in minutes, finest first. All divide a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaInterval:
    """Replicas from `start` for `minutes`, both in minutes. The week begins on Monday at 00:00."""

    start: int
    minutes: int
    replicas: int


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
    """Requested week: `floor` always, and `entries` above it. Counts are by blocks of `block` minutes.
    `cut` means that the schedule exceeded the maximum.
    """

    floor: int
    entries: tuple[CronEntry, ...]
    block: int
    cut: bool


def week_of(scaling: Scaling) -> Week:
    """Return the requests that make the schedule's replicas warm in time, each earlier by the lead."""
    wanted = _painted(scaling.schedule, math.ceil(scaling.lead_seconds / 60))
    asked = [min(max(count, scaling.minimum_warm), scaling.maximum) for count in wanted]
    for block in BLOCKS:
        coarse = [count for at in range(0, len(asked), block) for count in [max(asked[at : at + block])] * block]
        runs, floor = _runs(coarse), min(coarse, default=scaling.minimum_warm)
        entries = tuple(entry for entry in _entries(runs) if entry.replicas > floor)
        if len(entries) <= MOST_ENTRIES:
            break
    return Week(
        floor=floor,
        entries=entries,
        block=block,
        cut=any(count > scaling.maximum for count in wanted),
    )


def slots_of(steps: Iterable[tuple[float, int]], zone: str) -> tuple[ScheduleSlot, ...]:
    """Return forecast steps (unix seconds, replicas) as slots of the clock of `zone`, rounded down to the minute.

    Steps of less than a week repeat every day. If two steps have the same local time, as at a clock change, the higher
    counts.
    """
    steps = sorted(steps)
    if not steps:
        return ()
    weekly = steps[-1][0] - steps[0][0] >= 6 * DAY * 60
    found: dict[tuple[time, tuple[int, ...]], int] = {}
    for t, replicas in steps:
        local = datetime.fromtimestamp(t, ZoneInfo(zone))
        key = (time(local.hour, local.minute), (local.weekday(),) if weekly else tuple(range(7)))
        found[key] = max(found.get(key, 0), replicas)
    return tuple(ScheduleSlot(start=start, weekdays=days, replicas=count) for (start, days), count in found.items())


def _painted(schedule: Iterable[ScheduleSlot], lead: int) -> list[int]:
    """Return the requested replicas by minute of the week, empty without a schedule."""
    starts: dict[int, int] = {}
    for slot in schedule:
        for day in slot.weekdays:
            at = day * DAY + slot.start.hour * 60 + slot.start.minute
            starts[at] = max(starts.get(at, 0), slot.replicas)
    if not starts:
        return []
    times = sorted(starts)
    ends = [*times[1:], times[0] + WEEK]
    spans = sorted((starts[begin], begin - lead, end) for begin, end in zip(times, ends, strict=True))
    week = [0] * WEEK
    for replicas, begin, end in spans:  # the highest is painted last
        for minute in range(begin, min(end, begin + WEEK)):
            week[minute % WEEK] = replicas
    return week


def _runs(week: list[int]) -> list[ReplicaInterval]:
    """Return runs of equal count around the week. A constant week is a single run."""
    edges = [at for at in range(len(week)) if week[at] != week[at - 1]]
    if not edges:
        return [ReplicaInterval(start=0, minutes=WEEK, replicas=week[0])] if week else []
    ends = [*edges[1:], edges[0] + WEEK]
    return [ReplicaInterval(start=at, minutes=end - at, replicas=week[at]) for at, end in zip(edges, ends, strict=True)]


def _entries(runs: Iterable[ReplicaInterval]) -> tuple[CronEntry, ...]:
    """Return runs that differ only in their day as a single entry."""
    days: dict[tuple[int, int, int], list[int]] = {}
    for run in runs:
        day, minute = divmod(run.start, DAY)
        days.setdefault((minute, run.minutes, run.replicas), []).append(day)
    entries = (
        CronEntry(minute=minute, weekdays=tuple(sorted(on)), minutes=minutes, replicas=replicas)
        for (minute, minutes, replicas), on in days.items()
    )
    return tuple(sorted(entries, key=lambda entry: (entry.weekdays[0], entry.minute, entry.weekdays)))


def cron(minute: int, weekdays: Iterable[int]) -> str:
    """Return a cron expression for this minute of the day on these days (0 is Monday; cron's 0 is Sunday)."""
    days = sorted((day + 1) % 7 for day in weekdays)
    in_a_row = len(days) > 2 and days[-1] - days[0] == len(days) - 1
    spelt = "*" if len(days) == 7 else f"{days[0]}-{days[-1]}" if in_a_row else ",".join(map(str, days))
    hour, minute = divmod(minute, 60)
    return f"{minute} {hour} * * {spelt}"
