"""Observed peak of a tier's arrivals, by their work, and the replicas of its last hour."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from rules.resize.production_summary import RATE_SECONDS, ProductionSummary, Rate
from rules.telemetry.arrivals import count_arrivals
from rules.telemetry.outcomes import count_gone
from rules.telemetry.windows import HOUR_SECONDS, Window
from rules.telemetry.work import UNTOLD, CapacityLengths, work_per_request
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

    The third busiest five minutes count, so that one burst is no peak. In the first hour the busiest minutes count, of none
    a busy hour's mean. What arrives now counts where it is more.
    """
    lengths = seen.context.capacity.lengths if seen.context.capacity else UNTOLD
    planned = (
        seen.context.plan.workload.requests_per_second if seen.context.plan and seen.context.plan.workload else None
    )
    each = work_per_request(seen.lately, lengths)[1] if seen.lately else 1.0
    stretches = _list_work(seen.rates if len(seen.rates) >= FIRST_STRETCHES else (), lengths, each)
    busiest, present = (_list_work((rate,), lengths, each) for rate in (seen.busiest, seen.present))
    peak = (
        _pick_third(stretches, "reached in three stretches of five minutes", SEPARATE)
        or _pick_third(busiest, "the busiest minute: an hour was not seen yet")
        or _pick_third(_list_hours(seen.hours, lengths), "mean of a busy hour: its busiest minutes were higher")
    )
    arriving = _pick_third(present, "what arrives now, more than any peak before")
    if peak is None and planned is not None and planned.peak:
        return ObservedPeak(rps=planned.peak, at=None, source="the plan's peak: none was seen")
    return arriving if peak and arriving and arriving.rps * arriving.work > peak.rps * peak.work else peak


def _list_work(
    rates: Iterable[Rate | None], lengths: CapacityLengths, each: float
) -> Iterable[tuple[float, float, float]]:
    """Yield work and requests per second, and the begin, of each stretch with arrivals.

    Without tokens a request is the work of `each`.
    """
    known = (rate for rate in rates if rate is not None and rate.rps > 0)
    return ((rate.work(lengths) or rate.rps * each, rate.rps, rate.start) for rate in known)


def _pick_third(stretches: Iterable[tuple[float, float, float]], source: str, fewest: int = 1) -> ObservedPeak | None:
    """Return the stretch (work and rps, begin) with the third most work, or the least of fewer; at least `fewest`."""
    ordered = sorted(stretches, reverse=True)
    if len(ordered) < fewest:
        return None
    work, rps, at = ordered[min(SEPARATE, len(ordered)) - 1]
    return ObservedPeak(rps=rps, at=at, source=source, work=work / rps, highest=max(row[1] for row in ordered))


def _list_hours(hours: Iterable[Window], lengths: CapacityLengths) -> Iterable[tuple[float, float, float]]:
    for one in hours:
        requests = count_arrivals(one.counters, count_gone(one))
        if requests is not None and one.span > 0 and one.coverage > 0 and 0 < requests < math.inf:
            rps, start = requests / one.span / one.coverage, one.middle // HOUR_SECONDS * HOUR_SECONDS
            yield rps * work_per_request(one, lengths)[1], rps, start


def count_present_replicas(seen: ProductionSummary) -> float | None:
    """Return the mean replicas of the last hour that was seen, None if that hour is not the present one."""
    last = seen.hours[-1] if seen.hours else None
    if last is None or last.span <= 0 or last.end <= seen.until - HOUR_SECONDS:
        return None
    return last.covered_seconds / last.span
