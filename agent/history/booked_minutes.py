"""Minutes that the history holds already: from an earlier run, or from before a clock was set back."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agent.history.reader import Reader
from agent.history.schema import DAY
from agent.history.write_buffer import MinuteRecord
from rules.replicas import track
from rules.replicas.track import Spans


class BookedMinutes:
    """Times of each tier that the history had before this run booked any minute of it. For one thread."""

    def __init__(self) -> None:
        self._spans: dict[str, Spans] = {}
        self._now = -math.inf

    def start_cycle(self, now: float) -> None:
        """Set the time of this cycle (unix seconds). If the clock went back, forget everything, to read it again."""
        if now < self._now:
            self._spans = {}
        self._now = now

    def select_new_minutes(self, store: Reader, records: Sequence[MinuteRecord]) -> list[MinuteRecord]:
        """Return the minutes of which less than half was booked. Raise HistoryError.

        A minute that ends after now is of the clock's earlier course, and is new.
        """
        for tier in {record.tier for record in records} - self._spans.keys():
            self._spans[tier] = store.list_booked_times(tier, self._now - DAY)
        return [record for record in records if not self._is_booked(record)]

    def _is_booked(self, record: MinuteRecord) -> bool:
        window = record.slice.window
        return window.end <= self._now and track.is_mostly_covered(self._spans[record.tier], window.start, window.end)
