"""Words for recommended replica counts and their demand, and the worth of pre-warming on a tier's own history.

The compared strategies come from a simulation in `forecast/`. They are facts about the past and recommend nothing: the
decision is `exporters.documents.prewarm.Recommendation`. Demands are requests per second.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from exporters.render.text import copy_fields, format_local, text_table, wrap
from rules.plan.money import amount
from rules.plan.replica_count import ReplicaCount
from rules.telemetry.wording import format_count, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Scaling strategy over the period: minutes short of ready replicas, late requests, paid replica-hours, and money
    (None: no price).
    """

    name: str
    violation_minutes: float
    late_requests: float
    replica_hours: float
    money: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrewarmValue:
    """Strategies over [start, end) in unix seconds, for a tier with so many requests.

    `ours` and `perfect` name two of them. `reacting` names the best strategy without a forecast, chosen on the time
    before `start`. `recommended` names the cheaper of both, or the one without a forecast if it was as good, with
    `reason` and `short_reason`. `with_margin` names ours with the margin of the recommended counts, "" without a
    margin. No comparison uses it.

    `covered_ratio` (0-1) is the share of minutes with demand within the prepared capacity. Raise ValueError for an
    unknown name.
    """

    start: float
    end: float
    zone: str
    requests: float
    strategies: tuple[Strategy, ...]
    ours: str
    perfect: str
    reacting: str
    recommended: str
    short_reason: str
    reason: str
    covered_ratio: float | None
    currency: str = ""
    with_margin: str = ""

    def __post_init__(self) -> None:
        names = [strategy.name for strategy in self.strategies]
        for name in (self.ours, self.perfect, self.reacting, self.recommended, self.with_margin or self.ours):
            if name not in names:
                raise ValueError(f"{name!r} is none of the strategies: {', '.join(names)}")
        if not self.end > self.start:
            raise ValueError("what was compared must have lasted")

    @property
    def minutes(self) -> float:
        return (self.end - self.start) / 60.0

    def share_of_perfect(self, strategy: Strategy) -> float | None:
        """Return replica-hours relative to perfect foresight, None if that needed none."""
        perfect = self._named(self.perfect)
        return strategy.replica_hours / perfect.replica_hours if perfect.replica_hours > 0 else None

    @property
    def sentence(self) -> str:
        """Return which strategy was cheaper and why."""
        return f"The last {self._days}: {self.reason[:1].lower()}{self.reason[1:]}"

    @property
    def short_sentence(self) -> str:
        """Return which strategy was cheaper."""
        return f"the last {self._days}: {self.short_reason}"

    @property
    def _days(self) -> str:
        return format_count(round((self.end - self.start) / 86_400.0), "day")

    @property
    def margin_sentence(self) -> str:
        """Return cost and benefit of the recommended margin, apart from the forecast, "" without a margin."""
        if not self.with_margin:
            return ""
        bare, roomy = self._named(self.ours), self._named(self.with_margin)
        hours = roomy.replica_hours - bare.replica_hours
        paid = ""
        if bare.money is not None and roomy.money is not None:
            paid = f" ({amount(abs(roomy.money - bare.money), self.currency or 'of money')})"
        before, after = (f"{strategy.violation_minutes:,.0f}" for strategy in (bare, roomy))
        short = f"stays {after} min" if before == after else f"goes from {before} to {after} min"
        return (
            f"The margin of recommended counts {'costs' if hours >= 0 else 'saves'} {abs(hours):,.0f} replica-hours{paid}; "
            f"the time short of capacity {short}."
        )

    def _named(self, name: str) -> Strategy:
        return next(strategy for strategy in self.strategies if strategy.name == name)


def worth_lines(worth: PrewarmValue) -> list[str]:
    """Return the comparison as a table with the recommendation below."""
    priced = any(strategy.money is not None for strategy in worth.strategies)
    head = ("strategy", "violation min", "of the time", "late requests", "of all", "replica-hours", "of perfect")
    rows = [_row(worth, strategy, priced) for strategy in worth.strategies]
    table = text_table((*head, worth.currency or "money") if priced else head, rows)
    start, end = (format_local(t, worth.zone, "%Y-%m-%d %H:%M") for t in (worth.start, worth.end))
    lines = [f"What it was worth, {start} to {end} ({worth.requests:,.0f} requests)"]
    lines += [f"  {line}" for line in table]
    return [*lines, *_advice(worth)]


