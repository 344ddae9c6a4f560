"""Weights and quantiles of a horizon: the better method counts, coverage holds, and only what was over counts."""

import numpy as np
import pytest
from forecast_traffic import past_of, wave

from forecast.models.horizon import Horizon, Members
from forecast.series.binned import Array, Integers

NOISE = np.random.default_rng(5).normal(100.0, 10.0, 24 * 40)


def constants(*amounts: float) -> Members:
    def members(origins: Integers, leads: Integers) -> Array:
        return np.broadcast_to(np.array(amounts), (len(origins), len(leads), len(amounts))).copy()

    return members


def horizon(values: Array, *amounts: float, leads: int = 1, first: int = 24, **more: object) -> Horizon:
    return Horizon(past_of(values), constants(*amounts), np.arange(1, leads + 1), first=first, **more)  # type: ignore[arg-type]


def test_better_method_has_the_weight() -> None:
    assert horizon(NOISE, 100.0, 150.0).weights == pytest.approx([1.0, 0.0], abs=0.001)
    assert horizon(NOISE, 100.0, 100.0).weights == pytest.approx([0.5, 0.5])
    assert horizon(NOISE[:26], 90.0, 150.0, first=26).weights == pytest.approx([0.5, 0.5])


def test_quantiles_hold_what_they_say() -> None:
    origins = np.arange(24 * 20, 24 * 40)
    bounds = horizon(NOISE, 100.0).quantiles(origins)[:, :, 0]
    covered = [(NOISE[origins] <= bound).mean() for bound in bounds[[0, 2, 3]]]
    assert covered == pytest.approx([0.05, 0.95, 0.99], abs=0.025)


def test_quantiles_stay_ordered_and_bounded() -> None:
    wild = np.random.default_rng(1).pareto(0.7, 24 * 30)
    bounds = horizon(wild, 5.0, leads=24, parts=(slice(0, 12), slice(12, 24)), powers=(0.5, 1.0)).quantiles(
        np.arange(200, 700)
    )
    assert (np.diff(bounds, axis=0) >= 0).all()
    assert bounds.min() >= 0.0
    assert bounds.max() <= 3 * wild.max()


def test_fewer_than_twenty_errors_give_no_quantile() -> None:
    found = horizon(NOISE[:60], 100.0).quantiles(np.arange(40, 50))[2, :, 0]
    assert np.isnan(found).tolist() == [True] * 4 + [False] * 6


@pytest.mark.parametrize("lead", [1, 5])
def test_unfinished_bin_changes_nothing(lead: int) -> None:
    past = past_of(NOISE[:100])
    forecast = Horizon(past, constants(100.0, 90.0), np.array([lead]), first=30)
    before = forecast.quantiles(np.arange(60, 101))
    for _ in range(10):
        past.append(5000.0)
    forecast.follow()
    assert np.array_equal(forecast.quantiles(np.arange(60, 101)), before)
    assert (forecast.quantiles(np.array([110]))[3] > before.max()).all()


def test_bins_that_were_not_seen_teach_nothing() -> None:
    gaps = NOISE.copy()
    gaps[100:110] = np.nan
    assert np.array_equal(
        horizon(gaps, 100.0).quantiles(np.array([110])), horizon(gaps[:100], 100.0).quantiles(np.array([100]))
    )


def test_parts_have_own_weights() -> None:
    values = np.tile(np.repeat([100.0, 50.0], 12), 20)
    found = horizon(values, 100.0, 50.0, leads=24, stride=24, parts=(slice(0, 12), slice(12, 24))).quantiles(
        np.array([480])
    )
    assert found[1, 0] == pytest.approx(values[:24], rel=0.01)


def test_earlier_part_replaces_unfinished_path() -> None:
    found = horizon(NOISE[:96], 100.0, leads=48, first=60, parts=(slice(0, 1), slice(1, 48))).quantiles(np.array([96]))
    assert np.isfinite(found).all()
    assert np.ptp(found[2]) == pytest.approx(0.0)


def test_errors_stand_between_origins() -> None:
    values = wave(20)
    forecast = horizon(values, 100.0, leads=2, stride=6, parts=(slice(0, 2),))
    rows = forecast.origins
    assert np.array_equal(forecast.quantiles(rows[40:41] + 3), forecast.quantiles(rows[40:41]))
