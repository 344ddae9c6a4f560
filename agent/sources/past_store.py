"""Past of a store: few large queries serve the many small ones of each step, and steps become observations."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from agent.fleet.stored_pages import ReplicaPage
from agent.fleet.tier_readers import ReplicaReader
from agent.prometheus.answers import InstantSample, MatrixSeries, Rows, StoreError, StoreErrorKind
from agent.prometheus.api import QueryClient
from agent.sources.store import STEP_SECONDS as FLEET_STEP_SECONDS
from agent.sources.store import observation_of
from rules.evaluator.observation import Observation

STEP_SECONDS = 60.0
"""Step in seconds. A silent replica is noticed within this time, as in role fleet."""

OVERLAP_SECONDS = 60.0
"""Query overlap in seconds. It lets a page maker see that a new sum did not exist before."""

PIECE_SECONDS = 3600.0
"""Span of one query in seconds; halved while the response is too large or slow."""

MOST_SAMPLES = 500_000
"""Maximum samples of one query: 30 to 60 MB of memory."""

_TOO_LARGE = frozenset({StoreErrorKind.TOO_MUCH, StoreErrorKind.SLOW})


@dataclass(frozen=True, slots=True)
class _Piece:
    """Samples of a selector in (start, end]."""

    start: float
    end: float
    series: Sequence[MatrixSeries]

    def clip(self, start: float, end: float) -> tuple[MatrixSeries, ...]:
        found = []
        for one in self.series:
            first, last = bisect_right(one.times, start), bisect_right(one.times, end)
            if first < last:
                found.append(MatrixSeries(one.labels, one.times[first:last], one.values[first:last]))
        return tuple(found)


class PastQueryClient:
    """Client of a store for times up to `until` (unix seconds). It keeps one piece of raw samples per selector.

    `trouble` is the last error of a query. A writer of history checks it, because readers turn errors into gaps.
    """

    def __init__(self, api: QueryClient, until: float, piece_seconds: float = PIECE_SECONDS) -> None:
        self._api = api
        self._until = until
        self._width = piece_seconds
        self._pieces: dict[str, _Piece] = {}
        self.error: StoreError | None = None
        self.place, self.counts = api.place, api.counts

    def query_samples(self, selector: str, start: float, end: float) -> tuple[MatrixSeries, ...]:
        """Return samples like `StoreApi.query_samples`. Raise StoreError."""
        piece = self._pieces.get(selector)
        if piece is None or start < piece.start or end > piece.end:
            # Free the old piece before the next, which is as large, arrives.
            self._pieces.pop(selector, None)
            piece = self._pieces[selector] = self._asked(selector, start, end)
        return piece.clip(start, end)

    def _asked(self, selector: str, start: float, end: float) -> _Piece:
        while True:
            until = max(end, min(start + self._width, self._until))
            try:
                return _Piece(start, until, self._api.query_samples(selector, start, until))
            except StoreError as error:
                if error.kind not in _TOO_LARGE or until <= end:
                    self.error = error
                    raise
                self._width = (until - start) / 2

    def query(self, expr: str, t: float) -> tuple[InstantSample, ...]:
        """Return values like `StoreApi.query`. Raise StoreError."""
        try:
            return self._api.query(expr, t)
        except StoreError as error:
            self.error = error
            raise

    def query_rows(self, expr: str, t: float, label: str) -> Rows:
        """Return rows like `StoreApi.query_rows`. Raise StoreError."""
        try:
            return self._api.query_rows(expr, t, label)
        except StoreError as error:
            self.error = error
            raise

    def query_range(self, expr: str, start: float, end: float, step: float) -> tuple[MatrixSeries, ...]:
        """Return values like `StoreApi.query_range`. Raise StoreError."""
        try:
            return self._api.query_range(expr, start, end, step)
        except StoreError as error:
            self.error = error
            raise


MOST_EVALUATED_EACH = 8
"""Maximum replicas for evaluation at every scrape, as in a recording. More are evaluated every 15 s, as in role fleet.
"""


class PastReader:
    """Reader of tiers of a store, replica by replica. `reached` is the time (unix seconds) that was read completely."""

    def __init__(self, readers: Sequence[ReplicaReader]) -> None:
        self._readers = tuple(readers)
        self.reached = -math.inf

    def observations(self, since: float, until: float) -> Iterator[Observation]:
        """Yield the observations in (since, until]. Raise StoreError; observations yielded before stay valid."""
        t = self.reached = since
        while t < until:
            t = min(until, t + STEP_SECONDS)
            pages: list[ReplicaPage] = []
            silent: dict[str, str] = {}
            for reader in self._readers:
                found = reader.ask(max(since, t - STEP_SECONDS - OVERLAP_SECONDS), t)
                absent = reader.pages.missing_scrapes(t)
                silent_since = reader.pages.all_silent_since
                if silent_since is not None:
                    silent[reader.tier] = f"the store has no sample of the tier for {t - silent_since:.0f} s"
                pages += found if silent_since is not None else (*found, *absent)
            gone = frozenset((one.tier, name) for one in self._readers for name in one.pages.pop_gone_replicas(t))
            pools = {one.tier: one.pages.pools for one in self._readers}
            for now, several in _group_pages(
                sorted(pages, key=lambda one: one.page.t), t, sum(map(len, pools.values()))
            ):
                yield observation_of(several, now, silent, pools=pools)
            if gone or silent:
                yield Observation(now=t, unavailable=silent, removed=gone, pools=pools)
            self.reached = t


def _group_pages(
    pages: Sequence[ReplicaPage], until: float, replicas: int
) -> Iterator[tuple[float, tuple[ReplicaPage, ...]]]:
    if replicas <= MOST_EVALUATED_EACH:
        yield from ((one.page.t, (one,)) for one in pages)
        return
    for place, several in groupby(pages, key=lambda one: one.page.t // FLEET_STEP_SECONDS):
        yield min(until, (place + 1) * FLEET_STEP_SECONDS), tuple(several)
