"""Writer of a store's past into an embedded history, as the daemon would have stored it.

Stores only minutes without data: a minute stored twice counts twice. A stop at any moment is safe, because an hour is
stored completely or not at all. An open finding is stored as ended at the hour, until the next hour extends it. Days
run newest first: users look at them first, and rules over days start with them. Within a day time runs forward, so that
a lasting finding stays one finding.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from agent.config.load import LoadedConfig, build_tier_contexts, plan_versions
from agent.fleet.tier_readers import AGENTS, build_tier_reader
from agent.history.store import HistoryStore
from agent.history.write_buffer import MinuteRecord
from agent.pipeline.loop import EvaluationLoop
from agent.prometheus.api import QueryClient
from agent.sources.past_store import PastQueryClient
from agent.sources.store import StoreSource
from rules.evaluator.observation import ClosedMinute, StepResult
from rules.evaluator.state import EvaluatorState
from rules.evaluator.timeline import TimelineEvent
from rules.plan.load_bins import TierContext
from rules.telemetry import windows
from rules.telemetry.windows import MINUTE_SECONDS
from rules.verdicts.finding import ClosedSpan, Finding

HOUR_SECONDS, DAY_SECONDS = 3600.0, 86_400.0

LEAD_SECONDS = 900.0
"""Seconds evaluated before the first stored minute, so that conditions over minutes already hold."""

SETTLE_SECONDS = 300.0
"""Seconds after its end when a minute is complete: the scrape that closes it has arrived."""

LEAST_SECONDS = 600.0
"""Minimum length in seconds of a gap to fill. A shorter gap lies between two scrapes or at a restart."""

UNEVALUATED_SECONDS = 900.0
"""Maximum time in seconds without an evaluation before a finding counts as ended at the last one."""

MARK = "past"
"""Key of the history value with the place where a stopped run continues."""

Stretch = tuple[float, float]
"""Start and end in unix seconds, whole minutes."""


@dataclass(slots=True)
class BackFillProgress:
    """Progress of a back-fill. `hours` counts stored pieces of at most an hour.

    `error` is the reason why data of the store is missing, else empty.
    """

    minutes: int = 0
    hours: int = 0
    error: str = ""


def fill_history(
    loaded: LoadedConfig,
    api: QueryClient,
    store: HistoryStore,
    span: Stretch,
    *,
    told: Callable[[Stretch, BackFillProgress], None] = lambda piece, so_far: None,
    rest: Callable[[float], None] = lambda worked: None,
    stopped: Callable[[], bool] = lambda: False,
) -> BackFillProgress:
    """Store the data of a store in a span, for all tiers of the configuration.

    `told` is called after each piece, `rest` after each cycle with its CPU seconds. Raise HistoryError. Stored data
    stays, and another call continues.
    """
    span = (span[0] // MINUTE_SECONDS * MINUTE_SECONDS, span[1] // MINUTE_SECONDS * MINUTE_SECONDS)
    booked = {
        tier: sorted(int(one.start) for one in store.requests(tier, *span)) for tier in build_tier_contexts(loaded)
    }
    free = {tier: tuple(_free(minutes, span)) for tier, minutes in booked.items()}
    found = BackFillProgress()
    whose = f"{api.place} {loaded.config.tiers} {sorted(plan_versions(loaded).items())}"
    mark = _mark(store, whose)
    for block in _blocks(free.values()):
        resumed = mark if mark is not None and block[0] <= mark.at < block[1] else None
        walk = _BackFillRun(loaded, api, store, free, block if resumed is None else (resumed.at, block[1]), resumed)
        for piece in walk.pieces(rest, stopped):
            found.minutes += walk.book(piece)
            store.keep(MARK, json.dumps({"whose": whose, "at": piece[1], "open": walk.open}))
            found.hours += 1
            told(piece, found)
        if walk.trouble or stopped():
            found.error = walk.trouble or "it was stopped"
            return found
    store.keep(MARK, "null")
    return found


@dataclass(frozen=True, slots=True)
class _ResumePoint:
    """Resume point in unix seconds, and the findings that were open there."""

    at: float
    open: frozenset[tuple[str, str, str, float]]


def _mark(store: HistoryStore, whose: str) -> _ResumePoint | None:
    kept = json.loads(store.read_value(MARK) or "null")
    if not kept or kept["whose"] != whose:
        return None
    return _ResumePoint(kept["at"], frozenset(tuple(one) for one in kept["open"]))


def _name(one: ClosedSpan) -> tuple[str, str, str, float]:
    return one.rule, one.subject.tier, one.subject.replica or "", one.started_at


def _free(booked: Iterable[int], span: Stretch) -> Iterator[Stretch]:
    """Yield the parts of a span between the stored minutes."""
    begin, end = span
    least = min(LEAST_SECONDS, end - begin)
    for one in (*booked, end):
        if one - begin >= least and one > begin:
            yield begin, float(one)
        begin = one + MINUTE_SECONDS


def _blocks(free: Iterable[tuple[Stretch, ...]]) -> list[Stretch]:
    """Return the parts that are free in any tier, split by day, newest first."""
    joined: list[Stretch] = []
    for begin, end in sorted(one for several in free for one in several):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return [part for one in joined for part in _parts(one, DAY_SECONDS)][::-1]


def _parts(stretch: Stretch, seconds: float) -> Iterator[Stretch]:
    begin, end = stretch
    while begin < end:
        until = min(end, (begin // seconds + 1) * seconds)
        yield begin, until
        begin = until


@dataclass(slots=True)
class BackFillResult:
    """Sink that collects the results of cycles, in the order in which they ended."""

    closed: list[ClosedMinute] = field(default_factory=list)
    ended: list[ClosedSpan] = field(default_factory=list)
    events: list[TimelineEvent] = field(default_factory=list)

    def accept(self, result: StepResult) -> None:
        """Collect a step's minutes, findings and events."""
        self.closed += result.minutes
        self.ended += result.closed
        self.events += result.events

    def end_cycle(self, now: float) -> None:
        """Do nothing: the writer takes what it needs."""

    def close(self) -> None:
        """Do nothing."""

    def clear(self) -> None:
        """Forget everything."""
        self.closed.clear()
        self.ended.clear()
        self.events.clear()


