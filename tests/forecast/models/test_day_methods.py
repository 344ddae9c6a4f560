"""The simple methods for the day ahead, by hand where the answer is known."""

import numpy as np
import pytest
from forecast_traffic import past_of, wave

from forecast.models.features import QUICK, STEADY, Profiles
from forecast.models.simple_methods import DAY_METHODS, LAST_WEEK, PROFILE, USUAL_DAY, DayMethodInput, SlowSeason, paths
from forecast.series.binned import Array
from forecast.series.observed import ObservedBins

DAY = 100 + 50 * np.sin(2 * np.pi * np.arange(24) / 24)


def asked(past: ObservedBins, origins: list[int]) -> DayMethodInput:
    first = len(past) - (len(past) - 24) // 24 * 24
    return DayMethodInput(
        past, Profiles(past, QUICK, first), Profiles(past, STEADY, first), SlowSeason(past), np.array(origins)
    )


def of(said: Array, family: str) -> Array:
    found: Array = said[0][:, [name == family for name, _ in DAY_METHODS]].T
    return found


def test_days_that_repeat_are_known_by_all() -> None:
    said = paths(asked(past_of(np.tile(DAY, 16)), [370]))
    assert said.shape == (1, 24, len(DAY_METHODS))
    assert said[0] == pytest.approx(np.repeat(np.roll(DAY, -10)[:, None], len(DAY_METHODS), axis=1), abs=2.01)


def test_last_week_is_last_week_and_the_day_before_where_there_is_none() -> None:
    values = wave(15)
    past = past_of(values)
    assert of(paths(asked(past, [340])), LAST_WEEK)[0].tolist() == values[340 - 168 : 340 - 144].tolist()
    assert of(paths(asked(past, [100])), LAST_WEEK)[0].tolist() == values[76:100].tolist()
    partly = of(paths(asked(past, [160])), LAST_WEEK)[0]
    assert partly[:8].tolist() == values[136:144].tolist()
    assert partly[8:].tolist() == values[:16].tolist()


@pytest.mark.parametrize(("times", "root"), [(1.44, 1.2), (100.0, 3.0**0.5), (0.01, 0.3**0.5)])
def test_last_week_is_levelled_by_the_root_of_how_the_last_day_compares(times: float, root: float) -> None:
    values = np.tile(DAY, 16)
    values[-24:] *= times
    plain, levelled = of(paths(asked(past_of(values), [384])), LAST_WEEK)
    assert levelled == pytest.approx(plain * root)


def test_the_usual_day_is_the_median_of_the_last_seven() -> None:
    values = np.repeat([900.0, 1.0, 2.0, 3.0, 4.0, 50.0, 60.0, 70.0], 24)
    assert of(paths(asked(past_of(values), [192])), USUAL_DAY)[0].tolist() == [4.0] * 24
    assert of(paths(asked(past_of(values[:72]), [72])), USUAL_DAY)[0].tolist() == [2.0] * 24


def test_the_level_of_lately_fades_to_the_profile() -> None:
    values = np.tile(DAY, 17)
    values[-8:-1] *= 2.0
    said = of(paths(asked(past_of(values), [407])), PROFILE)
    usual = np.resize(DAY, 500)[407 : 407 + 24]
    hour = said[0] / usual
    assert hour[0] == pytest.approx(2**0.5 ** (1 / 3), rel=0.03)
    assert hour[-1] == pytest.approx(1.0, abs=0.04)
    two_hours = said[1] / usual
    assert two_hours[5] == pytest.approx(2**0.5, rel=0.03)
    shifted = said[4] - usual
    behind = np.resize(DAY, 500)[404:407].mean()
    assert shifted[[0, 11]] == pytest.approx(behind * 0.5 ** (np.array([1, 12]) / 6))


def test_nothing_is_below_zero_or_unknown_where_there_is_no_traffic() -> None:
    stopped = wave(12)
    stopped[200:] = 0.0
    for past in (past_of(np.zeros(288)), past_of(stopped)):
        said = paths(asked(past, [60, 210, 250, 288]))
        assert np.isfinite(said).all()
        assert (said >= 0).all()


def test_nothing_after_an_origin_changes_its_path() -> None:
    values = wave(10)
    other = np.concatenate([values[:200], values[200:] * 5])
    origins = [50, 120, 199, 200]
    assert np.array_equal(paths(asked(past_of(values), origins)), paths(asked(past_of(other), origins)))
    assert not np.array_equal(paths(asked(past_of(values), [201])), paths(asked(past_of(other), [201])))


def test_the_slow_season_says_the_same_whether_asked_often_or_once() -> None:
    past = past_of(wave(10))
    often, once = SlowSeason(past), SlowSeason(past)
    steps = [often.paths(np.array([origin]))[0] for origin in (60, 61, 100, 240)]
    assert np.array_equal(steps[-1], once.paths(np.array([240]))[0])
    assert np.array_equal(steps[2], SlowSeason(past).paths(np.array([60, 100]))[1])


def test_four_of_the_paths_are_of_the_steady_profile() -> None:
    values = np.concatenate([wave(8) * 3, wave(4)])
    past = past_of(values)
    both, quick = asked(past, [280]), asked(past, [280])
    changed = (paths(both) != paths(quick._replace(steady=quick.quick, slow=SlowSeason(past)))).any(axis=(0, 1))
    assert np.flatnonzero(changed).tolist() == [8, 9, 10, 11]
