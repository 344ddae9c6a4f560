"""The daemon's four jobs on APScheduler: on a grid, never two at once, and on again after the clock was set."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest
from apscheduler.executors import base as executors
from apscheduler.schedulers import base as schedulers
from daemon_runs import running
from report_runs import configured
from waiting import wait_for

from agent.daemon import jobs as jobs_module
from agent.daemon.jobs import BACK_FILL, CYCLE, FORECAST, REPORT, UPKEEP, DaemonJobs, GridTrigger

INTERVAL = 0.1


class Runs:
    """What the jobs call: notes when, and takes as long as it is told."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.skipped: list[str] = []
        self.seconds = 0.0
        self._running = threading.Lock()
        self.twice_at_once = False
        self.ends = ExitStack()

    def run(self) -> None:
        if not self._running.acquire(blocking=False):
            self.twice_at_once = True
            return
        self.begun.append(time.monotonic())
        time.sleep(self.seconds)
        self._running.release()

    def start(self, name: str = CYCLE, interval: float = INTERVAL, speed: float = 1.0) -> DaemonJobs:
        """Return the jobs of a daemon, of which the one of this name is noted, until the end of the test."""
        functions: dict[str, Callable[[], None]] = dict.fromkeys(
            (CYCLE, UPKEEP, FORECAST, REPORT, BACK_FILL), lambda: None
        )
        jobs = DaemonJobs(functions | {name: self.run}, self.skipped.append, speed=speed)
        self.ends.callback(jobs.shutdown)
        jobs.schedule(interval)
        return jobs


@pytest.fixture(name="runs")
def new_runs() -> Iterator[Runs]:
    runs = Runs()
    with runs.ends:
        yield runs


@pytest.fixture(name="jobs")
def started(runs: Runs) -> DaemonJobs:
    return runs.start()


def due(jobs: DaemonJobs, name: str = CYCLE) -> float:
    """When a job is due next, in unix seconds."""
    t: float = jobs.scheduler.get_job(name).next_run_time.timestamp()
    return t


def on_one_grid(first: float, other: float, interval: float = INTERVAL) -> bool:
    steps = (other - first) / interval
    return abs(steps - round(steps)) < 1e-3


def set_clock(patch: pytest.MonkeyPatch, now: Callable[[], datetime], *modules: ModuleType) -> None:
    """Let `datetime.now` of these modules return this time."""

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return now()

    for module in modules:
        patch.setattr(module, "datetime", Shifted)


def test_daemon_has_five_jobs(tmp_path: Path) -> None:
    loaded = configured(tmp_path)
    with running(loaded.path, cycles=1, speed=1.0) as daemon:
        by_name = {job.id: job for job in daemon.jobs.scheduler.get_jobs()}
        assert set(by_name) == {CYCLE, UPKEEP, FORECAST, REPORT, BACK_FILL}
        assert all(job.max_instances == 1 and job.coalesce for job in by_name.values())
        assert by_name[REPORT].trigger.interval == timedelta(minutes=1)


def test_long_cycles_are_skipped_and_counted(runs: Runs, jobs: DaemonJobs, caplog: pytest.LogCaptureFixture) -> None:
    assert wait_for(lambda: runs.begun)
    first = due(jobs)
    runs.seconds = 2.5 * INTERVAL
    assert wait_for(lambda: len(runs.begun) >= 4 and runs.skipped.count("the one before it still ran") >= 4)
    assert not runs.twice_at_once
    assert due(jobs) > first
    assert on_one_grid(first, due(jobs))
    assert "apscheduler" not in {record.name.partition(".")[0] for record in caplog.records}


def test_late_cycle_is_skipped_with_reason(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a busy machine: the scheduler's thread gives out the run, and its own thread begins it two seconds later."""
    set_clock(monkeypatch, lambda: datetime.now(UTC) + timedelta(seconds=2.0), executors)
    runs.start()
    assert wait_for(lambda: runs.skipped.count("the machine was too busy to begin it") >= 2)
    assert not runs.begun


def test_another_interval_begins_a_grid_at_once(runs: Runs, jobs: DaemonJobs) -> None:
    assert wait_for(lambda: len(runs.begun) >= 2)
    before, now = len(runs.begun), time.time()
    jobs.schedule(3600.0)
    # It is left out where one of the old grid still ends at that moment, and that is told.
    assert wait_for(lambda: len(runs.begun) > before or runs.skipped), "the first of the new grid is at once"
    assert wait_for(lambda: now + 3600.0 <= due(jobs) <= time.time() + 3600.0)


@pytest.mark.parametrize("jump", [-3600.0, 3600.0, 56 * 365 * 86_400.0])
def test_cycles_continue_after_clock_was_set(
    runs: Runs, jobs: DaemonJobs, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    assert wait_for(lambda: runs.begun)
    real = time.time
    set_clock(monkeypatch, lambda: datetime.now(UTC) + timedelta(seconds=jump), schedulers, executors, jobs_module)
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    if jump < 0:
        time.sleep(3 * INTERVAL)
        still = len(runs.begun)
        time.sleep(3 * INTERVAL)
        assert len(runs.begun) == still, "APScheduler waits for the hour to come again"
    jobs.follow_clock()
    seen = len(runs.begun)
    assert wait_for(lambda: len(runs.begun) >= seen + 3)
    first = due(jobs)
    assert first - time.time() <= INTERVAL
    jobs.follow_clock()
    assert on_one_grid(first, due(jobs)), "a jump is followed once"
    assert len(runs.begun) + len(runs.skipped) < 1000


def test_missed_times_are_left_out() -> None:
    start = datetime(2026, 11, 2, tzinfo=UTC)
    trigger = GridTrigger(seconds=10.0, start_date=start)
    after = [trigger.get_next_fire_time(start, start + timedelta(seconds=seconds)) for seconds in (0, 9, 10, 47)]
    assert [(t - start).total_seconds() for t in after] == [10.0, 10.0, 10.0, 50.0]


def test_shutdown_waits_for_running_cycle(runs: Runs) -> None:
    runs.seconds = 0.3
    jobs = runs.start(interval=10.0)
    assert wait_for(lambda: bool(runs.begun))
    jobs.shutdown()
    assert time.monotonic() - runs.begun[0] >= 0.3


@pytest.mark.parametrize(("second", "wait"), [(0.0, 30.0), (29.0, 1.0), (30.0, 60.0), (59.0, 31.0)])
def test_forecast_is_due_after_whole_minute(
    monkeypatch: pytest.MonkeyPatch, runs: Runs, second: float, wait: float
) -> None:
    start = datetime(2026, 11, 2, 12, 0, tzinfo=UTC) + timedelta(seconds=second)

    set_clock(monkeypatch, lambda: start, schedulers, jobs_module)
    jobs = runs.start(FORECAST, 15.0)
    # Two scrapes after the full minute.
    at = datetime.fromtimestamp(due(jobs, FORECAST), UTC)
    following = jobs.scheduler.get_job(FORECAST).trigger.get_next_fire_time(at, at)
    assert ((at - start).total_seconds(), (following - at).total_seconds()) == (wait, 60.0)


def test_forecasts_follow_speed_without_overlap(runs: Runs) -> None:
    runs.seconds = 0.15
    runs.start(FORECAST, 1000.0 * INTERVAL, speed=1000.0)
    assert wait_for(lambda: len(runs.begun) >= 3)
    assert not runs.twice_at_once
