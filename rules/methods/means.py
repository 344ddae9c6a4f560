"""Means below the benchmark at equal load: GPU utilisation and prefix hits (guide 9.1, step 13).

A new mean is a row of MEANS and a row of the catalogue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rules.confidence import Certainty, binomial_lower_bound
from rules.methods.divergence import Divergence, judge_divergence
from rules.methods.evidence import (
    REPEATED_LOOKUPS,
    exact_reading,
    sees_repeated_lookups,
    sum_counters_beside,
)
from rules.plan.curve import Expectation
from rules.plan.load_bins import BinnedWindow, LoadBin
from rules.telemetry.gpu_windows import GPU_UTILIZATION_KINDS
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.signals import Gap, Reading
from rules.verdicts.context import (
    BenchmarkComparison,
    RuleContext,
    expectation_bounds,
    read_plan_value,
    select_comparable,
    supports_certain,
    worst_gap,
)
from rules.verdicts.held_windows import hold
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict

ENOUGH_SEEN = 0.5
"""Minimum observed share of GPU-seconds. The unobserved half may be the busy one."""

LOOKUPS = ("prefix_queried_tokens", "prefix_hit_tokens")

MORE_HITS = "the engine counts more prefix cache hits than lookups: its counters contradict each other"

CACHE_OFF = "no prompt was looked up in the prefix cache: is prefix caching on?"

PROMISED = 10**9
"""Requests behind a value of the plan: it is no estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinMean:
    """Mean in a load bin. `weight` is that of the observed part (0: none), `full_weight` that of a complete observation.

    A `weak` mean is likely at most.
    """

    value: float
    weight: float
    full_weight: float
    expected: Expectation
    weak: bool = False


def judge_mean(case: RuleContext) -> RuleResult:
    """Find a mean below the benchmark at equal load by more than the allowed points.

    From GPU-seconds of the benchmark's own kind of utilisation, or prefix hits and lookups. Certain against the lower end of
    the bins, if nearly all was observed, and beyond chance.
    """
    is_of_hits = case.rule.signal == "prefix_hit_ratio"
    of = select_comparable(case, promised=_read_planned_hits(case) if is_of_hits else None)
    if isinstance(of, Unknown):
        return of
    return judge_divergence(of, _measure, _explain_missing_hits if is_of_hits else _explain_missing_gpus)


def _measure(of: BenchmarkComparison, binned: Iterable[BinnedWindow]) -> Divergence | None:
    """Return the weighted mean over bins, with that of their expectations. Return None if too little was seen of them."""
    case, words, observe = of.case, *MEANS[of.case.rule.signal]
    loads = hold(binned).by_load_bin(of.curve).items()
    means = [mean for bin, load in loads if (mean := observe(of, bin, load)) is not None]
    seen = [mean for mean in means if mean.weight > 0]
    weight, full = (math.fsum(column) for column in ((m.weight for m in seen), (m.full_weight for m in means)))
    if weight <= 0 or weight < ENOUGH_SEEN * full:
        return None
    observed = math.fsum(mean.weight * mean.value for mean in seen) / weight
    bounds = [[mean.weight * end for end in expectation_bounds(mean.expected)] for mean in seen]
    lower, expected, upper = (math.fsum(column) / weight for column in zip(*bounds, strict=True))
    supported = case.limit("supported_requests")
    well = math.fsum(mean.weight for mean in seen if supports_certain(mean.expected, supported) and not mean.weak)
    points = case.limit("points")
    is_seen = not any(mean.weak for mean in seen) and well >= weight / 2 and weight >= FULL_COVERAGE * full
    beyond = observed < lower - points
    if case.rule.signal == "prefix_hit_ratio":
        # A request's share of hits lies between 0 and 1, so it scatters no more than a coin of the same mean.
        beyond = binomial_lower_bound((1 - observed) * weight, weight) > 1 - (lower - points)

    def report(status: Status, certainty: Certainty, reason: str) -> Verdict:
        below = (expected - observed) * 100
        gap = f"{below:.0f} points below the plan" if below >= 0.5 else "not below the plan"
        sentence = f"{words} is {gap}; {observed:.1%} where {expected:.1%} is planned at this load"
        is_off = status is not Status.OK and not observed and any(mean.weak for mean in seen)
        remark = CACHE_OFF if is_off and case.rule.signal == "prefix_hit_ratio" else reason
        planned = Reading(value=expected, low=lower, high=upper, n=weight)
        details = (f"{points * 100:.0f} points below are allowed", remark)
        return case.verdict(status, certainty, exact_reading(observed, weight), planned, sentence, details=details)

    return Divergence(
        requests=weight,
        exceeds=observed < expected - points,
        is_significant=observed < expected - points,
        surely_exceeds=observed < lower - points,
        is_proven=is_seen and beyond,
        report=report,
    )


