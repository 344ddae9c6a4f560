"""Means below the benchmark at equal load: GPU utilisation and prefix hits (guide 9.1, step 13).

A new mean is a row of MEANS and a row of the catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rules.confidence import Certainty, binomial_lower_bound
from rules.methods.evidence import (
    REPEATED_LOOKUPS,
    certain_if,
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
    is_persistent,
    select_comparable,
    supports_certain,
    too_early,
    worst_gap,
)
from rules.verdicts.held_windows import hold
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict

ENOUGH_SEEN = 0.5
"""Minimum observed share of GPU-seconds. The unobserved half may be the busy one."""

LOOKUPS = ("prefix_queried_tokens", "prefix_hit_tokens")

MORE_HITS = "the engine counts more prefix cache hits than lookups: its counters contradict each other"

PROMISED = 10**9
"""Requests behind a value of the plan: it is no estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinMean:
    """Mean in a load bin. `weight` is that of the observed part (0: none), `full_weight` that of a complete observation.

    A `weak` mean is likely at most. `remark` is a detail of a finding.
    """

    value: float
    weight: float
    full_weight: float
    weak: bool = False
    remark: str = ""


@dataclass(slots=True, kw_only=True)
class BinnedMean:
    """Weighted mean over bins: observed, expected with its ends, and its weights."""

    observed: float = 0.0
    expected: float = 0.0
    lower: float = 0.0
    upper: float = 0.0
    weight: float = 0.0
    full_weight: float = 0.0
    supported_weight: float = 0.0
    weak: bool = False
    remark: str = ""

    @property
    def seen_share(self) -> float:
        return self.weight / self.full_weight


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanComparison:
    """Row of a mean: words, observation, expectation, value of the plan without a measurement, and reason for a gap.

    `counted_in_requests`: chance can cause a shortfall of few requests.
    """

    words: str
    observe: Callable[[BenchmarkComparison, LoadBin], BinMean]
    expect: Callable[[BenchmarkComparison, int, LoadBin], Expectation | None]
    promised: Callable[[RuleContext], float | None]
    counted_in_requests: bool
    missing: Callable[[BenchmarkComparison], Unknown]


def judge_mean(case: RuleContext) -> RuleResult:
    """Find a mean below the benchmark at equal load by more than the allowed points."""
    kind = MEANS[case.rule.signal]
    found = select_comparable(case, promised=kind.promised(case))
    if isinstance(found, Unknown):
        return found
    mean = compute_mean(found, found.binned)
    if mean is None or mean.seen_share < ENOUGH_SEEN:
        return kind.missing(found)
    needed = case.limit("minimum_requests") if kind.counted_in_requests else 0.0
    if mean.weight < needed:
        return case.too_few_requests(mean.weight, needed)
    points = case.limit("points")
    if mean.observed >= mean.expected - points:
        return _build_verdict(found, mean, Status.OK, Certainty.CERTAIN)
    last = compute_mean(found, found.last_quarter())
    if last is None or last.weight < needed / 4:
        return case.unknown(Gap.NO_TRAFFIC, f"no {kind.words} in the last quarter of the time")
    each = [compute_mean(found, group) for group in case.periods(found.binned)]
    early = too_early(case, found.binned, last, each, lambda part: part.observed < part.expected - points)
    if early is not None:
        return early
    if not is_persistent(last, each, lambda part: part.observed < part.expected - points):
        return _build_verdict(found, mean, Status.OK, Certainty.CERTAIN)
    certain = _is_proven(mean, points, kind.counted_in_requests) and is_persistent(
        last, each, lambda part: part.observed < part.lower - points
    )
    return _build_verdict(found, mean, Status.WARNING, certain_if(certain))


