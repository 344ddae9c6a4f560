"""What became of requests: served, failed, refused for want of room, or refused because nobody could serve them.

Owns how the families that engines count ends by make these four, with bounds where two of them may count one request.
Failed and refused requests arrived and were not served (`rules.telemetry.arrivals`). It judges nothing: `rules.methods.errors`
does.

- `requests_finished` are served; those that their clients left are among them, for that is no error of the fleet.
- `requests_failed` (the engine's word) and HTTP answers 5xx are failures. A request can be in both: a failure before the
  first token of a stream is an answer 5xx, a later one is not, for 200 was sent already.
- `admission_rejections` are refused for want of room. They are answered 503, and so are among the answers 5xx.
- HTTP answers 4xx are refused: the client asks for what nobody here can serve, or (429) for more than it may.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rules.telemetry.gauges import IN_SYSTEM
from rules.telemetry.reading_methods import ALL
from rules.telemetry.signals import Gap, Missing
from rules.telemetry.windows import Window

FINISHED, FAILED, ARRIVED = "requests_finished", "requests_failed", "requests_arrived"
HTTP_OK, HTTP_REFUSED, HTTP_FAILED = "http_requests_ok", "http_requests_refused", "http_requests_failed"
NO_ROOM = "admission_rejections"

READ = frozenset({FINISHED, FAILED, ARRIVED, HTTP_OK, HTTP_REFUSED, HTTP_FAILED, NO_ROOM, *IN_SYSTEM})
"""The families of a window that outcomes are made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Requests of a window by what became of them. Of the failed ones at least `failed` are certain, `most_failed` are those
    of both counts together. `doubt` says why the counts prove nothing, "" where they can be believed."""

    served: float
    failed: float
    most_failed: float
    no_room: float
    bad: float
    doubt: str = ""

    @property
    def accepted_requests(self) -> float:
        """Requests that were neither refused nor are still in the system."""
        return self.served + self.failed

    @property
    def all_requests(self) -> float:
        """All that came to an end of any kind."""
        return self.accepted_requests + self.no_room + self.bad


def failed_bounds(counters: Mapping[str, float]) -> tuple[float, float]:
    """Return how many requests failed, at least and at most, from the increases of a time."""
    of_engine = counters.get(FAILED, 0.0)
    answered = max(0.0, counters.get(HTTP_FAILED, 0.0) - counters.get(NO_ROOM, 0.0))
    return max(of_engine, answered), of_engine + answered


def outcomes(window: Window) -> Outcomes | Missing:
    """What became of the requests of a window; missing where the engine does not tell failed requests from others."""
    counters = window.counters
    if FAILED not in counters and HTTP_FAILED not in counters:
        several = [window.explain_missing(family) for family in (FAILED, HTTP_FAILED)]
        told = next((gap for gap in several if gap is not Gap.NOT_EXPOSED), Gap.NOT_EXPOSED)
        return Missing(gap=told)
    if FINISHED not in counters:
        return Missing(gap=window.explain_missing(FINISHED))
    low, high = failed_bounds(counters)
    return Outcomes(
        served=counters[FINISHED],
        failed=low,
        most_failed=high,
        no_room=counters.get(NO_ROOM, 0.0),
        bad=counters.get(HTTP_REFUSED, 0.0),
        doubt=_doubt(window, low),
    )


def _doubt(window: Window, low: float) -> str:
    """Why nothing is certain: counts of unequal times (one of them began anew), or more failures than there were requests."""
    counted = [f for f in (FINISHED, FAILED, HTTP_FAILED) if f in window.counters]
    seconds = [window.seconds_of(family) for family in counted]
    if max(seconds) - min(seconds) > ALL * window.due_seconds:
        return "served and failed requests were counted over different times"
    told = _requests(window.counters)
    if told is None:
        return ""
    # What was in the system before may fail now.
    before = math.fsum(window.gauges[name].maximum for name in IN_SYSTEM if name in window.gauges)
    if low <= told + before + 1:
        return ""
    return f"the page counts {low:,.0f} failed requests of {told:,.0f}"


def _requests(counters: Mapping[str, float]) -> float | None:
    """Return how many requests there were by another count than that of their ends; None where there is none."""
    if ARRIVED in counters:
        return counters[ARRIVED]
    if HTTP_OK in counters and HTTP_FAILED in counters:
        return math.fsum(counters.get(family, 0.0) for family in (HTTP_OK, HTTP_REFUSED, HTTP_FAILED))
    return None
