"""What was booked of a time before the clock came to it: by a clock that was ahead, by a run before, of pods since gone.

Owns which waiting minutes may still be booked: what is booked twice counts twice. The history is asked about a tier once in
each way of the clock, before the first of its minutes is booked in it. What one replica told twice in one run is known to
`rules.replicas.state` already.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from agent.history.reader import Reader
from agent.history.write_buffer import MinuteRecord
from rules.replicas import spans
from rules.replicas.spans import Spans


class BookedMinutes:
    """For one thread."""

    def __init__(self) -> None:
        self._of: dict[str, Spans] = {}
        self._now = -math.inf

    def turn(self, now: float) -> None:
        """The time of this turn (unix seconds). Where the clock went back, everything is asked anew."""
        if now < self._now:
            self._of = {}
        self._now = now

    def select_new_minutes(self, store: Reader, bookings: Iterable[MinuteRecord]) -> Sequence[MinuteRecord]:
        """Without minutes of which most was booked. One that ends after now is of the way that the clock had before, and was
        not. Raises HistoryTrouble."""
        several = tuple(bookings)
        since: dict[str, float] = {}
        for one in several:
            if one.tier not in self._of and one.slice.window.end <= self._now:
                since[one.tier] = min(one.slice.window.start, since.get(one.tier, math.inf))
        for tier, begin in since.items():
            self._of[tier] = store.list_booked_times(tier, begin)
        return [one for one in several if not self._told(one)]

    def _told(self, one: MinuteRecord) -> bool:
        window, known = one.slice.window, self._of.get(one.tier, ())
        return window.end <= self._now and spans.is_mostly_covered(known, window.start, window.end)
