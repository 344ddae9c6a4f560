"""Queue of closed minutes for the history, bounded in bytes, and the rows and columns that a minute is written to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from agent.history.codec import NO_BIN, bin_code, decode_window, encode_window, slice_of
from agent.history.errors import HistoryError
from agent.history.schema import COMPUTED_COLUMNS, MINUTES, SumTable
from rules.plan.load_bins import APART, BinnedWindow
from rules.telemetry import arrivals, windows
from rules.telemetry.arrivals import ADDED, MinuteDemand, MinuteSums
from rules.telemetry.windows import Window

MOST_BYTES = 16 * 1024 * 1024
"""Three hours of some 90 replicas, at about 1 kB a minute of a real engine (a Window in memory takes 9 to 14 kB)."""

ENTRY_BYTES = 200
"""What Python needs around one packed window, rounded up."""

BATCH = 500
"""Minutes booked in one transaction while draining."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteRecord:
    """A closed minute of one replica, placed on the curve of a plan version ("" without a plan). `pool` says which part of
    the tier it belongs to: mixed, prefill or decode."""

    tier: str
    plan_version: str
    slice: BinnedWindow
    pool: str = "mixed"


@dataclass(frozen=True, slots=True)
class _Waiting:
    tier: str
    plan_version: str
    replica: str
    bin: int
    beyond: str
    body: bytes
    pool: str

    @property
    def size(self) -> int:
        return ENTRY_BYTES + len(self.body) + len(self.beyond)


class WriteBuffer:
    """A queue of bookings, packed as rows are. For one thread at a time.

    Beyond `most_bytes` the oldest fall out. `dropped` counts the minutes that were lost since the start: fallen out, or
    refused by a defect.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self.dropped = 0

    def __len__(self) -> int:
        """Minutes that wait."""
        return len(self._waiting)

    def add(self, bookings: Iterable[MinuteRecord]) -> None:
        """Puts bookings at the end."""
        for booking in bookings:
            one = _waiting(booking)
            self._waiting.append(one)
            self._bytes += one.size
            while self._bytes > self._most_bytes:
                self._take(1)
                self.dropped += 1

    def drain(self, into: Callable[[Sequence[MinuteRecord]], None], new: Iterable[MinuteRecord] = ()) -> None:
        """Book what waits, oldest first, then `new`. `into` books all it is given, or raises and has booked none.

        Its HistoryError is raised. What was not booked waits, and nothing is booked twice. After any other error (a defect)
        the batch is dropped and counted: it would stand in the way forever. New bookings are packed only if they have to
        wait.
        """
        rest = list(new)
        try:
            while self._waiting or rest:
                waited = [_booking(one) for one in islice(self._waiting, BATCH)]
                # In one batch: it is known of the oldest minute on which of them an earlier run booked.
                batch = [*waited, *rest[: BATCH - len(waited)]]
                try:
                    into(batch)
                except HistoryError:
                    raise
                except Exception:
                    self.dropped += len(batch)
                    self._remove(len(waited), rest, len(batch))
                    raise
                self._remove(len(waited), rest, len(batch))
        finally:
            self.add(rest)

    def _remove(self, waited: int, rest: list[MinuteRecord], count: int) -> None:
        """Remove the `count` minutes of a batch, of which so many `waited`."""
        self._take(waited)
        del rest[: count - waited]

    def _take(self, count: int) -> None:
        for _ in range(count):
            self._bytes -= self._waiting.popleft().size


def _waiting(booking: MinuteRecord) -> _Waiting:
    one = booking.slice
    body = encode_window(one.window)
    return _Waiting(
        booking.tier, booking.plan_version, one.replica or "", bin_code(one), one.beyond, body, booking.pool
    )


def _booking(one: _Waiting) -> MinuteRecord:
    placed = slice_of(one.replica, one.bin, one.beyond, decode_window(one.body))
    return MinuteRecord(tier=one.tier, plan_version=one.plan_version, slice=placed, pool=one.pool)


class RowKey(NamedTuple):
    """Which row of a sum. `start` is unix seconds; `replica` is empty for the whole tier, or a pool's name."""

    start: int
    tier: str
    plan_version: str
    replica: str
    bin: int


def row_key(kind: SumTable, booking: MinuteRecord) -> RowKey:
    """The row of `kind` that a booking goes into, by the minute its window's middle lies in."""
    one, pool = booking.slice, booking.pool if booking.pool in APART else ""
    return RowKey(
        start=int(windows.minute_of(one.window) // kind.seconds * kind.seconds),
        tier=booking.tier,
        plan_version=booking.plan_version,
        replica=(one.replica or "") if kind.per_replica else pool,
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

DEMAND_SELECT_OLDER = DEMAND_SELECT.replace(_several(COMPUTED_COLUMNS), ", ".join("0.0" for _ in COMPUTED_COLUMNS))
"""The same of a file of an older format."""

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
