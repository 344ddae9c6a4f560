"""Queue of closed minutes for the history, bounded in bytes, and the rows and columns that a minute is written to."""

from __future__ import annotations

import pickle
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agent.history.codec import NO_BIN, bin_code
from agent.history.errors import HistoryError
from agent.history.schema import MINUTES, SumTable
from rules.plan.load_bins import APART, BinnedWindow
from rules.telemetry import arrivals, windows
from rules.telemetry.arrivals import ADDED, MinuteDemand, MinuteSums
from rules.telemetry.windows import Window

MOST_BYTES = 16 * 1024 * 1024
"""Three hours of some 90 replicas, at about 1 kB a minute of a real engine (a Window in memory takes 9 to 14 kB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteRecord:
    """A closed minute of one replica, placed on the curve of a plan version ("" without a plan). `pool` says which part of
    the tier it belongs to: mixed, prefill or decode. `release` is engine and version, `precision` weights/KV cache; "" where
    the page or the plan does not tell."""

    tier: str
    plan_version: str
    slice: BinnedWindow
    pool: str = "mixed"
    release: str = ""
    precision: str = ""


@dataclass(frozen=True, slots=True)
class _Batch:
    """The minutes of one cycle, pickled and compressed to a tenth."""

    minutes: int
    body: bytes


class WriteBuffer:
    """A queue of minutes that could not be written. For one thread at a time.

    Beyond `most_bytes` the oldest cycles fall out. `dropped` counts the minutes that were lost since the start: fallen out, or
    refused by a defect.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._batches: deque[_Batch] = deque()
        self.dropped = 0

    def __len__(self) -> int:
        """Minutes that wait."""
        return sum(batch.minutes for batch in self._batches)

    def add(self, minutes: Sequence[MinuteRecord]) -> None:
        """Put the minutes of a cycle at the end."""
        if minutes:
            self._batches.append(_Batch(len(minutes), zlib.compress(pickle.dumps(minutes))))
        while sum(len(batch.body) for batch in self._batches) > self._most_bytes:
            self.dropped += self._batches.popleft().minutes

    def drain(self, into: Callable[[Sequence[MinuteRecord]], None], new: Sequence[MinuteRecord] = ()) -> None:
        """Book what waits, oldest first, then `new`, cycle by cycle. `into` books all it is given, or raises and has booked none.

        Its HistoryError is raised. What was not booked waits, and nothing is booked twice. After any other error (a defect)
        the cycle is dropped and counted: it would stand in the way forever.
        """
        try:
            while self._batches:
                try:
                    into(pickle.loads(zlib.decompress(self._batches[0].body)))
                except HistoryError:
                    raise
                except Exception:
                    self.dropped += self._batches.popleft().minutes
                    raise
                self._batches.popleft()
        except BaseException:
            self.add(new)
            raise
        if not new:
            return
        try:
            into(new)
        except HistoryError:
            self.add(new)
            raise
        except Exception:
            self.dropped += len(new)
            raise


class RowKey(NamedTuple):
    """Which row of a sum. `start` is unix seconds; `replica` is empty for the whole tier, or a pool's name. Only hours stand
    apart by release and precision."""

    start: int
    tier: str
    plan_version: str
    replica: str
    bin: int
    release: str = ""
    precision: str = ""


def row_key(kind: SumTable, booking: MinuteRecord) -> RowKey:
    """The row of `kind` that a booking goes into, by the minute its window's middle lies in."""
    one, pool = booking.slice, booking.pool if booking.pool in APART else ""
    return RowKey(
        start=int(windows.minute_of(one.window) // kind.seconds * kind.seconds),
        tier=booking.tier,
        plan_version=booking.plan_version,
        replica=(one.replica or "") if kind.per_replica else pool,
        bin=bin_code(one),
        release="" if kind.per_replica else booking.release,
        precision="" if kind.per_replica else booking.precision,
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

_DEMAND_INSERT = f"INSERT INTO demand (start, series, {', '.join(COLUMNS)}) VALUES (?, ?{', ?' * len(COLUMNS)})"

DEMAND_FILL = f"{_DEMAND_INSERT} ON CONFLICT DO NOTHING"

DEMAND_UPSERT = (
    f"{_DEMAND_INSERT} ON CONFLICT DO UPDATE SET first = min(first, excluded.first), last = max(last, excluded.last), "
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
