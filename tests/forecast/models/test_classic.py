"""Textbook methods: what they say on traffic whose future is known, and that their state follows what comes."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from traffic_samples import HOUR, MONDAY, week

from forecast.models.classic import Arima, HoltWinters, Mstl, _counted
from forecast.models.naive import Method
from forecast.series.binned import Array, Series
from forecast.series.observed import ObservedBins


@pytest.fixture(autouse=True)
def _few_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search among all of them takes its time."""
    monkeypatch.setattr(Arima, "ORDERS", ((1, 0, 0), (0, 1, 1)))


ORDERS = Arima.ORDERS


def past_of(values: Array) -> ObservedBins:
    return ObservedBins(Series(start=MONDAY, bin_seconds=HOUR, values=values))


def wandering(count: int, keep: float, seed: int = 3) -> Array:
    """An AR(1) around 500."""
    draw = np.random.default_rng(seed)
    values = np.empty(count)
    off = 0.0
    for place in range(count):
        off = keep * off + 10.0 * float(draw.standard_normal())
        values[place] = 500.0 + off
    return values


@pytest.mark.parametrize(("method", "days"), [(HoltWinters(), 4), (Mstl(), 21)])
def test_a_season_without_noise_is_continued(method: Method, days: int) -> None:
    everything = week(days + 1, noise=0.0).values
    past = past_of(everything[: days * 24])
    method.fit(past)
    assert_allclose(method.path(past, 24), everything[days * 24 :], rtol=0.02)


def test_the_weekly_season_needs_two_weeks_and_is_then_found() -> None:
    everything = week(19, noise=0.0).values
    past, young = past_of(everything[: 18 * 24]), past_of(everything[24 * 8 : 18 * 24])
    long, short = Mstl(), Mstl()
    long.fit(past)
    short.fit(young)
    friday = everything[18 * 24 :]
    assert np.abs(long.path(past, 24) - friday).sum() < 0.2 * np.abs(short.path(young, 24) - friday).sum()


@pytest.mark.parametrize("method", [HoltWinters(), Mstl(), Arima()])
def test_a_level_that_rises_is_followed_between_the_fits(method: Method) -> None:
    steps = np.random.default_rng(8).standard_normal(15 * 24)
    usual = week(15, noise=0.0).values + 4000.0 + 100.0 * np.cumsum(steps)
    past = past_of(usual[: 14 * 24])
    method.fit(past)
    for value in usual[14 * 24 :]:
        past.append(float(value) + 2000.0)
        method.advance(past)
    assert float(method.path(past, 1)[0]) > past.values[-1] - 500.0


def test_level_and_season_are_updated_as_statsmodels_does(monkeypatch: pytest.MonkeyPatch) -> None:
    from statsmodels.tsa.holtwinters import ExponentialSmoothing

    fit = ExponentialSmoothing.fit

    def fixed(model: ExponentialSmoothing, **_: object) -> object:
        return fit(model, smoothing_level=0.3, smoothing_seasonal=0.2, optimized=False)

    monkeypatch.setattr(ExponentialSmoothing, "fit", fixed)
    values = week(10, noise=0.2).values
    past, method = past_of(values[: 9 * 24]), HoltWinters()
    method.fit(past)
    for value in values[9 * 24 :]:
        past.append(float(value))
    method.advance(past)
    model = ExponentialSmoothing(values, seasonal="add", seasonal_periods=24, initialization_method="heuristic")
    # Its own forecast leaves out what the last bin says of its season, which would be the 24th.
    assert_allclose(method.path(past, 24)[:23], np.asarray(model.fit().forecast(24))[:23], rtol=1e-9)


@pytest.mark.parametrize("method", [HoltWinters, Mstl])
def test_following_bin_by_bin_is_the_same_as_all_at_once(method: type[Method]) -> None:
    values = week(15).values
    slow, fast = method(), method()
    past, behind = past_of(values[: 14 * 24]), past_of(values[: 14 * 24])
    slow.fit(past)
    fast.fit(behind)
    for value in values[14 * 24 :]:
        past.append(float(value))
        behind.append(float(value))
        slow.advance(past)
    fast.advance(behind)
    assert_allclose(slow.path(past, 24), fast.path(behind, 24), rtol=1e-12)


@pytest.mark.parametrize("order", ORDERS)
def test_the_recursion_is_the_forecast_that_statsmodels_makes(
    order: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from statsmodels.tsa.arima.model import ARIMA

    monkeypatch.setattr(Arima, "ORDERS", (order,))
    values = wandering(7 * 24, 0.8)
    past, ours = past_of(values[:-6]), Arima()
    ours.fit(past)
    for value in values[-6:]:
        past.append(float(value))
        ours.advance(past)
    d = order[1]
    steps = np.diff(values, n=d)
    model = ARIMA(steps - ours._mean, order=(order[0], 0, order[2]), trend="n")
    theirs = ours._mean + model.filter([*ours._ar, *ours._ma, 100.0]).forecast(5)
    expected = theirs if d == 0 else values[-1] + np.cumsum(theirs)
    # Shocks are of 10; the filter's gain is not quite at its end after a week of hours.
    assert_allclose(ours.path(past, 5), expected, atol=0.5)


def test_the_order_is_sought_once_and_the_parameters_daily() -> None:
    past, method = past_of(wandering(8 * 24, 0.9)), Arima()
    method.fit(past)
    order, ar = method._order, method._ar.copy()
    for value in wandering(24, 0.1, seed=4):
        past.append(float(value))
    method.fit(past)
    assert method._order == order
    assert not np.allclose(method._ar, ar)


def test_warnings_are_counted_and_not_printed() -> None:
    troubles: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            with _counted(troubles):
                warnings.warn("it did not converge\nat all", RuntimeWarning, stacklevel=1)
    assert troubles == {"RuntimeWarning: it did not converge": 3}


def test_four_weeks_of_five_minutes_are_decomposed_within_two_seconds() -> None:
    past, method = ObservedBins(week(28, 300.0)), Mstl()
    begun = time.process_time()
    method.fit(past)
    assert time.process_time() - begun < 2.0


@pytest.mark.parametrize("method", [HoltWinters(), Mstl(), Arima()])
def test_traffic_that_never_changes_is_forecast_as_it_is(method: Method) -> None:
    past = past_of(np.full(14 * 24, 7.0))
    method.fit(past)
    assert_allclose(method.path(past, 24), 7.0, atol=1e-6)


def test_gaps_are_no_reason_to_fail() -> None:
    series = week(14)
    holes = series.values.copy()
    holes[100:130] = np.nan
    past = ObservedBins(replace(series, values=holes))
    for method in (HoltWinters(), Mstl(), Arima()):
        method.fit(past)
        assert np.isfinite(method.path(past, 24)).all()
