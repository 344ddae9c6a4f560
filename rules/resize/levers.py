"""Levers of the utilization trap (guide 9.2) with their worth on one tier, and its utilisation by hour of the week.

Levers overlap, so their sum has no meaning. To add a lever: a function here and a line of `list_levers`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from rules.catalogue.registry import BY_NAME as RULES
from rules.confidence import Certainty
from rules.methods.utilization import find_idle, hours_of_fullest, mean_ready_replicas
from rules.plan import money
from rules.plan.money import Price
from rules.plan.replica_count import ReplicaCount, count_fleet, count_replicas
from rules.resize.production_summary import ProductionSummary
from rules.telemetry import windows
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Reading
from rules.telemetry.windows import HOUR_SECONDS, Window
from rules.telemetry.wording import format_count

SHORTER = 0.30
"""Guide 9.2: "a 30% reduction in average prompt length translates directly to a 30% improvement in effective throughput"."""

SIMPLE = 0.40
"""Guide 9.2: "a large model fleet serving 40% simple requests that a 7B model could handle"."""

SCHEDULE = "Scaling by schedule"
"""Name of the lever that follows the hours of a day."""

UsedHours = Sequence[tuple[Window, float]]
"""Hours of at least one replica with their known fleet utilisation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HourOfWeek:
    """Hour of the week by the local clock (`weekday` 0 is Monday), mean of the `count` hours seen (None: none).

    `idle_replicas` are those beyond the number at the target utilisation.
    """

    weekday: int
    hour: int
    utilization: float | None
    idle_replicas: float | None
    count: int


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

    @property
    def gpu_hours_a_day(self) -> float | None:
        return None if self.replicas is None else money.gpu_hours_a_day(self.replicas, self.price.gpus_per_replica)

    @property
    def money_a_day(self) -> float | None:
        return None if self.replicas is None else money.money_per_day(self.replicas, self.price)


def read_target_utilization(seen: ProductionSummary) -> float:
    """Return the target of fleet utilisation, 0-1 (UtilizationTrap)."""
    return RULES["UtilizationTrap"].limit("target", seen.context.limits)


def _list_used_hours(seen: ProductionSummary) -> UsedHours:
    """Return the hours under the present plan whose fleet utilisation is known."""
    read_hours = ((hour, read(BY_NAME["fleet_utilization"], hour, seen.context.basis)) for hour in seen.plan_hours)
    return [(hour, used.value) for hour, used in read_hours if isinstance(used, Reading) and used.value is not None]


def group_by_hour_of_week(seen: ProductionSummary, zone: str) -> tuple[HourOfWeek, ...]:
    """Return all 168 hours of the week from Monday 0:00 on, by the clock of `zone` (an IANA name)."""
    clock, target = ZoneInfo(zone), read_target_utilization(seen)
    grouped: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for hour, used in _list_used_hours(seen):
        if hour.span > 0:
            local = datetime.fromtimestamp(hour.middle, clock)
            idle = money.spare_replicas(mean_ready_replicas((hour,)), used, target)
            grouped.setdefault((local.weekday(), local.hour), []).append((used, idle))
    week = []
    for place in range(7 * 24):
        rows = grouped.get(divmod(place, 24), [])
        means = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)] if rows else [None, None]
        week.append(
            HourOfWeek(
                weekday=place // 24, hour=place % 24, utilization=means[0], idle_replicas=means[1], count=len(rows)
            )
        )
    return tuple(week)


def list_levers(seen: ProductionSummary, size: ReplicaCount, price: Price) -> tuple[Lever, ...]:
    """Return every lever of a tier, the one that is worth most first. `size` is the fleet that its peak needs."""
    hours = _list_used_hours(seen)
    shorter = (
        f"{SHORTER:.0%} shorter prompts as {SHORTER:.0%} more usable rps (guide 9.2, a rule of thumb): {{}} at the "
    )
    shorter += "peak instead of {}"
    simple = (
        f"if {SIMPLE:.0%} of the requests were simple (the guide's example, not measured here): {{}} instead of {{}}, "
    )
    simple += "before what the small model costs"
    levers = (
        _fill_with_batches(hours, read_target_utilization(seen), price),
        _follow_schedule(seen, size, price),
        _share_with_another_model(seen, size, price),
        _resize("Shorter prompts", shorter, size, price, size.demand_rps, size.capacity.rps * (1 + SHORTER)),
        _resize("Routing simple requests", simple, size, price, size.demand_rps * (1 - SIMPLE), size.capacity.rps),
    )
    return tuple(sorted(levers, key=lambda lever: -(lever.replicas or 0.0)))


def _fill_with_batches(hours: UsedHours, target: float, price: Price) -> Lever:
    """Return the idle replica-hours, including the minimum warm count: it is warm and paid for too."""
    name = "Offline batch fill"
    if not hours:
        return Lever(name=name, price=price, missing="no hour's fleet utilisation is known")
    idle = [money.spare_replicas(mean_ready_replicas((hour,)), used, target) for hour, used in hours]
    basis = f"replicas beyond {target:.0%} utilisation, hour by hour ({max(idle):.1f} at most); "
    basis += "batch work costs electricity only"
    mean = math.fsum(idle) / len(idle)
    return Lever(name=name, price=price, replicas=mean, certainty=Certainty.CERTAIN, basis=basis)


def _follow_schedule(seen: ProductionSummary, size: ReplicaCount, price: Price) -> Lever:
    """Return ready replicas beyond the need of each hour's busiest five minutes, the bound of any schedule."""
    peaks: dict[float, float] = {}
    for rate in seen.rates:
        start = rate.start // HOUR_SECONDS * HOUR_SECONDS
        peaks[start] = max(peaks.get(start, 0.0), rate.rps)
    spare = []
    for hour in seen.plan_hours:
        peak = peaks.get(hour.middle // HOUR_SECONDS * HOUR_SECONDS)
        if peak is not None:
            needed = max(size.minimum, count_replicas(peak, size.capacity.rps, size.margin))
            spare.append(max(0.0, mean_ready_replicas((hour,)) - needed))
    if not spare:
        return Lever(name=SCHEDULE, price=price, missing="no hour's arrivals are known")
    basis = "ready replicas beyond what the busiest five minutes of each hour needed, the margin included: "
    basis += "the most that a schedule could save, if it knew each hour beforehand"
    return Lever(name=SCHEDULE, price=price, replicas=sum(spare) / len(spare), basis=basis)


def _share_with_another_model(seen: ProductionSummary, size: ReplicaCount, price: Price) -> Lever:
    """Return the surplus replicas (DESIGN 3.22), which another model could use."""
    name = "Model colocation"
    if not seen.plan_hours:
        return Lever(name=name, price=price, missing="no hour under the present plan was seen")
    trap, limits = RULES["UtilizationTrap"], seen.context.limits
    full = hours_of_fullest(seen.plan_hours, "kv_utilization", trap.limit("fullest_hours", limits))
    if full is not None and full[0] >= trap.limit("kv_below", limits):
        return Lever(name=name, price=price, missing="memory sets the size of this fleet, not load")
    used = read(BY_NAME["fleet_utilization"], windows.sum_windows(seen.plan_hours), seen.context.basis)
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
