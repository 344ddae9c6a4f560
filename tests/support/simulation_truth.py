"""The truth of the simulated weeks: counted by the simulated engines, never from windows, so that verdicts are held against it."""

import copy
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from agent.demo.simulation import weeks
from agent.demo.simulation.scenario import DAY, HOUR, TierRun, TierScenario, find_outage
from agent.demo.simulation.weeks import SimulatedHistory, fill

TRUTH = "truth.json"

IDLE = "rag-l40s"
"""The tier that is sized for twice the traffic that ever came."""


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


class CountedRun(TierRun):
    """A tier that counts what its engines do."""

    def __init__(self, story: TierScenario, *rest: Any) -> None:
        self.tally = TierTotals(tier=story.tier)
        super().__init__(story, *rest)

    def advance(self, t: float) -> None:
        self.tally.add_step(t, t - self.t, self.story.replicas)
        super().advance(t)

    def advance_replica(self, replica: int, t: float, rate: float, ready: int) -> tuple[int, int, float, float]:
        done = super().advance_replica(replica, t, rate, ready)
        self.tally.add_replica_step(t, *done)
        return done


def document(past: SimulatedHistory) -> Mapping[str, Any]:
    begin, end = find_outage(past.begin, past.end)
    return {
        "seed": SEED,
        "begin": past.begin,
        "end": past.end,
        "not_watched": [{"begin": begin, "end": end}],
        "tiers": {name: _tier(run.story, run.tally) for name, run in past.runs.items() if isinstance(run, CountedRun)},
    }


def _tier(story: TierScenario, tally: TierTotals) -> dict[str, Any]:
    drift, cascade = story.drift, story.cascade
    changed = None
    if story.then is not None:
        changed = {"at": story.changes_at, "before": asdict(story.pattern), "after": asdict(story.then)}
    return {
        "replicas": story.replicas,
        "utilization_trap": story.tier == IDLE,
        "prompt_drift": None if drift is None else asdict(drift),
        "kv_cascade": None if cascade is None else asdict(cascade),
        "demand": asdict(story.pattern),
        "demand_changed": changed,
        "plan_changed_at": story.replanned_at,
        "restarts": [asdict(one) | {"cold_start_seconds": one.ready - one.started} for one in story.restarts],
        "days": [{"day": day, **asdict(sums)} for day, sums in sorted(tally.days.items())],
    }


END = 1_795_248_000.0
"""Saturday, 21 November 2026, 08:00 UTC."""

SECONDS, SEED = 28 * DAY, 7


class PastFleet:
    """Four weeks, of which the last hour is there in minutes.

    What the others are is known to the demand of every minute, and filling takes half as long.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with patch.object(weeks, "TierRun", CountedRun):
            self._past = fill(folder, seconds=SECONDS, end=END + 61.0, seed=SEED, fine_seconds=HOUR)
        (folder / TRUTH).write_text(json.dumps(document(self._past), indent=1), encoding="utf-8")

    def into(self, folder: Path) -> SimulatedHistory:
        """Puts a copy of its files into a folder that is not there yet, and gives a copy of the fleet."""
        shutil.copytree(self.folder, folder)
        return replace(self._past, runs=copy.deepcopy(self._past.runs))
