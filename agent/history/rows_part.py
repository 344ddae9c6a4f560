"""Which row of each sum a closed minute goes into.

Owns the keys of the rows and the grouping of bookings by them. What is in a row is `agent.history.codec`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from agent.history.codec import bin_code
from agent.history.schema import SumTable
from agent.history.write_buffer import MinuteRecord
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import windows
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
