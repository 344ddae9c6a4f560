"""Capacity measured in production: an estimate from a week's load bins, and the present capacity from two weeks.

Nothing else estimates capacity. `rules.plan.capacity.damp_capacity` joins estimates of successive days.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rules.catalogue.registry import BY_NAME as RULES
from rules.confidence import Certainty
from rules.methods.divergence import compute_tail
from rules.methods.evidence import is_significant_share
from rules.plan.capacity import EVALUATIONS, EVIDENCE_DAYS, damp_capacity, planned_capacity
from rules.plan.curve import CERTAIN_REQUESTS, LIMITED, OperatingPoint
from rules.plan.load_bins import BinnedWindow, TierContext, sum_by_bin
from rules.plan.schema import Point
from rules.resize.overload import FEWEST_REQUESTS, WORK_FAMILIES, is_saturated, lower_to_ceiling, measure_ceiling
from rules.resize.production_summary import BAD, FINE, ProductionPoint, SloStatus, production_points
from rules.telemetry import windows
from rules.telemetry.reading_methods import replica_rate
from rules.telemetry.signals import Reading, SignalValue
from rules.telemetry.windows import DAY_SECONDS, Window
from rules.telemetry.work import (
    SAME,
    UNTOLD,
    Capacity,
    CapacityLengths,
    CapacitySource,
    MeanTokens,
    computed_share,
    work_of,
)
from rules.verdicts.context import LIKELY_CONFIDENCE, BenchmarkComparison, RuleContext, select_comparable

DAYS = EVALUATIONS + EVIDENCE_DAYS - 1
"""Days of history that `capacity_now` reads."""

SLOWER = ("TtftDivergence", "TpotDivergence")
"""The rules whose thresholds say when production is slower than the benchmark at equal load."""

LEAST_UNPROVEN = 0.5
"""Of a capacity at least so much is taken until production shows a load that keeps the SLO and a higher one that breaks it.
Without this floor a tier that is slow at every load, whatever the reason, would be scaled out for ever."""

NEAR = 0.9
"""A benchmark whose usable load production came so near to is confirmed there."""


def capacity_now(context: TierContext, days: Iterable[Iterable[BinnedWindow]]) -> Capacity | None:
    """Return the capacity of one replica from the last DAYS days, oldest first, each as windows by load bin.

    Each of the last EVALUATIONS days has an estimate from the EVIDENCE_DAYS that end with it.
    """
    if not context.serves_whole_requests:
        return planned_capacity(context.plan) if context.plan else None
    sums = [sum_by_bin(day) for day in days]
    firsts = range(max(1, len(sums) - EVIDENCE_DAYS + 1))
    estimates = [_estimate_in_unit(context, evidence_of(sums[first : first + EVIDENCE_DAYS])) for first in firsts]
    unit = estimates[-1][1]
    # Each counts requests of its own week's lengths. What is compared must count requests of one length.
    return damp_capacity([capacity and _scale(capacity, own / unit) for capacity, own in estimates])


def _scale(capacity: Capacity, factor: float) -> Capacity:
    """Return the capacity in requests of 1 / `factor` times the work."""
    high = None if capacity.high is None else capacity.high * factor
    return replace(capacity, rps=capacity.rps * factor, low=capacity.low * factor, high=high)


def evidence_of(days: Sequence[Iterable[BinnedWindow]]) -> tuple[BinnedWindow, ...]:
    """Return the load bins behind the newest estimate of `capacity_now`, from the same days."""
    return sum_by_bin(binned for day in days[-EVIDENCE_DAYS:] for binned in day)


def _estimate_in_unit(context: TierContext, bins: Sequence[BinnedWindow]) -> tuple[Capacity | None, float]:
    """Return the capacity from one sum per load bin, and the work of one of its requests in planned ones.

    The latter is 1 where it is not converted. None if neither production nor plan gives a capacity. If production broke
    the SLO above a load that kept it, the knee is between the two; the plan's value counts if it is too. Otherwise the
    plan counts as far as production reached. If production is slower than the benchmark at equal load, beyond chance, the
    benchmark's curve is scaled first. While a queue grows, completions bound the capacity from above (DESIGN 24).
    A broken SLO below a load that kept it has another cause.
    """
    whole = windows.sum_families((binned.window for binned in bins), WORK_FAMILIES) if bins else None
    present = present_lengths(whole) if whole is not None else UNTOLD
    planned = planned_capacity(context.plan) if context.plan else None
    plan = at_present_lengths(planned, whole, present) if planned is not None and whole is not None else planned
    capacity = _estimate(context, bins, plan, present)
    ceiling = measure_ceiling(bins, context, capacity.lengths) if capacity is not None else None
    if capacity is not None and ceiling is not None and ceiling.rps > (capacity.kept_rps or 0.0):
        capacity = lower_to_ceiling(capacity, ceiling)
    if capacity is None or planned is None or plan is None or plan.rps == planned.rps:
        return capacity, 1.0
    reason = capacity.reason + _weigh_request(planned, plan)
    return replace(capacity, reason=reason, planned_rps=planned.planned_rps), planned.rps / plan.rps


def _weigh_request(before: Capacity, present: Capacity) -> str:
    work = f"{before.rps / present.rps:.2g} times the work of a planned one, of which it was {before.rps:.3g} rps"
    return f"; a present request is {work}"


def count_present_requests(capacity: Capacity | None, lately: Window | None) -> Capacity | None:
    """Return the capacity in requests of the lengths of a window, as a next plan writes them."""
    if capacity is None or lately is None:
        return capacity
    converted = at_present_lengths(capacity, lately, present_lengths(lately))
    if converted is capacity:
        return capacity
    return replace(converted, reason=capacity.reason + _weigh_request(capacity, converted))


def _estimate(
    context: TierContext, bins: Sequence[BinnedWindow], plan: Capacity | None, present: CapacityLengths
) -> Capacity | None:
    """Return the estimate, with the plan's capacity in requests of the present lengths."""
    points = production_points(context, (binned for binned in bins if not is_saturated(binned, context)))
    kept = max((point for point in points if point.kept in FINE), key=lambda point: point.rps, default=None)
    above = [point for point in points if point.kept in BAD and (kept is None or point.rps > kept.rps)]
    base = plan
    if base is None and kept is not None:
        lacking = "no load of the benchmark keeps the SLO" if context.curve else "the plan has no benchmark"
        text = f"{lacking}; {kept.rps:.3g} rps a replica kept the SLO, what is above was not reached"
        source, certainty = CapacitySource.PRODUCTION, Certainty.LIKELY
        base = Capacity(
            rps=kept.rps, low=kept.rps, high=None, source=source, certainty=certainty, reason=text, lengths=present
        )
    if base is None:
        return None
    base = replace(
        base,
        highest_rps=max((point.rps for point in points), default=None),
        kept_rps=kept.rps if kept else None,
        knee_seen=bool(above),
    )
    if above and kept is not None:
        return replace(_between(context, plan, base, kept, above[0]), lengths=present)
    if above:
        return _never_kept(base, above[0], present)
    if kept is None or plan is None:
        return base
    slower = plan.source is not CapacitySource.PRODUCTION and _is_slower(context, bins)
    # All that broke it lies below a load that kept it: something else than load did, and how slow that was says nothing.
    sound = [point for point in points if point.kept not in BAD]
    scaled = _scaled(base, context, sound, kept) if slower and max(slower_than_planned(sound)) > 1 else None
    if scaled is None or (plan.source is CapacitySource.OPERATOR and scaled.rps >= plan.rps):
        confirmed = _confirmed(base, kept)
        return confirmed if confirmed.rps == base.rps else replace(confirmed, lengths=present)
    return replace(scaled, lengths=present)


