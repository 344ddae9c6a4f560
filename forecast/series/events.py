"""What is known to be going to happen: when, and how many times the usual traffic it brings.

Owns the occurrences of an event (once, or by a recurrence rule of RFC 5545 as python-dateutil reads it) and their factors on
a grid of bins. Times are those of the clock in the zone, also across its changes: an event from 08:00 to 18:00 is so on
every day. What events there are stands in the configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
from dateutil.rrule import rrule, rrulestr

from forecast.series.binned import Array


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
