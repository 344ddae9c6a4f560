"""A replica between scrapes: nothing is lost for good, nothing is counted twice; which requests are overdue."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judging_samples import context
from making import START, cumulative, gauge, snapshot, window, without

from rules.evaluator.rule_evaluation import cascade_limits
from rules.replicas.cascade import CascadeState
from rules.replicas.stalls import NO_QUEUE, OverdueTrack, step_overdue
from rules.replicas.state import (
    BRIDGE_SECONDS,
    ReplicaState,
    ScrapeTrack,
    apply_failed_scrape,
    apply_snapshot,
    record_failure,
    record_success,
)
from rules.telemetry import windows
from rules.telemetry.readings import read_all
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import EVERYTHING, Window


def page(seconds: float, **overrides: object) -> Snapshot:
    """A page `seconds` after START of a replica that finishes two requests a second."""
    counters = {"requests_finished": 100.0 + 2 * seconds, "engine_steps": 3000.0 + 10 * seconds}
    return snapshot(START + seconds, **{"counters": counters, **overrides})


def walk(*outcomes: float | Snapshot, track: ScrapeTrack | None = None) -> tuple[ScrapeTrack, list[Window]]:
    """Through good pages and failed scrapes (negative seconds after START)."""
    track, found = track or ScrapeTrack(), []
    for outcome in outcomes:
        if isinstance(outcome, Snapshot):
            track, window = record_success(track, outcome)
        else:
            track, window = record_failure(track, START - outcome)
        found += [window] if window is not None else []
    return track, found


def test_failure_is_gap_at_once() -> None:
    track, found = walk(page(0), page(15), -30.0)
    assert (found[1], track.misses) == (windows.gap_window(START + 15, START + 30, Gap.SCRAPE_FAILED), 1)
    later, found = walk(-45.0, track=track)
    assert (found, later.misses) == ([windows.gap_window(START + 30, START + 45, Gap.SCRAPE_FAILED)], 2)
    _, window = record_failure(track, START + 45, Gap.STALE)
    assert window.explain_missing("requests_finished") is Gap.STALE


@pytest.mark.parametrize(
    ("times", "counters"),
    [
        # A new replica: its target is known before its process answers.
        ({"started_at": START + 12, "ready_at": START + 40}, {"cold_starts": 1.0, "cold_start_seconds": 28.0}),
        # After a restart of the agent, or of the network between: the process is old.
        ({"started_at": START - 900, "ready_at": START - 800}, {}),
        ({}, {}),
    ],
)
def test_awaited_ready_replica_is_timed(times: dict[str, float], counters: dict[str, float]) -> None:
    _, found = walk(-15.0, -30.0, page(45, **times))
    assert (found[-1].counters, found[-1].gaps[EVERYTHING]) == (counters, Gap.SCRAPE_FAILED)


def test_silent_counters_book_once() -> None:
    track, found = walk(page(0), page(15), -30.0, -45.0, page(60), page(75))
    late, whole = found[3], windows.sum_windows(found)
    assert (late.start, late.end, late.counters["requests_finished"]) == (START + 15, START + 60, 90)
    assert (late.expected_seconds, late.covered_seconds) == (15, 45)
    assert (whole.counters["requests_finished"], whole.coverage, track.misses) == (150, 1.0, 0)
    assert read_all(whole)["completed_rps"] == Reading(value=2.0, low=2.0, high=2.0, n=150)


def test_late_counters_bound_the_total() -> None:
    """Both finish two a second; the sum reaches back over time in which one of them is not in it."""
    _, late = walk(page(0), -15.0, -30.0, page(45))
    _, seen = walk(page(30), page(45))
    found = read_all(windows.sum_windows([late[-1], *seen]))["completed_rps"]
    assert found == Reading(value=None, low=120 / 45, high=None, n=120)
    # Gauges of a silence stay a gap.
    assert (late[-1].gauges, EVERYTHING in late[-1].gaps) == ({}, True)
    assert read_all(late[-1])["kv_utilization"] == Missing(gap=Gap.SCRAPE_FAILED)
    assert late[-1].explain_missing("spec_drafts") is Gap.NOT_EXPOSED


def test_long_silence_drops_counters() -> None:
    failed = [-15.0 * i for i in range(1, 21)]
    assert BRIDGE_SECONDS == 300
    _, found = walk(page(0), *failed, page(301), page(316))
    assert found[-2] == windows.gap_window(START + 300, START + 301, Gap.SCRAPE_FAILED)
    assert windows.sum_windows(found).counters["requests_finished"] == 30
    _, found = walk(page(0), *failed[:-1], page(300))
    assert windows.sum_windows(found).counters["requests_finished"] == 600


def test_late_page_is_an_answer() -> None:
    """Only a silence between two good pages is one in which nobody asked: the agent itself slept."""
    track, found = walk(page(0), page(301))
    assert track.unscraped_seconds == 301
    assert found == [windows.gap_window(START, START + 301, Gap.NOT_SCRAPED)]
    assert walk(page(0), page(300))[1][0].counters["requests_finished"] == 600
    assert walk(page(0), -15.0, page(400))[0].unscraped_seconds == 0
    track, found = walk(page(0), page(301), page(316))
    assert (track.unscraped_seconds, found[1].counters["requests_finished"]) == (0, 30)


def test_silent_restart_expects_own_time() -> None:
    again = page(60, started_at=START + 20, ready_at=START + 50, counters={"requests_finished": 5.0})
    _, found = walk(page(0), page(15), -30.0, -45.0, again)
    last, whole = found[-1], windows.sum_windows(found)
    assert (last.start, last.end, last.expected_seconds, last.covered_seconds) == (START + 45, START + 60, 15, 0)
    assert last.counters == {"restarts": 1, "cold_starts": 1, "cold_start_seconds": 30}
    assert (whole.counters["requests_finished"], whole.coverage) == (30, 0.25)
    late = page(500, started_at=START + 20, ready_at=START + 50)
    assert walk(page(0), -15.0, late)[1][-1].counters["restarts"] == 1


def test_silent_target_needs_second_page() -> None:
    track, found = walk(-0.0, -15.0)
    assert [(w.start, w.end, w.covered_seconds) for w in found] == [(START, START + 15, 0)]
    _, found = walk(page(30), page(45), track=track)
    assert [(w.expected_seconds, w.covered_seconds) for w in found] == [(15, 0), (15, 15)]
    assert found[0].explain_missing("requests_finished") is Gap.SCRAPE_FAILED


@pytest.mark.parametrize("back", [0.0, 20.0])
def test_stopped_clock_starts_anew(back: float) -> None:
    """A page between the two times would otherwise lie before the last one."""
    _, found = walk(page(0), page(30), page(30 - back), page(45))
    assert [(w.start, w.end) for w in found] == [(START, START + 30), (START + 30 - back, START + 45)]
    track, found = walk(page(0), page(30), -(30 - back))
    assert (len(found), track.last, track.misses) == (1, None, 1)
    _, found = walk(page(35 - back), page(50 - back), track=track)
    assert [(w.span, w.covered_seconds) for w in found] == [(5, 0), (15, 15)]


@given(st.lists(st.booleans(), min_size=1, max_size=15))
def test_requests_count_once_through_failures(outcomes: list[bool]) -> None:
    steps: list[float | Snapshot] = [page(0)]
    steps += [page(15 * i) if good else -15.0 * i for i, good in enumerate(outcomes, 1)]
    end = 15.0 * (len(outcomes) + 1)
    _, found = walk(*steps, page(end))
    whole = windows.sum_windows(found)
    assert whole.counters["requests_finished"] == 2 * end
    assert (whole.expected_seconds, whole.covered_seconds) == (end, end)
    assert read_all(whole)["completed_rps"] == Reading(value=2.0, low=2.0, high=2.0, n=2 * end)


OBJECTIVE = 12.0


def queue_page(t: float, waiting: float, first_tokens: int = 100, engine: str = "vllm", **counters: float) -> Snapshot:
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


PREEMPTED = (queue_page(0, 14), queue_page(20, 14, preemptions=6.0))


@pytest.mark.parametrize(
    ("pages", "overdue"),
    [
        ((queue_page(0, 0), queue_page(10, 14)), 0),
        # 10 s are within the objective.
        ((queue_page(0, 0), queue_page(10, 14), queue_page(20, 14)), 0),
        ((queue_page(0, 0), queue_page(10, 14), queue_page(20, 14), queue_page(30, 14)), 14),
        # 20 were served since, and 14 waited; no more are overdue than wait now.
        (tuple(queue_page(t, 14, first_tokens=100 + t) for t in range(0, 60, 10)), 0),
        ((queue_page(0, 14), queue_page(20, 30, first_tokens=104)), 10),
        ((queue_page(0, 14), queue_page(20, 6)), 6),
        # Who failed may have waited, who was preempted had a first token.
        ((queue_page(0, 14, requests_aborted=0.0), queue_page(20, 14, requests_aborted=5.0)), 9),
        ((queue_page(0, 14, requests_failed=0.0), queue_page(20, 14, requests_failed=5.0)), 9),
        ((queue_page(0, 14, http_requests_ok=100.0), queue_page(20, 14, http_requests_ok=105.0)), 9),
        (PREEMPTED, 8),
        # SGLang leaves its queue when running.
        (tuple(queue_page(t, 14, engine="sglang", requests_finished=200.0 + 2 * t) for t in (0, 20)), 0),
    ],
)
def test_overdue_requests_are_counted_from_below(pages: tuple[Snapshot, ...], overdue: int) -> None:
    assert follow(*pages).overdue == overdue


def test_emptied_or_untimed_queue_tells_nothing() -> None:
    assert follow(*PREEMPTED, queue_page(30, 0, preemptions=6.0)).preempted == 0
    assert follow(*(replace(queue_page(t, 14), histograms={}) for t in (0, 20))) == NO_QUEUE


def test_leavers_count_once() -> None:
    track = follow(queue_page(0, 14), queue_page(20, 14))
    assert follow(queue_page(20, 14), queue_page(30, 14), track=track).gone == 0
    assert follow(queue_page(20, 14), queue_page(30, 0), track=track).gone == 14
    assert follow(queue_page(20, 14), queue_page(30, 0, first_tokens=110), track=track).gone == 4, "ten were slow"
    again = follow(queue_page(20, 14), queue_page(30, 0), queue_page(40, 0), track=track)
    assert (again.overdue, again.gone) == (0, 0)


LIMITS = cascade_limits(context())
FRESH = ReplicaState(tier="t", name="a")


def step(replica: ReplicaState, scraped: Snapshot) -> ReplicaState:
    return apply_snapshot(replica, scraped, LIMITS)[0]


def after(*seconds: float) -> ReplicaState:
    one = FRESH
    for t in seconds:
        one = step(one, page(t))
    return one


def test_two_pages_make_a_window() -> None:
    one = after(0, 20, 40, 60)
    assert len(one.open) == 3
    one, window, closed = apply_snapshot(one, page(80), LIMITS)
    assert (window.start, window.end) == (START + 60, START + 80)
    assert (closed.start, closed.end, closed.counters["requests_finished"]) == (START, START + 60, 120)
    assert one.open == (window,)


def test_gpus_join_without_coverage() -> None:
    extra = window(
        START,
        15.0,
        expected_seconds=0.0,
        covered_seconds=0.0,
        counters={"gpu_busy_seconds": 9.0, "requests_finished": 777.0},
        gauges={"gpu_sm_active": gauge(0.5)},
        gaps={"gpu_energy_joules": Gap.NOT_EXPOSED},
        sampled=frozenset({"gpu_power_watts"}),
    )
    _, joined, _ = apply_snapshot(after(0), page(15), LIMITS, extra)
    assert (joined.counters["gpu_busy_seconds"], joined.counters["requests_finished"]) == (9.0, 30.0)
    assert {"gpu_sm_active", "requests_running"} <= joined.gauges.keys()
    assert joined.gaps["gpu_energy_joules"] is Gap.NOT_EXPOSED
    assert (joined.sampled, joined.coverage) == (frozenset({"gpu_power_watts"}), 1.0)


def test_failed_scrape_is_booked() -> None:
    one, window, closed = apply_failed_scrape(after(0, 15), START + 30, error="refused")
    assert (window.gaps[EVERYTHING], window.coverage, closed) == (Gap.SCRAPE_FAILED, 0.0, None)
    assert (one.track.misses, one.error, len(one.open)) == (1, "refused", 2)
    one, _, closed = apply_failed_scrape(one, START + 90)
    assert closed.expected_seconds == 30
    assert one.error == ""


def test_cascade_restarts_slopes_after_gaps() -> None:
    one = after(0, 15, 30)
    assert [o.t for o in one.cascade.recent] == [START + 15, START + 30]
    failed, _, _ = apply_failed_scrape(one, START + 45)
    assert (failed.cascade.recent, failed.slope_gap) == ((), Gap.SCRAPE_FAILED)
    late = step(failed, page(60))
    assert late.cascade.recent == ()
    assert len(step(late, page(75)).cascade.recent) == 1
    restarted, window, _ = apply_snapshot(one, page(45, started_at=START + 40), LIMITS)
    assert window.gaps[EVERYTHING] is Gap.RESTARTED
    assert (restarted.cascade.recent, restarted.slope_gap) == ((), Gap.RESTARTED)
    # The clock went back.
    back, window, _ = apply_snapshot(one, page(20), LIMITS)
    assert (window, back.cascade.recent) == (None, ())


def test_stale_gauges_are_no_observation() -> None:
    one = step(after(0, 15), page(30, counters={"engine_steps": 3150.0, "requests_finished": 130.0}))
    assert [o.t for o in one.cascade.recent] == [START + 15]
    assert (one.stale_seconds, step(one, page(45)).stale_seconds) == (15, 0)
    # Without the gauge the cascade stands still.
    pressed = replace(after(0, 15), cascade=CascadeState(stage=2))
    assert step(pressed, without(page(30), "kv_utilization_max")).cascade == CascadeState(stage=2)


def test_observation_spans_the_last_scrape() -> None:
    first = page(0, histograms={"ttft_seconds": cumulative([0.2] * 100), "e2e_seconds": cumulative([4.0] * 100)})
    late = cumulative([0.2] * 100 + [0.3] * 3 + [3.0, 9.0])
    gauges = {
        "requests_running": 7.0,
        "requests_waiting": 5.0,
        "requests_waiting_capacity": 3.0,
        "kv_utilization_max": 0.8,
    }
    second = page(
        15,
        gauges=gauges,
        histograms={"ttft_seconds": late, "e2e_seconds": cumulative([4.0] * 100 + [9.0] * 2)},
        counters={"preemptions": 2.0, "requests_finished": 112.0, "engine_steps": 3090.0, "generation_tokens": 5100.0},
    )
    (seen,) = step(step(FRESH, first), second).cascade.recent
    assert (seen.t, seen.dt, seen.level, seen.running, seen.waiting) == (START + 15, 15, 0.8, 7, 3)
    assert (seen.preemptions, seen.finished) == (2, 12)
    assert (seen.first_tokens, seen.request_seconds) == (5, 9)
    # 3 s lies in the bucket of 1 to 5 s around the objective: only 9 s is surely late.
    assert seen.slow_first_tokens == 1
    assert LIMITS.ttft_slo_seconds == 2.0
    assert cascade_limits(context(slo={"ttft_p99_seconds": 0.5})).ttft_slo_seconds == 0.5
    assert cascade_limits(context(limits={"KvCacheCascade": {"full_level": 0.8}})).full_level == 0.8
