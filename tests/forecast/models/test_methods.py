"""What each method says of the bins ahead, the regression of one lead among them; none reads what comes after an origin."""

import numpy as np
import pytest
from forecast_traffic import past_of, wave

from forecast.models.methods import (
    HOLT_WINTERS,
    LEVEL_RATE,
    MEMBERS,
    METHODS,
    PROFILE,
    SAME_AS_LAST_WEEK,
    SAME_AS_NOW,
    SAME_AS_YESTERDAY,
    SEASON_RATE,
    USUAL_DAY,
    Method,
    Outlook,
    forecast_all,
)
from forecast.models.regression import Regression
from forecast.series.binned import Array

EVERY = {**{f"{name} {place}": method for place, (name, method) in enumerate(MEMBERS)}, **METHODS}


def say(method: Method, values: Array, origin: int, leads: int = 24) -> Array:
    return forecast_all([method], Outlook(past_of(values)), np.array([origin]), np.arange(1, leads + 1))[0, :, 0]


def member(name: str) -> Method:
    return dict(MEMBERS)[name]


def test_the_naive_methods_say_what_came_before() -> None:
    values = wave(9)
    assert say(METHODS[SAME_AS_NOW], values, 200).tolist() == [values[199]] * 24
    assert say(METHODS[SAME_AS_YESTERDAY], values, 200).tolist() == values[176:200].tolist()
    assert say(METHODS[SAME_AS_LAST_WEEK], values, 200).tolist() == values[32:56].tolist()
    # A week that is not there yet is the day before.
    assert say(METHODS[SAME_AS_LAST_WEEK], values[:168], 160).tolist() == [*values[136:144], *values[:16]]


def test_usual_day_is_median_of_seven() -> None:
    days = np.repeat([5.0, 1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 100.0], 24)
    assert say(member(USUAL_DAY), days, 192).tolist() == [7.0] * 24
    assert say(member(USUAL_DAY), days, 72).tolist() == [5.0] * 24


def test_holt_winters_follows_its_recursion() -> None:
    values = wave(4)
    level, season = values[:24].mean(), values[:24] - values[:24].mean()
    for place, value in enumerate(values):
        before, at = level, place % 24
        level += LEVEL_RATE * (value - season[at] - before)
        season[at] += SEASON_RATE * (value - before - season[at])
    assert say(member(HOLT_WINTERS), values, 96) == pytest.approx(np.maximum(level + season, 0.0))


@pytest.mark.parametrize("place", range(len(MEMBERS)))
def test_daily_methods_know_repeating_days(place: int) -> None:
    day = np.arange(10.0, 34.0)
    name, method = MEMBERS[place]
    if name != SAME_AS_NOW:
        assert say(method, np.tile(day, 9), 216) == pytest.approx(day, rel=1e-6)


def test_profile_level_fades_and_is_bounded() -> None:
    values = np.tile(np.full(24, 10.0), 9)
    values[-1:] = 20.0
    hour, hours, week = (say(method, values, 216) for name, method in MEMBERS if name == PROFILE)
    assert hour[0] > hours[0] > 10.0
    assert hour[-1] == pytest.approx(10.0, rel=0.01)
    assert week == pytest.approx(np.full(24, 10.0))
    wild = values[:210].copy()
    wild[-1] = 1e6
    assert say(next(method for name, method in MEMBERS if name == PROFILE), wild, 210, 1)[0] < 60.0


@pytest.mark.parametrize("name", EVERY)
def test_silence_is_never_negative_or_unknown(name: str) -> None:
    values = np.concatenate([wave(4), np.zeros(48)])
    found = forecast_all([EVERY[name]], Outlook(past_of(values)), np.arange(30, 145), np.arange(1, 25))
    assert np.isfinite(found).all()
    assert (found >= 0).all()


def said(values: Array, first: int, lead: int = 1) -> Array:
    return Regression(Outlook(past_of(values)), lead).forecast(np.arange(first, len(values) - lead + 1))


def test_regression_beats_last_value_on_swings() -> None:
    values = wave(14) * np.where(np.arange(14 * 24) % 2, 0.5, 1.5)
    found, actual = said(values, 240), values[240:]
    assert np.abs(found - actual).mean() < 0.5 * np.abs(values[239:-1] - actual).mean()


def test_single_wild_bins_hardly_move_it() -> None:
    values = wave(14)
    wild = values.copy()
    wild[np.arange(50, 140, 15)] *= 30
    usual, found = said(values, 300), said(wild, 300)
    assert np.abs(found - usual).mean() < 0.15 * usual.mean()


def test_stepwise_equals_batch() -> None:
    values = wave(6)
    past = past_of(values[:100])
    regression, one_by_one = Regression(Outlook(past), 1), []
    for value in values[100:]:
        one_by_one.append(regression.forecast(np.array([len(past)]))[0])
        past.append(float(value))
    assert one_by_one == pytest.approx(said(values, 100), nan_ok=True)


def test_unlearnt_regression_is_silent() -> None:
    values = np.concatenate([wave(5), np.zeros(48)])
    found = said(values, 30)
    assert np.isnan(found[:18]).all()
    assert np.isfinite(found[-24:]).all()
    assert np.nanmin(found) >= 0
