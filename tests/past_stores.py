"""Stores in memory whose past is longer than a recording, and that fail when they are told to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from stored_recordings import MemoryStore, Sample, engine_samples

from agent.store.answers import RawSeries, Sampled
from agent.store.api import Counts
from agent.store.trouble import StoreTrouble, TroubleKind

HOUR = 1_700_035_200.0
"""A full hour that is long past, eight in the morning in UTC."""


@dataclass
class PastStore:
    """The samples of a MemoryStore. From the query `fails_at` on it is away; a query over more than `longest` seconds is too much
    for it."""

    store: MemoryStore
    fails_at: int | None = None
    longest: float = float("inf")
    kind: TroubleKind = TroubleKind.AWAY
    asked: list[tuple[float, float]] = field(default_factory=list)
    place: str = "http://memory"
    counts: Counts = field(default_factory=Counts)

    def raw(self, selector: str, start: float, end: float) -> tuple[RawSeries, ...]:
        self.asked.append((start, end))
        if end - start > self.longest:
            raise StoreTrouble(TroubleKind.TOO_MUCH, self.place, "too much at once")
        if self.fails_at is not None and len(self.asked) > self.fails_at:
            raise StoreTrouble(self.kind, self.place, "connection refused")
        return self.store.raw(selector, start, end)

    def instant(self, expr: str, t: float) -> tuple[Sampled, ...]:
        """The one thing that is asked so is how many replicas there are."""
        assert expr.startswith("count")
        return (Sampled({}, 1.0),)

    def over(self, expr: str, start: float, end: float, step: float) -> tuple[RawSeries, ...]:
        raise AssertionError("sums are not asked of a few replicas")


def moved(name: str, begin: float, job: str = "vllm") -> Iterator[Sample]:
    """What a store has of the engines of a recording, as if it had begun then."""
    several = list(engine_samples(name, job))
    first = min(t for _, _, t, _ in several)
    for sample, labels, t, value in several:
        time_of_day = sample.endswith("_created") or sample == "process_start_time_seconds"
        yield sample, labels, t - first + begin, value - first + begin if time_of_day else value
