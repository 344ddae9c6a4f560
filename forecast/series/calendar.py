"""Local time on a grid of bins: the place in the week, the day, when a clock is put forward or back.

Owns nothing but that, and reads no clock: zones come from the system's table, times are arguments. Which days are public
holidays is `forecast.series.public_holidays`'s, what is going to happen `forecast.events`'s.

What is known to be going to happen: when, and how many times the usual traffic it brings.

Owns the occurrences of an event (once, or by a recurrence rule of RFC 5545 as python-dateutil reads it) and their factors on
a grid of bins. Times are those of the clock in the zone, also across its changes: an event from 08:00 to 18:00 is so on
every day. What events there are stands in the configuration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from dateutil.rrule import rrule, rrulestr
from numpy.typing import NDArray

from forecast.series.binned import Array

Integers = NDArray[np.int64]

DAY_SECONDS = 86_400
WEEK_SECONDS = 7 * DAY_SECONDS
SUNDAY_SECONDS = 6 * DAY_SECONDS
EPOCH = date(1970, 1, 1)
MONDAY = 4 * DAY_SECONDS
"""The first Monday after the epoch, 1970-01-05, seconds."""


def time_of_week(start: float, bin_seconds: float, n: int, zone: str, sundays: Collection[date] = ()) -> Integers:
    """In which bin of the local week each of `n` bins begins: 0 is the one at Monday 00:00 of the clock in `zone`.

    The clock counts: in autumn the repeated hour has the same slots twice, in spring an hour of slots does not come. A
    bin that begins within a slot belongs to it. The local days in `sundays` have the slots of a Sunday (public holidays:
    see `forecast.series.public_holidays`). Raises ValueError where no slots can be cut (bins longer than a week).
    """
    if not 0 < bin_seconds <= WEEK_SECONDS:
        raise ValueError(f"bins of {bin_seconds} s do not cut a week")
    local = _local(start, bin_seconds, n, zone)
    since_monday = (local - MONDAY) % WEEK_SECONDS
    if sundays:
        wanted = np.array([(day - EPOCH).days for day in sundays], dtype=np.int64)
        is_one = np.isin(np.floor(local / DAY_SECONDS).astype(np.int64), wanted)
        since_monday = np.where(is_one, SUNDAY_SECONDS + since_monday % DAY_SECONDS, since_monday)
    slots: Integers = np.floor(since_monday / bin_seconds).astype(np.int64)
    return slots


def local_days(start: float, bin_seconds: float, n: int, zone: str) -> tuple[date, ...]:
    """Every day that `n` bins begin on, by the clock in `zone`, in order."""
    days = np.unique(np.floor(_local(start, bin_seconds, n, zone) / DAY_SECONDS).astype(np.int64))
    return tuple(EPOCH + timedelta(days=int(day)) for day in days)


def _local(start: float, bin_seconds: float, n: int, zone: str) -> Array:
    """What the clock shows, in seconds, as if it stood at UTC."""
    times = start + np.arange(n, dtype=np.float64) * bin_seconds
    shown: Array = times + utc_offsets(start, bin_seconds, n, zone)
    return shown


def utc_offsets(start: float, bin_seconds: float, n: int, zone: str) -> Integers:
    """By how many seconds the clock in `zone` is ahead of UTC at the start of each bin.

    Raises ValueError (or ZoneInfoNotFoundError, a KeyError) for a zone that is none.
    """
    first = int(start // 1)
    changes = clock_changes(first, int((start + max(n - 1, 0) * bin_seconds) // 1), zone)
    offsets = np.array([_offset(first, ZoneInfo(zone)), *(change.after for change in changes)], dtype=np.int64)
    times = start + np.arange(n) * bin_seconds
    return offsets[np.searchsorted(np.array([change.t for change in changes], dtype=float), times, "right")]


class ClockChange(NamedTuple):
    """From the second `t` (unix) on a clock is `after` seconds ahead of UTC, until then it was `before`."""

    t: int
    before: int
    after: int


def clock_changes(first: int, last: int, zone: str) -> tuple[ClockChange, ...]:
    """When the clock in `zone` was put forward or back in (first, last], unix seconds.

    The clock is asked once a day, and between two days that differ until the second is known: two changes within a day
    that undo each other are not seen, and no zone of the tz database has any.
    """
    clock = ZoneInfo(zone)
    asked = [(t, _offset(t, clock)) for t in (*range(first, last, DAY_SECONDS), max(first, last))]
    return tuple(
        ClockChange(_change(t, later, clock), before, after)
        for (t, before), (later, after) in pairwise(asked)
        if before != after
    )


def _offset(t: int, clock: ZoneInfo) -> int:
    moved = datetime.fromtimestamp(t, UTC).astimezone(clock).utcoffset()
    assert moved is not None
    return round(moved.total_seconds())


def _change(before: int, after: int, clock: ZoneInfo) -> int:
    """The first second with the offset that `after` has."""
    new = _offset(after, clock)
    while after - before > 1:
        middle = (before + after) // 2
        before, after = (before, middle) if _offset(middle, clock) == new else (middle, after)
    return after


@dataclass(frozen=True, slots=True, kw_only=True)
class CalendarEvent:
    """`start` is the first occurrence by the clock of the zone (no offset), `recurrence` an RRULE such as
    FREQ=MONTHLY;BYMONTHDAY=1, empty for once. `factor` is what is expected by what is usual: 1 is as ever, 0 is nothing."""

    name: str
    start: datetime
    duration: timedelta
    factor: float
    recurrence: str = ""


def event_factors(events: Iterable[CalendarEvent], start: float, bin_seconds: float, n: int, zone: str) -> Array:
    """By what the usual traffic of each of `n` bins is multiplied: 1 where nothing is known.

    Of a bin that an event fills in part the factor counts for that part; events at the same time multiply. Raises
    ValueError for a recurrence that is none.
    """
    factors = np.ones(n)
    edges = start + np.arange(n + 1) * bin_seconds
    for event in events:
        share = np.zeros(n)
        for begin, end in _merged(occurrences(event, start, start + n * bin_seconds, zone)):
            share += np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin), 0.0, None) / bin_seconds
        factors *= 1 + (event.factor - 1) * np.minimum(share, 1.0)
    return factors


def occurrences(event: CalendarEvent, since: float, until: float, zone: str) -> Iterator[tuple[float, float]]:
    """Start and end (unix seconds) of each time that reaches into [since, until), in order."""
    clock = ZoneInfo(zone)
    # A day more on both sides: the clock's changes move what is near an edge.
    spare = timedelta(days=1)
    first = _shown(since, clock) - event.duration - spare
    last = _shown(until, clock) + spare
    starts = recurrence(event).between(first, last, inc=True) if event.recurrence else [event.start]
    for local in starts:
        begin, end = (moment.replace(tzinfo=clock).timestamp() for moment in (local, local + event.duration))
        if begin < until and end > since:
            yield begin, end


def recurrence(event: CalendarEvent) -> rrule:
    """The rule of an event that comes again. Raises ValueError, saying why, for a text that is none."""
    try:
        found = rrulestr(event.recurrence, dtstart=event.start)
    except (ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
        raise ValueError(f"event {event.name}: '{event.recurrence}' is no recurrence rule ({error})") from error
    if not isinstance(found, rrule):
        raise ValueError(f"event {event.name}: '{event.recurrence}' must be one rule, such as FREQ=WEEKLY;BYDAY=MO")
    return found


def _shown(t: float, clock: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(t, UTC).astimezone(clock).replace(tzinfo=None)


def _merged(times: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """The same without overlaps: an event that begins again before it is over does not count twice."""
    current: tuple[float, float] | None = None
    for begin, end in sorted(times):
        if current is not None and begin <= current[1]:
            current = (current[0], max(current[1], end))
            continue
        if current is not None:
            yield current
        current = (begin, end)
    if current is not None:
        yield current
