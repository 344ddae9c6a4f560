"""The daemon's forecasts: which tier is asked about when, what is done with an answer, and with none.

Owns the process's life (begun when it is needed, begun anew with growing pauses), the newest answer of each tier, and how long
it stands. An answer that does not come costs that forecast only: the one before it stays until it is outlived. What the tiers
are asked comes from `agent.forecasting.requests`; that rules and pages say what follows is theirs. It loads no numbers' library.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace

from agent.forecasting.messages import ForecastFailure, ForecastRequest, ForecastResponse, parse_response, question_line
from agent.worker.process import (
    FORECAST_MEMORY_BYTES,
    MEMORY_BYTES_A_TIER,
    WorkerError,
    WorkerFailure,
    WorkerProcess,
    command,
)
from exporters.documents.prewarm import without_old_schedule
from exporters.status.records import ForecastHealth, ForecastStatus
from forecast.capacity.cold_start import ColdStart
from rules.evaluator.timeline import TimelineEvent, TimelineKind
from rules.verdicts.projection import ForecastPoint, Projection

QUESTION_SECONDS = 60.0
"""For one tier: the first answer, with four weeks to read and to learn from, takes some seconds."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 120.0, 3600.0
"""After a first failure it is tried with the next minute; after each further one twice as long is waited."""

BINS_BEYOND = 3
"""So many bins beyond the lead rules may rely on a projection that was not renewed: two forecasts may be missing."""

SLACK_SECONDS = 1e-6

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _TierState:
    """What is known of one tier: the newest answer, what was said before of the time that is now, and how asking goes."""

    answer: ForecastResponse | None = None
    said: deque[Projection] = field(default_factory=lambda: deque(maxlen=180))
    failures: int = 0
    retry_at: float = 0.0
    trouble: str = ""


