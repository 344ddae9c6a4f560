"""The cascade: what makes each stage, and what a real vLLM showed: six cascades, and healthy servers, one at the brim."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import recorded
from hypothesis import given, settings
from hypothesis import strategies as st
from judging_samples import context

from agent.config.files import load_plan
from agent.scrape.scrapers import PageReader
from agent.sources.recording import load, scrapes
from rules.evaluator.rule_evaluation import cascade_limits
from rules.plan.load_bins import TierContext, build_tier_context
from rules.replicas.cascade import (
    CascadeSample,
    CascadeState,
    expected_wait_seconds,
    interrupt_cascade,
    slope,
    step_cascade,
    time_to_full,
)
from rules.replicas.state import ReplicaState, apply_failed_scrape, apply_snapshot
from rules.telemetry.snapshots import Snapshot

LIMITS = cascade_limits(context())


def seen(number: int, level: float = 0.3, running: float = 4.0, dt: float = 5.0, **more: Any) -> CascadeSample:
    """One scrape of a healthy replica: a request takes 12 s, 8 finish in 5 s."""
    usual = {
        "waiting": 0.0,
        "preemptions": 0.0,
        "finished": 8.0 * dt / 5,
        "first_tokens": 8.0 * dt / 5,
        "slow_first_tokens": 0.0,
        "request_seconds": 12.0,
    }
    return CascadeSample(t=1000.0 + dt * number, dt=dt, level=level, running=running, **{**usual, **more})


def followed(scrapes: Iterable[CascadeSample], state: CascadeState | None = None) -> list[CascadeState]:
    states = [state or CascadeState()]
    for one in scrapes:
        states.append(step_cascade(states[-1], one, LIMITS))
    return states[1:]


def stages(scrapes: Iterable[CascadeSample], state: CascadeState | None = None) -> list[int]:
    return [s.stage for s in followed(scrapes, state)]


def climbing(levels: Sequence[float], **more: Any) -> list[CascadeSample]:
    """A cache that fills with one more request for every 7 % of it."""
    return [seen(n, level, running=round(level / 0.07), **more) for n, level in enumerate(levels)]


# A ramp, a full cache with a queue, users who wait, and the way back.
WHOLE = [
    *climbing([0.05, 0.2, 0.35, 0.5, 0.65, 0.8]),
    seen(6, 0.97, 13, preemptions=2.0),
    seen(7, 0.98, 13, preemptions=3.0, waiting=3.0),
    seen(8, 0.97, 13, preemptions=3.0, waiting=8.0, slow_first_tokens=3.0),
    *(seen(n, 0.02, 1) for n in range(9, 13)),
]

SLOWLY = {"request_seconds": 20.0, "dt": 15.0}
# 2 % in 5 s: from 0.85 still 38 s, and a request takes 12 s.
GENTLY = climbing([0.62 + 0.02 * n for n in range(12)])
LONGER = [replace(one, request_seconds=80.0, running=one.running + n) for n, one in enumerate(GENTLY)]
BRIM_LEVELS = [0.95, 0.98, 0.79, 0.93, 0.86, 1.0, 0.95, 0.84, 0.99, 0.87]
# The recorded brim: 0.79 to 1.0 full, 11 to 13 running, at most one waiting, 0 to 4 preemptions in 5 s.
BRIM = [
    seen(n, BRIM_LEVELS[n % 10], 11 + n % 3, preemptions=n % 5, waiting=float(n % 4 == 0), request_seconds=9.0)
    for n in range(40)
]
LATE = {"slow_first_tokens": 1.0, "waiting": 4.0}
PRESSED = followed([seen(n, 0.95, 13, waiting=4.0) for n in range(2)])[-1]
LOST_SIGHT = [seen(2, 0.5, 13, **LATE), seen(3, 0.5, 13), seen(4, 0.5, 13), seen(5, 0.5, 13, **LATE)]
QUEUED = seen(4, 0.95, 13, waiting=4.0)


def queued(last: float, others: float = 0.0) -> list[CascadeSample]:
    """A full cache with so many waiting at the end: 32 requests finish in 20 s, so each means 0.625 s."""
    return [seen(n, 0.95, 13 if n > 1 else 12, waiting=last if n == 3 else others) for n in range(4)]


@pytest.mark.parametrize(
    ("scrapes", "state", "expected"),
    [
        (WHOLE, None, [0, 0, 0, 0, 1, 1, 2, 3, 4, 4, 4, 0, 0]),
        # A climb lasts two short scrapes; one long one is enough.
        (climbing([0.6, 0.5, 0.7, 0.69]), None, [0, 0, 0, 0]),
        (climbing([0.6, 0.5, 0.7, 0.85]), None, [0, 0, 0, 1]),
        (climbing([0.5, 0.3, 0.5], **SLOWLY), None, [0, 0, 0]),
        (climbing([0.2, 0.2, 0.75], **SLOWLY), None, [0, 0, 1]),
        (GENTLY, None, [0] * 12),
        (LONGER, None, [*[0] * 4, *[1] * 8]),
        # A level alone is no cascade.
        (climbing([0.02, 0.12, 0.25, 0.4, 0.55]), None, [0] * 5),
        ([seen(n, level, 14 + n) for n, level in enumerate([0.91, 0.93, 0.95, 0.97])], None, [0, 0, 0, 0]),
        (climbing([0.5, 0.7, 0.95]), None, [0, 0, 1]),
        ([seen(n, level, 10) for n, level in enumerate([0.3, 0.5, 0.7, 0.8, 0.89])], None, [0] * 5),
        (BRIM, None, [0] * 40),
        # A growing queue counts from half of the objective, a steady one from all of it (3 mean 1.9 s, 4 mean 2.5 s).
        (queued(1.5), None, [0, 0, 0, 0]),
        (queued(1.7), None, [0, 0, 0, 3]),
        ([seen(n, 0.95, 13, waiting=3.0) for n in range(4)], None, [0, 0, 0, 0]),
        ([seen(n, 0.95, 13, waiting=4.0) for n in range(4)], None, [3, 3, 3, 3]),
        # At a low level the queue is of something else.
        ([seen(n, 0.84, 13, waiting=20.0 + n, slow_first_tokens=8.0) for n in range(6)], None, [0] * 6),
        # Evictions free blocks: the recorded level of a cascade swings between 0.82 and 1.
        ([seen(n, 0.86, 13, waiting=20.0) for n in range(2)], None, [3, 3]),
        ([seen(n, 0.86, 13, waiting=20.0, slow_first_tokens=8.0) for n in range(2)], None, [4, 4]),
        ([seen(2, 0.95, 13, **LATE)], PRESSED, [4]),
        # Who finished has just freed blocks: a level below the pressure at this scrape is still the same wait.
        ([seen(2, 0.5, 13, **LATE)], PRESSED, [4]),
        (LOST_SIGHT, None, [0] * 4),
        ([seen(2, 0.95, 13, first_tokens=200.0, **LATE)], PRESSED, [3]),
        # Calm ends it, slower in a full cache, and in one piece.
        ([seen(n, 0.3, 5) for n in range(2, 6)], PRESSED, [3, 3, 0, 0]),
        ([seen(n, 0.88, 12, preemptions=1.0) for n in range(2, 16)], PRESSED, [*[3] * 11, 0, 0, 0]),
        ([seen(n, 0.88, 12, waiting=2.0) for n in range(2, 30)], PRESSED, [3] * 28),
        ([seen(2, 0.3), seen(3, 0.3), QUEUED, seen(5, 0.3), seen(6, 0.3)], PRESSED, [3] * 5),
    ],
)
def test_stages_of_a_cascade(scrapes: list[CascadeSample], state: CascadeState | None, expected: list[int]) -> None:
    assert stages(scrapes, state) == expected


def test_each_stage_says_why_with_its_numbers() -> None:
    states = followed(WHOLE)
    said = {s.stage: s.evidence for s in states}
    assert said[1] == ("KV cache 65% full, full in 12 s, a request takes 12 s, and more arrive than finish")
    assert said[2] == "KV cache 97% full, 2 preemptions for 32 finished requests"
    assert said[3] == ("KV cache 98% full and 3 requests waiting: about 1.9 s of queue, TTFT objective 2 s")
    assert said[4] == "3 of 32 first tokens later than 2 s with the KV cache 97% full and 8 requests waiting"
    alone = followed([replace(WHOLE[8], waiting=1.0)], states[7])[-1]
    assert alone.evidence.endswith("97% full and 1 request waiting")
    worst, over = states[8], states[-1]
    assert (worst.onset, worst.since, worst.breach_at) == (1020.0, 1040.0, 1040.0)
    assert (over.onset, over.since, over.breach_at, over.evidence, over.confirmed) == (None, None, None, "", False)


def test_one_scrape_is_confirmed_by_the_next() -> None:
    assert [s.confirmed for s in followed(WHOLE)[5:9]] == [False, False, True, True]
    burst = followed([seen(0, 0.3), *(seen(n, 0.97, 14, **LATE) for n in (1, 2))])
    assert [(s.stage, s.confirmed) for s in burst] == [(0, False), (4, False), (4, True)]
    # Stage 3 at once, then nothing of it: never confirmed.
    spike = [*climbing([0.3, 0.6, 0.95]), seen(3, 0.95, 15, waiting=4.0), *(seen(n, 0.5, 6) for n in range(4, 8))]
    assert max(stages(spike)) == 3
    assert not any(s.confirmed for s in followed(spike))


def test_gap_keeps_stage_restarts_slopes() -> None:
    state = followed(WHOLE[:8])[-1]
    gone = interrupt_cascade(state)
    assert (gone.stage, gone.onset, gone.confirmed) == (3, 1020.0, True)
    assert (gone.recent, gone.climbing_seconds, gone.calm_seconds) == ((), 0.0, 0.0)
    half = followed(climbing([0.3, 0.45, 0.59]))[-1]
    assert stages([seen(3, 0.75, 11)], half) == [1]
    assert stages([seen(3, 0.75, 11)], interrupt_cascade(half)) == [0]


def test_time_to_full_and_expected_wait() -> None:
    state = followed([seen(0, 0.5), seen(1, 0.6, waiting=4.0)])[-1]
    assert time_to_full(state) == pytest.approx(0.4 / 0.02)
    assert expected_wait_seconds(state) == pytest.approx(4 / 1.6)
    still = {"waiting": 4.0, "finished": 0.0}
    flat = followed([seen(0, 0.5), seen(1, 0.5, **still), seen(2, 0.4, **still)])[-1]
    assert time_to_full(flat) == math.inf
    assert expected_wait_seconds(replace(flat, recent=flat.recent[1:])) == 4 * 10 / 0.5


def test_slopes() -> None:
    lines = ([(0, 1), (1, 3), (2, 5)], [(0, 0), (1, 3), (2, 0)], [(5, 1)])
    assert [slope(points) for points in lines] == [2, 0, 0]
    states = followed(seen(n, request_seconds=t) for n, t in enumerate((None, 4.0, 10.0, 2.0, None)))
    assert [s.request_seconds for s in states] == [None, 4.0, 10.0, 6.0, 6.0], "longer requests count at once"


counts = st.floats(0, 50)
intervals = st.sampled_from([5.0, 10.0, 15.0])
SOME = {"min_size": 3, "max_size": 20}

QUIET = st.one_of(
    # A flat level, an empty cache, and preemptions alone.
    st.floats(0, 1).flatmap(
        lambda level: st.lists(st.tuples(st.just(level), counts, st.just(0.0), counts, st.just(0.0)), **SOME)
    ),
    st.lists(st.tuples(st.floats(0, 0.59), counts, counts, st.just(0.0), counts), **SOME),
    st.lists(st.tuples(st.floats(0, 1), st.just(12.0), st.just(0.0), st.floats(0, 500), st.just(0.0)), **SOME),
)


@settings(max_examples=180, deadline=None)
@given(intervals, QUIET)
def test_healthy_replica_never_fires(dt: float, scrapes: list[tuple[float, float, float, float, float]]) -> None:
    made = [
        seen(n, level, running, dt, waiting=waiting, preemptions=lost, first_tokens=50.0, slow_first_tokens=late)
        for n, (level, running, waiting, lost, late) in enumerate(scrapes)
    ]
    assert set(stages(made)) == {0}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), counts, counts, counts, counts), min_size=1, max_size=30))
def test_stages_only_rise(scrapes: list[tuple[float, float, float, float, float]]) -> None:
    made = [
        seen(n, level, running, waiting=waiting, preemptions=preempted, first_tokens=50.0, slow_first_tokens=late)
        for n, (level, running, waiting, preempted, late) in enumerate(scrapes)
    ]
    before = CascadeState()
    for one, state in zip(made, followed(made), strict=True):
        assert state.stage >= before.stage or state.stage == 0
        assert state.stage < 4 or before.stage >= 1 or (one.waiting > 0 and not state.confirmed)
        assert (state.onset is None) == (state.stage == 0)
        before = state


CASCADES = ("cascade_fast", "cascade_large_cache", "cascade_open_ramp", "cascade_slow", "kv_cascade", "overload")
HEALTHY_BRIM = "kv_brim_healthy"
HEALTHY = [name for name in recorded.names() if name not in (*CASCADES, HEALTHY_BRIM)]
EVERY = {"5 s": 1, "10 s": 2, "15 s": 3}
"""How many recorded scrapes make one of a longer interval."""

Pages = list[tuple[float, Snapshot | None]]


@cache
def plan() -> TierContext:
    return build_tier_context("cpu-small", load_plan(recorded.PLANS / "cpu-small.yaml").tiers["cpu-small"])


@cache
def pages(name: str) -> dict[int, Pages]:
    """The pages of each target, None for a scrape that failed."""
    recording, _ = load(recorded.folder(name))
    readers = [PageReader(target.engine) for target in recording.targets]
    found: dict[int, Pages] = {}
    for one in scrapes(recording, []):
        read = None if one.body is None else readers[one.target].read(one.body, one.t)
        found.setdefault(one.target, []).append((one.t, read))
    return found


def follow_pages(scraped: Pages) -> list[tuple[float, CascadeState]]:
    replica, states = ReplicaState(tier="cpu-small", name="r"), []
    for t, snapshot in scraped:
        replica = (
            apply_failed_scrape(replica, t)
            if snapshot is None
            else apply_snapshot(replica, snapshot, cascade_limits(plan()))
        )[0]
        states.append((t, replica.cascade))
    return states


def phases(name: str, every: int) -> list[list[tuple[float, CascadeState]]]:
    """The cascade of every target, seen at a longer interval, for each scrape at which that could begin."""
    return [follow_pages(scraped[begin::every]) for scraped in pages(name).values() for begin in range(every)]


@pytest.mark.parametrize("interval", EVERY)
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_server_never_cascades(name: str, interval: str) -> None:
    for states in phases(name, EVERY[interval]):
        assert max(state.stage for _, state in states) == 0


@pytest.mark.parametrize("interval", EVERY)
def test_brimming_load_is_only_suspicion(interval: str) -> None:
    """Until it stops it is the ramp of a cascade, scrape by scrape: nothing on the pages tells them apart."""
    for states in phases(HEALTHY_BRIM, EVERY[interval]):
        assert max(state.stage for _, state in states) <= 1
        assert not any(state.confirmed for _, state in states)
        assert states[-1][1].stage == 0


@pytest.mark.parametrize("interval", EVERY)
@pytest.mark.parametrize("name", CASCADES)
def test_a_cascade_is_found_felt_and_over(name: str, interval: str) -> None:
    for states in phases(name, EVERY[interval]):
        seen = [state.stage for _, state in states]
        assert max(seen) == 4
        assert (seen[0], seen[-1]) == (0, 0)
        assert sum(1 for before, now in itertools.pairwise(seen) if now and not before) == 1


@pytest.mark.parametrize("name", CASCADES)
def test_cascade_warns_before_and_ends_with_queue(name: str) -> None:
    """It warns before the first user waits longer than the objective."""
    waits = ((float(row["t_start"]), float(row["ttft"])) for row in recorded.requests(name) if row["ttft"])
    late = min(start + ttft for start, ttft in waits if ttft > 2)
    (states,) = phases(name, 1)
    onset = next(t for t, state in states if state.stage > 0)
    over = next(t for (_, before), (t, state) in itertools.pairwise(states) if before.stage and not state.stage)
    waiting = max(t for t, page in pages(name)[0] if page is not None and page.gauges["requests_waiting"] > 0)
    assert onset < late
    assert 0 < over - waiting <= 30
