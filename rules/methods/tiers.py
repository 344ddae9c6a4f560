"""Tiers of one model: an equal share of requests on unequal hardware (guide 9.5).

The finding belongs to the slower tier that gets more than its share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from rules.confidence import Certainty
from rules.methods.evidence import certain_if, exact_reading, join_names
from rules.plan.curve import operating_point
from rules.telemetry import histograms, windows
from rules.telemetry.reading_methods import replica_rate
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.context import SEPARATE, RuleContext, TierWindows
from rules.verdicts.held_windows import HeldWindows, hold
from rules.verdicts.verdict import RuleResult, Status

FINISHED = "requests_finished"
LENGTHS = ("prompt_tokens_per_request", "generation_tokens_per_request")
LATENCIES = {"tpot_seconds": "output tokens", "ttft_seconds": "first tokens"}
"""Latencies that show the speed of a tier. The time per token comes first, because waiting does not change it."""

COMPARED = frozenset({FINISHED, *LENGTHS, *LATENCIES})

Sums = tuple[Window, Window]
"""Sum of the slower tier's windows and of the faster one's, over the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPair:
    """Tier beside one that is `faster` times as fast: their common `minutes`, newest last, and the `total` of these.

    `words` describe the measure. `planned`: the plan is the measure.
    """

    fast: str
    minutes: tuple[Sums, ...]
    total: Sums
    faster: float
    words: str
    planned: bool

    def has_equal_shares(self, follow: float) -> bool:
        """Return whether requests are nearer to an equal share than to the capacities, in each minute and in all."""
        for sums in (*self.minutes, self.total):
            own, other = _read_rates(sums)
            if own <= 0 or other <= 0:
                return False
            followed = math.log(other / own) / math.log(self.faster)
            # Without a plan, a tier that gets far more requests may be slow because of them.
            if followed >= follow or not (self.planned or followed > -follow):
                return False
        return True

    def differs(self, families: Iterable[str], most: float) -> bool:
        """Return whether a mean of the tiers differs by more than the factor `most`."""
        for family in families:
            mine, theirs = (histograms.mean(total.histograms.get(family, ())) for total in self.total)
            if mine and theirs and not 1 / most <= mine / theirs <= most:
                return True
        return False

    def is_slower(self, unequal: float) -> bool:
        """Return whether the median here is slower by the factor `unequal`, by the edges of its bucket."""
        for family in LATENCIES:
            mine, theirs = (histograms.quantile(total.histograms.get(family, ()), 0.5) for total in self.total)
            if mine and theirs and theirs.high is not None and mine.low >= unequal * theirs.high:
                return True
        return False


def judge_tiers(case: RuleContext) -> RuleResult:
    """Find a faster tier of the same model that gets hardly more requests per replica than this one.

    From finished requests and lengths of the last minutes, and the plans' usable rates, else mean latencies. Certain if both
    benchmarks reached the knee, or if the median here is slower by the edges of its bucket.
    """
    model = case.context.plan.model if case.context.plan else None
    if model is None:
        return case.unknown(Gap.NOT_IN_PLAN, "the plan does not say which model this tier serves")
    others = {
        name: tier
        for name, tier in case.fleet.items()
        if name != case.context.tier and tier.context.plan and tier.context.plan.model == model
    }
    if not others:
        sentence = f"No other tier of {model} is watched"
        return case.verdict(Status.OK, Certainty.CERTAIN, exact_reading(1.0, 0), exact_reading(1.0, 0), sentence)
    if not any(FINISHED in one.window.counters for one in case.binned):
        return case.unmeasured(FINISHED)
    pairs = [pair for name, tier in sorted(others.items()) if (pair := _compare(case, name, tier)) is not None]
    if not pairs:
        names = join_names(sorted(others))
        text = f"no {SEPARATE} minutes with traffic on both, or no speeds to compare; others of the model: {names}"
        return case.unknown(Gap.TOO_FEW_REQUESTS, text)
    unequal, follow, slow = case.limit("unequal"), case.limit("follow"), case.context.tier
    equal = [pair for pair in pairs if pair.faster >= unequal and pair.has_equal_shares(follow)]
    # The guide recommends to give the tiers requests of different lengths.
    routed = [pair for pair in equal if pair.differs(LENGTHS, case.limit("lengths"))]
    unrouted = [pair for pair in equal if pair not in routed]
    pair = max(unrouted or routed[:1] or pairs, key=lambda pair: pair.faster)
    own, other = _read_rates(pair.total)
    sentence = f"Each replica of {slow} gets {own:.3g} rps, of {pair.fast} {other:.3g} rps; {pair.words}"
    status, certain = Status.OK, True
    if unrouted:
        points = [operating_point(plan) for plan in (case.context.plan, others[pair.fast].context.plan) if plan]
        have_knees = all(point is not None and point.knee_reached for point in points)
        status, certain = Status.WARNING, have_knees or pair.is_slower(unequal)
    elif routed:
        sentence = f"Requests are given to {pair.fast} and {slow} by their lengths"
    elif pair.faster < unequal:
        sentence = f"No tier of {model} is much faster than {slow}; {pair.words} ({pair.fast})"
    n = sum(total.counters.get(FINISHED, 0.0) for total in pair.total)
    share = exact_reading(own / (own + other) if own + other > 0 else 0.0, n)
    return case.verdict(status, certain_if(certain), share, exact_reading(1 / (1 + pair.faster), n), sentence)


def _compare(case: RuleContext, name: str, tier: TierWindows) -> TierPair | None:
    """Return this tier beside another, None without enough common minutes or a measure of their speeds."""
    mine, theirs = hold(case.binned).once(_sum_minutes), tier.binned.once(_sum_minutes)
    common = [(mine[minute], theirs[minute]) for minute in sorted(mine.keys() & theirs.keys())]
    minutes = tuple(sums for sums in common if any(_read_rates(sums)))[-SEPARATE:]
    if len(minutes) < SEPARATE:
        return None
    total = windows.sum_windows(own for own, _ in minutes), windows.sum_windows(other for _, other in minutes)
    if min(both.counters.get(FINISHED, 0.0) for both in total) < case.limit("minimum_requests"):
        return None
    own, other = (
        context.capacity.planned_rps if context.capacity else None for context in (case.context, tier.context)
    )
    planned = f"usable are {own:.3g} and {other:.3g} by the plan" if own and other else ""
    faster, words = (other / own, planned) if own and other else _compare_latencies(total)
    if not words:
        return None
    return TierPair(fast=name, minutes=minutes, total=total, faster=faster, words=words, planned=bool(planned))


def _compare_latencies(total: Sums) -> tuple[float, str]:
    for family, what in LATENCIES.items():
        own, other = (histograms.mean(both.histograms.get(family, ())) for both in total)
        if own and other:
            return own / other, f"{what} take {own:.3g} and {other:.3g} s on average"
    return 1.0, ""


def _read_rates(sums: Sums) -> tuple[float, float]:
    """Return the finished requests per second and replica of the slower and of the faster tier."""
    own, other = (replica_rate(window, FINISHED) or 0.0 for window in sums)
    return own, other


def _sum_minutes(held: HeldWindows) -> dict[float, Window]:
    """Return the sum of each minute in which the tier was seen, by its number."""
    minutes = held.periods(windows.MINUTE_SECONDS).items()
    seen = {number: group.select(_select_seen) for number, group in minutes}
    return {number: group.sum_families(COMPARED) for number, group in seen.items() if group}


def _select_seen(batch: HeldWindows) -> HeldWindows:
    seen = HeldWindows(one for one in batch if one.window.covered_seconds > 0)
    return batch if len(seen) == len(batch) else seen
