"""What every way of judging slices shares: the case, what of it can be compared, and when a finding persists.

Owns the hold: its last quarter, its separate minutes (hours, over a week), and the rule by which a load outside the
benchmark silences a comparison. The ways themselves are `rules.methods.tails`, `_means`, `_events` and `_load`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rules.confidence import Certainty
from rules.plan import load_bins
from rules.plan.curve import Curve, Expectation
from rules.plan.envelope import metric_value
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.replicas.starts import ReplicaStart
from rules.replicas.state import ReplicaState
from rules.telemetry import windows
from rules.telemetry.signals import Gap, SignalValue
from rules.verdicts.error_budget import Budget
from rules.verdicts.finding import RuleState
from rules.verdicts.hold import part_seen, scraped_by_the_minute
from rules.verdicts.projection import Projection
from rules.verdicts.rule import Rule
from rules.verdicts.verdict import Action, Status, Subject, Unknown, Verdict

SEPARATE = 3
"""Minutes (hours over a week) that must show the finding on their own: a burst is one event (DESIGN 3.3)."""

LIKELY_CONFIDENCE = 0.95
"""One-sided confidence that a `likely` finding is no chance: 1 % of few requests is easily exceeded (DESIGN, words)."""

PERIOD_WORDS = {windows.MINUTE_SECONDS: "minutes", 3600.0: "hours"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TierWindows:
    """A tier as rules over several see it: its view, and its slices of the same hold."""

    view: TierContext
    slices: tuple[BinnedWindow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleContext:
    """One rule about one tier at `now` over the slices of its hold, oldest first, `period_seconds` long each at most.

    `fleet` are all tiers that are watched, this one among them, for rules that compare tiers; others do not look.
    `budget` is what burn rates are computed from: it reaches further back than the slices. `projection` is the tier's forecast,
    None while there is none. `starts` are those of the tier's replicas that are known, oldest first.
    """

    rule: Rule
    catalogue: Mapping[str, Rule]
    view: TierContext
    slices: tuple[BinnedWindow, ...]
    now: float
    period_seconds: float
    fleet: Mapping[str, TierWindows] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    projection: Projection | None = None
    starts: tuple[ReplicaStart, ...] = ()
    replica: ReplicaState | None = None
    replicas: tuple[ReplicaState, ...] = ()
    states: tuple[RuleState, ...] = ()
    _late: tuple[float, float] = field(init=False, repr=False, compare=False, default=(math.inf, math.inf))
    """When the last quarter begins, and the newest period: asked for by every replica of a tier."""

    def __post_init__(self) -> None:
        if self.slices:
            begin = self.now - (self.now - min(s.window.start for s in self.slices)) / 4
            object.__setattr__(self, "_late", (begin, max(self._period(s) for s in self.slices)))

    @property
    def subject(self) -> Subject:
        return Subject(tier=self.view.tier, replica=self.replica.name if self.replica is not None else None)

    @property
    def periods_word(self) -> str:
        return PERIOD_WORDS.get(self.period_seconds, "periods")

    def limit(self, name: str) -> float:
        return self.rule.limit(name, self.view.limits)

    def unknown(self, reason: Gap, text: str) -> Unknown:
        return Unknown(t=self.now, rule=self.rule.name, subject=self.subject, reason=reason, text=text)

    def too_few_requests(self, requests: float, needed: float, where: str = "") -> Unknown:
        counted = self.rule.thresholds.get("minimum_requests")
        what = counted.unit if counted is not None else "requests"
        return self.unknown(Gap.TOO_FEW_REQUESTS, f"{requests:,.0f} {what}{where}, {needed:.0f} are needed")

    def verdict(
        self, status: Status, certainty: Certainty, observed: SignalValue, expected: SignalValue, sentence: str
    ) -> Verdict:
        actions = tuple(Action(text=text, runbook=self.rule.name) for text in self.rule.actions)
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
            actions=actions if status is not Status.OK else (),
        )

    def last_quarter(self, slices: Sequence[BinnedWindow]) -> tuple[BinnedWindow, ...]:
        """Those wholly in the last quarter of the hold; in a short hold those of its newest period."""
        begin, newest = self._late
        return tuple(s for s in slices if s.window.start >= begin or self._period(s) == newest)

    def periods(self, slices: Iterable[BinnedWindow]) -> tuple[tuple[BinnedWindow, ...], ...]:
        """The slices by minute (hour), oldest first."""
        grouped: dict[float, list[BinnedWindow]] = {}
        for one in slices:
            grouped.setdefault(self._period(one), []).append(one)
        return tuple(tuple(grouped[key]) for key in sorted(grouped))

    def _period(self, one: BinnedWindow) -> float:
        return (one.window.start + one.window.end) / 2 // self.period_seconds


def read_plan_value(view: TierContext, path: str) -> object:
    """A part of the tier's plan by its dotted path; None where any of it is missing."""
    part: object = view.plan
    for name in path.split("."):
        part = getattr(part, name, None)
    return part


Part = TypeVar("Part")


