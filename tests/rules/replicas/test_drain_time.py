"""Drain time and the cost of a lost replica, from histograms of request durations."""

from __future__ import annotations

import math

import pytest

from rules.replicas.drain import DrainTime, measure_drain, measure_loss
from rules.telemetry.histograms import Histogram
from rules.telemetry.windows import Window


def window(counts: dict[float, float], total: float, seconds: float = 3600.0) -> Window:
    part = Histogram(edges=(*counts,), counts=(*counts.values(),), total=total)
    return Window(
        start=0, end=seconds, expected_seconds=seconds, covered_seconds=seconds, histograms={"e2e_seconds": (part,)}
    )


def test_the_drain_time_is_the_upper_edge_of_the_p99() -> None:
    found = measure_drain(window({10.0: 9_800.0, 20.5: 150.0, 60.0: 50.0, math.inf: 0.0}, 60_000.0))
    assert isinstance(found, DrainTime)
    assert (found.seconds, found.grace_seconds) == (21, 15 + 21 + 20)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({10.0: 98.0, math.inf: 1.0}, "99 requests are too few"),
        ({10.0: 980.0, math.inf: 20.0}, "more than 1 % of requests take longer than 10 s"),
    ],
)
def test_a_drain_time_that_is_not_known_says_why(counts: dict[float, float], words: str) -> None:
    assert words in str(measure_drain(window(counts, 500.0)))


def test_durations_that_no_engine_exposes_are_not_guessed() -> None:
    empty = Window(start=0, end=60, expected_seconds=60, covered_seconds=60)
    assert measure_drain(empty) == "the duration of requests is not known: not_exposed"
    assert measure_loss(empty, 120.0) is None


def test_long_requests_are_in_flight_more_often_than_they_end() -> None:
    """900 requests of 1 s and 100 of 400 s in an hour: 11.4 in flight, and 100 x 300 s / 3600 s = 8.3 outlast 100 s."""
    counts = {1.0: 900.0, 399.999: 0.0, 400.0: 100.0, math.inf: 0.0}
    found = measure_loss(window(counts, 900 + 40_000), 120.0)
    assert found is not None
    assert found.in_flight == pytest.approx(40_900 / 3600)
    assert found.unfinished_low == pytest.approx(30_000 / 3600, rel=1e-4)
    assert found.unfinished_high == pytest.approx(30_000 / 3600, rel=1e-4)


def test_an_open_bucket_cuts_off_at_most_all_that_is_in_flight() -> None:
    found = measure_loss(window({100.0: 500.0, math.inf: 500.0}, 200_000.0), 120.0)
    assert found is not None
    assert (found.unfinished_low, found.unfinished_high) == (0.0, found.in_flight)


def test_a_warning_shorter_than_the_margin_leaves_no_time() -> None:
    found = measure_loss(window({1.0: 0.0, 2.0: 1000.0, math.inf: 0.0}, 1_500.0), 10.0)
    assert found is not None
    assert found.unfinished_high == pytest.approx(found.in_flight)