def _row(worth: PrewarmValue, strategy: Strategy, priced: bool) -> tuple[str, ...]:
    ratio = worth.share_of_perfect(strategy)
    late = strategy.late_requests / worth.requests if worth.requests > 0 else None
    cells = (
        f"{strategy.name}{' *' if strategy.name == worth.recommended else ''}",
        f"{strategy.violation_minutes:,.0f}",
        _share(strategy.violation_minutes / worth.minutes),
        f"{strategy.late_requests:,.0f}",
        "-" if late is None else _share(late),
        f"{strategy.replica_hours:,.0f}",
        "-" if ratio is None else f"{ratio:.2f}",
    )
    return (*cells, "-" if strategy.money is None else f"{strategy.money:,.2f}") if priced else cells


def _share(share: float) -> str:
    """Return a percentage with three digits, so that 0.15 % and 0.2 % differ. A non-zero share never prints as zero."""
    if share <= 0:
        return "0%"
    return "<0.001%" if share < 1e-5 else f"{share * 100:.{max(0, 1 - math.floor(math.log10(share * 100)))}f}%"


def _advice(worth: PrewarmValue) -> list[str]:
    texts = [f"* cheaper, or as good without a forecast. {worth.sentence}", worth.margin_sentence]
    return [line for text in texts if text for line in wrap(text, "  ", "    ")]


def worth_json(worth: PrewarmValue) -> dict[str, Any]:
    return {
        **{name: value for name, value in asdict(worth).items() if name != "strategies"},
        "margin_sentence": worth.margin_sentence,
        "hours": (worth.end - worth.start) / 3600.0,
        "strategies": [
            {
                **asdict(strategy),
                "violation_ratio": strategy.violation_minutes / worth.minutes,
                "late_ratio": strategy.late_requests / worth.requests if worth.requests > 0 else None,
                "of_perfect": worth.share_of_perfect(strategy),
            }
            for strategy in worth.strategies
        ],
    }


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


def build_count_text(replica_count: ReplicaCount) -> Counted:
    """Return a count as shown by commands and pages."""
    return Counted(
        target_utilization=replica_count.margin.target_utilization,
        survives_loss_from=replica_count.margin.survives_loss_from,
        **copy_fields(replica_count, "demand_rps", "fewest", "most", "utilization", "utilization_one_lost"),
    )


def bounds_words(best: float, low: float | None, high: float | None) -> str:
    """Return the bounds of the capacity in words, "" if they equal the number."""
    if low == high == best or low is high is None:
        return ""
    if high is None or low is None:
        return f" (at most {_rps(high)})" if high is not None else f" (at least {_rps(low or 0.0)})"
    return f" ({_rps(low)} to {_rps(high)})"


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
    text = f"{_rps(parts.quantile_rps)} = {_rps(parts.expected_rps)} expected"
    if parts.event_factor != 1.0:
        usual = parts.expected_rps / parts.event_factor if parts.event_factor > 0 else 0.0
        text += f" ({_rps(usual)} x {parts.event_factor:g} for a known event)"
    sign = "+" if parts.margin_rps >= 0 else "-"
    return f"{text} {sign} {_rps(abs(parts.margin_rps))} margin to {level(parts.certainty)}"


def compare_with_peak(parts: DemandParts, highest: Highest | None, zone: str, covered_ratio: float | None) -> str:
    """Return the demand compared with the highest minute of the last week, and the reason if it is higher.
    `covered_ratio` (0-1) is the share of that week's minutes within their quantile of this certainty, None if not
    counted.
    """
    if highest is None:
        return ""
    when = format_local(highest.at, zone, "%a %H:%M")
    text = f"highest minute of the last week: {_rps(highest.rps)} ({when})"
    return f"{text}; {_lifted(parts, highest.rps, covered_ratio)}" if parts.quantile_rps > highest.rps else text


def _lifted(parts: DemandParts, highest: float, covered_ratio: float | None) -> str:
    """Return the first part that lifts the demand above the highest seen minute."""
    usual = parts.expected_rps / parts.event_factor if parts.event_factor > 0 else 0.0
    if usual > highest:
        return "the trend lifts it above: more is expected even without a margin"
    if parts.expected_rps > highest:
        return f"the known event lifts it above: it multiplies demand by {parts.event_factor:g}"
    text = "the margin lifts it above: so far off were the worst of the forecast's own past errors"
    if covered_ratio is None:
        return text
    return (
        f"{text}, and {covered_ratio:.2%} of the last week's minutes stayed within their own {level(parts.certainty)}"
    )


def level(certainty: float) -> str:
    """Return a certainty as the name of a quantile: "P99", "P99.67"."""
    return f"P{round(certainty * 100, 2):g}"


def _rps(value: float) -> str:
    return number(value, "per_second")
