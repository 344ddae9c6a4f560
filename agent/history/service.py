"""History service of the daemon and its sink: order of writes, buffer, retention and the kept result of Step 13.

No failure of the history stops a cycle. After a clock change, no minute is added twice.
"""

from __future__ import annotations

import json
import logging
import math
import pickle  # noqa: TID251
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from agent.history import daily_queries
from agent.history.schema import DAY, HistoryError, HistoryOpenError, Span
from agent.history.store import HistoryStore, Reader
from agent.pipeline.interfaces import Sink, Source
from agent.pipeline.loop import ALIVE_SECONDS
from exporters.documents.replay import headline
from rules.evaluator import rule_evaluation
from rules.evaluator.benchmark_check import FIRST_WEEK_SECONDS, Step13, check_benchmark
from rules.evaluator.external_alerts import ExternalAlert
from rules.evaluator.observation import ClosedMinute, StepResult
from rules.evaluator.timeline import TimelineEvent
from rules.plan import load_bins
from rules.plan.load_bins import TierContext
from rules.resize.production_summary import ProductionSummary
from rules.resize.workload import list_guardrails, measure_workload
from rules.telemetry import windows
from rules.telemetry.signals import Gap
from rules.telemetry.windows import HOUR_SECONDS, MINUTE_SECONDS
from rules.telemetry.work import Capacity
from rules.verdicts import error_budget
from rules.verdicts.error_budget import Budget
from rules.verdicts.verdict import ClosedSpan, Finding, RuleResult

MOST_BYTES = 16 * 1024 * 1024
"""Three hours of some 90 replicas, at about 1 kB a minute of a real engine (a Window in memory takes 9 to 14 kB)."""

