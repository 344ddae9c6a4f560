"""Worth of pre-warming on a tier's own history: compared strategies and the recommended strategy.

The module serves `sizewatch prewarm --explain` and the weekly report. Numbers come from a simulation in `forecast/`. A
strategy that is as good and needs no forecast is recommended.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from exporters.render.text import text_table

WIDTH = 100
_HOUR = 3600.0


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
    before `start`. `recommended` names the strategy to use, with `reason` and `short_reason`. `with_margin` names ours
    with the margin of the recommended counts, "" without a margin. No comparison uses it.

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
        """Return the duration in minutes."""
        return (self.end - self.start) / 60.0

    def share_of_perfect(self, strategy: Strategy) -> float | None:
        """Return replica-hours relative to perfect foresight, None if that needed none."""
        perfect = self._named(self.perfect)
        return strategy.replica_hours / perfect.replica_hours if perfect.replica_hours > 0 else None

    @property
    def margin_sentence(self) -> str:
        """Return cost and benefit of the recommended margin, apart from the forecast, "" without a margin."""
        if not self.with_margin:
            return ""
        bare, roomy = self._named(self.ours), self._named(self.with_margin)
        hours = roomy.replica_hours - bare.replica_hours
        paid = ""
        if bare.money is not None and roomy.money is not None:
            paid = f" ({abs(roomy.money - bare.money):,.2f} {self.currency or 'of money'})"
        before, after = (f"{one.violation_minutes:,.0f}" for one in (bare, roomy))
        short = f"stays {after} min" if before == after else f"goes from {before} to {after} min"
        return (
            f"The margin of recommended counts {'costs' if hours >= 0 else 'saves'} {abs(hours):,.0f} replica-hours{paid}; "
            f"the time short of capacity {short}."
        )

    def _named(self, name: str) -> Strategy:
        return next(one for one in self.strategies if one.name == name)


def worth_lines(worth: PrewarmValue) -> list[str]:
    """Return the comparison as a table with the recommendation below."""
    priced = any(strategy.money is not None for strategy in worth.strategies)
    head = ("strategy", "violation min", "of the time", "late requests", "of all", "replica-hours", "of perfect")
    rows = [_row(worth, strategy, priced) for strategy in worth.strategies]
    table = text_table((*head, worth.currency or "money") if priced else head, rows)
    lines = [
        f"What it was worth, {_day(worth, worth.start)} to {_day(worth, worth.end)} ({worth.requests:,.0f} requests)"
    ]
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
    kept = worth.recommended == worth.ours
    said = [f"* recommended{'' if kept else f' instead of {worth.ours}'}: {worth.recommended}. {worth.reason}"]
    if worth.with_margin:
        said.append(worth.margin_sentence)
    return [
        line
        for text in said
        for line in textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    ]


def _day(worth: PrewarmValue, t: float) -> str:
    return datetime.fromtimestamp(t, ZoneInfo(worth.zone)).strftime("%Y-%m-%d %H:%M")


def worth_json(worth: PrewarmValue) -> dict[str, Any]:
    """Return the comparison as JSON."""
    return {
        **{name: value for name, value in asdict(worth).items() if name != "strategies"},
        "margin_sentence": worth.margin_sentence,
        "hours": (worth.end - worth.start) / _HOUR,
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
