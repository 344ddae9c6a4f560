"""Requests that wait longer than the TTFT objective: how many at least, and which no longer count."""

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


def test_standing_requests_missed_objective() -> None:
    assert follow(page(0, 0), page(10, 14)).overdue == 0
    assert follow(page(0, 0), page(10, 14), page(20, 14)).overdue == 0, "10 s are within the objective"
    assert follow(page(0, 0), page(10, 14), page(20, 14), page(30, 14)).overdue == 14


def test_first_tokens_are_taken_off() -> None:
    turnover = [page(t, 14, first_tokens=100 + t) for t in range(0, 60, 10)]
    assert follow(*turnover).overdue == 0, "20 were served since, 14 waited"
    assert follow(page(0, 14), page(20, 30, first_tokens=104)).overdue == 10
    assert follow(page(0, 14), page(20, 6)).overdue == 6, "no more than wait now"


@pytest.mark.parametrize("ends", [{"requests_aborted": 5.0}, {"requests_failed": 5.0}, {"http_requests_ok": 105.0}])
def test_failed_requests_may_have_waited(ends: dict[str, float]) -> None:
    begin = dict.fromkeys(ends, 0.0) | ({"http_requests_ok": 100.0} if "http_requests_ok" in ends else {})
    assert follow(page(0, 14, **begin), page(20, 14, **ends)).overdue == 9


def test_preempted_requests_wait_after_their_first_token() -> None:
    assert follow(page(0, 14), page(20, 14, preemptions=6.0)).overdue == 8
    emptied = follow(page(0, 14), page(20, 14, preemptions=6.0), page(30, 0, preemptions=6.0))
    assert emptied.preempted == 0


def test_leavers_count_once() -> None:
    track = follow(page(0, 14), page(20, 14))
    assert follow(page(20, 14), page(30, 14), track=track).gone == 0
    assert follow(page(20, 14), page(30, 0), track=track).gone == 14
    assert follow(page(20, 14), page(30, 0, first_tokens=110), track=track).gone == 4, "ten were slow"
    again = follow(page(20, 14), page(30, 0), page(40, 0), track=track)
    assert (again.overdue, again.gone) == (0, 0)


def test_sglang_leaves_queue_when_running() -> None:
    begin, later = (page(t, 14, engine="sglang", requests_finished=done) for t, done in ((0, 200.0), (20, 240.0)))
    assert follow(begin, later).overdue == 0


def test_an_engine_without_ttft_tells_nothing() -> None:
    bare = [Snapshot(**{**vars_of(page(t, 14)), "histograms": {}}) for t in (0, 20)]
    assert follow(*bare) == NO_QUEUE


def vars_of(one: Snapshot) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__slots__}