MINUTES_BELOW_SECONDS = 43_200.0
"""Length in seconds below which a check reads minutes: hours are too few."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousRun:
    """State of an earlier run, which ended at `seen_at` (unix seconds)."""

    findings: tuple[Finding, ...] = ()
    seen_at: float = 0.0
    foreign: tuple[ExternalAlert, ...] = ()
    events: tuple[TimelineEvent, ...] = ()


class HistoryService:
    """Daemon's side of one history file.

    A HistoryOpenError of `open_store` is raised: a person must act. After any other HistoryError (a full disk) it is
    called again each cycle. `release` is called last, on closing.
    """

    def __init__(self, open_store: Callable[[], HistoryStore], release: Callable[[], None] = lambda: None) -> None:
        self._open_store = open_store
        self._release = release
        self._store: HistoryStore | None = None
        self._opening = threading.Lock()
        self._events: deque[TimelineEvent] = deque()
        self._now = -math.inf
        self._booked: dict[str, dict[float, float]] = {}
        """Times of each tier that the history had before this run booked any minute of it."""
        self._daily: tuple[object, dict[str, Capacity | None]] = (None, {})
        self._unwritten: deque[tuple[int, bytes]] = deque()
        """Cycles that could not be written: number of minutes and compressed pickle."""
        self.dropped_minutes = 0
        self.write_error: str | None = None
        self.read_errors: dict[str, str] = {}
        """By the work of the hour that failed. Work of a start has no name."""
        try:
            self.store()
        except HistoryOpenError:
            raise
        except HistoryError as error:
            self.write_error = str(error)

    @property
    def error(self) -> str | None:
        """Return why the history cannot be written, else why work of the hour failed. None after both succeeded."""
        return self.write_error or next(iter([*self.read_errors.values()]), None)

    def store(self) -> HistoryStore:
        """Return the store, open in its place. Raise HistoryError. Any thread may call it."""
        with self._opening:
            if self._store is not None and not self._store.is_in_place():
                _log.warning("history file removed or replaced, opening its path")
                removed, self._store = self._store, None
                removed.close()
            if self._store is None:
                self._store = self._open_store()
            return self._store

    def write_cycle(
        self,
        minutes: Sequence[ClosedMinute] = (),
        ended: Iterable[Span] = (),
        still_open: Sequence[Finding] = (),
        now: float = -math.inf,
    ) -> None:
        """Write closed minutes, spans and events in one transaction.

        `now` (unix seconds) decides which minutes were booked before; without it all are new. Unwritten cycles wait, up to
        MOST_BYTES: the oldest are lost, and their minutes counted. A defect is raised, and its rows are lost.
        """
        if now < self._now:
            # The clock went back: read again what is booked.
            self._booked = {}
        self._now = now
        # Another thread may add events.
        events = [self._events.popleft() for _ in range(len(self._events))]
        cycle = tuple(minutes), (*ended, *still_open), tuple(events)
        if self._store is not None and not (self._unwritten or any(cycle)):
            return
        try:
            while self._unwritten:
                count, body = self._unwritten.popleft()
                try:
                    self._write(*pickle.loads(zlib.decompress(body)))  # noqa: S301
                except HistoryError:
                    self._unwritten.appendleft((count, body))
                    raise
            self._write(*cycle)
            if self.write_error is not None:
                _log.info("history write recovered")
            self.write_error = None
            self.read_errors.pop("", None)
        except HistoryError as error:
            if self.write_error is None:
                _log.error('history write failed, buffering in memory error="%s"', error)
            self.write_error = str(error)
            if any(cycle):
                self._unwritten.append((len(minutes), zlib.compress(pickle.dumps(cycle))))
            while sum(len(body) for _, body in self._unwritten) > MOST_BYTES:
                self.dropped_minutes += self._unwritten.popleft()[0]

    @property
    def waiting_minutes(self) -> int:
        return sum(count for count, _ in self._unwritten)

    def _write(
        self, minutes: tuple[ClosedMinute, ...], spans: tuple[Span, ...], events: tuple[TimelineEvent, ...]
    ) -> None:
        store = self.store()
        for tier in {minute.tier for minute in minutes} - self._booked.keys():
            self._booked[tier] = store.list_booked_seconds(tier, self._now - DAY)
        store.book([minute for minute in minutes if not self._is_booked(minute)], spans, events)

    def _is_booked(self, record: ClosedMinute) -> bool:
        """Return whether most of a minute was booked. A minute that ends after now is of an earlier clock."""
        window = record.slice.window
        seconds = self._booked[record.tier].get(windows.minute_of(window), 0.0)
        return window.end <= self._now and seconds >= window.span / 2

    def add_events(self, events: Iterable[TimelineEvent]) -> None:
        """Add events. They are written with the next cycle. Any thread may call it."""
        self._events.extend(events)

    @contextmanager
    def _note_error(self, work: str = "") -> Iterator[None]:
        """Go on if the history fails in the block. `error` and the log have why, until that work succeeds."""
        try:
            yield
            self.read_errors.pop(work, None)
        except HistoryError as error:
            if str(error) not in self.read_errors.values():
                _log.error('history read failed error="%s"', error)
            self.read_errors[work] = str(error)

    def load_previous_run(self, since: float, now: float) -> PreviousRun:
        """Return the state of an earlier run from `since` on, without the parts that cannot be read."""
        parts: dict[str, Any] = {}
        with self._note_error():
            parts["seen_at"] = self.store().newest_minute_end or 0.0
            parts["findings"] = self.store().spans(Finding, since)
        with self._note_error():
            parts["foreign"] = self.store().spans(ExternalAlert, since)
        with self._note_error():
            parts["events"] = self.store().events(since)
        return PreviousRun(**parts)

    def budget(self, context: TierContext, now: float) -> Budget | None:
        """Return the booked error budget of a tier, None if the history cannot be read."""
        with self._note_error():
            store, tier, cut = self.store(), context.name, (now - HOUR_SECONDS) // HOUR_SECONDS * HOUR_SECONDS
            hours = load_bins.sum_by_hour(store.bins(tier, now - error_budget.KEPT_SECONDS, cut))
            # Ten minutes of some hundred replicas are in memory at once.
            pieces = daily_queries.pieces(cut, now, 10 * MINUTE_SECONDS)
            minutes = (minute for begin, end in pieces for minute in store.minutes(tier, begin, end))
            return error_budget.restore_budget(context, hours, minutes)
        return None

    def upkeep(self, contexts: Mapping[str, TierContext], versions: Mapping[str, str], now: float) -> dict[str, str]:
        """Apply the retention. Return Step 13 of plans past their first week, as far as it can be read."""
        sentences: dict[str, str | None] = {}
        failed: HistoryError | None = None
        with self._note_error("retention"):
            self.store().prune(now)
        for tier, version in versions.items():
            try:
                sentences[tier] = _first_week(self.store(), contexts[tier], version, now)
            except HistoryError as error:
                failed = error
        with self._note_error("first week"):
            if failed is not None:
                raise failed
        return {tier: text for tier, text in sentences.items() if text is not None}

    def measured_views(
        self, contexts: Mapping[str, TierContext], versions: Mapping[str, str], now: float
    ) -> dict[str, TierContext] | None:
        """Return the contexts with the measured capacity at `now`, None if the history cannot be read."""
        with self._note_error("capacity"):
            store, key = self.store(), (now // DAY, tuple(sorted(versions.items())))
            if key != self._daily[0]:
                self._daily = key, daily_queries.read_daily_capacities(store, contexts, versions, now)
            return daily_queries.measured_views(store, contexts, versions, now, self._daily[1])
        return None

    def long_answers(
        self, contexts: Mapping[str, TierContext], versions: Mapping[str, str], now: float
    ) -> tuple[RuleResult, ...]:
        """Return the results of the rules over days, unknown if the history cannot be read."""
        with self._note_error("days"):
            results: list[RuleResult] = []
            for tier, context in contexts.items():
                results += daily_queries.evaluate_days(self.store(), context, versions.get(tier, ""), now)
            return tuple(results)
        text = f"the history cannot be read: {self.error}"
        unknown = (rule_evaluation.unknown_results(context, now, Gap.STALE, text) for context in contexts.values())
        return tuple(chain.from_iterable(unknown))

    def close(self) -> None:
        """Close the file. What still waits is lost, and logged."""
        if self._unwritten or self._events:
            _log.error('lost unwritten history minutes=%d error="%s"', self.waiting_minutes, self.error)
        try:
            if self._store is not None:
                self._store.close()
        finally:
            self._release()


def _first_week(store: HistoryStore, context: TierContext, version: str, now: float) -> str | None:
    """Return the sentence of Step 13, kept or checked now. None in the plan version's first week."""
    seen_name, result_name = f"first-seen/{context.name}/{version}", f"step13/{context.name}/{version}"
    kept = store.read_value(result_name, str)
    if kept is not None:
        return kept
    first = store.read_value(seen_name, float)
    # The week of a clock that was ahead was none.
    if first is None or first > now + ALIVE_SECONDS:
        store.keep(seen_name, json.dumps(now))
        return None
    if now - first < FIRST_WEEK_SECONDS:
        return None
    sentence = headline(check_tier(store, context, version, first, now))
    store.keep(result_name, json.dumps(sentence))
    store.book(events=[TimelineEvent(t=now, kind="step13", tier=context.name, text=sentence)])
    return sentence