def present_lengths(whole: Window) -> CapacityLengths:
    """Return the mean lengths of a window's requests, unknown where no engine reports them."""
    finished = whole.counters.get("requests_finished", 0.0)
    if finished <= 0:
        return UNTOLD
    means = (whole.counters.get(family, 0.0) / finished for family in ("prompt_tokens", "generation_tokens"))
    prompts, outputs = (MeanTokens(low=mean, high=mean) if mean > 0 else None for mean in means)
    hits = None if (computed := computed_share(whole)) is None else 1 - computed
    return CapacityLengths(prompt_tokens=prompts, generation_tokens=outputs, prefix_hit_ratio=hits)


def at_present_lengths(plan: Capacity, whole: Window, present: CapacityLengths) -> Capacity:
    """Return the plan's capacity in requests of the `present` lengths: longer ones are more work (DESIGN 3.12).

    It is unchanged within SAME or with unknown lengths.
    """
    work, each = work_of(whole, plan.lengths), replica_rate(whole, "requests_finished")
    if work is None or not each or not work.total.value or whole.counters["requests_finished"] < FEWEST_REQUESTS:
        return plan
    factor = work.total.value / each
    if 1 / (1 + SAME) <= factor <= 1 + SAME:
        return plan
    least = (work.total.low or 0.0) / each
    most = work.total.high / each if work.total.high else factor
    high = plan.high / least if plan.high is not None and least > 0 else None
    return replace(plan, rps=plan.rps / factor, low=plan.low / max(most, factor), high=high, lengths=present)


