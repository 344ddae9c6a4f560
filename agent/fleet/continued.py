"""Running sums of an agent, continued where the agent starts anew.

Owns what is remembered of one replica's sums: they begin at zero with each agent, and nothing the engine did. A sum that
is not there is one of which nothing was added yet.
"""

from __future__ import annotations

import math
from dataclasses import replace

from rules.telemetry.histograms import Cumulative
from rules.telemetry.snapshots import Snapshot


class CounterContinuity:
    """The sums of one replica over the lives of its agents."""

    def __init__(self) -> None:
        self._base: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._base_parts: dict[str, Cumulative] = {}
        self._last_parts: dict[str, Cumulative] = {}

    def page(self, page: Snapshot) -> Snapshot:
        """The page with what earlier agents had added up on top."""
        if self._of_the_first_agent(page):
            self._last, self._last_parts = dict(page.counters), dict(page.histograms)
            return page
        counters = {f: self._counter(f, page.counters.get(f, 0.0)) for f in {**self._last, **page.counters}}
        for family, part in page.histograms.items():
            self._part(family, part)
        for family in self._last_parts.keys() - page.histograms.keys():
            self._vanished(family)
        parts = {
            family: _plus(self._base_parts.get(family), self._last_parts.get(family))
            for family in {**self._base_parts, **self._last_parts}
        }
        return replace(page, counters=counters, histograms={f: p for f, p in parts.items() if p is not None})

    def _of_the_first_agent(self, page: Snapshot) -> bool:
        """Whether nothing began anew so far and all that was told before is told again."""
        if self._base or self._base_parts:
            return False
        counters, parts = page.counters, page.histograms
        return all(counters.get(f, -math.inf) >= last for f, last in self._last.items()) and all(
            (now := parts.get(f)) is not None and (now.edges != last.edges or now.counts[-1] >= last.counts[-1])
            for f, last in self._last_parts.items()
        )

    def _counter(self, family: str, now: float) -> float:
        last = self._last.get(family, 0.0)
        if now < last:
            self._base[family] = self._base.get(family, 0.0) + last
        self._last[family] = now
        return self._base.get(family, 0.0) + now

    def _part(self, family: str, now: Cumulative) -> None:
        last = self._last_parts.get(family)
        if last is not None and last.edges == now.edges and now.counts[-1] < last.counts[-1]:
            self._vanished(family)
        base = self._base_parts.get(family)
        if base is not None and base.edges != now.edges:
            # Another grid is another histogram: the engine was replaced by one with other buckets.
            del self._base_parts[family]
        self._last_parts[family] = now

    def _vanished(self, family: str) -> None:
        whole = _plus(self._base_parts.get(family), self._last_parts.pop(family))
        if whole is not None:
            self._base_parts[family] = whole


def _plus(base: Cumulative | None, last: Cumulative | None) -> Cumulative | None:
    if base is None or last is None or base.edges != last.edges:
        return last if last is not None else base
    counts = tuple(a + b for a, b in zip(base.counts, last.counts, strict=True))
    total = None if base.total is None or last.total is None else base.total + last.total
    return Cumulative(last.edges, counts, total)
