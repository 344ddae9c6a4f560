"""Latency tails: the share of requests slower than the benchmark at equal load (DESIGN 3.3, 3.4).

The share is evaluated, not an estimate of P99. Its bounds are the edges of the buckets around the limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rules.confidence import CONFIDENCE, Certainty
from rules.methods.evidence import certain_if, explain_not_lasting, is_significant_share, quantile, sum_parts
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
    is_persistent,
    select_comparable,
    supports_certain,
    too_early,
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

    @property
    def share(self) -> float:
        return self.slow / self.n

    @property
    def sure_share(self) -> float:
        return self.sure_best / self.sure_n if self.sure_n > 0 else 0.0


def judge_tail(case: RuleContext) -> RuleResult:
    """Find more requests slower than 1.3 x the benchmark at equal load than the 1 % that a P99 allows."""
    if case.rule.family == "itl_seconds" and not case.context.itl_comparable:
        return case.unknown(Gap.NOT_EXPOSED, "benchmark and engine do not mean the same by ITL")
    found = select_comparable(case, (case.rule.family,))
    if isinstance(found, Unknown):
        return found
    tail = compute_tail(found, found.binned)
    if tail is None:
        return _explain_no_tail(found)
    if tail.requests < case.limit("minimum_requests"):
        return case.too_few_requests(tail.requests, case.limit("minimum_requests"))
    allowed = case.limit("allowed_share")
    if not is_significant_share(tail.slow, tail.n, tail.requests, allowed, LIKELY_CONFIDENCE):
        # Certain if not even the whole bucket around the limit would be too many.
        sure = certain_if(tail.most_slow <= allowed * tail.n or tail.share > allowed)
        return _build_verdict(found, tail, Status.OK, sure, "this may be chance" if tail.share > allowed else "")
    last = compute_tail(found, found.last_quarter())
    each = [compute_tail(found, group) for group in case.periods(found.binned)]
    early = found.end_unknown(last.requests if last is not None else 0.0) or too_early(
        case, found.binned, last, each, lambda part: part.share > allowed
    )
    if early is not None:
        return early
    if not is_persistent(last, each, lambda part: part.share > allowed):
        reason = explain_not_lasting(case, is_over=last is not None and last.share <= allowed)
        return _build_verdict(found, tail, Status.OK, Certainty.CERTAIN, reason)
    # Well-measured bins alone decide, and only if they hold most of the traffic (DESIGN 3.3).
    is_proven = (
        tail.sure_n >= tail.n / 2
        and is_significant_share(tail.surely, tail.sure_n, tail.sure_requests, allowed, CONFIDENCE)
        and is_persistent(last, each, lambda part: part.sure_share > allowed)
    )
    return _build_verdict(found, tail, Status.WARNING, certain_if(is_proven))


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
    for bin, one in held.by_load_bin(curve).items():
        expected = curve.expectation(bin, metric, one.rps, one.in_system)
        parts = one.parts(family)
        if expected is None or not parts:
            continue
        over = histograms.share_above(parts, expected.interpolated * factor)
        independent = over.n if per_request else min(over.n, one.counter("requests_finished"))
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
    if all(curve.expectation(bin, metric, one.rps, one.in_system) is None for bin, one in bins.items()):
        return of.case.unknown(Gap.NOT_IN_PLAN, f"the benchmark has no {metric} at this load")
    return of.case.unknown(Gap.NO_TRAFFIC, "no requests at a load that the benchmark measured")


def _build_verdict(
    of: BenchmarkComparison, tail: Tail, status: Status, certainty: Certainty, remark: str = ""
) -> Verdict:
    case = of.case
    observed = quantile(sum_parts(of.binned, case.rule.family), 0.99) or Missing(gap=Gap.NO_TRAFFIC)
    lower, middle, upper = (total / tail.n for total in tail.weighted)
    expected = Reading(value=middle, low=lower, high=upper, n=float(tail.fewest))
    word = case.rule.signal.partition("_")[0].upper()
    counted = "requests" if case.rule.per_request else "output events"
    is_certain = status is not Status.OK and certainty is Certainty.CERTAIN
    share, n = (tail.sure_share, tail.sure_n) if is_certain else (tail.share, tail.n)
    allowed = f"{case.limit('allowed_share') * 100:g}% is allowed"
    claim = f"{number(share, 'ratio')} of {counted} exceed {case.limit('factor'):g} x the benchmark's {word} P99"
    p99 = f"P99 {quantity(observed, 'seconds')}, benchmark {quantity(expected, 'seconds')} at equal load"
    bounds = (
        f"at least {number(tail.surely / tail.sure_n, 'ratio')} exceed {case.limit('factor'):g} x the upper end"
        if is_certain
        else f"between the edges of the bucket {spread(tail.fewest_slow / tail.n, tail.most_slow / tail.n, 'ratio')}"
    )
    sentence = f"{claim}; {(remark or allowed) if status is Status.OK else p99}"
    details = (f"{n:,.0f} {counted}, {bounds}", allowed, p99)
    return case.verdict(status, certainty, observed, expected, sentence, details=details)
