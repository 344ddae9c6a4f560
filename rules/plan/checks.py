"""Checks of a valid plan: mistakes first, then weaknesses, then missing parts.

A plan with warnings is still evaluated. To add a check: a function and a row of CHECKS. A rule that needs a part of the
plan is named in PARTS or MEASURED.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from rules.light_dataclass import light_dataclass
from rules.plan.capacity import capacity_lengths
from rules.plan.curve import CERTAIN_REQUESTS, LIMITED, OFTEN_UNMEASURED
from rules.plan.envelope import metric_value
from rules.plan.guardrails import check_guardrails
from rules.plan.hardware_checks import HARDWARE_CHECKS
from rules.plan.memory import MEMORY_CHECKS, model_copies, tensor_parallel
from rules.plan.mistakes import MISTAKES, SEVERITIES, Case, Found, Severity, case_of
from rules.plan.replica_count import NO_OVERRIDES, count_fleet, count_fleet_of, fleet_terms
from rules.plan.schema import Plan, Point, Slo, TierPlan, TokenQuantiles
from rules.sizing import littles_ceiling_rps
from rules.telemetry.wording import format_count
from rules.thresholds import CatalogueRow

LARGE_FLEET = 3.0
"""A fleet that carries more than so many times its peak and safety factor has another reason for its size, or an error."""

CALIBRATION_GAP = 2.0
"""Factor between Little's ceiling and the usable rps, beyond which the test's traffic was not production's (guide 8.3).

C_max / SLO is an upper bound, so only a higher one counts. C_max / average latency counts both ways."""

GENERATOR_LIMITED = 0.98
"""Completed below this share of requested rps: the generator may have been the limit (PEERS 3.2, item 9)."""

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

MEASURED = (
    ("ttft_p99_seconds", "TtftDivergence"),
    ("tpot_p99_seconds", "TpotDivergence"),
    ("itl_p99_seconds", "ItlDivergence"),
    ("gpu_utilization", "GpuUtilizationShortfall"),
    ("prefix_hit_ratio", "PrefixHitDivergence"),
    ("eviction_rate", "EvictionDivergence"),
)
"""What a rule compares with the curve's points; where no point carries it the rule says not_in_plan."""

CURVE_RULES = (*(rule for _, rule in MEASURED), "LoadBeyondBenchmark")


@light_dataclass(frozen=True, slots=True, kw_only=True)
class PlanWarning:
    """Warning at a `path` of the plan. A `mistake` fails the check, a `warning` weakens verdicts or the fleet."""

    path: str
    text: str
    severity: Severity


def check_plan(
    plan: Plan,
    rules: Mapping[str, CatalogueRow],
    overrides: Mapping[str, Mapping[str, Mapping[str, float]]] = MappingProxyType({}),
) -> tuple[PlanWarning, ...]:
    """Return the warnings of every tier: the gravest first, then in the order of the plan.

    `rules` is the catalogue, and `overrides` are its thresholds that a configuration changes, by tier.
    """
    return _gravest_first(
        [
            finding
            for name, tier in plan.tiers.items()
            for finding in check_tier(name, tier, rules, overrides.get(name, NO_OVERRIDES))
        ]
    )


def check_tier(
    name: str,
    tier: TierPlan,
    rules: Mapping[str, CatalogueRow],
    overrides: Mapping[str, Mapping[str, float]] = NO_OVERRIDES,
) -> tuple[PlanWarning, ...]:
    """Return the warnings of one tier, the gravest first."""
    case = case_of(tier, rules, overrides)
    return _gravest_first(
        [
            PlanWarning(path=f"tiers.{name}.{place}", severity=severity, text=text)
            for check in (*MISTAKES, *CHECKS, check_guardrails, *HARDWARE_CHECKS, *MEMORY_CHECKS)
            for place, severity, text in check(case)
        ]
    )


def _gravest_first(found: list[PlanWarning]) -> tuple[PlanWarning, ...]:
    return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))


def _underived(case: Case) -> Found:
    if not case.points:
        return
    if case.curve is None:
        yield "curve.points", "warning", f"all points are censored; {_names(CURVE_RULES)} will say not_in_plan"
        return
    derived = case.curve.usable(case.tier.slo)
    if derived and not derived.knee_reached:
        text = f"no measured load breaks the SLO; usable rps, {derived.usable_rps:.4g}, is a lower bound"
        yield "curve.points", "info", f"{text}: measure higher loads to find the knee"
    elif derived is None and not _breaks(case.curve.points[0], case.tier.slo):
        used = "the given one is used" if case.tier.operating_point else "none is known"
        text = "the lowest load lacks a metric of the SLO, so no operating point follows"
        yield "curve.points", "warning", f"{text} ({used})"


