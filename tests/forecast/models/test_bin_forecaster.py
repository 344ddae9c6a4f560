"""The forecaster of a series, its methods and horizons: who answers when, what each sees, sane quantiles whatever comes."""

from datetime import date
from functools import cache

import numpy as np
import pytest
from forecast_traffic import DAY, HOUR, MONDAY, past_of, series, wave

from forecast.models.bin_forecaster import COMBINATION, Forecaster
from forecast.models.horizon import Horizon, Members
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
from forecast.series.binned import Array, Integers

GAP = float("nan")


def begun(values: Array, days: float, ahead: float = HOUR) -> Forecaster:
    return Forecaster(series(values[: round(days * 24)]), ahead_seconds=ahead)


def test_path_begins_after_last_bin() -> None:
    one = begun(wave(5), 5)
    path = one.path(6)
    assert (path.start, path.bin_seconds) == (MONDAY + 5 * DAY, HOUR)
    assert path.quantiles.shape == (4, 6)
    assert one.path(99).quantiles.shape == (4, 24)


def test_combination_follows_little_history() -> None:
    values = wave(3)
    one = begun(values, 1 / 24)
    said = [one.path(24)]
    for value in values[1:]:
        one.step(float(value))
        said.append(one.path(24))
    assert said[0] is None
    first = next(at for at, path in enumerate(said) if path is not None)
    assert first == 20
    early, late = said[first], said[46]
    assert (early.method, early.weights) == (SAME_AS_NOW, {SAME_AS_NOW: 1.0})
    assert early.note == "needs 2 days of history, has 21 hours: the same as now, with its own error"
    assert late.note.startswith("needs 2 days of history, has 47 hours")
    methods = [path.method for path in said[first:] if path is not None]
    switch = methods.index(COMBINATION)
    assert methods == [SAME_AS_NOW] * switch + [COMBINATION] * (len(methods) - switch)
    after = said[first + switch]
    assert after.note == ""
    assert sum(after.weights.values()) == pytest.approx(1.0)


def test_it_is_trained_from_two_days_on() -> None:
    values = wave(3, bin_seconds=900.0)
    one = Forecaster(series(values[:191], bin_seconds=900.0))
    assert not one.trained
    one.step(100.0)
    assert one.trained
    path = one.path(96)
    assert (path.method, path.note) == (COMBINATION, "")


def test_gaps_are_time_without_observations() -> None:
    values = wave(8)
    values[24 * 4 : 24 * 6] = GAP
    one = begun(values, 4)
    for value in values[96:144]:
        one.step(float(value))
    before = one.quality().forecasts
    assert before == begun(values, 4).quality().forecasts
    one.step(100.0)
    assert one.quality().forecasts == before + 1


def test_quality_covers_the_last_week() -> None:
    values = wave(14)
    one = Forecaster(series(values[:166]), ahead_seconds=3 * HOUR)
    for value in values[166:]:
        one.step(float(value))
    came, now = values[168:], values[165:-3]
    q50, q95 = one.quantiles(np.arange(166, 334), 3)[1:3, :, 2]
    quality = one.quality()
    assert quality.forecasts == len(came) == 168
    assert quality.covered == (came <= q95).sum()
    assert quality.error_ratio == pytest.approx(np.abs(came - q50).sum() / np.abs(came - now).sum())


def test_a_ratio_of_errors_needs_twenty_bins() -> None:
    values = wave(3)
    counts = [begun(values, bins / 24).quality() for bins in range(30, 48)]
    assert {one.error_ratio is None for one in counts if one.forecasts < 20} == {True}
    assert {one.error_ratio is None for one in counts if one.forecasts >= 20} == {False}


def changed(begin: int, end: int | None, value: float, *, by: float = 0.0) -> Array:
    """A wave whose hours from `begin` to `end` are multiplied by `by`, or `value`."""
    values = wave(15)
    values[begin:end] = values[begin:end] * by + value
    return values


