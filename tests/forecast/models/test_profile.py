"""The profile of the week: medians that one bad day does not move, drawn to the time of day, never of what came later."""

import numpy as np
import pytest
from forecast_traffic import past_of, profiles_of, series, wave

from forecast.models.features import QUICK, STEADY, Profiles, ProfileSettings, week_profile
from forecast.series.binned import Array
from forecast.series.observed import ObservedBins

PLAIN = ProfileSettings(days=7, shrink=1.0, smooth_seconds=900.0)


def test_without_a_day_it_is_the_mean_of_what_came() -> None:
    past = past_of(np.array([1.0, 2.0, 6.0]))
    assert np.array_equal(week_profile(past, 3, PLAIN), np.full(168, 3.0))
    assert np.array_equal(week_profile(past, 0, PLAIN), np.zeros(168))


def test_days_alike_are_their_own_profile() -> None:
    day = np.arange(24.0)
    assert week_profile(past_of(np.tile(day, 5)), 120, PLAIN) == pytest.approx(np.tile(day, 7))


def test_one_bad_day_moves_nothing() -> None:
    days = np.tile(np.arange(24.0), (7, 1))
    days[3] = 1000.0
    assert week_profile(past_of(days.ravel()[:-1]), 167, PLAIN)[:72] == pytest.approx(np.tile(np.arange(24.0), 3))


def test_a_bin_of_the_week_is_drawn_to_its_time_of_day_by_how_few_weeks_are_behind_it() -> None:
    weeks = np.tile(np.where(np.arange(168) < 144, 10.0, 2.0), 2)
    past = past_of(weeks)
    # Sundays: two of 2.0 against a usual day of 10.0, with weights 2 / (2 + shrink).
    assert week_profile(past, 336, PLAIN)[150] == pytest.approx(2 / 3 * 2.0 + 1 / 3 * 10.0)
    assert week_profile(past, 336, STEADY)[150] == pytest.approx(2 / 5 * 2.0 + 3 / 5 * 10.0)
    assert week_profile(past, 336, PLAIN)[20] == pytest.approx(10.0)


def test_it_looks_back_over_as_many_days_and_weeks_as_it_says() -> None:
    old = np.concatenate([np.full(24 * 8, 500.0), np.full(24 * 28, 10.0)])
    assert week_profile(past_of(old), len(old), PLAIN) == pytest.approx(np.full(168, 10.0))
    ten_days = np.concatenate([np.full(24 * 6, 30.0), np.full(24 * 4, 10.0)])
    two_weeks = ProfileSettings(days=14, shrink=1e9, smooth_seconds=0.0)
    one_week = ProfileSettings(days=7, shrink=1e9, smooth_seconds=0.0)
    assert week_profile(past_of(ten_days), 240, two_weeks) == pytest.approx(np.full(168, 30.0), rel=1e-6)
    assert week_profile(past_of(ten_days), 240, one_week) == pytest.approx(np.full(168, 10.0), rel=1e-6)


def test_smoothing_takes_an_odd_number_of_bins_about_each_and_goes_round_the_week() -> None:
    spike = np.zeros(96)
    spike[0] = 30.0
    past = past_of(np.tile(spike, 2), bin_seconds=900.0)
    smooth = week_profile(past, 192, ProfileSettings(days=7, shrink=1.0, smooth_seconds=1800.0))
    assert smooth[[0, 1, 2, -1, -2]] == pytest.approx([6.0] * 5)
    assert smooth[[3, -3]] == pytest.approx([0.0, 0.0])
    assert week_profile(past, 192, PLAIN)[0] == pytest.approx(30.0)


def test_what_came_after_its_end_is_not_in_it() -> None:
    values = wave(20)
    other = np.concatenate([values[:300], 10 * values[300:]])
    assert np.array_equal(week_profile(past_of(values), 300, QUICK), week_profile(past_of(other), 300, QUICK))


