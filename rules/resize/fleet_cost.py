"""Cost of a fleet: planned, measured, proposed, and in a what-if (guide 9.1, Step 12).

Measured tokens are divided by once: they include the utilisation (DESIGN 3.14).
"""

from __future__ import annotations

from dataclasses import dataclass

from rules.plan import money
from rules.plan.load_bins import TierContext
from rules.plan.money import HOURS_A_DAY, HOURS_A_MONTH, Price
from rules.resize.production_summary import ProductionSummary
from rules.sizing import cost_per_million_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCost:
    """Cost of `replicas` on average, used or not. Money is None without a price, by tokens also without any.

    `tokens_per_hour` are the output tokens of the whole tier, `utilization` is the assumed or measured share of capacity.
    `name` is planned, measured or proposed, "" in a what-if.
    """

    replicas: float
    price: Price
    tokens_per_hour: float | None
    utilization: float | None = None
    name: str = ""

    @property
    def gpu_hours_per_hour(self) -> float:
        return self.replicas * self.price.gpus_per_replica

    @property
    def gpu_hours_a_day(self) -> float:
        return self.gpu_hours_per_hour * HOURS_A_DAY

    @property
    def money_per_hour(self) -> float | None:
        each = self.price.gpu_hour_price
        return None if each is None else self.gpu_hours_per_hour * each

    @property
    def money_a_day(self) -> float | None:
        return money.money_per_day(self.replicas, self.price)

    @property
    def money_per_month(self) -> float | None:
        return None if self.money_per_hour is None else self.money_per_hour * HOURS_A_MONTH

    @property
    def per_million_tokens(self) -> float | None:
        """Return the money for a million output tokens."""
        each = self.price.gpu_hour_price
        if each is None or not self.tokens_per_hour:
            return None
        return cost_per_million_tokens(self.gpu_hours_per_hour, each, self.tokens_per_hour)


def planned_cost(context: TierContext) -> FleetCost | None:
    """Return the cost of the planned fleet at the planned utilisation of its usable load."""
    plan, curve = context.plan, context.curve
    if plan is None or plan.fleet is None:
        return None
    point = curve.usable(plan.slo) if curve else None
    tokens = curve.value_at("output_tokens_per_second", point) if curve and point else None
    used = plan.cost.planned_utilization if plan.cost else None
    return FleetCost(
        name="planned",
        replicas=plan.fleet.instances,
        price=money.price_of(plan),
        tokens_per_hour=tokens * plan.fleet.instances * used * 3600 if tokens and used else None,
        utilization=used,
    )


def measured_cost(seen: ProductionSummary, utilization: float | None) -> FleetCost | None:
    """Return the cost of the observed replicas and their tokens."""
    if seen.context.plan is None or seen.total is None or seen.observed_replicas <= 0:
        return None
    return FleetCost(
        name="measured",
        replicas=seen.observed_replicas,
        price=money.price_of(seen.context.plan),
        tokens_per_hour=tokens_per_hour(seen),
        utilization=utilization,
    )


def proposed_cost(seen: ProductionSummary, replicas: int | None, measured: FleetCost | None) -> FleetCost | None:
    """Return the cost of the proposed fleet with the measured tokens, scaled with traffic as the present fleet is."""
    plan = seen.context.plan
    if plan is None or measured is None or not replicas:
        return None
    warm = plan.fleet.minimum_warm if plan.fleet and plan.fleet.minimum_warm else 0
    planned = plan.fleet.instances if plan.fleet else measured.replicas
    mean = max(float(warm), replicas * min(1.0, measured.replicas / planned))
    used = measured.utilization
    return FleetCost(
        name="proposed",
        replicas=mean,
        price=measured.price,
        tokens_per_hour=measured.tokens_per_hour,
        utilization=used * measured.replicas / mean if used is not None and mean > 0 else None,
    )


def tokens_per_hour(seen: ProductionSummary) -> float | None:
    """Return the tier's output tokens per observed hour, None without any."""
    if seen.total is None or seen.observed_replicas <= 0:
        return None
    tokens = seen.total.counters.get("generation_tokens", 0.0)
    hours = seen.total.seconds_of("generation_tokens") / 3600 / seen.observed_replicas
    return tokens / hours if tokens > 0 and hours > 0 else None
