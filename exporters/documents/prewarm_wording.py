"""Words for a recommended replica count and for the parts of its demand.

The formula is `rules.plan.replica_count`. Demands are requests per second.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from rules.plan.replica_count import ReplicaCount
from rules.telemetry.wording import number


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Basis of a count: the margin, the demand (requests per second), and the counts at the capacity bounds (None:
    open). The utilisation is of the recommended replicas, also with a lost replica.
    """

    target_utilization: float
    survives_loss_from: int
    demand_rps: float
    fewest: int | None
    most: int | None
    utilization: float | None
    utilization_one_lost: float | None


def build_count_text(one: ReplicaCount) -> Counted:
    """Return a count as shown by commands and pages."""
    return Counted(
        target_utilization=one.margin.target_utilization,
        survives_loss_from=one.margin.survives_loss_from,
        demand_rps=one.demand_rps,
        fewest=one.fewest,
        most=one.most,
        utilization=one.utilization,
        utilization_one_lost=one.utilization_one_lost,
    )


def bounds_words(best: float, low: float | None, high: float | None) -> str:
    """Return the bounds of the capacity in words, "" if they equal the number."""
    if low == high == best:
        return ""
    if high is None:
        return "" if low is None else f" (at least {number(low, 'per_second')})"
    if low is None:
        return f" (at most {number(high, 'per_second')})"
    return f" ({number(low, 'per_second')} to {number(high, 'per_second')})"


def count_words(replicas: int, counted: Counted) -> str:
    """Return the utilisation of the recommended replicas, the margin, and the range of counts."""
    used = "" if counted.utilization is None else f"{counted.utilization:.0%} used"
    if counted.utilization_one_lost is not None:
        used += f", {counted.utilization_one_lost:.0%} with one lost"
    text = f"{used} at {number(counted.demand_rps, 'per_second')}; up to {counted.target_utilization:.0%} may be used"
    if counted.survives_loss_from:
        text += f", and from {counted.survives_loss_from} replicas on one may be lost"
    if (counted.fewest, counted.most) != (replicas, replicas) and (counted.fewest or counted.most):
        least = "at least " if counted.most is None else "at most " if counted.fewest is None else ""
        span = " to ".join(str(count) for count in (counted.fewest, counted.most) if count is not None)
        text += f"; {least}{span} by the bounds of what a replica takes"
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandParts:
    """Demand not exceeded with `certainty` (0-1): `quantile_rps`. `expected_rps` is the demand without margin. Both
    include the `event_factor` of known events.
    """

    quantile_rps: float
    certainty: float
    expected_rps: float
    event_factor: float

    @property
    def margin_rps(self) -> float:
        """Return the demand that the certainty adds to the expected demand."""
        return self.quantile_rps - self.expected_rps


@dataclass(frozen=True, slots=True, kw_only=True)
class Highest:
    """Highest minute of the last week and its begin in unix seconds."""

    rps: float
    at: float


def parts_of(
    quantile: float | None, certainty: float | None, expected: float | None, event: float
) -> DemandParts | None:
    """Return the parts, None if any is unknown."""
    if quantile is None or certainty is None or expected is None:
        return None
    return DemandParts(quantile_rps=quantile, certainty=certainty, expected_rps=expected, event_factor=event)


def parts_sentence(parts: DemandParts) -> str:
    """Return the parts of a demand by name."""
    said = f"{_rps(parts.quantile_rps)} = {_rps(parts.expected_rps)} expected"
    if parts.event_factor != 1.0:
        usual = parts.expected_rps / parts.event_factor if parts.event_factor > 0 else 0.0
        said += f" ({_rps(usual)} x {parts.event_factor:g} for a known event)"
    sign = "+" if parts.margin_rps >= 0 else "-"
    return f"{said} {sign} {_rps(abs(parts.margin_rps))} margin to {level(parts.certainty)}"


def compare_with_peak(parts: DemandParts, highest: Highest | None, zone: str, covered_ratio: float | None) -> str:
    """Return the demand compared with the highest minute of the last week, and the reason if it is higher.
    `covered_ratio` (0-1) is the share of that week's minutes within their quantile of this certainty, None if not
    counted.
    """
    if highest is None:
        return ""
    when = datetime.fromtimestamp(highest.at, ZoneInfo(zone)).strftime("%a %H:%M")
    said = f"highest minute of the last week: {_rps(highest.rps)} ({when})"
    return f"{said}; {_lifted(parts, highest.rps, covered_ratio)}" if parts.quantile_rps > highest.rps else said


def _lifted(parts: DemandParts, highest: float, covered_ratio: float | None) -> str:
    """Return the first part that lifts the demand above the highest seen minute."""
    usual = parts.expected_rps / parts.event_factor if parts.event_factor > 0 else 0.0
    if usual > highest:
        return "the trend lifts it above: more is expected even without a margin"
    if parts.expected_rps > highest:
        return f"the known event lifts it above: it multiplies demand by {parts.event_factor:g}"
    held = (
        ""
        if covered_ratio is None
        else f", and {covered_ratio:.2%} of the last week's minutes stayed within their own {level(parts.certainty)}"
    )
    return f"the margin lifts it above: so far off were the worst of the forecast's own past errors{held}"


def level(certainty: float) -> str:
    """Return a certainty as the name of a quantile: "P99", "P99.67"."""
    return f"P{round(certainty * 100, 2):g}"


def _rps(value: float) -> str:
    return number(value, "per_second")
