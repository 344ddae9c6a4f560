"""What an origin looks like: made of the bins before it only, in units that do not depend on how large a fleet is."""

import numpy as np
import pytest
from forecast_traffic import past_of, profiles_of, wave

from forecast.models.features import Features, build_features, first_origin
from forecast.series.binned import Array

SIGNALS = 19


def seen(values: Array, origins: list[int], lead: int = 1, bin_seconds: float = 3600.0) -> Features:
    past = past_of(values, bin_seconds=bin_seconds)
    return build_features(past, profiles_of(past), np.array(origins), lead)


def test_all_origins_from_the_first_on_have_their_level_and_scale() -> None:
    past = past_of(wave(3))
    origins = np.arange(first_origin(past), len(past) + 1)
    around = build_features(past, profiles_of(past), origins, 2)
    assert first_origin(past) == 24 + 3 + 2
    assert np.isfinite(around.level).all()
    assert (around.scale > 0).all()
    assert around.signals.shape == (len(origins), SIGNALS)


def test_nothing_after_an_origin_changes_what_it_looks_like() -> None:
    values = wave(4, bin_seconds=1800.0)
    other = values.copy()
    other[144:] = 5 * values[144:] + 3
    origins = list(range(70, 145))
    for lead in (1, 6):
        one, two = (seen(some, origins, lead, 1800.0) for some in (values, other))
        assert np.array_equal(one.signals, two.signals, equal_nan=True)
        assert np.array_equal(one.scale, two.scale)
    assert not np.array_equal(seen(values, [145], 1, 1800.0).level, seen(other, [145], 1, 1800.0).level)


def test_a_fleet_ten_times_as_large_looks_the_same() -> None:
    one, ten = seen(wave(16), [380]), seen(10 * wave(16), [380])
    assert ten.signals == pytest.approx(one.signals)
    assert ten.scale == pytest.approx(10 * one.scale)


def test_signals_by_hand_on_a_line() -> None:
    values = np.arange(400.0)
    around = seen(values, [390])
    level, daily = 389.0, np.arange(366.0, 390.0).mean()
    scale = 0.5 * (level + daily)
    assert around.level[0] == level
    assert around.scale[0] == pytest.approx(scale)
    signals = around.signals[0] * scale
    assert signals[:4] == pytest.approx([0.0, -1.0, -2.0, -3.0])
    assert signals[4:7] == pytest.approx([0.0, -1.0, daily - level])
    # Yesterday: what comes at the target beyond the bin before it, and that bin by now; then the last step, and last week.
    assert signals[11:18] == pytest.approx([1.0, -24.0, 0.0, 1.0, 1.0, -168.0, 1.0])
    assert signals[18] == pytest.approx(1.0)


@pytest.mark.parametrize("times", [1.0, 2.0, 100.0])
def test_what_the_profile_says_is_compared_with_what_came(times: float) -> None:
    values = np.tile(np.arange(1.0, 25.0), 15)
    values[345] *= times
    around = seen(values, [346], lead=2)
    # The last bin seen is the tenth of its day, the target the twelfth; the profile is of the days before.
    rise, ratio = 2.0, min(times, 5.0)
    assert around.signals[0, 7:11] * around.scale[0] == pytest.approx([rise, rise * ratio, 0.0, 10 - 10 * times])


def test_where_the_past_does_not_reach_signals_are_not_known() -> None:
    around = seen(wave(4), [90])
    assert np.isnan(around.signals[0, [15, 16]]).all()
    assert np.isfinite(np.delete(around.signals[0], [15, 16])).all()


def test_after_a_day_without_traffic_the_week_still_gives_the_scale() -> None:
    values = np.concatenate([np.full(24 * 6, 100.0), np.zeros(24)])
    around = seen(values, [168])
    assert around.scale[0] == pytest.approx(0.05 * 6 / 7 * 100)
    assert np.nanmax(np.abs(around.signals)) < 100


def test_without_any_traffic_one_request_is_the_scale() -> None:
    around = seen(np.zeros(72), [70, 72])
    assert around.scale.tolist() == [1.0, 1.0]
    assert np.nanmax(np.abs(around.signals)) == 0.0
