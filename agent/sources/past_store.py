"""The past as a store has it, told step by step as if it were now.

Owns how a long span is asked for (few large questions, from which the many small ones of each step are answered) and the
order in which it is told. Who judges it is `agent.replay.replay` (shown) or `agent.replay.back_fill_writer` (put into a history).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agent.fleet.each import ReplicaReader
from agent.fleet.stored_pages import ReplicaPage
from agent.prometheus.answers import InstantSample, MatrixSeries
from agent.prometheus.api import QueryCounters
from agent.prometheus.trouble import StoreError, StoreErrorKind
from rules.evaluator.step import ReplicaKey

STEP_SECONDS = 60.0
"""A replica that falls silent is missed within so long, as by the daemon of role fleet."""

OVERLAP_SECONDS = 60.0
"""So much is told again to whoever makes pages: a sum that is new is then seen to have been nothing before."""

PIECE_SECONDS = 3600.0
"""So much is asked of the store at once, or half, a quarter, ... where that is too much."""

MOST_SAMPLES = 500_000
"""Of one piece; 30 to 60 MB of memory."""

_TOO_LARGE = frozenset({StoreErrorKind.TOO_MUCH, StoreErrorKind.SLOW})


class QueryClient(Protocol):
    """What is asked: `agent.prometheus.api.StoreApi`."""

    place: str
    counts: QueryCounters

    def query(self, expr: str, t: float) -> tuple[InstantSample, ...]: ...

    def query_samples(self, selector: str, start: float, end: float) -> tuple[MatrixSeries, ...]: ...

    def query_range(self, expr: str, start: float, end: float, step: float) -> tuple[MatrixSeries, ...]: ...


@dataclass(frozen=True, slots=True)
class _Piece:
    """All samples of a selector in (start, end]."""

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
    """A store of which nothing after `until` (unix seconds) is asked; raw samples come in pieces that are kept until the
    next. `trouble` is the last that a question met: whoever turns a trouble into a gap hides it from whoever books.
    """

    def __init__(self, api: QueryClient, until: float, piece_seconds: float = PIECE_SECONDS) -> None:
        self._api = api
        self._until = until
        self._width = piece_seconds
        self._pieces: dict[str, _Piece] = {}
        self.trouble: StoreError | None = None
        self.place, self.counts = api.place, api.counts

    def query_samples(self, selector: str, start: float, end: float) -> tuple[MatrixSeries, ...]:
        """As `StoreApi.raw`. Raises StoreTrouble."""
        piece = self._pieces.get(selector)
        if piece is None or start < piece.start or end > piece.end:
            # Let go of before the next comes, which is as large.
            self._pieces.pop(selector, None)
            piece = self._pieces[selector] = self._asked(selector, start, end)
        return piece.clip(start, end)

    def _asked(self, selector: str, start: float, end: float) -> _Piece:
        while True:
            until = max(end, min(start + self._width, self._until))
            try:
                return _Piece(start, until, self._api.query_samples(selector, start, until))
            except StoreError as trouble:
                if trouble.kind not in _TOO_LARGE or until <= end:
                    self.trouble = trouble
                    raise
                self._width = (until - start) / 2

    def query(self, expr: str, t: float) -> tuple[InstantSample, ...]:
        """As `StoreApi.instant`. Raises StoreTrouble."""
        try:
            return self._api.query(expr, t)
        except StoreError as trouble:
            self.trouble = trouble
            raise

    def query_range(self, expr: str, start: float, end: float, step: float) -> tuple[MatrixSeries, ...]:
        """As `StoreApi.over`. Raises StoreTrouble."""
        try:
            return self._api.query_range(expr, start, end, step)
        except StoreError as trouble:
            self.trouble = trouble
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class PastStep:
    """What was told of the time up to `until`. `silent` are tiers of which nobody has told anything for a while, and why;
    `pools` the pool of every replica that is known, by tier."""

    until: float
    told: tuple[ReplicaPage, ...]
    gone: frozenset[ReplicaKey]
    silent: Mapping[str, str]
    pools: Mapping[str, Mapping[str, str]]


def steps(tiers: Sequence[ReplicaReader], since: float, until: float) -> Iterator[PastStep]:
    """(since, until], step by step, replica by replica. Raises StoreTrouble: what was told before stands."""
    t = since
    while t < until:
        t = min(until, t + STEP_SECONDS)
        told: list[ReplicaPage] = []
        silent: dict[str, str] = {}
        for one in tiers:
            found = one.ask(max(since, t - STEP_SECONDS - OVERLAP_SECONDS), t)
            absent = one.pages.missing_scrapes(t)
            since_when = one.pages.all_silent_since
            if since_when is not None:
                silent[one.tier] = f"the store has no sample of the tier for {t - since_when:.0f} s"
            told += found if since_when is not None else (*found, *absent)
        yield PastStep(
            until=t,
            told=tuple(sorted(told, key=lambda one: one.page.t)),
            gone=frozenset((one.tier, name) for one in tiers for name in one.pages.pop_gone_replicas(t)),
            silent=silent,
            pools={one.tier: one.pages.pools for one in tiers},
        )
