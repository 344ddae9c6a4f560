"""Running sums of accepted increases, cheap to add to every scrape.

Owns mutable lists for what would otherwise be a new Window a scrape: on a GPU node this is the agent's hottest line.
What is exported is a frozen Window made when somebody asks.
"""

from __future__ import annotations

from collections.abc import Container

from rules.telemetry.histograms import Histogram
from rules.telemetry.windows import Window


class RunningSums:
    """The counters and histograms of one replica since the agent started.

    A histogram whose bucket edges change starts anew, as a counter does after a restart. A sum that a window does not
    trust adds nothing: the corrupt part is out (vLLM issue 49135).
    """

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._edges: dict[str, tuple[float, ...]] = {}
        self._counts: dict[str, list[float]] = {}
        self._totals: dict[str, float] = {}
        self._start = self._end = 0.0

    def add(self, window: Window, leave_out: Container[str] = ()) -> None:
        """One more window; the counters in `leave_out` are kept elsewhere."""
        self._start = self._start or window.start
        self._end = window.end
        counters = self._counters
        for name, value in window.counters.items():
            if name not in leave_out:
                counters[name] = counters.get(name, 0.0) + value
        for family, parts in window.histograms.items():
            for part in parts:
                self._add_part(family, part)

    def _add_part(self, family: str, part: Histogram) -> None:
        if self._edges.get(family) != part.edges:
            self._edges[family], self._counts[family], self._totals[family] = part.edges, [0.0] * len(part.edges), 0.0
        counts = self._counts[family]
        for place, count in enumerate(part.counts):
            if count:
                counts[place] += count
        if part.total is not None:
            self._totals[family] += part.total

    def window(self) -> Window:
        """The sums as a window that covers nothing: they are for export, not for readings."""
        parts = {
            family: (Histogram(edges=edges, counts=tuple(self._counts[family]), total=self._totals[family]),)
            for family, edges in self._edges.items()
        }
        return Window(
            start=self._start,
            end=self._end,
            expected_seconds=0.0,
            covered_seconds=0.0,
            counters=dict(self._counters),
            histograms=parts,
        )
