"""Shape of a latency: its P99 against the objective of the plan, and its median (guide 8.1, 9.3).

A slow tail and a slow median need different actions. Bounds are the edges of the buckets.
"""

from __future__ import annotations

from functools import partial

from rules.confidence import CONFIDENCE, Certainty
from rules.light_dataclass import light_dataclass
from rules.methods.evidence import (
    certain_if,
    count_requests,
    explain_not_lasting,
    is_significant_share,
    judge_each_pool,
    quantile_reading,
    range_reading,
    sum_parts,
)
from rules.telemetry import histograms
from rules.telemetry.histograms import Histogram, Quantile, Share
from rules.telemetry.outcomes import OVERDUE
from rules.telemetry.signals import Gap
from rules.telemetry.wording import number, quantity, spread
from rules.verdicts.context import (
    LIKELY_CONFIDENCE,
    RuleContext,
    is_persistent,
    read_plan_value,
    too_early,
)
from rules.verdicts.latency_pattern import LatencyPattern, with_levers
from rules.verdicts.verdict import RuleResult, Status, Unknown

EITHER = "the tail is slow, the median may be"

WORDS: dict[str, dict[LatencyPattern, str]] = {
    "ttft_seconds": {
        LatencyPattern.TAIL: "only the tail is slow: a queue or long prompts hold it up",
        LatencyPattern.EVERYTHING: "the median is slow too: tier undersized, or workload changed",
        LatencyPattern.EITHER: EITHER,
    },
    "tpot_seconds": {
        LatencyPattern.TAIL: "only the tail is slow: prefill interrupts decoding",
        LatencyPattern.EVERYTHING: "the median is slow too: decode batch too large, or GPUs too weak",
        LatencyPattern.EITHER: EITHER,
    },
}


@light_dataclass(frozen=True, slots=True, kw_only=True)
class LatencyShape:
    """Median and P99 of a latency over the window of a rule."""

    parts: tuple[Histogram, ...]
    p50: Quantile
    p99: Quantile


@partial(judge_each_pool, by_rate=False)
def judge_shape(case: RuleContext) -> RuleResult:
    """Find more requests above the objective than a P99 allows. Tell a slow tail from a slow median."""
    promised = read_plan_value(case.context, case.rule.needs)
    if not isinstance(promised, float | int):
        return case.unknown(Gap.NOT_IN_PLAN, f"the plan has no {case.rule.needs}")
    shape = _read_shape(case)
    if isinstance(shape, Unknown):
        return shape
    certainty = _find_slow_requests(case, float(promised), float(promised))
    if isinstance(certainty, Unknown):
        return certainty
    share = histograms.share_above(shape.parts, float(promised))
    allowed = case.limit("allowed_share") * share.n
    word = case.rule.family.partition("_")[0].upper()
    waiting = _count_overdue(case)
    missed = number((share.best + waiting) / (share.n + waiting), "ratio")
    claim = f"{missed} of requests miss the {number(promised, 'seconds')} {word} objective"
    details = (
        _describe(shape),
        f"misses between the edges of the bucket: {spread(share.low / share.n, share.high / share.n, 'ratio')}",
        f"{case.limit('allowed_share'):.0%} may miss the objective",
    )
    observed, expected = quantile_reading(shape.p99), range_reading(0.0, float(promised), shape.p50.n)
    if certainty is None:
        reason = _explain_ok(case, shape, float(promised)) or f"up to {case.limit('allowed_share'):.0%} is healthy"
        is_sure = share.high <= allowed or share.best > allowed
        if waiting >= 1:
            reason = f"{waiting:,.0f} of them still wait for a first token"
            is_sure &= waiting <= case.limit("allowed_share") * (share.n + waiting)
        return case.verdict(Status.OK, certain_if(is_sure), observed, expected, f"{claim}; {reason}", details=details)
    pattern = _classify(share, case.limit("median_share") * share.n)
    status = Status.CRITICAL if pattern is LatencyPattern.EVERYTHING else Status.WARNING
    sentence = f"{claim}; {WORDS[case.rule.family][pattern]}"
    return with_levers(case.verdict(status, certainty, observed, expected, sentence, details=details), pattern)


def _count_overdue(case: RuleContext) -> float:
    """Return the mean number of requests that wait longer than the TTFT objective, in the last quarter of the window."""
    last = case.last_quarter(case.binned)
    if case.rule.family != "ttft_seconds" or not last:
        return 0.0
    total = last.sum_families((OVERDUE,))
    found = total.gauges.get(OVERDUE)
    return found.integral / total.span if found is not None and total.span > 0 else 0.0


def _read_shape(case: RuleContext) -> LatencyShape | Unknown:
    family, needed = case.rule.family, case.limit("minimum_requests")
    if not case.binned:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    if not any(family in one.window.histograms for one in case.binned):
        return case.unmeasured(family)
    parts = sum_parts(case.binned, family)
    n = count_requests(parts)
    if 0 < n < needed:
        return case.too_few_requests(n, needed)
    p50, p99 = histograms.quantile(parts, 0.5), histograms.quantile(parts, 0.99)
    if p50 is None or p99 is None:
        return case.unknown(Gap.NO_TRAFFIC, "no requests in this time")
    return LatencyShape(parts=parts, p50=p50, p99=p99)


def _find_slow_requests(case: RuleContext, likely: float, sure: float) -> Certainty | Unknown | None:
    """Return the certainty that more requests than allowed are slower than these limits (seconds) and that it lasts.

    Return None if it is not so.
    """
    allowed, needed, family = case.limit("allowed_share"), case.limit("minimum_requests") / 4, case.rule.family
    parts = sum_parts(case.binned, family)
    whole = histograms.share_above(parts, likely)
    if not is_significant_share(whole.best, whole.n, whole.n, allowed, LIKELY_CONFIDENCE):
        return None
    last = histograms.share_above(sum_parts(case.last_quarter(case.binned), family), likely)
    if last.n < needed:
        return case.too_few_requests(last.n, needed, " in the last quarter of the time")
    each = [histograms.share_above(sum_parts(group, family), likely) for group in case.periods(case.binned)]

    def exceeds(share: Share) -> bool:
        return share.best > allowed * share.n

    if not is_persistent(last, each, exceeds):
        return too_early(case, case.binned, last, each, exceeds)
    surely = histograms.share_above(parts, sure)
    return certain_if(is_significant_share(surely.low, surely.n, surely.n, allowed, CONFIDENCE))


def _classify(share: Share, median: float) -> LatencyPattern:
    """Return whether more requests than `median` are slow, by the edges of their bucket."""
    if share.high <= median:
        return LatencyPattern.TAIL
    return LatencyPattern.EVERYTHING if share.low > median else LatencyPattern.EITHER


def _describe(shape: LatencyShape) -> str:
    p99, p50 = (quantity(quantile_reading(found), "seconds") for found in (shape.p99, shape.p50))
    return f"P99 {p99}, P50 {p50}, {shape.p50.n:,.0f} requests"


def _explain_ok(case: RuleContext, shape: LatencyShape, limit: float) -> str:
    """Return why more slow requests (above `limit` seconds) than allowed are no finding; "" if there are no more."""
    allowed, slow = case.limit("allowed_share"), histograms.share_above(shape.parts, limit)
    if slow.best <= allowed * slow.n:
        return ""
    if not is_significant_share(slow.best, slow.n, slow.n, allowed, LIKELY_CONFIDENCE):
        return "this may be chance"
    last = histograms.share_above(sum_parts(case.last_quarter(case.binned), case.rule.family), limit)
    return explain_not_lasting(case, is_over=last.best <= allowed * last.n)
