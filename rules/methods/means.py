"""Means: GPU utilisation and prefix hits more than so many points below the benchmark at equal load (guide 9.1, step 13).

Owns what stands for each of them in a load bin, how much weight it has, and when a shortfall is certain. A new mean is a
row of MEANS and a row of the catalogue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rules.confidence import Certainty, binomial_lower_bound
from rules.plan.curve import Expectation
from rules.plan.load_bins import BinnedWindow, LoadBin, group_by_load_bin
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
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict

ENOUGH_SEEN = 0.5
"""Below this share of GPU-seconds seen nothing is said: what is missing may be the busy half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinMean:
    """A mean in a load bin: `weight` in the sum over bins (0: not seen), `full_weight` had everything been seen.

    `weak` says that it can be no more than likely, `remark` what a person should know of it.
    """

    value: float
    weight: float
    full_weight: float
    weak: bool = False
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinnedMean:
    """The weighted sum over bins: observed, expected with its ends, and what it rests on."""

    observed: float
    expected: float
    lower: float
    upper: float
    weight: float
    seen_share: float
    weak: bool
    remark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanComparison:
    """One row: the words of its sentence, how it is seen and expected, what the plan promises without a measurement, and
    whether chance can make the shortfall.
    """

    words: str
    observe: Callable[[BenchmarkComparison, LoadBin], BinMean]
    expect: Callable[[BenchmarkComparison, int, LoadBin], Expectation | None]
    promised: Callable[[RuleContext], float | None]
    counted_in_requests: bool
    missing: Callable[[BenchmarkComparison], Unknown]


def judge_mean(case: RuleContext) -> RuleResult:
    """A mean below the benchmark's at equal load by more than the allowed points."""
    kind = MEANS[case.rule.metric]
    found = select_comparable(case, promised=kind.promised(case))
    if isinstance(found, Unknown):
        return found
    mean = compute_mean(found, found.slices)
    if mean is None or mean.seen_share < ENOUGH_SEEN:
        return kind.missing(found)
    needed = case.limit("minimum_requests") if kind.counted_in_requests else 0.0
    if mean.weight < needed:
        return case.too_few_requests(mean.weight, needed)
    points = case.limit("points")
    if mean.observed >= mean.expected - points:
        return _verdict(found, mean, Status.OK, Certainty.CERTAIN)
    last = compute_mean(found, found.last_quarter())
    if last is None or last.weight < needed / 4:
        return case.unknown(Gap.NO_TRAFFIC, f"no {kind.words} in the last quarter of the time")
    each = [compute_mean(found, group) for group in case.periods(found.slices)]
    early = too_early(case, found.slices, last, each, lambda part: part.observed < part.expected - points)
    if early is not None:
        return early
    if not is_persistent(last, each, lambda part: part.observed < part.expected - points):
        return _verdict(found, mean, Status.OK, Certainty.CERTAIN)
    certain = _surely(found, mean, points) and is_persistent(
        last, each, lambda part: part.observed < part.lower - points
    )
    return _verdict(found, mean, Status.WARNING, Certainty.CERTAIN if certain else Certainty.LIKELY)


def compute_mean(of: BenchmarkComparison, slices: Iterable[BinnedWindow]) -> BinnedMean | None:
    """Bin by bin against that bin's expectation, summed by weight; None where no bin has both."""
    kind = MEANS[of.case.rule.metric]
    weight = full = observed = expected = lower = upper = supported = 0.0
    weak, remark = False, ""
    for bin, one in group_by_load_bin(slices, of.curve).items():
        wanted = kind.expect(of, bin, one)
        if wanted is None:
            continue
        seen = kind.observe(of, one)
        full += seen.full_weight
        if seen.weight <= 0:
            continue
        low, middle, high = expectation_bounds(wanted)
        weight, observed = weight + seen.weight, observed + seen.weight * seen.value
        expected, lower, upper = (
            expected + seen.weight * middle,
            lower + seen.weight * low,
            upper + seen.weight * high,
        )
        supported += seen.weight if supports_certain(of.case, wanted) else 0.0
        weak, remark = weak or seen.weak, remark or seen.remark
    if weight <= 0:
        return None
    return BinnedMean(
        observed=observed / weight,
        expected=expected / weight,
        lower=lower / weight,
        upper=upper / weight,
        weight=weight,
        seen_share=weight / full,
        weak=weak or supported < weight / 2,
        remark=remark,
    )


