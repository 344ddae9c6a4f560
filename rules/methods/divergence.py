"""Divergence: production against the benchmark at equal load (guide 9.1, steps 7 and 13; DESIGN 3.3, 3.4).

A divergence is summed over load bins: shares of slow requests (tails), means below the benchmark, time in the system
(`drift`). Each kind says what exceeds its limit; when that is a finding is judged here. The share of a tail is
evaluated, not an estimate of P99: its bounds are the edges of the buckets around the limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from rules.confidence import CONFIDENCE, Certainty, binomial_lower_bound
from rules.methods.evidence import (
    REPEATED_LOOKUPS,
    exact_reading,
    explain_not_lasting,
    is_significant_share,
    narrow_pool,
    sees_repeated_lookups,
    sum_counters_beside,
)
from rules.plan.curve import Curve, Expectation
from rules.plan.load_bins import BinnedWindow, LoadBin
from rules.telemetry import histograms
from rules.telemetry.gpu_windows import GPU_UTILIZATION_KINDS
from rules.telemetry.histograms import Share
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.wording import number, quantity, spread
from rules.verdicts.context import (
    LIKELY_CONFIDENCE,
    BenchmarkComparison,
    RuleContext,
    is_persistent,
    read_plan_value,
    select_comparable,
    too_early,
    worst_gap,
)
from rules.verdicts.held_windows import HeldWindows, hold
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict


class Divergence(NamedTuple):
    """Number of production beside the benchmark's, over load bins, by independent `requests`.

    `exceeds`: the best estimate is beyond what is allowed; `is_significant`: chance is unlikely, too. `surely_exceeds`: it is
    beyond that at the end of each bin that favours production. `is_proven`: well-measured bins alone show it, beyond
    chance, and hold most of the traffic. `report` makes the verdict, with a reason why it is ok.
    """

    requests: float
    exceeds: bool
    is_significant: bool
    surely_exceeds: bool
    is_proven: bool
    report: Callable[[Status, Certainty, str], RuleResult]


def judge_divergence(
    of: BenchmarkComparison,
    measure: Callable[[BenchmarkComparison, Iterable[BinnedWindow]], Divergence | None],
    explain_missing: Callable[[BenchmarkComparison], Unknown],
) -> RuleResult:
    """Return a warning for a divergence over the hold, in its last quarter and in separate minutes, else ok.

    Certain if it is proven over the hold, and against the favourable ends of the bins in all of these times.
    """
    context = of.context
    needed = context.limit("minimum_requests") if "minimum_requests" in context.rule.thresholds else 0.0
    whole = measure(of, of.binned)
    if whole is None:
        return explain_missing(of)
    if whole.requests < needed:
        return context.too_few_requests(whole.requests, needed)
    if not whole.is_significant:
        return whole.report(Status.OK, Certainty.CERTAIN, CHANCE if whole.exceeds else "")
    last, *each = (measure(of, part) for part in (context.last_quarter(of.binned), *context.periods(of.binned)))
    ended = of.end_unknown(0.0 if last is None else last.requests) if needed else None
    if last is None and not needed:
        ended = context.unknown(Gap.NO_TRAFFIC, "nothing to compare was seen in the last quarter of the time")
    early = ended or too_early(context, of.binned, last, each, lambda part: part.exceeds)
    if early is not None:
        return early
    if not is_persistent(last, each, lambda part: part.exceeds):
        lately = HeldWindows.of_batches(context.periods(context.binned)[-2:]).by_replica
        absent = lately.keys() - context.last_quarter(of.binned).by_replica.keys()
        rest = measure(of, HeldWindows(sample for sample in of.binned if sample.replica in absent))
        if rest is not None and rest.exceeds:
            return context.unknown(Gap.OUTSIDE_BENCHMARK, "a replica beyond it is not comparable at the end")
        reason = explain_not_lasting(context, is_over=last is not None and not last.exceeds)
        return whole.report(Status.OK, Certainty.CERTAIN, reason)
    certain = whole.is_proven and is_persistent(last, each, lambda part: part.surely_exceeds)
    return whole.report(Status.WARNING, Certainty.of(certain), "")


class Tail(NamedTuple):
    """Slow observations, summed over load bins.

    `whole`: above factor x the interpolated point. `sure`: above factor x the upper point, in bins whose points rest on
    enough requests. `requests` and `sure_requests` are independent requests: output events of one request, or of one slow
    step, are not. `expected` is weighted by observations, its n are the thinnest point's requests; `slower` surely exceed it.
    """

    whole: Share
    sure: Share
    requests: float
    sure_requests: float
    expected: Reading
    slower: float


def judge_tail(context: RuleContext) -> RuleResult:
    """Find more requests slower than 1.3 x the benchmark at equal load than the 1 % that a P99 allows."""
    if context.rule.family == "itl_seconds" and not context.tier.itl_comparable:
        return context.unknown(Gap.NOT_EXPOSED, "benchmark and engine do not mean the same by ITL")
    of = select_comparable(context, (context.rule.family,))
    return of if isinstance(of, Unknown) else judge_divergence(of, _measure_tail, _explain_no_tail)


def _measure_tail(of: BenchmarkComparison, binned: Iterable[BinnedWindow]) -> Divergence | None:
    tail, allowed = compute_tail(of, binned), of.context.limit("allowed_share")
    if tail is None:
        return None
    whole, sure = tail.whole, tail.sure
    most = allowed * (1.0 if max(whole.low, tail.slower / GUESSED) > allowed * whole.n else GUESSED)
    is_significant = is_significant_share(whole.best, whole.n, tail.requests, most, LIKELY_CONFIDENCE)
    is_sure = is_significant_share(sure.low, sure.n, tail.sure_requests, allowed, CONFIDENCE)
    exceeds, surely_exceeds = whole.best > allowed * whole.n, sure.best > allowed * sure.n
    report = partial(_report_tail, of, tail)
    return Divergence(tail.requests, exceeds, is_significant, surely_exceeds, is_sure and sure.n >= whole.n / 2, report)


def compute_tail(of: BenchmarkComparison, binned: Iterable[BinnedWindow]) -> Tail | None:
    """Return the slow requests, summed over load bins (DESIGN 3.4), or None."""
    rule, context, held = of.context.rule, of.context, hold(binned)
    # One batch has the same windows as its hold, and keeps the result for later evaluations.
    kept_by = held.batches[0] if len(held.batches) == 1 else held
    limits = context.limit("factor"), context.limit("supported_requests")
    return kept_by.once(_sum_tail, of.curve, rule.signal, rule.family, rule.per_request, *limits)


def _sum_tail(
    held: HeldWindows, curve: Curve, metric: str, family: str, per_request: bool, factor: float, supported: float
) -> Tail | None:
    rows: list[tuple[Expectation, Share, float]] = []
    surely: list[tuple[Share, float]] = []
    slower = 0.0
    for bin, load in held.by_load_bin(curve).items():
        expected = curve.expectation(bin, metric, load.rps, load.in_system)
        parts = load.parts(family)
        if expected is None or not parts:
            continue
        over = histograms.share_above(parts, expected.value * factor)
        slower += histograms.share_above(parts, expected.value).low
        independent = over.n if per_request else min(over.n, load.counter("requests_finished"))
        rows.append((expected, over, independent))
        if expected.requests >= supported:
            surely.append((histograms.share_above(parts, expected.high * factor), independent))
    whole, sure = _add_shares([over for _, over, _ in rows]), _add_shares([share for share, _ in surely])
    if whole.n <= 0:
        return None
    bounds = ([over.n / whole.n * end for end in expected[:3]] for expected, over, _ in rows)
    low, value, high = map(math.fsum, zip(*bounds, strict=True))
    expected_p99 = Reading(value=value, low=low, high=high, n=float(min(expected.requests for expected, *_ in rows)))
    requests, sure_requests = (math.fsum(row[-1] for row in group) for group in (rows, surely))
    return Tail(whole, sure, requests, sure_requests, expected_p99, slower)


def _add_shares(known: Sequence[Share]) -> Share:
    return Share(**{name: math.fsum(getattr(share, name) for share in known) for name in ("low", "best", "high", "n")})


def _explain_no_tail(of: BenchmarkComparison) -> Unknown:
    curve, metric = of.curve, of.context.rule.signal
    bins = hold(of.binned).by_load_bin(curve)
    if all(curve.expectation(bin, metric, load.rps, load.in_system) is None for bin, load in bins.items()):
        return of.context.unknown(Gap.NOT_IN_PLAN, f"the benchmark has no {metric} at this load")
    return of.context.unknown(Gap.NO_TRAFFIC, "no requests at a load that the benchmark measured")


def _report_tail(of: BenchmarkComparison, tail: Tail, status: Status, certainty: Certainty, reason: str) -> RuleResult:
    context, allowed, whole = of.context, of.context.limit("allowed_share"), tail.whole
    if status is Status.OK and whole.low <= allowed * whole.n:
        certainty = Certainty.of(whole.high <= allowed * whole.n)
    observed = histograms.quantile(hold(of.binned).sum_parts(context.rule.family), 0.99) or Missing(gap=Gap.NO_TRAFFIC)
    word, factor = context.rule.signal.partition("_")[0].upper(), f"{context.limit('factor'):g} x"
    counted = "requests" if context.rule.per_request else "output events"
    share, n = whole.best / whole.n, whole.n
    bounds = f"between the edges of the bucket {spread(whole.low / n, whole.high / n, 'ratio')}"
    if status is not Status.OK and certainty is Certainty.CERTAIN:
        share, n = tail.sure.best / tail.sure.n, tail.sure.n
        bounds = f"at least {number(tail.sure.low / n, 'ratio')} exceed {factor} the upper end"
    p99 = f"P99 {quantity(observed, 'seconds')}, benchmark {quantity(tail.expected, 'seconds')} at equal load"
    if reason == CHANCE and is_significant_share(whole.best, whole.n, tail.requests, allowed, LIKELY_CONFIDENCE):
        return context.unknown(Gap.NOT_EXPOSED, f"the engine's buckets are too wide to tell: {p99}")
    healthy = f"{allowed * 100:g}% is allowed"
    end = (reason or healthy) if status is Status.OK else p99
    sentence = f"{number(share, 'ratio')} of {counted} exceed {factor} the benchmark's {word} P99; {end}"
    details = (f"{n:,.0f} {counted}, {bounds}", healthy, p99, of.curve.written.remark)
    return context.verdict(status, certainty, observed, tail.expected, sentence, details=details)


CHANCE = "this may be chance"
GUESSED = 3.0
"""Factor of the allowed share where buckets above the benchmark's P99 hold less: guesses below were up to 2.4 times it."""

