"""Delays after failures (`agent.durations`)."""

from __future__ import annotations

import pytest

from agent.durations import Backoff, retry_delay


def test_a_delay_doubles_up_to_its_limit() -> None:
    assert [retry_delay(failures, 0.8, 30.0) for failures in (1, 2, 3)] == pytest.approx([0.8, 1.6, 3.2])
    assert retry_delay(1000, 0.8, 30.0) == 30.0


def test_a_dead_target_is_asked_more_rarely_but_at_least_every_second_cycle() -> None:
    backoff = Backoff()
    asked = []
    for cycle in range(20):
        now = cycle * 15.0
        if backoff.is_due(now):
            asked.append(cycle)
            backoff = backoff.record_failure(now, 15.0)
    assert asked == [0, 1, 2, 4, 6, 8, 10, 12, 14, 16, 18]
    assert backoff.failures == len(asked)


def test_the_third_failure_skips_a_cycle() -> None:
    backoff = Backoff().record_failure(0.0, 15.0).record_failure(15.0, 15.0).record_failure(30.0, 15.0)
    assert not backoff.is_due(45.0)


def test_a_cycle_that_starts_a_little_early_is_not_skipped() -> None:
    assert Backoff().record_failure(0.2, 15.0).is_due(15.0)
