"""Replicas, GPUs and costs of a fleet: planned, measured, proposed, and in a what-if (guide 9.1, Steps 11 and 12).

Each number carries its source, so that a report shows the arithmetic. Measured tokens are divided by once: they include
the utilisation (DESIGN 3.14).
"""

from __future__ import annotations

from dataclasses import dataclass

from rules.plan.load_bins import TierContext
from rules.plan.money import HOURS_A_DAY, HOURS_A_MONTH
from rules.plan.replica_count import Margin, ReplicaCount, count_fleet_of, fleet_terms, replica_count
from rules.plan.schema import TierPlan
from rules.resize.production_summary import ProductionSummary
from rules.resize.workload import WorkloadNow
from rules.sizing import cost_per_million_tokens
from rules.telemetry.work import Capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class FormulaTerm:
    """Number of a formula with its name, unit and source."""

    name: str
    value: float
    unit: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """Formula in words with its terms and its result."""

    formula: str
    terms: tuple[FormulaTerm, ...]
    result: FormulaTerm


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetProposal:
    """Step 11 for one peak and one capacity: `replicas` to deploy, `count` without the plan's safety factor.

    `fewest` and `most` are the replicas at the bounds of the capacity (None: open).
    """

    count: ReplicaCount
    replicas: int
    gpus: int
    fewest: int | None
    most: int | None
    safety_factor: float
    arithmetic: Arithmetic


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCost:
    """Step 12 for one fleet: mean `replicas`, GPU-hours and money a day, and money per million output tokens.

    Money is None without a price or tokens. `utilization` is the assumed or measured share of capacity.
    """

    name: str
    replicas: float
    gpu_hours_a_day: float
    money_a_day: float | None
    per_million_tokens: float | None
    utilization: float | None
    currency: str
    arithmetic: Arithmetic | None


def size_fleet(plan: TierPlan, peak_rps: float, peak_source: str, capacity: Capacity, margin: Margin) -> FleetProposal:
    """Return Step 11 for a peak that was seen, with its arithmetic."""
    fleet = plan.fleet
    safety, warm = fleet_terms(plan)
    kept = "plan" if fleet and fleet.minimum_warm else "none in the plan"
    told = "plan" if fleet and fleet.safety_factor else "none in the plan"

    def replicas(rps: float | None) -> int | None:
        return count_fleet_of(plan, peak_rps, rps, margin) if rps else None

    chosen = count_fleet_of(plan, peak_rps, capacity.rps, margin)
    share, one_lost = margin.target_utilization, margin.survives_loss_from
    terms = (
        FormulaTerm(name="peak", value=peak_rps, unit="per_second", source=peak_source),
        FormulaTerm(name="capacity", value=capacity.rps, unit="per_second", source=capacity.reason),
        FormulaTerm(name="safety factor", value=safety, unit="", source=told),
        FormulaTerm(name="target utilisation", value=share, unit="ratio", source="NoHeadroom's limit"),
        FormulaTerm(name="minimum warm", value=warm, unit="replicas", source=kept),
    )
    formula = "replicas = max(minimum warm, ceil(peak x safety factor / capacity), ceil(peak / (capacity x target utilisation))"
    formula += f"; from {one_lost} replicas on ceil(peak / capacity) + 1)" if one_lost else ")"
    return FleetProposal(
        count=replica_count(peak_rps, capacity, margin, warm),
        replicas=chosen,
        gpus=chosen * plan.gpu.per_replica,
        fewest=replicas(capacity.high),
        most=replicas(capacity.low),
        safety_factor=safety,
        arithmetic=Arithmetic(
            formula=formula,
            terms=terms,
            result=FormulaTerm(name="replicas", value=chosen, unit="replicas", source="guide 9.1, Step 11"),
        ),
    )


def planned_cost(context: TierContext) -> FleetCost | None:
    """Return the cost of the planned fleet at the planned utilisation of its usable load."""
    plan = context.plan
    if plan is None or plan.fleet is None:
        return None
    tokens = _tokens_at_usable(context)
    used = plan.cost.planned_utilization if plan.cost else None
    made = tokens * plan.fleet.instances * used * 3600 if tokens and used else None
    return _costed("planned", plan, plan.fleet.instances, made, used, "benchmark at usable load x planned utilisation")


def measured_cost(seen: ProductionSummary, utilization: float | None) -> FleetCost | None:
    """Return the cost of the observed replicas and their tokens."""
    if seen.context.plan is None or seen.total is None or seen.observed_replicas <= 0:
        return None
    made, source = tokens_per_hour(seen), "generated tokens, counted"
    return _costed("measured", seen.context.plan, seen.observed_replicas, made, utilization, source)


