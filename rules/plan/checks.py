"""Checks of a valid plan: mistakes, weaknesses, then missing parts. A plan with warnings is still evaluated.

To add a check: a function and a row of CHECKS. A rule that needs a part of the plan is named in PARTS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from rules.plan.capacity import capacity_lengths
from rules.plan.curve import CERTAIN_REQUESTS, LIMITED, OFTEN_UNMEASURED
from rules.plan.gpus import UNPACKED, find_product, kv_shortfall, needed_format
from rules.plan.guardrails import check_guardrails
from rules.plan.mistakes import CALIBRATION_GAP, MISTAKES, SEVERITIES, UNLIKE_PRODUCTION, Case, Found, Severity
from rules.plan.replica_count import count_planned, count_pools, fleet_terms, margin_from_rule
from rules.plan.schema import Plan
from rules.sizing import littles_ceiling_rps
from rules.telemetry.wording import format_count
from rules.thresholds import CatalogueRow

LARGE_FLEET, TINY_FLEET = 3.0, 0.1
"""A fleet that carries more than so many times its peak and safety factor has another reason for its size, or an error.
One that carries less than a tenth of the peak was not sized for it: the two are in other units."""

OPERATING_POINT_TOLERANCE = 0.05
"""A given operating point within this share of the derived one is the same, rounded."""

SAFETY_FACTORS = (1.2, 1.5)
"""Safety factors of predictable traffic, and of a new deployment or high variance (guide 9.1, step 11)."""

LENGTH_GAP = 0.25
"""Means further apart than this are not the same traffic: TTFT follows the prompt, throughput the answer."""

UNPLANNED_HITS = 0.2
"""Points of prefix hits beyond the workload's that make a benchmark unlike production (as PrefixHitDivergence allows)."""

SHORT_PROMPT = 500.0
"""Tokens of a prompt below which prefill and decode apart do not pay (guide 6.5)."""

PARTS = (
    ("workload", "fleet arithmetic and changes of the traffic are left out"),
    ("fleet", "the planned number of replicas cannot be compared"),
    ("cost", "prices are left out"),
    ("cold_start_seconds", "how early a replica must be asked for is not known"),
)
"""Optional parts every tier can have, and what is lost without them."""

COMPARED = "rules that compare production with it will say not_in_plan"

WIDEST_OVER_PCIE = 2
"""The widest tensor parallel degree that the guide accepts over PCIe (9.1, step 2: NVLink required for TP > 2)."""

FALLBACKS = ("fp8", "int8", "fp16")
"""Formats to build weights in where the GPU has no path for a format, best first (guide 9.5: INT8 on A100)."""


class PlanWarning(NamedTuple):
    """Warning at a `path` of the plan. A `mistake` fails the check, a `warning` weakens verdicts or the fleet."""

    path: str
    severity: Severity
    text: str


def check_plan(
    plan: Plan,
    rules: Mapping[str, CatalogueRow],
    overrides: Mapping[str, Mapping[str, Mapping[str, float]]] = MappingProxyType({}),
) -> tuple[PlanWarning, ...]:
    """Return the warnings of every tier: the gravest first, then in the order of the plan.

    `rules` is the catalogue, and `overrides` are its thresholds that a configuration changes, by tier.
    """
    plan_warnings = []
    for name, tier in plan.tiers.items():
        context = Case(tier=tier, rules=rules, overrides=overrides.get(name, {}))
        for check in (*MISTAKES, *CHECKS):
            for place, severity, text in check(context):
                plan_warnings.append(PlanWarning(f"tiers.{name}.{place}", severity, text))
    return tuple(sorted(plan_warnings, key=lambda warning: SEVERITIES.index(warning.severity)))


def _underived(context: Case) -> Found:
    if not context.points:
        return
    if context.curve is None:
        yield "curve.points", "warning", f"all points are censored; {COMPARED}"
        return
    derived, lowest = context.curve.usable(context.tier.slo), context.curve.points[0]
    if derived and not derived.knee_reached:
        text = f"no measured load breaks the SLO; usable rps, {derived.usable_rps:.4g}, is a lower bound"
        yield "curve.points", "info", f"{text}: measure higher loads to find the knee"
    limits = [name for name in LIMITED if getattr(context.tier.slo, name) is not None]
    if derived is None and any(getattr(lowest, name) is None for name in limits):
        text = "the lowest load lacks a metric of the SLO, so no operating point follows from the curve"
        yield "curve.points", "warning", text
    for name in limits:
        if name in OFTEN_UNMEASURED and all(getattr(point, name) is None for point in context.points):
            text = f"no point of the curve gives {name}; the operating point is taken without this objective"
            yield f"slo.{name}", "warning", text


def _other_operating_point(context: Case) -> Found:
    given, derived = context.tier.operating_point, context.curve.usable(context.tier.slo) if context.curve else None
    if given is None or derived is None:
        return
    severity: Severity = "warning"
    outcome = "the latter is used"
    if given.source == "production":
        outcome = "production measured the former: benchmark again"
    elif context.point and context.point.given:
        severity, outcome = "info", "the lower one is used, as the operator's word"
    limit = f"limited by {derived.limited_by}" if derived.limited_by else "the highest load measured"
    for name in ("usable_rps", "c_max"):
        value, entry = getattr(given, name), getattr(derived, name)
        if value and entry and abs(value - entry) > OPERATING_POINT_TOLERANCE * entry:
            text = f"{value:.6g} is given, curve and SLO give {entry:.4g} ({limit}); {outcome}"
            yield f"operating_point.{name}", severity, text


