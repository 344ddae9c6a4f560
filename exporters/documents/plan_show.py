"""Texts of `sizewatch plan show`, of two plans for `plan diff`, of a workload for `plan workload`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.console import RenderableType

from exporters.render.terminal import terminal_text, text_grid
from exporters.render.text import QUANTITIES
from rules.catalogue.registry import CATALOGUE, margin_of
from rules.plan.capacity import capacity_lengths
from rules.plan.checks import check_plan
from rules.plan.curve import LIMITED, Curve, OperatingPoint, operating_point
from rules.plan.gpus import planned_kv_tokens
from rules.plan.money import amount, cost_per_day, money_per_day, price_of
from rules.plan.replica_count import count_planned, count_pools, count_replicas, fleet_terms
from rules.plan.schema import BenchmarkCurve, Plan, TierPlan, plan_version
from rules.resize.fleet_cost import planned_cost
from rules.resize.production_summary import ProductionSummary
from rules.resize.workload import BenchmarkWorkload
from rules.sizing import littles_ceiling_rps
from rules.telemetry.wording import format_count, format_duration, number, quantity, spread

NAMES = {name: QUANTITIES[name][0] for name in LIMITED}

PEAK = "workload.requests_per_second.peak"

SIGNS = {"mistake": "✗", "warning": "!", "info": "·"}

Rows = list[tuple[str, str]]


def show(plan: Plan, name: str) -> str:
    """Return a tier of the plan as text without a final line end."""
    tier = plan.tiers[name]
    curve, point = Curve.from_plan(tier), operating_point(tier)
    parts: list[RenderableType] = [name, text_grid(_head_rows(tier))]
    if tier.curve is not None:
        origin = "Measured"
        if tier.curve.remark:
            origin = "Predicted"
        parts += ["", f"{origin} curve of one replica", _curve_grid(tier.curve), text_grid(_evidence_rows(tier.curve))]
    if tier.pools == ("mixed",):
        parts += ["", "Operating point of one replica", text_grid(_point_rows(tier, curve, point))]
    else:
        parts += ["", "Operating point of one replica of each pool", text_grid(_pool_rows(tier))]
    fleet = [*_demand_rows(tier), *_planned_rows(tier)]
    if fleet:
        parts += ["", "Fleet", text_grid(fleet)]
    findings = check_plan(Plan(schema=1, tiers={name: tier}), CATALOGUE)
    texts = [(SIGNS[f.severity], f"{f.path.removeprefix(f'tiers.{name}.')}: {f.text}") for f in findings]
    parts += ["", "Findings", text_grid(texts)] if texts else ["", "Findings: none"]
    return terminal_text(*parts)


def _head_rows(tier: TierPlan) -> Rows:
    served = f"{tier.model} on {tier.engine}"
    if tier.precision:
        served += f", weights in {tier.precision.weights or 'unknown'}, KV cache in {tier.precision.kv or 'unknown'}"
    gpus = f"{tier.gpu.per_replica} x {tier.gpu.product}"
    if tier.gpu.interconnect not in (None, "none"):
        gpus += f" over {tier.gpu.interconnect}"
    limits = [f"{name} {number(limit, 'seconds')}" for key, name in NAMES.items() if (limit := getattr(tier.slo, key))]
    if tier.slo.availability:
        limits.append(f"availability {tier.slo.availability:.6g}")
    return [
        ("plan", f"version {plan_version(tier)}"),
        ("serves", served),
        ("on", f"{gpus} a replica; {format_count(len(tier.pools), 'pool')}: {', '.join(tier.pools)}"),
        ("promises", ", ".join(limits) or "no latency: batch work"),
    ]


def _curve_grid(curve: BenchmarkCurve) -> RenderableType:
    rows = []
    for point in curve.points:
        cells = [number(point.completed_rps, "")]
        for latency in (point.ttft_p99_seconds, point.tpot_p99_seconds):
            text = "" if latency is None else number(latency, "seconds")
            cells.append(f"at least {text}" if text and point.censored else text)
        rows.append(cells)
    return text_grid(rows, ("rps", "TTFT P99", "TPOT P99"), words=0)


def _evidence_rows(curve: BenchmarkCurve) -> Rows:
    text = f"{format_count(len(curve.points), 'point')}, {curve.loop or 'unknown'} loop"
    if counts := [point.requests for point in curve.points if point.requests is not None]:
        text += f", {spread(min(counts), max(counts), '')} requests each"
    rows = [("benchmark", f"{text}; {', '.join(curve.source) or 'no source given'}")]
    lengths = {"prompt_tokens", "generation_tokens", "concurrency"}
    measured = curve.measured.model_dump(exclude_none=True, exclude=lengths) if curve.measured else {}
    if measured:
        rows.append(("measured", ", ".join(f"{name} {value}" for name, value in measured.items())))
    return rows


def _point_rows(tier: TierPlan, curve: Curve | None, point: OperatingPoint | None) -> Rows:
    if point is None:
        return [("not known", "there is no curve that keeps the SLO, and the plan gives none by hand")]
    least = "at least "
    if point.knee_reached:
        least = ""
    usable = f"{least}{number(point.usable_rps, '')} completed requests per second; {_limit(tier, curve, point)}"
    rows = [("usable", usable), ("measured at", _lengths_at(tier, curve, point))]
    if point.c_max is None:
        why = "no concurrencies are given"
        if point.given:
            why = "the operating point names none"
        return [*rows, ("C_max", f"not known: {why}")]
    text = f"{least}{number(point.c_max, '')} requests in the system"
    if curve and curve.is_littles_law and not point.given:
        text += " (Little's law: rps x mean latency)"
    rows.append(("C_max", text))
    if planned := planned_kv_tokens(tier):
        text = f"{planned[0]:,.0f} tokens: {planned[1]}"
        if tier.architecture and tier.architecture.kv_tokens is not None:
            text += f"; the engine's holds {tier.architecture.kv_tokens:,}"
        rows.append(("KV cache", text))
    if limit := tier.slo.ttft_p99_seconds:
        ceiling = littles_ceiling_rps(point.c_max, limit)
        text = f"{number(point.c_max, '')} / {number(limit, 'seconds')} = {number(ceiling, 'per_second')}"
        rows.append(("C_max / SLO", f"{text}, {ceiling / point.usable_rps:.3g} x usable (guide 8.3: up to 2)"))
    return rows


def _limit(tier: TierPlan, curve: Curve | None, point: OperatingPoint) -> str:
    derived = None
    if curve:
        derived = curve.usable(tier.slo)
    if derived is None:
        return "as the plan gives it"
    if point.given:
        text = f"curve and SLO give {number(derived.usable_rps, '')}"
        if tier.operating_point and tier.operating_point.source == "production":
            return f"measured by production; {text}; benchmark again"
        return f"the operator's word; {text}"
    if derived.limited_by is None:
        return "the highest load measured; the SLO held"
    limit = number(getattr(tier.slo, derived.limited_by), "seconds")
    return f"beyond it {NAMES[derived.limited_by]} exceeds its SLO of {limit}"


def _lengths_at(tier: TierPlan, curve: Curve | None, point: OperatingPoint) -> str:
    """Return the request lengths behind the usable rps. Fleet utilisation is measured against them."""
    lengths = capacity_lengths(tier, curve, point)
    kinds = (("prompt", lengths.prompt_tokens), ("output", lengths.generation_tokens))
    texts = []
    for word, mean in kinds:
        if mean is not None:
            texts.append(f"{spread(mean.low, mean.high, '')} {word} tokens")
    if not texts:
        return "lengths that the plan does not tell"
    text = f"{' and '.join(texts)} a request on average"
    hits = lengths.prefix_hit_ratio
    if hits is None:
        return text
    return f"{text}; {hits:.0%} of prompts in the prefix cache"


def _pool_rows(tier: TierPlan) -> Rows:
    """Return the capacity of each pool, and the replicas that the planned peak needs (guide 6.5)."""
    safety, _ = fleet_terms(tier)
    rows = []
    for pool, count in count_pools(tier, tier.value_at(PEAK) or 0.0, margin_of(), safety).items():
        text = f"{count.capacity.reason}; {count.arithmetic_text}"
        if count.replicas > count.without_safety:
            text += f"; Step 11: {count.replicas}, for {safety:.4g} x the peak"
        rows.append((pool, text))
    return rows or [("not known", "the plan lacks `disaggregation`, or the workload its mean tokens")]


def _demand_rows(tier: TierPlan) -> Rows:
    margin, (safety, warm) = margin_of(), fleet_terms(tier)
    count = count_planned(tier, margin)
    if count is None:
        return []
    needed, usable, work = count.replicas, count.capacity.rps, count.demand_rps
    terms = [f"{safety:.4g} x the peak", f"at most {margin.target_utilization:.0%} used"]
    if 0 < margin.survives_loss_from <= needed:
        terms.append("one may be lost")
    if needed == warm > 1:
        terms.append(f"at least {warm} warm")
    alone = count_replicas(work, usable, margin)
    full = f"{tier.value_at(PEAK):.6g} rps"
    if work != tier.value_at(PEAK):
        full += f", by their tokens the work of {number(work, 'per_second')}"
    full += f" / {number(usable, '')} usable = {number(work / usable, '')} full replicas"
    return [("peak", full), ("Step 11", f"{_fleet_of(needed, tier)} ({', '.join(terms)}; {alone} for the peak alone)")]


def _planned_rows(tier: TierPlan) -> Rows:
    if tier.fleet is None:
        return []
    replicas, count, cost = tier.fleet.instances, count_planned(tier, margin_of()), planned_cost(tier)
    text = _fleet_of(replicas, tier)
    if count is not None:
        carried = replicas * count.capacity.rps
        text += f": {number(carried, 'per_second')}, {carried / count.demand_rps:.3g} x the peak"
    if tier.fleet.minimum_warm is not None:
        text += f"; {tier.fleet.minimum_warm} always warm"
    if cost is None or cost.money_per_hour is None:
        return [("planned", text)]
    price = f"{amount(cost.money_per_hour, cost.price.currency)} an hour"
    if cost.per_million_tokens is not None:
        each = amount(cost.per_million_tokens, cost.price.currency)
        price += f"; {each} a million output tokens at {cost.utilization:.0%} of capacity"
    return [("planned", text), ("cost", price)]


def _fleet_of(replicas: int, tier: TierPlan) -> str:
    return f"{format_count(replicas, 'replica')}, {format_count(replicas * tier.gpu.per_replica, 'GPU')}"


def workload_text(tier: str, seen: ProductionSummary, workload: BenchmarkWorkload) -> str:
    hits = quantity(workload.prefix_hit_ratio, "ratio")
    shared = f"{workload.shared_blocks * workload.block_tokens} common first tokens, {workload.shared_ratio:.1%} of all"
    loads = ", ".join(f"{rps:g}" for rps in workload.loads)
    rows = [
        ("arrivals", f"{seen.average_rps or 0.0:.3g} rps, {seen.observed_replicas:.3g} ready replicas on average"),
        ("prompts", _lengths(workload.prompts)),
        ("outputs", _lengths(workload.generations)),
        ("prefix hits", f"{hits}; written as {shared}"),
        ("loads", f"{loads} rps of one replica, {format_count(len(workload.prompts), 'request')} each"),
    ]
    remarks = text_grid([("-", remark) for remark in workload.remarks], indent=0)
    return terminal_text(f"{tier}: {format_duration(seen.observed_seconds)} observed", text_grid(rows), remarks)


def _lengths(lengths: Sequence[int]) -> str:
    quantiles = (f"P{q} {lengths[math.ceil(q / 100 * len(lengths)) - 1]}" for q in (50, 95, 99))
    return f"mean {fmean(lengths):.4g}, {', '.join(quantiles)} tokens"


def plan_diff(before: Plan, after: Plan) -> tuple[str, ...]:
    """Return a sentence per change, by tier in the order of `before`. Return nothing for equal plans."""
    lines: list[str] = []
    for name in dict.fromkeys((*before.tiers, *after.tiers)):
        lines += tier_diff(name, before.tiers.get(name), after.tiers.get(name))
    return tuple(lines)


def tier_diff(name: str, before: TierPlan | None, after: TierPlan | None) -> tuple[str, ...]:
    """Return the changes of a tier. None marks a plan without the tier."""
    if before and after:
        changes = (*_values(before, after), *_curve(before, after), *_cost(before, after))
    elif after:
        changes = (f"the tier is new{_bill(after)}",)
    elif before:
        changes = (f"the tier is gone{_bill(before)}",)
    else:
        changes = ()
    return tuple(f"{name}: {change}" for change in changes)


def _bill(tier: TierPlan) -> str:
    if tier.fleet is None:
        return ""
    return f", {format_count(tier.fleet.instances, 'replica')}, {cost_per_day(tier.fleet.instances, price_of(tier))}"


def _values(before: TierPlan, after: TierPlan) -> Iterator[str]:
    old, new = (
        dict(_flatten(tier.model_dump(mode="json", exclude={"curve"}, exclude_none=True))) for tier in (before, after)
    )
    for key in dict.fromkeys((*old, *new)):
        if old.get(key) != new.get(key):
            words = " ".join(key.split(".")[-2:]).replace("_", " ")
            yield f"{words}: {_change(old.get(key), new.get(key))}"


def _flatten(part: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in part.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _change(old: Any, new: Any) -> str:
    if old is None:
        return f"{_text(new)}, not given before"
    if new is None:
        return f"{_text(old)} before, not given any more"
    text = f"{_text(old)} -> {_text(new)}"
    is_number = isinstance(old, int | float) and not isinstance(new, bool | str)
    if is_number and old:
        return f"{text} ({new / old - 1:+.0%})"
    return text


def _text(value: Any) -> str:
    if isinstance(value, bool):
        if value:
            return "yes"
        return "no"
    if isinstance(value, int | float):
        return f"{value:,.6g}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def _curve(before: TierPlan, after: TierPlan) -> Iterator[str]:
    if before.curve == after.curve:
        return
    counts, usable = [], []
    for plan in (before, after):
        point = operating_point(plan)
        counts.append(len(plan.curve.points) if plan.curve else 0)
        usable.append(number(point.usable_rps, "") if point else "not known")
    names: dict[str, None] = {}
    if counts[0] == counts[1] and before.curve and after.curve:
        for old, new in zip(before.curve.points, after.curve.points, strict=True):
            names |= dict.fromkeys(name for name, value in new if value != getattr(old, name))
    words = ", ".join(names) or "values"
    yield f"benchmark curve: other {words}, {counts[0]} -> {format_count(counts[1], 'point')}"
    if usable[0] != usable[1]:
        yield f"usable requests per second and replica: {usable[0]} -> {usable[1]}"


def _cost(before: TierPlan, after: TierPlan) -> Iterator[str]:
    texts, paid, currencies = [], [], set()
    for plan in (before, after):
        if plan.fleet is None:
            return
        price = price_of(plan)
        texts.append(cost_per_day(plan.fleet.instances, price))
        paid.append(money_per_day(plan.fleet.instances, price))
        currencies.add(price.currency)
    if texts[0] == texts[1]:
        return
    line = f"cost: {texts[0]} -> {texts[1]}"
    if paid[0] is not None and paid[1] is not None and len(currencies) == 1:
        apart, currency = abs(paid[1] - paid[0]), currencies.pop()
        change = "more"
        if paid[1] < paid[0]:
            change = "less"
        line += f": {amount(apart, currency)} a day {change}, {amount(apart * 365, currency)} a year"
    yield line