def proposed_cost(
    seen: ProductionSummary, replicas: int, measured: FleetCost | None, utilization: float | None
) -> FleetCost | None:
    """Return the cost of the proposed fleet with the measured tokens, scaled with traffic as the present fleet is."""
    plan = seen.context.plan
    if plan is None or measured is None:
        return None
    warm = plan.fleet.minimum_warm if plan.fleet and plan.fleet.minimum_warm else 0
    planned = plan.fleet.instances if plan.fleet else seen.observed_replicas
    mean = max(float(warm), replicas * min(1.0, seen.observed_replicas / planned))
    used = utilization * seen.observed_replicas / mean if utilization is not None and mean > 0 else None
    return _costed("proposed", plan, mean, tokens_per_hour(seen), used, "generated tokens, counted")


def _costed(
    name: str, plan: TierPlan, replicas: float, tokens_an_hour: float | None, used: float | None, source: str
) -> FleetCost:
    gpus, cost = replicas * plan.gpu.per_replica, plan.cost
    arithmetic, price = None, None
    if cost is not None and tokens_an_hour:
        price = cost_per_million_tokens(gpus, cost.gpu_hour_price, tokens_an_hour)
        terms = (
            FormulaTerm(name="replicas", value=replicas, unit="replicas", source=name),
            FormulaTerm(name="GPUs a replica", value=plan.gpu.per_replica, unit="", source="plan"),
            FormulaTerm(name="price of a GPU-hour", value=cost.gpu_hour_price, unit=cost.currency, source="plan"),
            FormulaTerm(name="output tokens an hour", value=tokens_an_hour, unit="tokens", source=source),
        )
        arithmetic = Arithmetic(
            formula="cost per million = replicas x GPUs a replica x price / tokens an hour x 1,000,000",
            terms=terms,
            result=FormulaTerm(
                name="cost per million tokens", value=price, unit=cost.currency, source="guide 9.1, Step 12"
            ),
        )
    return FleetCost(
        name=name,
        replicas=replicas,
        gpu_hours_a_day=gpus * HOURS_A_DAY,
        money_a_day=gpus * HOURS_A_DAY * cost.gpu_hour_price if cost else None,
        per_million_tokens=price,
        utilization=used,
        currency=cost.currency if cost else "",
        arithmetic=arithmetic,
    )


def _tokens_at_usable(context: TierContext) -> float | None:
    point = context.curve.usable(context.plan.slo) if context.curve and context.plan else None
    return context.curve.value_at("output_tokens_per_second", point) if context.curve and point else None


def find_peak_rps(seen: ProductionSummary, workload: WorkloadNow) -> tuple[float, str] | None:
    """Return the peak of the arrivals and its source, None if unknown."""
    if workload.peak_rps is None or workload.peak_rps <= 0:
        return None
    return workload.peak_rps, f"three stretches of five minutes in {seen.observed_seconds / 86400:.1f} days seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Cost of `replicas` that run all the time. Money is None without a price. `tokens_per_hour` are the tier's."""

    replicas: float
    gpu_hours_per_hour: float
    per_hour: float | None
    per_month: float | None
    per_million_tokens: float | None
    tokens_per_hour: float | None
    currency: str


def tokens_per_hour(seen: ProductionSummary) -> float | None:
    """Return the tier's output tokens per observed hour, None without any."""
    if seen.total is None or seen.observed_replicas <= 0:
        return None
    tokens = seen.total.counters.get("generation_tokens", 0.0)
    hours = seen.total.seconds_of("generation_tokens") / 3600 / seen.observed_replicas
    return tokens / hours if tokens > 0 and hours > 0 else None


def compute_bill(plan: TierPlan, replicas: float, tokens: float | None) -> Bill:
    """Return the cost of replicas with their output tokens an hour. Raise ValueError for negative replicas."""
    if replicas < 0:
        raise ValueError(f"{replicas} replicas cost nothing and are none")
    gpus = replicas * plan.gpu.per_replica
    price = plan.cost.gpu_hour_price if plan.cost else None
    return Bill(
        replicas=replicas,
        gpu_hours_per_hour=gpus,
        per_hour=None if price is None else gpus * price,
        per_month=None if price is None else gpus * price * HOURS_A_MONTH,
        per_million_tokens=cost_per_million_tokens(gpus, price, tokens) if price is not None and tokens else None,
        tokens_per_hour=tokens,
        currency=plan.cost.currency if plan.cost else "",
    )
