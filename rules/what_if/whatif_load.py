"""The load that a what-if asks about: the peak that was seen, when, and from what; and the replicas that carried it.

Owns where a peak comes from, in order: arrivals by five minutes (as Step 11 sizes for), hours where no arrivals are
kept, the plan's peak where nothing was seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from rules.evaluator.long_rules import HOUR_SECONDS
from rules.resize.production_summary import RATE_SECONDS, ProductionSummary
from rules.telemetry.arrivals import count_arrivals
from rules.telemetry.windows import Window
from rules.verdicts.context import SEPARATE


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPeak:
    """Requests per second of the whole tier; `at` is when it was (unix seconds, None: never seen) over `seconds`, `source` says of
    what it is the peak. `highest` is the busiest single stretch."""

    rps: float
    at: float | None
    seconds: float
    source: str
    highest: float | None = None


def find_peak(seen: ProductionSummary) -> ObservedPeak | None:
    """The peak of the time; None where neither production nor plan has one."""
    rates = seen.view.plan.workload.requests_per_second if seen.view.plan and seen.view.plan.workload else None
    by_rate = ((one.rps, one.start) for one in seen.rates)
    found = _third(by_rate, RATE_SECONDS, "reached in three stretches of five minutes", SEPARATE)
    found = found or _third(_hours(seen.hours), HOUR_SECONDS, "mean of a busy hour: its busiest minutes were higher", 1)
    if found is None and rates is not None and rates.peak:
        return ObservedPeak(rps=rates.peak, at=None, seconds=0.0, source="the plan's peak: none was seen")
    return found


def count_replicas_at(seen: ProductionSummary, t: float | None) -> float | None:
    """Replicas that were seen in the hour of `t`; without it, or where that hour is not known, on average. None: none."""
    for one in seen.hours:
        middle = (one.start + one.end) / 2
        if t is not None and middle // HOUR_SECONDS == t // HOUR_SECONDS and one.span > 0:
            return one.covered_seconds / one.span
    return seen.mean_ready_replicas or None


def _third(several: Iterable[tuple[float, float]], seconds: float, source: str, fewest: int) -> ObservedPeak | None:
    """Of the busiest three the lowest, so that one burst is no peak; of fewer the lowest of those there are."""
    found = sorted((one for one in several if one[0] > 0), reverse=True)
    if len(found) < fewest:
        return None
    rps, at = found[min(SEPARATE, len(found)) - 1]
    return ObservedPeak(rps=rps, at=at, seconds=seconds, source=source, highest=found[0][0])


def _hours(several: Iterable[Window]) -> Iterable[tuple[float, float]]:
    for one in several:
        requests = count_arrivals(one.counters)
        if requests is not None and one.span > 0 and one.coverage > 0 and math.isfinite(requests):
            yield requests / one.span / one.coverage, (one.start + one.end) / 2 // HOUR_SECONDS * HOUR_SECONDS
