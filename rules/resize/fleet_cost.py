"""Cost of a fleet (guide 9.1, Step 12), and the worth of each lever of the utilization trap (guide 9.2).

Measured tokens include the utilisation (DESIGN 3.14). Levers overlap: they have no sum. `list_levers` has a line of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from pydantic import computed_field

from rules.catalogue.registry import BY_NAME as RULES
from rules.confidence import Certainty
from rules.methods.utilization import find_idle, mean_ready_replicas
from rules.plan import money
from rules.plan.capacity import benchmarked_mean, planned_capacity, planned_work
from rules.plan.curve import Curve
from rules.plan.money import HOURS_A_DAY, HOURS_A_MONTH, Price
from rules.plan.replica_count import ReplicaCount, count_fleet, count_replicas
from rules.plan.schema import TierPlan
from rules.resize.production_summary import ProductionSummary
from rules.sizing import cost_per_million_tokens, spare_replicas
from rules.telemetry import windows
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Reading, SignalValue
from rules.telemetry.windows import HOUR_SECONDS, Window
from rules.telemetry.wording import format_count


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

    @computed_field  # type: ignore[prop-decorator]
    @property
    def gpu_hours_a_day(self) -> float:
        return self.gpu_hours_per_hour * HOURS_A_DAY

    @property
    def money_per_hour(self) -> float | None:
        each = self.price.gpu_hour_price
        return None if each is None else self.gpu_hours_per_hour * each

    @computed_field  # type: ignore[prop-decorator]
    @property
    def money_a_day(self) -> float | None:
        return money.money_per_day(self.replicas, self.price)

    @property
    def money_per_month(self) -> float | None:
        return None if self.money_per_hour is None else self.money_per_hour * HOURS_A_MONTH

    @computed_field  # type: ignore[prop-decorator]
    @property
    def per_million_tokens(self) -> float | None:
        """Return the money for a million output tokens."""
        each = self.price.gpu_hour_price
        if each is None or not self.tokens_per_hour:
            return None
        return cost_per_million_tokens(self.gpu_hours_per_hour, each, self.tokens_per_hour)


def planned_cost(plan: TierPlan | None) -> FleetCost | None:
    """Return the cost of the planned fleet, for planned requests at planned utilisation of its capacity."""
    if plan is None or plan.fleet is None:
        return None
    replicas, used = plan.fleet.instances, plan.value_at("cost.planned_utilization")
    capacity, name, tokens = planned_capacity(plan), "generation_tokens", None
    mean = plan.value_at(f"workload.{name}.mean") or benchmarked_mean(plan, Curve.from_plan(plan), name)
    if used and capacity is not None and mean is not None:
        rps = replicas * used * capacity.rps / planned_work(plan, capacity.lengths)
        tokens = mean * rps * HOUR_SECONDS
    price = money.price_of(plan)
    return FleetCost(name="planned", replicas=replicas, price=price, tokens_per_hour=tokens, utilization=used)


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


SHORTER = 0.30
"""Guide 9.2: "a 30% reduction in average prompt length translates directly to a 30% improvement in effective throughput"."""

SIMPLE = 0.40
"""Guide 9.2: "a large model fleet serving 40% simple requests that a 7B model could handle"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """Lever with the mean `replicas` that it frees or fills, at a price. `basis` explains the calculation.

    Without `replicas`, `missing` is the reason.
    """

    name: str
    price: Price
    replicas: float | None = None
    certainty: Certainty = Certainty.LIKELY
    basis: str = ""
    missing: str = ""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def gpu_hours_a_day(self) -> float | None:
        return None if self.replicas is None else money.gpu_hours_a_day(self.replicas, self.price.gpus_per_replica)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def money_a_day(self) -> float | None:
        return None if self.replicas is None else money.money_per_day(self.replicas, self.price)


def _list_idle_hours(seen: ProductionSummary, target: float) -> Iterator[tuple[Window, float, float]]:
    """Yield the hours under the present plan with their fleet utilisation, if known, and the replicas beyond `target`."""
    for hour in seen.plan_hours:
        used = read(BY_NAME["fleet_utilization"], hour, seen.context.basis)
        if isinstance(used, Reading) and used.value is not None:
            yield hour, used.value, spare_replicas(mean_ready_replicas((hour,)), used.value, target)


def group_by_hour_of_week(
    seen: ProductionSummary, zone: str
) -> Mapping[tuple[int, int], Sequence[tuple[float, float]]]:
    """Return fleet utilisation and idle replicas of each hour seen, by weekday (0 is Monday) and hour.

    The clock is that of `zone` (an IANA name). Idle are the replicas beyond the number at the target utilisation.
    """
    clock, target = ZoneInfo(zone), RULES["UtilizationTrap"].limit("target", seen.context.limits)
    grouped: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for hour, used, idle in _list_idle_hours(seen, target):
        if hour.span > 0:
            local = datetime.fromtimestamp(hour.middle, clock)
            grouped.setdefault((local.weekday(), local.hour), []).append((used, idle))
    return grouped


