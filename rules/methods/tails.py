"""Tails: the share of requests slower than the benchmark allows at equal load (DESIGN 3.3, 3.4).

Owns the statistics of latency divergence and its sentence. The share is judged, not a point estimate of P99: its bounds
are the edges of the buckets around the threshold. Which latency, and every number, comes from the catalogue's row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from rules.confidence import CONFIDENCE, Certainty, binomial_tail
from rules.plan.load_bins import BinnedWindow, LoadBin, group_by_load_bin
from rules.telemetry import histograms
from rules.telemetry.signals import Gap, Missing, Reading, SignalValue
from rules.telemetry.wording import guess, quantity
from rules.verdicts.context import (
    LIKELY_CONFIDENCE,
    SEPARATE,
    BenchmarkComparison,
    RuleContext,
    expectation_bounds,
    is_persistent,
    select_comparable,
    supports_certain,
    too_early,
)
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Of `n` observations `slow` are above 1.3 x the interpolated point, by the best estimate; `fewest_slow` to `most_slow` by
    the edges of the bucket around it.

    Of the `sure_n` in bins whose points have enough requests behind them, `surely` are certainly above 1.3 x the upper
    point, and `sure_best` by the best estimate. `requests` and `sure_requests` are how many independent requests they
    come from: output events of one request, or of one slow step, are not independent.
    """

    n: float
    requests: float
    slow: float
    fewest_slow: float
    most_slow: float
    sure_n: float
    sure_requests: float
    surely: float
    sure_best: float
    expected: tuple[float, float, float]
    fewest: int

    @property
    def share(self) -> float:
        return self.slow / self.n

    @property
    def sure_share(self) -> float:
        return self.sure_best / self.sure_n if self.sure_n > 0 else 0.0


def judge_tail(case: RuleContext) -> RuleResult:
    """More requests slower than 1.3 x the benchmark at equal load than the 1 % that a P99 allows."""
    if case.rule.family == "itl_seconds" and not case.view.itl_comparable:
        return case.unknown(Gap.NOT_EXPOSED, "benchmark and engine do not mean the same by ITL")
    found = select_comparable(case, (case.rule.family,))
    if isinstance(found, Unknown):
        return found
    tail = compute_tail(found, found.slices)
    if tail is None:
        return _why_no_tail(found)
    if tail.requests < case.limit("minimum_requests"):
        return case.too_few_requests(tail.requests, case.limit("minimum_requests"))
    allowed = case.limit("allowed_share")
    if not is_significant_share(tail.slow, tail.n, tail.requests, allowed, LIKELY_CONFIDENCE):
        # Certain where not even the whole bucket around the limit would be too many; else it is the best guess.
        sure = Certainty.CERTAIN if tail.most_slow <= allowed * tail.n or tail.share > allowed else Certainty.LIKELY
        return _verdict(found, tail, Status.OK, sure, ", which may be chance" if tail.share > allowed else "")
    last = compute_tail(found, found.last_quarter())
    silent = found.end_unknown(last.requests if last is not None else 0.0)
    if silent is not None:
        return silent
    each = [compute_tail(found, group) for group in case.periods(found.slices)]
    early = too_early(case, found.slices, last, each, lambda part: part.share > allowed)
    if early is not None:
        return early
    if not is_persistent(last, each, lambda part: part.share > allowed):
        over = last is not None and last.share <= allowed
        why = (
            "not any more in the last quarter of the time" if over else f"in fewer than {SEPARATE} {case.periods_word}"
        )
        return _verdict(found, tail, Status.OK, Certainty.CERTAIN, f", but {why}")
    certain = _surely(tail, allowed) and is_persistent(last, each, lambda part: part.sure_share > allowed)
    return _verdict(found, tail, Status.WARNING, Certainty.CERTAIN if certain else Certainty.LIKELY)


