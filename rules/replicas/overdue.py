"""Requests that wait for their first token longer than the objective: a lower bound from the pages of one process.

Latency histograms observe a request at its first token, so a queue that stands still is in none of them. A request that
waits at t and waited at t - objective has missed it (DESIGN 3.19). The order of service does not matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rules.replicas.stalls import count_left
from rules.telemetry.outcomes import FINISHED
from rules.telemetry.snapshots import Snapshot

FIRST_TOKEN = "ttft_seconds"

LEFT_EARLY = ("requests_aborted", "requests_failed")
"""Counters of requests that may have left the queue without a first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePage:
    """Queue of one page at `t` (unix seconds): waiting requests, and the totals of first tokens and of other ends."""

    t: float
    waiting: float
    served: float
    left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueTrack:
    """Pages back to the objective, oldest first, the requests that are `overdue` now, and those that were preempted.

    Preempted requests may wait again after their first token. `gone` of the overdue ones left since the page before.
    """

    pages: tuple[QueuePage, ...] = ()
    overdue: float = 0.0
    preempted: float = 0.0
    gone: float = 0.0


NO_QUEUE = OverdueTrack()


def step_overdue(track: OverdueTrack, before: Snapshot, page: Snapshot, objective_seconds: float) -> OverdueTrack:
    """Return the overdue requests after another page of the same process."""
    if not (page.gauges.get("requests_waiting") or track.overdue):
        return NO_QUEUE
    if FIRST_TOKEN not in page.histograms or FIRST_TOKEN not in before.histograms:
        return NO_QUEUE
    known, now = track.pages or (_queue_page(before),), _queue_page(page)
    old = [queue_page for queue_page in known if queue_page.t <= now.t - objective_seconds]
    preempted = track.preempted + page.counters.get("preemptions", 0.0) - before.counters.get("preemptions", 0.0)
    preempted = min(max(0.0, preempted), now.waiting)
    overdue = 0.0
    if old:
        first = old[-1]
        stayed = first.waiting - max(0.0, now.served - first.served) - max(0.0, now.left - first.left)
        overdue = max(0.0, min(now.waiting, stayed) - preempted)
    gone = max(0.0, track.overdue - overdue - max(0.0, now.served - known[-1].served))
    if not now.waiting:
        return OverdueTrack(gone=gone)
    pages = (*(old[-1:]), *(queue_page for queue_page in known if queue_page.t > now.t - objective_seconds), now)
    return OverdueTrack(pages=pages, overdue=overdue, preempted=preempted, gone=gone)


def _queue_page(page: Snapshot) -> QueuePage:
    first = page.histograms[FIRST_TOKEN].counts[-1]
    # SGLang observes the first tokens of streams only: others leave the queue when they run.
    begun = page.counters.get(FINISHED, 0.0) + page.gauges.get("requests_running", 0.0)
    streamed_only = page.engine == "sglang"
    left = math.fsum(page.counters.get(family, 0.0) for family in LEFT_EARLY)
    return QueuePage(
        t=page.t,
        waiting=page.gauges.get("requests_waiting", 0.0),
        served=max(first, begun) if streamed_only else first,
        left=left + max(0.0, count_left(page) or 0.0),
    )