def is_persistent(last: Part | None, each: Iterable[Part | None], exceeds: Callable[[Part], bool]) -> bool:
    """In the last quarter of the hold, and on their own in at least three separate minutes (DESIGN 3.3)."""
    if last is None or not exceeds(last):
        return False
    return sum(1 for part in each if part is not None and exceeds(part)) >= SEPARATE


def too_early(
    case: RuleContext,
    slices: Sequence[BinnedWindow],
    last: Part | None,
    each: Sequence[Part | None],
    exceeds: Callable[[Part], bool],
) -> Unknown | None:
    """Unknown where a finding is there at the end and too few minutes (hours) were seen for it to have persisted; else None.

    `each` is what the periods of `slices` came to, None where they say nothing. Where enough of them were seen and too few
    show the finding, it is known not to persist. That does not hold where each rests on a scrape or two.
    """
    known = sum(1 for part in each if part is not None)
    of_minutes = case.period_seconds <= windows.MINUTE_SECONDS
    enough = known >= SEPARATE and not (of_minutes and scraped_by_the_minute(slices))
    shown = sum(1 for part in each if part is not None and exceeds(part))
    if enough or shown >= SEPARATE or last is None or not exceeds(last):
        return None
    pairs = zip(case.periods(slices), each, strict=True)
    so = [one for group, part in pairs if part is not None and exceeds(part) for one in group]
    return case.unknown(Gap.TOO_FEW_REQUESTS, f"{case.rule.title} for {part_seen(so, slices)}: too early to say")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkComparison:
    """What of a case can be compared with the benchmark: the slices that lie on its curve."""

    case: RuleContext
    curve: Curve
    slices: tuple[BinnedWindow, ...]

    def last_quarter(self) -> tuple[BinnedWindow, ...]:
        return self.case.last_quarter(self.slices)

    def end_unknown(self, requests: float) -> Unknown | None:
        """Why the last quarter cannot say whether the finding is still there: silence is no recovery."""
        needed = self.case.limit("minimum_requests") / 4
        if requests >= needed:
            return None
        beyond = [s.outside for s in self.case.last_quarter(self.case.slices) if s.outside]
        if beyond:
            return self.case.unknown(Gap.OUTSIDE_BENCHMARK, beyond[-1])
        return self.case.too_few_requests(requests, needed, " in the last quarter of the time")


def select_comparable(
    case: RuleContext, families: Iterable[str] = (), promised: float | None = None
) -> BenchmarkComparison | Unknown:
    """What can be compared, or why nothing can: no plan, no data, a family that is not there, or load outside.

    Minutes outside the benchmark are left out one by one. Where they are the larger part of the loaded time, the few
    inside are no picture of the tier (it is on its way into or out of overload), and nothing is compared at all.
    `promised` is what the plan says where the benchmark does not.
    """
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    curve = case.view.curve
    if curve is None:
        return case.unknown(Gap.NOT_IN_PLAN, "the plan has no benchmark curve for this tier")
    if promised is None and all(metric_value(point, case.rule.metric) is None for point in curve.points):
        return case.unknown(Gap.NOT_IN_PLAN, f"the benchmark has no {case.rule.metric}")
    for family in families:
        if not any(family in s.window.histograms or family in s.window.counters for s in case.slices):
            return case.unknown(worst_gap(case.slices, family), f"{family} is not there")
    growing = find_growing_queues(case)
    inside = tuple(s for s in case.slices if s.bin is not None and s.replica not in growing)
    outside = [(s, s.outside or growing[s.replica]) for s in case.slices if s.outside or s.replica in growing]
    if not inside and not outside:
        return case.unknown(worst_gap(case.slices, "requests_finished"), "no replica's load is known")
    if outside and (not inside or _loaded_seconds(s for s, _ in outside) > _loaded_seconds(inside)):
        return case.unknown(Gap.OUTSIDE_BENCHMARK, outside[-1][1])
    return BenchmarkComparison(case=case, curve=curve, slices=inside)


def find_growing_queues(case: RuleContext) -> dict[str | None, str]:
    """Replicas whose queue grew over the whole hold, with the numbers. Sums over replicas or a week do not show it."""
    if case.period_seconds > windows.MINUTE_SECONDS:
        return {}
    replicas: dict[str | None, list[BinnedWindow]] = {}
    for one in case.slices:
        if one.replica is not None:
            replicas.setdefault(one.replica, []).append(one)
    found = {name: load_bins.describe_growth(group, case.now) for name, group in replicas.items()}
    return {name: text for name, text in found.items() if text}


def _loaded_seconds(slices: Iterable[BinnedWindow]) -> float:
    return math.fsum(s.window.covered_seconds for s in slices if s.rps or s.in_system)


def worst_gap(slices: Sequence[BinnedWindow], family: str) -> Gap:
    """The worst reason for which a family is missing."""
    return windows.explain_missing([s.window for s in slices], family)


def expectation_bounds(expected: Expectation) -> tuple[float, float, float]:
    """Lower end, best value and upper end of what is expected."""
    return min(expected.lower, expected.upper), expected.interpolated, max(expected.lower, expected.upper)


def supports_certain(case: RuleContext, expected: Expectation) -> bool:
    """Return whether enough requests stand behind both points (DESIGN 3.3)."""
    return expected.requests >= case.limit("supported_requests")