def _surely(of: BenchmarkComparison, mean: BinnedMean, points: float) -> bool:
    """Against the lower end of the bin, by sums over time, seen nearly throughout, and no chance of few requests."""
    if mean.weak or mean.seen_share < FULL_COVERAGE:
        return False
    if not MEANS[of.case.rule.metric].counted_in_requests:
        return mean.observed < mean.lower - points
    # A request's share of hits lies between 0 and 1: nothing so bounded scatters more than a coin of the same mean.
    missed = binomial_lower_bound((1 - mean.observed) * mean.weight, mean.weight)
    return missed > 1 - (mean.lower - points)


def _verdict(of: BenchmarkComparison, mean: BinnedMean, status: Status, certainty: Certainty) -> Verdict:
    case, points = of.case, of.case.limit("points")
    observed = Reading(value=mean.observed, low=mean.observed, high=mean.observed, n=mean.weight)
    expected = Reading(value=mean.expected, low=mean.lower, high=mean.upper, n=mean.weight)
    below = (mean.expected - mean.observed) * 100
    gap = f"{below:.0f} points below" if below >= 0.5 else "not below"
    sentence = (
        f"{MEANS[case.rule.metric].words} {mean.observed:.0%} where the plan has {mean.expected:.0%} at this load: {gap} "
        f"({points * 100:.0f} points are allowed){mean.remark if status is not Status.OK else ''}"
    )
    return case.verdict(status, certainty, observed, expected, sentence)


def _gpu_seen(of: BenchmarkComparison, one: LoadBin) -> BinMean:
    """Utilisation of the benchmark's own kind, over the GPU-seconds in which it was seen."""
    (value, seconds), polled = _gpu_busy(of.curve.gpu_utilization_kind, one)
    full = max(one.seconds * (of.case.view.basis.gpus_per_replica or 1.0), seconds)
    return BinMean(value=value / seconds if seconds > 0 else 0.0, weight=seconds, full_weight=full, weak=polled)


def _gpu_busy(kind: str | None, one: LoadBin) -> tuple[tuple[float, float], bool]:
    """Busy GPU-seconds and seen GPU-seconds, and whether they come from a plain poll."""
    if kind is None:
        return (0.0, 0.0), False
    family = GPU_UTILIZATION_KINDS[kind]
    if family != "gpu_busy_seconds":
        return one.gauge(family), one.sampled(family)
    covered = one.counter("gpu_busy_covered_seconds")
    if covered > 0:
        return (one.counter(family), covered), one.sampled(family)
    return one.gauge("gpu_utilization_sampled"), True


def _gpu_wanted(of: BenchmarkComparison, bin: int, one: LoadBin) -> Expectation | None:
    """From the curve; below its first point from zero, for an idle GPU does nothing: there nothing is certain."""
    found = of.curve.expectation(bin, "gpu_utilization", one.rps, one.in_system)
    if found is None or bin > 0:
        return found
    share = min(1.0, one.rps / of.curve.points[0].completed_rps)
    return Expectation(lower=0.0, interpolated=found.upper * share, upper=found.upper, requests=found.requests)


