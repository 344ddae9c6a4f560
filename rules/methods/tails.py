"""Latency tails: the share of requests slower than the benchmark at equal load (DESIGN 3.3, 3.4).

The share is evaluated, not an estimate of P99. Its bounds are the edges of the buckets around the limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from rules.confidence import CONFIDENCE, Certainty
from rules.methods.divergence import Divergence, judge_divergence
from rules.methods.evidence import certain_if, is_significant_share, quantile, sum_parts
from rules.plan.curve import Curve
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import histograms
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.wording import number, quantity, spread
from rules.verdicts.context import (
    LIKELY_CONFIDENCE,
    BenchmarkComparison,
    RuleContext,
    expectation_bounds,
    select_comparable,
    supports_certain,
)
from rules.verdicts.held_windows import HeldWindows, hold
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict


@dataclass(slots=True, kw_only=True)
class Tail:
    """Slow observations of `n`, summed over load bins: best estimate, and bounds by the edges of the bucket.

    Slow is above factor x the interpolated point. `surely` of `sure_n` are certainly above factor x the upper point, in
    bins whose points rest on enough requests; `sure_best` is the best estimate of that. `requests` and `sure_requests`
    are independent requests: output events of one request, or of one slow step, are not independent. `expected` are
    lower end, best value and upper end, weighted by observations. `fewest` are the requests of the thinnest point.
    """

    n: float = 0.0
    requests: float = 0.0
    slow: float = 0.0
    fewest_slow: float = 0.0
    most_slow: float = 0.0
    sure_n: float = 0.0
    sure_requests: float = 0.0
    surely: float = 0.0
    sure_best: float = 0.0
    weighted: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    fewest: int = 10**9


def judge_tail(case: RuleContext) -> RuleResult:
    """Find more requests slower than 1.3 x the benchmark at equal load than the 1 % that a P99 allows.

    From the histograms of a latency. Certain by the buckets above the upper end of each load bin. Ok is likely if the whole
    bucket around the limit would be too many.
    """
    if case.rule.family == "itl_seconds" and not case.context.itl_comparable:
        return case.unknown(Gap.NOT_EXPOSED, "benchmark and engine do not mean the same by ITL")
    of = select_comparable(case, (case.rule.family,))
    return of if isinstance(of, Unknown) else judge_divergence(of, _measure, _explain_no_tail)


def _measure(of: BenchmarkComparison, binned: Iterable[BinnedWindow]) -> Divergence | None:
    tail, allowed = compute_tail(of, binned), of.case.limit("allowed_share")
    if tail is None:
        return None
    beyond = is_significant_share(tail.surely, tail.sure_n, tail.sure_requests, allowed, CONFIDENCE)
    return Divergence(
        requests=tail.requests,
        exceeds=tail.slow / tail.n > allowed,
        is_significant=is_significant_share(tail.slow, tail.n, tail.requests, allowed, LIKELY_CONFIDENCE),
        surely_exceeds=tail.sure_best > allowed * tail.sure_n,
        is_proven=tail.sure_n >= tail.n / 2 and beyond,
        report=partial(_report, of, tail),
    )


def compute_tail(of: BenchmarkComparison, binned: Iterable[BinnedWindow]) -> Tail | None:
    """Return the slow requests, summed over load bins (DESIGN 3.4). Return None if no bin has requests to compare."""
    rule, case, held = of.case.rule, of.case, hold(binned)
    # One batch has the same windows as its hold, and keeps the result for later evaluations.
    kept_by = held.batches[0] if len(held.batches) == 1 else held
    limits = case.limit("factor"), case.limit("supported_requests")
    return kept_by.once(_sum_tail, of.curve, rule.signal, rule.family, rule.per_request, *limits)


def _sum_tail(
    held: HeldWindows, curve: Curve, metric: str, family: str, per_request: bool, factor: float, supported: float
) -> Tail | None:
    tail = Tail()
    for bin, load in held.by_load_bin(curve).items():
        expected = curve.expectation(bin, metric, load.rps, load.in_system)
        parts = load.parts(family)
        if expected is None or not parts:
            continue
        over = histograms.share_above(parts, expected.interpolated * factor)
        independent = over.n if per_request else min(over.n, load.counter("requests_finished"))
        tail.n += over.n
        tail.requests += independent
        tail.slow += over.best
        tail.fewest_slow += over.low
        tail.most_slow += over.high
        if supports_certain(expected, supported):
            sure = histograms.share_above(parts, expected.upper * factor)
            tail.sure_n += sure.n
            tail.sure_requests += independent
            tail.surely += sure.low
            tail.sure_best += sure.best
        bounds = expectation_bounds(expected)
        tail.weighted = [total + over.n * bound for total, bound in zip(tail.weighted, bounds, strict=True)]
        tail.fewest = min(tail.fewest, expected.requests)
    return tail if tail.n > 0 else None


def _explain_no_tail(of: BenchmarkComparison) -> Unknown:
    curve, metric = of.curve, of.case.rule.signal
    bins = hold(of.binned).by_load_bin(curve)
    if all(curve.expectation(bin, metric, load.rps, load.in_system) is None for bin, load in bins.items()):
        return of.case.unknown(Gap.NOT_IN_PLAN, f"the benchmark has no {metric} at this load")
    return of.case.unknown(Gap.NO_TRAFFIC, "no requests at a load that the benchmark measured")


def _report(of: BenchmarkComparison, tail: Tail, status: Status, certainty: Certainty, reason: str) -> Verdict:
    case, allowed = of.case, of.case.limit("allowed_share")
    if status is Status.OK and tail.slow / tail.n <= allowed:
        certainty = certain_if(tail.most_slow <= allowed * tail.n)
    observed = quantile(sum_parts(of.binned, case.rule.family), 0.99) or Missing(gap=Gap.NO_TRAFFIC)
    lower, middle, upper = (total / tail.n for total in tail.weighted)
    expected = Reading(value=middle, low=lower, high=upper, n=float(tail.fewest))
    word, factor = case.rule.signal.partition("_")[0].upper(), f"{case.limit('factor'):g} x"
    counted = "requests" if case.rule.per_request else "output events"
    share, n = tail.slow / tail.n, tail.n
    edges = spread(tail.fewest_slow / tail.n, tail.most_slow / tail.n, "ratio")
    bounds = f"between the edges of the bucket {edges}"
    if status is not Status.OK and certainty is Certainty.CERTAIN:
        share, n = tail.sure_best / tail.sure_n, tail.sure_n
        bounds = f"at least {number(tail.surely / n, 'ratio')} exceed {factor} the upper end"
    p99 = f"P99 {quantity(observed, 'seconds')}, benchmark {quantity(expected, 'seconds')} at equal load"
    healthy = f"{allowed * 100:g}% is allowed"
    end = (reason or healthy) if status is Status.OK else p99
    sentence = f"{number(share, 'ratio')} of {counted} exceed {factor} the benchmark's {word} P99; {end}"
    details = (f"{n:,.0f} {counted}, {bounds}", healthy, p99)
    return case.verdict(status, certainty, observed, expected, sentence, details=details)
