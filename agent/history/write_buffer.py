"""Queue of closed minutes that wait for the history, bounded in bytes."""

from __future__ import annotations

import pickle
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.history.errors import HistoryError
from rules.plan.load_bins import BinnedWindow

MOST_BYTES = 16 * 1024 * 1024
"""Three hours of some 90 replicas, at about 1 kB a minute of a real engine (a Window in memory takes 9 to 14 kB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteRecord:
    """Closed minute of one replica, placed on the curve of a plan version ("" without a plan).

    `pool` is the part of the tier it belongs to: mixed, prefill or decode. `release` is engine and version, `precision`
    weights/KV cache; both are "" if the page or the plan lacks them.
    """

    tier: str
    plan_version: str
    slice: BinnedWindow
    pool: str = "mixed"
    release: str = ""
    precision: str = ""


class WriteBuffer:
    """Queue of minutes that could not be written, cycle by cycle. For one thread at a time.

    Beyond `most_bytes` the oldest cycles are dropped. `dropped` counts the minutes lost since the start, for want of room or
    by a defect.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._cycles: deque[tuple[int, bytes]] = deque()
        """Number of minutes and their compressed pickle, a tenth of its size."""
        self.dropped = 0

    def __len__(self) -> int:
        """Return the number of minutes that wait."""
        return sum(minutes for minutes, _ in self._cycles)

    def add(self, minutes: Sequence[MinuteRecord]) -> None:
        """Add the minutes of a cycle at the end."""
        if minutes:
            self._cycles.append((len(minutes), zlib.compress(pickle.dumps(minutes))))
        while sum(len(body) for _, body in self._cycles) > self._most_bytes:
            self.dropped += self._cycles.popleft()[0]

    def drain(self, book: Callable[[Sequence[MinuteRecord]], None], new: Sequence[MinuteRecord] = ()) -> None:
        """Book the waiting minutes, oldest first, then `new`. `book` books all minutes of a call, or none and raises.

        Raise its HistoryError: what was not booked waits, and nothing is booked twice. After any other error, a defect,
        drop that cycle: it would block the queue forever.
        """
        while self._cycles:
            self._book_cycle(book, pickle.loads(zlib.decompress(self._cycles[0][1])), new)
            self._cycles.popleft()
        if new:
            self._book_cycle(book, new, new)

    def _book_cycle(
        self, book: Callable[[Sequence[MinuteRecord]], None], cycle: Sequence[MinuteRecord], new: Sequence[MinuteRecord]
    ) -> None:
        try:
            book(cycle)
        except HistoryError:
            self.add(new)
            raise
        except Exception:
            self.dropped += len(cycle)
            if cycle is not new:
                self._cycles.popleft()
                self.add(new)
            raise
