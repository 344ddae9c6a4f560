"""Query API of a Prometheus-compatible store: an instant vector, raw samples, and a range of points.

Holds the query forms that make a response exact and bounded, and the backoff of an unavailable store.
Nothing is cached: a past time may still gain samples from late writers or a back-fill. Callers keep their results.
API: prometheus.io/docs/prometheus/latest/querying/api.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlencode

from agent.config.store import StoreConfig
from agent.durations import Backoff
from agent.errors import ScrapeError
from agent.http_client.client import HttpClient
from agent.http_client.client import status_error as redirect_error
from agent.prometheus import answers
from agent.prometheus.answers import (
    ApiResponse,
    InstantSample,
    MatrixSeries,
    StoreError,
    StoreErrorKind,
    matrix,
    parse_answer,
    vector,
)

T = TypeVar("T")

# Ask for no compression: it costs CPU of a shared store, and the network to a nearby store is cheap.
_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "Content-Type": "application/x-www-form-urlencoded",
}
EXACT = {"nocache": "1", "latency_offset": "1ms"}
"""Parameters for exact results from VictoriaMetrics.

With its cache it moves times to multiples of the step, and instants of the newest 30 s back. It replaces the newest 30
s of a range (older releases ignore latency_offset)."""

COMPLETE = {"partial_response": "false", "deny_partial_response": "1"}
"""Parameters that make Thanos and a VictoriaMetrics cluster fail in place of a partial response. Others ignore both."""

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
    credentials, later queries of the cycle fail at once with the same text.
    """

    def __init__(
        self, store: StoreConfig, clock: Callable[[], float] = time.monotonic, *, cycle_seconds: float = 60.0
    ) -> None:
        self.store = store
        self.cycle_seconds = cycle_seconds
        self._clock = clock
        self._client = HttpClient(store)
        self._headers = {**_HEADERS, **({"X-Scope-OrgID": store.org_id} if store.org_id else {})}
        self._parameters = {
            **EXACT,
            **({} if store.partial_answers == "take" else COMPLETE),
            # Prometheus reads seconds or 1s, but not 0.5s. The store should stop when the client has stopped waiting.
            "timeout": f"{store.timeout_seconds:.3f}",
        }
        cycles = Backoff()
        self._backoff = Backoff(cycles.first * cycle_seconds, cycles.longest * cycle_seconds)
        self._slow = 0
        self._last: StoreError | None = None
        self.place = self._client.place.rstrip("/")
        self.counts = QueryCounters()

    def query(self, expr: str, t: float) -> tuple[InstantSample, ...]:
        """Return the value of an expression at `t` (unix seconds), by series. Raise StoreError."""
        form = {"query": expr, "time": _stamp(t)}
        return self._read("query", form, lambda response: vector(response, self.store.most_samples))

    def query_samples(self, selector: str, start: float, end: float) -> tuple[MatrixSeries, ...]:
        """Return all samples in (start, end] with their true times (unix seconds, millisecond resolution).

        It is an instant query of a range selector: a range query would repeat old samples at its steps. Prometheus
        before 3.0 also returns a sample at `start`, which is dropped. Raise StoreError.
        """
        first, last = round(start * 1000), round(end * 1000)
        form = {"query": f"{selector}[{last - first}ms]", "time": _stamp(end)}
        most, span = self.store.most_samples, (first / 1000, last / 1000)
        return self._read("query", form, lambda response: matrix(response, most, span))

    def query_range(self, expr: str, start: float, end: float, step: float) -> tuple[MatrixSeries, ...]:
        """Return the value of an expression at start, start + step, ... up to `end` (unix seconds, to the millisecond).

        A store returns at most 11,000 points a series. With a step below a minute the newest 30 s are unreliable: an
        older VictoriaMetrics repeats the last value there. Raise StoreError.
        """
        form = {"query": expr, "start": _stamp(start), "end": _stamp(end), "step": _stamp(step)}
        return self._read("query_range", form, lambda response: matrix(response, self.store.most_samples))

    def close(self) -> None:
        """Close the kept connection. A later query opens a new one."""
        self._client.close()

    def interrupt(self) -> None:
        """Let the present query fail at once, and all later ones. Any thread may call it."""
        self._client.abort()

    def _read(self, name: str, form: Mapping[str, str], parse: Callable[[ApiResponse], T]) -> T:
        """Send a query unless the backoff lasts, which raises the last error again. Return its parsed response."""
        began = self._clock()
        if self._last is not None and not self._backoff.is_due(began):
            self.counts.troubles[self._last.kind] += 1
            seconds = math.ceil(self._backoff.skip_until - began)
            raise StoreError(self._last.kind, self.place, f"{self._last.text} (not asked again for {seconds} s)")
        self.counts.queries += 1
        try:
            t = parse(self._send(f"{self.place}/api/v1/{name}", form))
        except StoreError as error:
            self.counts.troubles[error.kind] += 1
            self._slow = self._slow + 1 if error.kind is StoreErrorKind.SLOW else 0
            # A single slow query may be the cause itself.
            if error.kind in _WHOLE_STORE or self._slow > 1:
                self._backoff = self._backoff.record_failure(self._clock())
                self._last = error
            raise
        finally:
            self.counts.seconds += self._clock() - began
        self._slow, self._backoff, self._last = 0, self._backoff.record_success(), None
        return t

    def _send(self, url: str, form: Mapping[str, str]) -> ApiResponse:
        """Send a query as a POST of a form, so that a long query fits. Return its response with data."""
        body = urlencode({**form, **self._parameters}).encode()
        try:
            with self._client.exchange("POST", url, self._headers, body) as response:
                status = response.status_code
                if 300 <= status < 400:
                    raise redirect_error(self.place, status)
                readable = status == 200 or "json" in response.headers.get("Content-Type", "").lower()
                if status in answers.FINAL_STATUSES or not readable:
                    raise answers.status_error(self.place, status)
                answer = self._client.read(response)
        except ScrapeError as error:
            raise answers.transport_error(self.place, error) from error
        self.counts.bytes += len(answer)
        parsed = parse_answer(self.place, answer)
        if parsed.error is not None:
            raise answers.response_error(self.place, status, parsed.error)
        if status != 200:
            raise answers.status_error(self.place, status)
        if parsed.partial and self.store.partial_answers == "refuse":
            raise StoreError(StoreErrorKind.PARTIAL, self.place, parsed.partial)
        return parsed


def _stamp(seconds: float) -> str:
    return f"{seconds:.3f}"
