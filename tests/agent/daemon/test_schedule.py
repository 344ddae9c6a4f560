"""When turns are due: on a grid without drift, never two at once, and on again after the clock was set back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from waiting import wait_for

from agent.daemon import schedule
from agent.daemon.schedule import Schedule

INTERVAL = 0.1


class Job:
    """What the schedule calls: notes when, and takes as long as it is told."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.late: list[str] = []
        self.seconds = 0.0
        self._running = threading.Lock()
        self.twice_at_once = False

    def turn(self) -> None:
        if not self._running.acquire(blocking=False):
            self.twice_at_once = True
            return
        self.begun.append(time.monotonic())
        time.sleep(self.seconds)
        self._running.release()


@pytest.fixture(name="job")
def new_job() -> Job:
    return Job()


@pytest.fixture(name="plan")
def running(job: Job) -> Iterator[Schedule]:
    plan = Schedule(job.turn, lambda: None, job.late.append, lambda: None)
    plan.begin(INTERVAL)
    yield plan
    plan.end()


def test_a_start_without_threads_fails_and_can_be_ended(monkeypatch: pytest.MonkeyPatch, job: Job) -> None:
    start, given = threading.Thread.start, [2]

    def few(thread: threading.Thread) -> None:
        if not given[0]:
            raise RuntimeError("can't start new thread")
        given[0] -= 1
        start(thread)

    plan = Schedule(job.turn, lambda: None, job.late.append, lambda: None)
    monkeypatch.setattr(threading.Thread, "start", few)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        plan.begin(INTERVAL)
    plan.end()
    assert not job.begun


def test_reports_are_looked_after_at_once_and_again_each_minute_and_after_the_clock_was_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job()
    plan = Schedule(lambda: None, lambda: None, lambda why: None, lambda: None, job.turn, speed=600.0)
    plan.begin(60.0)
    try:
        assert wait_for(lambda: len(job.begun) >= 3)
        assert not job.twice_at_once
        monkeypatch.setattr(schedule, "clock_offset", lambda: 7200.0 + time.time() - time.monotonic())
        plan.check_clock_jump()
        seen = len(job.begun)
        assert wait_for(lambda: len(job.begun) >= seen + 2)
    finally:
        plan.end()


def due(plan: Schedule) -> float:
    """When the next turn is due, in monotonic seconds."""
    return plan._jobs[schedule.TURN].due


def on_one_grid(one: float, other: float, interval: float = INTERVAL) -> bool:
    steps = (other - one) / interval
    return abs(steps - round(steps)) < 1e-3


def test_the_first_turn_is_at_once_and_the_others_keep_to_its_grid(job: Job, plan: Schedule) -> None:
    assert wait_for(lambda: job.begun)
    first = due(plan)
    job.seconds = 0.037
    assert wait_for(lambda: len(job.begun) >= 9)
    assert on_one_grid(first, due(plan)), "turns that take their time do not move it"
    assert due(plan) > first


def test_turns_longer_than_the_interval_are_left_out_counted_and_never_overlap(job: Job, plan: Schedule) -> None:
    first = due(plan)
    job.seconds = 2.5 * INTERVAL
    assert wait_for(lambda: len(job.begun) >= 4 and job.late.count("the one before it still ran") >= 4)
    assert not job.twice_at_once
    assert on_one_grid(first, due(plan))


def test_the_same_interval_leaves_the_grid_and_another_begins_one(job: Job, plan: Schedule) -> None:
    assert wait_for(lambda: len(job.begun) >= 2)
    first = due(plan)
    for _ in range(3):
        plan.change(INTERVAL)
    assert on_one_grid(first, due(plan))
    before, now = len(job.begun), time.monotonic()
    plan.change(3600.0)
    assert wait_for(lambda: len(job.begun) > before), "the first of the new grid is at once"
    assert wait_for(lambda: now + 3600.0 <= due(plan) <= time.monotonic() + 3600.0)


@pytest.mark.parametrize("jump", [-3600.0, 3600.0, 56 * 365 * 86_400.0])
def test_a_clock_that_was_set_costs_no_turn_and_lists_no_missed_ones(
    job: Job, plan: Schedule, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    assert wait_for(lambda: job.begun)
    first, wall = due(plan), time.time
    monkeypatch.setattr(time, "time", lambda: wall() + jump)
    seen = len(job.begun)
    assert wait_for(lambda: len(job.begun) >= seen + 2)
    assert on_one_grid(first, due(plan)), "turns are due by monotonic time"
    plan.check_clock_jump()
    again = due(plan)
    assert wait_for(lambda: len(job.begun) >= seen + 4)
    assert again - time.monotonic() <= INTERVAL
    plan.check_clock_jump()
    assert on_one_grid(again, due(plan)), "it is told once"
    assert len(job.begun) + len(job.late) < 1000


def test_a_run_that_fails_is_logged_and_the_next_one_comes(
    job: Job, plan: Schedule, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        job.turn()
        raise ValueError("broken")

    plan._jobs[schedule.TURN].run = fail
    seen = len(job.begun)
    assert wait_for(lambda: len(job.begun) >= seen + 3)
    assert "job failed job=turn" in caplog.text


def test_no_thread_to_be_had_is_logged_and_tried_again(
    job: Job, plan: Schedule, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(plan._pool, "submit", refuse)
        assert wait_for(lambda: caplog.text.count("job not started job=turn") >= 2)
    seen = len(job.begun)
    assert wait_for(lambda: len(job.begun) > seen)


def test_what_was_missed_while_the_machine_was_busy_is_left_out_once() -> None:
    job = schedule._Job("turn", lambda: None, interval=10.0, due=100.0)
    assert job.skip_to_next(100.0) == 0.0
    assert job.due == 110.0
    assert job.skip_to_next(147.0) == pytest.approx(7.0)
    assert job.due == 150.0


def test_the_end_waits_for_a_turn_that_runs(job: Job) -> None:
    job.seconds = 0.3
    plan = Schedule(job.turn, lambda: None, job.late.append, lambda: None)
    plan.begin(10.0)
    assert wait_for(lambda: bool(job.begun))
    plan.end()
    assert time.monotonic() - job.begun[0] >= 0.3


@pytest.mark.parametrize(("second", "wait"), [(0.0, 30.0), (29.0, 1.0), (30.0, 60.0), (59.0, 31.0)])
def test_a_forecast_is_due_once_a_minute_when_the_minute_before_is_whole(
    monkeypatch: pytest.MonkeyPatch, second: float, wait: float
) -> None:
    plan = Schedule(lambda: None, lambda: None, lambda why: None, lambda: None)
    monkeypatch.setattr(schedule, "time", SimpleNamespace(time=lambda: 6_000.0 + second, monotonic=lambda: 7.0))
    plan._set(15.0)
    job = plan._jobs[schedule.FORECAST]
    # Two scrapes after the full minute.
    assert (job.due, job.interval) == (7.0 + wait, 60.0)


def test_forecasts_follow_the_speed_of_time_and_never_overlap(job: Job) -> None:
    job.seconds = 0.15
    plan = Schedule(lambda: None, lambda: None, lambda why: None, job.turn, speed=1000.0)
    plan.begin(INTERVAL)
    try:
        assert wait_for(lambda: len(job.begun) >= 3)
        assert not job.twice_at_once
    finally:
        plan.end()
