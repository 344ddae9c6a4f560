"""Rolling conformal quantiles: the protocol's, and nothing of what was not over yet."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from forecast.models.rolling_quantiles import (
    LEAST_RESIDUALS,
    LEVELS,
    minimum_path_count,
    quantiles_at_lead,
    quantiles_of_paths,
    window_bins,
)
from forecast.series.binned import Array

UPPER = LEVELS.index(0.95)


def noisy(count: int, seed: int = 5) -> tuple[Array, Array]:
    draw = np.random.default_rng(seed)
    points = 100.0 + 20.0 * draw.random(count)
    return points, points + 10.0 * draw.standard_normal(count)


@pytest.mark.parametrize("lead", [1, 2, 5])
def test_the_upper_quantile_is_that_of_the_published_protocol(lead: int) -> None:
    points, actual = noisy(300)
    actual[40:60] = np.nan
    residuals = pd.Series((actual - points) / np.sqrt(np.maximum(points, 5.0)))
    # backtest.py of the baselines, line for line.
    quantile = residuals.shift(lead).rolling(96, min_periods=20).quantile(0.95, interpolation="higher").to_numpy()
    expected = points + quantile * np.sqrt(np.maximum(points, 5.0))
    assert_allclose(quantiles_at_lead(points, actual, lead, 96, 5.0)[UPPER], expected, rtol=1e-12)


@pytest.mark.parametrize("lead", [1, 3])
def test_a_bin_that_is_not_over_at_the_origin_changes_nothing(lead: int) -> None:
    points, actual = noisy(100)
    before = quantiles_at_lead(points, actual, lead, 50, 5.0)
    # The newest origin whose bin is over at origin 60 is 60 - lead.
    actual[60 - lead + 1 :] += 1e6
    after = quantiles_at_lead(points, actual, lead, 50, 5.0)
    assert_array_equal(before[:, :61], after[:, :61])
    assert (before[UPPER, 61:] != after[UPPER, 61:]).all()


def test_too_few_residuals_give_no_quantile() -> None:
    points, actual = noisy(60)
    found = quantiles_at_lead(points, actual, 1, 50, 5.0)[UPPER]
    assert np.isnan(found[:LEAST_RESIDUALS]).all()
    assert np.isfinite(found[LEAST_RESIDUALS:]).all()


def test_coarse_bins_have_a_week_of_residuals() -> None:
    assert window_bins(600.0, 144) == 2 * 144
    assert window_bins(1800.0, 48) == 7 * 48


def test_paths_pool_the_residuals_of_a_quarter_of_those_that_are_over() -> None:
    draw = np.random.default_rng(6)
    origins = np.arange(0, 24 * 6, 6)
    points = np.full((len(origins), 24), 100.0)
    actual = points + 10.0 * draw.standard_normal(points.shape)
    found = quantiles_of_paths(points, actual, origins, 5.0, 21)[UPPER]
    last = len(origins) - 1
    over = [row for row, origin in enumerate(origins) if origin + 24 <= origins[last]][-8:]
    for quarter in range(4):
        leads = slice(6 * quarter, 6 * quarter + 6)
        expected = 100.0 + np.quantile((actual - points)[over, leads], 0.95)
        assert_allclose(found[last, leads], expected, rtol=1e-12)
    assert np.isnan(found[:4]).all()


def test_a_path_that_is_not_over_changes_nothing() -> None:
    origins = np.arange(0, 24 * 6, 6)
    points = np.full((len(origins), 24), 100.0)
    actual = points + 10.0 * np.random.default_rng(7).standard_normal(points.shape)
    before = quantiles_of_paths(points, actual, origins, 5.0, 21)
    actual[11:] += 1e6
    after = quantiles_of_paths(points, actual, origins, 5.0, 21)
    assert_array_equal(before[:, :15], after[:, :15])
    assert (before[UPPER, 15:] != after[UPPER, 15:]).all()


def test_long_bins_are_content_with_few_residuals() -> None:
    origins = np.arange(0, 24, 6)
    points = np.full((4, 6), 100.0)
    assert minimum_path_count(3600.0) == 1
    assert np.isfinite(quantiles_of_paths(points, points + 1.0, origins, 5.0, minimum_path_count(3600.0))[:, 1:]).all()
    assert np.isnan(quantiles_of_paths(points, points + 1.0, origins, 5.0, minimum_path_count(600.0))).all()