def _other_operating_point(case: Case) -> Found:
    given, derived = case.tier.operating_point, case.curve.usable(case.tier.slo) if case.curve else None
    if given is None or derived is None:
        return
    for name in ("usable_rps", "c_max"):
        said, found = getattr(given, name), getattr(derived, name)
        if said and found and abs(said - found) > OPERATING_POINT_TOLERANCE * found:
            limit = f"limited by {derived.limited_by}" if derived.limited_by else "the highest load measured"
            text = f"{said:.6g} is given, curve and SLO give {found:.4g} ({limit})"
            if not (case.point and case.point.given):
                yield f"operating_point.{name}", "warning", f"{text}; the latter is used"
            elif given.source == "production":
                yield f"operating_point.{name}", "warning", f"{text}; production measured the former: benchmark again"
            else:
                yield f"operating_point.{name}", "info", f"{text}; the lower one is used, as the operator's word"


def _unmeasured_objective(case: Case) -> Found:
    """Yield objectives that C_max leaves out because no point carries them."""
    for name in OFTEN_UNMEASURED if case.curve else ():
        if getattr(case.tier.slo, name) is not None and all(metric_value(one, name) is None for one in case.points):
            text = f"no point of the curve gives {name}; the operating point is taken without this objective"
            yield f"slo.{name}", "warning", text


def _few_requests(case: Case) -> Found:
    few = [place for place, point in enumerate(case.points) if (point.requests or 0) < CERTAIN_REQUESTS]
    if few:
        counts = sorted(case.points[place].requests or 0 for place in few)
        span = f"{counts[0]} to {counts[-1]}" if counts[0] < counts[-1] else f"{counts[0]}"
        text = f"{_some(few, case)} fewer than {CERTAIN_REQUESTS} requests ({span if counts[-1] else 'none given'})"
        yield "curve.points", "warning", f"{text}: verdicts against them are likely at most, never certain"


def _closed_loop(case: Case) -> Found:
    if case.tier.curve and case.tier.curve.loop == "closed":
        text = "a closed loop starts with a burst, which stays in its P99, and its clients wait as users do not"
        yield "curve.loop", "warning", f"{text}; an open-loop sweep compares better with production"


def _unnamed_utilization(case: Case) -> Found:
    given = any(point.gpu_utilization is not None for point in case.points)
    if case.tier.curve and given and case.tier.curve.gpu_utilization_kind is None:
        text = "is missing though points give gpu_utilization; only like is compared with like"
        yield "curve.gpu_utilization_kind", "warning", f"{text}, so GpuUtilizationShortfall will say not_in_plan"


def _generator_limited(case: Case) -> Found:
    for place, point in enumerate(case.points):
        asked = point.requested_rps
        if asked and not point.censored and point.completed_rps < GENERATOR_LIMITED * asked:
            text = f"completed {point.completed_rps:.6g} of {asked:.6g} requested rps, and is not marked censored"
            yield f"curve.points[{place}]", "warning", f"{text}; set censored: true if the generator was the limit"


def _repeated_prompts(case: Case) -> Found:
    """Yield a warning if the benchmark found prompts in a prefix cache that production never has."""
    hits = [point.prefix_hit_ratio for point in case.points if point.prefix_hit_ratio is not None]
    planned = case.tier.workload.prefix_hit_ratio if case.tier.workload else None
    if hits and max(hits) > (planned or 0.0) + UNPLANNED_HITS:
        wanted = "the workload names none" if planned is None else f"the workload has {planned:.0%}"
        text = f"the benchmark found up to {max(hits):.0%} of its prompt tokens in the prefix cache, and {wanted}"
        yield "curve.points", "warning", f"{text}: its TTFT may be that of repeated prompts (one seed for every rate?)"


def _lengths(case: Case) -> Found:
    """Yield unknown or other lengths: fleet utilisation is relative to those of the capacity (DESIGN 3.12)."""
    if case.point is None:
        return
    measured = capacity_lengths(case.tier, case.curve, case.point)
    for kind, mean in (("prompt_tokens", measured.prompt_tokens), ("generation_tokens", measured.generation_tokens)):
        lengths: TokenQuantiles | None = getattr(case.tier.workload, kind, None)
        planned = lengths.mean if lengths else None
        if mean is None:
            text = "is given neither here nor by the curve; fleet utilisation counts requests, whatever their length"
            yield f"workload.{kind}.mean", "info", text
        elif not mean.is_exact:
            text = "is given neither here nor by the curve; its quantiles bound it, and so fleet utilisation has bounds only"
            yield f"workload.{kind}.mean", "info", text
        elif planned and not 1 / (1 + LENGTH_GAP) <= planned / mean.low <= 1 + LENGTH_GAP:
            text = f"is {planned:.4g}, the benchmark had {mean.low:.4g} a request; fleet utilisation is measured against these"
            yield f"workload.{kind}.mean", "warning", text