def _few_requests(context: Case) -> Found:
    if context.tier.curve is not None and context.tier.curve.remark:
        text = f"{context.tier.curve.remark}, so verdicts on its times are likely at most"
        yield "curve.origin", "warning", f"{text}; compare it with `sizewatch plan calibration`"
        return
    counts = sorted(few for point in context.points if (few := point.requests or 0) < CERTAIN_REQUESTS)
    if counts:
        span = f"{counts[0]} to {counts[-1]}" if counts[0] < counts[-1] else f"{counts[0] or 'not given'}"
        points = f"{len(counts)} of {format_count(len(context.points), 'point')}"
        text = f"{points} had fewer than {CERTAIN_REQUESTS} requests ({span})"
        yield "curve.points", "warning", f"{text}: verdicts against them are likely at most, never certain"


def _lengths(context: Case) -> Found:
    """Yield unknown or other lengths, or more prefix hits: fleet utilisation is relative to those of the capacity (DESIGN 3.12)."""
    if context.point is None:
        return
    measured = capacity_lengths(context.tier, context.curve, context.point)
    hits, planned_hits = measured.prefix_hit_ratio or 0.0, context.tier.value_at("workload.prefix_hit_ratio") or 0.0
    if hits > planned_hits + UNPLANNED_HITS:
        text = f"the benchmark found {hits:.0%} of its prompt tokens in the prefix cache, the workload has {planned_hits:.0%}"
        yield "curve.points", "warning", f"{text}: its TTFT may be that of repeated prompts (one seed for every rate?)"
    for kind, mean in (("prompt_tokens", measured.prompt_tokens), ("generation_tokens", measured.generation_tokens)):
        planned = context.tier.value_at(f"workload.{kind}.mean")
        if mean is None or not mean.is_exact:
            text = "is given neither here nor by the curve; fleet utilisation counts requests"
            yield f"workload.{kind}.mean", "info", f"{text}, or has bounds by quantiles"
        elif planned and not 1 / (1 + LENGTH_GAP) <= planned / mean.low <= 1 + LENGTH_GAP:
            text = f"is {planned:.4g}, the benchmark had {mean.low:.4g} a request; fleet utilisation is measured against these"
            yield f"workload.{kind}.mean", "warning", text


def _fleet_size(context: Case) -> Found:
    """Yield a fleet that is smaller than Step 11 asks for, or so large that its unit may be another."""
    peak, fleet = context.tier.value_at("workload.requests_per_second.peak"), context.tier.fleet
    if not (peak and fleet):
        return
    safety, _ = fleet_terms(context.tier)
    margin = margin_from_rule(context.rules["NoHeadroom"], context.overrides)
    count, pools = count_planned(context.tier, margin), count_pools(context.tier, peak, margin, safety)
    if sum(row.replicas for row in pools.values()) > fleet.instances:
        text = " and ".join(f"{row.replicas} {pool}" for pool, row in pools.items())
        yield "fleet.instances", "warning", f"{fleet.instances} are fewer than Step 11 asks for: {text} replicas"
    if count is None:
        return
    needed, work, usable = count.replicas, count.demand_rps, count.capacity.rps
    carried = fleet.instances * usable
    text = f"{fleet.instances} at {usable:.4g} usable rps each carry {carried:.4g} rps"
    text += f", {carried / work:.3g} times the peak of {peak:.6g}"
    text += "" if work == peak else f", by its tokens the work of {work:.4g}"
    text += f"; Step 11 asks for {needed}"
    if carried < TINY_FLEET * work:
        yield "fleet.instances", "mistake", f"{text}; write requests per second, or correct the instances"
    elif carried < work:
        yield "fleet.instances", "warning", text
    elif fleet.instances < needed:
        yield "fleet.instances", "info", f"{text}, for the safety factor, a spike or the loss of one replica"
    # One replica more than needed, or those that are kept warm, are no mistake however little traffic there is.
    elif fleet.instances > needed + 1 and carried > LARGE_FLEET * work * safety:
        why = "instances are replicas, not GPUs, and the curve is that of one replica, not of the fleet"
        yield "fleet.instances", "warning", f"{text}: make sure that {why}"


def _gap_of_littles_law(context: Case) -> Found:
    """Yield C_max / SLO far above the usable rps, whose upper bound it is (guide 8.3, 8.4, and 9.1, step 7)."""
    point, seconds = context.point, context.tier.slo.ttft_p99_seconds
    if point is None or point.c_max is None or seconds is None:
        return
    ceiling = littles_ceiling_rps(point.c_max, seconds)
    if round(ceiling / point.usable_rps, 6) > CALIBRATION_GAP:
        text = f"C_max / SLO, {point.c_max:.4g} / {seconds:.3g} s = {ceiling:.4g} rps, is {ceiling / point.usable_rps:.3g} times"
        text += f" the usable {point.usable_rps:.4g} rps; more than 2 x apart"
        yield "curve", "info", f"{text}, {UNLIKE_PRODUCTION}"


