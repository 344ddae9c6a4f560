"""Daily cost of replicas, used or idle (guide 9.2), in money or in GPU-hours without a price."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from rules.plan.schema import TierPlan

HOURS_A_DAY = 24.0
HOURS_A_MONTH = 730.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """GPUs of a replica and price of one GPU for an hour (None: not in the plan)."""

    gpus_per_replica: float
    gpu_hour_price: float | None = None
    currency: str = ""


def price_of(plan: TierPlan) -> Price:
    """Return the price of the tier's replicas from its plan."""
    price = {} if plan.cost is None else plan.cost.model_dump(include={"gpu_hour_price", "currency"})
    return Price(gpus_per_replica=plan.gpu.per_replica, **price)


def gpu_hours_a_day(replicas: float, gpus_per_replica: float) -> float:
    """Return the GPU-hours of replicas in a day, used or not (guide 9.2: "the GPU does not know the difference")."""
    return replicas * gpus_per_replica * HOURS_A_DAY


def cost_per_day(replicas: float, price: Price) -> str:
    """Return the daily cost of replicas in words: money, or GPU-hours without a price."""
    money = money_per_day(replicas, price)
    if money is None:
        return f"{figure(gpu_hours_a_day(replicas, price.gpus_per_replica))} GPU-hours a day"
    return f"{amount(money, price.currency)} a day"


def money_per_day(replicas: float, price: Price) -> float | None:
    """Return the daily cost of replicas in the price's currency, None without a price."""
    if price.gpu_hour_price is None:
        return None
    return gpu_hours_a_day(replicas, price.gpus_per_replica) * price.gpu_hour_price


def amount(value: float, currency: str) -> str:
    """Return an amount with its currency: "1,234 USD", "72 USD", "0.0868 USD"."""
    return f"{figure(value)} {currency}".strip()


def figure(value: float) -> str:
    """Return a number with whole units from 100 on, else three significant digits without exponent."""
    # What rounds to a hundred is written without a fraction: cents of a day's bill would be noise.
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return format(Decimal(f"{value:.3g}"), "f")