def _gpu_missing(of: BenchmarkComparison) -> Unknown:
    case, kind = of.case, of.curve.gpu_utilization_kind
    if kind is None:
        return case.unknown(Gap.NOT_IN_PLAN, "the benchmark does not say which kind of gpu_utilization it measured")
    family = GPU_UTILIZATION_KINDS[kind]
    others = [name for name, other in GPU_UTILIZATION_KINDS.items() if name != kind and _there(of.slices, other)]
    if _there(of.slices, family):
        return case.unknown(Gap.SCRAPE_FAILED, "GPUs were seen for less than half of the time")
    text = f"no utilisation of the benchmark's kind, {kind}"
    return case.unknown(
        worst_gap(of.slices, family), f"{text}; {', '.join(others)} cannot be compared" if others else text
    )


def _there(slices: Iterable[BinnedWindow], family: str) -> bool:
    return any(family in s.window.gauges or family in s.window.counters for s in slices)


def _hits_seen(of: BenchmarkComparison, one: LoadBin) -> BinMean:
    """Hits by queried tokens, weighted by requests. Requests without any lookup have no hits: the cache is off. More hits than
    lookups say nothing."""
    requests, queried, hits = _lookups(one.slices)
    if hits > queried:
        return BinMean(value=0.0, weight=0.0, full_weight=requests)
    if queried > 0:
        return BinMean(value=hits / queried, weight=requests, full_weight=requests)
    remark = "; no prompt was looked up at all: is prefix caching on?"
    return BinMean(value=0.0, weight=requests, full_weight=requests, weak=True, remark=remark)


def _lookups(slices: Iterable[BinnedWindow]) -> tuple[float, float, float]:
    """Finished requests, tokens looked up and tokens found, where lookups are counted."""
    known = [s.window.counters for s in slices if "prefix_queried_tokens" in s.window.counters]
    requests, queried, hits = (
        math.fsum(counters.get(family, 0.0) for counters in known)
        for family in ("requests_finished", "prefix_queried_tokens", "prefix_hit_tokens")
    )
    return requests, queried, hits


MORE_HITS = "more tokens are counted as found in the prefix cache than as looked up: the engine's counters contradict each other"


def _hits_wanted(of: BenchmarkComparison, bin: int, one: LoadBin) -> Expectation | None:
    """From the curve; where it has none, from the planned workload, which is a promise and no measurement."""
    found = of.curve.expectation(bin, "prefix_hit_ratio", one.rps, one.in_system)
    planned = _hits_promised(of.case)
    if found is not None or planned is None:
        return found
    return Expectation(lower=planned, interpolated=planned, upper=planned, requests=PROMISED)


PROMISED = 10**9
"""Requests behind what a plan promises: it is no estimate."""


def _hits_promised(case: RuleContext) -> float | None:
    workload = case.view.plan.workload if case.view.plan else None
    return workload.prefix_hit_ratio if workload else None


def _hits_missing(of: BenchmarkComparison) -> Unknown:
    if not _there(of.slices, "prefix_queried_tokens"):
        gap = worst_gap(of.slices, "prefix_queried_tokens")
        text = "the engine shows no prefix cache lookups"
        return of.case.unknown(gap, MORE_HITS if gap is Gap.CONTRADICTORY else text)
    _, queried, hits = _lookups(of.slices)
    if hits > queried:
        return of.case.unknown(Gap.CONTRADICTORY, MORE_HITS)
    if all(_hits_wanted(of, bin, one) is None for bin, one in group_by_load_bin(of.slices, of.curve).items()):
        return of.case.unknown(Gap.NOT_IN_PLAN, "the benchmark has no prefix_hit_ratio at this load")
    return of.case.unknown(Gap.NO_TRAFFIC, "no requests finished")


MEANS = {
    "gpu_utilization": MeanComparison(
        words="GPU utilisation",
        observe=_gpu_seen,
        expect=_gpu_wanted,
        promised=lambda case: None,
        counted_in_requests=False,
        missing=_gpu_missing,
    ),
    "prefix_hit_ratio": MeanComparison(
        words="Prefix cache hit rate",
        observe=_hits_seen,
        expect=_hits_wanted,
        promised=_hits_promised,
        counted_in_requests=True,
        missing=_hits_missing,
    ),
}
