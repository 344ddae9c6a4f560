"""Text page of a plan's tier for `sizewatch plan show`, and of production's workload for `sizewatch plan workload`.

The page shows curve, operating point, the guide's C_max / SLO (8.3, never alerted), fleet arithmetic and findings.
Formulas are in `rules.sizing`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from rich.console import RenderableType

from exporters.documents.what_if import QUANTITIES
from exporters.render.terminal import terminal_text, text_grid
from exporters.render.text import format_duration
from rules.catalogue.registry import CATALOGUE, margin_of
from rules.plan.capacity import capacity_lengths
from rules.plan.checks import check_plan
from rules.plan.curve import LIMITED, Curve, OperatingPoint, operating_point
from rules.plan.gpus import planned_kv_tokens
from rules.plan.money import amount
from rules.plan.replica_count import count_fleet, count_pools, count_replicas, fleet_terms
from rules.plan.schema import BenchmarkCurve, Plan, Point, TierPlan, plan_version
from rules.resize.production_summary import ProductionSummary
from rules.resize.workload import BenchmarkWorkload
from rules.sizing import cost_per_million_tokens, littles_ceiling_rps
from rules.telemetry.wording import format_count, quantity
from rules.telemetry.work import MeanTokens

COLUMNS = {"TTFT P99": "ttft_p99_seconds", "TPOT P99": "tpot_p99_seconds"}
"""Columns of the curve's table, where a point has them: title and signal."""

NAMES = {name: QUANTITIES[name][0] for name in LIMITED}

PROVENANCE: Mapping[str, str] = {
    "engine_version": "release",
    "tensor_parallel": "TP",
    "pipeline_parallel": "PP",
    "data_parallel": "DP",
    "max_num_seqs": "max-num-seqs",
    "kv_tokens": "KV tokens",
    "measured_on": "on",
}
"""Short names of `curve.measured`. The operating point shows its lengths."""

SIGNS = {"mistake": "✗", "warning": "!", "info": "·"}

Rows = list[tuple[str, str]]


def show(plan: Plan, name: str) -> str:
    """Return a tier as text without a final line end. Raise KeyError with the plan's tiers if it is unknown."""
    if name not in plan.tiers:
        raise KeyError(f"the plan has no tier {name}; it has {', '.join(plan.tiers)}")
    tier = plan.tiers[name]
    curve, point = Curve.from_plan(tier), operating_point(tier)
    parts: list[RenderableType] = [name, text_grid(_head_rows(tier))]
    if tier.curve is not None:
        parts += ["", "Measured curve of one replica", _curve_grid(tier.curve), text_grid(_evidence_rows(tier.curve))]
    if tier.pools == ("mixed",):
        parts += ["", "Operating point of one replica", text_grid(_point_rows(tier, curve, point))]
    else:
        parts += ["", "Operating point of one replica of each pool", text_grid(_pool_rows(tier))]
    fleet = [*_demand_rows(tier, point), *_planned_rows(tier, point), *_cost_rows(tier, curve, point)]
    if fleet:
        parts += ["", "Fleet", text_grid(fleet)]
    findings = check_plan(Plan(schema=1, tiers={name: tier}), CATALOGUE)
    texts = [(SIGNS[f.severity], f"{f.path.removeprefix(f'tiers.{name}.')}: {f.text}") for f in findings]
    parts += ["", "Findings", text_grid(texts)] if texts else ["", "Findings: none"]
    return terminal_text(*parts)


def _head_rows(tier: TierPlan) -> Rows:
    served = [f"{tier.model} on {tier.engine}"]
    if tier.precision:
        formats = (("weights", tier.precision.weights), ("KV cache", tier.precision.kv))
        served += [f"{part} in {text}" for part, text in formats if text]
    gpus = f"{tier.gpu.per_replica} x {tier.gpu.product}"
    if tier.gpu.interconnect not in (None, "none"):
        gpus += f" over {tier.gpu.interconnect}"
    limits = [f"{name} {seconds_text(limit)}" for key, name in NAMES.items() if (limit := getattr(tier.slo, key))]
    if tier.slo.availability:
        limits.append(f"availability {tier.slo.availability:.6g}")
    return [
        ("plan", f"version {plan_version(tier)}"),
        ("serves", ", ".join(served)),
        ("on", f"{gpus} a replica; {format_count(len(tier.pools), 'pool')}: {', '.join(tier.pools)}"),
        ("promises", ", ".join(limits) or "no latency: batch work"),
    ]


