"""What a what-if is answered from, asked of the history: the sums of the report, and the slices whose load is known best.

Owns the questions and their order. Most of a week is read as hours by load bin; the busiest hours once more as quarters of an
hour by replica, for a peak is higher than any hour's mean. It judges nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agent.history import daily_queries
from agent.history.reader import Reader
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.resize.production_summary import RECENT_SECONDS, ProductionSummary, ProductionSummaryBuilder
from rules.telemetry.windows import Window
from rules.what_if.prompts import PromptVariation, find_prompt_variation

HOUR_SECONDS, QUARTERS_AN_HOUR = 3600.0, 4

FINE_ROWS = 3000
"""Quarters that are read at most: 24 hours of 30 replicas, 3 hours of 200."""

BUSIEST_HOURS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What was seen of one tier, the slices of the last days whose load is told, and the hours that tell of prompts."""

    seen: ProductionSummary
    slices: tuple[BinnedWindow, ...]
    hours: tuple[PromptVariation, ...]


def material(store: Reader, view: TierContext, version: str, since: float, until: float) -> Material:
    """All of it for [since, until) (unix seconds, full hours), under the present version of the plan. Raises HistoryTrouble."""
    versions = store.plan_versions(view.tier, since, until)
    collected = ProductionSummaryBuilder(view=view, since=since, until=until)
    recent: list[BinnedWindow] = []
    hours: list[PromptVariation] = []
    for begin, end in daily_queries.pieces(since, until, daily_queries.DAY_SECONDS):
        every = store.bins(view.tier, begin, end)
        present = every if set(versions) <= {version} else store.bins(view.tier, begin, end, version)
        needed = present if end > until - RECENT_SECONDS else daily_queries.sum_by_hour(present)
        collected.add(daily_queries.sum_by_hour(every), needed, daily_queries.demand(store, view.tier, begin, end))
        hours += (one for one in map(find_prompt_variation, present) if one is not None)
        recent += (one for one in present if _middle(one.window) >= until - RECENT_SECONDS)
    busiest = _busiest(recent)
    fine = [
        quarter
        for hour in busiest
        for quarter in store.replica_bins(view.tier, hour, hour + HOUR_SECONDS, version or None)
    ]
    coarse = [one for one in recent if _hour(one.window) not in busiest]
    return Material(seen=collected.build(versions), slices=(*coarse, *fine), hours=tuple(hours))


def _busiest(recent: Sequence[BinnedWindow]) -> frozenset[float]:
    """The hours (by their begin) with most requests a replica-second, as many as are read in quarters."""
    sums: dict[float, tuple[float, float]] = {}
    for one in recent:
        requests, seconds = sums.get(_hour(one.window), (0.0, 0.0))
        finished = one.window.counters.get("requests_finished", 0.0)
        sums[_hour(one.window)] = (requests + finished, seconds + one.window.covered_seconds)
    known = {hour: requests / seconds for hour, (requests, seconds) in sums.items() if seconds > 0}
    replicas = max((seconds / HOUR_SECONDS for _, seconds in sums.values()), default=1.0)
    most = min(BUSIEST_HOURS, max(1, math.floor(FINE_ROWS / (QUARTERS_AN_HOUR * max(1.0, replicas)))))
    return frozenset(sorted(known, key=lambda hour: -known[hour])[:most])


def _middle(window: Window) -> float:
    return (window.start + window.end) / 2


def _hour(window: Window) -> float:
    return _middle(window) // HOUR_SECONDS * HOUR_SECONDS
