"""Quantiles of one lead: ordered, holding, and sane where there was no traffic, no noise, or a break."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from forecast_traffic import past_of

from forecast.models.conformal import FURTHEST, LEAST_RESIDUALS, OnlineMean, Quantiles, Spread
from forecast.series.binned import Array


def followed(
    values: Array, forecast: Callable[[int], float], *, lead: int = 1, first: int = 30
) -> dict[int, Quantiles | None]:
    """What was said at each origin, of forecasts that a function of the target makes."""
    past = past_of(values[:first])
    spread = Spread(past, lead, first)
    said: dict[int, Quantiles | None] = {}
    for origin in range(first, len(values)):
        spread.learn(origin - lead, values[origin - 1] if origin - lead >= first else math.nan)
        spread.note(origin, forecast(origin + lead - 1))
        said[origin] = spread.quantiles(origin)
        past.append(float(values[origin]))
    return said


def share_covered(values: Array, said: dict[int, Quantiles | None], lead: int, since: int) -> tuple[float, float]:
    pairs = [(values[at + lead - 1], one) for at, one in said.items() if one and since <= at <= len(values) - lead]
    return (
        float(np.mean([came <= one.q95 for came, one in pairs])),
        float(np.mean([came <= one.q99 for came, one in pairs])),
    )


@pytest.mark.parametrize("lead", [1, 3])
def test_quantiles_hold_on_noise_of_counts(lead: int) -> None:
    usual = 100 * (1 + 0.6 * np.sin(2 * np.pi * np.arange(2400) / 24))
    values = np.random.default_rng(5).poisson(usual).astype(np.float64)
    said = followed(values, lambda target: float(usual[target % 2400]), lead=lead)
    q95, q99 = share_covered(values, said, lead, 240)
    # Standard deviation of a share of 2160: 0.5 % and 0.2 %.
    assert abs(q95 - 0.95) < 3 * 0.0047
    assert abs(q99 - 0.99) < 4 * 0.0021
    low = np.mean([values[at + lead - 1] < one.q05 for at, one in said.items() if one and 240 <= at < 2400 - lead])
    assert abs(low - 0.05) < 0.02


def test_quantiles_are_ordered_and_never_below_zero() -> None:
    values = np.random.default_rng(6).poisson(2.0, 800).astype(np.float64)
    for one in followed(values, lambda _: 2.0).values():
        if one is not None:
            assert 0 <= one.q05 <= one.q50 <= one.q95 <= one.q99


def test_a_forecast_that_is_always_too_low_has_its_median_raised_by_half_of_it() -> None:
    values = np.full(400, 130.0) + np.random.default_rng(7).normal(0, 1, 400)
    last = followed(values, lambda _: 100.0)[399]
    assert last is not None
    assert last.q50 == pytest.approx(115.0, abs=1)
    assert last.q05 <= last.q50
    assert last.q95 == pytest.approx(132.0, abs=2)


def test_nothing_is_said_before_enough_residuals_are_known() -> None:
    values = np.random.default_rng(8).poisson(50.0, 120).astype(np.float64)
    said = followed(values, lambda _: 50.0, lead=2)
    first = min(at for at, one in said.items() if one is not None)
    # Five are needed before a residual has a scale, its bin is over a lead later, and then LEAST_RESIDUALS.
    assert first == 30 + (5 + 1) + (LEAST_RESIDUALS - 1) + 2
    assert all(one is not None for at, one in said.items() if at > first)


def test_bins_that_were_not_seen_are_no_residuals() -> None:
    values = np.random.default_rng(9).poisson(50.0, 400).astype(np.float64)
    whole = followed(values[:200], lambda _: 50.0)[199]
    holes = followed(np.concatenate([values[:200], np.full(15, np.nan)]), lambda _: 50.0)[214]
    assert whole is not None
    assert holes is not None
    assert holes.q95 == pytest.approx(whole.q95, rel=0.03)


def test_a_noisy_hour_widens_what_comes_next() -> None:
    draw = np.random.default_rng(10)
    values = 100 + np.concatenate([draw.normal(0, 3, 300), draw.normal(0, 30, 12)])
    said = followed(np.maximum(values, 0), lambda _: 100.0)
    calm, noisy = said[299], said[311]
    assert calm is not None
    assert noisy is not None
    assert noisy.q95 - 100 > 2 * (calm.q95 - 100)


def test_traffic_without_noise_has_no_spread_and_the_first_noise_is_taken_as_it_is() -> None:
    values = np.full(300, 64.0)
    values[250] = 74.0
    said = followed(values, lambda _: 64.0)
    assert said[249] == Quantiles(64.0, 64.0, 64.0, 64.0)
    later = said[252]
    assert later is not None
    assert 64.0 <= later.q99 <= FURTHEST * 74


def test_traffic_that_begins_after_nothing_has_sane_quantiles() -> None:
    draw = np.random.default_rng(11)
    values = np.concatenate([np.zeros(24 * 10), draw.poisson(100.0, 24 * 10)]).astype(np.float64)
    said = followed(values, lambda target: float(values[max(target - 1, 0)]))
    for at, one in said.items():
        if one is not None and at > 240:
            assert one.q99 <= FURTHEST * values[:at].max()
    last = said[479]
    assert last is not None
    assert last.q95 < 300


def test_no_quantile_is_above_three_times_the_highest_amount() -> None:
    values = np.random.default_rng(12).poisson(10.0, 300).astype(np.float64)
    last = followed(values, lambda target: 1e9 if target == 299 else 10.0)[299]
    assert last is not None
    assert last.q99 == FURTHEST * values[:299].max()


def test_a_mean_follows_by_its_half_life_and_is_not_known_of_four_values() -> None:
    one = OnlineMean(half_life=1.0)
    for value in (1.0, 2.0, 3.0, 4.0):
        one.add(value)
        assert math.isnan(one.value)
    one.add(5.0)
    assert one.value == pytest.approx((5 + 4 / 2 + 3 / 4 + 2 / 8 + 1 / 16) / (1 + 1 / 2 + 1 / 4 + 1 / 8 + 1 / 16))


def test_what_comes_later_changes_no_quantile_said_before() -> None:
    values = np.random.default_rng(13).poisson(50.0, 300).astype(np.float64)
    other = np.concatenate([values[:200], values[200:] * 9])
    one, two = (followed(some, lambda _: 50.0) for some in (values, other))
    assert all(one[at] == two[at] for at in range(30, 201))
    assert one[202] != two[202]


def test_the_hours_that_are_usually_noisy_are_wider_before_they_come() -> None:
    draw = np.random.default_rng(14)
    hours = np.arange(24 * 30) % 24
    noise = np.where((hours >= 11) & (hours <= 15), 40.0, 4.0)
    values = np.maximum(200 + draw.normal(0, 1, len(noise)) * noise, 0.0)
    said = followed(values, lambda _: 200.0)
    wide = {
        hour: np.mean([one.q95 - 200 for at, one in said.items() if one and at > 480 and at % 24 == hour])
        for hour in (6, 11)
    }
    assert wide[11] > 1.2 * wide[6]


def test_what_is_kept_is_bounded_and_what_was_dropped_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(15).poisson(50.0, 24 * 30).astype(np.float64)
    dropped = followed(values, lambda _: 50.0, lead=3)
    monkeypatch.setattr("forecast.models.conformal.KEPT_DAYS", 10_000)
    assert followed(values, lambda _: 50.0, lead=3) == dropped


def test_the_record_does_not_grow() -> None:
    past = past_of(np.full(48, 10.0))
    spread = Spread(past, 1, 48)
    for origin in range(48, 24 * 60):
        spread.learn(origin - 1, 10.0)
        spread.note(origin, 10.0)
        past.append(10.0)
    assert len(spread._forecasts) <= 24 * 11 + 40