def _curve_grid(curve: BenchmarkCurve) -> RenderableType:
    columns = {
        title: metric
        for title, metric in COLUMNS.items()
        if any(getattr(point, metric) is not None for point in curve.points)
    }
    rows = []
    for point in curve.points:
        cells = [f"{point.completed_rps:.4g}"]
        for metric in columns.values():
            cells.append(_latency(point, metric))
        rows.append(cells)
    return text_grid(rows, ("rps", *columns), words=0)


def _latency(point: Point, metric: str) -> str:
    value = getattr(point, metric)
    if value is None:
        return ""
    return f"at least {seconds_text(value)}" if point.censored else seconds_text(value)


def seconds_text(seconds: float) -> str:
    """Return a latency in words: 2 s, 80 ms."""
    return f"{seconds:.4g} s" if seconds >= 1 else f"{seconds * 1000:.4g} ms"


def _evidence_rows(curve: BenchmarkCurve) -> Rows:
    """Return where the curve comes from."""
    texts = [format_count(len(curve.points), "point")]
    if curve.loop:
        texts.append(f"{curve.loop} loop")
    if counts := [point.requests for point in curve.points if point.requests is not None]:
        texts.append(f"{' to '.join(f'{n}' for n in sorted({min(counts), max(counts)}))} requests each")
    rows = [("benchmark", f"{', '.join(texts)}; {', '.join(curve.source) or 'no source given'}")]
    measured = curve.measured.model_dump(exclude_none=True, include={*PROVENANCE}) if curve.measured else {}
    if measured:
        rows.append(("measured", ", ".join(f"{PROVENANCE[name]} {value}" for name, value in measured.items())))
    return rows


def _point_rows(tier: TierPlan, curve: Curve | None, point: OperatingPoint | None) -> Rows:
    if point is None:
        return [("not known", "there is no curve that keeps the SLO, and the plan gives none by hand")]
    least = "" if point.knee_reached else "at least "
    rows = [("usable", f"{least}{point.usable_rps:.4g} completed requests per second; {_limit(tier, curve, point)}")]
    rows.append(("measured at", _lengths_at(tier, curve, point)))
    if point.c_max is None:
        why = "the operating point names none" if point.given else "no concurrencies are given"
        return [*rows, ("C_max", f"not known: {why}")]
    text = f"{least}{point.c_max:.4g} requests in the system"
    if curve and curve.is_littles_law and not point.given:
        text += " (Little's law: rps x mean latency)"
    rows.append(("C_max", text))
    if planned := planned_kv_tokens(tier):
        held = tier.architecture.kv_tokens if tier.architecture else None
        engine = "" if held is None else f"; the engine's holds {held:,}"
        rows.append(("KV cache", f"{planned[0]:,.0f} tokens: {planned[1]}{engine}"))
    limit = tier.slo.ttft_p99_seconds
    if limit is not None:
        ceiling = littles_ceiling_rps(point.c_max, limit)
        gap = f"{ceiling / point.usable_rps:.3g} x usable (guide 8.3: up to 2)"
        rows.append(("C_max / SLO", f"{point.c_max:.4g} / {seconds_text(limit)} = {ceiling:.4g} rps, {gap}"))
    return rows


def _limit(tier: TierPlan, curve: Curve | None, point: OperatingPoint) -> str:
    """Return why the usable load of a replica is what it is."""
    derived = curve.usable(tier.slo) if curve else None
    if derived is None:
        return "as the plan gives it"
    if not point.given:
        if derived.limited_by is None:
            return "the highest load measured; the SLO held"
        limit = seconds_text(getattr(tier.slo, derived.limited_by))
        return f"beyond it {NAMES[derived.limited_by]} exceeds its SLO of {limit}"
    text = f"curve and SLO give {derived.usable_rps:.4g}"
    if tier.operating_point and tier.operating_point.source == "production":
        return f"measured by production; {text}; benchmark again"
    return f"the operator's word; {text}"


