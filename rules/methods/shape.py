"""Shapes: whether only the tail of a latency is slow or everything, for they have different levers (guide 8.1, 9.3).

Owns the two questions about a shape: the tail against what was promised, and the tail against the median. Both ask how
many requests are slower than a limit, so bounds are the buckets' edges. Levers and thresholds stand in the catalogue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rules.confidence import CONFIDENCE, Certainty
from rules.methods.offered_load import is_it_the_load
from rules.methods.tails import is_significant_share
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import histograms
from rules.telemetry.histograms import Histogram, Quantile, Share
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.wording import guess, number, quantity
from rules.verdicts.context import (
    LIKELY_CONFIDENCE,
    SEPARATE,
    RuleContext,
    is_persistent,
    read_plan_value,
    too_early,
    worst_gap,
)
from rules.verdicts.latency_pattern import LatencyPattern, with_levers
from rules.verdicts.verdict import RuleResult, Status, Unknown

WORDS: dict[str, dict[LatencyPattern, str]] = {
    "ttft_seconds": {
        LatencyPattern.TAIL: "only the tail is slow: a queue, or long prompts before others, hold up some of them",
        LatencyPattern.EVERYTHING: "everything is slow: the tier is undersized, or its workload is not the benchmark's any more",
        LatencyPattern.EITHER: "the tail is slow, and perhaps everything: the bucket around the median leaves it open",
    },
    "tpot_seconds": {
        LatencyPattern.TAIL: "only the tail is slow: prefill of other requests comes between their tokens",
        LatencyPattern.EVERYTHING: "everything is slow: too many requests decode at once, or the GPUs are too weak for decoding",
        LatencyPattern.EITHER: "the tail is slow, and perhaps everything: the bucket around the median leaves it open",
    },
}

KNEE_WORDS: dict[LatencyPattern, str] = {
    LatencyPattern.KNEE: "past the knee: more load than a replica can take",
    LatencyPattern.TAIL: "a tail above {ratio:g} x P50, not the load",
    LatencyPattern.EITHER: "P99 is above {ratio:g} x P50, past the knee or a tail of its own",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyShape:
    """The latency of a case: all its requests, with their median and P99."""

    parts: tuple[Histogram, ...]
    p50: Quantile
    p99: Quantile

    @property
    def n(self) -> float:
        return self.p50.n


def judge_shape(case: RuleContext) -> RuleResult:
    """Against the median where the rule has a `ratio`, else against what the plan promises."""
    return judge_knee(case) if "ratio" in case.rule.thresholds else judge_promise(case)


def judge_promise(case: RuleContext) -> RuleResult:
    """More requests than a P99 allows are slower than promised: is it the tail only, or everything?"""
    promised = read_plan_value(case.view, case.rule.needs)
    if not isinstance(promised, float | int):
        return case.unknown(Gap.NOT_IN_PLAN, f"the plan has no {case.rule.needs}")
    seen = _seen(case)
    if isinstance(seen, Unknown):
        return seen
    certainty = _slower(case, float(promised), float(promised))
    if isinstance(certainty, Unknown):
        return certainty
    share = histograms.share_above(seen.parts, float(promised))
    sentence = f"{_both(case, seen)}, {number(promised, 'seconds')} is promised for the first: {_count(case, share)}"
    expected = Reading(value=None, low=0.0, high=float(promised), n=seen.n)
    if certainty is None:
        told = f"{sentence}{_excused(case, float(promised))}"
        within = (
            share.high <= case.limit("allowed_share") * share.n or share.best > case.limit("allowed_share") * share.n
        )
        sure = Certainty.CERTAIN if within else Certainty.LIKELY
        return case.verdict(Status.OK, sure, _reading(seen.p99), expected, told)
    shape = _shape(share, case.limit("median_share"))
    status = Status.CRITICAL if shape is LatencyPattern.EVERYTHING else Status.WARNING
    sentence = f"{sentence}; {WORDS[case.rule.family][shape]}"
    return with_levers(case.verdict(status, certainty, _reading(seen.p99), expected, sentence), shape)


def judge_knee(case: RuleContext) -> RuleResult:
    """P99 has left P50 behind: past the knee where the load is above what a replica can take, else a tail of its own.

    Well past the knee the median follows and the two are close again: there it is past it by the load and the promise.
    """
    seen = _seen(case)
    if isinstance(seen, Unknown):
        return seen
    ratio, median = case.limit("ratio"), seen.p50
    if median.high is None:
        return case.unknown(Gap.NOT_EXPOSED, f"half of the requests took more than {number(median.low, 'seconds')}")
    certainty = _slower(case, ratio * (median.value or median.high), ratio * median.high)
    load, shape = is_it_the_load(case)
    promised = case.view.basis.ttft_slo_seconds
    if certainty is None and shape is LatencyPattern.KNEE and promised is not None:
        certainty = _slower(case, promised, promised)
    if isinstance(certainty, Unknown):
        return certainty
    sentence = f"{_both(case, seen)}; {load}"
    observed, expected = _times(seen), Reading(value=None, low=1.0, high=ratio, n=seen.n)
    if certainty is None:
        excuse = _excused(case, ratio * (median.value or median.high))
        text = f"{sentence}: P99 within {ratio:g} x P50 is healthy{excuse}"
        return case.verdict(Status.OK, Certainty.CERTAIN, observed, expected, text)
    told = f"{sentence}: {KNEE_WORDS[shape].format(ratio=ratio)}"
    return with_levers(case.verdict(Status.WARNING, certainty, observed, expected, told), shape)


def _seen(case: RuleContext) -> LatencyShape | Unknown:
    family, needed = case.rule.family, case.limit("minimum_requests")
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    if not any(family in one.window.histograms for one in case.slices):
        return case.unknown(worst_gap(case.slices, family), f"{family} is not there")
    parts = _parts(case, case.slices)
    n = math.fsum(part.n for part in parts)
    if 0 < n < needed:
        return case.too_few_requests(n, needed)
    p50, p99 = histograms.quantile(parts, 0.5), histograms.quantile(parts, 0.99)
    if p50 is None or p99 is None:
        return case.unknown(Gap.NO_TRAFFIC, "no requests in this time")
    return LatencyShape(parts=parts, p50=p50, p99=p99)


def _parts(case: RuleContext, slices: Sequence[BinnedWindow]) -> tuple[Histogram, ...]:
    return histograms.sum_histograms(part for one in slices for part in one.window.histograms.get(case.rule.family, ()))


def _slower(case: RuleContext, likely: float, sure: float) -> Certainty | Unknown | None:
    """Return whether more requests than allowed are slower than these limits (seconds), lastingly; None where not."""
    allowed, needed = case.limit("allowed_share"), case.limit("minimum_requests") / 4
    whole = histograms.share_above(_parts(case, case.slices), likely)
    if not is_significant_share(whole.best, whole.n, whole.n, allowed, LIKELY_CONFIDENCE):
        return None
    last = histograms.share_above(_parts(case, case.last_quarter(case.slices)), likely)
    if last.n < needed:
        return case.too_few_requests(last.n, needed, " in the last quarter of the time")
    each = [histograms.share_above(_parts(case, group), likely) for group in case.periods(case.slices)]
    if not is_persistent(last, each, lambda part: part.best > allowed * part.n):
        return too_early(case, case.slices, last, each, lambda part: part.best > allowed * part.n)
    surely = histograms.share_above(_parts(case, case.slices), sure)
    proven = is_significant_share(surely.low, surely.n, surely.n, allowed, CONFIDENCE)
    return Certainty.CERTAIN if proven else Certainty.LIKELY


def _shape(share: Share, median: float) -> LatencyPattern:
    if share.high <= median * share.n:
        return LatencyPattern.TAIL
    return LatencyPattern.EVERYTHING if share.low > median * share.n else LatencyPattern.EITHER


def _both(case: RuleContext, seen: LatencyShape) -> str:
    word = case.rule.family.partition("_")[0].upper()
    return (
        f"{word} P99 {quantity(_reading(seen.p99), 'seconds')} and P50 {quantity(_reading(seen.p50), 'seconds')} "
        f"of {seen.n:,.0f} requests"
    )


def _count(case: RuleContext, share: Share) -> str:
    slow = guess(share.low / share.n, share.best / share.n, share.high / share.n, "ratio")
    return f"{slow} are slower, {case.limit('allowed_share'):.0%} may be"


def _excused(case: RuleContext, limit: float) -> str:
    """Why more requests slower than `limit` (seconds) than allowed are no finding; empty where there are no more."""
    allowed, slow = case.limit("allowed_share"), histograms.share_above(_parts(case, case.slices), limit)
    if slow.best <= allowed * slow.n:
        return ""
    if not is_significant_share(slow.best, slow.n, slow.n, allowed, LIKELY_CONFIDENCE):
        return "; that may be chance"
    late = histograms.share_above(_parts(case, case.last_quarter(case.slices)), limit)
    if late.best <= allowed * late.n:
        return "; not any more in the last quarter of the time"
    return f"; in fewer than {SEPARATE} {case.periods_word}"


def _reading(found: Quantile) -> Reading:
    return Reading(value=found.value, low=found.low, high=found.high, n=found.n)


def _times(seen: LatencyShape) -> Reading:
    """P99 as so many times P50, between the bounds of both."""
    value = None if seen.p99.value is None or not seen.p50.value else seen.p99.value / seen.p50.value
    low = seen.p99.low / seen.p50.high if seen.p50.high else None
    high = None if seen.p99.high is None or seen.p50.low <= 0 else seen.p99.high / seen.p50.low
    return Reading(value=value, low=low, high=high, n=seen.n)
