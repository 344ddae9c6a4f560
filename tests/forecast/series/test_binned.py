"""Grids of bins and the bins so far: what was counted stays, what was not seen stays missing, no bad day moves a profile."""

import math

import numpy as np
import pytest
from forecast_traffic import DAY, HOUR, MONDAY, past_of, wave
from forecast_traffic import series as traffic
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
from forecast.series.observed import NoObservationsError, ObservedBins
from forecast.series.week_profile import WeekProfiles, week_profile

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


GAP = np.nan


def test_series_begins_at_first_seen_bin() -> None:
    past = past_of(np.array([GAP, GAP, 3.0, 4.0]))
    assert (past.start, len(past), past.end) == (MONDAY + 2 * HOUR, 2, MONDAY + 4 * HOUR)
    assert past.values.tolist() == [3.0, 4.0]
    assert (past.per_day, past.per_week) == (24, 168)


def test_missing_bin_is_filled_by_earlier() -> None:
    values = np.arange(1.0, 51.0)
    values[[5, 6, 24, 30]] = GAP
    past = past_of(values)
    assert past.values[[5, 6]].tolist() == [5.0, 5.0]
    assert past.values[[24, 30]].tolist() == [1.0, 5.0]
    assert np.flatnonzero(np.isnan(past.actual)).tolist() == [5, 6, 24, 30]


def test_appended_bins_equal_longer_series() -> None:
    values = wave(9)
    values[[30, 31, 100, 150]] = GAP
    whole, grown = past_of(values), past_of(values[:3])
    for value in values[3:]:
        grown.append(float(value))
    ends = np.arange(len(values) + 1)
    assert np.array_equal(whole.values, grown.values)
    assert np.array_equal(whole.actual, grown.actual, equal_nan=True)
    assert np.array_equal(whole.mean(ends, 5), grown.mean(ends, 5), equal_nan=True)
    assert (len(grown), grown.end) == (len(whole), whole.end)


def test_mean_is_of_bins_before_end() -> None:
    past = past_of(np.array([1.0, 2.0, 3.0, 10.0]))
    assert past.mean(np.array([2, 3, 4]), 2).tolist() == [1.5, 2.5, 6.5]
    assert np.isnan(past.mean(np.array([1, 5]), 2)).all()
    assert past.mean(np.array([3, 4]), np.array([3, 1])).tolist() == [2.0, 10.0]


def test_amounts_outside_are_unknown() -> None:
    past = past_of(np.array([1.0, 2.0]))
    assert past.values_at(np.array([0, 1])).tolist() == [1.0, 2.0]
    assert np.isnan(past.values_at(np.array([-1, 2]))).all()
    assert np.isnan(past_of(np.array([1.0, GAP])).actual_at(np.array([-1, 1, 2]))).all()


def test_seconds_are_whole_bins() -> None:
    past = past_of(wave(1), bin_seconds=900.0)
    assert [past.bins(seconds) for seconds in (1.0, 900.0, 1799.0, 3600.0)] == [1, 1, 1, 4]


def test_slots_follow_zone_beyond_end() -> None:
    assert past_of(wave(1)).slots(170).tolist() == [*range(168), 0, 1]
    # On 2023-03-26 the clock in Berlin goes from 02:00 to 03:00; the series begins at 00:00 of that Sunday.
    berlin = ObservedBins(traffic(wave(2), start=1_679_785_200.0, zone="Europe/Berlin"))
    assert berlin.slots(5).tolist() == [144, 145, 147, 148, 149]


def test_what_is_no_observation_is_refused() -> None:
    for bin_seconds in (7 * HOUR, 1000.0, 2 * DAY):
        with pytest.raises(ValueError, match="do not divide a day"):
            past_of(np.ones(3), bin_seconds=bin_seconds)
    with pytest.raises(NoObservationsError):
        past_of(np.full(30, GAP))
    past = past_of(wave(1))
    for value in (-1.0, float("inf")):
        with pytest.raises(ValueError, match="finite and not negative"):
            past.append(value)
    assert len(past) == 24


def test_no_traffic_is_an_observation() -> None:
    past = past_of(np.array([3.0]))
    past.append(0.0)
    past.append(float("nan"))
    assert past.values.tolist() == [3.0, 0.0, 0.0]
    assert past.actual[:2].tolist() == [3.0, 0.0]
    assert np.isnan(past.actual[2])


def test_one_bad_day_moves_nothing() -> None:
    days = np.tile(np.arange(24.0), (7, 1))
    days[3] = 1000.0
    assert week_profile(past_of(days.ravel()[:-1]), 167)[:72] == pytest.approx(np.tile(np.arange(24.0), 3))


