"""Requests that wait longer than the TTFT objective: how many at least, and which no longer count."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from making import START, cumulative, snapshot

from rules.replicas.stalls import NO_QUEUE, OverdueTrack, step_overdue
from rules.telemetry.snapshots import Snapshot

OBJECTIVE = 12.0


def page(t: float, waiting: float, first_tokens: int = 100, engine: str = "vllm", **counters: float) -> Snapshot:
    gauges: dict[str, Any] = {"requests_waiting": waiting}
    return snapshot(
        START + t,
        engine=engine,
        gauges=gauges,
        counters=counters,
        histograms={"ttft_seconds": cumulative([0.2] * first_tokens)},
    )


def follow(*pages: Snapshot, track: OverdueTrack = NO_QUEUE) -> OverdueTrack:
    for before, now in pairwise(pages):
        track = step_overdue(track, before, now, OBJECTIVE)
    return track


PREEMPTED = (page(0, 14), page(20, 14, preemptions=6.0))


@pytest.mark.parametrize(
    ("pages", "overdue"),
    [
        ((page(0, 0), page(10, 14)), 0),
        # 10 s are within the objective.
        ((page(0, 0), page(10, 14), page(20, 14)), 0),
        ((page(0, 0), page(10, 14), page(20, 14), page(30, 14)), 14),
        # 20 were served since, and 14 waited; no more are overdue than wait now.
        (tuple(page(t, 14, first_tokens=100 + t) for t in range(0, 60, 10)), 0),
        ((page(0, 14), page(20, 30, first_tokens=104)), 10),
        ((page(0, 14), page(20, 6)), 6),
        # Who failed may have waited, who was preempted had a first token.
        ((page(0, 14, requests_aborted=0.0), page(20, 14, requests_aborted=5.0)), 9),
        ((page(0, 14, requests_failed=0.0), page(20, 14, requests_failed=5.0)), 9),
        ((page(0, 14, http_requests_ok=100.0), page(20, 14, http_requests_ok=105.0)), 9),
        (PREEMPTED, 8),
        # SGLang leaves its queue when running.
        (tuple(page(t, 14, engine="sglang", requests_finished=200.0 + 2 * t) for t in (0, 20)), 0),
    ],
)
def test_overdue_requests_are_counted_from_below(pages: tuple[Snapshot, ...], overdue: int) -> None:
    assert follow(*pages).overdue == overdue


def test_emptied_or_untimed_queue_tells_nothing() -> None:
    assert follow(*PREEMPTED, page(30, 0, preemptions=6.0)).preempted == 0
    assert follow(*(replace(page(t, 14), histograms={}) for t in (0, 20))) == NO_QUEUE


def test_leavers_count_once() -> None:
    track = follow(page(0, 14), page(20, 14))
    assert follow(page(20, 14), page(30, 14), track=track).gone == 0
    assert follow(page(20, 14), page(30, 0), track=track).gone == 14
    assert follow(page(20, 14), page(30, 0, first_tokens=110), track=track).gone == 4, "ten were slow"
    again = follow(page(20, 14), page(30, 0), page(40, 0), track=track)
    assert (again.overdue, again.gone) == (0, 0)
