"""An evaluator and its state, fed scrape by scrape."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any

from rules.evaluator.observation import ClosedMinute, Observation, ReplicaKey, ReplicaScrape, TierAggregate
from rules.evaluator.state import EvaluatorState
from rules.evaluator.step import Evaluator, add_aggregate
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window
from rules.verdicts.verdict import ClosedSpan


class EvaluationSteps:
    """Scrapes are applied one by one; `step` evaluates what came since."""

    def __init__(self, tiers: Mapping[str, TierContext]) -> None:
        self.evaluator = Evaluator(tiers)
        self.state = EvaluatorState()
        self._aggregated: frozenset[str] = frozenset()
        self._gpu_problems: dict[ReplicaKey, str] = {}

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the state, such as `rules` or `minutes`."""
        return getattr(self.state, name)

    def apply_snapshot(self, tier: str, name: str, snapshot: Snapshot, gpus: Window | None = None) -> Window | None:
        return self._apply(tier, name, snapshot.t, snapshot=snapshot, gpu_window=gpus)

    def apply_failed_scrape(self, tier: str, name: str, t: float, error: str = "") -> Window | None:
        return self._apply(tier, name, t, error=error, failure="connect")

    def _apply(self, tier: str, name: str, t: float, **more: Any) -> Window | None:
        problem = self._gpu_problems.get((tier, name), "")
        scrape = ReplicaScrape(tier=tier, replica=name, t=t, gpu_problem=problem, **more)
        return self.evaluator.apply_scrape(self.state, scrape, t, [])

    def set_gpu_problem(self, tier: str, name: str, text: str) -> None:
        self._gpu_problems[tier, name] = text

    def set_aggregated(self, tiers: Iterable[str]) -> None:
        self._aggregated = frozenset(tiers)
        self.state.set_aggregated(self._aggregated)

    def add_aggregate(self, tier: str, groups: Sequence[BinnedWindow], each: Sequence[BinnedWindow]) -> None:
        aggregate = TierAggregate(groups=tuple(groups), each=tuple(each))
        add_aggregate(self.state, tier, aggregate, self.evaluator.tier(tier))

    def remove_replicas(self, keys: Collection[ReplicaKey]) -> None:
        self.evaluator.remove_replicas(self.state, keys)

    def step(
        self, now: float, unavailable: Mapping[str, str] | None = None
    ) -> tuple[tuple[ClosedSpan, ...], tuple[ClosedMinute, ...]]:
        """What ended, and the minutes that were closed."""
        observation = Observation(now=now, aggregated=self._aggregated, unavailable=unavailable or {})
        result = self.evaluator.step(self.state, observation)
        result.raise_defects()
        return result.closed, result.minutes

    def flush(self) -> tuple[ClosedMinute, ...]:
        return self.evaluator.flush(self.state)

    def take_state(self, before: EvaluationSteps, keys: Set[ReplicaKey]) -> None:
        """Go on with the state of a previous configuration."""
        for tier, _ in keys:
            self.evaluator.tier(tier)
        self.state = before.state
        self.state.retain(keys, self.evaluator.tiers)
