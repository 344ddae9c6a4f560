"""Drain time of a replica, from histograms of request durations."""

import math

import pytest

from forecast.capacity.drain import DrainTime, measure_drain
from rules.telemetry.histograms import Histogram
from rules.telemetry.windows import Window


def window(counts: dict[float, float], total: float, seconds: float = 3600.0) -> Window:
    part = Histogram(edges=(*counts,), counts=(*counts.values(),), total=total)
    return Window(
        start=0, end=seconds, expected_seconds=seconds, covered_seconds=seconds, histograms={"e2e_seconds": (part,)}
    )


def test_drain_is_upper_edge_of_p99() -> None:
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
def test_unknown_drain_says_why(counts: dict[float, float], words: str) -> None:
    assert words in str(measure_drain(window(counts, 500.0)))


def test_unexposed_durations_are_not_guessed() -> None:
    empty = Window(start=0, end=60, expected_seconds=60, covered_seconds=60)
    assert measure_drain(empty) == "the duration of requests is not known: not_exposed"