TROUBLES = {
    "nothing": np.zeros(24 * 8),
    "constant": np.full(24 * 8, 7.0),
    "zero or one": np.random.default_rng(3).poisson(0.05, 24 * 14).astype(np.float64),
    "huge": wave(15) * 1e12,
    "begins late": changed(0, 24 * 4, 0.0),
    "stops and comes back": changed(24 * 7, 24 * 10, 0.0),
    "ten times": changed(24 * 10, None, 0.0, by=10.0),
    "spike": changed(245, 246, 0.0, by=1000.0),
    "days missing": changed(24 * 5, 24 * 14, GAP),
    "missing from the start": changed(1, 24 * 4, GAP),
}


@pytest.mark.parametrize("name", ["huge", "spike", "days missing"])
@pytest.mark.parametrize("origin", [52, 100, 240])
def test_past_equals_stepwise_paths(name: str, origin: int) -> None:
    values = TROUBLES[name]
    whole = Forecaster(series(values), ahead_seconds=2 * HOUR, since=48)
    one = Forecaster(series(values[:origin]), ahead_seconds=2 * HOUR, since=48)
    for place in range(origin, origin + 8):
        one.step(float(values[place]))
        assert one.path(24).quantiles == pytest.approx(whole.quantiles(np.array([place + 1]), 24)[:, 0])


@cache
def bounds_of(name: str) -> Array:
    """Quantiles by level, origin from the end of the second day on, and hour; NaN where too few errors are known."""
    values = TROUBLES[name]
    return Forecaster(series(values), ahead_seconds=HOUR, since=48).quantiles(np.arange(48, len(values) + 1), 24)


@pytest.mark.parametrize("name", TROUBLES)
def test_quantiles_stay_sane_whatever_comes(name: str) -> None:
    bounds = bounds_of(name)
    known = np.isfinite(bounds).all(axis=(0, 2))
    highest = np.fmax.accumulate(TROUBLES[name])[47:]
    assert known[-5:].all()
    assert (bounds[:, known] >= 0).all()
    assert (np.diff(bounds[:, known], axis=0) >= 0).all()
    assert (bounds[:, known].max(axis=(0, 2)) <= 3 * np.maximum(highest, 1.0)[known] * (1 + 1e-12)).all()


@pytest.mark.parametrize(("name", "usual"), [("begins late", 1.0), ("stops and comes back", 1.0), ("ten times", 10.0)])
def test_forecast_recovers_after_break(name: str, usual: float) -> None:
    assert np.abs(bounds_of(name)[1, -73:-1, 0] - TROUBLES[name][-72:]).mean() < 25 * usual


