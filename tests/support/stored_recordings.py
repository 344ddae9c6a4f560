"""Recordings as a store has them: what Prometheus would have scraped of a node agent that watched the recorded engines,
or of the engines themselves; and a store in memory that gives it back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from loops import scrape_loop
from paths import TESTS
from prometheus_client.parser import text_string_to_metric_families

from agent.config.peer import Peer
from agent.errors import ScrapeError, ScrapeFailure
from agent.prometheus.answers import InstantSample, MatrixSeries, StoreError, StoreErrorKind
from agent.prometheus.api import QueryCounters
from agent.scrape.scrapers import PageReader, ScrapeResult, Scrapers, Target
from agent.sources.recording import Recording, Scrape, load, scrapes
from exporters.metrics import exposition
from rules.evaluator.observation import ReplicaKey
from rules.plan.load_bins import build_tier_context
from rules.plan.schema import Plan

RECORDINGS = TESTS / "recordings"

Sample = tuple[str, Mapping[str, str], float, float]
"""Name, labels, unix seconds, value."""


def rounds(recording: Recording) -> Iterator[list[Scrape]]:
    """The scrapes of one interval each."""
    several: list[Scrape] = []
    for scrape in scrapes(recording, []):
        if any(one.target == scrape.target for one in several):
            yield several
            several = []
        several.append(scrape)
    yield several


class _Recorded(Scrapers):
    """Scrapers that answer with the round that is set."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(())
        self.recording = recording
        self.readers = [PageReader(target.engine) for target in recording.targets]
        self.round: list[Scrape] = []

    def start_scrapes(self) -> dict[ReplicaKey, object]:  # type: ignore[override]
        return {}

    def collect_results(self, asked: object) -> dict[ReplicaKey, ScrapeResult]:
        told = {scrape.target: scrape for scrape in self.round}
        found = {}
        for place, target in enumerate(self.recording.targets):
            found[target.tier, target.replica] = self._scraped(place, told.get(place))
        return found

    def _scraped(self, place: int, scrape: Scrape | None) -> ScrapeResult:
        if scrape is None:
            return ScrapeResult(t=self.round[-1].t, seconds=0.0, snapshot=None, error=None)
        error: ScrapeError | None = ScrapeError(ScrapeFailure.CONNECT, scrape.error)
        page = None
        if scrape.body is not None:
            try:
                page, error = self.readers[place].read(scrape.body, scrape.t), None
            except ScrapeError as bad:
                error = bad
        return ScrapeResult(t=scrape.t, seconds=0.1, snapshot=page, error=error)


def agent_samples(name: str | Path, plan: Plan | None = None, late_seconds: float = 0.25) -> Sequence[Sample]:
    """What a store has of a node agent that watched the recording, scraped `late_seconds` after each of its turns."""
    return _of_agent_alone(name, late_seconds) if plan is None else tuple(_of_agent(name, plan, late_seconds))


@lru_cache(maxsize=3)
def _of_agent_alone(name: str | Path, late_seconds: float) -> tuple[Sample, ...]:
    return tuple(_of_agent(name, None, late_seconds))


def _of_agent(name: str | Path, plan: Plan | None, late_seconds: float) -> Iterator[Sample]:
    recording, _ = load(RECORDINGS / name)
    scrapers = _Recorded(recording)
    now = 0.0
    tiers = {target.tier for target in recording.targets}
    parts = scrape_loop(
        [
            Target(tier=t.tier, replica=t.replica, pool=t.pool, peer=Peer(url="http://127.0.0.1:1"))
            for t in recording.targets
        ],
        {tier: build_tier_context(tier, plan.tiers.get(tier) if plan else None) for tier in tiers},
        scrapers,
        clock=lambda: now,
    )
    for several in rounds(recording):
        scrapers.round, now = several, several[-1].t
        parts.loop.run_cycle()
        page, _ = exposition.render(parts.status(now), "")
        yield from samples(page.decode(), now + late_seconds, {"instance": "node-1:19095", "job": "sizewatch"})


@lru_cache(maxsize=3)
def engine_samples(name: str | Path, job: str = "vllm") -> Sequence[Sample]:
    """What a store has that scraped the recorded engines themselves, `up` with it."""
    return tuple(_of_engines(name, job))


def _of_engines(name: str | Path, job: str) -> Iterator[Sample]:
    recording, _ = load(RECORDINGS / name)
    for scrape in scrapes(recording, []):
        target = recording.targets[scrape.target]
        labels = {"instance": target.replica, "job": job}
        yield "up", labels, scrape.t, float(scrape.body is not None)
        if scrape.body is not None:
            yield from samples(scrape.body.decode(), scrape.t, labels)


def samples(page: str, t: float, target: Mapping[str, str]) -> Iterator[Sample]:
    """The samples of a page as Prometheus takes them in, with the labels of its target."""
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            yield sample.name, {**sample.labels, **target}, t, sample.value


@dataclass
class MemoryStore:
    """A store that knows one kind of question: the raw samples of a selector with `__name__=~` and `label="value"`."""

    series: dict[tuple[tuple[str, str], ...], tuple[list[float], list[float]]] = field(default_factory=dict)
    queries: int = 0
    place: str = "http://memory"

    @classmethod
    def of(cls, several: Iterable[Sample]) -> MemoryStore:
        store = cls()
        for name, labels, t, value in several:
            key = tuple(sorted({**labels, "__name__": name}.items()))
            times, values = store.series.setdefault(key, ([], []))
            times.append(t)
            values.append(value)
        return store

    def query_samples(self, selector: str, start: float, end: float) -> tuple[MatrixSeries, ...]:
        self.queries += 1
        matchers = re.findall(r'(\w+)(=~|=)"([^"]*)"', selector)
        found = []
        for key, (times, values) in self.series.items():
            labels = dict(key)
            if all(_fits(labels.get(name, ""), how, value) for name, how, value in matchers):
                inside = [(t, v) for t, v in zip(times, values, strict=True) if start < t <= end]
                if inside:
                    found.append(MatrixSeries(labels, tuple(t for t, _ in inside), tuple(v for _, v in inside)))
        return tuple(found)


def _fits(value: str, how: str, wanted: str) -> bool:
    return value == wanted if how == "=" else re.fullmatch(wanted, value) is not None


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
