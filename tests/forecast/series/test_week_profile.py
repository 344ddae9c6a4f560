"""The profile of the week: medians that one bad day does not move, drawn to the time of day."""

import numpy as np
import pytest
from forecast_traffic import past_of, series, wave

from forecast.series.binned import Array
from forecast.series.observed import ObservedBins
from forecast.series.week_profile import WeekProfiles, week_profile


def test_days_alike_are_their_own_profile() -> None:
    day = np.arange(24.0)
    assert week_profile(past_of(np.tile(day, 5)), 120) == pytest.approx(np.tile(day, 7))


def test_one_bad_day_moves_nothing() -> None:
    days = np.tile(np.arange(24.0), (7, 1))
    days[3] = 1000.0
    assert week_profile(past_of(days.ravel()[:-1]), 167)[:72] == pytest.approx(np.tile(np.arange(24.0), 3))


def test_week_bin_is_drawn_to_its_hour() -> None:
    weeks = np.tile(np.where(np.arange(168) < 144, 10.0, 2.0), 2)
    past = past_of(weeks)
    # Sundays: two of 2.0 against a usual day of 10.0, with weights 2 / (2 + 1).
    assert week_profile(past, 336)[150] == pytest.approx(2 / 3 * 2.0 + 1 / 3 * 10.0)
    assert week_profile(past, 336)[20] == pytest.approx(10.0)


def test_profile_looks_back_stated_days() -> None:
    old = np.concatenate([np.full(24 * 8, 500.0), np.full(24 * 28, 10.0)])
    assert week_profile(past_of(old), len(old)) == pytest.approx(np.full(168, 10.0))
    # Of the last seven days four had 10 at every time of day; the six before them are no more than their week.
    ten_days = np.concatenate([np.full(24 * 6, 30.0), np.full(24 * 4, 10.0)])
    assert week_profile(past_of(ten_days), 240)[[100, 160]].tolist() == [20.0, 10.0]


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
    past = ObservedBins(series(100.0 + shown, start=start, zone="Europe/Berlin"))
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
