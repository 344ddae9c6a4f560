"""Source of a store's past, step by step, for `agent.replay.replay` and `agent.replay.back_fill_writer`.

`PastQueryClient` sends few large queries and serves the many small queries of each step from them. `PastStoreSource`
runs the cycles of `agent.sources.store` with the clock of the past. It collects their results in place of a history, a
log and alerts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.config.load import LoadedConfig, build_tier_contexts, plan_versions
from agent.fleet.factory import AGENTS, build_tier_reader
from agent.fleet.stored_pages import ReplicaPage
from agent.fleet.tier_readers import ReplicaReader
from agent.prometheus.answers import InstantSample, MatrixSeries, StoreError, StoreErrorKind
from agent.prometheus.api import QueryClient
from agent.sources.store import StoreSource
from rules.evaluator.external_alerts import ExternalAlert
from rules.evaluator.step import NOBODY, ClosedMinute, ReplicaKey
from rules.evaluator.timeline import TimelineEvent
from rules.verdicts.finding import ClosedSpan, Finding

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
        self.trouble: StoreError | None = None
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
            except StoreError as trouble:
                if trouble.kind not in _TOO_LARGE or until <= end:
                    self.trouble = trouble
                    raise
                self._width = (until - start) / 2

    def query(self, expr: str, t: float) -> tuple[InstantSample, ...]:
        """Return values like `StoreApi.query`. Raise StoreError."""
        try:
            return self._api.query(expr, t)
        except StoreError as trouble:
            self.trouble = trouble
            raise

    def query_range(self, expr: str, start: float, end: float, step: float) -> tuple[MatrixSeries, ...]:
        """Return values like `StoreApi.query_range`. Raise StoreError."""
        try:
            return self._api.query_range(expr, start, end, step)
        except StoreError as trouble:
            self.trouble = trouble
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class PastStep:
    """Step of the past up to `until`. `silent` maps tiers without samples to the reason, `pools` replicas to pools."""

    until: float
    told: tuple[ReplicaPage, ...]
    gone: frozenset[ReplicaKey]
    silent: Mapping[str, str]
    pools: Mapping[str, Mapping[str, str]]


def steps(tiers: Sequence[ReplicaReader], since: float, until: float) -> Iterator[PastStep]:
    """Yield the steps in (since, until]. Raise StoreError; steps yielded before stay valid."""
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


UNJUDGED_SECONDS = 900.0
"""Maximum time in seconds without an evaluation before a finding counts as ended at the last one."""


@dataclass(slots=True)
class BackFillResult:
    """Collected results of cycles, in the order in which they ended."""

    closed: list[ClosedMinute] = field(default_factory=list)
    ended: list[ClosedSpan] = field(default_factory=list)
    events: list[TimelineEvent] = field(default_factory=list)


class PastStoreSource(StoreSource):
    """Source of cycles in the past. `at` is the time of the next cycle. A consumer removes what it takes of
    `collected`."""

    def __init__(self, loaded: LoadedConfig, api: PastQueryClient, at: float) -> None:
        self.at = at
        self.collected = BackFillResult()
        views = build_tier_contexts(loaded)
        sources = {tier: loaded.config.tiers.get(tier, AGENTS) for tier in views}
        super().__init__(
            asking={
                (None, tier): build_tier_reader(tier, sources[tier], view, loaded.config.fleet, api)
                for tier, view in views.items()
            },
            api=api,
            told_by_agents=frozenset(tier for tier, source in sources.items() if source.source == "agents"),
            delay_seconds=0.0,
            views=views,
            versions=plan_versions(loaded),
            history=None,
            alerting=None,
            clock=lambda: self.at,
        )

    def open_findings_at(self, t: float) -> tuple[Finding, ...]:
        """Return open findings as if they ended at `t`, or at their last evaluation if that is long before."""
        found = []
        for one in self.watcher.standings.values():
            judged = one.judged_at if one.judged_at is not None else -math.inf
            if one.episode is not None and one.episode.started_at < t:
                last = max(judged, one.episode.transitions[-1].t)
                found.append(replace(one.episode, ended_at=t if t - last < UNJUDGED_SECONDS else last))
        return tuple(found)

    def pool(self, one: ClosedMinute) -> str:
        """Return the pool of a minute's replica."""
        return self.watcher.view(one.tier).pools.get(one.replica, "mixed")

    def event(self, t: float, kind: str, text: str, tier: str | None = None, replica: str | None = None) -> None:
        """Keep an event for the history."""
        self.collected.events.append(TimelineEvent(t=t, kind=kind, tier=tier, replica=replica, text=text))

    def _concluded(
        self, now: float, blind: Mapping[str, str] = NOBODY
    ) -> tuple[tuple[ClosedSpan, ...], tuple[ClosedMinute, ...]]:
        # Do not log: past changes would look like present ones.
        return self.watcher.step(now, blind)

    def _tell_troubles(self, blind: Mapping[str, str]) -> None:
        self.store_troubles = dict(blind)

    def _book(self, ended: tuple[ClosedSpan | ExternalAlert, ...], closed: tuple[ClosedMinute, ...]) -> None:
        self.collected.ended += [one for one in ended if not isinstance(one, ExternalAlert)]
        self.collected.closed += closed
