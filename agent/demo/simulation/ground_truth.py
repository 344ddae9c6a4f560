"""What really happened in the simulated weeks, written beside the history: times, counts, lengths. JSON.

Owns the counting while it is simulated, and the document. Nothing of it comes from windows: it is what windows, verdicts,
forecasts and reports can be held against. Times are unix seconds, days are UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from agent.demo.simulation.scenario import DAY, TierScenario

SCHEMA = 1


@dataclass(slots=True)
class DayTotals:
    """What one tier did in a day: seconds that are simulated, replica-seconds due, requests and tokens."""

    seconds: float = 0.0
    replica_seconds: float = 0.0
    arrived: int = 0
    finished: int = 0
    prompt_tokens: float = 0.0
    generation_tokens: float = 0.0


@dataclass(slots=True)
class TierTotals:
    """One tier, day by day (by the begin of the day)."""

    tier: str
    days: dict[float, DayTotals] = field(default_factory=dict)

    def add_step(self, t: float, seconds: float, replicas: int) -> None:
        """A step that ended at `t`."""
        sums = self._day(t)
        sums.seconds += seconds
        sums.replica_seconds += seconds * replicas

    def add_replica_step(
        self, t: float, arrived: int, finished: int, prompt_tokens: float, generation_tokens: float
    ) -> None:
        """What one replica did in a step that ended at `t`."""
        sums = self._day(t)
        sums.arrived += arrived
        sums.finished += finished
        sums.prompt_tokens += prompt_tokens
        sums.generation_tokens += generation_tokens

    def _day(self, t: float) -> DayTotals:
        # A step that ends at midnight belongs to the day before.
        return self.days.setdefault((t - 1e-3) // DAY * DAY, DayTotals())


def document(
    stories: Iterable[TierScenario],
    tallies: Mapping[str, TierTotals],
    outages: Iterable[tuple[float, float]],
    **about: Any,
) -> dict[str, Any]:
    """The truth; `about` says what was simulated (seed, begin, end)."""
    return {
        "schema": SCHEMA,
        "simulated": True,
        **about,
        "not_watched": [{"begin": begin, "end": end} for begin, end in outages],
        "tiers": {story.tier: _tier(story, tallies[story.tier]) for story in stories},
    }


def _tier(story: TierScenario, tally: TierTotals) -> dict[str, Any]:
    drift, cascade, demand = story.drift, story.cascade, story.demand
    changed = None
    if demand.then is not None:
        changed = {"at": demand.changes_at, "before": asdict(demand.pattern), "after": asdict(demand.then)}
    return {
        "replicas": story.replicas,
        "utilization_trap": story.idle,
        "prompt_drift": None if drift is None else asdict(drift),
        "kv_cascade": None if cascade is None else asdict(cascade),
        "demand": asdict(demand.pattern),
        "demand_changed": changed,
        "plan_changed_at": story.replanned_at,
        "restarts": [asdict(one) | {"cold_start_seconds": one.ready - one.started} for one in story.restarts],
        "days": [{"day": day, **asdict(sums), **_means(sums)} for day, sums in sorted(tally.days.items())],
    }


def _means(sums: DayTotals) -> dict[str, float | None]:
    if sums.finished == 0:
        return {"prompt_tokens_mean": None, "generation_tokens_mean": None}
    return {
        "prompt_tokens_mean": sums.prompt_tokens / sums.finished,
        "generation_tokens_mean": sums.generation_tokens / sums.finished,
    }
