"""Quantiles of the day ahead: by quarter, from days that are over as far as they are, the newer ones counting more."""

import numpy as np
import pytest
from forecast_traffic import past_of, wave

from forecast.models.conformal import FURTHEST, DaySpread
from forecast.series.binned import Array
from forecast.series.observed import ObservedBins


def noted(values: Array, said: float, first: int = 24) -> tuple[ObservedBins, DaySpread]:
    """A flat path forecast at every origin of the past."""
    past = past_of(values)
    spread = DaySpread(past, 1)
    for origin in range(first, len(values) + 1):
        spread.note(origin, np.full(24, said))
    spread.learn()
    return past, spread


def test_without_known_errors_nothing_is_said() -> None:
    spread = DaySpread(past_of(wave(2)), 1)
    spread.learn()
    assert spread.quantiles(np.full(24, 100.0)) is None
    assert noted(wave(2), 100.0, first=46)[1].quantiles(np.full(24, 100.0)) is None


def test_the_middle_is_the_path_and_the_rest_is_ordered_about_it() -> None:
    said = noted(wave(8), 100.0)[1].quantiles(wave(1))
    assert said is not None
    assert said[1].tolist() == wave(1).tolist()
    assert (np.diff(said, axis=0) >= 0).all()
    assert (said >= 0).all()


def test_the_middle_is_the_path_even_where_every_forecast_was_too_low() -> None:
    said = noted(np.full(24 * 8, 150.0), 100.0)[1].quantiles(np.full(24, 100.0))
    assert said is not None
    assert said[0].tolist() == [100.0] * 24
    assert said[2] == pytest.approx(np.full(24, 150.0))


def test_quantiles_hold_on_noise() -> None:
    draw = np.random.default_rng(4)
    values = draw.poisson(100.0, 24 * 40).astype(np.float64)
    covered = []
    for days in range(16, 39):
        said = noted(values[: days * 24], 100.0, first=(days - 14) * 24)[1].quantiles(np.full(24, 100.0))
        assert said is not None
        covered.append((values[days * 24 : days * 24 + 24] <= said[2]).mean())
    # Standard deviation of a share of 23 days of 24: 0.9 %.
    assert abs(np.mean(covered) - 0.95) < 0.03


def test_the_wider_of_both_scales_is_believed_above_the_path() -> None:
    said = noted(np.full(24 * 8, 150.0), 100.0)[1].quantiles(np.array([400.0] * 12 + [25.0] * 12))
    assert said is not None
    # 50 more at 100 are 5 roots, or half as much again.
    assert said[2, 0] == pytest.approx(min(400 + max(5 * 20, 0.5 * 400), FURTHEST * 150))
    assert said[2, 12] == pytest.approx(25 + max(5 * 5, 0.5 * 25))


def test_below_the_path_both_scales_are_averaged() -> None:
    said = noted(np.full(24 * 8, 50.0), 100.0)[1].quantiles(np.full(24, 144.0))
    assert said is not None
    assert said[0] == pytest.approx(np.full(24, 144 - 0.5 * (5 * 12 + 0.5 * 144)))
    assert said[2].tolist() == [144.0] * 24


def test_newer_errors_count_more() -> None:
    calm, noisy = np.full(24 * 7, 100.0), np.full(24 * 7, 100.0)
    noisy[::15] = 180.0
    before, after = (
        noted(np.concatenate(parts), 100.0)[1].quantiles(np.full(24, 100.0)) for parts in ((noisy, calm), (calm, noisy))
    )
    assert before is not None
    assert after is not None
    assert after[2, 0] == pytest.approx(180.0)
    assert before[2, 0] == pytest.approx(100.0)


def test_a_quarter_of_which_too_little_is_known_has_the_one_before() -> None:
    values = np.full(34, 130.0)
    past = past_of(values)
    spread = DaySpread(past, 1)
    for origin in range(24, 35):
        spread.note(origin, np.full(24, 100.0))
    spread.learn()
    said = spread.quantiles(np.full(24, 100.0))
    assert said is not None
    assert said[2] == pytest.approx(np.full(24, 130.0))


def test_each_quarter_has_its_own_errors() -> None:
    values = np.full(24 * 10, 100.0)
    past = past_of(values)
    spread = DaySpread(past, 6)
    for origin in range(24, 24 * 9 + 1, 6):
        spread.note(origin, np.repeat([100.0, 90.0, 80.0, 50.0], 6))
    spread.learn()
    said = spread.quantiles(np.full(24, 81.0))
    assert said is not None
    assert said[2] == pytest.approx(81 + np.repeat([0.0, 9.49, 81 * 0.25, 81.0], 6), abs=0.01)


def test_bins_that_were_not_seen_are_no_errors() -> None:
    values = np.full(24 * 8, 100.0)
    values[60:84] = 900.0
    wild = noted(values, 100.0)[1].quantiles(np.full(24, 100.0))
    values[60:84] = np.nan
    gone = noted(values, 100.0)[1].quantiles(np.full(24, 100.0))
    assert wild is not None
    assert gone is not None
    assert wild[3, 0] > 290
    assert gone[3].tolist() == [100.0] * 24


def test_a_fortnight_without_observations_leaves_nothing_known() -> None:
    values = np.concatenate([wave(5), np.full(24 * 16, np.nan)])
    assert noted(values, 100.0, first=24 * 7)[1].quantiles(np.full(24, 100.0)) is None


def test_no_quantile_is_above_three_times_the_highest_amount() -> None:
    said = noted(np.concatenate([np.zeros(24 * 6), np.full(24 * 2, 200.0)]), 0.0)[1].quantiles(np.full(24, 190.0))
    assert said is not None
    assert said.max() == FURTHEST * 200.0


def test_bins_that_have_not_come_are_no_errors() -> None:
    # Of paths from bin 24 on, 15 errors of the first quarter are known after 29 bins, 21 after 30.
    assert noted(np.full(29, 100.0), 100.0)[1].quantiles(np.full(24, 100.0)) is None
    assert noted(np.full(30, 100.0), 100.0)[1].quantiles(np.full(24, 100.0)) is not None