def test_a_holiday_is_forecast_like_a_sunday() -> None:
    hours = np.arange(24 * 29)
    values = np.where(hours // 24 % 7 == 6, 20.0, 100.0) + wave(29, level=5.0)
    known = MONDAY + 28 * DAY
    usual = Forecaster(series(values[: 24 * 28]), ahead_seconds=HOUR).path(24)
    holiday = Forecaster(series(values[: 24 * 28]), ahead_seconds=HOUR, sundays=(date(2023, 12, 18),)).path(24)
    assert usual.start == known
    assert holiday.quantiles[1, 6:].mean() < 0.8 * usual.quantiles[1, 6:].mean()


@pytest.mark.parametrize("days", [2, 4, 9])
def test_repeated_hour_is_harmless(days: int) -> None:
    # On 2023-10-29 at 03:00 the clock in Berlin goes back to 02:00.
    change = 1_698_541_200.0
    values = wave(days + 3)
    start = change - days * DAY - 6 * HOUR
    one = Forecaster(series(values[: days * 24], start=start, zone="Europe/Berlin"), ahead_seconds=HOUR)
    for value in values[days * 24 :]:
        one.step(float(value))
        path = one.path(24)
        assert path is None or path.quantiles.max() < 3 * values.max()


def test_leads_are_bounded_by_six_bins() -> None:
    values = wave(3)
    leads = {seconds: begun(values, 3, ahead=seconds).leads for seconds in (60.0, HOUR, HOUR + 1, 4 * HOUR, DAY)}
    assert leads == {60.0: 1, HOUR: 1, HOUR + 1: 2, 4 * HOUR: 4, DAY: 6}


@pytest.mark.parametrize("hours", [6, 8, 12])
def test_long_bins_wait_for_enough(hours: int) -> None:
    per_day = 24 // hours
    values = wave(20, bin_seconds=hours * HOUR)
    one = Forecaster(series(values[: 2 * per_day], bin_seconds=hours * HOUR), ahead_seconds=DAY)
    assert not one.trained
    for value in values[2 * per_day :]:
        one.step(float(value))
    path = one.path(per_day)
    assert (path.method, one.leads) == (COMBINATION, min(6, per_day))


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


def predict(values: Array, first: int, lead: int = 1) -> Array:
    return Regression(Outlook(past_of(values)), lead).forecast(np.arange(first, len(values) - lead + 1))


def test_regression_beats_last_value_on_swings() -> None:
    values = wave(14) * np.where(np.arange(14 * 24) % 2, 0.5, 1.5)
    found, actual = predict(values, 240), values[240:]
    assert np.abs(found - actual).mean() < 0.5 * np.abs(values[239:-1] - actual).mean()


def test_single_wild_bins_hardly_move_it() -> None:
    values = wave(14)
    wild = values.copy()
    wild[np.arange(50, 140, 15)] *= 30
    usual, found = predict(values, 300), predict(wild, 300)
    assert np.abs(found - usual).mean() < 0.15 * usual.mean()


def test_stepwise_equals_batch() -> None:
    values = wave(6)
    past = past_of(values[:100])
    regression, one_by_one = Regression(Outlook(past), 1), []
    for value in values[100:]:
        one_by_one.append(regression.forecast(np.array([len(past)]))[0])
        past.append(float(value))
    assert one_by_one == pytest.approx(predict(values, 100), nan_ok=True)


def test_unlearnt_regression_is_silent() -> None:
    values = np.concatenate([wave(5), np.zeros(48)])
    found = predict(values, 30)
    assert np.isnan(found[:18]).all()
    assert np.isfinite(found[-24:]).all()
    assert np.nanmin(found) >= 0


SCALES = ((0.0, True), (0.5, True), (1.0, True))
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
    wild, parts = np.random.default_rng(1).pareto(0.7, 24 * 30), (slice(0, 12), slice(12, 24))
    bounds = horizon(wild, 5.0, leads=24, parts=parts, scales=SCALES).quantiles(np.arange(200, 700))
    assert (np.diff(bounds, axis=0) >= 0).all()
    assert bounds.min() >= 0.0
    assert bounds.max() <= 3 * wild.max()


def test_recent_scale_follows_growing_errors() -> None:
    growing = 100.0 + (NOISE - 100.0) * np.linspace(0.3, 3.0, len(NOISE))
    origins = np.arange(24 * 20, 24 * 40)
    for is_recent, coverage in ((False, 0.904), (True, 0.95)):
        bounds = horizon(growing, 100.0, scales=((0.5, is_recent),), error_days=14).quantiles(origins)[2, :, 0]
        assert (growing[origins] <= bounds).mean() == pytest.approx(coverage, abs=0.012)


def test_scale_that_served_badly_is_left_out() -> None:
    usual = wave(41)
    steady, origins = usual[: 24 * 40] + np.random.default_rng(5).normal(0.0, 5.0, 24 * 40), np.arange(24 * 30, 24 * 40)

    def members(origins: Integers, leads: Integers) -> Array:
        return usual[origins[:, None] + leads - 1, None]

    widths = []
    for scales in (SCALES[:1], SCALES[2:], SCALES):
        bounds = Horizon(past_of(steady), members, np.array([1]), first=24, scales=scales).quantiles(origins)[:, :, 0]
        busy = bounds[1] > 140
        widths.append(float((bounds[2] - bounds[1])[busy].mean()))
    assert widths == pytest.approx([8.3, 18.4, 10.4], abs=0.5)


def test_quantiles_cover_methods_that_disagree() -> None:
    bounds = horizon(NOISE, 50.0, 150.0).quantiles(np.array([24 * 40]))[:, 0, 0]
    assert 80.0 < bounds[1] < 120.0
    assert bounds[2] == pytest.approx(150.0)


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
