"""How a recommended count was made, and in which words it is told.

Owns the record of the margin and the bounds of a count. The formula is `rules.plan.replica_count`'s.

What a demand quantile is made of, in words: what is expected, the margin to its certainty, and known events.

Owns these words, and why a demand is above everything that was seen lately. Demands are requests per second.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from rules.plan.replica_count import ReplicaCount
from rules.telemetry.wording import number


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """How the count was made: the margin, the demand that it is for (requests per second), the counts at the upper and the lower
    bound of the capacity (None: open), and how full the recommended replicas are at that demand, also with one lost."""

    target_utilization: float
    survives_loss_from: int
    demand_rps: float
    fewest: int | None
    most: int | None
    utilization: float | None
    utilization_one_lost: float | None


def build_count_text(one: ReplicaCount) -> Counted:
    """Return a count as commands and pages tell it."""
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
    """Between which bounds the capacity lies, in words; "" where they are the number itself."""
    if low == high == best:
        return ""
    if high is None:
        return "" if low is None else f" (at least {number(low, 'per_second')})"
    if low is None:
        return f" (at most {number(high, 'per_second')})"
    return f" ({number(low, 'per_second')} to {number(high, 'per_second')})"


def count_words(replicas: int, counted: Counted) -> str:
    """How full the recommended replicas are, by which margin they were counted, and between which counts the answer lies."""
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
    """`quantile_rps` is not passed with `certainty` (0-1). `expected_rps` of it is expected without a margin; known events
    have multiplied both by `event_factor`."""

    quantile_rps: float
    certainty: float
    expected_rps: float
    event_factor: float

    @property
    def margin_rps(self) -> float:
        """What the certainty adds to what is expected."""
        return self.quantile_rps - self.expected_rps


@dataclass(frozen=True, slots=True, kw_only=True)
class Highest:
    """The highest minute of the last week and when it began, unix seconds."""

    rps: float
    at: float


def parts_of(
    quantile: float | None, certainty: float | None, expected: float | None, event: float
) -> DemandParts | None:
    """The parts; None where one is not known."""
    if quantile is None or certainty is None or expected is None:
        return None
    return DemandParts(quantile_rps=quantile, certainty=certainty, expected_rps=expected, event_factor=event)


def parts_sentence(parts: DemandParts) -> str:
    """The parts of a demand, by name."""
    said = f"{_rps(parts.quantile_rps)} = {_rps(parts.expected_rps)} expected"
    if parts.event_factor != 1.0:
        usual = parts.expected_rps / parts.event_factor if parts.event_factor > 0 else 0.0
        said += f" ({_rps(usual)} x {parts.event_factor:g} for a known event)"
    sign = "+" if parts.margin_rps >= 0 else "-"
    return f"{said} {sign} {_rps(abs(parts.margin_rps))} margin to {level(parts.certainty)}"


def compare_with_peak(parts: DemandParts, highest: Highest | None, zone: str, covered_ratio: float | None) -> str:
    """The demand beside the highest minute of the last week; where it is above, what lifts it there. `covered_ratio` (0-1)
    are the minutes of that week that stayed within their own quantile of this certainty, None where they were not counted.
    """
    if highest is None:
        return ""
    when = datetime.fromtimestamp(highest.at, ZoneInfo(zone)).strftime("%a %H:%M")
    said = f"highest minute of the last week: {_rps(highest.rps)} ({when})"
    return f"{said}; {_lifted(parts, highest.rps, covered_ratio)}" if parts.quantile_rps > highest.rps else said


def _lifted(parts: DemandParts, highest: float, covered_ratio: float | None) -> str:
    """What lifts a demand above the highest that was seen: the first part that does."""
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
    """A certainty as a quantile's name: "P99", "P99.67"."""
    return f"P{round(certainty * 100, 2):g}"


def _rps(value: float) -> str:
    return number(value, "per_second")
