"""Local time on a grid of bins, and calendar events with their traffic factors.

Time zones come from the system's table; times are arguments, no clock is read. An event occurs once or by a recurrence
rule of RFC 5545 (python-dateutil). Event times are local: 08:00 to 18:00 stays so across clock changes. The
configuration lists the events; the library `holidays` has the public holidays.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Protocol
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from dateutil.rrule import rrule, rrulestr

from forecast.series.binned import Array, Integers

DAY_SECONDS = 86_400
WEEK_SECONDS = 7 * DAY_SECONDS
SUNDAY = 6

LEAST_FACTOR = 0.01
"""Minimum traffic factor of an event from which the usual traffic can be computed."""


def time_of_week(start: float, bin_seconds: float, n: int, zone: str, sundays: Collection[date] = ()) -> Integers:
    """Return the bin of the local week in which each of `n` bins begins. Bin 0 is Monday 00:00 in `zone`.

    Local time counts. In autumn the slots of the repeated hour occur twice; in spring an hour of slots is missing. A
    bin that begins within a slot belongs to it. Days in `sundays` have the slots of a Sunday (see
    `public_holidays`). Raise ValueError for bins longer than a week.
    """
    if not 0 < bin_seconds <= WEEK_SECONDS:
        raise ValueError(f"bins of {bin_seconds} s do not cut a week")
    local = _local_times(start, bin_seconds, n, zone)
    days = local.normalize()
    weekdays = local.day_of_week.to_numpy()
    if sundays:
        weekdays = np.where(days.isin(pd.to_datetime(list(sundays))), SUNDAY, weekdays)
    seconds = weekdays * DAY_SECONDS + (local - days).total_seconds().to_numpy()
    slots: Integers = np.floor(seconds / bin_seconds).astype(np.int64)
    return slots


def local_days(start: float, bin_seconds: float, n: int, zone: str) -> tuple[date, ...]:
    """Return the local days on which `n` bins begin, in order."""
    return tuple(_local_times(start, bin_seconds, n, zone).normalize().unique().sort_values().date)


def _local_times(start: float, bin_seconds: float, n: int, zone: str) -> pd.DatetimeIndex:
    """Return the local time at the start of each bin. Raise ZoneInfoNotFoundError, a KeyError, for an unknown zone."""
    micros = np.rint((start + np.arange(n, dtype=np.float64) * bin_seconds) * 1e6).astype(np.int64)
    return pd.to_datetime(micros, unit="us", utc=True).tz_convert(ZoneInfo(zone)).tz_localize(None)


class CalendarEvent(Protocol):
    """Calendar event. `start` is the local time of the first occurrence (no offset).

    `recurrence` is an RRULE such as FREQ=MONTHLY;BYMONTHDAY=1, or empty. `factor` is the expected traffic divided by
    the usual traffic: 1 is usual, 0 is none."""

    @property
    def name(self) -> str: ...
    @property
    def start(self) -> datetime: ...
    @property
    def duration_seconds(self) -> float: ...
    @property
    def factor(self) -> float: ...
    @property
    def recurrence(self) -> str | None: ...


def event_factors(events: Iterable[CalendarEvent], start: float, bin_seconds: float, n: int, zone: str) -> Array:
    """Return the traffic factor of each of `n` bins; 1 without an event.

    In a partly covered bin the factor applies to the covered part. Factors of simultaneous events multiply. Raise
    ValueError for an invalid recurrence.
    """
    factors = np.ones(n)
    edges = start + np.arange(n + 1) * bin_seconds
    for event in events:
        share = np.zeros(n)
        for begin, end in _merged(occurrences(event, start, start + n * bin_seconds, zone)):
            share += np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin), 0.0, None) / bin_seconds
        factors *= 1 + (event.factor - 1) * np.minimum(share, 1.0)
    return factors


def remove_event_effects(values: Array, factors: Array) -> Array:
    """Return the amounts without known events. A bin is NaN if an event left too little traffic."""
    known = factors >= LEAST_FACTOR
    usual: Array = np.where(known, values / np.where(known, factors, 1.0), np.nan)
    return usual


def occurrences(event: CalendarEvent, since: float, until: float, zone: str) -> Iterator[tuple[float, float]]:
    """Yield start and end (unix seconds) of each occurrence that overlaps [since, until), in order."""
    clock, duration = ZoneInfo(zone), timedelta(seconds=event.duration_seconds)
    # Add a day on both sides: clock changes move occurrences near an edge.
    spare = timedelta(days=1)
    first = _shown(since, clock) - duration - spare
    last = _shown(until, clock) + spare
    starts = recurrence(event).between(first, last, inc=True) if event.recurrence else [event.start]
    for local in starts:
        begin, end = (moment.replace(tzinfo=clock).timestamp() for moment in (local, local + duration))
        if begin < until and end > since:
            yield begin, end


def recurrence(event: CalendarEvent) -> rrule:
    """Return the recurrence rule of an event. Raise ValueError with the reason for an invalid text."""
    try:
        result = rrulestr(event.recurrence or "", dtstart=event.start)
    except (ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
        raise ValueError(f"event {event.name}: '{event.recurrence}' is no recurrence rule ({error})") from error
    if not isinstance(result, rrule):
        raise ValueError(f"event {event.name}: '{event.recurrence}' must be one rule, such as FREQ=WEEKLY;BYDAY=MO")
    return result


def _shown(t: float, clock: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(t, UTC).astimezone(clock).replace(tzinfo=None)


def _merged(times: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the times merged: an occurrence that begins before the last ends must not count twice."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(times):
        if merged and begin <= merged[-1][1]:
            begin, last = merged.pop()
            end = max(last, end)
        merged.append((begin, end))
    return merged


def public_holidays(country: str, days: Sequence[date]) -> Mapping[date, str]:
    """Return the public holidays among `days` with their names, by the library `holidays`.

    `country` is ISO 3166: DE, or DE-BY for a part. A holiday behaves like a Sunday: pass the days to `time_of_week`.
    Four weeks hold one to three holidays, too few for a factor of their own, but four Sundays. Where that is wrong (a
    shop on Black Friday), users configure an event with a factor. Raise ValueError for an unknown country or part.
    """
    code, _, part = country.partition("-")
    known = _known()
    if code not in known:
        raise ValueError(f"'{code}' is no country with known holidays{_meant(code, tuple(known))}")
    if part and part not in known[code]:
        parts = ", ".join(known[code]) or "none"
        raise ValueError(f"{code} has no part '{part}' with holidays of its own; known: {parts}")
    if not days:
        return {}
    import holidays

    base = holidays.country_holidays(code, subdiv=part or None, years=range(days[0].year, days[-1].year + 1))
    return {day: base[day] for day in days if day in base}


@lru_cache(maxsize=1)
def _known() -> Mapping[str, Sequence[str]]:
    import holidays

    return holidays.list_supported_countries()


def _meant(code: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(code, known, n=1)
    return f"; did you mean {close[0]}?" if close else "; write the two letters of ISO 3166, such as DE or US"
