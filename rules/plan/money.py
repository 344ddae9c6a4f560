"""What replicas cost a day, used or idle: the money of verdicts (guide 9.2), in GPU-hours where there is no price.

Owns these formulas and how an amount is written. It reads no window and no threshold: whoever judges passes in replicas,
utilisation and target. A new kind of cost is a function here, with its worked example as a test.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal

from rules.plan.schema import TierPlan

HOURS_A_DAY = 24.0

WHOLE = 99.95
"""What rounds to a hundred is written without a fraction: cents of a day's bill would be noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a replica is made of and what that costs: GPUs, price of one GPU for an hour (None: not in the plan)."""

    gpus_per_replica: float
    gpu_hour_price: float | None = None
    currency: str = ""


def price_of(plan: TierPlan) -> Price:
    """The price of the tier's replicas, as its plan has it."""
    if plan.cost is None:
        return Price(gpus_per_replica=plan.gpu.per_replica)
    return Price(
        gpus_per_replica=plan.gpu.per_replica,
        gpu_hour_price=plan.cost.gpu_hour_price,
        currency=plan.cost.currency,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleCapacity:
    """Replicas (on average over the time) that were ready and not needed: the `insured` are kept warm on purpose."""

    ready: float
    spare: float
    insured: float

    @property
    def wasted(self) -> float:
        return self.spare - self.insured


def gpu_hours_a_day(replicas: float, gpus_per_replica: float) -> float:
    """GPU-hours that so many replicas take in a day, used or not: "the GPU does not know the difference" (guide 9.2).

    Raises ValueError for less than no replicas or for no GPUs.
    """
    if not (0 <= replicas < math.inf and 0 < gpus_per_replica < math.inf):
        raise ValueError(f"{replicas} replicas of {gpus_per_replica} GPUs take no GPU-hours")
    return replicas * gpus_per_replica * HOURS_A_DAY


def spare_replicas(ready: float, utilization: float, target: float) -> float:
    """Ready replicas beyond those that would do the same work at the target utilisation: ready x (1 - utilisation / target).

    Guide 9.2: a fleet at 40 % pays for every seat of the plane; at the target it would need ready x utilisation / target
    replicas. 10 replicas at 30 % with a target of 60 % are 5 too many. None is spare at or above the target. Raises
    ValueError for a target that is not above 0, and for negative replicas or utilisation.
    """
    if not 0 < target < math.inf or ready < 0 or utilization < 0:
        raise ValueError(f"{ready} replicas at {utilization} of a target of {target} cannot be")
    return ready * max(0.0, 1 - utilization / target)


def compute_idle_capacity(ready: float, utilization: float, target: float, minimum_warm: float) -> IdleCapacity:
    """Spare replicas, those kept warm on purpose apart.

    Guide 9.2: "the minimum warm instance count is not waste - it is the premium you pay for responsive scaling"; so as many
    of the spare ones as the plan never scales away are insurance (DESIGN 3.12), the others are the trap.
    """
    spare = spare_replicas(ready, utilization, target)
    return IdleCapacity(ready=ready, spare=spare, insured=min(spare, minimum_warm))


def cost_per_day(replicas: float, price: Price) -> str:
    """What so many replicas cost a day, in words: money in the plan's currency, GPU-hours where it has no price."""
    hours = gpu_hours_a_day(replicas, price.gpus_per_replica)
    if price.gpu_hour_price is None:
        return f"{figure(hours)} GPU-hours a day"
    return f"{amount(hours * price.gpu_hour_price, price.currency)} a day"


def amount(value: float, currency: str) -> str:
    """An amount with its currency, the one way in which money is written: "1,234 USD", "72 USD", "0.0868 USD"."""
    return f"{figure(value)} {currency}".strip()


def figure(value: float) -> str:
    """Whole units from 100 on, three significant digits below, no zeros behind them and no exponent."""
    if abs(value) >= WHOLE:
        return f"{value:,.0f}"
    return format(Decimal(f"{value:.3g}"), "f")