def _never_kept(base: Capacity, lowest: ProductionPoint, present: CapacityLengths) -> Capacity:
    """Return the capacity if no load kept the SLO; `lowest` is the lowest load with enough requests.

    At or below the benchmark's lowest load (bin 0) load is not the cause, so the plan counts.
    """
    text = f"no load of production kept the SLO, not even {lowest.rps:.3g} rps a replica"
    if lowest.bin == 0:
        text += f", no more than the benchmark's lowest: load is not the cause, the planned {base.rps:.3g} counts"
        return replace(base, low=0.0, reason=text)
    rps = max(LEAST_UNPROVEN * base.rps, min(base.rps, lowest.rps))
    text += f": the planned {base.rps:.3g} does not hold, {rps:.3g} is taken before a load is seen that does"
    high, source = max(rps, lowest.rps), CapacitySource.PRODUCTION
    return replace(base, rps=rps, low=0.0, high=high, source=source, reason=text, lengths=present)


def _confirmed(base: Capacity, kept: ProductionPoint) -> Capacity:
    """Return the plan's value, or a higher load that kept the SLO; certain if production came near it.

    The operator's value counts even then: it may have reasons without a metric.
    """
    best = base.rps if base.source is CapacitySource.OPERATOR else max(base.rps, kept.rps)
    sure = kept.rps >= NEAR * base.rps and kept.kept is SloStatus.KEPT
    return replace(
        base,
        rps=best,
        low=best if sure else min(kept.rps, best),
        high=None if base.high is None else max(best, base.high),
        source=base.source if best == base.rps else CapacitySource.PRODUCTION,
        certainty=Certainty.of(sure),
        reason=f"{_whose(base)} {base.rps:.3g} rps a replica; production kept the SLO up to {kept.rps:.3g}",
    )


def _between(
    context: TierContext, plan: Capacity | None, base: Capacity, kept: ProductionPoint, broken: ProductionPoint
) -> Capacity:
    """Return the plan's value where it lies between the loads, else where production crosses the SLO."""
    text = f"production kept the SLO at {kept.rps:.3g} rps a replica and broke it at {broken.rps:.3g}"
    best, source = None, CapacitySource.PRODUCTION
    if plan is not None:
        is_between = kept.rps <= plan.rps <= broken.rps
        text += f"; {_whose(plan)} {plan.rps:.3g} {'lies' if is_between else 'does not lie'} between"
        if is_between or (plan.source is CapacitySource.OPERATOR and plan.rps < kept.rps):
            best, source = plan.rps, plan.source
    best = _crossing(context, kept, broken) if best is None else best
    sure = Certainty.of(kept.kept is SloStatus.KEPT and broken.kept is SloStatus.BROKEN)
    return replace(base, rps=best, low=min(kept.rps, best), high=broken.rps, source=source, certainty=sure, reason=text)


