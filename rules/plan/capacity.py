"""Capacity: completed requests per second that one replica carries within its SLO (DESIGN 1, capacity)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rules.confidence import Certainty
from rules.plan.curve import Curve, OperatingPoint, operating_point
from rules.plan.schema import TierPlan
from rules.plan.validation import bound_mean
from rules.telemetry.work import SAME, UNTOLD, Capacity, CapacityLengths, CapacitySource, MeanTokens, weigh

MOST_FALL, MOST_RISE = 0.30, 0.10
"""By how much of its value capacity may fall and rise from one day to the next. Ours: a fall of 30 % asks for 43 % more replicas
(1 / 0.7), a rise of 10 % lets 9 % go (1 - 1 / 1.1). Too small a fleet misses its SLO, too large a one costs money."""

EVALUATIONS = 8
"""Daily estimates behind one capacity: that of the last midnight, and those of the seven before."""

EVIDENCE_DAYS = 7
"""Days of production that each estimate rests on: every weekday once."""


def planned_capacity(plan: TierPlan) -> Capacity | None:
    """Return the capacity of the plan, not yet confirmed by production, None if neither curve nor plan gives
    one.

    A benchmark that broke the SLO is an upper bound: production may carry less.
    """
    point = operating_point(plan)
    if point is None:
        return None
    source, who = CapacitySource.BENCHMARK, "the benchmark's"
    given = point.given
    if given is not None:
        source, who = CapacitySource.OPERATOR, "the plan's operating point,"
        if given.source == "production":
            source, who = CapacitySource.PRODUCTION, "the plan's operating point, measured by production,"
    highest = point.usable_rps if point.knee_reached else None
    return Capacity(
        rps=point.usable_rps,
        low=(given and given.low) or 0.0,
        high=(given and given.high) or highest,
        source=source,
        certainty=Certainty.LIKELY,
        reason=f"{who} {point.usable_rps:.3g} rps a replica; production says nothing of it yet",
        planned_rps=point.usable_rps,
        lengths=capacity_lengths(plan, Curve.from_plan(plan), point),
    )


def planned_work(plan: TierPlan, lengths: CapacityLengths) -> float:
    """Return the work of a planned request in requests of `lengths` (DESIGN 3.12): 1 within SAME, or if unknown."""
    prompts, outputs = (plan.value_at(f"workload.{name}.mean") for name in ("prompt_tokens", "generation_tokens"))
    hits = plan.value_at("workload.prefix_hit_ratio")
    work = weigh(1.0, prompts, outputs, None if hits is None else 1 - hits, lengths, n=1.0).total.value or 1.0
    return 1.0 if 1 / (1 + SAME) <= work <= 1 + SAME else work


POOL_TOKENS = {"prefill": "prompt_tokens", "decode": "generation_tokens"}
"""Tokens that a replica of each pool makes, and that its capacity counts (guide 6.5), by pool."""


def pool_capacity(plan: TierPlan, pool: str, mean_tokens: float | None = None) -> Capacity | None:
    """Return the capacity of one replica of a pool: its tokens a second by `mean_tokens` of a request.

    The mean is that of production, or the workload's by default, None if the plan lacks rate or mean.
    """
    family, lengths = POOL_TOKENS[pool], capacity_lengths(plan, None, None)
    mean = _exactly(mean_tokens) or getattr(lengths, family)
    if plan.disaggregation is None or mean is None or not mean.is_exact:
        return None
    rate = getattr(plan.disaggregation, f"{pool}_tokens_per_second")
    rps, word = rate / mean.low, family.partition("_")[0]
    reason = f"{rate:,.6g} {word} tokens a second of one {pool} replica, {mean.low:,.4g} a request"
    alone = CapacityLengths(prompt_tokens=mean, generation_tokens=mean, only=family)
    return replace(
        stated_capacity(rps, reason, alone), low=0.0, source=CapacitySource.BENCHMARK, certainty=Certainty.LIKELY
    )


def damp_capacity(daily: Sequence[Capacity | None]) -> Capacity | None:
    """Return the capacity to use from daily estimates, newest last, None if the newest day has no estimate.

    It starts at the oldest estimate and follows each day's by at most MOST_FALL and MOST_RISE of its value.
    """
    newest = daily[-1] if daily else None
    if newest is None:
        return None
    known = [capacity.rps for capacity in daily if capacity is not None]
    used = known[0]
    for rps in known[1:]:
        used = min(max(rps, used * (1 - MOST_FALL)), used * (1 + MOST_RISE))
    if abs(used - newest.rps) <= 1e-9 * newest.rps:
        return newest
    limit = f"falls at most {MOST_FALL:.0%}" if used > newest.rps else f"rises at most {MOST_RISE:.0%}"
    return replace(
        newest,
        rps=used,
        low=min(newest.low, used),
        high=None if newest.high is None else max(newest.high, used),
        certainty=Certainty.LIKELY,
        reason=f"{newest.reason}; {newest.rps:.3g} is today's estimate, and capacity {limit} a day",
    )


def stated_capacity(rps: float, reason: str, lengths: CapacityLengths = UNTOLD) -> Capacity:
    """Return a capacity that somebody states as exact. Raises ValueError unless it is a finite number above 0."""
    if not 0 < rps < float("inf"):
        raise ValueError(f"a replica that carries {rps} requests per second cannot be counted in")
    return Capacity(
        rps=rps,
        low=rps,
        high=rps,
        source=CapacitySource.OPERATOR,
        certainty=Certainty.CERTAIN,
        reason=reason,
        planned_rps=rps,
        lengths=lengths,
    )


def capacity_lengths(plan: TierPlan, curve: Curve | None, point: OperatingPoint | None) -> CapacityLengths:
    """Return the request lengths of an operating point: the curve's, else the workload's.

    A point from production counts requests of the workload's lengths, because one report wrote both.
    """
    is_of_production = plan.value_at("operating_point.source") == "production"

    def measured(metric: str) -> float | None:
        return curve.value_at(metric, point) if curve and point and not is_of_production else None

    hits = measured("prefix_hit_ratio")
    return CapacityLengths(
        prompt_tokens=_exactly(measured("prompt_tokens_mean")) or _planned(plan, "prompt_tokens"),
        generation_tokens=_exactly(measured("generation_tokens_mean")) or _planned(plan, "generation_tokens"),
        prefix_hit_ratio=plan.value_at("workload.prefix_hit_ratio") if hits is None else hits,
    )


def benchmarked_mean(plan: TierPlan | None, curve: Curve | None, key: str) -> float | None:
    """Return the mean tokens a request of the benchmark at the operating point, None if its files do not tell.

    `key` is prompt_tokens or generation_tokens.
    """
    point = operating_point(plan) if plan is not None else None
    return curve.value_at(f"{key}_mean", point) if curve is not None and point is not None else None


def _exactly(mean: float | None) -> MeanTokens | None:
    return None if mean is None else MeanTokens(low=mean, high=mean)


def _planned(plan: TierPlan, key: str) -> MeanTokens | None:
    """Return the workload's mean, or the bounds that its quantiles and the guardrail allow."""
    lengths = plan.value_at(f"workload.{key}")
    bounds = bound_mean(lengths, plan.value_at(f"guardrails.max_{key}"))
    if lengths is None or lengths.mean is not None or bounds is None:
        return _exactly(lengths.mean) if lengths else None
    return MeanTokens(low=bounds[0], high=bounds[1])