def _observe_gpus(of: BenchmarkComparison, bin: int, load: LoadBin) -> BinMean | None:
    """Return the utilisation of the benchmark's own kind, weighted by observed GPU-seconds.

    Below the first point of the curve the expectation is interpolated from zero, which is never certain.
    """
    point = of.curve.expectation(bin, "gpu_utilization", load.rps, load.in_system)
    if point is None:
        return None
    if bin == 0:
        share = min(1.0, load.rps / of.curve.points[0].completed_rps)
        point = Expectation(lower=0.0, interpolated=point.upper * share, upper=point.upper, requests=point.requests)
    kind = of.curve.gpu_utilization_kind
    family = GPU_UTILIZATION_KINDS[kind] if kind is not None else ""
    busy, seconds, polled = *load.gauge(family), load.sampled(family)
    if family == "gpu_busy_seconds":
        busy, seconds = load.counter(family), load.counter("gpu_busy_covered_seconds")
        if seconds <= 0:
            busy, seconds, polled = *load.gauge("gpu_utilization_sampled"), True
    full = max(load.seconds * (of.case.context.basis.gpus_per_replica or 1.0), seconds)
    value = busy / seconds if seconds > 0 else 0.0
    return BinMean(value=value, weight=seconds, full_weight=full, expected=point, weak=polled)


def _explain_missing_gpus(of: BenchmarkComparison) -> Unknown:
    case, kind = of.case, of.curve.gpu_utilization_kind
    if kind is None:
        return case.unknown(Gap.NOT_IN_PLAN, "the benchmark does not say which kind of gpu_utilization it measured")
    family = GPU_UTILIZATION_KINDS[kind]
    if _is_observed(of.binned, family):
        return case.unknown(Gap.SCRAPE_FAILED, "GPUs were seen for less than half of the time")
    others = [name for name, other in GPU_UTILIZATION_KINDS.items() if name != kind and _is_observed(of.binned, other)]
    text = f"no utilisation of the benchmark's kind, {kind}"
    text += f"; {', '.join(others)} cannot be compared" if others else ""
    return case.unknown(worst_gap(of.binned, family), text)


def _is_observed(binned: Iterable[BinnedWindow], family: str) -> bool:
    return any(family in one.window.gauges or family in one.window.counters for one in binned)


def _observe_hits(of: BenchmarkComparison, bin: int, load: LoadBin) -> BinMean | None:
    """Return hits by queried tokens, weighted by requests, against the curve, else the planned workload.

    Without lookups the cache is off and there are no hits. More hits than lookups, and more lookups than prompt tokens, are
    a contradiction and have no weight.
    """
    point, planned = (
        of.curve.expectation(bin, "prefix_hit_ratio", load.rps, load.in_system),
        _read_planned_hits(of.case),
    )
    if point is None and planned is not None:
        point = Expectation(lower=planned, interpolated=planned, upper=planned, requests=PROMISED)
    if point is None:
        return None
    queried, hits, requests = sum_counters_beside(load.binned, *LOOKUPS, "requests_finished")
    is_wrong = hits > queried or sees_repeated_lookups(load.binned)
    value, weight = hits / queried if queried > 0 else 0.0, 0.0 if is_wrong else requests
    return BinMean(value=value, weight=weight, full_weight=requests, expected=point, weak=queried <= 0)


def _read_planned_hits(case: RuleContext) -> float | None:
    planned = read_plan_value(case.context, "workload.prefix_hit_ratio")
    return planned if isinstance(planned, float) else None


def _explain_missing_hits(of: BenchmarkComparison) -> Unknown:
    if not _is_observed(of.binned, "prefix_queried_tokens"):
        gap = worst_gap(of.binned, "prefix_queried_tokens")
        text = MORE_HITS if gap is Gap.CONTRADICTORY else "the engine shows no prefix cache lookups"
        return of.case.unknown(gap, text)
    queried, hits = sum_counters_beside(of.binned, *LOOKUPS)
    if hits > queried or sees_repeated_lookups(of.binned):
        return of.case.unknown(Gap.CONTRADICTORY, MORE_HITS if hits > queried else REPEATED_LOOKUPS)
    if all(_observe_hits(of, bin, load) is None for bin, load in hold(of.binned).by_load_bin(of.curve).items()):
        return of.case.unknown(Gap.NOT_IN_PLAN, "the benchmark has no prefix_hit_ratio at this load")
    return of.case.unknown(Gap.NO_TRAFFIC, "no requests finished")


MEANS: dict[str, tuple[str, Callable[[BenchmarkComparison, int, LoadBin], BinMean | None]]] = {
    "gpu_utilization": ("GPU utilisation", _observe_gpus),
    "prefix_hit_ratio": ("Prefix cache hit rate", _observe_hits),
}
"""Words and observation of each mean by its signal."""