def compute_mean(of: BenchmarkComparison, binned: Iterable[BinnedWindow]) -> BinnedMean | None:
    """Return the weighted mean over bins, with that of their expectations. Return None if no bin has both."""
    kind, mean = MEANS[of.case.rule.signal], BinnedMean()
    for bin, one in hold(binned).by_load_bin(of.curve).items():
        wanted = kind.expect(of, bin, one)
        if wanted is None:
            continue
        seen = kind.observe(of, one)
        mean.full_weight += seen.full_weight
        if seen.weight <= 0:
            continue
        low, middle, high = expectation_bounds(wanted)
        mean.weight += seen.weight
        mean.observed += seen.weight * seen.value
        mean.expected += seen.weight * middle
        mean.lower += seen.weight * low
        mean.upper += seen.weight * high
        mean.supported_weight += seen.weight if supports_certain(wanted, of.case.limit("supported_requests")) else 0.0
        mean.weak, mean.remark = mean.weak or seen.weak, mean.remark or seen.remark
    if mean.weight <= 0:
        return None
    for name in ("observed", "expected", "lower", "upper"):
        setattr(mean, name, getattr(mean, name) / mean.weight)
    mean.weak = mean.weak or mean.supported_weight < mean.weight / 2
    return mean


def _is_proven(mean: BinnedMean, points: float, counted_in_requests: bool) -> bool:
    """Return whether the mean is below the lower end of the bins, nearly all observed, and beyond chance."""
    if mean.weak or mean.seen_share < FULL_COVERAGE:
        return False
    if not counted_in_requests:
        return mean.observed < mean.lower - points
    # A request's share of hits lies between 0 and 1, so it scatters no more than a coin of the same mean.
    missed = binomial_lower_bound((1 - mean.observed) * mean.weight, mean.weight)
    return missed > 1 - (mean.lower - points)


def _build_verdict(of: BenchmarkComparison, mean: BinnedMean, status: Status, certainty: Certainty) -> Verdict:
    case, points = of.case, of.case.limit("points")
    expected = Reading(value=mean.expected, low=mean.lower, high=mean.upper, n=mean.weight)
    below = (mean.expected - mean.observed) * 100
    gap = f"{below:.0f} points below the plan" if below >= 0.5 else "not below the plan"
    seen = f"{mean.observed:.1%} where {mean.expected:.1%} is planned at this load"
    sentence = f"{MEANS[case.rule.signal].words} is {gap}; {seen}"
    details = (f"{points * 100:.0f} points below are allowed", mean.remark if status is not Status.OK else "")
    return case.verdict(
        status, certainty, exact_reading(mean.observed, mean.weight), expected, sentence, details=details
    )


def _observe_gpus(of: BenchmarkComparison, one: LoadBin) -> BinMean:
    """Return the utilisation of the benchmark's own kind, weighted by observed GPU-seconds."""
    kind = of.curve.gpu_utilization_kind
    family = GPU_UTILIZATION_KINDS[kind] if kind is not None else ""
    busy, seconds, polled = *one.gauge(family), one.sampled(family)
    if family == "gpu_busy_seconds":
        busy, seconds = one.counter(family), one.counter("gpu_busy_covered_seconds")
        if seconds <= 0:
            busy, seconds, polled = *one.gauge("gpu_utilization_sampled"), True
    full = max(one.seconds * (of.case.context.basis.gpus_per_replica or 1.0), seconds)
    return BinMean(value=busy / seconds if seconds > 0 else 0.0, weight=seconds, full_weight=full, weak=polled)


def _expect_gpus(of: BenchmarkComparison, bin: int, one: LoadBin) -> Expectation | None:
    """Return the expectation of the curve. Below its first point interpolate from zero, which is never certain."""
    found = of.curve.expectation(bin, "gpu_utilization", one.rps, one.in_system)
    if found is None or bin > 0:
        return found
    share = min(1.0, one.rps / of.curve.points[0].completed_rps)
    return Expectation(lower=0.0, interpolated=found.upper * share, upper=found.upper, requests=found.requests)


