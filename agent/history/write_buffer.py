"""Closed minutes on their way into the history, and the queue in which they wait while it does not take them.

Owns the booking, the queue's bound in bytes and the count of what fell out of it. It knows no store: whoever books is
passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from agent.history.codec import bin_code, decode_window, encode_window, slice_of
from agent.history.errors import HistoryError
from rules.plan.load_bins import BinnedWindow

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

    def drain(self, into: Callable[[Sequence[MinuteRecord]], None]) -> None:
        """Books what waits, oldest first. `into` books all it is given, or raises and has booked none (`Store.book`).

        Its HistoryTrouble rises; what was not booked goes on waiting, and nothing is booked twice. After any other error
        (a defect) what was just tried is dropped and counted, for it would stand in the way forever.
        """
        while self._waiting:
            batch = [_booking(one) for one in islice(self._waiting, BATCH)]
            try:
                into(batch)
            except HistoryError:
                raise
            except Exception:
                self._take(len(batch))
                self.dropped += len(batch)
                raise
            self._take(len(batch))

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
