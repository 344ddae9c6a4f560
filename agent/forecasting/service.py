"""Service of the forecasts in the daemon: requests per tier, retries, and the newest response of each tier.

A failed request costs only that forecast: the response before it stays until it is outdated. The module loads no
library for numbers: `agent.forecasting.worker` computes in a process of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from agent.durations import retry_delay
from agent.forecasting.messages import ForecastRequest, ForecastResponse
from agent.forecasting.worker import answer_request
from agent.worker.process import MIB, WorkerError, WorkerFailure, WorkerProcess
from exporters.documents.forecast import Recommendation, without_old_schedule
from exporters.status.records import ForecastHealth, ForecastStatus
from forecast.capacity.cold_start import ColdStart
from rules.evaluator.timeline import TimelineEvent, TimelineKind
from rules.verdicts.context import ForecastPoint, Projection

FORECAST_MEMORY_BYTES = 512 * MIB
MEMORY_BYTES_A_TIER = 32 * MIB
"""Memory limit in bytes for the first tier, and for each further tier.

The libraries and four weeks of one tier allocate about 330 MiB, each further tier about 14 MiB."""

QUESTION_SECONDS = 60.0
"""Time limit of a request in seconds. The first response reads and learns four weeks, which takes some seconds."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 120.0, 3600.0
"""Retry delays in seconds. The first retry is immediate; then the delay doubles up to the maximum."""

BINS_BEYOND = 3
"""Bins beyond the lead for which rules may use a projection: two forecasts may be missing."""

SLACK_SECONDS = 1e-6

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _TierState:
    """State of a tier: the newest response, the pairs of projections since one lead ago (work, requests), the retries."""

    result: ForecastResponse | None = None
    projections: deque[tuple[Projection, Projection]] = field(default_factory=lambda: deque(maxlen=180))
    failures: int = 0
    retry_at: float = 0.0
    trouble: str = ""


