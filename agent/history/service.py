"""History service of the daemon and its Sink: order of writes, buffer, retention and the kept result of Step 13.

No failure of the history stops a cycle. After a clock change, minutes that are already in the history are not added
twice.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from agent.history import daily_queries
from agent.history.booked_minutes import BookedMinutes
from agent.history.codec import Span
from agent.history.errors import HistoryError, HistoryOpenError
from agent.history.reader import Reader
from agent.history.store import HistoryStore
from agent.history.write_buffer import MinuteRecord, WriteBuffer
from agent.pipeline.interfaces import Source
from exporters.documents.check import check_json, headline
from rules.evaluator import long_rules
from rules.evaluator.benchmark_check import FIRST_WEEK_SECONDS, Step13, check_benchmark
from rules.evaluator.external_alerts import ExternalAlert
from rules.evaluator.observation import ClosedMinute, ReplicaKey, StepResult
from rules.evaluator.timeline import TimelineEvent
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.resize.production_summary import ProductionSummaryBuilder
from rules.resize.workload import list_guardrails, measure_workload
from rules.telemetry.signals import Gap
from rules.telemetry.windows import HOUR_SECONDS, MINUTE_SECONDS
from rules.telemetry.work import Capacity
from rules.verdicts import error_budget
from rules.verdicts.error_budget import Budget
from rules.verdicts.finding import ClosedSpan, Finding
from rules.verdicts.verdict import RuleResult

MOST_WAITING = 1000
"""Ended episodes, spans, alerts of others and events that wait for a history that cannot be written; older ones are lost."""

ALIVE_SECONDS = 3600.0
"""An earlier run that booked a minute within so long was interrupted rather than ended: its episodes go on."""

MINUTES_BELOW_SECONDS = 43_200.0
"""A check over less than half a day is made from minutes: hours are too few to tell a burst from a habit."""

PIECE_OF_MINUTES_SECONDS = 600.0
"""What of the minutes of some hundred replicas is in memory at once when a budget is filled again."""

NO_POOLS: Mapping[ReplicaKey, str] = MappingProxyType({})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousRun:
    """What an earlier run left: `past` ended, `unfinished` did not; `seen` says whether it ran until a short while ago.
    `foreign` are alerts of others, `events` what it told.
    """

    past: tuple[Finding, ...] = ()
    unfinished: tuple[Finding, ...] = ()
    seen: bool = False
    foreign: tuple[ExternalAlert, ...] = ()
    events: tuple[TimelineEvent, ...] = ()


class HistoryService:
    """The daemon's side of one history file. `trouble` says in words why it cannot be written now, None when it can.

    `opened` makes the store. What it raises as HistoryOpenError rises: a person must act. What it raises as HistoryError
    (a full disk, a locked file) is told, and it is asked again each turn. `let_go` is called last, on closing. `notice` says in
    words that the file of another format was renamed, None otherwise.
    """

    def __init__(self, opened: Callable[[], HistoryStore], let_go: Callable[[], None] = lambda: None) -> None:
        self._opened = opened
        self._let_go = let_go
        self._store: HistoryStore | None = None
        self._opening = threading.Lock()
        self._waiting: list[Span] = []
        self._events: list[TimelineEvent] = []
        self._told = BookedMinutes()
        self._measuring = threading.Lock()
        self._daily: dict[str, Capacity | None] = {}
        self._daily_key: tuple[float, tuple[tuple[str, str], ...]] | None = None
        self.buffer = WriteBuffer()
        self.error: str | None = None
        self.notice: str | None = None
        try:
            self._open()
        except HistoryError as error:
            self.error = str(error)

    def _open(self) -> HistoryStore:
        """The store, opened now where it could not be before. Raises HistoryError."""
        with self._opening:
            if self._store is None:
                self._store = self._opened()
                if former := self._store.renamed:
                    self.notice = (
                        f"The history began anew: the former one is of another format and is named {former} now"
                    )
            return self._store

    def store(self) -> HistoryStore:
        """The store, for what is booked beside the turns. Raises HistoryError or HistoryOpenError."""
        return self._open()

    def write_cycle(
        self,
        closed: Iterable[ClosedMinute],
        versions: Mapping[str, str],
        ended: Iterable[Span],
        still_open: Iterable[Finding],
        pools: Mapping[ReplicaKey, str] = NO_POOLS,
        now: float | None = None,
    ) -> None:
        """Books closed minutes under their tiers' plan versions and saves episodes, alerts of others and events.

        `pools` says to which part of its tier a replica belongs, where that is not "mixed". By `now` (unix seconds) it is known
        whether a minute was booked before (`agent.history.service`); without it all are taken to be new.
        What cannot be written waits for the next turn. A defect rises, and what it was about is dropped and counted.
        """
        if now is not None:
            self._told.start_cycle(now)
        self._waiting.extend(ended)
        new = [
            MinuteRecord(
                tier=one.tier,
                plan_version=versions.get(one.tier, ""),
                slice=one.slice,
                pool=pools.get((one.tier, one.replica), "mixed"),
                release=one.release,
                precision=one.precision,
            )
            for one in closed
        ]
        lasting = tuple(still_open)
        if not (new or self.buffer or self._waiting or self._events or lasting) and self._store is not None:
            return
        try:
            store = self._open_or_keep(new)
            self.buffer.drain(lambda several: self._book(store, several), new)
            self._save(store, lasting)
            self.error = None
        except (HistoryError, HistoryOpenError) as error:
            self.error = str(error)
            self._drop(len(self._waiting) - MOST_WAITING, len(self._events) - MOST_WAITING)

    def _book(self, store: HistoryStore, several: Sequence[MinuteRecord]) -> None:
        new = self._told.select_new_minutes(store, several)
        try:
            store.book(new)
        except HistoryError:
            self._told.forget_last()
            raise

    def _open_or_keep(self, new: Sequence[MinuteRecord]) -> HistoryStore:
        """Return the store. Where it cannot be opened, for whatever reason, let the new minutes wait and raise."""
        try:
            return self._open()
        except BaseException:
            self.buffer.add(new)
            raise

    def _save(self, store: HistoryStore, lasting: tuple[Finding, ...]) -> None:
        waiting, events = tuple(self._waiting), tuple(self._events)
        try:
            if waiting or lasting:
                store.save_episode(*waiting, *lasting)
            if events:
                store.add_event(*events)
        except HistoryError:
            raise
        except Exception:
            # What cannot be put into a row now never can, and would stand in the way of all that follows.
            self._drop(len(waiting), len(events))
            raise
        self._drop(len(waiting), len(events))

    def _drop(self, waiting: int, events: int) -> None:
        """The oldest of each: another thread may have added to the events meanwhile."""
        del self._waiting[: max(0, waiting)], self._events[: max(0, events)]

    def event(self, t: float, kind: str, text: str, tier: str | None = None, replica: str | None = None) -> None:
        """Something that explains numbers later; written with the next turn."""
        self._events.append(TimelineEvent(t=t, kind=kind, tier=tier, replica=replica, text=text))

    def load_previous_run(self, since: float, now: float) -> PreviousRun:
        """What is known since then, for a daemon that starts anew; nothing where the history cannot be read."""
        try:
            store = self._open()
            found = store.findings(since)
            unfinished = tuple(e for e in found if e.ended_at is None)
            tiers = {finding.subject.tier for finding in unfinished}
            seen = any(store.has_rows_since(tier, now - ALIVE_SECONDS) for tier in tiers)
            foreign, events = store.foreign_alerts(since), store.events(since)
        except HistoryError as error:
            self.error = str(error)
            return PreviousRun()
        past = tuple(e for e in found if e.ended_at is not None)
        return PreviousRun(past=past, unfinished=unfinished, seen=seen, foreign=foreign, events=events)

    def budget(self, context: TierContext, now: float) -> Budget | None:
        """A tier's error budget as far as it was booked: hours, and minutes of the last one or two. None where the history
        cannot be read."""
        cut = (now - HOUR_SECONDS) // HOUR_SECONDS * HOUR_SECONDS
        try:
            store = self._open()
            return error_budget.restore_budget(
                context,
                _hours(store, context.tier, now - error_budget.KEPT_SECONDS, cut),
                _minutes(store, context.tier, cut, now),
            )
        except HistoryError as error:
            self.error = str(error)
            return None

    def upkeep(
        self, contexts: Mapping[str, TierContext], versions: Mapping[str, str], now: float
    ) -> dict[str, str] | None:
        """Retention, and Step 13 of every plan version whose first week is over; returns the sentence of each tier.

        None where the history does not take or give anything now.
        """
        try:
            store = self._open()
            store.prune(now, gradually=True)
            found = {tier: _step13(store, contexts[tier], version, now) for tier, version in versions.items()}
        except (HistoryError, HistoryOpenError) as error:
            self.error = str(error)
            return None
        return {tier: text for tier, text in found.items() if text is not None}

    def measured_views(
        self, contexts: Mapping[str, TierContext], versions: Mapping[str, str], now: float
    ) -> dict[str, TierContext] | None:
        """The views with what a replica can take by now; None where the history cannot be asked.

        The estimates of the last midnight are read once a day and plan.
        """
        key = (now // daily_queries.DAY_SECONDS, tuple(sorted(versions.items())))
        try:
            store = self._open()
            with self._measuring:
                if key != self._daily_key:
                    self._daily = daily_queries.read_daily_capacities(store, contexts, versions, now)
                    self._daily_key = key
                daily = self._daily
            return daily_queries.measured_views(store, contexts, versions, now, daily)
        except (HistoryError, HistoryOpenError) as error:
            self.error = str(error)
            return None

    def long_answers(
        self, contexts: Mapping[str, TierContext], versions: Mapping[str, str], now: float
    ) -> tuple[RuleResult, ...]:
        """What rules over days say of each tier; unknown where the history cannot be asked now."""
        try:
            store = self._open()
            told = [
                daily_queries.evaluate_days(store, context, versions.get(tier, ""), now)
                for tier, context in contexts.items()
            ]
        except (HistoryError, HistoryOpenError) as error:
            self.error = str(error)
            text = f"the history cannot be read: {error}"
            told = [long_rules.unknown_results(context, now, Gap.STALE, text) for context in contexts.values()]
        return tuple(result for results in told for result in results)

    def close(self) -> None:
        """Lets go of the file. What still waits is lost, and told."""
        lost = len(self.buffer) + len(self._waiting) + len(self._events)
        if lost:
            _log.error('lost unwritten history records=%d error="%s"', lost, self.error)
        try:
            if self._store is not None:
                self._store.close()
        finally:
            self._let_go()


def _hours(store: Reader, tier: str, since: float, until: float) -> Iterator[BinnedWindow]:
    for begin, end in daily_queries.pieces(since, until, daily_queries.DAY_SECONDS):
        yield from daily_queries.sum_by_hour(store.bins(tier, begin, end))


def _minutes(store: Reader, tier: str, since: float, until: float) -> Iterator[BinnedWindow]:
    for begin, end in daily_queries.pieces(since, until, PIECE_OF_MINUTES_SECONDS):
        yield from store.minutes(tier, begin, end)


def _step13(store: HistoryStore, context: TierContext, version: str, now: float) -> str | None:
    """The kept answer, or the answer now if the first week of this plan version is over, or None.

    What was kept by a clock that was ahead more than an hour is kept anew: its week was none.
    """
    seen, answered = f"first-seen/{context.tier}/{version}", f"step13/{context.tier}/{version}"
    kept = json.loads(store.read_value(answered) or "null")
    if kept is not None and kept.get("t", now) <= now + ALIVE_SECONDS:
        return str(kept["sentence"])
    first = json.loads(store.read_value(seen) or "null")
    if first is None or first > now + ALIVE_SECONDS:
        store.keep(seen, json.dumps(now))
        return None
    if now - first < FIRST_WEEK_SECONDS:
        return None
    found = check_tier(store, context, version, first, now)
    store.keep(answered, json.dumps({"sentence": headline(found), "t": now, **check_json([found])}))
    store.add_event(TimelineEvent(t=now, kind="step13", tier=context.tier, replica=None, text=headline(found)))
    return headline(found)


def check_tier(store: Reader, context: TierContext, version: str, since: float, now: float) -> Step13:
    """Step 13 of a tier over [since, now), from the hour sums (of a short history, the minutes) of its plan version.

    Raises HistoryError.
    """
    binned = store.bins(context.tier, since, now, version) if now - since >= MINUTES_BELOW_SECONDS else ()
    begin, period = min((one.window.start for one in binned), default=since), HOUR_SECONDS
    if now - begin < MINUTES_BELOW_SECONDS:
        binned, period = store.minutes(context.tier, begin, now, version), MINUTE_SECONDS
    summary = ProductionSummaryBuilder(context=context, since=begin, until=now)
    summary.add(binned, (), daily_queries.demand(store, context.tier, begin, now))
    seen = summary.build(())
    found = check_benchmark(context, binned, now, period)
    recent = now - MINUTES_BELOW_SECONDS
    if not binned and not store.minutes(context.tier, recent, now, version):
        others = store.minutes(context.tier, recent, now)
        found = found.wait_for_plan(max(minute.window.end for minute in others)) if others else found
    return replace(found, guardrails=list_guardrails(seen, measure_workload(seen)))


class HistorySink:
    """History of one evaluation loop. `versions` are the plan versions by tier, `external` returns changed alerts."""

    def __init__(
        self,
        service: HistoryService,
        source: Source,
        versions: Mapping[str, str],
        external: Callable[[], tuple[ExternalAlert, ...]] = tuple,
    ) -> None:
        self.service = service
        self._source = source
        self._versions = versions
        self._external = external
        self._minutes: list[ClosedMinute] = []
        self._closed: list[ClosedSpan] = []
        self._open: tuple[Finding, ...] = ()

    def accept(self, result: StepResult) -> None:
        """Collect a step's minutes and findings."""
        for event in result.events:
            self.service.event(event.t, event.kind, event.text, event.tier, event.replica)
        if result.observation is not None or result.closed:
            self._open = result.open
        # Not `+=`: another thread may publish an event while a cycle ends.
        self._minutes.extend(one for one in result.minutes if one.kept)
        self._closed.extend(result.closed)

    def end_cycle(self, now: float) -> None:
        """Write what was collected. What cannot be written now waits in memory."""
        minutes, self._minutes = self._minutes, []
        ended, self._closed = (*self._closed, *self._external()), []
        before = self.service.error
        pools = {target.key: target.pool for target in self._source.targets}
        still_open = self._open if minutes or ended else ()
        self.service.write_cycle(minutes, self._versions, ended, still_open, pools=pools, now=now)
        if self.service.error is not None and before is None:
            _log.error('history write failed, buffering in memory error="%s"', self.service.error)
        elif before is not None and self.service.error is None:
            _log.info("history write recovered")

    def close(self) -> None:
        """Close the history. What still waits is lost, and logged."""
        self.service.close()
