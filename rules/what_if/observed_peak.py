"""Observed peak of a tier's arrivals, by their work, and the replicas of its last hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rules.resize.production_summary import RATE_SECONDS, ProductionSummary, Rate
from rules.telemetry.windows import HOUR_SECONDS
from rules.telemetry.work import UNTOLD, CapacityLengths
from rules.verdicts.context import SEPARATE

NO_PEAK = "no peak was seen and the plan has none: say with --rps for which load"

FIRST_STRETCHES = round(HOUR_SECONDS / RATE_SECONDS)
"""Stretches of five minutes with known arrivals below which the third busiest is no peak yet: an hour of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPeak:
    """Peak of the whole tier's arrivals in rps: when (unix seconds, None: never seen), and its source.

    `work` is that of one request then, in requests of the capacity's lengths. `highest` is the busiest single stretch.
    """

    rps: float
    at: float | None
    source: str
    work: float = 1.0
    highest: float | None = None


def find_peak(seen: ProductionSummary) -> ObservedPeak | None:
    """Return the peak of production or of the plan, None without either.

    The third busiest five minutes count, so that one burst is no peak. In the first hour the busiest minute counts. What
    arrives now counts where it is more.
    """
    plan, capacity = seen.context.plan, seen.context.capacity
    lengths, third = capacity.lengths if capacity else UNTOLD, "reached in three stretches of five minutes"
    if len(seen.rates) >= FIRST_STRETCHES:
        peak = _pick_third(seen.rates, lengths, third)
    else:
        peak = _pick_third([seen.busiest], lengths, "the busiest minute: an hour was not seen yet")
    planned = plan.workload.requests_per_second if plan and plan.workload else None
    if peak is None:
        known = planned.peak if planned else None
        return ObservedPeak(rps=known, at=None, source="the plan's peak: none was seen") if known else None
    arriving = _pick_third([seen.present], lengths, "what arrives now, more than any peak before")
    return arriving if arriving and arriving.rps * arriving.work > peak.rps * peak.work else peak


def _pick_third(rates: Sequence[Rate | None], lengths: CapacityLengths, source: str) -> ObservedPeak | None:
    """Return the stretch with the third most work, or the least of fewer. A request without tokens is its own work."""
    known = [(rate.work(lengths) or rate.rps, rate.rps, rate.start) for rate in rates if rate and rate.rps > 0]
    if not known:
        return None
    work, rps, at = sorted(known, reverse=True)[min(SEPARATE, len(known)) - 1]
    return ObservedPeak(rps=rps, at=at, source=source, work=work / rps, highest=max(row[1] for row in known))


def count_present_replicas(seen: ProductionSummary) -> float | None:
    """Return the mean replicas of the last hour that was seen, None if that hour is not the present one."""
    last = seen.hours[-1] if seen.hours else None
    if last is None or last.span <= 0 or last.end <= seen.until - HOUR_SECONDS:
        return None
    return last.covered_seconds / last.span
