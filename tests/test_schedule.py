"""When turns are due: on a grid without drift, never two at once, and on again after the clock was set back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from daemon_runs import wait_for

from agent import schedule
from agent.schedule import Schedule

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
    plan = Schedule(job.turn, lambda: None, job.late.append)
    plan.begin(INTERVAL)
    yield plan
    plan.end()


def test_the_first_turn_is_at_once_and_the_others_keep_to_its_grid(job: Job, plan: Schedule) -> None:
    begin = time.monotonic()
    job.seconds = 0.04
    assert wait_for(lambda: len(job.begun) == 9)
    assert job.begun[0] - begin < INTERVAL
    elapsed = job.begun[-1] - job.begun[0]
    # Eight intervals, however long the turns between took: these alone add up to two more.
    assert elapsed == pytest.approx(8 * INTERVAL, abs=1.2 * INTERVAL)


def test_turns_longer_than_the_interval_are_left_out_counted_and_never_overlap(job: Job, plan: Schedule) -> None:
    job.seconds = 2.5 * INTERVAL
    assert wait_for(lambda: len(job.begun) == 4)
    assert not job.twice_at_once
    assert len(job.late) >= 4
    assert set(job.late) == {"the one before it still ran"}
    gaps = [(b - a) / INTERVAL for a, b in zip(job.begun[1:], job.begun[2:], strict=False)]
    assert gaps == pytest.approx([3.0] * len(gaps), abs=0.9), "back on the grid"


def test_the_same_interval_leaves_the_grid_and_another_begins_one(job: Job, plan: Schedule) -> None:
    assert wait_for(lambda: len(job.begun) == 2)
    for _ in range(3):
        plan.change(INTERVAL)
    time.sleep(INTERVAL / 4)
    assert len(job.begun) == 2
    plan.change(0.5)
    assert wait_for(lambda: len(job.begun) == 3, 0.3), "the first of the new grid is at once"
    assert wait_for(lambda: len(job.begun) == 4)
    assert job.begun[3] - job.begun[2] == pytest.approx(0.5, abs=0.1)


def test_a_clock_that_was_set_back_does_not_stop_the_turns(
    job: Job, plan: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wait_for(lambda: len(job.begun) == 1)
    # As after the clock was set back: the next turn is due in an hour of it.
    plan._scheduler.modify_job(
        schedule.TURN, next_run_time=plan._scheduler.get_job(schedule.TURN).next_run_time.replace(year=2999)
    )
    time.sleep(2 * INTERVAL)
    stopped = len(job.begun)
    plan.mind_the_clock()
    time.sleep(INTERVAL)
    assert len(job.begun) == stopped
    offset = schedule.clock_offset() - 3600.0
    monkeypatch.setattr(schedule, "clock_offset", lambda: offset)
    plan.mind_the_clock()
    assert wait_for(lambda: len(job.begun) > stopped)
    plan.mind_the_clock()


def test_the_end_waits_for_a_turn_that_runs(job: Job) -> None:
    job.seconds = 0.3
    plan = Schedule(job.turn, lambda: None, job.late.append)
    plan.begin(10.0)
    assert wait_for(lambda: bool(job.begun))
    plan.end()
    assert time.monotonic() - job.begun[0] >= 0.3
