"""Levers of the utilization trap (guide 9.2) with their worth on one tier, and its utilisation by hour of the week.

Levers overlap, so their sum has no meaning. To add a lever: a function here and a row of LEVERS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from rules.catalogue.registry import BY_NAME as RULES
from rules.confidence import Certainty
from rules.methods.utilization import find_idle, hours_of_fullest, mean_ready_replicas
from rules.plan import money
from rules.plan.replica_count import count_fleet, count_replicas, fleet_terms
from rules.resize.fleet_cost import FleetProposal
from rules.resize.production_summary import ProductionSummary, Rate
from rules.telemetry import windows
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Reading
from rules.telemetry.windows import HOUR_SECONDS, Window
from rules.telemetry.wording import format_count
from rules.telemetry.work import Capacity

SHORTER = 0.30
"""Guide 9.2: "a 30% reduction in average prompt length translates directly to a 30% improvement in effective throughput"."""

SIMPLE = 0.40
"""Guide 9.2: "a large model fleet serving 40% simple requests that a 7B model could handle"."""


SCHEDULE = "Scaling by schedule"
"""Name of the lever that follows the hours of a day."""


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
    """Lever with the mean `replicas` that it frees or fills, in GPU-hours and money a day (None: no price).

    `basis` explains the calculation. `missing` is why there is none.
    """

    name: str
    replicas: float | None = None
    gpu_hours_a_day: float | None = None
    money_a_day: float | None = None
    certainty: Certainty = Certainty.LIKELY
    basis: str = ""
    missing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverCase:
    """Input of the levers: hours of at least one replica with their utilisation (None: unknown)."""

    seen: ProductionSummary
    usable: Capacity
    sized: FleetProposal
    hours: tuple[tuple[Window, float | None], ...]
    target: float
    warm: int


def read_target_utilization(seen: ProductionSummary) -> float:
    """Return the target of fleet utilisation, 0-1 (UtilizationTrap)."""
    return RULES["UtilizationTrap"].limit("target", seen.context.limits)


def list_used_hours(seen: ProductionSummary) -> tuple[tuple[Window, float | None], ...]:
    """Return the hours under the present plan with their fleet utilisation."""
    found = []
    for hour in seen.plan_hours:
        value = read(BY_NAME["fleet_utilization"], hour, seen.context.basis)
        found.append((hour, value.value if isinstance(value, Reading) else None))
    return tuple(found)


def group_by_hour_of_week(seen: ProductionSummary, zone: str) -> tuple[HourOfWeek, ...]:
    """Return all 168 hours of the week from Monday 0:00 on, by the clock of `zone` (an IANA name)."""
    clock, target = ZoneInfo(zone), read_target_utilization(seen)
    grouped: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for hour, used in list_used_hours(seen):
        if used is None or hour.span <= 0:
            continue
        local = datetime.fromtimestamp(hour.middle, clock)
        idle = money.spare_replicas(mean_ready_replicas((hour,)), used, target)
        grouped.setdefault((local.weekday(), local.hour), []).append((used, idle))
    return tuple(_of_week(day, hour, grouped.get((day, hour), [])) for day in range(7) for hour in range(24))


def _of_week(day: int, hour: int, several: Sequence[tuple[float, float]]) -> HourOfWeek:
    n = len(several)
    return HourOfWeek(
        weekday=day,
        hour=hour,
        utilization=math.fsum(used for used, _ in several) / n if n else None,
        idle_replicas=math.fsum(idle for _, idle in several) / n if n else None,
        count=n,
    )


def list_levers(seen: ProductionSummary, usable: Capacity, sized: FleetProposal) -> tuple[Lever, ...]:
    """Return every lever of a tier, the one that is worth most first."""
    case = LeverCase(
        seen=seen,
        usable=usable,
        sized=sized,
        hours=list_used_hours(seen),
        target=read_target_utilization(seen),
        warm=fleet_terms(seen.context.plan)[1] if seen.context.plan else 1,
    )
    found = [lever(case) for lever in LEVERS]
    return tuple(sorted(found, key=lambda one: -(one.replicas or 0.0)))


def _batch_fill(case: LeverCase) -> Lever:
    """Return the idle replica-hours, including the minimum warm count: it is warm and paid for too."""
    known = [(hour, used) for hour, used in case.hours if used is not None]
    if not known:
        return Lever(name="Offline batch fill", missing="no hour's fleet utilisation is known")
    idle = [money.spare_replicas(mean_ready_replicas((hour,)), used, case.target) for hour, used in known]
    most = max(idle)
    basis = f"replicas beyond {case.target:.0%} utilisation, hour by hour ({most:.1f} at most); batch work costs electricity only"
    return _lever(case, "Offline batch fill", math.fsum(idle) / len(idle), Certainty.CERTAIN, basis)


def _schedule(case: LeverCase) -> Lever:
    """Return ready replicas beyond the need of each hour's busiest five minutes, the bound of any schedule."""
    peaks = _peaks(case.seen.rates)
    saved, counted = 0.0, 0
    for hour, _ in case.hours:
        peak = peaks.get(hour.middle // HOUR_SECONDS * HOUR_SECONDS)
        if peak is None:
            continue
        counted += 1
        needed = max(case.warm, count_replicas(peak, case.usable.rps, case.sized.count.margin))
        saved += max(0.0, mean_ready_replicas((hour,)) - needed)
    if not counted:
        return Lever(name=SCHEDULE, missing="no hour's arrivals are known")
    basis = "ready replicas beyond what the busiest five minutes of each hour needed, the margin included: "
    basis += "the most that a schedule could save, if it knew each hour beforehand"
    return _lever(case, SCHEDULE, saved / counted, Certainty.LIKELY, basis)


def _peaks(rates: Sequence[Rate]) -> Mapping[float, float]:
    peaks: dict[float, float] = {}
    for one in rates:
        hour = one.start // HOUR_SECONDS * HOUR_SECONDS
        peaks[hour] = max(peaks.get(hour, 0.0), one.rps)
    return peaks


def _colocation(case: LeverCase) -> Lever:
    """Return the surplus replicas (DESIGN 3.22), which another model could use."""
    if not case.seen.plan_hours:
        return Lever(name="Model colocation", missing="no hour under the present plan was seen")
    trap, limits = RULES["UtilizationTrap"], case.seen.context.limits
    full = hours_of_fullest(case.seen.plan_hours, "kv_utilization", trap.limit("fullest_hours", limits))
    if full is not None and full[0] >= trap.limit("kv_below", limits):
        return Lever(name="Model colocation", missing="memory sets the size of this fleet, not load")
    used = read(BY_NAME["fleet_utilization"], windows.sum_windows(case.seen.plan_hours), case.seen.context.basis)
    if not isinstance(used, Reading) or used.value is None:
        return Lever(name="Model colocation", missing="fleet utilisation is not known")
    idle = find_idle(case.seen.context, case.seen.plan_hours, case.sized.count.margin)
    basis = f"{idle.ready:.1f} ready replicas, fleet utilisation {used.value:.1%} on average; the busiest hour needs "
    basis += f"{idle.needed}, the minimum warm count is {idle.minimum_warm or 'not in the plan'}"
    return _lever(case, "Model colocation", idle.replicas, Certainty.CERTAIN, basis)


def _shorter_prompts(case: LeverCase) -> Lever:
    peak = case.sized.arithmetic.terms[0].value
    after = _fleet_for(case, peak, case.usable.rps * (1 + SHORTER))
    basis = f"{SHORTER:.0%} shorter prompts as {SHORTER:.0%} more usable rps (guide 9.2, a rule of thumb): "
    basis += f"{format_count(after, 'replica')} at the peak instead of {case.sized.replicas}"
    return _lever(case, "Shorter prompts", float(max(0, case.sized.replicas - after)), Certainty.LIKELY, basis)


def _routing(case: LeverCase) -> Lever:
    peak = case.sized.arithmetic.terms[0].value * (1 - SIMPLE)
    after = _fleet_for(case, peak, case.usable.rps)
    basis = f"if {SIMPLE:.0%} of the requests were simple (the guide's example, not measured here): "
    basis += f"{format_count(after, 'replica')} instead of {case.sized.replicas}, before what the small model costs"
    return _lever(case, "Routing simple requests", float(max(0, case.sized.replicas - after)), Certainty.LIKELY, basis)


def _fleet_for(case: LeverCase, peak: float, capacity_rps: float) -> int:
    return count_fleet(peak, capacity_rps, case.sized.safety_factor, case.sized.count.margin, case.warm)


LEVERS: tuple[Callable[[LeverCase], Lever], ...] = (_batch_fill, _schedule, _colocation, _shorter_prompts, _routing)


def _lever(case: LeverCase, name: str, replicas: float, certainty: Certainty, basis: str) -> Lever:
    plan = case.seen.context.plan
    price = money.price_of(plan) if plan else None
    return Lever(
        name=name,
        replicas=replicas,
        gpu_hours_a_day=money.gpu_hours_a_day(replicas, price.gpus_per_replica) if price else None,
        money_a_day=money.money_per_day(replicas, price) if price else None,
        certainty=certainty,
        basis=basis,
    )