def _whose(plan: Capacity) -> str:
    return "the benchmark's" if plan.source is CapacitySource.BENCHMARK else "the planned"


def _crossing(context: TierContext, kept: ProductionPoint, broken: ProductionPoint) -> float:
    """Return the load at which TTFT or TPOT P99 first crosses its limit, by logarithms of the best estimates."""
    slo = context.plan.slo if context.plan else None
    rows = []
    for limit, name in ((slo and slo.ttft_p99_seconds, "ttft_p99"), (slo and slo.tpot_p99_seconds, "tpot_p99")):
        below, over = _best(getattr(kept, name)), _best(getattr(broken, name))
        if limit and below and over and below < limit < over:
            share = math.log(limit / below) / math.log(over / below)
            rows.append(kept.rps + share * (broken.rps - kept.rps))
    return min(rows, default=kept.rps)


def _best(value: SignalValue) -> float | None:
    if not isinstance(value, Reading):
        return None
    return value.low if value.value is None else value.value


def _is_slower(context: TierContext, bins: Sequence[BinnedWindow]) -> bool:
    """Return whether production is slower than the benchmark at equal load, beyond chance (95 %, one-sided)."""
    for name in SLOWER:
        rule = RuleContext(
            rule=RULES[name], catalogue=RULES, tier=context, binned=tuple(bins), now=0.0, period_seconds=DAY_SECONDS
        )
        comparison = select_comparable(rule, (rule.rule.family,))
        tail = compute_tail(comparison, comparison.binned) if isinstance(comparison, BenchmarkComparison) else None
        if tail is not None and tail.requests >= rule.limit("minimum_requests"):
            whole, allowed = tail.whole, rule.limit("allowed_share")
            if is_significant_share(whole.best, whole.n, tail.requests, allowed, LIKELY_CONFIDENCE):
                return True
    return False


def slower_than_planned(points: Sequence[ProductionPoint]) -> tuple[float, float]:
    """Return the largest ratios of TTFT and TPOT P99 to the benchmark's at equal load; 1 if not slower."""
    enough = [point for point in points if point.requests >= CERTAIN_REQUESTS]
    ttft = [_divide(point.ttft_p99, point.planned_ttft_p99) for point in enough]
    tpot = [_divide(point.tpot_p99, point.planned_tpot_p99) for point in enough]
    return max([1.0, *ttft]), max([1.0, *tpot])


def _divide(seen: SignalValue, planned: float | None) -> float:
    best = _best(seen)
    return best / planned if best and planned else 0.0


def _scaled(base: Capacity, context: TierContext, points: Sequence[ProductionPoint], kept: ProductionPoint) -> Capacity:
    """Return the operating point of the benchmark with latencies scaled to production's."""
    curve, plan, factors = context.curve, context.plan, slower_than_planned(points)
    usable: OperatingPoint | None = None
    if curve is not None and plan is not None:
        usable = replace(curve, points=tuple(_slower(point, *factors) for point in curve.points)).usable(plan.slo)
    best = max(kept.rps, usable.usable_rps if usable else LEAST_UNPROVEN * base.rps)
    planned = base.planned_rps or base.rps
    text = f"production is up to {max(factors):.2g}x as slow as the benchmark at equal load: "
    text += f"{best:.3g} rps a replica are taken, not {planned:.3g}"
    return replace(base, rps=best, low=kept.rps, high=max(best, planned), source=CapacitySource.PRODUCTION, reason=text)


def _slower(point: Point, ttft: float, tpot: float) -> Point:
    """Return a benchmark point with scaled latencies; ITL scales like TPOT, a whole request at most like the slower part."""
    factors = dict(zip(LIMITED, (ttft, tpot, tpot, max(ttft, tpot)), strict=True))
    measured = {name: value for name in factors if (value := getattr(point, name)) is not None}
    return point.model_copy(update={name: value * factors[name] for name, value in measured.items()})