def check_tier(store: Reader, context: TierContext, version: str, since: float, now: float) -> Step13:
    """Return Step 13 of a tier over [since, now), from hours of its plan version, else minutes. Raise HistoryError."""
    tier = context.name
    binned = store.bins(tier, since, now, version) if now - since >= MINUTES_BELOW_SECONDS else ()
    begin, period = min((hour.window.start for hour in binned), default=since), HOUR_SECONDS
    if now - begin < MINUTES_BELOW_SECONDS:
        binned, period = store.minutes(tier, begin, now, version), MINUTE_SECONDS
    summary = ProductionSummary(context=context, since=begin, until=now)
    summary = summary.add(binned, (), store.requests(tier, begin, now))
    result = check_benchmark(context, binned, now, period)
    recent = now - MINUTES_BELOW_SECONDS
    if not binned and not store.minutes(tier, recent, now, version):
        older = store.minutes(tier, recent, now)
        if older:
            result = replace(result, results=(), new_since=max(minute.window.end for minute in older))
    return replace(result, guardrails=list_guardrails(summary, measure_workload(summary)))


@dataclass(slots=True, eq=False)
class HistorySink(Sink):
    """History of one evaluation loop. `versions` are the plan versions by tier, `external` returns changed alerts."""

    service: HistoryService
    source: Source
    versions: Mapping[str, str]
    external: Callable[[], tuple[ExternalAlert, ...]] = tuple
    _minutes: list[ClosedMinute] = field(init=False, default_factory=list)
    _closed: list[ClosedSpan] = field(init=False, default_factory=list)
    _open: tuple[Finding, ...] = field(init=False, default=())

    def accept(self, result: StepResult) -> None:
        self.service.add_events(result.events)
        if result.observation is not None or result.closed:
            self._open = result.open
        self._minutes.extend(minute for minute in result.minutes if minute.kept)
        self._closed.extend(result.closed)

    def end_cycle(self, now: float) -> None:
        """Write what was collected. What cannot be written now waits in memory."""
        closed, self._minutes = self._minutes, []
        ended, self._closed = (*self._closed, *self.external()), []
        pools = {target.key: target.pool for target in self.source.targets}
        minutes = [
            replace(
                minute,
                plan_version=self.versions.get(minute.tier, ""),
                pool=pools.get((minute.tier, minute.replica), "mixed"),
            )
            for minute in closed
        ]
        self.service.write_cycle(minutes, ended, self._open if minutes or ended else (), now)

    def close(self) -> None:
        """Close the history. What still waits is lost, and logged."""
        self.service.close()