def _explain_missing_gpus(of: BenchmarkComparison) -> Unknown:
    case, kind = of.case, of.curve.gpu_utilization_kind
    if kind is None:
        return case.unknown(Gap.NOT_IN_PLAN, "the benchmark does not say which kind of gpu_utilization it measured")
    family = GPU_UTILIZATION_KINDS[kind]
    others = [name for name, other in GPU_UTILIZATION_KINDS.items() if name != kind and _is_observed(of.binned, other)]
    if _is_observed(of.binned, family):
        return case.unknown(Gap.SCRAPE_FAILED, "GPUs were seen for less than half of the time")
    text = f"no utilisation of the benchmark's kind, {kind}"
    return case.unknown(
        worst_gap(of.binned, family), f"{text}; {', '.join(others)} cannot be compared" if others else text
    )


def _is_observed(binned: Iterable[BinnedWindow], family: str) -> bool:
    return any(family in s.window.gauges or family in s.window.counters for s in binned)


def _observe_hits(of: BenchmarkComparison, one: LoadBin) -> BinMean:
    """Return hits by queried tokens, weighted by requests. Without lookups the cache is off and there are no hits.

    More hits than lookups, and more lookups than prompt tokens, are a contradiction and have no weight.
    """
    queried, hits, requests = sum_counters_beside(one.binned, *LOOKUPS, "requests_finished")
    if hits > queried or sees_repeated_lookups(one.binned):
        return BinMean(value=0.0, weight=0.0, full_weight=requests)
    if queried > 0:
        return BinMean(value=hits / queried, weight=requests, full_weight=requests)
    remark = "no prompt was looked up in the prefix cache: is prefix caching on?"
    return BinMean(value=0.0, weight=requests, full_weight=requests, weak=True, remark=remark)


def _expect_hits(of: BenchmarkComparison, bin: int, one: LoadBin) -> Expectation | None:
    """Return the expectation of the curve, else that of the planned workload."""
    found = of.curve.expectation(bin, "prefix_hit_ratio", one.rps, one.in_system)
    planned = _read_planned_hits(of.case)
    if found is not None or planned is None:
        return found
    return Expectation(lower=planned, interpolated=planned, upper=planned, requests=PROMISED)


def _read_planned_hits(case: RuleContext) -> float | None:
    workload = case.context.plan.workload if case.context.plan else None
    return workload.prefix_hit_ratio if workload else None


def _explain_missing_hits(of: BenchmarkComparison) -> Unknown:
    if not _is_observed(of.binned, "prefix_queried_tokens"):
        gap = worst_gap(of.binned, "prefix_queried_tokens")
        text = "the engine shows no prefix cache lookups"
        return of.case.unknown(gap, MORE_HITS if gap is Gap.CONTRADICTORY else text)
    queried, hits = sum_counters_beside(of.binned, *LOOKUPS)
    if hits > queried:
        return of.case.unknown(Gap.CONTRADICTORY, MORE_HITS)
    if sees_repeated_lookups(of.binned):
        return of.case.unknown(Gap.CONTRADICTORY, REPEATED_LOOKUPS)
    if all(_expect_hits(of, bin, one) is None for bin, one in hold(of.binned).by_load_bin(of.curve).items()):
        return of.case.unknown(Gap.NOT_IN_PLAN, "the benchmark has no prefix_hit_ratio at this load")
    return of.case.unknown(Gap.NO_TRAFFIC, "no requests finished")


MEANS = {
    "gpu_utilization": MeanComparison(
        words="GPU utilisation",
        observe=_observe_gpus,
        expect=_expect_gpus,
        promised=lambda case: None,
        counted_in_requests=False,
        missing=_explain_missing_gpus,
    ),
    "prefix_hit_ratio": MeanComparison(
        words="Prefix cache hit rate",
        observe=_observe_hits,
        expect=_expect_hits,
        promised=_read_planned_hits,
        counted_in_requests=True,
        missing=_explain_missing_hits,
    ),
}
