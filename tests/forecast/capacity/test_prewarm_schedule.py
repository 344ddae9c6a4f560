"""The day as shifts: every bin is covered by enough, and each shift says when it must be asked for."""

from itertools import pairwise

import numpy as np
import pytest

from forecast.capacity.prewarm import ScheduleStep, schedule

PLAN = 2.0


def made(values: list[float], minimum: int = 0, shortest: float = 600.0) -> tuple[ScheduleStep, ...]:
    return schedule(
        values, start=1_000_000.0, bin_seconds=300.0, capacity_rps=PLAN, minimum=minimum, shortest_seconds=shortest
    )


def test_shift_carries_highest_bin() -> None:
    found = made([1.0, 3.0, 4.0, 2.0, 9.0])
    assert [(one.start, one.replicas, one.demand_rps) for one in found] == [
        (1_000_000.0, 2, 4.0),
        (1_001_200.0, 5, 9.0),
    ]
    assert [one.peak for one in found] == [1_000_600.0, 1_001_200.0]


def test_bins_have_enough_and_minimum() -> None:
    values = np.random.default_rng(2).uniform(0, 30, 288)
    values[:60] /= 10
    found = schedule(values.tolist(), start=0.0, bin_seconds=300.0, capacity_rps=PLAN, minimum=4)
    assert found[0].start == 0.0
    assert all(earlier.start < later.start for earlier, later in pairwise(found))
    for place, value in enumerate(values):
        step = [one for one in found if one.start <= place * 300.0][-1]
        assert step.replicas >= max(4, value / 2.0)


def test_schedule_includes_the_decision() -> None:
    def at(start: float, replicas: int) -> list[tuple[float, int, float]]:
        decided = ScheduleStep(start=start, replicas=replicas, demand_rps=7.0)
        path = {"start": 0.0, "bin_seconds": 300.0, "capacity_rps": PLAN, "shortest_seconds": 600.0}
        found = schedule([1.0, 3.0, 4.0, 2.0, 9.0], decided=decided, **path)
        return [(one.start, one.replicas, one.demand_rps) for one in found]

    usual = [(0.0, 2, 4.0), (1200.0, 5, 9.0)]
    assert at(299.0, 2) == at(1200.0, 4) == at(9000.0, 7) == usual
    assert at(299.0, 4) == [(0.0, 4, 7.0), (600.0, 2, 4.0), (1200.0, 5, 9.0)]
    assert at(600.0, 5) == [(0.0, 2, 3.0), (600.0, 5, 9.0)]


def test_gap_in_path_is_refused() -> None:
    with pytest.raises(ValueError, match="every bin"):
        made([1.0, float("nan")])
