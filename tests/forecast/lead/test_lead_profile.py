"""The outlook per minute: drawn from finished bins and forecasts only, and a profile that knows the week."""

import numpy as np
import pytest

from forecast.lead.online import DAY_MINUTES, profile_outlook, week_profile


def test_unfinished_bin_is_not_read() -> None:
    bins = np.random.default_rng(1).uniform(1, 9, 5 * 288)
    minutes, cut = 5 * DAY_MINUTES, 3 * 288 + 100
    other = bins.copy()
    other[cut:] = 1e6
    made, changed = profile_outlook(bins, 5, 3, minutes), profile_outlook(other, 5, 3, minutes)
    end = (cut + 1) * 5
    assert np.array_equal(made.now[:end], changed.now[:end], equal_nan=True)
    assert np.array_equal(made.then[:end], changed.then[:end], equal_nan=True)
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(made.now, changed.now)


@pytest.mark.parametrize("bin_minutes", [5, 10, 60])
def test_the_profile_says_what_the_week_says(bin_minutes: int) -> None:
    per_day = DAY_MINUTES // bin_minutes
    place = np.arange(21 * per_day)
    weekly = 100 + 50 * np.sin(2 * np.pi * place / per_day) + 30 * (place // per_day % 7 < 5)
    found = profile_outlook(weekly, bin_minutes, 3, 21 * DAY_MINUTES)
    minute = np.arange(18 * DAY_MINUTES + 300, 18 * DAY_MINUTES + 1200)
    expected = np.interp(minute + 3.5, (place + 0.5) * bin_minutes, weekly)
    assert found.then[minute] == pytest.approx(expected, rel=0.05)
    assert np.isnan(found.then[: 2 * DAY_MINUTES]).all()


def test_one_wild_day_leaves_the_profile_alone() -> None:
    quiet = np.full(14 * 24, 10.0)
    wild = quiet.copy()
    wild[10 * 24 : 11 * 24] = 1000.0
    assert week_profile(wild, 24, 60).max() < 600
    days = np.full(6 * 24, 10.0)
    days[3 * 24 : 4 * 24] = 1000.0
    assert week_profile(days, 24, 60).tolist() == [10.0] * 168
