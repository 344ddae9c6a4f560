"""The past as a store has it, told step by step as if it were now.

Owns how a long span is asked for (few large questions, from which the many small ones of each step are answered) and the
order in which it is told. Who judges it is `agent.replay.replay` (shown) or `agent.replay.back_fill_writer` (put into a history).

Role fleet's turns over the past: what the daemon would have booked, had it run then.

Owns the clock of such turns and what is kept of each instead of a history, a log and alerts. The turns are
`agent.sources.store`', so are the judgement and the way each tier is asked.
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
"""A replica that falls silent is missed within so long, as by the daemon of role fleet."""

OVERLAP_SECONDS = 60.0
"""So much is told again to whoever makes pages: a sum that is new is then seen to have been nothing before."""

PIECE_SECONDS = 3600.0
"""So much is asked of the store at once, or half, a quarter, ... where that is too much."""

MOST_SAMPLES = 500_000
"""Of one piece; 30 to 60 MB of memory."""

_TOO_LARGE = frozenset({StoreErrorKind.TOO_MUCH, StoreErrorKind.SLOW})


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


UNJUDGED_SECONDS = 900.0
"""A rule that could not judge for so long says nothing of now."""


@dataclass(slots=True)
class BackFillResult:
    """What turns left, in the order in which it ended."""

    closed: list[ClosedMinute] = field(default_factory=list)
    ended: list[ClosedSpan] = field(default_factory=list)
    events: list[TimelineEvent] = field(default_factory=list)


class PastStoreSource(StoreSource):
    """Turns at times that are past: `at` is the next one's. `collected` is what they left; whoever takes of it removes it."""

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
        """What has not ended, as if it did at `t`; what could not be judged for long by then, when it last was."""
        found = []
        for one in self.watcher.standings.values():
            judged = one.judged_at if one.judged_at is not None else -math.inf
            if one.episode is not None and one.episode.started_at < t:
                last = max(judged, one.episode.transitions[-1].t)
                found.append(replace(one.episode, ended_at=t if t - last < UNJUDGED_SECONDS else last))
        return tuple(found)

    def pool(self, one: ClosedMinute) -> str:
        """The part of its tier that a minute's replica belongs to."""
        return self.watcher.view(one.tier).pools.get(one.replica, "mixed")

    def event(self, t: float, kind: str, text: str, tier: str | None = None, replica: str | None = None) -> None:
        """Kept for the history."""
        self.collected.events.append(TimelineEvent(t=t, kind=kind, tier=tier, replica=replica, text=text))

    def _concluded(
        self, now: float, blind: Mapping[str, str] = NOBODY
    ) -> tuple[tuple[ClosedSpan, ...], tuple[ClosedMinute, ...]]:
        # Without the log, in which what is past would look as if it happened now.
        return self.watcher.step(now, blind)

    def _tell_troubles(self, blind: Mapping[str, str]) -> None:
        self.store_troubles = dict(blind)

    def _book(self, ended: tuple[ClosedSpan | ExternalAlert, ...], closed: tuple[ClosedMinute, ...]) -> None:
        self.collected.ended += [one for one in ended if not isinstance(one, ExternalAlert)]
        self.collected.closed += closed
