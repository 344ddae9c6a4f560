"""A tier's schedule as a week of minutes: what is asked for when, in the few steps that cron can say.

Owns this arithmetic and the spelling of cron expressions (five fields, Sunday is 0: what Kubernetes, KEDA and AIBrix all
read). What is done at a step is decided by the modules that write manifests. A schedule is never rounded down: where it has
more steps than a manifest should, blocks of time take their highest count.
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
"""More cron entries than this nobody reads, and each is an object or a metric of the autoscaler."""

BLOCKS = (1, 15, 30, 60, 120, 240)
"""Minutes that share one count, finest first; all of them divide a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaInterval:
    """So many replicas from `start` for `minutes`, both in minutes; the week begins on Monday at 00:00."""

    start: int
    minutes: int
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CronEntry:
    """A run that comes on several days: `minute` of the day, `weekdays` (0 is Monday), how long, how many replicas."""

    minute: int
    weekdays: tuple[int, ...]
    minutes: int
    replicas: int

    @property
    def start(self) -> str:
        """Cron for its beginning."""
        return cron(self.minute, self.weekdays)

    @property
    def end(self) -> str:
        """Cron for its end."""
        days, minute = divmod(self.minute + self.minutes, DAY)
        return cron(minute, ((day + days) % 7 for day in self.weekdays))


@dataclass(frozen=True, slots=True, kw_only=True)
class Week:
    """The week that is asked for: `floor` always, and above it the `entries`; counts are by blocks of `block` minutes.

    `changes` are all the steps, down ones too. `cut` says that the schedule wanted more than the maximum.
    """

    floor: int
    entries: tuple[CronEntry, ...]
    changes: tuple[CronEntry, ...]
    block: int
    cut: bool

    @property
    def shortest(self) -> int:
        """The shortest time in minutes between two changes."""
        return min((change.minutes for change in self.changes), default=WEEK)


def week_of(scaling: Scaling) -> Week:
    """What must be asked for so that the schedule's replicas are warm in time, each the lead earlier."""
    wanted = _painted(scaling.schedule, math.ceil(scaling.lead_seconds / 60))
    asked = [min(max(count, scaling.minimum_warm), scaling.maximum) for count in wanted]
    for block in BLOCKS:
        coarse = _coarse(asked, block)
        runs, floor = _runs(coarse), min(coarse, default=scaling.minimum_warm)
        entries = tuple(entry for entry in _entries(runs) if entry.replicas > floor)
        if len(entries) <= MOST_ENTRIES:
            break
    return Week(
        floor=floor,
        entries=entries,
        changes=_changes(runs),
        block=block,
        cut=any(count > scaling.maximum for count in wanted),
    )


def slots_of(steps: Iterable[tuple[float, int]], zone: str) -> tuple[ScheduleSlot, ...]:
    """Steps of a forecast (unix seconds, replicas) as slots of the clock of `zone`, rounded down to the minute.

    Steps of less than a week are taken for every day alike: a day's schedule is what is known, and it is repeated. Where
    two steps fall on one time of the clock, as when it is put back, the higher counts.
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
    """Replicas asked for in each minute of the week; empty where there is no schedule."""
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


def _coarse(week: list[int], block: int) -> list[int]:
    return [count for at in range(0, len(week), block) for count in [max(week[at : at + block])] * block]


def _runs(week: list[int]) -> list[ReplicaInterval]:
    """Runs of one count around the circle of the week; one of the whole week where nothing changes."""
    edges = [at for at in range(len(week)) if week[at] != week[at - 1]]
    if not edges:
        return [ReplicaInterval(start=0, minutes=WEEK, replicas=week[0])] if week else []
    ends = [*edges[1:], edges[0] + WEEK]
    return [ReplicaInterval(start=at, minutes=end - at, replicas=week[at]) for at, end in zip(edges, ends, strict=True)]


def _entries(runs: Iterable[ReplicaInterval]) -> tuple[CronEntry, ...]:
    """Runs that differ only in their day, together."""
    days: dict[tuple[int, int, int], list[int]] = {}
    for run in runs:
        day, minute = divmod(run.start, DAY)
        days.setdefault((minute, run.minutes, run.replicas), []).append(day)
    return _ordered(
        CronEntry(minute=minute, weekdays=tuple(sorted(on)), minutes=minutes, replicas=replicas)
        for (minute, minutes, replicas), on in days.items()
    )


def _changes(runs: Iterable[ReplicaInterval]) -> tuple[CronEntry, ...]:
    """The beginnings of all runs; how long each lasts is no matter here, so the shortest stands for all."""
    spans: dict[tuple[int, int], dict[int, int]] = {}
    for run in runs:
        day, minute = divmod(run.start, DAY)
        spans.setdefault((minute, run.replicas), {})[day] = run.minutes
    return _ordered(
        CronEntry(minute=minute, weekdays=tuple(sorted(on)), minutes=min(on.values()), replicas=replicas)
        for (minute, replicas), on in spans.items()
    )


def _ordered(entries: Iterable[CronEntry]) -> tuple[CronEntry, ...]:
    return tuple(sorted(entries, key=lambda entry: (entry.weekdays[0], entry.minute, entry.weekdays)))


def cron(minute: int, weekdays: Iterable[int]) -> str:
    """A cron expression: this minute of the day on these days (0 is Monday; cron's 0 is Sunday)."""
    days = sorted((day + 1) % 7 for day in weekdays)
    in_a_row = len(days) > 2 and days[-1] - days[0] == len(days) - 1
    spelt = "*" if len(days) == 7 else f"{days[0]}-{days[-1]}" if in_a_row else ",".join(map(str, days))
    hour, minute = divmod(minute, 60)
    return f"{minute} {hour} * * {spelt}"