def _other_configuration(context: Case) -> Found:
    """Yield a parallelism of the benchmark that the plan does not deploy (guide 9.1, step 7)."""
    measured, gpu = context.tier.curve and context.tier.curve.measured, context.tier.gpu
    names = ("tensor_parallel", "pipeline_parallel", "data_parallel")
    for name, degree in zip(names, (gpu.tensor_degree, gpu.pipeline_parallel or 1, gpu.model_copies), strict=True):
        if (was := getattr(measured, name, None)) not in (None, degree):
            text = f"was {was}, the plan deploys {degree}: a curve of another parallelism is not this replica's"
            yield f"curve.measured.{name}", "warning", f"{text}; benchmark the final configuration (guide 9.1, step 7)"


def _short_prompts(context: Case) -> Found:
    lengths = "workload.prompt_tokens"
    usual = context.tier.value_at(f"{lengths}.p50") or context.tier.value_at(f"{lengths}.mean")
    if context.tier.pools != ("mixed",) and usual is not None and usual < SHORT_PROMPT:
        text = f"are served apart, but prompts have {usual:.4g} tokens: below {SHORT_PROMPT:.0f} do not disaggregate"
        yield "pools", "warning", f"{text}; whole replicas with chunked prefill are the better choice (guide 6.5)"


def _unsupported_weights(context: Case) -> Found:
    """Yield a format of the weights without a hardware path on the GPU (guide 9.5), as QuantizationMismatch does."""
    written = context.tier.value_at("precision.weights") or ""
    gpu, needs = find_product(context.tier.gpu.product), needed_format(written)
    if gpu is None or not needs or gpu.computes(needs, since := context.limit("QuantizationMismatch", needs)):
        return
    text = f"{written} has no hardware path on {context.tier.gpu.product}: weights run converted, without the planned speed-up"
    if gpu.capability is not None:
        text += f" (compute capability {gpu.capability:.1f}; {needs.upper()} needs {since:g})"
    instead = next((f for f in FALLBACKS if gpu.computes(f, context.limit("QuantizationMismatch", f))), "other")
    severity: Severity = "info" if needs in UNPACKED else "warning"
    yield "precision.weights", severity, f"{text}; build {instead.upper()} weights for this GPU (guide 9.5)"


def _wide_without_nvlink(context: Case) -> Found:
    """Yield tensor parallelism over more than 2 GPUs whose link is PCIe, or not known (guide 5.6; 9.1, step 2)."""
    degree, link = context.tier.gpu.tensor_degree, (context.tier.gpu.interconnect or "").casefold()
    if degree <= WIDEST_OVER_PCIE or link in ("nvlink", "xgmi"):
        return
    severity: Severity = "info"
    text = f"tensor parallelism over {degree} GPUs requires NVLink (guide 9.1, step 2): write nvlink, xgmi or pcie"
    text = f"{link} is no known link; {text}" if link else f"is not in the plan; {text}"
    if link in ("pcie", "none"):
        severity = "warning"
        text = f"tensor parallelism over {degree} GPUs without NVLink spends 8 to 38 % of a step in all-reduce"
        text += " (guide 5.6): benchmark it against 2, quantise to need fewer GPUs, or use NVLink"
    yield "gpu.interconnect", severity, text


def _kv_tokens(context: Case) -> Found:
    """Yield fewer KV tokens of the engine than the planned requests at once need (guide 9.1, step 4)."""
    held = context.tier.value_at("architecture.kv_tokens")
    if held is not None and (short := kv_shortfall(held, context.tier)):
        yield "architecture.kv_tokens", "warning", f"{short}. Lower C_max, use an FP8 KV cache, or more GPUs"


def _missing(context: Case) -> Found:
    if context.tier.curve is None:
        yield "curve", "info", f"is not in the plan; {COMPARED}"
    elif context.tier.curve.gpu_utilization_kind is None and any(point.gpu_utilization for point in context.points):
        text = "is missing: only like is compared with like, so GpuUtilizationShortfall will say not_in_plan"
        yield "curve.gpu_utilization_kind", "warning", text
    if context.tier.fleet is not None and context.tier.fleet.safety_factor is None:
        text = "is not in the plan and counts as 1; the guide's are {} for predictable traffic, and {} for a new deployment"
        yield "fleet.safety_factor", "info", f"{text.format(*SAFETY_FACTORS)} or high variance"
    for part, lost in PARTS:
        if getattr(context.tier, part) is None:
            yield part, "info", f"is not in the plan; {lost}"


CHECKS: tuple[Callable[[Case], Found], ...] = (
    _underived,
    _other_operating_point,
    _few_requests,
    _lengths,
    _fleet_size,
    _gap_of_littles_law,
    _other_configuration,
    _short_prompts,
    check_guardrails,
    _unsupported_weights,
    _wide_without_nvlink,
    _kv_tokens,
    _missing,
)
