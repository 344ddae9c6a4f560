"""Minutes that the history holds already: from an earlier run, or from before a clock was set back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from agent.history.reader import Reader
from agent.history.write_buffer import MinuteRecord
from rules.replicas import track
from rules.replicas.track import Spans


class BookedMinutes:
    """Times of each tier that the history had before this run booked any of them. For one thread."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, Spans]] = {}
        """By tier: since when it is known, and the spans."""
        self._before = self._known
        self._now = -math.inf

    def start_cycle(self, now: float) -> None:
        """Set the time of this cycle (unix seconds). After a clock that went back, everything is asked anew."""
        if now < self._now:
            self._known = {}
        self._now = now

    def select_new_minutes(self, store: Reader, bookings: Iterable[MinuteRecord]) -> Sequence[MinuteRecord]:
        """Return the minutes of which most was not booked yet. Raise HistoryError.

        A minute that ends after now is of the clock's earlier course, and was not.
        """
        minutes = tuple(bookings)
        oldest: dict[str, float] = {}
        for minute in minutes:
            if minute.slice.window.end <= self._now:
                oldest[minute.tier] = min(minute.slice.window.start, oldest.get(minute.tier, math.inf))
        known = dict(self._known)
        for tier, begin in oldest.items():
            since, spans = known.get(tier, (math.inf, ()))
            if begin < since:
                # What this run booked itself begins at `since`.
                earlier = ((start, min(end, since)) for start, end in store.list_booked_times(tier, begin))
                known[tier] = begin, track.add_spans(spans, earlier)
        self._before, self._known = self._known, known
        return [minute for minute in minutes if not self._is_booked(minute)]

    def forget_last(self) -> None:
        """Forget what was asked for the last selection, because it was not booked: older minutes may come with the next."""
        self._known = self._before

    def _is_booked(self, minute: MinuteRecord) -> bool:
        window, (_, spans) = minute.slice.window, self._known.get(minute.tier, (0.0, ()))
        return window.end <= self._now and track.is_mostly_covered(spans, window.start, window.end)
