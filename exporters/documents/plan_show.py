"""Text page of a plan's tier for `sizewatch plan show`, at most 78 columns.

It shows curve, operating point, the guide's C_max / SLO (8.3, never alerted), fleet arithmetic and findings. Formulas
are in `rules.sizing`. A new section is a function from _Shown to lines and a row in SECTIONS.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from exporters.documents.what_if_json import QUANTITIES
from exporters.render.text import format_duration, text_table
from rules.catalogue.registry import CATALOGUE, margin_of
from rules.plan.capacity import capacity_lengths
from rules.plan.checks import check_plan
from rules.plan.curve import LIMITED, Curve, OperatingPoint, operating_point
from rules.plan.gpus import planned_kv_tokens
from rules.plan.money import amount
from rules.plan.replica_count import count_fleet, count_pools, count_replicas, fleet_terms
from rules.plan.schema import BenchmarkCurve, Plan, Point, Provenance, TierPlan, plan_version
from rules.resize.production_summary import ProductionSummary
from rules.resize.workload import BenchmarkWorkload
from rules.sizing import cost_per_million_tokens, littles_ceiling_rps
from rules.telemetry.wording import format_count, quantity
from rules.telemetry.work import MeanTokens

WIDTH = 78
"""Columns of the page."""

COLUMNS = (("TTFT P99", "ttft_p99_seconds"), ("TPOT P99", "tpot_p99_seconds"))
"""Columns of the curve's table, where a point has them: title and signal."""

NAMES = {name: QUANTITIES[name][0] for name in LIMITED}

PROVENANCE = {
    "engine_version": "release",
    "tensor_parallel": "TP",
    "pipeline_parallel": "PP",
    "data_parallel": "DP",
    "max_num_seqs": "max-num-seqs",
    "kv_tokens": "KV tokens",
    "measured_on": "on",
}
"""Short names of `curve.measured`."""

_KEY = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    name: str
    tier: TierPlan
    curve: Curve | None
    point: OperatingPoint | None


def show(plan: Plan, tier: str) -> str:
    """Return a tier as text without a final line end. Raise KeyError with the plan's tiers if it is unknown."""
    if tier not in plan.tiers:
        raise KeyError(f"the plan has no tier {tier}; it has {', '.join(plan.tiers)}")
    result = plan.tiers[tier]
    shown = _Shown(name=tier, tier=result, curve=Curve.from_plan(result), point=operating_point(result))
    return "\n\n".join("\n".join(lines) for section in SECTIONS if (lines := section(shown)))


def _head(shown: _Shown) -> list[str]:
    tier = shown.tier
    served = [f"{tier.model} on {tier.engine}"]
    if tier.precision:
        formats = (("weights", tier.precision.weights), ("KV cache", tier.precision.kv))
        served += [f"{part} in {text}" for part, text in formats if text]
    joined = f" over {tier.gpu.interconnect}" if tier.gpu.interconnect not in (None, "none") else ""
    gpus = f"{tier.gpu.per_replica} x {tier.gpu.product}{joined} a replica"
    limits = [f"{name} {seconds_text(limit)}" for key, name in NAMES.items() if (limit := getattr(tier.slo, key))]
    limits += [f"availability {tier.slo.availability:.6g}"] if tier.slo.availability else []
    return [
        shown.name,
        *_row("plan", f"version {plan_version(tier)}"),
        *_row("serves", ", ".join(served)),
        *_row("on", f"{gpus}; {format_count(len(tier.pools), 'pool')}: {', '.join(tier.pools)}"),
        *_row("promises", ", ".join(limits) or "no latency: batch work"),
    ]


def _curve(shown: _Shown) -> list[str]:
    """Return the measured points as a table, and where they come from."""
    written = shown.tier.curve
    if shown.curve is None or written is None:
        return []
    given = [
        (title, metric) for title, metric in COLUMNS if any(getattr(p, metric) is not None for p in written.points)
    ]
    metrics = [metric for _, metric in given]
    head = ("rps", *(title for title, _ in given))
    table = text_table(head, (_point_cells(point, metrics) for point in written.points), words=0)
    lines = ["Measured curve of one replica", *(f"  {line}" for line in table)]
    return [*lines, *_evidence(written)]


def _point_cells(point: Point, metrics: Sequence[str]) -> tuple[str, ...]:
    values = (getattr(point, metric) for metric in metrics)
    bound = "at least " if point.censored else ""
    return (
        f"{point.completed_rps:.4g}",
        *("" if value is None else f"{bound}{seconds_text(value)}" for value in values),
    )


def seconds_text(seconds: float) -> str:
    """Return a latency in words: 2 s, 80 ms."""
    return f"{seconds:.4g} s" if seconds >= 1 else f"{seconds * 1000:.4g} ms"