def _lengths_at(tier: TierPlan, curve: Curve | None, point: OperatingPoint) -> str:
    """Return the request lengths behind the usable rps. Fleet utilisation is measured against them."""
    lengths = capacity_lengths(tier, curve, point)
    kinds = (("prompt", lengths.prompt_tokens), ("output", lengths.generation_tokens))
    texts = [f"{_mean(mean)} {word} tokens" for word, mean in kinds if mean is not None]
    if not texts:
        return "lengths that the plan does not tell"
    text = f"{' and '.join(texts)} a request on average"
    hits = lengths.prefix_hit_ratio
    return text if hits is None else f"{text}; {hits:.0%} of prompts in the prefix cache"


def _mean(mean: MeanTokens) -> str:
    if mean.is_exact:
        return f"{mean.low:.4g}"
    return f"at least {mean.low:.4g}" if mean.high is None else f"{mean.low:.4g} to {mean.high:.4g}"


def _peak(tier: TierPlan) -> float:
    """Return the planned peak in requests per second, 0 without one."""
    rates = tier.workload.requests_per_second if tier.workload else None
    return (rates.peak if rates else None) or 0.0


def _pool_rows(tier: TierPlan) -> Rows:
    """Return the capacity of each pool, and the replicas that the planned peak needs (guide 6.5)."""
    counts = count_pools(tier, _peak(tier), margin_of())
    rows = [(pool, f"{count.capacity.reason}; {count.arithmetic_text}") for pool, count in counts.items()]
    return rows or [("not known", "the plan lacks `disaggregation`, or the workload its mean tokens")]


def _demand_rows(tier: TierPlan, point: OperatingPoint | None) -> Rows:
    """Return the replicas that the planned peak needs, and the terms of the count."""
    peak = _peak(tier)
    if not peak or point is None:
        return []
    margin, (safety, warm) = margin_of(), fleet_terms(tier)
    needed = count_fleet(peak, point.usable_rps, safety, margin, warm)
    terms = f"{safety:.4g} x the peak"
    if tier.fleet is None or not tier.fleet.safety_factor:
        terms += ", the plan has no safety factor"
    terms += f", at most {margin.target_utilization:.0%} used"
    if 0 < margin.survives_loss_from <= needed:
        terms += ", one may be lost"
    if needed == warm > 1:
        terms += f", at least {warm} warm"
    terms += f"; {count_replicas(peak, point.usable_rps, margin)} for the peak alone"
    full = f"{peak:.6g} rps / {point.usable_rps:.4g} usable = {peak / point.usable_rps:.3g} full replicas"
    return [("peak", full), ("Step 11", f"{_fleet_of(needed, tier)} ({terms})")]


def _planned_rows(tier: TierPlan, point: OperatingPoint | None) -> Rows:
    if tier.fleet is None:
        return []
    text, peak = _fleet_of(tier.fleet.instances, tier), _peak(tier)
    if peak and point:
        carried = tier.fleet.instances * point.usable_rps
        text += f": {carried:.4g} rps, {carried / peak:.3g} x the peak"
    if tier.fleet.minimum_warm is not None:
        text += f"; {tier.fleet.minimum_warm} always warm"
    return [("planned", text)]


def _cost_rows(tier: TierPlan, curve: Curve | None, point: OperatingPoint | None) -> Rows:
    cost, fleet = tier.cost, tier.fleet
    if cost is None or fleet is None:
        return []
    gpus = fleet.instances * tier.gpu.per_replica
    hourly = amount(gpus * cost.gpu_hour_price, cost.currency)
    text = f"{format_count(gpus, 'GPU')} x {cost.gpu_hour_price:.6g} = {hourly} an hour"
    tokens = curve.value_at("output_tokens_per_second", point) if curve and point else None
    if tokens and cost.planned_utilization:
        used = tokens * 3600 * fleet.instances * cost.planned_utilization
        price = amount(cost_per_million_tokens(gpus, cost.gpu_hour_price, used), cost.currency)
        text += f"; {price} a million output tokens at {cost.planned_utilization * 100:.3g} % of capacity"
    return [("cost", text)]


def _fleet_of(replicas: int, tier: TierPlan) -> str:
    return f"{format_count(replicas, 'replica')}, {format_count(replicas * tier.gpu.per_replica, 'GPU')}"


def workload_text(tier: str, seen: ProductionSummary, workload: BenchmarkWorkload) -> str:
    """Return production's workload, the loads to measure, and what production does not expose."""
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
