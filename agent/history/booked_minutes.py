"""Minutes that the history holds already: from an earlier run, or from before a clock was set back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from agent.history.reader import Reader
from agent.history.write_buffer import MinuteRecord
from rules.replicas import track
from rules.replicas.track import Spans


class BookedMinutes:
    """Times of each tier that the history had when its first minute of this run was booked. For one thread."""

    def __init__(self) -> None:
        self._of: dict[str, Spans] = {}
        self._asked: frozenset[str] = frozenset()
        self._now = -math.inf

    def start_cycle(self, now: float) -> None:
        """Set the time of this cycle (unix seconds). After a clock that went back, everything is asked anew."""
        if now < self._now:
            self._of = {}
        self._now = now

    def select_new_minutes(self, store: Reader, bookings: Iterable[MinuteRecord]) -> Sequence[MinuteRecord]:
        """Return the minutes of which most was not booked yet. Raise HistoryError.

        A minute that ends after now is of the clock's earlier course, and was not.
        """
        several = tuple(bookings)
        since: dict[str, float] = {}
        for one in several:
            if one.tier not in self._of and one.slice.window.end <= self._now:
                since[one.tier] = min(one.slice.window.start, since.get(one.tier, math.inf))
        for tier, begin in since.items():
            self._of[tier] = store.list_booked_times(tier, begin)
        self._asked = frozenset(since)
        return [one for one in several if not self._told(one)]

    def forget_last(self) -> None:
        """Forget what was asked for the last selection, because it was not booked: older minutes may come with the next."""
        for tier in self._asked:
            self._of.pop(tier, None)
        self._asked = frozenset()

    def _told(self, one: MinuteRecord) -> bool:
        window, known = one.slice.window, self._of.get(one.tier, ())
        return window.end <= self._now and track.is_mostly_covered(known, window.start, window.end)
