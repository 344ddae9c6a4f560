"""Tiers of one model: an equal share of requests on unequal hardware (guide 9.5).

The finding belongs to the slower tier that gets more than its share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rules.confidence import Certainty
from rules.methods.evidence import certain_if, exact_reading, join_names
from rules.plan.curve import operating_point
from rules.plan.load_bins import TierContext
from rules.telemetry import histograms, windows
from rules.telemetry.reading_methods import replica_rate
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import Window
from rules.verdicts.context import SEPARATE, RuleContext, TierWindows
from rules.verdicts.held_windows import HeldWindows, hold
from rules.verdicts.verdict import RuleResult, Status

FINISHED = "requests_finished"
LENGTHS = ("prompt_tokens_per_request", "generation_tokens_per_request")
LATENCIES = {"tpot_seconds": "output tokens", "ttft_seconds": "first tokens"}
"""Latencies that show the speed of a tier. The time per token comes first, because waiting does not change it."""

COMPARED = frozenset({FINISHED, *LENGTHS, *LATENCIES})

Minutes = Mapping[float, Window]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPair:
    """Tier and a tier that is `faster` times as fast, over their common minutes, newest last.

    `words` describe the measure. `planned`: the plan is the measure.
    """

    slow: str
    fast: str
    own: tuple[Window, ...]
    other: tuple[Window, ...]
    sums: Sums
    faster: float
    words: str
    planned: bool

    def has_equal_shares(self, follow: float) -> bool:
        """Return whether requests are nearer to an equal share than to the capacities, in each minute and in all."""
        minutes = [(_rate(own), _rate(other)) for own, other in zip(self.own, self.other, strict=True)]
        return all(self._is_equal_share(*rates, follow) for rates in (*minutes, self.rates))

    def _is_equal_share(self, own: float, other: float, follow: float) -> bool:
        if own <= 0 or other <= 0:
            return False
        followed = math.log(other / own) / math.log(self.faster)
        # Without a plan, a tier that gets far more requests may be slow because of them.
        return followed < follow and (self.planned or followed > -follow)

    @property
    def rates(self) -> tuple[float, float]:
        """Return the finished requests per second and replica of the slower and of the faster tier."""
        own, other = self.sums
        return _rate(own), _rate(other)


def judge_tiers(case: RuleContext) -> RuleResult:
    """Find a faster tier of the same model that gets hardly more requests per replica than this one.

    From finished requests and lengths of the last minutes, and the plans' usable rates, else mean latencies. Certain if both
    benchmarks reached the knee, or if the median here is slower by the edges of its bucket.
    """
    model = case.context.plan.model if case.context.plan else None
    if model is None:
        return case.unknown(Gap.NOT_IN_PLAN, "the plan does not say which model this tier serves")
    others = {
        n: t
        for n, t in case.fleet.items()
        if n != case.context.tier and t.context.plan and t.context.plan.model == model
    }
    if not others:
        sentence = f"No other tier of {model} is watched"
        return case.verdict(Status.OK, Certainty.CERTAIN, exact_reading(1.0, 0), exact_reading(1.0, 0), sentence)
    mine = hold(case.binned).once(_sum_minutes)
    if not any(FINISHED in window.counters for window in mine.values()):
        return case.unmeasured(FINISHED)
    pairs = [pair for name, tier in sorted(others.items()) if (pair := _compare(case, mine, name, tier)) is not None]
    if not pairs:
        names = join_names(sorted(others))
        text = f"no {SEPARATE} minutes with traffic on both, or no speeds to compare; others of the model: {names}"
        return case.unknown(Gap.TOO_FEW_REQUESTS, text)
    unequal, follow = case.limit("unequal"), case.limit("follow")
    equal = [pair for pair in pairs if pair.faster >= unequal and pair.has_equal_shares(follow)]
    routed = [pair for pair in equal if _is_routed_by_length(pair, case.limit("lengths"))]
    if len(equal) > len(routed):
        worst = max((pair for pair in equal if pair not in routed), key=lambda pair: pair.faster)
        own, other = worst.rates
        sentence = f"Each replica of {worst.slow} gets {own:.3g} rps, of {worst.fast} {other:.3g} rps; {worst.words}"
        proven = _have_knees(case.context, others[worst.fast].context) or _is_slower(worst.sums, unequal)
        return case.verdict(Status.WARNING, certain_if(proven), *_read_shares(worst), sentence)
    pair = routed[0] if routed else max(pairs, key=lambda pair: pair.faster)
    own, other = pair.rates
    if routed:
        sentence = f"Requests are given to {pair.fast} and {pair.slow} by their lengths"
    elif pair.faster < unequal:
        sentence = f"No tier of {model} is much faster than {pair.slow}; {pair.words} ({pair.fast})"
    else:
        sentence = f"Each replica of {pair.slow} gets {own:.3g} rps, of {pair.fast} {other:.3g} rps; {pair.words}"
    return case.verdict(Status.OK, Certainty.CERTAIN, *_read_shares(pair), sentence)


def _compare(case: RuleContext, mine: Minutes, name: str, tier: TierWindows) -> TierPair | None:
    theirs = tier.binned.once(_sum_minutes)
    both = sorted(m for m in mine.keys() & theirs.keys() if _rate(mine[m]) > 0 or _rate(theirs[m]) > 0)[-SEPARATE:]
    if len(both) < SEPARATE:
        return None
    own, other = tuple(mine[m] for m in both), tuple(theirs[m] for m in both)
    sums = windows.sum_windows(own), windows.sum_windows(other)
    if min(total.counters.get(FINISHED, 0.0) for total in sums) < case.limit("minimum_requests"):
        return None
    planned, measured = _compare_plans(case.context, tier.context), _compare_latencies(sums)
    if planned is None and measured is None:
        return None
    faster, words = planned or measured or (1.0, "")
    return TierPair(
        slow=case.context.tier,
        fast=name,
        own=own,
        other=other,
        sums=sums,
        faster=faster,
        words=words,
        planned=planned is not None,
    )


def _compare_plans(own: TierContext, other: TierContext) -> tuple[float, str] | None:
    mine, theirs = (context.capacity.planned_rps if context.capacity else None for context in (own, other))
    if not mine or not theirs:
        return None
    return theirs / mine, f"usable are {mine:.3g} and {theirs:.3g} by the plan"


def _have_knees(own: TierContext, other: TierContext) -> bool:
    """Return whether both benchmarks reached the knee."""
    points = [operating_point(context.plan) if context.plan else None for context in (own, other)]
    return all(point is not None and point.knee_reached for point in points)


Sums = tuple[Window, Window]
"""Sums of the slower tier's minutes and of the faster one's."""


def _compare_latencies(sums: Sums) -> tuple[float, str] | None:
    for family, what in LATENCIES.items():
        mine, theirs = (histograms.mean(total.histograms.get(family, ())) for total in sums)
        if mine and theirs:
            return mine / theirs, f"{what} take {mine:.3g} and {theirs:.3g} s on average"
    return None


def _is_slower(sums: Sums, unequal: float) -> bool:
    """Return whether the median here is slower by the factor `unequal`, by the edges of its bucket."""
    for family in LATENCIES:
        mine, theirs = (histograms.quantile(total.histograms.get(family, ()), 0.5) for total in sums)
        if mine is not None and theirs is not None and theirs.high is not None and mine.low >= unequal * theirs.high:
            return True
    return False


def _is_routed_by_length(pair: TierPair, most: float) -> bool:
    """Return whether the tiers get requests of different lengths, as the guide recommends."""
    for family in LENGTHS:
        mine, theirs = (histograms.mean(total.histograms.get(family, ())) for total in pair.sums)
        if mine and theirs and not 1 / most <= mine / theirs <= most:
            return True
    return False


def _read_shares(pair: TierPair) -> tuple[Reading, Reading]:
    """Return the slower tier's share of the requests of a replica of each, and its share of the capacity."""
    own, other = pair.rates
    n = sum(total.counters.get(FINISHED, 0.0) for total in pair.sums)
    share, due = own / (own + other) if own + other > 0 else 0.0, 1 / (1 + pair.faster)
    return exact_reading(share, n), exact_reading(due, n)


def _sum_minutes(held: HeldWindows) -> dict[float, Window]:
    """Return the sum of each minute in which the tier was seen, by its number."""
    minutes = held.periods(windows.MINUTE_SECONDS).items()
    seen = {number: group.select(_select_seen) for number, group in minutes}
    return {number: group.sum_families(COMPARED) for number, group in seen.items() if group}


def _select_seen(batch: HeldWindows) -> HeldWindows:
    seen = HeldWindows(one for one in batch if one.window.covered_seconds > 0)
    return batch if len(seen) == len(batch) else seen


def _rate(window: Window) -> float:
    return replica_rate(window, FINISHED) or 0.0
