"""A history tried as the published baselines try it: which minutes are the test, and that nothing ahead is known in it."""

from dataclasses import replace

import numpy as np
import pytest

from forecast.capacity.simulation import Choice, PolicyComparison
from forecast.capacity.simulation_history import (
    PEAK_REPLICAS,
    Interpolation,
    ShortHistoryError,
    prepare_trial,
    run_trial,
)
from forecast.lead.online import profile_outlook
from forecast.series.binned import Array, Series
from rules.catalogue.registry import margin_of


def series(days: int, minutes: int, *, noise: float = 0.1, seed: int = 1) -> Series:
    random = np.random.default_rng(seed)
    per_day = 1440 // minutes
    place = np.arange(days * per_day)
    values = 1000 * (1.5 + np.sin(2 * np.pi * place / per_day)) * random.lognormal(0, noise, len(place))
    return Series(start=0.0, bin_seconds=60.0 * minutes, values=values)


@pytest.mark.parametrize(
    ("minutes", "days", "test_days", "beyond"), [(5, 14, 4, 20), (10, 14, 4, 20), (30, 25, 14, 60), (60, 25, 14, 120)]
)
def test_the_test_is_the_last_days_and_the_longer_ones_for_coarse_bins(
    minutes: int, days: int, test_days: int, beyond: int
) -> None:
    found = prepare_trial(series(days, minutes))
    assert found.test_start == (days - test_days) * 1440
    assert found.test_end == days * 1440 - beyond
    assert len(found.minutes) == days * 1440
    assert found.bin_minutes == minutes


def test_a_long_history_is_cut_to_thirty_days_before_the_test() -> None:
    assert prepare_trial(series(50, 60)).test_start == 30 * 1440


def test_minutes_of_its_own_are_taken_as_they_are() -> None:
    own = series(10, 1)
    values = own.values.copy()
    values[100:103] = np.nan
    found = prepare_trial(Series(start=0.0, bin_seconds=60.0, values=values), Interpolation.STEP)
    assert found.between is Interpolation.NATIVE
    assert found.bin_minutes == 5
    assert found.minutes[103:2000] * 60.0 == pytest.approx(values[103:2000])
    assert np.isfinite(found.minutes[100:103]).all()


def test_too_short_a_history_says_what_is_needed() -> None:
    with pytest.raises(ShortHistoryError, match=r"8\.0 days are too short: the test takes 4 and 5 must be before it"):
        prepare_trial(series(8, 5))


def test_regular_traffic_is_worth_pre_warming_and_costs_little_more_than_foresight() -> None:
    found = run_trial(prepare_trial(series(14, 10, noise=0.02)), 3)
    assert found.worth.choice is Choice.PREWARM
    assert found.before.choice is Choice.PREWARM
    assert found.worth.relative_cost < 1.15
    assert found.worth.prewarmed.violated < 0.005
    assert found.worth.static.most_replicas == PEAK_REPLICAS
    assert found.covered > 0.99


def test_the_margin_changes_no_figure_but_its_own() -> None:
    history = prepare_trial(series(14, 10))
    bare, roomy = run_trial(history, 3).worth, run_trial(history, 3, margin=margin_of()).worth
    assert bare.with_margin == bare.prewarmed
    assert replace(roomy, with_margin=bare.prewarmed) == bare
    assert roomy.with_margin.violated < bare.prewarmed.violated
    # A tenth of each replica stays free, rounded up to whole ones of 40 at most.
    assert roomy.margin_cost == pytest.approx(1 / 0.9, abs=0.02)


def test_traffic_that_is_noise_from_minute_to_minute_is_as_well_reacted_to() -> None:
    random = np.random.default_rng(3)
    quiet = 10.0 + 30.0 * (random.random(10 * 1440) < 0.004)
    for start in np.flatnonzero(quiet > 20):
        quiet[start : start + 5] = 40.0
    found = run_trial(prepare_trial(Series(start=0.0, bin_seconds=60.0, values=quiet)), 3)
    assert found.worth.saving < 0.1


def test_what_is_said_before_the_test_does_not_know_it() -> None:
    history = series(10, 10)
    other = history.values.copy()
    other[6 * 144 :] = other[6 * 144 :][::-1]
    peak = 2 * other.max()

    def before(values: Array) -> PolicyComparison:
        given = values.copy()
        given[6 * 144 + 200] = peak
        return run_trial(
            prepare_trial(Series(start=0.0, bin_seconds=600.0, values=given), Interpolation.STEP), 3
        ).before

    assert before(history.values) == before(other)


def test_an_outlook_of_one_s_own_is_asked_for_every_minute() -> None:
    asked: list[tuple[int, int, int, int]] = []

    def own(bins: Array, width: int, lead: int, minutes: int) -> object:
        asked.append((len(bins), width, lead, minutes))
        return profile_outlook(bins, width, lead, minutes)

    history = prepare_trial(series(10, 10))
    run_trial(history, 5, outlooks=own)  # type: ignore[arg-type]
    assert asked == [(1440, 10, 5, history.test_end + 1)]


def test_a_test_without_demand_has_nothing_to_scale() -> None:
    history = series(10, 10)
    history.values[6 * 144 - 1 :] = 0.0
    with pytest.raises(ShortHistoryError, match="nothing was asked"):
        run_trial(prepare_trial(history), 3)