ENOUGH_SEEN = 0.5
"""Minimum observed share of GPU-seconds. The unobserved half may be the busy one."""

LOOKUPS = ("prefix_queried_tokens", "prefix_hit_tokens")

MORE_HITS = "the engine counts more prefix cache hits than lookups: its counters contradict each other"


class BinMean(NamedTuple):
    """Mean in a load bin, with its weight and that of a full observation. A weak one is no proof."""

    value: float
    weight: float
    full_weight: float
    expected: Expectation
    is_weak: bool


def judge_mean(context: RuleContext) -> RuleResult:
    """Find a mean below the benchmark at equal load, by its row of MEANS."""
    promised = None
    if context.rule.signal == "prefix_hit_ratio":
        promised = read_plan_value(context.tier, "workload.prefix_hit_ratio")
        context = narrow_pool(context, "prefill")
    of = select_comparable(context, promised=promised)
    return of if isinstance(of, Unknown) else judge_divergence(of, _measure_mean, MEANS[context.rule.signal][2])


def _measure_mean(of: BenchmarkComparison, binned: Iterable[BinnedWindow]) -> Divergence | None:
    """Return the weighted mean over bins and their expectation, None if too little was seen."""
    context, (words, observe, _) = of.context, MEANS[of.context.rule.signal]
    loads = hold(binned).by_load_bin(of.curve).items()
    means = [mean for bin, load in loads if (mean := observe(of, bin, load)) is not None]
    seen = [mean for mean in means if mean.weight > 0]
    weight, full = map(math.fsum, ((m.weight for m in seen), (m.full_weight for m in means)))
    if weight <= 0 or weight < ENOUGH_SEEN * full:
        return None
    observed = math.fsum(mean.weight * mean.value for mean in seen) / weight
    bounds = [[mean.weight * end for end in mean.expected[:3]] for mean in seen]
    lower, expected, upper = (math.fsum(column) / weight for column in zip(*bounds, strict=True))
    supported = context.limit("supported_requests")
    well = math.fsum(mean.weight for mean in seen if mean.expected.requests >= supported and not mean.is_weak)
    points = context.limit("points")
    is_seen = not any(mean.is_weak for mean in seen) and well >= weight / 2 and weight >= FULL_COVERAGE * full
    beyond = observed < lower - points
    if context.rule.signal == "prefix_hit_ratio":
        # A share of hits scatters no more than a coin of the same mean.
        beyond = binomial_lower_bound((1 - observed) * weight, weight) > 1 - (lower - points)

    def report(status: Status, certainty: Certainty, reason: str) -> Verdict:
        below = (expected - observed) * 100
        gap = f"{below:.0f} points below the plan" if below >= 0.5 else "not below the plan"
        sentence = f"{words} is {gap}; {observed:.1%} where {expected:.1%} is planned at this load"
        is_off = status is not Status.OK and not observed and any(mean.is_weak for mean in seen)
        if is_off and context.rule.signal == "prefix_hit_ratio":
            reason = "no prompt was looked up in the prefix cache: is prefix caching on?"
        planned = Reading(value=expected, low=lower, high=upper, n=weight)
        details = (f"{points * 100:.0f} points below are allowed", reason, of.curve.written.remark)
        return context.verdict(status, certainty, exact_reading(observed, weight), planned, sentence, details=details)

    exceeds = observed < expected - points
    return Divergence(weight, exceeds, exceeds, observed < lower - points, is_seen and beyond, report)


