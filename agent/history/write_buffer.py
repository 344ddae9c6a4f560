"""Queue of closed minutes that wait for the history, bounded in bytes."""

from __future__ import annotations

import pickle
import zlib
from collections import deque
from collections.abc import Callable, Sequence

from agent.history.errors import HistoryError
from rules.evaluator.observation import ClosedMinute

MOST_BYTES = 16 * 1024 * 1024
"""Three hours of some 90 replicas, at about 1 kB a minute of a real engine (a Window in memory takes 9 to 14 kB)."""


class WriteBuffer:
    """Queue of minutes that could not be written, cycle by cycle. For one thread at a time.

    Beyond `most_bytes` the oldest cycles are dropped. `dropped` counts their minutes since the start.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._cycles: deque[tuple[int, bytes]] = deque()
        """Number of minutes and their compressed pickle, a tenth of its size."""
        self.dropped = 0

    def __len__(self) -> int:
        """Return the number of minutes that wait."""
        return sum(minutes for minutes, _ in self._cycles)

    def add(self, minutes: Sequence[ClosedMinute]) -> None:
        """Add the minutes of a cycle at the end."""
        if minutes:
            self._cycles.append((len(minutes), zlib.compress(pickle.dumps(minutes))))
        while sum(len(body) for _, body in self._cycles) > self._most_bytes:
            self.dropped += self._cycles.popleft()[0]

    def drain(self, book: Callable[[Sequence[ClosedMinute]], None], new: Sequence[ClosedMinute] = ()) -> None:
        """Book the waiting minutes, oldest first, then `new`. `book` books all minutes of a call, or none and raises.

        Raise its HistoryError: what was not booked waits, and nothing is booked twice. Any other error is a defect: its
        cycle is lost, for it would block the queue forever.
        """
        try:
            while self._cycles:
                cycle = self._cycles.popleft()
                try:
                    book(pickle.loads(zlib.decompress(cycle[1])))
                except HistoryError:
                    self._cycles.appendleft(cycle)
                    raise
            if new:
                book(new)
        except HistoryError:
            self.add(new)
            raise
