"""Context of a rule, the part of it that compares with the benchmark, and persistence of a finding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

from rules.confidence import Certainty
from rules.plan.curve import Curve
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.replicas.starts import ReplicaStart
from rules.replicas.state import ReplicaState
from rules.telemetry.signals import Gap, SignalValue
from rules.telemetry.windows import HOUR_SECONDS, MINUTE_SECONDS
from rules.verdicts.error_budget import Budget
from rules.verdicts.held_windows import HeldWindows, hold
from rules.verdicts.rule import LatencyPattern, Rule
from rules.verdicts.verdict import RuleState, Status, Subject, Unknown, Verdict

SEPARATE = 3
"""Minutes (hours over a week) that must show the finding on their own: a burst is one event (DESIGN 3.3)."""

LIKELY_CONFIDENCE = 0.95
"""One-sided confidence that a `likely` finding is no chance: 1 % of few requests is easily exceeded (DESIGN, words)."""

TierWindows = tuple[TierContext, HeldWindows]
"""Tier in rules that compare tiers: its context and its binned windows of the same hold."""

NO_BUDGET = Budget()
"""Shared by all contexts without one: a fleet makes thousands of contexts a cycle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastPoint:
    """Arriving requests per second of the whole tier at `t` (unix seconds): median, 95 % and 99 % quantile."""

    t: float
    q50: float
    q95: float
    q99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Forecast of one tier as rules read it, made at `made_at` (unix seconds) by the method named `method`.

    `horizon_seconds` is the tier's measured cold start; `points` are ordered by time. Recent quality at this lead:
    `covered` of `forecasts` separate past targets were at most their 95 % quantile. `error_ratio` is its error (pinball
    loss of the 95 % quantile, or WAPE) by that of the method `naive` over `compared` targets, or None.
    """

    tier: str
    made_at: float
    horizon_seconds: float
    points: tuple[ForecastPoint, ...]
    method: str
    covered: int = 0
    forecasts: int = 0
    error_ratio: float | None = None
    naive: str = ""
    compared: int = 0

    def points_until(self, now: float) -> tuple[ForecastPoint, ...]:
        """Return the points from `now` to the first one at or behind the lead. Return none for an outdated forecast."""
        coming = [point for point in self.points if point.t >= now]
        within = [point for point in coming if point.t < now + self.horizon_seconds]
        return tuple(coming[: len(within) + 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleContext:
    """Input of one rule at `now`: tier, binned windows of the hold (oldest first), period, and further evidence.

    `fleet` has all tiers, this one included. `budget` reaches further back than the windows. `projection` is the tier's
    forecast, None without one. `starts` are those known of its replicas, oldest first. `others_answer`: some replica of the
    tier answers scrapes. `others_serve`: some replica of it can answer requests.
    """

    rule: Rule
    catalogue: Mapping[str, Rule]
    tier: TierContext
    binned: tuple[BinnedWindow, ...] = ()
    now: float
    period_seconds: float = MINUTE_SECONDS
    fleet: Mapping[str, TierWindows] = field(default_factory=dict)
    budget: Budget = NO_BUDGET
    projection: Projection | None = None
    starts: tuple[ReplicaStart, ...] = ()
    replica: ReplicaState | None = None
    replicas: tuple[ReplicaState, ...] = ()
    others_answer: bool = False
    others_serve: bool = False
    states: tuple[RuleState, ...] = ()

    @property
    def subject(self) -> Subject:
        return Subject(tier=self.tier.name, replica=self.replica.name if self.replica is not None else None)

    @property
    def periods_word(self) -> str:
        return "minutes" if self.period_seconds <= MINUTE_SECONDS else "hours"

    def limit(self, name: str) -> float:
        return self.rule.limit(name, self.tier.limits)

    def unknown(self, reason: Gap, text: str, wait_seconds: float | None = None) -> Unknown:
        subject, wait = self.subject, wait_seconds if self.period_seconds <= MINUTE_SECONDS else None
        return Unknown(t=self.now, rule=self.rule.name, subject=subject, reason=reason, text=text, wait_seconds=wait)

    def unmeasured(self, family: str) -> Unknown:
        """Return unknown for a family that no replica has, with the worst reason of them."""
        return self.unknown(worst_gap(self.binned, family), f"{family} was not measured")

    def too_few_requests(self, requests: float, needed: float, where: str = "") -> Unknown:
        counted = self.rule.thresholds.get("minimum_requests")
        what = counted.unit if counted is not None else "requests"
        return self.unknown(Gap.TOO_FEW_REQUESTS, f"{requests:,.0f} {what}{where}, {needed:.0f} are needed")

    def verdict(
        self,
        status: Status,
        certainty: Certainty,
        observed: SignalValue,
        expected: SignalValue,
        sentence: str,
        details: Iterable[str] = (),
        pattern: LatencyPattern | None = None,
        **further: Any,
    ) -> Verdict:
        """Return a verdict of this rule with `further` fields. Empty `details`, and actions of one that is ok, are left out."""
        advised = self.rule.actions if pattern is None else self.rule.levers[pattern]
        if status is Status.OK:
            advised = ()
        return Verdict(
            t=self.now,
            rule=self.rule.name,
            subject=self.subject,
            status=status,
            certainty=certainty,
            observed=observed,
            expected=expected,
            unit=self.rule.unit,
            sentence=sentence,
            details=tuple(filter(None, details)),
            actions=advised,
            **further,
        )

    def last_quarter(self, binned: Iterable[BinnedWindow]) -> HeldWindows:
        """Return the windows wholly in the last quarter of the hold; in a short hold those of its newest period."""
        held = hold(self.binned)
        newest = max(held.periods(self.period_seconds), default=math.inf)
        return hold(binned).since(self.now - (self.now - held.start) / 4, newest, self.period_seconds)

    def periods(self, binned: Iterable[BinnedWindow]) -> tuple[HeldWindows, ...]:
        """Return the windows by minute (hour), oldest first."""
        return tuple(hold(binned).periods(self.period_seconds).values())


def read_plan_value(context: TierContext, path: str) -> Any:
    """Return a part of the tier's plan by its dotted path, None if missing."""
    return context.plan.value_at(path) if context.plan else None


