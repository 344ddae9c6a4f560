"""State of the evaluation between two steps. Only `rules.evaluator.step` and the restore functions change it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from rules.evaluator import rule_evaluation, tier_minutes
from rules.evaluator.observation import ClosedMinute, ReplicaKey
from rules.evaluator.tier_minutes import TierMinutes
from rules.plan.load_bins import TierContext
from rules.replicas.starts import ReplicaStart, add_start
from rules.replicas.state import ReplicaState
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Reading
from rules.telemetry.windows import MINUTE_SECONDS
from rules.verdicts.context import Projection
from rules.verdicts.error_budget import Budget
from rules.verdicts.verdict import Finding, RuleResult, RuleState, Subject

RuleKey = tuple[str, Subject]
"""Rule name and its subject."""


@dataclass(slots=True)
class EvaluatorState:
    """Mutable dictionaries of frozen records, changed in place: a copy per step would not fit a node agent's memory.

    `long_term` holds the latest results of the rules over days. `closed_minutes`, `due_tiers`, `new_results` and
    `removed_rules` wait for the next step. `now` is the time of the last one (unix seconds).
    """

    replicas: dict[ReplicaKey, ReplicaState] = field(default_factory=dict)
    minutes: dict[str, TierMinutes] = field(default_factory=dict)
    rules: dict[RuleKey, RuleState] = field(default_factory=dict)
    projections: dict[str, Projection] = field(default_factory=dict)
    long_term: dict[RuleKey, RuleResult] = field(default_factory=dict)
    closed_minutes: list[ClosedMinute] = field(default_factory=list)
    due_tiers: set[str] = field(default_factory=set)
    new_results: tuple[RuleResult, ...] = ()
    removed_rules: dict[RuleKey, RuleState] = field(default_factory=dict)
    now: float | None = None

    def open_findings(self) -> tuple[Finding, ...]:
        """Return the findings that have not ended."""
        return tuple(state.finding for state in self.rules.values() if state.finding is not None)

    def requests_waiting(self, tier: str) -> float | None:
        """Return the queued requests of a tier: of the present pages, else the newest minute's mean."""
        tracks = [replica.track for (name, _), replica in self.replicas.items() if name == tier]
        pages = [track.last.gauges for track in tracks if track.last is not None and track.misses == 0]
        waiting = [gauges["requests_waiting"] for gauges in pages if "requests_waiting" in gauges]
        if waiting:
            return sum(waiting)
        binned = self.minutes[tier].binned if tier in self.minutes else ()
        newest = max((sample.window.end for sample in binned), default=0.0)
        windows = (sample.window for sample in binned if sample.window.end > newest - MINUTE_SECONDS)
        means = [value for window in windows if isinstance(value := read(BY_NAME["requests_waiting"], window), Reading)]
        return sum(mean.value or 0.0 for mean in means) if means else None

    def set_aggregated(self, tiers: Set[str]) -> None:
        """Change the tiers that a store began or ceased to add up."""
        for tier in (*self.minutes, *sorted(tiers - self.minutes.keys())):
            minutes = self.of_tier(tier)
            if (minutes.each is not None) != (tier in tiers):
                self.minutes[tier] = replace(minutes, each=() if tier in tiers else None)

    def of_tier(self, tier: str) -> TierMinutes:
        """Return the minutes of a tier, without any if it has closed none."""
        return self.minutes.get(tier, TierMinutes())

    def add_start(self, tier: str, start: ReplicaStart) -> bool:
        """Add a start of a replica, also from an earlier run. Return whether it was not known."""
        before = self.of_tier(tier)
        self.minutes[tier] = replace(before, starts=add_start(before.starts, start))
        return self.minutes[tier].starts is not before.starts

    def add_release(self, tier: str, replica: str, release: str) -> None:
        """Set the release of a replica as the newest of its tier. Replicas that are gone are dropped."""
        minutes, live = self.of_tier(tier), {name for tier_name, name in self.replicas if tier_name == tier} - {replica}
        kept = {name: text for name, text in minutes.releases.items() if name in live}
        self.minutes[tier] = replace(minutes, releases={**kept, replica: release})

    def restore_error_budget(self, tier: str, budget: Budget) -> None:
        """Replace a tier's error budget by the one that the history has."""
        self.minutes[tier] = replace(self.of_tier(tier), budget=budget)

    def set_long_term_results(self, results: Iterable[RuleResult]) -> None:
        """Set results of rules over days. The next step evaluates them; they last until they are replaced."""
        fresh = tuple(results)
        self.long_term |= {(result.rule, result.subject): result for result in fresh}
        self.new_results = (*self.new_results, *rule_evaluation.long_only_results(fresh))

    def pop_closed_minutes(self) -> tuple[ClosedMinute, ...]:
        """Return the minutes that were closed since the last call."""
        closed, self.closed_minutes = tuple(self.closed_minutes), []
        return closed

    def remove_replicas(self, keys: Container[ReplicaKey]) -> None:
        """Remove replicas. The next step closes their findings."""
        self.replicas = {key: replica for key, replica in self.replicas.items() if key not in keys}
        for key in list(self.rules):
            if key[1].replica is not None and (key[1].tier, key[1].replica) in keys:
                self.removed_rules[key] = self.rules.pop(key)

    def retain(self, keys: Set[ReplicaKey], contexts: Mapping[str, TierContext]) -> None:
        """Drop what a new configuration does not monitor: it watches the replicas `keys` and has these tier `contexts`.

        A tier continues even if all its replicas are new. The next step closes the findings of everything else. A tier
        that has no replica now, such as during a pod replacement, keeps its starts and releases.
        """
        tiers = {tier for tier, _ in keys}
        self.replicas = {key: replica for key, replica in self.replicas.items() if key in keys}
        self.minutes = {
            tier: tier_minutes.rebin_minutes(minutes, contexts[tier])
            if tier in tiers
            else TierMinutes(starts=minutes.starts, releases=minutes.releases)
            for tier, minutes in self.minutes.items()
            if tier in contexts
        }
        for key, state in list(self.rules.items()):
            if not _is_monitored(key[1], keys, tiers):
                self.removed_rules[key] = state
                del self.rules[key]
        self.long_term = {key: result for key, result in self.long_term.items() if key[1].tier in tiers}
        self.new_results = tuple(result for result in self.new_results if result.subject.tier in tiers)
        self.projections = {tier: projection for tier, projection in self.projections.items() if tier in tiers}


def _is_monitored(subject: Subject, keys: Container[ReplicaKey], tiers: Container[str]) -> bool:
    return subject.tier in tiers if subject.replica is None else (subject.tier, subject.replica) in keys