def compute_tail(of: BenchmarkComparison, slices: Iterable[BinnedWindow]) -> Tail | None:
    """Requests slower than allowed, bin by bin, and summed: the request-weighted sum over bins (DESIGN 3.4)."""
    factor, metric = of.case.limit("factor"), of.case.rule.metric
    n = requests = slow = fewest_slow = most_slow = sure_n = sure_requests = surely = sure_best = 0.0
    weighted, fewest = (0.0, 0.0, 0.0), 10**9
    for bin, one in group_by_load_bin(slices, of.curve).items():
        expected = of.curve.expectation(bin, metric, one.rps, one.in_system)
        parts = one.parts(of.case.rule.family)
        if expected is None or not parts:
            continue
        over = histograms.share_above(parts, expected.interpolated * factor)
        independent = _independent(of.case, one, over.n)
        n, requests, slow = n + over.n, requests + independent, slow + over.best
        fewest_slow, most_slow = fewest_slow + over.low, most_slow + over.high
        if supports_certain(of.case, expected):
            sure = histograms.share_above(parts, expected.upper * factor)
            sure_n, sure_requests = sure_n + sure.n, sure_requests + independent
            surely, sure_best = surely + sure.low, sure_best + sure.best
        low, middle, high = expectation_bounds(expected)
        weighted = (weighted[0] + over.n * low, weighted[1] + over.n * middle, weighted[2] + over.n * high)
        fewest = min(fewest, expected.requests)
    if n <= 0:
        return None
    return Tail(
        n=n,
        requests=requests,
        slow=slow,
        fewest_slow=fewest_slow,
        most_slow=most_slow,
        sure_n=sure_n,
        sure_requests=sure_requests,
        surely=surely,
        sure_best=sure_best,
        expected=(weighted[0] / n, weighted[1] / n, weighted[2] / n),
        fewest=fewest,
    )


def _independent(case: RuleContext, one: LoadBin, n: float) -> float:
    return n if case.rule.per_request else min(n, one.counter("requests_finished"))


def is_significant_share(k: float, n: float, requests: float, allowed: float, confidence: float) -> bool:
    """Return whether the lower bound (Clopper and Pearson) of the share k / n exceeds `allowed`, in independent
    requests.

    Asked the short way: whether so many slow ones would be too rare a chance if the share were just what is allowed.
    """
    trials = math.floor(requests + 1e-9)
    slow = math.floor(min(k / n, 1.0) * trials + 1e-9) if n > 0 else 0
    return slow >= 1 and binomial_tail(slow, trials, allowed) < 1 - confidence


def _surely(tail: Tail, allowed: float) -> bool:
    """By the well-measured bins alone, and only if they hold most of the traffic (DESIGN 3.3)."""
    if tail.sure_n < tail.n / 2:
        return False
    return is_significant_share(tail.surely, tail.sure_n, tail.sure_requests, allowed, CONFIDENCE)


def _why_no_tail(of: BenchmarkComparison) -> Unknown:
    curve, metric = of.curve, of.case.rule.metric
    bins = group_by_load_bin(of.slices, curve)
    if all(curve.expectation(bin, metric, one.rps, one.in_system) is None for bin, one in bins.items()):
        return of.case.unknown(Gap.NOT_IN_PLAN, f"the benchmark has no {metric} at this load")
    return of.case.unknown(Gap.NO_TRAFFIC, "no requests at a load that the benchmark measured")


def _verdict(of: BenchmarkComparison, tail: Tail, status: Status, certainty: Certainty, remark: str = "") -> Verdict:
    case = of.case
    parts = histograms.sum_histograms(p for s in of.slices for p in s.window.histograms.get(case.rule.family, ()))
    p99 = histograms.quantile(parts, 0.99)
    observed: SignalValue = Missing(gap=Gap.NO_TRAFFIC)
    if p99 is not None:
        observed = Reading(value=p99.value, low=p99.low, high=p99.high, n=p99.n)
    lower, middle, upper = tail.expected
    expected = Reading(value=middle, low=lower, high=upper, n=float(tail.fewest))
    word = case.rule.metric.partition("_")[0].upper()
    sentence = (
        f"{word} P99 is {quantity(observed, 'seconds')} where the benchmark has {quantity(expected, 'seconds')} "
        f"at this load: {_count(case, tail, status, certainty)}{remark}"
    )
    return case.verdict(status, certainty, observed, expected, sentence)


def _count(case: RuleContext, tail: Tail, status: Status, certainty: Certainty) -> str:
    counted = "requests" if case.rule.per_request else "output events"
    factor, allowed = f"{case.limit('factor'):g}", f"{case.limit('allowed_share') * 100:g}%"
    share = guess(tail.fewest_slow / tail.n, tail.share, tail.most_slow / tail.n, "ratio")
    if status is Status.OK:
        return f"{share} of {tail.n:,.0f} {counted} took more than {factor} x that ({allowed} is allowed)"
    if certainty is Certainty.LIKELY:
        return f"{share} of {tail.n:,.0f} {counted} took more than {factor} x that; {allowed} is allowed"
    return (
        f"{tail.sure_share:.1%} of {tail.sure_n:,.0f} {counted} (at least {tail.surely / tail.sure_n:.1%}) took more than "
        f"{factor} x the upper of these; {allowed} is allowed"
    )