def _evidence(curve: BenchmarkCurve) -> list[str]:
    counts = [point.requests for point in curve.points if point.requests is not None]
    texts = [format_count(len(curve.points), "point")]
    texts += [f"{curve.loop} loop"] if curve.loop else []
    texts += [f"{_span(counts)} requests each"] if counts else []
    rows = _row("benchmark", f"{', '.join(texts)}; {', '.join(curve.source) or 'no source given'}")
    return [*rows, *_provenance(curve.measured)]


def _provenance(measured: Provenance | None) -> list[str]:
    """Return what was benchmarked, without the lengths: the operating point shows those."""
    mapping = (
        measured.model_dump(exclude_none=True, exclude={"prompt_tokens", "generation_tokens", "concurrency"})
        if measured
        else {}
    )
    texts = [f"{PROVENANCE[name]} {value}" for name, value in mapping.items()]
    return _row("measured", ", ".join(texts)) if texts else []


def _span(counts: list[int]) -> str:
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _operating_point(shown: _Shown) -> list[str]:
    point, slo = shown.point, shown.tier.slo
    lines = ["Operating point of one replica"]
    if shown.tier.pools != ("mixed",):
        return ["Operating point of one replica of each pool", *_pool_points(shown.tier)]
    if point is None:
        return [*lines, *_row("not known", "there is no curve that keeps the SLO, and the plan gives none by hand")]
    derived = shown.curve.usable(slo) if shown.curve else None
    why = "as the plan gives it" if derived is None or point.given else "the highest load measured; the SLO held"
    if derived and point.given:
        owner = shown.tier.operating_point.source if shown.tier.operating_point else None
        why = "measured by production" if owner == "production" else "the operator's word"
        why += f"; curve and SLO give {derived.usable_rps:.4g}"
        why += "; benchmark again" if owner == "production" else ""
    elif derived and derived.limited_by:
        limit = seconds_text(getattr(slo, derived.limited_by))
        why = f"beyond it {NAMES[derived.limited_by]} exceeds its SLO of {limit}"
    least = "" if point.knee_reached else "at least "
    lines += _row("usable", f"{least}{point.usable_rps:.4g} completed requests per second; {why}")
    lines += _measured_at(shown, point)
    if point.c_max is None:
        why = "the operating point names none" if point.given else "no concurrencies are given"
        return [*lines, *_row("C_max", f"not known: {why}")]
    origin = " (Little's law: rps x mean latency)" if shown.curve and shown.curve.is_littles_law else ""
    lines += _row("C_max", f"{least}{point.c_max:.4g} requests in the system{'' if point.given else origin}")
    if planned := planned_kv_tokens(shown.tier):
        lines += _row("KV cache", f"{planned[0]:,.0f} tokens: {planned[1]}{_engine_tokens(shown.tier)}")
    if slo.ttft_p99_seconds is None:
        return lines
    ceiling = littles_ceiling_rps(point.c_max, slo.ttft_p99_seconds)
    gap = f"{ceiling / point.usable_rps:.3g} x usable (guide 8.3: up to 2)"
    lines += _row("C_max / SLO", f"{point.c_max:.4g} / {seconds_text(slo.ttft_p99_seconds)} = {ceiling:.4g} rps, {gap}")
    return lines


def _engine_tokens(tier: TierPlan) -> str:
    held = tier.architecture.kv_tokens if tier.architecture else None
    return "" if held is None else f"; the engine's holds {held:,}"


def _pool_points(tier: TierPlan) -> list[str]:
    """Return the capacity of each pool, and the replicas that the planned peak needs (guide 6.5)."""
    rates = tier.workload.requests_per_second if tier.workload else None
    texts = count_pools(tier, (rates.peak if rates else None) or 0.0, margin_of())
    mapping = {
        pool: f"{replica_count.capacity.reason}; {replica_count.arithmetic_text}"
        for pool, replica_count in texts.items()
    }
    mapping = mapping or {"not known": "the plan lacks `disaggregation`, or the workload its mean tokens"}
    return [line for name, text in mapping.items() for line in _row(name, text)]


def _measured_at(shown: _Shown, point: OperatingPoint) -> list[str]:
    """Return the request lengths behind the usable rps. Fleet utilisation is measured against them."""
    lengths = capacity_lengths(shown.tier, shown.curve, point)
    kinds = (("prompt", lengths.prompt_tokens), ("output", lengths.generation_tokens))
    texts = [f"{_mean(mean)} {word} tokens" for word, mean in kinds if mean is not None]
    if not texts:
        return _row("measured at", "lengths that the plan does not tell")
    hits = lengths.prefix_hit_ratio
    cached = "" if hits is None else f"; {hits:.0%} of prompts in the prefix cache"
    return _row("measured at", f"{' and '.join(texts)} a request on average{cached}")


def _mean(mean: MeanTokens) -> str:
    if mean.is_exact:
        return f"{mean.low:.4g}"
    return f"at least {mean.low:.4g}" if mean.high is None else f"{mean.low:.4g} to {mean.high:.4g}"


