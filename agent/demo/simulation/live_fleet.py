"""The simulated fleet after the weeks that were filled in: its engines go on, and answer over HTTP as real ones would.

Owns the engines' going on with the demo's clock, and GPUs that follow them. Nothing unusual happens any more but what the
story began: the patterns, the drift, the nightly job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from agent.demo.gpus import StandInGpus
from agent.demo.page_server import PageServer
from agent.demo.simulation.folder import SimulatedHistory
from agent.demo.simulation.page import text
from agent.demo.simulation.tier_run import TierRun
from rules.plan.schema import TierPlan

STEP_SECONDS = 60.0
"""After a longer time without a question the engines go on in steps of it."""


class LiveFleet:
    """The engines of all tiers, advanced whenever somebody asks; safe to ask from several threads."""

    def __init__(self, past: SimulatedHistory, clock: Callable[[], float]) -> None:
        self._runs, self._clock = past.filling.runs, clock
        self._lock = threading.Lock()
        self._places = {
            follower.name: (tier, n) for tier, run in self._runs.items() for n, follower in enumerate(run.followers)
        }
        self.server = PageServer(self._places, self.page)
        self.targets = targets(past, self.server.url)
        busy: dict[str, Callable[[], float]] = {}
        products: dict[str, str] = {}
        for name, (tier, _) in self._places.items():
            for gpu in _gpus(name, past.plan.tiers[tier]):
                busy[gpu], products[gpu] = self._busy(name), past.plan.tiers[tier].gpu.product
        self.gpus = StandInGpus(busy, products)

    def page(self, replica: str) -> bytes | None:
        """A replica's page now; None while it is down."""
        tier, place = self._places[replica]
        with self._lock:
            self._go_on(self._runs[tier])
            page = self._runs[tier].page(place, gpus=False)
        return None if page is None else text(page)

    def _go_on(self, run: TierRun) -> None:
        now = self._clock()
        while now - run.t >= 1.0:
            run.advance(min(now, run.t + STEP_SECONDS))

    def _busy(self, replica: str) -> Callable[[], float]:
        tier, place = self._places[replica]

        def share() -> float:
            with self._lock:
                return self._runs[tier].followers[place].engine.busy

        return share


def targets(past: SimulatedHistory, url: Callable[[str], str]) -> tuple[dict[str, object], ...]:
    """The fleet as a configuration names it, at the addresses that `url` gives its replicas."""
    return tuple(
        {
            "url": url(follower.name),
            "tier": tier,
            "replica": follower.name,
            "engine": "vllm",
            "gpus": [f"stand-in-{gpu}" for gpu in _gpus(follower.name, past.plan.tiers[tier])],
        }
        for tier, run in past.filling.runs.items()
        for follower in run.followers
    )


def _gpus(replica: str, plan: TierPlan) -> tuple[str, ...]:
    """Their names, without what every stand-in is called by."""
    return tuple(f"{replica}-gpu{n}" for n in range(plan.gpu.per_replica))