def list_levers(
    seen: ProductionSummary, size: ReplicaCount, price: Price, used: SignalValue, is_memory_bound: bool
) -> tuple[Lever, ...]:
    """Return every lever of a tier, the one that is worth most first.

    `size` is the fleet that its peak needs, `used` the mean fleet utilisation under the present plan.
    """
    shorter = f"{SHORTER:.0%} shorter prompts as {SHORTER:.0%} more usable rps (guide 9.2, a rule of thumb): "
    shorter += "{} at the peak instead of {}"
    simple = f"if {SIMPLE:.0%} of the requests were simple (the guide's example, not measured here): "
    simple += "{} instead of {}, before what the small model costs"
    levers = (
        _fill_with_batches(seen, price),
        _follow_schedule(seen, size, price),
        _share_with_another_model(seen, size, price, used, is_memory_bound),
        _resize("Shorter prompts", shorter, size, price, size.demand_rps, size.capacity.rps * (1 + SHORTER)),
        _resize("Routing simple requests", simple, size, price, size.demand_rps * (1 - SIMPLE), size.capacity.rps),
    )
    return tuple(sorted(levers, key=lambda lever: -(lever.replicas or 0.0)))


def _fill_with_batches(seen: ProductionSummary, price: Price) -> Lever:
    """Return the idle replica-hours, including the minimum warm count: it is warm and paid for too."""
    name, target = "Offline batch fill", RULES["UtilizationTrap"].limit("target", seen.context.limits)
    idle = [spare for _, _, spare in _list_idle_hours(seen, target)]
    if not idle:
        return Lever(name=name, price=price, missing="no hour's fleet utilisation is known")
    basis = f"replicas beyond {target:.0%} utilisation, hour by hour ({max(idle):.1f} at most); "
    basis += "batch work costs electricity only"
    return Lever(name=name, price=price, replicas=math.fsum(idle) / len(idle), certainty=Certainty.CERTAIN, basis=basis)


def _follow_schedule(seen: ProductionSummary, size: ReplicaCount, price: Price) -> Lever:
    """Return ready replicas beyond the need of each hour's busiest five minutes, the bound of any schedule."""
    name = "Scaling by schedule"
    by_hour, spare = windows.group_by(seen.rates, lambda rate: rate.start // HOUR_SECONDS), []
    for hour in seen.plan_hours:
        if rates := by_hour.get(hour.middle // HOUR_SECONDS):
            peak = max(rate.work(size.capacity.lengths) for rate in rates)
            needed = max(size.minimum, count_replicas(peak, size.capacity.rps, size.margin))
            spare.append(max(0.0, mean_ready_replicas((hour,)) - needed))
    if not spare:
        return Lever(name=name, price=price, missing="no hour's arrivals are known")
    basis = "ready replicas beyond what the busiest five minutes of each hour needed, the margin included: "
    basis += "the most that a schedule could save, if it knew each hour beforehand"
    return Lever(name=name, price=price, replicas=sum(spare) / len(spare), basis=basis)


def _share_with_another_model(
    seen: ProductionSummary, size: ReplicaCount, price: Price, used: SignalValue, is_memory_bound: bool
) -> Lever:
    """Return the surplus replicas (DESIGN 3.22), which another model could use."""
    name = "Model colocation"
    if is_memory_bound:
        return Lever(name=name, price=price, missing="memory sets the size of this fleet, not load")
    if not isinstance(used, Reading) or used.value is None:
        return Lever(name=name, price=price, missing="fleet utilisation is not known")
    idle = find_idle(seen.context, seen.plan_hours, size.margin)
    basis = f"{idle.ready:.1f} ready replicas, fleet utilisation {used.value:.1%} on average; the busiest hour needs "
    basis += f"{idle.needed}, the minimum warm count is {idle.minimum_warm or 'not in the plan'}"
    return Lever(name=name, price=price, replicas=idle.replicas, certainty=Certainty.CERTAIN, basis=basis)


def _resize(name: str, basis: str, size: ReplicaCount, price: Price, peak_rps: float, capacity_rps: float) -> Lever:
    """Return the replicas that another peak or capacity frees. `basis` has places for the counts after and before."""
    after = count_fleet(peak_rps, capacity_rps, size.safety_factor, size.margin, size.minimum)
    text = basis.format(format_count(after, "replica"), size.replicas)
    return Lever(name=name, price=price, replicas=float(max(0, size.replicas - after)), basis=text)