Part = TypeVar("Part")


def is_persistent(last: Part | None, each: Iterable[Part | None], exceeds: Callable[[Part], bool]) -> bool:
    """Return whether a finding holds in the last quarter and in at least SEPARATE periods (DESIGN 3.3)."""
    if last is None or not exceeds(last):
        return False
    return sum(1 for part in each if part is not None and exceeds(part)) >= SEPARATE


def too_early(
    context: RuleContext,
    binned: Sequence[BinnedWindow],
    last: Part | None,
    each: Sequence[Part | None],
    exceeds: Callable[[Part], bool],
) -> Unknown | None:
    """Return unknown for a finding at the end of the hold with too few periods to have persisted, else None.

    `each` has the result of each period of `binned`, None if it has none. Enough periods without the finding prove that
    it does not persist, unless they rest on one or two scrapes.
    """
    if last is None or not exceeds(last):
        return None
    of_minutes = context.period_seconds <= MINUTE_SECONDS
    is_enough = len([part for part in each if part is not None]) >= SEPARATE
    if is_enough and not (of_minutes and hold(binned).is_scraped_by_the_minute):
        return None
    pairs = zip(context.periods(binned), each, strict=True)
    shown = [group for group, part in pairs if part is not None and exceeds(part)]
    if len(shown) >= SEPARATE:
        return None
    text = f"{context.rule.title} for {part_seen(chain.from_iterable(shown), binned)}: too early to say"
    return context.unknown(Gap.TOO_FEW_REQUESTS, text, (SEPARATE - len(shown)) * context.period_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkComparison:
    """Part of a context that can be compared with the benchmark: the windows on its curve."""

    context: RuleContext
    curve: Curve
    binned: HeldWindows

    def end_unknown(self, requests: float) -> Unknown | None:
        """Return why the last quarter cannot confirm the finding: missing data is no recovery."""
        needed = self.context.limit("minimum_requests") / 4
        if requests >= needed:
            return None
        beyond = [s.outside for s in self.context.last_quarter(self.context.binned) if s.outside]
        if beyond:
            return self.context.unknown(Gap.OUTSIDE_BENCHMARK, beyond[-1])
        return self.context.too_few_requests(requests, needed, " in the last quarter of the time")


def select_comparable(
    context: RuleContext, families: Iterable[str] = (), promised: float | None = None
) -> BenchmarkComparison | Unknown:
    """Return the comparable windows, or unknown without a plan, data, a family, or load inside the benchmark.

    If most of the loaded time is outside, the few minutes inside do not represent the tier. `promised` is the plan's
    value without a benchmark.
    """
    if not context.binned:
        return context.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    curve = context.tier.curve
    if curve is None:
        return context.unknown(Gap.NOT_IN_PLAN, "the plan has no benchmark curve for this tier")
    if promised is None and all(getattr(point, context.rule.signal) is None for point in curve.points):
        text = f"the benchmark has no {context.rule.signal}"
        return context.unknown(Gap.NOT_IN_PLAN, "; ".join(filter(None, (text, curve.written.remark))))
    for family in families:
        if not any(family in s.window.histograms or family in s.window.counters for s in context.binned):
            return context.unmeasured(family)
    growing = find_growing_queues(context)
    inside = hold(context.binned).on_curve
    if growing:
        inside = HeldWindows(s for s in inside if s.replica not in growing)
    outside = [(s, s.outside or growing[s.replica]) for s in context.binned if s.outside or s.replica in growing]
    if not inside and not outside:
        return context.unknown(worst_gap(context.binned, "requests_finished"), "no replica's load is known")
    if outside and (not inside or _loaded_seconds(s for s, _ in outside) > _loaded_seconds(inside)):
        return context.unknown(Gap.OUTSIDE_BENCHMARK, outside[-1][1])
    return BenchmarkComparison(context=context, curve=curve, binned=inside)


def find_growing_queues(context: RuleContext) -> Mapping[str | None, str]:
    """Return replicas whose queue grew over the whole hold, with the numbers. Sums over a week do not show it."""
    return hold(context.binned).find_growing_queues(context.now) if context.period_seconds <= MINUTE_SECONDS else {}


def _loaded_seconds(binned: Iterable[BinnedWindow]) -> float:
    return math.fsum(s.window.covered_seconds for s in binned if s.rps or s.in_system)


def worst_gap(binned: Sequence[BinnedWindow], family: str) -> Gap:
    """Return the worst reason for a missing family."""
    return hold(binned).sum_families(()).explain_missing(family)


def needed_words(rule: Rule, seconds: float) -> str:
    """Return how much of the rule's minimum was seen."""
    # Rounded down: 59.9995 s are not the 60 s that are needed.
    return f"{math.floor(seconds)} s seen, {rule.minimum_seconds:.0f} s are needed"


def part_seen(part: Iterable[BinnedWindow], whole: Iterable[BinnedWindow]) -> str:
    """Return how long something was so, of what was watched: "2 of 2 minutes seen", "3 of 150 hours seen"."""
    seconds = hold(part).watched_seconds, hold(whole).watched_seconds
    size, word = (HOUR_SECONDS, "hour") if seconds[0] >= HOUR_SECONDS else (MINUTE_SECONDS, "minute")
    first, last = (max(1, round(some / size)) for some in seconds)
    return f"{first} of {last:,} {word}{'' if last == 1 else 's'} seen"