def _fleet(shown: _Shown) -> list[str]:
    tier, point = shown.tier, shown.point
    rates = tier.workload.requests_per_second if tier.workload else None
    lines: list[str] = []
    if rates and rates.peak and point:
        margin = margin_of()
        safety, warm = fleet_terms(tier)
        needed = count_fleet(rates.peak, point.usable_rps, safety, margin, warm)
        full = (
            f"{rates.peak:.6g} rps / {point.usable_rps:.4g} usable = {rates.peak / point.usable_rps:.3g} full replicas"
        )
        given = tier.fleet is not None and tier.fleet.safety_factor
        asks = f"{safety:.4g} x the peak{'' if given else ', the plan has no safety factor'}"
        asks += f", at most {margin.target_utilization:.0%} used"
        if 0 < margin.survives_loss_from <= needed:
            asks += ", one may be lost"
        asks += f", at least {warm} warm" if needed == warm > 1 else ""
        asks += f"; {count_replicas(rates.peak, point.usable_rps, margin)} for the peak alone"
        lines += [*_row("peak", full), *_row("Step 11", f"{_fleet_of(needed, tier)} ({asks})")]
    if tier.fleet:
        planned = _fleet_of(tier.fleet.instances, tier)
        if rates and rates.peak and point:
            carried = tier.fleet.instances * point.usable_rps
            planned += f": {carried:.4g} rps, {carried / rates.peak:.3g} x the peak"
        planned += f"; {tier.fleet.minimum_warm} always warm" if tier.fleet.minimum_warm is not None else ""
        lines += _row("planned", planned)
    lines += _cost(shown)
    return ["Fleet", *lines] if lines else []


def _cost(shown: _Shown) -> list[str]:
    tier, cost, fleet = shown.tier, shown.tier.cost, shown.tier.fleet
    if cost is None or fleet is None:
        return []
    gpus = fleet.instances * tier.gpu.per_replica
    text = f"{format_count(gpus, 'GPU')} x {cost.gpu_hour_price:.6g} = {amount(gpus * cost.gpu_hour_price, cost.currency)} an hour"
    tokens = shown.curve.value_at("output_tokens_per_second", shown.point) if shown.curve and shown.point else None
    if tokens and cost.planned_utilization:
        hourly = tokens * 3600 * fleet.instances * cost.planned_utilization
        price = cost_per_million_tokens(gpus, cost.gpu_hour_price, hourly)
        text += f"; {amount(price, cost.currency)} a million output tokens at {cost.planned_utilization * 100:.3g} % of capacity"
    return _row("cost", text)


_SIGNS = {"mistake": "✗", "warning": "!", "info": "·"}


def _findings(shown: _Shown) -> list[str]:
    texts = check_plan(Plan(schema=1, tiers={shown.name: shown.tier}), CATALOGUE)
    lines = ["Findings" if texts else "Findings: none"]
    for finding in texts:
        sign = _SIGNS[finding.severity]
        place = finding.path.removeprefix(f"tiers.{shown.name}.")
        lines += textwrap.wrap(f"{place}: {finding.text}", WIDTH, initial_indent=f"  {sign} ", subsequent_indent="    ")
    return lines


SECTIONS: tuple[Callable[[_Shown], list[str]], ...] = (_head, _curve, _operating_point, _fleet, _findings)


def _fleet_of(replicas: int, tier: TierPlan) -> str:
    return f"{format_count(replicas, 'replica')}, {format_count(replicas * tier.gpu.per_replica, 'GPU')}"


def _row(key: str, text: str) -> list[str]:
    """Return a labelled line, wrapped below its own text."""
    first = f"  {key:<{_KEY}}"
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first))


def workload_text(tier: str, seen: ProductionSummary, workload: BenchmarkWorkload) -> str:
    """Return production's workload, the loads to measure, and what production does not expose."""
    hits = quantity(workload.prefix_hit_ratio, "ratio")
    shared = f"{workload.shared_blocks * workload.block_tokens} common first tokens, {workload.shared_ratio:.1%} of all"
    rows = [
        ("arrivals", f"{seen.average_rps or 0.0:.3g} rps, {seen.observed_replicas:.3g} ready replicas on average"),
        ("prompts", _lengths(workload.prompts)),
        ("outputs", _lengths(workload.generations)),
        ("prefix hits", f"{hits}; written as {shared}"),
    ]
    lines = [
        f"{tier}: {format_duration(seen.observed_seconds)} observed",
        *(f"  {key:{_KEY}}{text}" for key, text in rows),
    ]
    loads = ", ".join(f"{rps:g}" for rps in workload.loads)
    lines.append(f"loads of one replica, {format_count(len(workload.prompts), 'request')} each: {loads} rps")
    lines += [line for text in workload.remarks for line in textwrap.wrap(f"- {text}", WIDTH, subsequent_indent="  ")]
    return "\n".join(lines)


def _lengths(lengths: Sequence[int]) -> str:
    quantiles = (f"P{q} {lengths[math.ceil(q / 100 * len(lengths)) - 1]}" for q in (50, 95, 99))
    return f"mean {fmean(lengths):.4g}, {', '.join(quantiles)} tokens"
