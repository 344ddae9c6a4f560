"""Query API of a Prometheus-compatible store: an instant vector, raw samples, and a range of points.

Holds the query forms that make a response exact and bounded, the backoff of an unavailable store, and the query
counters. It has no metric names. `agent.prometheus.errors` maps errors, `agent.prometheus.answers` parses responses.
Nothing is cached: a past time may still gain samples from late writers or a back-fill. Callers keep their results.
API: prometheus.io/docs/prometheus/latest/querying/api.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol, TypeVar
from urllib.parse import urlencode

from agent.config.store import StoreConfig
from agent.durations import Backoff
from agent.errors import ScrapeError
from agent.http_client.client import HttpClient
from agent.http_client.errors import status_error as redirect_error
from agent.prometheus import errors
from agent.prometheus.answers import ApiResponse, InstantSample, MatrixSeries, matrix, parse_answer, vector
from agent.prometheus.errors import StoreError, StoreErrorKind

T = TypeVar("T")

QUERY = "/api/v1/query"
QUERY_RANGE = "/api/v1/query_range"
MOST_POINTS = 11_000
"""Maximum points per series in a query_range response (Prometheus: web/api/v1/api.go, "exceeded maximum resolution").
"""

# Ask for no compression: it costs CPU of a shared store, and the network to a nearby store is cheap.
_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "Content-Type": "application/x-www-form-urlencoded",
    "User-Agent": "sizewatch",
}
EXACT = {"nocache": "1", "latency_offset": "1ms"}
"""Parameters for exact results from VictoriaMetrics.

