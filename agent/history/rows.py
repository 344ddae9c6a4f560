"""The rows of demand: which a closed minute goes into, and how a row is written and read.

Owns the columns' order and the statements that need it. What the numbers mean is `rules.telemetry.arrivals`'s.

Which row of each sum a closed minute goes into.

Owns the keys of the rows and the grouping of bookings by them. What is in a row is `agent.history.codec`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from agent.history.codec import NO_BIN, bin_code
from agent.history.schema import MINUTES, SumTable
from agent.history.write_buffer import MinuteRecord
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import arrivals, windows
from rules.telemetry.arrivals import ADDED, MinuteDemand, MinuteSums
from rules.telemetry.windows import Window


class RowKey(NamedTuple):
    """Which row of a sum. `start` is unix seconds; `replica` is empty for the whole tier."""

    start: int
    tier: str
    plan_version: str
    replica: str
    bin: int


def row_key(kind: SumTable, booking: MinuteRecord) -> RowKey:
    """The row of `kind` that a booking goes into, by the minute its window's middle lies in."""
    one = booking.slice
    return RowKey(
        start=int(windows.minute_of(one.window) // kind.seconds * kind.seconds),
        tier=booking.tier,
        plan_version=booking.plan_version,
        replica=(one.replica or "") if kind.per_replica else "",
        bin=bin_code(one),
    )


def group_by_row(kind: SumTable, bookings: Iterable[MinuteRecord]) -> dict[RowKey, list[BinnedWindow]]:
    """The slices that go into each row, so that a row is read and written once however many they are."""
    rows: dict[RowKey, list[BinnedWindow]] = {}
    for booking in bookings:
        rows.setdefault(row_key(kind, booking), []).append(booking.slice)
    return rows


def sum_row(group: Iterable[BinnedWindow]) -> tuple[Window, str]:
    """The sum of what goes into one row, and the newest sentence on why it is beyond the benchmark."""
    several = tuple(group)
    return windows.sum_windows(one.window for one in several), next(
        (s.beyond for s in reversed(several) if s.beyond), ""
    )


COLUMNS = ("first", "last", *ADDED)

DEMAND_UPSERT = (
    f"INSERT INTO demand (start, series, {', '.join(COLUMNS)}) VALUES (?, ?{', ?' * len(COLUMNS)}) ON CONFLICT DO UPDATE"
    " SET first = min(first, excluded.first), last = max(last, excluded.last), "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in ADDED)
)


def _several(columns: Iterable[str]) -> str:
    return ", ".join(f"demand.{name}" for name in columns)


DEMAND_SELECT = (
    f"SELECT start, {_several(COLUMNS)} FROM demand CROSS JOIN series ON series.id = demand.series"
    " WHERE start >= ? AND start < ? AND tier = ? ORDER BY start"
)

REQUESTS_COLUMNS = ("first", "last", "expected_seconds", "covered_seconds", "requests", "requests_seconds")

REQUESTS_SELECT = DEMAND_SELECT.replace(_several(COLUMNS), _several(REQUESTS_COLUMNS))

TOLD_SELECT = (
    "SELECT demand.first, demand.last FROM demand CROSS JOIN series ON series.id = demand.series"
    f" WHERE demand.start > :since - {MINUTES.seconds} AND demand.last > :since AND tier = :tier"
)


def group_by_tier_minute(bookings: Iterable[MinuteRecord]) -> dict[RowKey, list[MinuteSums]]:
    """What goes into each row: a minute of a tier, whatever its plan version was.

    Nothing of a prefill pool: each of its requests goes on to the decode pool, which counts it, and its prompt, again.
    """
    rows: dict[RowKey, list[MinuteSums]] = {}
    for booking in bookings:
        if booking.pool == "prefill":
            continue
        for part in arrivals.split_by_minute(booking.slice.window):
            key = RowKey(start=int(part.start), tier=booking.tier, plan_version="", replica="", bin=NO_BIN)
            rows.setdefault(key, []).append(part)
    return rows


def demand_values(one: MinuteSums) -> tuple[float, ...]:
    """The row's columns."""
    return tuple(getattr(one, name) for name in COLUMNS)


def numbers(*values: float) -> tuple[float, ...]:
    """The same. Raises ValueError where one is none: SQLite keeps in a column what a damaged file says, of whatever type."""
    if not all(isinstance(one, int | float) for one in values):
        raise ValueError("a row that is not of numbers")
    return values


def minute_sums(start: int, *values: float) -> MinuteSums:
    """The row that was read. Raises ValueError where it is not of numbers."""
    numbers(start, *values)
    return MinuteSums(start=float(start), **dict(zip(COLUMNS, values, strict=True)))


def requests_of(
    start: int, first: float, last: float, expected: float, covered: float, requests: float, seconds: float
) -> MinuteDemand:
    """What the row says of requests alone, as `rules.telemetry.arrivals.list_demand` does. Raises ValueError where it is not
    of numbers."""
    numbers(start, first, last, expected, covered, requests, seconds)
    one = MinuteSums(
        start=float(start),
        first=first,
        last=last,
        expected_seconds=expected,
        covered_seconds=covered,
        requests=requests,
        requests_seconds=seconds,
    )
    return arrivals.demand_from_requests(one)
