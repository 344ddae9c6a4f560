"""Plausible ranges of plan values, and the unit in which a value outside its range was probably written.

A range must hold for every tier that exists and catch values in another unit. To add a range: a row with its source.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rules.light_dataclass import light_dataclass
from rules.plan.envelope import sort_by_load
from rules.plan.money import HOURS_A_MONTH
from rules.plan.schema import TierPlan

HOURS_A_YEAR = 8766.0

DOLLAR_SIZED = frozenset({"USD", "EUR", "GBP", "CHF", "CAD", "AUD", "NZD", "SGD"})
"""Currencies worth between half a US dollar and two: limits of prices hold for these alone."""


@light_dataclass(frozen=True, slots=True)
class Slip:
    """A unit that is written by mistake: the value times `factor` is in the unit that was asked for."""

    factor: float
    words: str


MILLISECONDS = Slip(1e-3, "milliseconds")
MINUTES = Slip(60.0, "minutes")
THOUSANDS = Slip(1e3, "thousands")
PER_CENT = Slip(1e-2, "per cent")
PRICES = (
    Slip(1 / HOURS_A_MONTH, "the price of a month"),
    Slip(1 / HOURS_A_YEAR, "the price of a year"),
    Slip(1e-2, "cents"),
    Slip(3600.0, "the price of a second"),
)


@light_dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The plausible range of the value at `path` of a tier, both ends included; None: no limit there.

    `unit` stands behind the value, `asked` names in words what the plan asks for.
    """

    path: str
    unit: str
    asked: str = "seconds"
    low: float | None = None
    high: float | None = None
    slips: tuple[Slip, ...] = (MILLISECONDS,)
    why: str


FIRST_TOKEN = "the sizing guide's objective is 2 s (8.3)"
TOKEN = "engines make a token in 15 to 25 ms, and people read one in 90 ms (sizing guide, 1)"

WHOLE = "a request has at least one token"

SLO_LIMITS = (
    Limit(path="slo.ttft_p99_seconds", unit="s", low=0.005, high=60.0, why=FIRST_TOKEN),
    Limit(path="slo.tpot_p99_seconds", unit="s", low=0.0005, high=2.0, why=TOKEN),
    Limit(path="slo.itl_p99_seconds", unit="s", low=0.0005, high=2.0, why=TOKEN),
    Limit(path="slo.e2e_p99_seconds", unit="s", low=0.01, why="a request has a first token and others after it"),
)

LIMITS = (
    *SLO_LIMITS,
    Limit(
        path="workload.prompt_tokens.p50",
        unit="tokens",
        asked="tokens a request",
        low=1.0,
        slips=(THOUSANDS,),
        why=WHOLE,
    ),
    Limit(
        path="workload.generation_tokens.p50",
        unit="tokens",
        asked="tokens a request",
        low=1.0,
        slips=(THOUSANDS,),
        why=WHOLE,
    ),
    Limit(
        path="cold_start_seconds",
        unit="s",
        low=5.0,
        high=3600.0,
        slips=(MILLISECONDS, MINUTES),
        why="loading a 70B model takes 30 to 60 s, a whole cold start 2 to 10 minutes (sizing guide, 1 and 9.2)",
    ),
    Limit(
        path="speculation.draft_step_seconds",
        unit="s",
        high=1.0,
        why="a draft step is shorter than the step that it saves",
    ),
    Limit(path="speculation.verify_step_seconds", unit="s", high=2.0, why=TOKEN),
)
"""Of single values."""

PRICE = Limit(
    path="cost.gpu_hour_price",
    unit="an hour",
    asked="the price of one GPU for one hour",
    low=0.01,
    high=25.0,
    slips=PRICES,
    why="an hour of an H100 costs 2.50 in the sizing guide, and this is one GPU, not a server",
)
"""Ten times the guide's price."""

CURVE_LIMITS = (
    Limit(path="ttft_p50_seconds", unit="s", high=60.0, why=FIRST_TOKEN),
    Limit(path="ttft_p99_seconds", unit="s", high=60.0, why=FIRST_TOKEN),
    Limit(path="tpot_p50_seconds", unit="s", high=2.0, why=TOKEN),
    Limit(path="tpot_p99_seconds", unit="s", high=2.0, why=TOKEN),
)
"""Of the lowest load of the curve alone: past the knee a queue makes every latency long."""

EVICTIONS = Limit(
    path="eviction_rate",
    unit="evictions a request",
    asked="evictions by finished requests",
    high=2.0,
    slips=(PER_CENT,),
    why="above 0.2 a replica is already degraded (sizing guide, 9.3)",
)
"""Of every point."""


def implausible(tier: TierPlan) -> Iterator[tuple[str, str]]:
    """Yield path and sentence of every value outside its range."""
    batch = tier.workload is not None and tier.workload.archetype == "batch"
    for limit in LIMITS:
        # Nobody waits for the first token of a batch (guide 1): its objective may be as long as anybody likes.
        if not (batch and limit in SLO_LIMITS):
            yield from _outside(limit, limit.path, _value(tier, limit.path))
    if tier.cost is not None and tier.cost.currency in DOLLAR_SIZED:
        yield from _outside(PRICE, PRICE.path, tier.cost.gpu_hour_price, tier.cost.currency)
    if tier.curve is None:
        return
    lowest = sort_by_load(tier.curve)[0]
    for place, point in enumerate(tier.curve.points):
        limits = (*CURVE_LIMITS, EVICTIONS) if point is lowest else (EVICTIONS,)
        for limit in limits:
            yield from _outside(limit, f"curve.points[{place}].{limit.path}", getattr(point, limit.path))


def _value(tier: TierPlan, path: str) -> float | None:
    part: object = tier
    for name in path.split("."):
        part = getattr(part, name, None)
    return part if isinstance(part, int | float) else None


def _outside(limit: Limit, path: str, value: float | None, currency: str = "") -> Iterator[tuple[str, str]]:
    if value is None or ((limit.low is None or value >= limit.low) and (limit.high is None or value <= limit.high)):
        return
    side = "below" if limit.low is not None and value < limit.low else "above"
    bound = limit.low if side == "below" else limit.high
    unit = f"{currency} {limit.unit}".strip()
    text = f"{value:.6g} {unit} is {side} {bound:g}, the limit of what is plausible: {limit.why}"
    yield path, f"{text}; {_instead(limit, value)}"


def _instead(limit: Limit, value: float) -> str:
    low, high = limit.low or 0.0, math.inf if limit.high is None else limit.high
    meant = [
        f"if it is {slip.words}, write {value * slip.factor:.4g}"
        for slip in limit.slips
        if low <= value * slip.factor <= high
    ]
    return ", ".join(meant) or f"write it in {limit.asked}"
