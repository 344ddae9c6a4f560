"""Engines of one simulated tier over time: requests go to those that are ready, evenly but for chance."""

from __future__ import annotations

import math
import random

from agent.demo.simulation.engine import SimulatedEngine
from agent.demo.simulation.scenario import Restart, TierScenario, conditions
from rules.plan.curve import Curve
from rules.plan.schema import TierPlan
from rules.telemetry.snapshots import Snapshot


class TierRun:
    """Engines of a tier, advanced up to `t` (unix seconds). `names` are their replicas."""

    def __init__(self, story: TierScenario, plan: TierPlan, begin: float, seed: int) -> None:
        curve = Curve.from_plan(plan)
        assert curve is not None, "a simulated tier has a curve"
        self.story, self.t = story, begin
        self.names = tuple(f"{story.tier}-{n}" for n in range(story.replicas))
        self._seed = f"{seed}/{story.tier}"
        self._rng = random.Random(f"{self._seed}/run")
        self.engines = tuple(SimulatedEngine(plan, curve, self._rng, begin) for _ in self.names)

    def advance(self, t: float) -> None:
        """Advance every engine that is ready to `t`."""
        rate = self.story.rate((self.t + t) / 2, self._seed)
        ready = [replica for replica in range(self.story.replicas) if self._restart_at(replica, t) is None]
        for replica in ready:
            self.advance_replica(replica, t, rate, len(ready))
        self.t = t

    def advance_replica(self, replica: int, t: float, rate: float, ready: int) -> tuple[int, int, float, float]:
        """Advance one of the `ready` replicas of a tier at `rate` requests per second.

        Return its arrived and finished requests, their prompt and their generated tokens.
        """
        engine = self.engines[replica]
        for restart in self.story.restarts:
            if restart.replica == replica and self.t < restart.ready <= t:
                engine.restart(restart.started, restart.ready)
        mean = rate * (t - engine.t) / ready
        arrivals = max(0, round(mean + self._rng.gauss(0.0, 1.0) * math.sqrt(mean)))
        return arrivals, *engine.advance(t, arrivals, conditions(self.story, replica, t))

    def page(self, replica: int) -> Snapshot | None:
        """Return the present page of a replica. Return None while it is down."""
        return self.engines[replica].snapshot() if self._restart_at(replica, self.t) is None else None

    def pages(self) -> dict[str, Snapshot]:
        """Return the present page of every replica that answers."""
        pages = {name: self.page(replica) for replica, name in enumerate(self.names)}
        return {name: page for name, page in pages.items() if page is not None}

    def _restart_at(self, replica: int, t: float) -> Restart | None:
        """Return the restart that keeps a replica from answering at `t`."""
        return next((r for r in self.story.restarts if r.replica == replica and r.gone <= t < r.ready), None)
