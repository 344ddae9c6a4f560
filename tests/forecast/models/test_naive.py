"""The methods that anyone would try first say what their names promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from traffic_samples import HOUR, MONDAY, week

from forecast.models.naive import LaggedMethod, Method, ProfileTimesLevel
from forecast.series.binned import Series
from forecast.series.observed import ObservedBins


def fitted(method: Method, past: ObservedBins) -> Method:
    method.fit(past)
    return method


def counting(bins: int) -> ObservedBins:
    return ObservedBins(Series(start=MONDAY, bin_seconds=HOUR, values=np.arange(bins, dtype=np.float64)))


def test_the_same_as_now_is_the_last_bin_for_ever() -> None:
    assert_array_equal(LaggedMethod(0).path(counting(50), 3), [49.0, 49.0, 49.0])


def test_the_same_as_yesterday_goes_through_the_last_day_and_then_again() -> None:
    assert_array_equal(LaggedMethod(1).path(counting(50), 26), [*range(26, 50), 26.0, 27.0])


def test_the_same_as_last_week_goes_through_the_last_week() -> None:
    assert_array_equal(LaggedMethod(7).path(counting(24 * 8), 30), np.arange(24.0, 54.0))


def test_a_missing_bin_is_taken_as_a_day_before() -> None:
    past = counting(50)
    past.append(np.nan)
    assert_array_equal(LaggedMethod(0).path(past, 1), [26.0])


def test_the_profile_is_what_usually_comes_where_the_level_is_the_usual_one() -> None:
    series = week(21, noise=0.0)
    past = ObservedBins(series)
    # After a Sunday night comes a Monday: the last hours were low as they usually are, and say nothing of it.
    off = fitted(ProfileTimesLevel(), past).path(past, 24) - week(22, noise=0.0).values[-24:]
    assert np.abs(off).mean() < 30.0


def test_a_level_beyond_the_profile_is_carried_ahead_and_halves_in_three_hours() -> None:
    usual = week(22, noise=0.0).values
    series = replace(week(21, noise=0.0), values=usual[: 21 * 24])
    past = ObservedBins(series)
    method = fitted(ProfileTimesLevel(), past)
    plain = method.path(past, 4)
    past.append(2.0 * float(plain[0]))
    past_plain = ObservedBins(series)
    past_plain.append(float(plain[0]))
    factor = method.path(past, 6) / method.path(past_plain, 6)
    assert_allclose(factor[[2, 5]], [2**0.5, 2**0.25], rtol=1e-9)


def test_a_level_that_is_out_of_all_proportion_is_held_back() -> None:
    past = ObservedBins(week(21, noise=0.0))
    method = fitted(ProfileTimesLevel(), past)
    past.append(1e9)
    assert method.path(past, 1)[0] < 10 * 1.02 * past.values[:-1].max()


def test_traffic_that_never_was_is_forecast_as_none() -> None:
    past = ObservedBins(Series(start=MONDAY, bin_seconds=HOUR, values=np.zeros(48)))
    assert_array_equal(fitted(ProfileTimesLevel(), past).path(past, 3), np.zeros(3))


@pytest.mark.parametrize("method", [LaggedMethod(0), LaggedMethod(1), LaggedMethod(7), ProfileTimesLevel()])
def test_nothing_is_warned_of(method: Method) -> None:
    past = ObservedBins(week(21))
    assert not fitted(method, past).troubles
