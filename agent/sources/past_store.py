"""Past of a store for a replay: few large queries serve the many small ones of each step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby

from agent.fleet.stored_pages import ReplicaPage
from agent.fleet.tier_readers import OVERLAP_SECONDS, TOO_LARGE, ReplicaReader
from agent.prometheus.answers import MatrixSeries
from agent.prometheus.api import SampleClient
from agent.prometheus.errors import StoreError
from agent.sources.store import STEP_SECONDS as FLEET_STEP_SECONDS
from agent.sources.store import observation_of, read_tier
from rules.evaluator.observation import Observation

STEP_SECONDS = 60.0
"""Step in seconds. A silent replica is noticed within this time, as in role fleet."""

PIECE_SECONDS = 3600.0
"""Span of one query in seconds; halved while the response is too large or slow."""

MOST_SAMPLES = 500_000
"""Maximum samples of one query: 30 to 60 MB of memory."""

MOST_EVALUATED_EACH = 8
"""Maximum replicas for evaluation at every scrape, as in a recording. More are evaluated every 15 s, as in role fleet."""


class PastQueryClient:
    """Client of a store for times up to `until` (unix seconds). It keeps one piece of raw samples per selector."""

    def __init__(self, api: SampleClient, until: float) -> None:
        self._api = api
        self._until = until
        self._width = PIECE_SECONDS
        self._pieces: dict[str, tuple[float, float, Sequence[MatrixSeries]]] = {}

    def query_samples(self, selector: str, start: float, end: float) -> tuple[MatrixSeries, ...]:
        """Return samples like `StoreApi.query_samples`. Raise StoreError."""
        first, last, series = self._pieces.get(selector, (0.0, 0.0, ()))
        if not first <= start < end <= last:
            # Free the old piece before the next, which is as large, arrives.
            self._pieces.pop(selector, None)
            del series
            last, series = self._query(selector, start, end)
            self._pieces[selector] = start, last, series
        found = []
        for each in series:
            begin, stop = bisect_right(each.times, start), bisect_right(each.times, end)
            if begin < stop:
                found.append(MatrixSeries(each.labels, each.times[begin:stop], each.values[begin:stop]))
        return tuple(found)

    def _query(self, selector: str, start: float, end: float) -> tuple[float, Sequence[MatrixSeries]]:
        """Return the end of a piece and its series."""
        while True:
            last = max(end, min(start + self._width, self._until))
            try:
                return last, self._api.query_samples(selector, start, last)
            except StoreError as error:
                if error.kind not in TOO_LARGE or last <= end:
                    raise
                self._width = (last - start) / 2


def observe_past(readers: Sequence[ReplicaReader], since: float, until: float) -> Iterator[Observation]:
    """Yield the observations of tiers in (since, until] (unix seconds), replica by replica. Raise StoreError."""
    t = since
    while t < until:
        t = min(until, t + STEP_SECONDS)
        pages: list[ReplicaPage] = []
        silent: dict[str, str] = {}
        for reader in readers:
            found, silence = read_tier(reader, max(since, t - STEP_SECONDS - OVERLAP_SECONDS), t)
            pages += found
            if silence:
                silent[reader.tier] = silence
        gone = frozenset((reader.tier, name) for reader in readers for name in reader.pages.pop_gone_replicas(t))
        pools = {reader.tier: reader.pages.pools for reader in readers}
        pages.sort(key=lambda page: page.page.t)
        for now, group in _group_pages(pages, t, sum(map(len, pools.values()))):
            yield observation_of(group, now, silent, pools=pools)
        if gone or silent:
            yield Observation(now=t, unavailable=silent, removed=gone, pools=pools)


def _group_pages(
    pages: Sequence[ReplicaPage], until: float, replicas: int
) -> Iterator[tuple[float, tuple[ReplicaPage, ...]]]:
    if replicas <= MOST_EVALUATED_EACH:
        yield from ((page.page.t, (page,)) for page in pages)
        return
    for place, group in groupby(pages, key=lambda page: page.page.t // FLEET_STEP_SECONDS):
        yield min(until, (place + 1) * FLEET_STEP_SECONDS), tuple(group)
