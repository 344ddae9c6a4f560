"""The regression of one lead: better than the last value where bins follow from bins, and robust."""

import numpy as np
import pytest
from forecast_traffic import past_of, wave

from forecast.models.methods import Outlook
from forecast.models.regression import Regression
from forecast.series.binned import Array


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
