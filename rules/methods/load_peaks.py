"""The busiest minutes of a tier against the planned peak, and over days the peak against the average (guide 1.3, 9.1).

Owns how a tier's arrivals are counted by period. An hour says nothing of a day's average, so the ratio is only told where
a day or more was seen; there the busiest hour is a lower bound of the peak. It gives no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rules.confidence import poisson_lower_bound
from rules.plan.load_bins import BinnedWindow
from rules.telemetry.arrivals import count_arrivals
from rules.telemetry.wording import number
from rules.verdicts.context import SEPARATE, RuleContext

DAY_SECONDS = 86400.0

WHOLE = 0.75
"""A period of which less was seen is no minute (hour) to take a rate of: one burst would be the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakComparison:
    """Requests per second of the tier in its busiest periods, at least `rps` in three of them; what was planned.

    `ratio` is the peak by the average over a day or more, `planned_ratio` the plan's; None where not known.
    """

    rps: float
    planned: float
    requests: float
    periods: str
    factor: float
    certain: bool
    ratio: float | None
    planned_ratio: float | None

    @property
    def is_above_plan(self) -> bool:
        """Beyond the planned peak, or beyond the planned peak-to-average ratio, by more than the allowed factor."""
        return self.rps > self.planned * self.factor or self._bursty

    @property
    def _bursty(self) -> bool:
        return (
            self.ratio is not None and self.planned_ratio is not None and self.ratio > self.planned_ratio * self.factor
        )

    def __str__(self) -> str:
        text = f"{number(self.rps, 'per_second')} or more arrived in three {self.periods}, the planned peak is "
        text += number(self.planned, "per_second")
        if self.rps > self.planned * self.factor:
            text += f": {self.rps / self.planned:.1f}x"
        if self._bursty and self.ratio is not None and self.planned_ratio is not None:
            text += f"; peak to average {self.ratio:.1f} where {self.planned_ratio:.1f} was planned"
        return text


def find_busiest_periods(case: RuleContext) -> PeakComparison | None:
    """The tier's busiest periods in the hold; None where the plan has no peak or fewer than three periods were seen."""
    rates = case.view.plan.workload.requests_per_second if case.view.plan and case.view.plan.workload else None
    found = sorted((one for group in case.periods(case.slices) if (one := _arrivals(case, group))), reverse=True)
    if rates is None or rates.peak is None or len(found) < SEPARATE:
        return None
    top = found[:SEPARATE]
    requests, seconds = math.fsum(count for _, count, _ in top), math.fsum(span for _, _, span in top)
    total, whole = math.fsum(count for _, count, _ in found), math.fsum(span for _, _, span in found)
    average = total / whole if whole >= DAY_SECONDS else None
    return PeakComparison(
        rps=top[-1][0],
        planned=rates.peak,
        requests=requests,
        periods=case.periods_word,
        factor=case.limit("factor"),
        certain=poisson_lower_bound(requests) / seconds > rates.peak,
        ratio=top[-1][0] / average if average else None,
        planned_ratio=rates.peak / rates.average if rates.average else None,
    )


def busiest_rate(case: RuleContext) -> float | None:
    """Requests per second that arrived at the tier in at least three periods of the hold; None where fewer were seen."""
    found = sorted((one[0] for group in case.periods(case.slices) if (one := _arrivals(case, group))), reverse=True)
    return found[SEPARATE - 1] if len(found) >= SEPARATE else None


def _arrivals(case: RuleContext, group: Sequence[BinnedWindow]) -> tuple[float, float, float] | None:
    """Requests per second, requests and seconds of one period of the whole tier."""
    known = [one.window for one in group if "requests_finished" in one.window.counters]
    if not known:
        return None
    seconds = max(window.end for window in known) - min(window.start for window in known)
    if seconds < WHOLE * case.period_seconds:
        return None
    requests = max(0.0, math.fsum(count_arrivals(window.counters) or 0.0 for window in known))
    return requests / seconds, requests, seconds