With its cache it moves times to multiples of the step, and instants of the newest 30 s back. It replaces the newest 30
s of a range (older releases ignore latency_offset)."""

COMPLETE = {"partial_response": "false", "deny_partial_response": "1"}
"""Parameters that make Thanos and a VictoriaMetrics cluster fail in place of a partial response. Others ignore both."""

TURN_SECONDS = 60.0

SLOW_IN_A_ROW = 2
"""Consecutive slow queries before the store itself counts as slow. A single slow query may be the cause."""

_WHOLE_STORE = frozenset({StoreErrorKind.AWAY, StoreErrorKind.CREDENTIALS})
"""Errors that the next query would get as well."""


@dataclass(slots=True)
class QueryCounters:
    """Totals since the start: queries sent, bytes received, seconds waited, errors by kind."""

    queries: int = 0
    bytes: int = 0
    seconds: float = 0.0
    troubles: dict[StoreErrorKind, int] = field(default_factory=lambda: dict.fromkeys(StoreErrorKind, 0))


class StoreApi:
    """Client of one store, for one thread at a time. It connects at the first query.

    A query raises StoreError and then returns no part of the response. If the store is unreachable or rejects the
    credentials, later queries in the cycle fail at once with the same text. The backoff then grows
    (`agent.durations`) in cycles of `turn_seconds`. A changed credentials file ends it.
    """

    def __init__(
        self,
        store: StoreConfig,
        clock: Callable[[], float] = time.monotonic,
        *,
        turn_seconds: float = TURN_SECONDS,
    ) -> None:
        self.store = store
        self.turn_seconds = turn_seconds
        self._clock = clock
        self._client = HttpClient(store, "answer", tuple(store.header_files.items()))
        self._headers = {**_HEADERS, **({"X-Scope-OrgID": store.org_id} if store.org_id else {})}
        self._parameters = {
            **EXACT,
            **({} if store.partial_answers == "take" else COMPLETE),
            # Prometheus reads seconds or 1s, but not 0.5s. The store should stop when the client has stopped waiting.
            "timeout": f"{store.timeout_seconds:.3f}",
        }
        self._backoff = Backoff()
        self._slow = 0
        self._last: StoreError | None = None
        self.place = self._client.place.rstrip("/")
        self.counts = QueryCounters()

    def query(self, expr: str, t: float) -> tuple[InstantSample, ...]:
        """Return the value of an expression at `t` (unix seconds), by series. Raise StoreError."""
        most = self.store.most_samples
        return self._read(QUERY, {"query": expr, "time": _stamp(t)}, lambda given: vector(given, most))

    def query_samples(self, selector: str, start: float, end: float) -> tuple[MatrixSeries, ...]:
        """Return all samples in (start, end] with their true times (unix seconds, millisecond resolution).

        It is an instant query of a range selector: a range query would repeat old samples at its steps. Prometheus
        before 3.0 also returns a sample at `start`, which is dropped. Raise StoreError.
        """
        window = _milliseconds(end) - _milliseconds(start)
        if window <= 0:
            raise ValueError("end must be after start")
        most, span = self.store.most_samples, (_milliseconds(start) / 1000, _milliseconds(end) / 1000)
        form = {"query": f"{selector}[{window}ms]", "time": _stamp(end)}
        return self._read(QUERY, form, lambda given: matrix(given, most, span))

    def query_range(self, expr: str, start: float, end: float, step: float) -> tuple[MatrixSeries, ...]:
        """Return the value of an expression at start, start + step, ... up to `end` (unix seconds, to the millisecond).

        The range is split into parts of at most MOST_POINTS points per series. A part above the sample limit of a query
        is halved. With a step below a minute the newest 30 s are unreliable: an older VictoriaMetrics repeats the last
        value there. Raise StoreError.
        """
        width, first = _milliseconds(step), _milliseconds(start)
        last = (_milliseconds(end) - first) // width if width > 0 else -1
        if last < 0:
            raise ValueError("step must be 0.001 or more, and end not before start")
        most = self.store.most_samples
        found: dict[frozenset[tuple[str, str]], list[MatrixSeries]] = {}
        at, points = 0, min(MOST_POINTS, most)
        while at <= last:
            until = min(at + points - 1, last)
            span = {"start": _stamp((first + at * width) / 1000), "end": _stamp((first + until * width) / 1000)}
            form = {"query": expr, **span, "step": _stamp(width / 1000)}
            try:
                part = self._read(QUERY_RANGE, form, lambda given: matrix(given, most))
            except StoreError as error:
                if error.kind is not StoreErrorKind.TOO_MUCH or until == at:
                    raise
                points = (until - at + 1) // 2
                continue
            for series in part:
                found.setdefault(frozenset(series.labels.items()), []).append(series)
            at = until + 1
        return tuple(
            MatrixSeries(
                parts[0].labels,
                tuple(chain.from_iterable(part.times for part in parts)),
                tuple(chain.from_iterable(part.values for part in parts)),
            )
            for parts in found.values()
        )

    def close(self) -> None:
        """Close the kept connection. A later query opens a new one."""
        self._client.close()

    def interrupt(self) -> None:
        """Let the present query fail at once, and all later ones. Any thread may call it."""
        self._client.abort()

    def _read(self, path: str, form: dict[str, str], parse: Callable[[ApiResponse], T]) -> T:
        """Send a query unless the backoff lasts, which raises the last error again. Return its parsed response."""
        began = self._clock()
        try:
            changed = self._client.load_if_changed()
        except ScrapeError as error:
            raise self._failed(errors.transport_error(self.place, error), began) from error
        if not changed and self._last is not None and not self._backoff.is_due(began):
            self.counts.troubles[self._last.kind] += 1
            seconds = math.ceil(self._backoff.skip_until - began)
            raise StoreError(self._last.kind, self.place, f"{self._last.text} (not asked again for {seconds} s)")
        self.counts.queries += 1
        try:
            found = parse(self._send(path, form))
        except StoreError as error:
            raise self._failed(error, self._clock()) from error.__cause__
        finally:
            self.counts.seconds += self._clock() - began
        self._slow, self._backoff, self._last = 0, Backoff(), None
        return found

    def _send(self, path: str, form: Mapping[str, str]) -> ApiResponse:
        """Send a query as a POST of a form, so that a long query fits. Return its response with data."""
        client, body = self._client, urlencode({**form, **self._parameters}).encode()
        try:
            with client.exchange("POST", f"{self.place}{path}", self._headers, body) as response:
                status = response.status_code
                if 300 <= status < 400:
                    raise redirect_error(self.place, status)
                readable = status == 200 or "json" in response.headers.get("Content-Type", "").lower()
                if errors.is_final_status(status) or not readable:
                    raise errors.status_error(self.place, status)
                answer = client.read(response)
        except ScrapeError as error:
            raise errors.transport_error(self.place, error) from error
        self.counts.bytes += len(answer)
        given = parse_answer(self.place, answer)
        if given.error is not None:
            raise errors.response_error(self.place, status, given.error_type, given.error)
        if status != 200:
            raise errors.status_error(self.place, status)
        if given.partial and self.store.partial_answers == "refuse":
            raise StoreError(StoreErrorKind.PARTIAL, self.place, given.partial)
        return given

    def _failed(self, error: StoreError, now: float) -> StoreError:
        """Count an error, and start the backoff if the next query would get it as well."""
        self.counts.troubles[error.kind] += 1
        self._slow = self._slow + 1 if error.kind is StoreErrorKind.SLOW else 0
        if error.kind in _WHOLE_STORE or self._slow >= SLOW_IN_A_ROW:
            self._backoff = self._backoff.record_failure(now, self.turn_seconds)
            self._last = error
        return error


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _stamp(seconds: float) -> str:
    return f"{seconds:.3f}"


class SampleClient(Protocol):
    """Interface of `StoreApi` for readers of raw samples."""

    def query_samples(self, selector: str, start: float, end: float) -> tuple[MatrixSeries, ...]: ...


class QueryClient(SampleClient, Protocol):
    """Interface of `StoreApi` for its callers."""

    place: str
    counts: QueryCounters

    def query(self, expr: str, t: float) -> tuple[InstantSample, ...]: ...

    def query_range(self, expr: str, start: float, end: float, step: float) -> tuple[MatrixSeries, ...]: ...