def _observe_gpus(of: BenchmarkComparison, bin: int, load: LoadBin) -> BinMean | None:
    """Return the utilisation of the benchmark's kind, not certain below the first point."""
    point = of.curve.expectation(bin, "gpu_utilization", load.rps, load.in_system)
    if point is None:
        return None
    if bin == 0:
        point = point._replace(low=0.0, value=point.high * min(1.0, load.rps / of.curve.points[0].completed_rps))
    kind = of.curve.written.gpu_utilization_kind
    family = GPU_UTILIZATION_KINDS[kind] if kind is not None else ""
    busy, seconds, polled = load.gauge(family)
    if family == "gpu_busy_seconds":
        busy, seconds = load.counter(family), load.counter("gpu_busy_covered_seconds")
        if seconds <= 0:
            busy, seconds, polled = *load.gauge("gpu_utilization_sampled")[:2], True
    covered = math.fsum(binned.window.covered_seconds for binned in load.binned)
    full = max(covered * (of.context.tier.basis.gpus_per_replica or 1.0), seconds)
    return BinMean(busy / seconds if seconds > 0 else 0.0, seconds, full, point, is_weak=polled)


def _explain_missing_gpus(of: BenchmarkComparison) -> Unknown:
    context, kind = of.context, of.curve.written.gpu_utilization_kind
    if kind is None:
        return context.unknown(Gap.NOT_IN_PLAN, "the benchmark does not say which kind of gpu_utilization it measured")
    family = GPU_UTILIZATION_KINDS[kind]
    if _is_observed(of.binned, family):
        return context.unknown(Gap.SCRAPE_FAILED, "GPUs were seen for less than half of the time")
    return context.unknown(worst_gap(of.binned, family), f"no utilisation of the benchmark's kind, {kind}")


