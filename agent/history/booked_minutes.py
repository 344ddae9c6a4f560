"""Minutes that the history holds already: from an earlier run, or from before a clock was set back."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agent.history.reader import Reader
from agent.history.write_buffer import MinuteRecord
from rules.replicas import track
from rules.replicas.track import Spans


class BookedMinutes:
    """Times of each tier that the history had before this run booked any minute of it. For one thread."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, Spans]] = {}
        """By tier: since when the spans are known (unix seconds), and the spans."""
        self._before = self._known
        self._now = -math.inf

    def start_cycle(self, now: float) -> None:
        """Set the time of this cycle (unix seconds). If the clock went back, forget everything, to read it again."""
        if now < self._now:
            self._known = {}
        self._now = now

    def select_new_minutes(self, store: Reader, records: Sequence[MinuteRecord]) -> list[MinuteRecord]:
        """Return the minutes of which less than half was booked. Raise HistoryError.

        A minute that ends after now is of the clock's earlier course, and is new.
        """
        oldest: dict[str, float] = {}
        for record in records:
            window = record.slice.window
            if window.end <= self._now:
                oldest[record.tier] = min(window.start, oldest.get(record.tier, math.inf))
        known = dict(self._known)
        for tier, begin in oldest.items():
            since, spans = known.get(tier, (math.inf, ()))
            if begin < since:
                # The minutes that this run booked itself begin at `since`.
                earlier = ((start, min(end, since)) for start, end in store.list_booked_times(tier, begin))
                known[tier] = begin, track.add_spans(spans, earlier)
        self._before, self._known = self._known, known
        return [record for record in records if not self._is_booked(record)]

    def forget_last(self) -> None:
        """Forget the last selection, because it was not booked. Older minutes may come with the next."""
        self._known = self._before

    def _is_booked(self, record: MinuteRecord) -> bool:
        window, (_, spans) = record.slice.window, self._known.get(record.tier, (0.0, ()))
        return window.end <= self._now and track.is_mostly_covered(spans, window.start, window.end)
