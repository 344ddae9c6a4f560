"""Delays after failures (`agent.durations`)."""

import pytest

from agent.durations import Backoff, retry_delay


def test_a_delay_doubles_up_to_its_limit() -> None:
    assert [retry_delay(failures, 0.8, 30.0) for failures in (1, 2, 3)] == pytest.approx([0.8, 1.6, 3.2])
    assert retry_delay(1000, 0.8, 30.0) == 30.0


def test_a_dead_target_is_asked_more_rarely_but_at_least_every_second_cycle() -> None:
    backoff = Backoff()
    asked = []
    for cycle in range(20):
        if backoff.is_due(cycle):
            asked.append(cycle)
            backoff = backoff.record_failure(cycle)
    assert asked == [0, 1, 2, 4, 6, 8, 10, 12, 14, 16, 18]
    assert backoff.failures == len(asked)
    assert backoff.record_success() == Backoff()


def test_a_cycle_that_starts_a_little_early_is_not_skipped() -> None:
    assert Backoff().record_failure(0.2).record_failure(1.05).is_due(2.0)


def test_a_delay_in_seconds_doubles() -> None:
    backoff = Backoff(first=10.0, longest=30.0)
    for delay in (10.0, 20.0, 30.0, 30.0):
        backoff = backoff.record_failure(1000.0)
        assert backoff.skip_until == 1000.0 + delay