def _is_observed(binned: Iterable[BinnedWindow], family: str) -> bool:
    return any(family in sample.window.gauges or family in sample.window.counters for sample in binned)


def _observe_hits(of: BenchmarkComparison, bin: int, load: LoadBin) -> BinMean | None:
    """Return hits by queried tokens, weighted by requests, against the curve, else the planned workload. Without lookups
    the cache is off. More hits than lookups, or more lookups than prompt tokens, have no weight."""
    point = of.curve.expectation(bin, "prefix_hit_ratio", load.rps, load.in_system)
    planned = read_plan_value(of.context.tier, "workload.prefix_hit_ratio")
    if point is None and planned is not None:
        # A value of the plan is no estimate: any number of requests is behind it.
        point = Expectation(planned, planned, planned, 10**9)
    if point is None:
        return None
    queried, hits, requests = sum_counters_beside(load.binned, *LOOKUPS, "requests_finished")
    is_wrong = hits > queried or sees_repeated_lookups(load.binned)
    value, weight = hits / queried if queried > 0 else 0.0, 0.0 if is_wrong else requests
    return BinMean(value, weight, requests, point, is_weak=queried <= 0)


def _explain_missing_hits(of: BenchmarkComparison) -> Unknown:
    if not _is_observed(of.binned, "prefix_queried_tokens"):
        gap = worst_gap(of.binned, "prefix_queried_tokens")
        text = MORE_HITS if gap is Gap.CONTRADICTORY else "the engine shows no prefix cache lookups"
        return of.context.unknown(gap, text)
    queried, hits = sum_counters_beside(of.binned, *LOOKUPS)
    if hits > queried or sees_repeated_lookups(of.binned):
        return of.context.unknown(Gap.CONTRADICTORY, MORE_HITS if hits > queried else REPEATED_LOOKUPS)
    if all(_observe_hits(of, bin, load) is None for bin, load in hold(of.binned).by_load_bin(of.curve).items()):
        return of.context.unknown(Gap.NOT_IN_PLAN, "the benchmark has no prefix_hit_ratio at this load")
    return of.context.unknown(Gap.NO_TRAFFIC, "no requests finished")


MEANS: dict[str, tuple[str, Callable[..., BinMean | None], Callable[[BenchmarkComparison], Unknown]]] = {
    "gpu_utilization": ("GPU utilisation", _observe_gpus, _explain_missing_gpus),
    "prefix_hit_ratio": ("Prefix cache hit rate", _observe_hits, _explain_missing_hits),
}
"""Words of each mean by its signal, its observation, and the reason for none."""
