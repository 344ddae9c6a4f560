"""Smoothers: their recursions by hand, and what they said at every origin."""

import numpy as np
import pytest
from forecast_traffic import past_of, wave

from forecast.models.smoothing import LEVELS, SEASONALS, OnlineHoltWinters, Seasonal, Smoothed


def test_holt_winters_follows_its_recursion() -> None:
    past = past_of(np.array([2.0, 4.0, 6.0, 8.0]), bin_seconds=21_600.0)
    one = OnlineHoltWinters(past, Seasonal(level=0.5, season=0.25))
    assert one.forecast_bins(4, np.array([1, 2, 3, 4, 5])).tolist() == [2.0, 4.0, 6.0, 8.0, 2.0]
    one.follow(4, 6.0)
    # level 5 + 0.5 (6 + 3 - 5) = 7; season of the first bin -3 + 0.25 (6 - 5 + 3) = -2
    assert one.forecast_bins(5, np.array([1, 4])).tolist() == [6.0, 5.0]


def test_it_says_nothing_below_zero() -> None:
    one = OnlineHoltWinters(past_of(np.array([0.0, 0.0, 0.0, 8.0]), bin_seconds=21_600.0), Seasonal(1.0, 0.0))
    one.follow(4, 0.0)
    one.follow(5, 0.0)
    one.follow(7, 0.0)
    assert one.forecast_bins(8, np.array([1]))[0] == 0.0


def test_a_days_wave_is_known_after_a_day() -> None:
    day = 100 + 50 * np.sin(2 * np.pi * np.arange(24) / 24)
    said = Smoothed(past_of(np.tile(day, 3)), 3).features_at(24, 72, 3)
    assert said[:, len(LEVELS) :] == pytest.approx(np.repeat(np.resize(day, 51)[2:, None], len(SEASONALS), axis=1))


def test_levels_are_exponentially_weighted_means() -> None:
    values = wave(1.5)
    said = Smoothed(past_of(values), 1).features_at(36, 36, 1)[0, : len(LEVELS)]
    for rate, level in zip(LEVELS, said, strict=True):
        expected = values[0]
        for value in values:
            expected += rate * (value - expected)
        assert level == pytest.approx(expected)


def test_following_bin_by_bin_says_what_the_whole_series_says() -> None:
    values = wave(60)
    past = past_of(values[:48])
    followed = Smoothed(past, 2)
    for value in values[48:]:
        past.append(float(value))
        followed.follow()
    whole = Smoothed(past_of(values), 2)
    for lead in (1, 2):
        assert np.array_equal(followed.features_at(24, len(values), lead), whole.features_at(24, len(values), lead))


def test_what_it_said_at_an_origin_knows_nothing_of_later_bins() -> None:
    values = wave(4)
    other = np.concatenate([values[:60], values[60:] + 500])
    one, two = Smoothed(past_of(values), 1), Smoothed(past_of(other), 1)
    assert np.array_equal(one.features_at(24, 60, 1), two.features_at(24, 60, 1))
    assert not np.array_equal(one.features_at(61, 61, 1), two.features_at(61, 61, 1))


def test_what_was_forgotten_is_not_missed_by_later_origins() -> None:
    values = wave(60)
    past = past_of(values[:240])
    short = Smoothed(past, 2)
    short.forget(100)
    short.forget(10)
    for value in values[240:]:
        past.append(float(value))
        short.follow()
    whole = Smoothed(past_of(values), 2)
    assert short.first == 100
    assert np.array_equal(short.features_at(100, len(values), 2), whole.features_at(100, len(values), 2))
