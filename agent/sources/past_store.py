"""Past of a store for a replay: few large queries serve the many small ones of each step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

from agent.fleet.tier_readers import OVERLAP_SECONDS, TOO_LARGE, ReplicaReader, read_tier
from agent.prometheus.answers import MatrixSeries
from agent.prometheus.api import SampleClient
from agent.prometheus.errors import StoreError
from agent.sources.store import observation_of
from rules.evaluator.observation import Observation

STEP_SECONDS = 60.0
"""Step in seconds. A silent replica is noticed within this time, as in role fleet."""

PIECE_SECONDS = 3600.0
"""Span of one query in seconds; halved while the response is too large or slow."""

MOST_SAMPLES = 500_000
"""Maximum samples of one query: 30 to 60 MB of memory."""

Item = TypeVar("Item")


class PastQueryClient:
    """Client of a store for times up to `until` (unix seconds). It keeps one piece of raw samples per selector."""

    def __init__(self, api: SampleClient, until: float) -> None:
        self._api = api
        self._until = until
        self._width = PIECE_SECONDS
        self._pieces: dict[str, tuple[float, float, Sequence[MatrixSeries]]] = {}

    def query_samples(self, selector: str, start: float, end: float) -> tuple[MatrixSeries, ...]:
        """Return samples like `StoreApi.query_samples`. Raise StoreError."""
        first, last, _ = self._pieces.get(selector, (0.0, 0.0, ()))
        if not first <= start < end <= last:
            # Free the old piece before the next, which is as large, arrives.
            self._pieces.pop(selector, None)
            self._pieces[selector] = self._query(selector, start, end)
        spans = [
            (series, bisect_right(series.times, start), bisect_right(series.times, end))
            for series in self._pieces[selector][2]
        ]
        return tuple(MatrixSeries(of.labels, of.times[a:b], of.values[a:b]) for of, a, b in spans if a < b)

    def _query(self, selector: str, start: float, end: float) -> tuple[float, float, Sequence[MatrixSeries]]:
        """Return the begin and end of a piece, and its series."""
        while True:
            last = max(end, min(start + self._width, self._until))
            try:
                return start, last, self._api.query_samples(selector, start, last)
            except StoreError as error:
                if error.kind not in TOO_LARGE or last <= end:
                    raise
                self._width = (last - start) / 2


def observe_past(readers: Sequence[ReplicaReader], since: float, until: float) -> Iterator[Observation]:
    """Yield the observations of tiers in (since, until] (unix seconds), replica by replica. Raise StoreError."""
    t = since
    while t < until:
        t = min(until, t + STEP_SECONDS)
        start = max(since, t - STEP_SECONDS - OVERLAP_SECONDS)
        read = {reader.tier: read_tier(reader, start, t) for reader in readers}
        silent = {tier: silence for tier, (_, silence) in read.items() if silence}
        gone = frozenset((reader.tier, name) for reader in readers for name in reader.pages.pop_gone_replicas(t))
        pools = {reader.tier: reader.pages.pools for reader in readers}
        pages = sorted((page for found, _ in read.values() for page in found), key=lambda page: page.page.t)
        for cycle in group_by_cycle(pages, lambda page: (page.tier, page.page.replica)):
            yield observation_of(cycle, cycle[-1].page.t, silent, pools=pools)
        if gone or silent:
            yield Observation(now=t, unavailable=silent, removed=gone, pools=pools)


def group_by_cycle(items: Iterable[Item], key: Callable[[Item], Hashable]) -> Iterator[tuple[Item, ...]]:
    """Yield the scrapes of each cycle. The second of a target begins the next cycle: all replicas close a minute at once."""
    cycle: dict[Hashable, Item] = {}
    for item in items:
        if key(item) in cycle:
            yield tuple(cycle.values())
            cycle = {}
        cycle[key(item)] = item
    if cycle:
        yield tuple(cycle.values())