def _short_fleet(case: Case) -> Found:
    rates, fleet = case.tier.workload and case.tier.workload.requests_per_second, case.tier.fleet
    if not (rates and rates.peak and fleet and case.point):
        return
    safety, _ = fleet_terms(case.tier)
    needed = count_fleet_of(case.tier, rates.peak, case.point.usable_rps, case.margin)
    carried = fleet.instances * case.point.usable_rps
    text = f"{fleet.instances} at {case.point.usable_rps:.4g} usable rps each carry {carried:.4g} rps,"
    if carried < rates.peak:
        yield "fleet.instances", "warning", f"{text} not the peak of {rates.peak:.6g}; Step 11 asks for {needed}"
    elif carried < rates.peak * safety:
        text = f"{text} the peak of {rates.peak:.6g} but not {safety:.4g} times it, as the safety factor asks"
        yield "fleet.instances", "info", f"{text}; Step 11 asks for {needed}"
    elif fleet.instances < needed:
        text = f"{text} the peak of {rates.peak:.6g} without room for a spike or the loss of one replica"
        yield "fleet.instances", "info", f"{text}; Step 11 asks for {needed}"


def _no_safety_factor(case: Case) -> Found:
    """Yield that no safety factor counts as 1, and what the two of the guide ask for."""
    fleet, rates = case.tier.fleet, case.tier.workload and case.tier.workload.requests_per_second
    if fleet is None or fleet.safety_factor is not None:
        return
    asked = ["", ""]
    if rates and rates.peak and case.point:
        usable = case.point.usable_rps
        _, warm = fleet_terms(case.tier)
        counts = (count_fleet(rates.peak, usable, factor, case.margin, warm) for factor in SAFETY_FACTORS)
        asked = [f", {format_count(count, 'replica')}" for count in counts]
    least, most = SAFETY_FACTORS
    text = f"is not in the plan and counts as 1; the guide's are {least:g} for predictable traffic{asked[0]}, "
    yield "fleet.safety_factor", "info", f"{text}and {most:g} for a new deployment or high variance{asked[1]}"


def _large_fleet(case: Case) -> Found:
    rates, fleet = case.tier.workload and case.tier.workload.requests_per_second, case.tier.fleet
    if not (rates and rates.peak and fleet and case.point):
        return
    per_replica = case.tier.gpu.per_replica
    needed = count_fleet_of(case.tier, rates.peak, case.point.usable_rps, case.margin)
    carried = fleet.instances * case.point.usable_rps
    # One replica more than needed, or those that are kept warm, are no mistake however little traffic there is.
    if fleet.instances <= needed + 1:
        return
    if carried > LARGE_FLEET * rates.peak * (fleet.safety_factor or 1.0):
        text = f"{fleet.instances} at {case.point.usable_rps:.4g} usable rps each carry {carried:.4g} rps,"
        text = f"{text} {carried / rates.peak:.3g} times the peak of {rates.peak:.6g}; Step 11 asks for {needed}"
        gpus = per_replica > 1 and fleet.instances == needed * per_replica
        why = "instances are replicas, not GPUs" if gpus else "the curve is that of one replica, not of the fleet"
        yield "fleet.instances", "warning", f"{text}: make sure that {why}"


def _gap_to_objective(case: Case) -> Found:
    objective = case.tier.slo.ttft_p99_seconds
    if case.point is None or case.point.c_max is None or objective is None:
        return
    ceiling = littles_ceiling_rps(case.point.c_max, objective)
    gap = ceiling / case.point.usable_rps
    if round(gap, 6) > CALIBRATION_GAP:
        text = f"C_max / SLO, {ceiling:.4g} rps, is {gap:.3g} times the usable {case.point.usable_rps:.4g} rps"
        yield "curve", "info", f"{text}; above 2, ask whether the test's prompts and arrivals were production's"


