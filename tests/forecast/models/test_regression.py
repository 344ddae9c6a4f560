"""Robust regression on the surroundings: it learns once from what was seen, forgets by days, and looks at nothing later."""

import numpy as np
import pytest
from forecast_traffic import past_of

from forecast.models.features import Features
from forecast.models.regression import Regression, Space
from forecast.series.binned import Array
from forecast.series.observed import ObservedBins

DAYS = 12
N = 24 * DAYS


def world(factor: float = 0.5, seed: int = 1) -> tuple[ObservedBins, Features]:
    """Each bin is the level 100 plus `factor` times the one signal its origin had; scale 100."""
    signal = np.random.default_rng(seed).normal(0, 0.2, N)
    past = past_of(np.maximum(100 + 100 * factor * signal, 0.0))
    return past, made(signal)


def made(signal: Array) -> Features:
    count = len(signal)
    return Features(
        origins=np.arange(count),
        signals=signal[:, None],
        level=np.full(count, 100.0),
        scale=np.full(count, 100.0),
    )


def daily(past: ObservedBins, around: Features, space: Space = Space.PLAIN, days: int = DAYS) -> Regression:
    one = Regression(space)
    for end in range(24, 24 * days + 1, 24):
        one.fit(past, around, 1, end)
    return one


@pytest.mark.parametrize("space", list(Space))
def test_it_finds_what_a_signal_is_worth(space: Space) -> None:
    past, around = world()
    said = daily(past, around, space).predict(around)
    late = slice(N - 24, N)
    error = np.abs(said[late] - past.values[late]).mean()
    assert error < 0.35 * np.abs(100 - past.values[late]).mean()


def test_before_its_first_fit_it_says_the_level() -> None:
    past, around = world()
    said = daily(past, around).predict(around)
    assert said[:24].tolist() == [100.0] * 24
    assert not np.allclose(said[24:48], 100.0)


def test_each_fit_is_used_from_its_end_on() -> None:
    past, around = world()
    early, late = daily(past, around, days=5), daily(past, around)
    assert np.array_equal(early.predict(around)[:144], late.predict(around)[:144])
    assert not np.array_equal(early.predict(around)[144:], late.predict(around)[144:])


def test_targets_at_or_after_the_end_are_not_learnt() -> None:
    past, around = world()
    other = past_of(np.concatenate([past.values[:48], np.full(N - 48, 900.0)]))
    one, two = Regression(Space.PLAIN), Regression(Space.PLAIN)
    one.fit(past, around, 3, 48)
    two.fit(other, around, 3, 48)
    assert np.array_equal(one.predict(around), two.predict(around))
    two.fit(other, around, 3, 49)
    assert not np.array_equal(one.predict(around), two.predict(around))


def test_bins_that_were_not_seen_are_not_learnt() -> None:
    past, around = world()
    gaps = past.values.copy()
    gaps[30:40] = np.nan
    holes = past_of(gaps)
    wild = Features(
        origins=around.origins,
        signals=np.where((np.arange(N) >= 30) & (np.arange(N) < 40), 50.0, around.signals[:, 0])[:, None],
        level=around.level,
        scale=around.scale,
    )
    one, two = daily(holes, around), daily(holes, wild)
    assert np.array_equal(one.predict(around), two.predict(around))


def test_a_refit_with_nothing_new_changes_nothing() -> None:
    past, around = world()
    one, two = daily(past, around), daily(past, around)
    two.fit(past, around, 1, N)
    assert np.array_equal(one.predict(made(np.ones(N + 5))), two.predict(made(np.ones(N + 5))))


def test_it_forgets_by_days_however_often_it_is_fitted() -> None:
    signal = np.full(N, 0.2)
    past, around = past_of(np.where(np.arange(N) < N // 2, 90.0, 120.0)), made(signal)
    daily_one, often = daily(past, around), Regression(Space.PLAIN)
    for end in range(6, N + 1, 6):
        often.fit(past, around, 1, end)
    asked = made(np.full(N + 1, 0.2))
    assert often.predict(asked)[-1] == pytest.approx(daily_one.predict(asked)[-1], rel=0.01)


def test_single_wild_bins_hardly_move_it() -> None:
    past, around = world()
    wild = past.values.copy()
    wild[5::40] = 5000.0
    said = daily(past_of(wild), around).predict(around)[-24:]
    assert np.abs(said - past.values[-24:]).mean() < 0.5 * np.abs(100 - past.values[-24:]).mean()


def test_it_never_says_less_than_nothing() -> None:
    past, around = world()
    assert daily(past, around).predict(made(np.full(N + 1, -100.0)))[-1] == 0.0


@pytest.mark.parametrize("space", list(Space))
def test_a_signal_that_is_not_known_counts_as_none(space: Space) -> None:
    past, around = world()
    one = daily(past, around, space)
    assert np.array_equal(one.predict(made(np.full(N + 1, np.nan))), one.predict(made(np.zeros(N + 1))))
