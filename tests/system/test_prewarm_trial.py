"""A history tried as the published baselines try it: which minutes are the test, and that nothing ahead is known in it."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from paths import ROOT

from forecast.capacity.simulation import Choice, Outcome, PolicyComparison
from forecast.series.binned import Array, Series
from rules.catalogue.registry import margin_of

sys.path.append(str(ROOT / "benchmarks"))
from prewarm_trial import (
    PEAK_REPLICAS,
    Interpolation,
    ShortHistoryError,
    TrialResult,
    hours_at,
    prepare_trial,
    run_trial,
)


def outcome(violated: float, hours: float) -> Outcome:
    return Outcome(violated=violated, late=violated / 4, replica_hours=hours, missing_hours=0.0, most_replicas=9)


REACTING = ((0.4, outcome(0.0, 24)), (0.45, outcome(0.01, 16)), (0.5, outcome(0.03, 18)), (0.55, outcome(0.05, 10)))


def tried(
    prewarmed: Outcome,
    *bolder: Outcome,
    reacting: tuple[tuple[float, Outcome], ...] = REACTING,
    with_margin: Outcome | None = None,
) -> TrialResult:
    worth = PolicyComparison(
        static=outcome(0.0, 40),
        reacting=reacting,
        chosen=0.45,
        prewarmed=prewarmed,
        with_margin=with_margin or prewarmed,
        foresight=outcome(0.0, 10),
        late_to_warm=100.0,
    )
    return TrialResult(worth=worth, before=worth, bolder=bolder, covered=1.0)


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
    assert found.relative_cost < 1.15
    assert found.worth.prewarmed.violated < 0.005
    assert found.worth.static.most_replicas == PEAK_REPLICAS
    assert found.covered > 0.99


def test_the_margin_changes_no_figure_but_its_own() -> None:
    history = prepare_trial(series(14, 10))
    tried_roomy = run_trial(history, 3, margin=margin_of())
    bare, roomy = run_trial(history, 3).worth, tried_roomy.worth
    assert bare.with_margin == bare.prewarmed
    assert replace(roomy, with_margin=bare.prewarmed) == bare
    assert roomy.with_margin.violated < bare.prewarmed.violated
    # A tenth of each replica stays free, rounded up to whole ones of 40 at most.
    assert tried_roomy.margin_cost == pytest.approx(1 / 0.9, abs=0.02)


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


def test_a_test_without_demand_has_nothing_to_scale() -> None:
    history = series(10, 10)
    history.values[6 * 144 - 1 :] = 0.0
    with pytest.raises(ShortHistoryError, match="nothing was asked"):
        run_trial(prepare_trial(history), 3)


@pytest.mark.parametrize(
    ("violated", "hours"), [(0.0, 24), (0.005, 20), (0.01, 16), (0.02, 14.5), (0.03, 13), (0.05, 10), (0.5, 10)]
)
def test_the_frontier_is_straight_between_outcomes_that_no_other_beats(violated: float, hours: float) -> None:
    assert hours_at(tuple(one for _, one in REACTING), violated) == pytest.approx(hours)


def test_at_equal_violations_reacting_has_its_best_in_hindsight() -> None:
    assert tried(outcome(0.005, 15)).equal_saving == pytest.approx(0.25)
    assert tried(outcome(0.005, 21)).equal_saving == pytest.approx(-0.05)


def test_where_reacting_cannot_be_as_careful_ours_is_priced_at_what_it_can() -> None:
    reckless = REACTING[1:]
    both = tried(outcome(0.002, 30), outcome(0.02, 8), reacting=reckless)
    assert both.equal_violated == pytest.approx(0.01)
    assert both.equal_hours == (pytest.approx(30 - 22 * 8 / 18), 16)
    assert both.equal_saving < 0
    assert tried(outcome(0.002, 20), outcome(0.006, 12), reacting=reckless).equal_saving > 0.02


def test_without_any_outcome_there_is_no_frontier() -> None:
    with pytest.raises(ValueError, match="no policy"):
        hours_at((), 0.1)


def test_the_margin_has_a_cost_of_its_own_and_no_comparison_rests_on_it() -> None:
    bare, roomy = outcome(0.005, 15), outcome(0.0, 18)
    found, without = tried(bare, with_margin=roomy), tried(bare)
    assert (found.relative_cost, found.relative_cost_with_margin) == (pytest.approx(1.5), pytest.approx(1.8))
    assert found.margin_cost == pytest.approx(1.2)
    assert found.relative_cost * found.margin_cost == pytest.approx(found.relative_cost_with_margin)
    assert (found.equal_saving, found.equal_violated) == (without.equal_saving, without.equal_violated)
    compared = ("choice", "saving", "sentence")
    assert [getattr(found.worth, name) for name in compared] == [getattr(without.worth, name) for name in compared]