# On 2023-10-29 at 03:00 the clock in Berlin goes back to 02:00, on 2023-03-26 at 02:00 forward to 03:00.
@pytest.mark.parametrize(("change", "before", "after"), [(1_698_541_200.0, 2, 1), (1_679_792_400.0, 1, 2)])
@pytest.mark.parametrize("days", [1, 4])
def test_where_the_clock_was_changed_every_time_of_day_has_a_value(
    change: float, before: int, after: int, days: int
) -> None:
    changed = 24 * days - 12
    start, hours = change - changed * 3600.0, np.arange(24 * days, dtype=np.float64)
    shown: Array = (start / 3600 + hours + np.where(hours < changed, before, after)) % 24
    past = ObservedBins(series(100.0 + shown, start=start, zone="Europe/Berlin"))
    # Of a single day the hour that did not come is drawn between its neighbours.
    assert week_profile(past, len(past), PLAIN)[:24] == pytest.approx(
        100.0 + np.arange(24), abs=1.01 if days == 1 else 1e-9
    )


def test_each_origin_sees_the_profile_that_was_fitted_before_it() -> None:
    profiles = profiles_of(past_of(np.concatenate([np.full(36, 10.0), np.full(60, 50.0)])))
    # Fitted after 24, 48, 72 and 96 bins; the medians of the afternoons (12:00) are 10, 30, 50, 50, of the nights 10, 10, 10, 30.
    origins, leads = np.array([24, 47, 48, 71, 72, 95, 96]), np.array([13, 14, 13, 14, 13, 6, 5])
    assert profiles.forecast_profile(origins, leads).tolist() == [10.0, 10.0, 30.0, 30.0, 50.0, 10.0, 30.0]


def test_before_the_first_turn_of_a_day_the_profile_of_the_first_day_is_seen() -> None:
    past = past_of(np.concatenate([np.full(24, 10.0), np.full(44, 50.0)]))
    profiles = profiles_of(past)
    assert profiles.forecast_profile(np.arange(24, 44), 1).tolist() == [10.0] * 20
    assert profiles.forecast_profile(np.array([43, 44]), np.array([6, 5])).tolist() == [10.0, 50.0]


def test_sums_over_the_bins_behind_are_those_of_the_bins_one_by_one() -> None:
    past = past_of(wave(16))
    profiles = profiles_of(past)
    origins = np.array([100, 167, 168, 169, 384])
    behind = profiles.past_profile(origins, 6)
    assert profiles.mean(origins, 6) == pytest.approx(behind.mean(axis=1))
    assert behind[:, -1] == pytest.approx(profiles.forecast_profile(origins, 0))
    assert profiles.typical(np.array([384]))[0] == pytest.approx(week_profile(past, 384, QUICK).mean())


def test_what_lies_ahead_is_the_profile_at_the_slot_of_the_target() -> None:
    past = past_of(wave(15))
    profiles = Profiles(past, QUICK, 360)
    row = week_profile(past, 360, QUICK)
    assert profiles.forecast_profile(np.array([[360]]), np.arange(1, 4)[None, :])[0] == pytest.approx(
        row[(360 + np.arange(3)) % 168]
    )


def test_a_later_fit_counts_from_its_end_on() -> None:
    past = past_of(np.full(48, 10.0))
    profiles = profiles_of(past)
    for _ in range(48):
        past.append(70.0)
    profiles.fit(len(past))
    assert profiles.forecast_profile(np.array([95]), 1)[0] == 10.0
    assert profiles.forecast_profile(np.array([96]), 1)[0] == 40.0


def test_what_was_forgotten_only_earlier_origins_would_have_seen() -> None:
    past = past_of(wave(10))
    whole, short = profiles_of(past), profiles_of(past)
    short.forget(130)
    origins = np.arange(130, 240)
    assert np.array_equal(short.forecast_profile(origins, 2), whole.forecast_profile(origins, 2))
    assert np.array_equal(short.mean(origins, 5), whole.mean(origins, 5))
    assert len(short._rows) == len(short._sums) == len(short._ends) == 6
    short.forget(-5)
    assert len(short._rows) == 6
