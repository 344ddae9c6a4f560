"""Little history: now is the forecast, how far it was off by lead are the quantiles."""

import numpy as np
import pytest
from forecast_traffic import past_of, wave

from forecast.models.conformal import LEAST_RESIDUALS
from forecast.models.naive import forecast_last_value


def test_it_needs_twenty_steps_from_bin_to_bin() -> None:
    values = wave(2)
    assert forecast_last_value(past_of(values[:LEAST_RESIDUALS]), 3) is None
    assert forecast_last_value(past_of(values[: LEAST_RESIDUALS + 1]), 3) is not None
    gaps = values[: LEAST_RESIDUALS + 1].copy()
    gaps[7] = np.nan
    assert forecast_last_value(past_of(gaps), 3) is None


def test_the_median_is_now_even_where_traffic_always_rises() -> None:
    said = forecast_last_value(past_of(np.arange(100.0, 140.0)), 4)
    assert said is not None
    assert said[1].tolist() == [139.0] * 4
    assert said[0].tolist() == [139.0] * 4
    assert (said[2] > said[1]).all()


def test_errors_are_taken_by_the_root_of_the_level() -> None:
    draw = np.random.default_rng(1)
    values = np.where(draw.random(400) < 0.5, 100.0, 100.0 + draw.normal(0, 8, 400))
    values[-2:] = np.nan, 100.0
    calm = forecast_last_value(past_of(values), 1)
    values[-1] = 400.0
    high = forecast_last_value(past_of(values), 1)
    assert calm is not None
    assert high is not None
    assert (high[2] - 400)[0] == pytest.approx(2 * (calm[2] - 100)[0])


def test_outer_errors_are_taken_never_between_two() -> None:
    values = np.full(60, 100.0)
    values[-30:-10:2] = 110.0
    said = forecast_last_value(past_of(values), 1)
    assert said is not None
    assert said[2, 0] == pytest.approx(110.0)
    assert said[0, 0] == pytest.approx(100 - 10 / np.sqrt(110.0) * 10, rel=1e-6)


def test_further_ahead_is_wider_and_beyond_what_is_known_as_wide_as_there() -> None:
    walk = np.maximum(1000 + np.cumsum(np.random.default_rng(2).normal(0, 10, 60)), 0.0)
    said = forecast_last_value(past_of(walk), 24)
    assert said is not None
    width = said[2] - said[1]
    assert width[10] > width[0]
    farthest = forecast_last_value(past_of(walk[:30]), 24)
    assert farthest is not None
    assert farthest[2, -1] == farthest[2, 15]


def test_only_the_last_week_counts() -> None:
    values = np.concatenate([wave(10) * 50, np.full(24 * 7, 100.0) + np.random.default_rng(3).normal(0, 1, 168)])
    said = forecast_last_value(past_of(values), 1)
    assert said is not None
    assert said[3, 0] < 110


def test_nothing_is_known_of_a_week_without_observations() -> None:
    assert forecast_last_value(past_of(np.concatenate([wave(3), np.full(24 * 7, np.nan)])), 5) is None


@pytest.mark.parametrize(
    "values", [np.zeros(40), np.random.default_rng(4).poisson(0.1, 60).astype(float), wave(2) * 1e12]
)
def test_quantiles_are_ordered_finite_and_never_below_zero(values: np.ndarray) -> None:
    said = forecast_last_value(past_of(values), 24)
    assert said is not None
    assert np.isfinite(said).all()
    assert (said >= 0).all()
    assert (np.diff(said, axis=0) >= 0).all()
    assert said.max() <= 3 * max(values.max(), 1.0)


def test_no_traffic_so_far_is_no_traffic_at_any_quantile() -> None:
    said = forecast_last_value(past_of(np.zeros(40)), 5)
    assert said is not None
    assert (said == 0).all()
