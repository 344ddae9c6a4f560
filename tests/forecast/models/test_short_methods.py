"""The simple methods for the next bins, each by hand on traffic whose answer is known."""

import numpy as np
import pytest
from forecast_traffic import past_of, profiles_of, wave

from forecast.models.simple_methods import (
    BIN_METHODS,
    HOLT_WINTERS,
    PROFILE,
    SAME_AS_NOW,
    SMOOTHED,
    BinMethodInput,
    columns,
)
from forecast.models.smoothing import Smoothed
from forecast.series.binned import Array
from forecast.series.observed import ObservedBins

DAY = 100 + 50 * np.sin(2 * np.pi * np.arange(24) / 24)


def asked(past: ObservedBins, origins: Array | list[int], lead: int = 1) -> BinMethodInput:
    return BinMethodInput(past, profiles_of(past), Smoothed(past, 3), np.array(origins), lead)


def by_family(said: Array, family: str) -> Array:
    return said[:, [name == family for name, _ in BIN_METHODS]]


def test_the_same_as_now_is_the_last_bin() -> None:
    past = past_of(wave(4))
    said = columns(asked(past, [90, 91], 2))
    assert by_family(said, SAME_AS_NOW)[:, 0].tolist() == past.values[[89, 90]].tolist()


def test_traffic_that_repeats_is_known_by_all_that_know_the_time_of_day() -> None:
    said = columns(asked(past_of(np.tile(DAY, 10)), [220, 221, 222], 3))
    for family in (HOLT_WINTERS, PROFILE):
        one = by_family(said, family)
        assert one == pytest.approx(np.repeat(DAY[[6, 7, 8]][:, None], one.shape[1], axis=1), rel=0.03)
    assert by_family(said, SMOOTHED).shape == (3, 2)


def test_at_another_level_the_profile_rises_with_it_and_comes_back() -> None:
    values = np.tile(DAY, 10)
    values[210:] *= 2.0
    past = past_of(values)
    near, far = (by_family(columns(asked(past, [215], lead)), PROFILE)[0] for lead in (1, 3))
    usual = np.resize(DAY, 300)
    levelled, shifted = slice(0, 4), 4
    fades = np.array([0.5 ** (1 / 3), 0.5, 0.5 ** (1 / 12), 0.5])
    floor = 2.0
    # The profile, which was fitted before the rise, has 2 % of its mean added.
    last = usual[214]
    ratio = 2 * last / (last + floor)
    assert near[[0, 1, 3]] == pytest.approx(((usual[215] + floor) * ratio**fades)[[0, 1, 3]])
    assert (near[levelled] > far[levelled] * usual[215] / usual[217]).all()
    assert near[shifted] == pytest.approx(usual[215] + last * fades[0])


def test_the_recent_level_counts_newer_bins_more() -> None:
    past = past_of(np.concatenate([np.full(24 * 8 - 3, 100.0), [100.0, 100.0, 200.0, 100.0]]))
    rising = by_family(columns(asked(past, [192])), PROFILE)[0, 2]
    fallen = past_of(np.concatenate([np.full(24 * 8 - 3, 100.0), [200.0, 100.0, 100.0, 100.0]]))
    falling = by_family(columns(asked(fallen, [192])), PROFILE)[0, 2]
    weights = np.array([0.85**2, 0.85, 1.0]) / (0.85**2 + 0.85 + 1)
    for said, came in ((rising, [100.0, 100.0, 200.0]), (falling, [200.0, 100.0, 100.0])):
        assert said == pytest.approx(102 * (weights @ came / 102) ** 0.5 ** (1 / 12), rel=1e-6)


def test_a_ratio_is_bounded() -> None:
    values = np.full(24 * 8 + 1, 100.0)
    values[-2] = 1e6
    said = by_family(columns(asked(past_of(values), [192])), PROFILE)[0, 0]
    assert said == pytest.approx(102 * 10**0.5 ** (1 / 3))


def test_nothing_is_below_zero_or_unknown_where_there_is_no_traffic() -> None:
    values = wave(10)
    values[200:] = 0.0
    for past in (past_of(values), past_of(np.zeros(240))):
        said = columns(asked(past, list(range(60, 241)), 3))
        assert np.isfinite(said).all()
        assert (said >= 0).all()


def test_nothing_after_an_origin_changes_what_is_said_at_it() -> None:
    values = wave(5)
    other = np.concatenate([values[:100], values[100:] * 7])
    origins = list(range(40, 101))
    assert np.array_equal(columns(asked(past_of(values), origins, 3)), columns(asked(past_of(other), origins, 3)))
