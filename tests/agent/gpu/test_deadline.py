"""One job at a time, with a deadline."""

import threading

import pytest
from waiting import CEILING_SECONDS, wait_for

from agent.gpu.deadline import DeadlineThread, NotAnsweringError


def test_a_job_gives_its_result_and_raises_what_it_raised():
    thread = DeadlineThread("test-result", CEILING_SECONDS)
    assert thread.run(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        thread.run(lambda: 1 / 0)
    assert thread.run(lambda: 43) == 43
    thread.stop()


def test_a_hanging_job_costs_the_deadline_once_and_no_second_thread():
    release = threading.Event()
    thread = DeadlineThread("test-hang", 0.05)
    with pytest.raises(NotAnsweringError) as first:
        thread.run(release.wait)
    assert first.value.just_started
    for _ in range(5):
        with pytest.raises(NotAnsweringError) as again:
            thread.run(lambda: 42)
        assert not again.value.just_started
    assert [t.name for t in threading.enumerate()].count("test-hang") == 1
    release.set()
    assert run_when_back(thread, lambda: 42) == 42
    thread.stop()


def test_what_a_late_job_raised_is_not_lost():
    release = threading.Event()
    thread = DeadlineThread("test-late", 0.05)

    def fail_late() -> None:
        release.wait()
        raise ValueError("late")

    with pytest.raises(NotAnsweringError):
        thread.run(fail_late)
    release.set()
    with pytest.raises(ValueError, match="late"):
        run_when_back(thread, lambda: 42)
    assert run_when_back(thread, lambda: 42) == 42
    thread.stop()


def test_a_stopped_thread_ends_and_refuses_jobs():
    thread = DeadlineThread("test-stop", CEILING_SECONDS)
    thread.run(threading.current_thread).join(0)
    worker = thread.run(threading.current_thread)
    thread.stop()
    worker.join(CEILING_SECONDS)
    assert not worker.is_alive()
    with pytest.raises(RuntimeError, match="stopped"):
        thread.run(lambda: 42)


def run_when_back(thread: DeadlineThread, job):
    """Run ``job`` as soon as the hanging one has come back."""
    found = []

    def came() -> bool:
        try:
            found.append(thread.run(job))
        except NotAnsweringError:
            return False
        return True

    assert wait_for(came), "the hanging job never came back"
    return found[0]
