"""Grids of bins: what was counted stays counted, what was not seen stays missing."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from forecast.series.binned import (
    Array,
    Series,
    bin_events,
    bin_minutes,
    last_bins,
    per_minute,
    rates,
    resample,
    truncate_at,
)

NAN = math.nan


def row(*values: float) -> Array:
    return np.array(values, dtype=np.float64)


def series(*values: float, start: float = 0.0, bin_seconds: float = 60.0, zone: str = "UTC") -> Series:
    return Series(start=start, bin_seconds=bin_seconds, values=row(*values), zone=zone)


def test_left_out_times_are_missing() -> None:
    made = bin_events(row(120, 180, 360), row(5, 0, 7), 60.0, zone="Europe/Berlin")
    assert (made.start, made.bin_seconds, made.zone) == (120.0, 60.0, "Europe/Berlin")
    assert_array_equal(made.values, row(5, 0, NAN, NAN, 7))


@pytest.mark.parametrize(
    ("starts", "said"),
    [
        ((0, 60, 90), "90.0 is not whole bins of 60 s after 0.0"),
        ((0, 60, 60), "60.0 does not come after 60.0"),
        ((0, 120, 60), "60.0 does not come after 120.0"),
        ((), "at least one amount"),
    ],
)
def test_times_that_make_no_grid_are_refused(starts: tuple[float, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        bin_events(row(*starts), row(*(1.0 for _ in starts)), 60.0)


def test_times_are_good_to_a_microsecond() -> None:
    assert len(bin_events(row(1e9, 1e9 + 60 + 1e-6, 1e9 + 120), row(1, 2, 3), 60.0)) == 3
    with pytest.raises(ValueError, match="not whole bins"):
        bin_events(row(1e9, 1e9 + 60 + 1e-4, 1e9 + 120), row(1, 2, 3), 60.0)
    noisy = series(1, 2, 3, 4, start=599.9999995)
    assert resample(noisy, 120.0).start == pytest.approx(600.0)
    assert len(truncate_at(noisy, 719.9999990)) == 2
    assert len(last_bins(noisy, 119.9999995)) == 2


def test_an_empty_series_stays_empty() -> None:
    assert len(resample(series(start=60.0), 120.0)) == 0
    with pytest.raises(ValueError, match="a bin of 0 s is none"):
        bin_events(row(0), row(1), 0)


def test_offset_grid_is_kept() -> None:
    made = resample(series(*[1.0] * 8, start=30.0), 120.0)
    assert made.start == 30.0
    assert_array_equal(made.values, row(2, 2, 2, 2))
    assert resample(series(*[1.0] * 8, start=90.0), 120.0).start == 30.0


@pytest.mark.parametrize(
    ("bin_seconds", "said"), [(30.0, "only coarser ones"), (90.0, "no multiple"), (60.5, "no multiple")]
)
def test_impossible_bins_are_refused(bin_seconds: float, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        resample(series(1, 2, 3), bin_seconds)


AMOUNTS = st.lists(st.one_of(st.just(NAN), st.integers(0, 1000).map(float)), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(values=AMOUNTS, first=st.integers(0, 50), factor=st.integers(2, 7))
def test_coarse_bin_has_known_mean_rate(values: list[float], first: int, factor: int) -> None:
    made = resample(series(*values, start=60.0 * first), 60.0 * factor)
    for index, value in enumerate(made.values):
        begin = round(made.time(index) / 60) - first
        known = [v for v in values[max(0, begin) : max(0, begin + factor)] if not math.isnan(v)]
        if 2 * len(known) >= factor:
            assert value == pytest.approx(sum(known) / len(known) * factor)
        else:
            assert math.isnan(value)
    assert made.end >= 60.0 * (first + len(values)) > made.end - 60.0 * factor
    assert made.start <= 60.0 * first < made.start + 60.0 * factor


def test_only_whole_bins_are_kept() -> None:
    one = series(1, 2, 3, start=600.0)
    assert [len(truncate_at(one, t)) for t in (0, 600, 659, 660, 719.9, 720, 780, 9999)] == [0, 0, 0, 1, 1, 2, 3, 3]
    lasts = [last_bins(one, seconds) for seconds in (0, 59, 60, 150, 999)]
    assert [len(last) for last in lasts] == [0, 0, 1, 2, 3]
    assert [last.start for last in lasts] == [780.0, 780.0, 720.0, 660.0, 600.0]


def test_lines_join_the_middles() -> None:
    assert per_minute(np.array([1.0, 2.0]), 4) == pytest.approx([1, 1, 1.125, 1.375, 1.625, 1.875, 2, 2])
    assert per_minute(np.array([3.0, 1.0]), 1).tolist() == [3.0, 1.0]


def test_missing_bin_is_yesterday_or_between() -> None:
    values = np.tile(np.arange(144.0), 2)
    values[[5, 144 + 7]] = np.nan
    found = rates(series(*values, bin_seconds=600.0)) * 600.0
    assert found[5] == pytest.approx(5.0)
    assert found[144 + 7] == pytest.approx(7.0)
    values[7] = np.nan
    assert rates(series(*values, bin_seconds=600.0))[144 + 7] * 600.0 == pytest.approx(7.0), (
        "between what stands beside it"
    )


def test_what_has_no_minutes_is_refused() -> None:
    for seconds in (90.0, 30.0, 7 * 60.0):
        with pytest.raises(ValueError, match="whole minutes"):
            bin_minutes(series(1.0, bin_seconds=seconds))
    with pytest.raises(ValueError, match="no bin"):
        rates(series(NAN, NAN, bin_seconds=600.0))