def _past_source(loaded: LoadedConfig, contexts: Mapping[str, TierContext], api: PastQueryClient) -> StoreSource:
    fleet = loaded.config.fleet
    sources = {tier: loaded.config.tiers.get(tier, AGENTS) for tier in contexts}
    return StoreSource(
        readers={
            (None, tier): build_tier_reader(tier, sources[tier], context, fleet, api)
            for tier, context in contexts.items()
        },
        api=api,
        agent_tiers=frozenset(),
        delay_seconds=0.0,
    )


def _open_findings_at(state: EvaluatorState, t: float) -> tuple[Finding, ...]:
    """Return open findings as if they ended at `t`, or at their last evaluation if that is long before."""
    found = []
    for one in state.rules.values():
        evaluated = one.evaluated_at if one.evaluated_at is not None else -math.inf
        if one.finding is not None and one.finding.started_at < t:
            last = max(evaluated, one.finding.transitions[-1].t)
            found.append(replace(one.finding, ended_at=t if t - last < UNEVALUATED_SECONDS else last))
    return tuple(found)


class _BackFillRun:
    """Forward run through one block."""

    def __init__(
        self,
        loaded: LoadedConfig,
        api: QueryClient,
        store: HistoryStore,
        free: Mapping[str, tuple[Stretch, ...]],
        block: Stretch,
        mark: _ResumePoint | None,
    ) -> None:
        self._store = store
        self._free = free
        self._block = block
        self._step = loaded.config.fleet.turn_seconds
        self._versions = plan_versions(loaded)
        self._api = PastQueryClient(api, block[1] + SETTLE_SECONDS)
        self._at = block[0] - LEAD_SECONDS
        self._collected = BackFillResult()
        contexts = build_tier_contexts(loaded)
        self._loop = EvaluationLoop(
            source=_past_source(loaded, contexts, self._api),
            tiers=contexts,
            sinks=(self._collected,),
            clock=lambda: self._at,
        )
        self._mark = mark
        self.trouble = ""
        self.open: list[tuple[str, str, str, float]] = []

    def pieces(self, rest: Callable[[float], None], stopped: Callable[[], bool]) -> Iterator[Stretch]:
        """Yield the hours of the block as they become complete. Stop after an error or on request."""
        begin, end = self._block
        due = list(_parts(self._block, HOUR_SECONDS))
        resumed = False
        while due and not stopped():
            self._at = min(self._at + self._step, end + SETTLE_SECONDS)
            if not resumed and self._at > begin:
                self._resume()
                resumed = True
            began = time.thread_time()
            self._loop.run_cycle()
            if self._api.error is not None:
                self.trouble = str(self._api.error)
                return
            while due and self._at >= due[0][1] + SETTLE_SECONDS:
                yield due.pop(0)
            rest(time.thread_time() - began)

    def _resume(self) -> None:
        """Clear the lead time's results and reopen the findings that the previous run cut."""
        self._collected.clear()
        if self._mark is not None:
            known = self._store.findings(self._mark.at - DAY_SECONDS)
            lasted = [replace(one, ended_at=None) for one in known if _name(one) in self._mark.open]
            self._loop.restore_findings(lasted, (), self._mark.at, recently_alive=True)

    def book(self, piece: Stretch) -> int:
        """Store a piece: findings, then the minutes that mark it as stored, then events."""
        _, end = piece
        collected = self._collected
        here = [one for one in collected.closed if windows.minute_of(one.slice.window) < end]
        collected.closed = [one for one in collected.closed if windows.minute_of(one.slice.window) >= end]
        later = [one for one in collected.ended if (one.ended_at or 0.0) > end]
        lasting = [
            *_open_findings_at(self._loop.state, end),
            *(_cut(one, end) for one in later if one.started_at < end),
        ]
        ended = [one for one in collected.ended if (one.ended_at or 0.0) <= end]
        self._store.save_episode(*self._news(*ended, *lasting))
        self.open = [_name(one) for one in lasting if isinstance(one, Finding)]
        collected.ended = later
        bookings = tuple(self._bookings(here, piece))
        self._store.book(bookings)
        known = set(self._store.events(self._block[0]))
        events = [one for one in collected.events if one not in known and self._in_free(one.tier or "", one.t)]
        collected.events.clear()
        self._store.add_event(*events)
        return len(bookings)

    def _news(self, *several: ClosedSpan) -> list[ClosedSpan]:
        """Return the spans without those that the history already has, or has for longer.

        A finding that was cut here may continue in time that was already stored."""
        known = {_name(one): one.ended_at for one in self._store.findings(self._block[0])}
        return [
            one
            for one in several
            if self._is_free(one)
            and not (
                isinstance(one, Finding)
                and _name(one) in known
                and (known[_name(one)] or math.inf) >= (one.ended_at or math.inf)
            )
        ]

    def _bookings(self, closed: Iterable[ClosedMinute], piece: Stretch) -> Iterator[MinuteRecord]:
        booked = {tier: {int(one.start) for one in self._store.requests(tier, *piece)} for tier in self._free}
        for one in closed:
            minute = windows.minute_of(one.slice.window)
            if self._in_free(one.tier, minute) and int(minute) not in booked[one.tier]:
                yield MinuteRecord(
                    tier=one.tier,
                    plan_version=self._versions.get(one.tier, ""),
                    slice=one.slice,
                    pool=self._loop.evaluator.tier(one.tier).pools.get(one.replica, "mixed"),
                )

    def _in_free(self, tier: str, t: float) -> bool:
        inside = self._block[0] <= t < self._block[1]
        return inside and any(begin <= t < end for begin, end in self._free.get(tier, ()))

    def _is_free(self, one: ClosedSpan) -> bool:
        """Return whether a span overlaps time that this run stores."""
        ended = one.ended_at if one.ended_at is not None else self._block[1]
        begin, end = max(one.started_at, self._block[0]), min(ended, self._block[1])
        return begin < end and any(b < end and begin < e for b, e in self._free.get(one.subject.tier, ()))


def _cut(one: ClosedSpan, t: float) -> ClosedSpan:
    """Return the span as it was at `t`."""
    if not isinstance(one, Finding):
        return replace(one, ended_at=t)
    return replace(one, ended_at=t, transitions=tuple(each for each in one.transitions if each.t <= t))


def last_whole_minute(now: float) -> float:
    """Return the end of the last minute that a store has completely at `now`."""
    return (now - SETTLE_SECONDS) // MINUTE_SECONDS * MINUTE_SECONDS