def test_week_bin_is_drawn_to_its_hour() -> None:
    weeks = np.tile(np.where(np.arange(168) < 144, 10.0, 2.0), 2)
    past = past_of(weeks)
    # One week tells half of Sunday's level, 2 of 10; that Sunday is drawn to it with the weight of four weeks.
    assert week_profile(past, 168)[150] == pytest.approx((2.0 + 4 * (0.5 * 2.0 + 0.5 * 10.0)) / 5)
    assert week_profile(past, 336)[150] == pytest.approx(2.0)
    assert week_profile(past, 336)[20] == pytest.approx(10.0)


def test_spike_is_no_level_of_its_day() -> None:
    spike = np.full(168, 10.0)
    spike[30] = 1e6
    # At most three times its usual amount counts: (23 + 3) / 24 of the level, and one week tells half of it.
    assert week_profile(past_of(spike), 168)[[20, 40]] == pytest.approx([10.0, (10.0 + 4 * 10.0 * (1 + 1 / 24)) / 5])


def test_profile_looks_back_stated_days() -> None:
    old = np.concatenate([np.full(24 * 8, 500.0), np.full(24 * 28, 10.0)])
    assert week_profile(past_of(old), len(old)) == pytest.approx(np.full(168, 10.0))
    # Of the last seven days four had 10 at every time of day. A day with 30 a week ago has half of its level.
    ten_days = np.concatenate([np.full(24 * 6, 30.0), np.full(24 * 4, 10.0)])
    assert week_profile(past_of(ten_days), 240)[[100, 160]] == pytest.approx([(30.0 + 4 * 20.0) / 5, 10.0])


def test_smoothing_wraps_around_the_week() -> None:
    spike = np.zeros(288)
    spike[0] = 30.0
    smooth = week_profile(past_of(np.tile(spike, 2), bin_seconds=300.0), 576)
    assert smooth[[0, 1, 2, 3, -1, -2, -3]] == pytest.approx([30.0 / 7] * 7)
    assert smooth[[4, -4]] == pytest.approx([0.0, 0.0])


# On 2023-10-29 at 03:00 the clock in Berlin goes back to 02:00, on 2023-03-26 at 02:00 forward to 03:00.
@pytest.mark.parametrize(("change", "before", "after"), [(1_698_541_200.0, 2, 1), (1_679_792_400.0, 1, 2)])
@pytest.mark.parametrize("days", [1, 4])
def test_clock_change_leaves_no_hour_empty(change: float, before: int, after: int, days: int) -> None:
    changed = 24 * days - 12
    start, hours = change - changed * 3600.0, np.arange(24 * days, dtype=np.float64)
    shown: Array = (start / 3600 + hours + np.where(hours < changed, before, after)) % 24
    past = ObservedBins(traffic(100.0 + shown, start=start, zone="Europe/Berlin"))
    # Of a single day the hour that did not come is drawn between its neighbours.
    assert week_profile(past, len(past))[:24] == pytest.approx(100.0 + np.arange(24), abs=1.01 if days == 1 else 1e-9)


def test_origins_see_finished_days_only() -> None:
    profiles = WeekProfiles(past_of(np.concatenate([np.full(36, 10.0), np.full(60, 50.0)])))
    # Fitted after 24, 48, 72 and 96 bins; the medians of the afternoons (12:00) are 10, 30, 50, 50, of the nights 10, 10, 10, 30.
    origins, leads = np.array([24, 47, 48, 71, 72, 95, 96]), np.array([13, 14, 13, 14, 13, 6, 5])
    assert profiles.amounts(origins, origins + leads - 1).tolist() == [10.0, 10.0, 30.0, 30.0, 50.0, 10.0, 30.0]


def test_mean_before_origin_equals_its_bins() -> None:
    profiles = WeekProfiles(past_of(wave(16)))
    origins = np.array([100, 167, 168, 169, 384])
    behind = profiles.amounts(origins[:, None], origins[:, None] + np.arange(-6, 0))
    assert profiles.mean_before(origins, 6) == pytest.approx(behind.mean(axis=1))


def test_bins_that_follow_change_only_later_profiles() -> None:
    past = past_of(np.full(48, 10.0))
    profiles = WeekProfiles(past)
    assert profiles.amounts(np.array([48]), np.array([50]))[0] == 10.0
    for _ in range(48):
        past.append(70.0)
    assert profiles.amounts(np.array([95, 96]), np.array([95, 96])).tolist() == [10.0, 40.0]
