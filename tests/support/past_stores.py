"""Stores in memory whose past is longer than a recording, and that fail when they are told to."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from stored_recordings import MemoryStore, Sample, engine_samples

from agent.prometheus.answers import InstantSample, MatrixSeries, StoreError, StoreErrorKind
from agent.prometheus.api import QueryCounters

HOUR = 1_700_035_200.0
"""A full hour that is long past, eight in the morning in UTC."""


@dataclass
class PastStore:
    """The samples of a MemoryStore. From the query `fails_at` on it is away; a query over more than `longest` seconds is too much
    for it."""

    store: MemoryStore
    fails_at: int | None = None
    longest: float = float("inf")
    kind: StoreErrorKind = StoreErrorKind.AWAY
    asked: list[tuple[float, float]] = field(default_factory=list)
    place: str = "http://memory"
    counts: QueryCounters = field(default_factory=QueryCounters)

    def query_samples(self, selector: str, start: float, end: float) -> tuple[MatrixSeries, ...]:
        self.asked.append((start, end))
        if end - start > self.longest:
            raise StoreError(StoreErrorKind.TOO_MUCH, self.place, "too much at once")
        if self.fails_at is not None and len(self.asked) > self.fails_at:
            raise StoreError(self.kind, self.place, "connection refused")
        return self.store.query_samples(selector, start, end)

    def query(self, expr: str, t: float) -> tuple[InstantSample, ...]:
        """The one thing that is asked so is how many replicas there are."""
        assert expr.startswith("count")
        return (InstantSample({}, 1.0),)

    def query_range(self, expr: str, start: float, end: float, step: float) -> tuple[MatrixSeries, ...]:
        raise AssertionError("sums are not asked of a few replicas")


def moved(name: str, begin: float, job: str = "vllm") -> Iterator[Sample]:
    """What a store has of the engines of a recording, as if it had begun then."""
    several = list(engine_samples(name, job))
    first = min(t for _, _, t, _ in several)
    for sample, labels, t, value in several:
        time_of_day = sample.endswith("_created") or sample == "process_start_time_seconds"
        yield sample, labels, t - first + begin, value - first + begin if time_of_day else value
