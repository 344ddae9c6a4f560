"""What so many replicas cost an hour, a month and a million output tokens, and what that is against now.

Owns the money of a what-if. Measured tokens are divided by once (DESIGN 3.14): utilisation is in them already.
"""

from __future__ import annotations

from dataclasses import dataclass

from rules.plan.schema import TierPlan
from rules.resize.production_summary import ProductionSummary
from rules.sizing import cost_per_million_tokens

HOURS_A_MONTH = 365 * 24 / 12
"""730: a twelfth of a year, as clouds reckon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What `replicas` cost, running all the time. Money is None where the plan has no price; of a million output tokens also
    where none were seen. `tokens_per_hour` are the whole tier's."""

    replicas: float
    gpu_hours_per_hour: float
    per_hour: float | None
    per_month: float | None
    per_million_tokens: float | None
    tokens_per_hour: float | None
    currency: str


def tokens_per_hour(seen: ProductionSummary) -> float | None:
    """Output tokens that the tier made in an hour, on average over the seconds that were seen; None where none were counted."""
    if seen.total is None or seen.mean_ready_replicas <= 0:
        return None
    tokens = seen.total.counters.get("generation_tokens", 0.0)
    hours = seen.total.seconds_of("generation_tokens") / 3600 / seen.mean_ready_replicas
    return tokens / hours if tokens > 0 and hours > 0 else None


def compute_bill(plan: TierPlan, replicas: float, tokens: float | None) -> Bill:
    """The cost of so many replicas that make so many output tokens an hour. Raises ValueError for fewer than none."""
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
