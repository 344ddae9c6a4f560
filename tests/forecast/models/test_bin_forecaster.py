"""The forecaster of a series: which method answers when, and sane quantiles whatever comes."""

from datetime import date
from functools import cache

import numpy as np
import pytest
from forecast_traffic import DAY, HOUR, MONDAY, series, wave

from forecast.models.bin_forecaster import COMBINATION, Forecaster, Path
from forecast.models.methods import SAME_AS_NOW
from forecast.series.binned import Array

GAP = float("nan")


def lines(path: Path | None) -> Array:
    return path.quantiles


def begun(values: Array, days: float, **more: float) -> Forecaster:
    return Forecaster(series(values[: round(days * 24)]), ahead_seconds=more.get("ahead", HOUR))


def followed(values: Array, days: float, *, ahead: float = HOUR) -> list[Path | None]:
    """The path after each bin from `days` on, the first one before any."""
    one = begun(values, days, ahead=ahead)
    said = [one.path(24)]
    for value in values[round(days * 24) :]:
        one.step(float(value))
        said.append(one.path(24))
    return said


def test_path_begins_after_last_bin() -> None:
    one = begun(wave(5), 5)
    path = one.path(6)
    assert (path.start, path.bin_seconds) == (MONDAY + 5 * DAY, HOUR)
    assert lines(path).shape == (4, 6)
    assert lines(one.path(99)).shape == (4, 24)


def test_past_equals_stepwise_paths() -> None:
    values = wave(12)
    whole = Forecaster(series(values), ahead_seconds=2 * HOUR, since=240)
    one = Forecaster(series(values[:240]), ahead_seconds=2 * HOUR, since=240)
    for origin in range(240, 289):
        assert lines(one.path(2)) == pytest.approx(whole.quantiles(np.array([origin]), 2)[:, 0])
        if origin < 288:
            one.step(float(values[origin]))


def test_combination_follows_little_history() -> None:
    said = followed(wave(5), 1 / 24)
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
    promised: list[tuple[float, float, float]] = []
    for place, value in enumerate(values[166:], start=166):
        path = one.path(3)
        promised.append((path.quantiles[1, 2], path.quantiles[2, 2], values[place - 1]))
        one.step(float(value))
    came = values[168:]
    q50, q95, now = np.array(promised[: len(came)]).T
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


@cache
def followed_through(name: str) -> list[Path | None]:
    return followed(TROUBLES[name], 2)


@pytest.mark.parametrize("name", TROUBLES)
def test_quantiles_stay_sane_whatever_comes(name: str) -> None:
    values = TROUBLES[name]
    for place, path in enumerate(followed_through(name)):
        if path is not None:
            four = lines(path)
            assert np.isfinite(four).all()
            assert (four >= 0).all()
            assert (np.diff(four, axis=0) >= 0).all()
            assert four.max() <= 3 * max(np.nanmax(values[: 48 + place]), 1.0) * (1 + 1e-12)


@pytest.mark.parametrize(("name", "usual"), [("begins late", 1.0), ("stops and comes back", 1.0), ("ten times", 10.0)])
def test_forecast_recovers_after_break(name: str, usual: float) -> None:
    values = TROUBLES[name]
    said = followed_through(name)
    error = [
        abs(path.quantiles[1, 0] - values[48 + place])
        for place, path in enumerate(said[-73:-1], start=len(said) - 73)
        if path
    ]
    assert len(error) == 72
    assert np.mean(error) < 25 * usual


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
        assert one.path(24) is None or lines(one.path(24)).max() < 3 * values.max()


def test_leads_are_bounded_by_six_bins() -> None:
    values = wave(3)
    leads = {seconds: begun(values, 3, ahead=seconds).leads for seconds in (60.0, HOUR, HOUR + 1, 4 * HOUR, DAY)}
    assert leads == {60.0: 1, HOUR: 1, HOUR + 1: 2, 4 * HOUR: 4, DAY: 6}


@pytest.mark.parametrize("hours", [6, 8, 12])
def test_long_bins_wait_for_enough(hours: int) -> None:
    per_day = 24 // hours
    values = wave(40, bin_seconds=hours * HOUR)
    one = Forecaster(series(values[: 2 * per_day], bin_seconds=hours * HOUR), ahead_seconds=DAY)
    assert not one.trained
    for value in values[2 * per_day :]:
        one.step(float(value))
    path = one.path(per_day)
    assert (path.method, one.leads) == (COMBINATION, min(6, per_day))
