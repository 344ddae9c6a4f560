"""Demand one lead ahead: nothing is known before it happened, quantiles hold, live is what was simulated."""

import numpy as np
import pytest

from forecast.lead.features import REACH_MINUTES, SeasonalPrior, compute_features, fill_gaps, fit
from forecast.lead.online import (
    DAY_MINUTES,
    FIRST_FIT_MINUTES,
    LeadRun,
    OnlineLeadForecaster,
    profile_outlook,
    run_lead_forecast,
)
from forecast.series.binned import Array

LEAD = 3


def traffic(days: int, seed: int = 1, mean: float = 60.0) -> Array:
    random = np.random.default_rng(seed)
    minute = np.arange(days * DAY_MINUTES)
    daily = mean * (1 + 0.6 * np.sin(2 * np.pi * minute / DAY_MINUTES))
    wandering = np.exp(np.cumsum(random.normal(0, 0.004, len(minute))) - 0.0)
    counts: Array = random.poisson(daily * wandering / wandering.mean()).astype(np.float64)
    return counts


def outlook(minutes: Array) -> SeasonalPrior:
    return profile_outlook(minutes[: len(minutes) // 5 * 5].reshape(-1, 5).mean(axis=1), 5, LEAD, len(minutes) + 1)


@pytest.fixture(scope="module")
def eight_days() -> tuple[Array, LeadRun]:
    minutes = traffic(8)
    return minutes, run_lead_forecast(minutes, outlook(minutes), LEAD)


def test_future_changes_no_earlier_quantile(eight_days: tuple[Array, LeadRun]) -> None:
    minutes, said = eight_days
    cut = 5 * DAY_MINUTES + 777
    other = np.concatenate([minutes[:cut], 1000.0 + traffic(8, seed=9)[cut:]])
    changed = run_lead_forecast(other, outlook(other), LEAD)
    for level in (0.5, 0.99):
        assert np.array_equal(said.quantile(level)[: cut + 1], changed.quantile(level)[: cut + 1], equal_nan=True)
    assert not np.array_equal(said.quantile(0.99)[cut + 1 :], changed.quantile(0.99)[cut + 1 :], equal_nan=True)


@pytest.mark.parametrize(("level", "least", "most"), [(0.5, 0.44, 0.56), (0.95, 0.94, 0.96), (0.99, 0.985, 0.995)])
def test_quantiles_hold(eight_days: tuple[Array, LeadRun], level: float, least: float, most: float) -> None:
    minutes, said = eight_days
    quantile = said.quantile(level)[4 * DAY_MINUTES : len(minutes) - LEAD]
    assert least <= np.mean(minutes[4 * DAY_MINUTES + LEAD :] <= quantile) <= most


def test_centre_beats_last_minute_after_two_days(eight_days: tuple[Array, LeadRun]) -> None:
    minutes, said = eight_days
    start = 4 * DAY_MINUTES
    targets = minutes[start + LEAD :]
    ours = np.abs(targets - said.centre[start : len(minutes) - LEAD]).mean()
    naive = np.abs(targets - minutes[start - 1 : -LEAD - 1]).mean()
    assert ours < 0.8 * naive
    assert np.isnan(said.centre[:FIRST_FIT_MINUTES]).all()
    assert np.isfinite(said.centre[FIRST_FIT_MINUTES:]).all()


def test_live_says_what_the_simulation_says() -> None:
    minutes = traffic(5)
    ahead = outlook(minutes)
    batch = run_lead_forecast(minutes, ahead, LEAD)
    start = 4 * DAY_MINUTES
    live = OnlineLeadForecaster(
        minutes[:start], SeasonalPrior(now=ahead.now[: start + 1], then=ahead.then[: start + 1]), LEAD
    )
    for minute in range(start, start + 300):
        for level in (0.95, 0.99) if minute % 50 == 0 else ():
            assert live.quantile(level) == pytest.approx(batch.quantile(level)[minute], rel=1e-6)
        live.step(float(minutes[minute]), float(ahead.now[minute + 1]), float(ahead.then[minute + 1]))


def test_little_history_learns_later() -> None:
    minutes = traffic(3)
    first = FIRST_FIT_MINUTES - 10
    live = OnlineLeadForecaster(minutes[:first], SeasonalPrior.silent(first + 1), LEAD)
    assert live.quantile(0.95) is None
    for minute in minutes[first : first + 800].tolist():
        live.step(minute, float("nan"), float("nan"))
    assert live.quantile(0.95) is None, "nothing was learnt yet"
    live.refit()
    for minute in minutes[first + 800 : first + 1300].tolist():
        live.step(minute, float("nan"), float("nan"))
    assert live.quantile(0.95) is not None
    late = OnlineLeadForecaster(minutes, SeasonalPrior.silent(len(minutes) + 1), len(minutes) + 1)
    assert late.quantile(0.95) is None, "no answer is known within so long a lead"


def test_unseen_minutes_are_no_zero() -> None:
    minutes = traffic(6)
    holes = minutes.copy()
    holes[4 * DAY_MINUTES : 4 * DAY_MINUTES + 200] = np.nan
    said = run_lead_forecast(holes, SeasonalPrior.silent(len(holes) + 1), LEAD)
    assert np.isnan(said.errors[4 * DAY_MINUTES : 4 * DAY_MINUTES + 190]).all()
    within = said.quantile(0.99)[4 * DAY_MINUTES + 100]
    assert within > 0.3 * minutes[4 * DAY_MINUTES - 10 : 4 * DAY_MINUTES].mean()
    assert fill_gaps(np.array([np.nan, 2.0, np.nan, 3.0, np.nan])).tolist() == [2.0, 2.0, 2.0, 3.0, 3.0]


def test_the_unit_of_demand_does_not_matter(eight_days: tuple[Array, LeadRun]) -> None:
    minutes, said = eight_days
    seconds = minutes[: 5 * DAY_MINUTES] / 60.0
    other = run_lead_forecast(seconds, outlook(seconds), LEAD)
    assert other.quantile(0.99)[-2] * 60.0 == pytest.approx(said.quantile(0.99)[5 * DAY_MINUTES - 1], rel=1e-3)


def test_features_reach_stated_minutes() -> None:
    minutes = traffic(1)
    whole = compute_features(minutes, SeasonalPrior.silent(len(minutes) + 1))
    part = compute_features(minutes[-REACH_MINUTES:], SeasonalPrior.silent(REACH_MINUTES + 1))
    assert part.drifts[-1] == pytest.approx(whole.drifts[-1], abs=1e-9)
    assert part.spreads[-1] == pytest.approx(whole.spreads[-1], abs=1e-9)


def test_growth_that_an_outlook_knows_is_used() -> None:
    minute = np.arange(6 * DAY_MINUTES)
    minutes = np.where(minute % 60 < 30, 10.0, 100.0) + np.random.default_rng(3).normal(0, 0.5, len(minute))
    truth = np.where((np.arange(len(minute) + LEAD + 1) % 60) < 30, 10.0, 100.0)
    rows = np.arange(len(minute) + 1)
    knowing = SeasonalPrior(now=truth[np.maximum(rows - 1, 0)], then=truth[np.minimum(rows + LEAD, len(truth) - 1)])
    start, stop = 4 * DAY_MINUTES, len(minutes) - LEAD

    def error(ahead: SeasonalPrior) -> float:
        return float(
            np.abs(minutes[start + LEAD :] - run_lead_forecast(minutes, ahead, LEAD).centre[start:stop]).mean()
        )

    assert error(knowing) < 0.25 * error(SeasonalPrior.silent(len(minutes) + 1))


def test_outlook_growth_is_bounded() -> None:
    minutes = np.full(40, 10.0)
    for then, growth in ((20.0, (20.0 + 0.5) / (10.0 + 0.5)), (1000.0, 2.5), (0.1, 0.4)):
        ahead = SeasonalPrior(now=np.full(41, 10.0), then=np.full(41, then))
        drifts = compute_features(minutes, ahead).drifts[-1]
        assert drifts[-2:] == pytest.approx([10.0 * (growth - 1)] * 2)
        assert drifts[-3] == pytest.approx(then - 10.0)
    silent = compute_features(minutes, SeasonalPrior.silent(41)).drifts[-1]
    assert silent[-3:] == pytest.approx([0.0, 0.0, 0.0])


def test_the_spread_is_wide_where_errors_are() -> None:
    random = np.random.default_rng(5)
    loud = np.arange(8000) // 500 % 2 == 1
    minutes = 50.0 + random.normal(0, 1, 8000) * np.where(loud, 8.0, 1.0)
    rows = compute_features(minutes, SeasonalPrior.silent(8001)).rows(0, 8000 - LEAD)
    targets = minutes[LEAD:]
    learnt = fit(rows, targets)
    within = targets <= learnt.centre(rows) + learnt.spread(rows)
    assert 0.96 <= within.mean() <= 0.995
    assert within[loud[LEAD:]].mean() >= 0.93
    wide = learnt.spread(rows)
    assert np.median(wide[loud[LEAD:]]) > 3 * np.median(wide[~loud[LEAD:]])


def test_traffic_after_silence_does_not_explode() -> None:
    minutes = np.concatenate([np.zeros(3 * DAY_MINUTES), traffic(3)])
    minutes[DAY_MINUTES] = 1.0
    quantile = run_lead_forecast(minutes, SeasonalPrior.silent(len(minutes) + 1), LEAD).quantile(0.998)
    highest = np.maximum.accumulate(np.concatenate([[0.0], minutes]))
    assert np.nanmax(quantile / np.maximum(highest, 1e-9)) <= 1.5


@pytest.mark.parametrize("bin_minutes", [5, 15, 30])
def test_coarse_minutes_are_learnt_from(bin_minutes: int) -> None:
    place = np.arange(7 * DAY_MINUTES // bin_minutes)
    bins = 100 + 60 * np.sin(2 * np.pi * place * bin_minutes / DAY_MINUTES)
    minutes = np.repeat(bins, bin_minutes)
    said = run_lead_forecast(minutes, SeasonalPrior.silent(len(minutes) + 1), LEAD).quantile(0.99)[
        5 * DAY_MINUTES : -LEAD - 1
    ]
    assert said.mean() < 1.1 * minutes.mean()


def test_nothing_to_learn_from_is_refused() -> None:
    with pytest.raises(ValueError, match="no minute"):
        run_lead_forecast(np.full(10, np.nan), SeasonalPrior.silent(11), LEAD)
    with pytest.raises(ValueError, match="lead"):
        run_lead_forecast(np.ones(10), SeasonalPrior.silent(11), 0)
    rows = compute_features(np.zeros(100), SeasonalPrior.silent(101))
    with pytest.raises(ValueError, match="nothing to learn"):
        fit(rows, np.zeros(101))


def test_unfinished_bin_is_not_read() -> None:
    bins = np.random.default_rng(1).uniform(1, 9, 5 * 288)
    minutes, cut = 5 * DAY_MINUTES, 3 * 288 + 100
    other = bins.copy()
    other[cut:] = 1e6
    made, changed = profile_outlook(bins, 5, 3, minutes), profile_outlook(other, 5, 3, minutes)
    end = (cut + 1) * 5
    assert np.array_equal(made.now[:end], changed.now[:end], equal_nan=True)
    assert np.array_equal(made.then[:end], changed.then[:end], equal_nan=True)
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(made.now, changed.now)


@pytest.mark.parametrize("bin_minutes", [5, 10, 60])
def test_the_profile_says_what_the_week_says(bin_minutes: int) -> None:
    per_day = DAY_MINUTES // bin_minutes
    place = np.arange(21 * per_day)
    weekly = 100 + 50 * np.sin(2 * np.pi * place / per_day) + 30 * (place // per_day % 7 < 5)
    found = profile_outlook(weekly, bin_minutes, 3, 21 * DAY_MINUTES)
    minute = (np.arange(300, 1200) + DAY_MINUTES * np.arange(15, 19)[:, None]).ravel()
    expected = np.interp(minute + 3.5, (place + 0.5) * bin_minutes, weekly)
    assert found.then[minute] == pytest.approx(expected, rel=0.05)
    assert np.isnan(found.then[: 2 * DAY_MINUTES]).all()