class ForecastService:
    """The answers of one daemon. `run` is called by one thread at a time; everything else from any.

    `words` begins the process (a test gives another); `monotonic` are the seconds that pauses are counted in.
    """

    def __init__(
        self,
        words: Callable[[int], Sequence[str]] = command,
        *,
        question_seconds: float = QUESTION_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._words = words
        self._question_seconds = question_seconds
        self._monotonic = monotonic
        self._running, self._lock = threading.Lock(), threading.Lock()
        self._child: WorkerProcess | None = None
        self._tiers: dict[str, _TierState] = {}
        self._stopped = False
        self._runs, self._failures = 0, Counter[str]()
        self._seconds: float | None = None
        self._memory_bytes = 0

    def run(self, questions: Iterable[ForecastRequest]) -> tuple[TimelineEvent, ...]:
        """Asks about every tier whose pause is over, one after another; what began or ended with that. Raises only for a
        defect."""
        asked, told = tuple(questions), []
        begin, wanted = self._monotonic(), FORECAST_MEMORY_BYTES + MEMORY_BYTES_A_TIER * max(0, len(asked) - 1)
        with self._running:
            for one in asked:
                with self._lock:
                    tier = self._tiers.setdefault(one.tier, _TierState())
                if not self._stopped and self._monotonic() >= tier.retry_at:
                    told.append(self._ask(one, tier, wanted))
        self._seconds = self._monotonic() - begin
        return tuple(event for event in told if event is not None)

    def _ask(self, asked: ForecastRequest, tier: _TierState, memory_bytes: int) -> TimelineEvent | None:
        try:
            answer = self._answered(replace(asked, held=_held(tier.answer, asked.now)), memory_bytes)
        except WorkerError as error:
            return None if self._stopped else self._failed(asked, tier, error.fault, str(error))
        with self._lock:
            self._runs += 1
            tier.answer = answer
            if answer.forecast is not None:
                tier.said.append(_near(answer.forecast.projection, asked.bin_seconds))
            self._memory_bytes = answer.memory_bytes
        return self._works(asked, tier)

    def _answered(self, asked: ForecastRequest, memory_bytes: int) -> ForecastResponse:
        child = self._begun(memory_bytes)
        try:
            line = child.ask(question_line(asked), self._question_seconds)
        except WorkerError:
            self._child = None
            raise
        try:
            answer = parse_response(line)
        except ValueError as error:
            self._end()
            words = str(error).splitlines()[0]
            raise WorkerError(
                WorkerFailure.GARBAGE, f"the forecasting process answered what is no answer ({words})"
            ) from error
        if isinstance(answer, ForecastFailure):
            raise WorkerError(WorkerFailure.ERROR, f"the forecast failed: {answer.trouble}")
        if answer.tier != asked.tier or answer.made_at != asked.now:
            self._end()
            raise WorkerError(WorkerFailure.GARBAGE, "the forecasting process answered another question")
        return answer

    def _begun(self, memory_bytes: int) -> WorkerProcess:
        with self._lock:
            if self._stopped:
                raise WorkerError(WorkerFailure.START, "the daemon ends")
            if self._child is None:
                self._child = WorkerProcess(self._words(memory_bytes))
            return self._child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def _failed(
        self, asked: ForecastRequest, tier: _TierState, fault: WorkerFailure, text: str
    ) -> TimelineEvent | None:
        with self._lock:
            self._failures[fault.value] += 1
            tier.failures += 1
            pause = 0.0 if tier.failures == 1 else FIRST_PAUSE_SECONDS * 2.0 ** min(tier.failures - 2, 10)
            tier.retry_at = self._monotonic() + min(pause, LONGEST_PAUSE_SECONDS)
            fresh, tier.trouble = not tier.trouble, text
        _log.warning('forecast failed tier=%s error="%s"', asked.tier, text)
        kept = "; the forecast before it stays until it is outlived" if tier.answer is not None else ""
        return _event(asked, text + kept) if fresh else None

    def _works(self, asked: ForecastRequest, tier: _TierState) -> TimelineEvent | None:
        with self._lock:
            missed, tier.failures, tier.retry_at = tier.failures, 0, 0.0
            before, tier.trouble = tier.trouble, ""
        several = "question was" if missed == 1 else "questions were"
        return _event(asked, f"forecasting works again; {missed} {several} not answered") if before else None

    def keep(self, tiers: Container[str]) -> None:
        """Forgets what is not watched any more."""
        with self._lock:
            self._tiers = {name: tier for name, tier in self._tiers.items() if name in tiers}

    def projections(self) -> dict[str, Projection]:
        """The newest projection of each tier, as far as rules may rely on it; an outlived one is there still, so that they
        can say so."""
        with self._lock:
            return {name: tier.said[-1] for name, tier in self._tiers.items() if tier.said}

    def status(self, name: str, cold_start: ColdStart | None, ready: int, now: float) -> ForecastStatus:
        """What pages and metrics show of a tier at `now` (unix seconds)."""
        with self._lock:
            tier = self._tiers.get(name, _TierState())
            answer, said, trouble = tier.answer, tuple(tier.said), tier.trouble
        if answer is None:
            return ForecastStatus(
                cold_start=cold_start, ready=ready, gap=trouble or "no forecast is made yet", trouble=trouble
            )
        fresh = _fresh(answer, now)
        found = answer.prewarm.recommendation
        recommendation = replace(found, ready=ready) if found is not None and fresh else None
        projection = said[-1] if said else None
        stands = answer.forecast is not None and projection is not None and bool(projection.points_until(now))
        return ForecastStatus(
            forecast=answer.forecast if stands else None,
            prewarm=without_old_schedule(replace(answer.prewarm, recommendation=recommendation), now),
            cold_start=cold_start,
            ready=ready,
            now_rps=answer.now_rps if fresh else None,
            at_lead=_at(projection, now + projection.horizon_seconds) if stands and projection is not None else None,
            for_now=_for_now(said, now),
            minimum_warm=answer.minimum_warm if fresh else None,
            gap=answer.gap
            or ("" if stands else f"the forecast of {(now - answer.made_at) / 60:.0f} min ago is outlived"),
            trouble=trouble,
        )

    def health(self) -> ForecastHealth:
        """How forecasting itself goes."""
        with self._lock:
            return ForecastHealth(
                runs=self._runs,
                failures=dict(self._failures),
                last_seconds=self._seconds,
                memory_bytes=self._memory_bytes if self._child is not None else None,
                troubles=tuple(f"{name}: {tier.trouble}" for name, tier in self._tiers.items() if tier.trouble),
            )

    @property
    def pid(self) -> int | None:
        """The process that is asked; None while there is none."""
        child = self._child
        return child.pid if child is not None else None

    def stop(self) -> None:
        """Asks nothing any more; a question that is under way ends at once, and is not counted."""
        with self._lock:
            self._stopped = True
            if self._child is not None:
                self._child.kill()

    def close(self) -> None:
        """Gives the process back, after a question that is under way has ended."""
        self.stop()
        with self._running:
            self._end()


def _held(answer: ForecastResponse | None, now: float) -> int:
    """What a process that begins anew must know: the replicas that are asked for may still be on their way."""
    found = answer.prewarm.recommendation if answer is not None and _fresh(answer, now) else None
    return 0 if found is None else found.replicas


def _event(asked: ForecastRequest, text: str) -> TimelineEvent:
    return TimelineEvent(t=asked.now, kind=TimelineKind.FORECAST, tier=asked.tier, replica=None, text=text)


def _near(whole: Projection, bin_seconds: float) -> Projection:
    """As much of a day's projection as may be relied on without a newer one."""
    until = whole.made_at + whole.horizon_seconds + BINS_BEYOND * bin_seconds
    return replace(whole, points=tuple(point for point in whole.points if point.t <= until))


def _fresh(answer: ForecastResponse, now: float) -> bool:
    """Return whether what was recommended still stands: it was for one lead later, and one bin beyond that it says
    nothing."""
    found = answer.prewarm.recommendation
    return now <= (answer.made_at if found is None else found.target_time) + answer.bin_seconds


def _at(projection: Projection, t: float) -> ForecastPoint | None:
    """The bin in which `t` lies; None where the projection does not reach there."""
    begun = [point for point in projection.points if point.t <= t + SLACK_SECONDS]
    if not begun or len(projection.points) < 2:
        return None
    width = projection.points[1].t - projection.points[0].t
    return begun[-1] if t < begun[-1].t + width else None


def _for_now(said: Sequence[Projection], now: float) -> ForecastPoint | None:
    """What was said one lead ago, or longer, of the time that is now."""
    for one in reversed(said):
        if one.made_at <= now - one.horizon_seconds:
            return _at(one, now)
    return None
