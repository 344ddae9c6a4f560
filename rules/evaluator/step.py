"""One turn: scrapes go in, answers, episodes and closed minutes come out. Everything is passed in, time included.

Owns the memory between turns (replicas, minutes, standings, alert states) and nothing of the outside world: the daemon
feeds it live pages, the replay recorded ones, and both get the same judgement.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from rules.evaluator import alert_state, long_rules, tier_rules
from rules.evaluator.alert_state import AlertKey, AlertState
from rules.evaluator.scrape_rules import (
    cascade_limits,
    evaluate_replica_rules,
    evaluate_tier_availability,
    evaluate_unknowns,
)
from rules.evaluator.tier_rules import TierMinutes, TierSize
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.replicas import track
from rules.replicas.starts import ReplicaStart
from rules.replicas.state import ReplicaState, apply_failed_scrape, apply_snapshot
from rules.telemetry import windows
from rules.telemetry.signals import Gap
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window
from rules.verdicts import finding
from rules.verdicts.context import TierWindows
from rules.verdicts.error_budget import Budget
from rules.verdicts.finding import ClosedSpan, RuleState
from rules.verdicts.projection import Projection
from rules.verdicts.verdict import RuleResult, Subject, Unknown

ReplicaKey = tuple[str, str]
"""Tier and replica."""

SUM = "*"
"""Stands for the replica in the closed minutes of a tier that is seen as sums."""

NOBODY: Mapping[str, str] = MappingProxyType({})

OVER_TIERS = frozenset({"UnknownTooLong"})
"""Rules about sizewatch's own sight: they are judged while nothing else can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedMinute:
    """A minute of a replica that is over. It is not `kept` where most of it was told before the clock went back, nor where
    nobody watched: by the clock hours may have passed in which nothing was."""

    tier: str
    replica: str
    slice: BinnedWindow
    kept: bool = True


