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

    The third busiest five minutes count, so that one burst is no peak. In the first hour, or with traffic in fewer than
    three of them, the busiest minute counts: an overload that began minutes ago fills no five. A busy hour's mean counts
    if it is more.
    """
    lengths = seen.context.capacity.lengths if seen.context.capacity else UNTOLD
    each = work_per_request(seen.lately, lengths)[1] if seen.lately else 1.0
    rates = _weigh_rates(seen.rates, lengths, each)
    if len(rates) >= SEPARATE and len(seen.rates) >= FIRST_STRETCHES:
        return _pick(rates, SEPARATE, "reached in three stretches of five minutes")
    minutes = (seen.busiest_minute,) if seen.busiest_minute else ()
    found = (
        _pick(
            _weigh_rates(minutes, lengths, each),
            1,
            "the busiest minute: too few arrivals were seen for three stretches",
        ),
        _pick(_list_hours(seen.hours, lengths), SEPARATE, "mean of a busy hour: its busiest minutes were higher"),
    )
    highest = max((one for one in found if one), key=lambda one: one.rps * one.work, default=None)
    planned = (
        seen.context.plan.workload.requests_per_second if seen.context.plan and seen.context.plan.workload else None
    )
    if highest is None and planned is not None and planned.peak:
        return ObservedPeak(rps=planned.peak, at=None, source="the plan's peak: none was seen")
    return highest


def _weigh_rates(rates: Iterable[Rate], lengths: CapacityLengths, each: float) -> list[tuple[float, float, float]]:
    """Return work, rps and begin of each stretch with arrivals. Without tokens a request is the work of `each`."""
    return [(one.work(lengths) or one.rps * each, one.rps, one.start) for one in rates if one.rps > 0]


def _pick(several: Iterable[tuple[float, float, float]], place: int, source: str) -> ObservedPeak | None:
    """Return the stretch (work and rps, begin) at this place, the most work first, or the last of fewer."""
    found = sorted(several, reverse=True)
    if not found:
        return None
    work, rps, at = found[min(place, len(found)) - 1]
    return ObservedPeak(rps=rps, at=at, source=source, work=work / rps, highest=found[0][1])


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
