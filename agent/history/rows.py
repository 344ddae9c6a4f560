"""Which row of each sum a closed minute goes into.

Owns the keys of the rows and the grouping of bookings by them. What is in a row is `agent.history.bodies`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from agent.history.bodies import bin_code
from agent.history.booking import Booking
from agent.history.schema import Sum
from rules import windows
from rules.slices import Slice
from rules.windows import Window


class RowKey(NamedTuple):
    """Which row of a sum. `start` is unix seconds; `replica` is empty for the whole tier."""

    start: int
    tier: str
    plan_version: str
    replica: str
    bin: int


def row_key(kind: Sum, booking: Booking) -> RowKey:
    """The row of `kind` that a booking goes into, by the minute its window's middle lies in."""
    one = booking.slice
    return RowKey(
        start=int(windows.minute_of(one.window) // kind.seconds * kind.seconds),
        tier=booking.tier,
        plan_version=booking.plan_version,
        replica=(one.replica or "") if kind.per_replica else "",
        bin=bin_code(one),
    )


def by_row(kind: Sum, bookings: Iterable[Booking]) -> dict[RowKey, list[Slice]]:
    """The slices that go into each row, so that a row is read and written once however many they are."""
    rows: dict[RowKey, list[Slice]] = {}
    for booking in bookings:
        rows.setdefault(row_key(kind, booking), []).append(booking.slice)
    return rows


def summed(group: Iterable[Slice]) -> tuple[Window, str]:
    """The sum of what goes into one row, and the newest sentence on why it is beyond the benchmark."""
    several = tuple(group)
    return windows.add(one.window for one in several), next((s.beyond for s in reversed(several) if s.beyond), "")
