"""Outcomes of requests: served, failed, refused for want of room, or refused as unserviceable.

Bounds cover requests that two families may both count. Failed and refused requests arrived and were not served.

`requests_finished` are served, with those that clients left: no error of the fleet. `count_gone` adds uncounted ones.
`requests_failed` (the engine's word) and HTTP 5xx responses are failures. A request can be in both. A failure after
the first token of a stream is no 5xx response: 200 was already sent. `admission_rejections` are refused for want of
room. Their responses are 503, so they are also among the 5xx responses. HTTP 4xx responses are refused: the fleet
cannot serve the request, or (429) the client exceeded its allowance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rules.telemetry.gauges import IN_SYSTEM, SIGMA
from rules.telemetry.reading_methods import ALL
from rules.telemetry.signals import Gap, Missing
from rules.telemetry.windows import NET_CHANGE, Window

FINISHED, FAILED, ARRIVED = "requests_finished", "requests_failed", "requests_arrived"
HTTP_OK, HTTP_REFUSED, HTTP_FAILED = "http_requests_ok", "http_requests_refused", "http_requests_failed"
NO_ROOM = "admission_rejections"

OVERDUE, OVERDUE_LEFT = "requests_overdue", "requests_overdue_left"
"""Gauge of requests that wait longer than the TTFT objective; counter of those that left without a first token."""

HELD, HELD_LOST = "requests_held", "requests_held_lost"
"""Gauge of requests in engines that no longer step; counter of those that were lost with such an engine."""

READ = frozenset(
    {FINISHED, FAILED, ARRIVED, HTTP_OK, HTTP_REFUSED, HTTP_FAILED, NO_ROOM, NET_CHANGE, "ttft_seconds", *IN_SYSTEM}
)
"""Families of a window that determine outcomes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Requests of a window by outcome. At least `failed` failed; `most_failed` is the sum of both failure counts.
    `doubt` is the reason why the counts are inconclusive, or "" if they are reliable."""

    served: float
    failed: float
    most_failed: float
    no_room: float
    bad: float
    doubt: str = ""

    @property
    def accepted_requests(self) -> float:
        """Return the requests that ended and were not refused."""
        return self.served + self.failed

    @property
    def all_requests(self) -> float:
        """Return all requests that ended in any way."""
        return self.accepted_requests + self.no_room + self.bad


def count_gone(window: Window) -> float:
    """Return the requests that began and are in no count of the engine: their clients left before the end.

    HTTP answers 2xx tell of them, else first tokens do. Less than chance allows is the order of counting.
    """
    counters = window.counters
    if ARRIVED in counters or FINISHED not in counters:
        return 0.0
    ended = counters[FINISHED] + counters.get(FAILED, 0.0)
    text = HTTP_OK if HTTP_OK in counters else "ttft_seconds"
    if abs(window.seconds_of(text) - window.seconds_of(FINISHED)) > ALL * window.due_seconds:
        return 0.0
    if text == HTTP_OK:
        gone = counters[HTTP_OK] - ended
    else:
        begun = math.fsum(part.n for part in window.histograms.get("ttft_seconds", ()))
        gone = begun - ended - abs(counters.get(NET_CHANGE, 0.0))
    return gone if gone > 1 + SIGMA * math.sqrt(ended + max(0.0, gone)) else 0.0


def failed_bounds(counters: Mapping[str, float]) -> tuple[float, float]:
    """Return the minimum and maximum of failed requests, from counter increases."""
    of_engine = counters.get(FAILED, 0.0)
    if HTTP_FAILED not in counters:
        return of_engine, of_engine
    answered = max(0.0, counters[HTTP_FAILED] - counters.get(NO_ROOM, 0.0))
    return max(of_engine, answered), of_engine + answered


def outcomes(window: Window) -> Outcomes | Missing:
    """Return the outcomes of a window's requests, missing without failed ones apart."""
    counters = window.counters
    if FAILED not in counters and HTTP_FAILED not in counters:
        gaps = list(map(window.explain_missing, (FAILED, HTTP_FAILED)))
        return Missing(gap=next((gap for gap in gaps if gap is not Gap.NOT_EXPOSED), Gap.NOT_EXPOSED))
    if FINISHED not in counters:
        return Missing(gap=window.explain_missing(FINISHED))
    low, high = failed_bounds(counters)
    return Outcomes(
        served=counters[FINISHED] + count_gone(window),
        failed=low,
        most_failed=high,
        no_room=counters.get(NO_ROOM, 0.0),
        bad=counters.get(HTTP_REFUSED, 0.0),
        doubt=_doubt(window, low),
    )


def _doubt(window: Window, low: float) -> str:
    """Return why the counts are inconclusive: of unequal times (one was reset), or more failures than requests."""
    counted = [f for f in (FINISHED, FAILED, HTTP_FAILED) if f in window.counters]
    seconds = list(map(window.seconds_of, counted))
    if max(seconds) - min(seconds) > ALL * window.due_seconds:
        return "served and failed requests were counted over different times"
    value = _requests(window.counters)
    if value is None:
        return ""
    # A request that was in the system before may fail now.
    before = math.fsum(window.gauges[name].maximum for name in IN_SYSTEM if name in window.gauges)
    if low <= value + before + 1:
        return ""
    return f"the page counts {low:,.0f} failed requests of {value:,.0f}"


def _requests(counters: Mapping[str, float]) -> float | None:
    """Return the number of requests by a count independent of their ends, None if there is none."""
    if ARRIVED in counters:
        return counters[ARRIVED]
    if HTTP_OK in counters and HTTP_FAILED in counters:
        return math.fsum(counters.get(family, 0.0) for family in (HTTP_OK, HTTP_REFUSED, HTTP_FAILED))
    return None