def _gap_to_average(case: Case) -> Found:
    """Yield C_max / average latency that is far from the usable rps, above or below (guide 8.4, and 9.1, step 7).

    Points carry no mean latency. TTFT P50 + TPOT P50 x (mean output tokens - 1) stands for it: the clients timed both.
    C_max / usable rps would be the mean itself, and equal by definition. A C_max by Little's law is not compared, nor
    the curve's with a usable rps that is given without one.
    """
    curve, point, given = case.curve, case.point, case.tier.operating_point
    if curve is None or curve.is_littles_law or point is None or point.c_max is None:
        return
    if point.given and given is not None and given.c_max is None:
        return
    ttft, tpot = (curve.value_at(name, point) for name in ("ttft_p50_seconds", "tpot_p50_seconds"))
    outputs = capacity_lengths(case.tier, curve, point).generation_tokens
    if ttft is None or tpot is None or outputs is None or not outputs.is_exact:
        return
    seconds = ttft + tpot * max(outputs.low - 1, 0)
    ceiling = littles_ceiling_rps(point.c_max, seconds)
    gap = ceiling / point.usable_rps
    if 1 / CALIBRATION_GAP <= round(gap, 6) <= CALIBRATION_GAP:
        return
    text = f"C_max / average latency, {point.c_max:.4g} / {seconds:.3g} s = {ceiling:.4g} rps, is {gap:.3g} times the"
    text += f" usable {point.usable_rps:.4g} rps; more than 2 x apart, the test's inputs are not production's"
    yield "curve", "info", f"{text} (guide 8.4): check its lengths, arrivals and concurrency"


def _other_configuration(case: Case) -> Found:
    """Yield a parallelism of the benchmark that the plan does not deploy (guide 9.1, step 7)."""
    measured, gpu = case.tier.curve and case.tier.curve.measured, case.tier.gpu
    if not measured:
        return
    planned = {"tensor_parallel": tensor_parallel(case.tier), "pipeline_parallel": gpu.pipeline_parallel or 1}
    for name, degree in {**planned, "data_parallel": model_copies(case.tier)}.items():
        was = getattr(measured, name)
        if was is not None and was != degree:
            text = f"was {was}, the plan deploys {degree}: a curve of another parallelism is not this replica's"
            yield f"curve.measured.{name}", "warning", f"{text}; benchmark the final configuration (guide 9.1, step 7)"


def _short_prompts(case: Case) -> Found:
    prompts = case.tier.workload.prompt_tokens if case.tier.workload else None
    usual = (prompts.p50 or prompts.mean) if prompts else None
    if case.tier.pools != ("mixed",) and usual is not None and usual < SHORT_PROMPT:
        text = f"are served apart, but prompts have {usual:.4g} tokens: below {SHORT_PROMPT:.0f} do not disaggregate"
        yield "pools", "warning", f"{text}; whole replicas with chunked prefill are the better choice (guide 6.5)"


def _missing(case: Case) -> Found:
    if case.tier.curve is None:
        yield "curve", "info", f"is not in the plan; {_names(CURVE_RULES)} will say not_in_plan"
    if case.curve:
        lacking = [row for row in MEASURED if all(metric_value(point, row[0]) is None for point in case.curve.points)]
        if lacking:
            metrics, rules = (_names(column) for column in zip(*lacking, strict=True))
            yield "curve.points", "info", f"no point gives {metrics}; {rules} will say not_in_plan"
    for part, lost in PARTS:
        if getattr(case.tier, part) is None:
            yield part, "info", f"is not in the plan; {lost}"


CHECKS: tuple[Callable[[Case], Found], ...] = (
    _underived,
    _other_operating_point,
    _unmeasured_objective,
    _few_requests,
    _closed_loop,
    _unnamed_utilization,
    _generator_limited,
    _repeated_prompts,
    _lengths,
    _short_fleet,
    _no_safety_factor,
    _large_fleet,
    _gap_to_objective,
    _gap_to_average,
    _other_configuration,
    _short_prompts,
    _missing,
)


def _breaks(point: Point, slo: Slo) -> bool:
    """Return whether a load breaks the SLO, which `rules.plan.mistakes` says."""
    given = ((metric_value(point, name), getattr(slo, name)) for name in LIMITED)
    return any(value is not None and limit is not None and value > limit for value, limit in given)


def _some(places: list[int], case: Case) -> str:
    if len(places) == len(case.points):
        return "every point has" if len(places) > 1 else "the only point has"
    listed = ", ".join(f"[{place}]" for place in places)
    return f"{listed} has" if len(places) == 1 else f"{listed} have"


def _names(names: tuple[str, ...]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