class Evaluator:
    """Judges a fleet from its scrapes. Not safe to call from several threads."""

    def __init__(self, views: Mapping[str, TierContext]) -> None:
        self.views = dict(views)
        self.replicas: dict[ReplicaKey, ReplicaState] = {}
        self.minutes: dict[str, TierMinutes] = {}
        self.standings: dict[tuple[str, Subject], RuleState] = {}
        self.alerts: dict[AlertKey, AlertState] = {}
        self.projections: dict[str, Projection] = {}
        self._closed: list[ClosedMinute] = []
        self._due: set[str] = set()
        self._judged: dict[str, tuple[RuleResult, ...]] = {}
        self._left: dict[tuple[str, Subject], RuleState] = {}
        self._told: dict[tuple[str, Subject], RuleResult] = {}
        self._news: tuple[RuleResult, ...] = ()
        self._now: float | None = None

    def view(self, tier: str) -> TierContext:
        """The tier's view; a tier that no plan names is watched without one."""
        if tier not in self.views:
            self.views[tier] = load_bins.build_tier_context(tier, None)
        return self.views[tier]

    def apply_snapshot(self, tier: str, name: str, snapshot: Snapshot, extra: Window | None = None) -> Window | None:
        """A good page of a replica, with what its GPUs say about the same time. Returns the scrape's window."""
        before = self._replica(tier, name)
        replica, window, minute = apply_snapshot(before, snapshot, cascade_limits(self.view(tier)), extra)
        if replica.start is not None and replica.start is not before.start:
            self.restore_starts(tier, (replica.start,))
        return self._remember(replica, window, minute)

    def apply_failed_scrape(
        self, tier: str, name: str, t: float, reason: Gap = Gap.SCRAPE_FAILED, trouble: str = ""
    ) -> Window | None:
        """A failed scrape of a replica at `t`; `trouble` says in words what went wrong. Returns the gap."""
        replica, window, minute = apply_failed_scrape(self._replica(tier, name), t, reason, trouble)
        return self._remember(replica, window, minute)

    def set_aggregated(self, tier: str, sums: bool) -> None:
        """From now on a tier is seen as sums (`summed`), or replica by replica."""
        minutes = self.minutes.get(tier, TierMinutes())
        if (minutes.each is not None) != sums:
            self.minutes[tier] = replace(minutes, each=() if sums else None)

    def last_minute_by_replica(self, tier: str, now: float) -> dict[str | None, BinnedWindow]:
        """The last minute of each replica of a tier that is seen as sums."""
        return tier_rules.last_minute_by_replica(self.minutes.get(tier, TierMinutes()), now)

    def add_aggregated_minute(self, tier: str, groups: Sequence[BinnedWindow], each: Sequence[BinnedWindow]) -> None:
        """Add a minute of a tier whose samples the store adds up: the pages of its replicas close no minute."""
        before, watched = self.minutes.get(tier, TierMinutes()), self._present(tier)
        self.minutes[tier] = tier_rules.add_aggregated_minute(before, groups, each, self.view(tier), watched)
        self._closed.extend(ClosedMinute(tier=tier, replica=SUM, slice=one) for one in groups)
        self._due.add(tier)

    def gpu_problem(self, tier: str, name: str, text: str) -> None:
        """What is wrong with a replica's GPUs, in words; empty when nothing is."""
        replica = self._replica(tier, name)
        if replica.gpu_problem != text:
            self.replicas[tier, name] = replace(replica, gpu_problem=text)

    def restore_error_budget(self, tier: str, budget: Budget) -> None:
        """What an earlier run saw of a tier's error budget, in place of what this one has."""
        self.minutes[tier] = replace(self.minutes.get(tier, TierMinutes()), budget=budget)

    def starts(self, tier: str) -> tuple[ReplicaStart, ...]:
        """How the tier's replicas started, as far as that was seen or is told, oldest first."""
        return self.minutes.get(tier, TierMinutes()).starts

    def restore_starts(self, tier: str, several: Iterable[ReplicaStart]) -> None:
        """More starts of a tier, from now or from an earlier run; one that is known already adds nothing."""
        for start in several:
            self.minutes[tier] = tier_rules.add_start(self.minutes.get(tier, TierMinutes()), start)

    def set_long_term_results(self, answers: Iterable[RuleResult]) -> None:
        """What the history says of days (`rules.evaluator.long_rules`): judged with the next turn, standing until told anew."""
        fresh = tuple(answers)
        self._told |= {(answer.rule, answer.subject): answer for answer in fresh}
        self._news = (*self._news, *long_rules.long_only_results(fresh))

    def set_capacities(self, measured: Mapping[str, TierContext]) -> None:
        """Judge the tiers of `measured` with the capacity of these views from now on."""
        for tier, one in measured.items():
            self.views[tier] = load_bins.with_capacity(self.view(tier), one.capacity)

    def set_projections(self, projections: Mapping[str, Projection]) -> None:
        """The newest forecasts, by tier, in place of those before: judged with the next turn."""
        self.projections = dict(projections)

    def step(
        self, now: float, blind: Mapping[str, str] = NOBODY
    ) -> tuple[tuple[ClosedSpan, ...], tuple[ClosedMinute, ...]]:
        """Judges at `now`: what ended with this turn, and the minutes that were closed since the last.

        `blind` are tiers of which nothing can be known now, and why: what stood for them is unknown, and nothing is ok.
        """
        self._now = now
        answers: list[RuleResult] = []
        for replica in self.replicas.values():
            if replica.tier not in blind:
                answers.extend(self._of_scrapes(replica, now))
        answers.extend(self._of_tiers(now, blind))
        answers.extend(self._unseen(now, blind))
        fleet = {name: TierWindows(view=self.view(name), slices=each.slices) for name, each in self.minutes.items()}
        for tier in sorted(self._due - blind.keys()):
            kept = tier_rules.cached_results(self.minutes[tier], self._judged.get(tier, ()), now)
            live = tier_rules.evaluate_tier_rules(
                self.minutes[tier], self.view(tier), now, fleet, self.projections.get(tier), kept
            )
            self._judged[tier] = tuple(kept.get(answer.rule, answer) for answer in live)
            answers.extend(long_rules.prefer_firing_result(answer, self._told) for answer in live)
        answers.extend(self._news)
        self._news = ()
        self._due.clear()
        self.alerts = alert_state.step_alerts(self.alerts, answers, now, self._left)
        gone = [one for standing in self._left.values() for one in finding.close_rule_state(standing, now)]
        self._left = {}
        closed, self._closed = tuple(self._closed), []
        return (*gone, *(ended for answer in answers for ended in self._stand(answer))), closed

    def remove_replicas(self, keys: Container[ReplicaKey]) -> None:
        """Replicas that are no more: what stood for them ends with the next turn, and what was seen of their last minute closes."""
        for key, replica in self.replicas.items():
            if key in keys and replica.open and not self._sums(replica.tier):
                self._close(replica, windows.sum_windows(replica.open))
        self.replicas = {key: replica for key, replica in self.replicas.items() if key not in keys}
        gone = {
            key: each
            for key, each in self.standings.items()
            if key[1].replica is not None and (key[1].tier, key[1].replica) in keys
        }
        self.standings = {key: each for key, each in self.standings.items() if key not in gone}
        self._left |= gone

    def flush(self) -> tuple[ClosedMinute, ...]:
        """The open minutes as they are, for an orderly stop."""
        for replica in list(self.replicas.values()):
            if replica.open and not self._sums(replica.tier):
                self._close(replica, windows.sum_windows(replica.open))
        closed, self._closed = tuple(self._closed), []
        return closed

    def inherit_state(self, before: Evaluator, keys: Collection[ReplicaKey]) -> None:
        """The memory of another watcher, for the replicas and tiers of `keys`; tiers are judged by the new views. A tier goes on
        where every replica of it is another one now.

        What stood for the others ends with the next turn: nobody will judge it again.
        """
        self.set_capacities(
            {
                tier: one
                for tier, one in before.views.items()
                if tier in self.views and one.plan == self.views[tier].plan
            }
        )
        self.replicas = {key: replica for key, replica in before.replicas.items() if key in keys}
        tiers = {tier for tier, _ in keys}
        for tier in tiers & set(before.minutes):
            self.minutes[tier] = tier_rules.rebin_minutes(before.minutes[tier], self.view(tier))
        self.standings = {k: v for k, v in before.standings.items() if _watched(k[1], keys, tiers)}
        self._told = {k: v for k, v in before._told.items() if k[1].tier in tiers} | self._told
        self._news = (*(answer for answer in before._news if answer.subject.tier in tiers), *self._news)
        self.alerts, self._now = dict(before.alerts), before._now
        self.projections = {tier: one for tier, one in before.projections.items() if tier in tiers}
        self._left = before._left | {k: v for k, v in before.standings.items() if k not in self.standings}

    def _of_scrapes(self, replica: ReplicaState, now: float) -> tuple[RuleResult, ...]:
        view = self.view(replica.tier)
        recent: tuple[BinnedWindow, ...] = ()
        if replica.cascade.stage > 0:
            minutes = self.minutes.get(replica.tier, TierMinutes())
            recent = tier_rules.recent_windows(minutes, replica, view, now)
        return evaluate_replica_rules(replica, view, now, recent)

    def _unseen(self, now: float, blind: Mapping[str, str]) -> Iterator[RuleResult]:
        for rule, subject in self.standings:
            if subject.tier in blind and rule not in OVER_TIERS:
                text = blind[subject.tier]
                yield Unknown(t=now, rule=rule, subject=subject, reason=Gap.STALE, text=text)

    def _of_tiers(self, now: float, blind: Mapping[str, str]) -> Iterator[RuleResult]:
        """Of each tier as a whole; what no longer can be judged is seen with the turn after it."""
        tiers: dict[str, list[ReplicaState]] = {}
        for replica in self.replicas.values():
            tiers.setdefault(replica.tier, []).append(replica)
        of_tiers: dict[str, list[RuleState]] = {}
        for (_, subject), each in self.standings.items():
            of_tiers.setdefault(subject.tier, []).append(each)
        for tier, replicas in sorted(tiers.items()):
            standings = of_tiers.get(tier, [])
            if tier in blind:
                yield evaluate_unknowns(standings, self.view(tier), now)
                continue
            yield from evaluate_tier_availability(replicas, standings, self.view(tier), now)

    def _replica(self, tier: str, name: str) -> ReplicaState:
        return self.replicas.get((tier, name)) or ReplicaState(tier=tier, name=name)

    def _remember(self, replica: ReplicaState, window: Window | None, minute: Window | None) -> Window | None:
        before = self.replicas.get((replica.tier, replica.name))
        self.replicas[replica.tier, replica.name] = replica
        if minute is not None and not self._sums(replica.tier):
            self._close(before or replica, minute)
        return window

    def _sums(self, tier: str) -> bool:
        return tier in self.minutes and self.minutes[tier].each is not None

    def _present(self, tier: str) -> TierSize | None:
        if self._now is None:
            return None
        return TierSize(now=self._now, replicas=sum(1 for name, _ in self.replicas if name == tier))

    def _close(self, replica: ReplicaState, minute: Window) -> None:
        view, before = self.view(replica.tier), self.minutes.get(replica.tier, TierMinutes())
        watched = self._present(replica.tier)
        self.minutes[replica.tier] = tier_rules.add_minute(before, minute, replica.name, view, watched)
        newest = self.minutes[replica.tier].slices[-1]
        kept = not (track.is_unwatched(minute) or track.is_mostly_covered(replica.told, minute.start, minute.end))
        self._closed.append(ClosedMinute(tier=replica.tier, replica=replica.name, slice=newest, kept=kept))
        self._due.add(replica.tier)

    def _stand(self, answer: RuleResult) -> tuple[ClosedSpan, ...]:
        key = (answer.rule, answer.subject)
        self.standings[key], ended = finding.step_rule_state(self.standings.get(key), answer)
        return ended


def _watched(subject: Subject, keys: Container[ReplicaKey], tiers: Container[str]) -> bool:
    return subject.tier in tiers if subject.replica is None else (subject.tier, subject.replica) in keys