class ForecastService:
    """Forecasts of one daemon. One thread at a time calls `run`; any thread calls the rest."""

    def __init__(
        self,
        answer: Callable[[ForecastRequest], ForecastResponse] = answer_request,
        *,
        question_seconds: float = QUESTION_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._answer = answer
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
        """Request a forecast of each tier whose pause is over. Return the failures that began or ended.

        `questions` hold one request a watched tier. What was known of other tiers is dropped."""
        requests, events = tuple(questions), []
        begin, memory = self._monotonic(), FORECAST_MEMORY_BYTES + MEMORY_BYTES_A_TIER * max(0, len(requests) - 1)
        with self._running:
            with self._lock:
                self._tiers = {request.tier: self._tiers.get(request.tier) or _TierState() for request in requests}
            for request in requests:
                tier = self._tiers[request.tier]
                if not self._stopped and self._monotonic() >= tier.retry_at:
                    events.append(self._update(request, tier, memory))
        self._seconds = self._monotonic() - begin
        return tuple(event for event in events if event is not None)

    def _update(self, request: ForecastRequest, tier: _TierState, memory_bytes: int) -> TimelineEvent | None:
        # A new process must hold the replicas that may still be starting.
        if held := _recommendation(tier.result, request.now):
            request = replace(request, held=held.replicas)
        try:
            result = self._ask(request, memory_bytes)
        except WorkerError as error:
            if self._stopped:
                return None
            return self._record_failure(request, tier, error)
        with self._lock:
            self._runs += 1
            tier.result = result
            if result.forecast is not None:
                work, requests = (
                    _reliable_part(forecast.projection, request.bin_seconds)
                    for forecast in (result.forecast, result.requests or result.forecast)
                )
                tier.projections.append((work, requests))
                # Those before the last one that was made at least one lead ago serve nothing.
                while len(tier.projections) > 1 and _is_due(tier.projections[1][0], work.made_at):
                    tier.projections.popleft()
            self._memory_bytes = result.memory_bytes
            missed, tier.failures, tier.retry_at = tier.failures, 0, 0.0
            before, tier.trouble = tier.trouble, ""
        if before:
            return _event(request, f"forecasting works again; failures before: {missed}")
        return None

    def _ask(self, request: ForecastRequest, memory_bytes: int) -> ForecastResponse:
        try:
            with self._lock:
                if self._stopped:
                    raise WorkerError(WorkerFailure.START, "is not begun: the daemon ends")
                self._child = child = self._child or WorkerProcess(memory_bytes)
            result: ForecastResponse = child.call(self._answer, request, seconds=self._question_seconds)
        except WorkerError as error:
            if error.fault is WorkerFailure.ERROR:
                raise WorkerError(error.fault, f"the forecast failed: {error}", error.trace) from error
            self._child = None
            raise WorkerError(error.fault, f"the forecasting process {error}") from error
        return result

    def _record_failure(self, request: ForecastRequest, tier: _TierState, error: WorkerError) -> TimelineEvent | None:
        text = str(error)
        with self._lock:
            self._failures[error.fault.value] += 1
            tier.failures += 1
            if tier.failures > 1:
                pause = retry_delay(tier.failures - 1, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
                tier.retry_at = self._monotonic() + pause
            fresh, tier.trouble = not tier.trouble, text
        _log.warning('forecast failed tier=%s error="%s"%s', request.tier, text, error.trace and f"\n{error.trace}")
        kept = ""
        if tier.result is not None:
            kept = "; the forecast before it stays until it is outlived"
        if fresh:
            return _event(request, text + kept)
        return None

    def projections(self) -> dict[str, Projection]:
        """Return the newest projection of each tier, outdated projections included."""
        with self._lock:
            return {name: tier.projections[-1][0] for name, tier in self._tiers.items() if tier.projections}

    def status(self, name: str, cold_start: ColdStart | None, ready: int, now: float) -> ForecastStatus:
        """Return the forecast of a tier at `now` (unix seconds) for pages and metrics."""
        with self._lock:
            tier = self._tiers.get(name, _TierState())
            result, trouble = tier.result, tier.trouble
            projections = tuple(tier.projections)
        status = ForecastStatus(cold_start=cold_start, ready=ready, trouble=trouble)
        if result is None:
            return replace(status, gap=trouble or "no forecast is made yet")
        made = _recommendation(result, now)
        prewarm = replace(result.prewarm, recommendation=made and replace(made, ready=ready))
        status = replace(status, prewarm=without_old_schedule(prewarm, now), gap=result.gap)
        if _is_fresh(result, now):
            status = replace(status, now_rps=result.now_rps, now_requests=result.now_requests)
            status = replace(status, minimum_warm=result.minimum_warm)
        if result.forecast is not None and projections and projections[-1][0].points_until(now):
            work, requests = (_point_at(newest, now + newest.horizon_seconds) for newest in projections[-1])
            status = replace(status, forecast=result.forecast, at_lead=work)
            status = replace(status, requests=result.requests, requests_at_lead=requests)
        elif not result.gap:
            status = replace(status, gap=f"the forecast of {(now - result.made_at) / 60:.0f} min ago is outlived")
        for pair in reversed(projections):
            if _is_due(pair[0], now):
                work, requests = (_point_at(points, now) for points in pair)
                return replace(status, for_now=work, requests_for_now=requests)
        return status

    def health(self) -> ForecastHealth:
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
        """Return the process id of the worker, or None without a worker."""
        child = self._child
        if child is None:
            return None
        return child.pid

    def stop(self) -> None:
        """Send no more requests. A pending request ends at once and is not counted."""
        with self._lock:
            self._stopped = True
            if self._child is not None:
                self._child.kill()

    def close(self) -> None:
        """End the worker, after a pending request has ended."""
        self.stop()
        with self._running:
            child, self._child = self._child, None
            if child is not None:
                child.close()


def _recommendation(result: ForecastResponse | None, now: float) -> Recommendation | None:
    if result is None or not _is_fresh(result, now):
        return None
    return result.prewarm.recommendation


def _is_fresh(result: ForecastResponse, now: float) -> bool:
    """Return whether the counts are valid: until one bin after the time that they are for."""
    recommendation = result.prewarm.recommendation
    return now <= (result.made_at if recommendation is None else recommendation.target_time) + result.bin_seconds


def _event(request: ForecastRequest, text: str) -> TimelineEvent:
    return TimelineEvent(t=request.now, kind=TimelineKind.FORECAST, tier=request.tier, text=text)


def _reliable_part(whole: Projection, bin_seconds: float) -> Projection:
    until = whole.made_at + whole.horizon_seconds + BINS_BEYOND * bin_seconds
    return replace(whole, points=tuple(point for point in whole.points if point.t <= until))


def _is_due(projection: Projection, now: float) -> bool:
    return projection.made_at <= now - projection.horizon_seconds


def _point_at(projection: Projection, t: float) -> ForecastPoint | None:
    begun = [point for point in projection.points if point.t <= t + SLACK_SECONDS]
    if not begun or len(projection.points) < 2:
        return None
    width = projection.points[1].t - projection.points[0].t
    if t < begun[-1].t + width:
        return begun[-1]
    return None
