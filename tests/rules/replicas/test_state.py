from dataclasses import replace

from judging_samples import START, context
from making import cumulative, gauge, snapshot, window, without

from rules.evaluator.scrape_rules import cascade_limits
from rules.replicas.cascade import CascadeState
from rules.replicas.state import ReplicaState, apply_failed_scrape, apply_snapshot
from rules.telemetry.signals import Gap
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import EVERYTHING

LIMITS = cascade_limits(context())
FRESH = ReplicaState(tier="t", name="a")


def at(seconds: float, **more: object):  # type: ignore[no-untyped-def]
    """A page so many seconds after START, by which so many requests had finished."""
    counters = {"requests_finished": seconds, "engine_steps": seconds}
    return snapshot(START + seconds, **{"counters": counters, **more})


def step(replica: ReplicaState, page: Snapshot) -> ReplicaState:
    return apply_snapshot(replica, page, LIMITS)[0]


def after(*seconds: float) -> ReplicaState:
    one = FRESH
    for t in seconds:
        one = step(one, at(t))
    return one


def test_two_pages_make_a_window() -> None:
    one = after(0, 20, 40, 60)
    assert len(one.open) == 3
    one, window, closed = apply_snapshot(one, at(80), LIMITS)
    assert (window.start, window.end) == (START + 60, START + 80)
    assert (closed.start, closed.end, closed.counters["requests_finished"]) == (START, START + 60, 60)
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
    _, joined, _ = apply_snapshot(after(0), at(15), LIMITS, extra)
    assert (joined.counters["gpu_busy_seconds"], joined.counters["requests_finished"]) == (9.0, 15.0)
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
    late = step(failed, at(60))
    assert late.cascade.recent == ()
    assert len(step(late, at(75)).cascade.recent) == 1
    restarted, window, _ = apply_snapshot(one, at(45, started_at=START + 40), LIMITS)
    assert window.gaps[EVERYTHING] is Gap.RESTARTED
    assert (restarted.cascade.recent, restarted.slope_gap) == ((), Gap.RESTARTED)
    # The clock went back.
    back, window, _ = apply_snapshot(one, at(20), LIMITS)
    assert (window, back.cascade.recent) == (None, ())


def test_stale_gauges_are_no_observation() -> None:
    one = step(after(0, 15), at(30, counters={"engine_steps": 15.0, "requests_finished": 15.0}))
    assert [o.t for o in one.cascade.recent] == [START + 15]
    assert (one.stale_seconds, step(one, at(45)).stale_seconds) == (15, 0)
    # Without the gauge the cascade stands still.
    pressed = replace(after(0, 15), cascade=CascadeState(stage=2))
    assert step(pressed, without(at(30), "kv_utilization_max")).cascade == CascadeState(stage=2)


def test_observation_spans_the_last_scrape() -> None:
    first = at(0, histograms={"ttft_seconds": cumulative([0.2] * 100), "e2e_seconds": cumulative([4.0] * 100)})
    late = cumulative([0.2] * 100 + [0.3] * 3 + [3.0, 9.0])
    gauges = {
        "requests_running": 7.0,
        "requests_waiting": 5.0,
        "requests_waiting_capacity": 3.0,
        "kv_utilization_max": 0.8,
    }
    second = at(
        15,
        gauges=gauges,
        histograms={"ttft_seconds": late, "e2e_seconds": cumulative([4.0] * 100 + [9.0] * 2)},
        counters={"preemptions": 2.0, "requests_finished": 12.0, "engine_steps": 90.0, "generation_tokens": 5100.0},
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
