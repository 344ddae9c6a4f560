"""Protocols of the evaluation loop: a Source makes observations, a Sink takes the results of steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from agent.scrape.scrapers import Target
from exporters.status.records import ExportScope, StoreHealth
from rules.evaluator.observation import Observation, StepResult


class Closable(Protocol):
    """Part with connections, threads or devices."""

    def close(self) -> None:
        """Release them."""


class Source(Protocol):
    """Source of observations of one configuration, for one thread. Other agents export the `agent_tiers`."""

    agent_tiers: frozenset[str] = frozenset()

    @property
    def targets(self) -> Sequence[Target]:
        """Return the present targets: as configured, discovered or found in a store."""

    @property
    def tiers(self) -> frozenset[str]:
        """Return the names of the monitored tiers, also without targets."""

    def observe(self, now: float) -> Iterator[Observation]:
        """Yield the observations of one cycle at `now` (unix seconds). The loop evaluates each before the next."""

    def take_windows(self, result: StepResult) -> None:
        """Take the windows of the last observation, which later ones of the same cycle may depend on."""
        return

    def describe(self) -> str:
        """Return a description of the targets for the log."""

    def export_scope(self, tier: str) -> ExportScope:
        """Return which results of a tier this agent exports and alerts on."""

    def store_health(self) -> StoreHealth | None:
        """Return the health of the store, or None without a store."""
        return None

    def parts(self) -> Iterator[Closable]:
        """Return the parts that a source of the next configuration may go on with."""
        return iter(())

    def interrupt(self) -> None:
        """Let the present cycle close with what came. Any thread may call it, before `close`."""

    def close(self) -> None:
        """Close connections and devices."""
        for part in self.parts():
            part.close()


class Sink:
    """Receiver of step results. An exception costs this sink's part of the cycle only: the loop counts and logs it."""

    def accept(self, result: StepResult) -> None:
        """Take the result of a step. The caller holds the lock of the state, so this does no I/O."""

    def end_cycle(self, now: float) -> None:
        """Write or send what was accepted in a cycle. The lock is free."""

    def close(self) -> None:
        """Release everything, after the last cycle."""
