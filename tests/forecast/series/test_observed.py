"""The bins so far: what is filled is no observation, sums and slots are those of the bins, nothing beyond the last."""

import numpy as np
import pytest
from forecast_traffic import DAY, HOUR, MONDAY, past_of, series, wave

from forecast.series.observed import NoObservationsError, ObservedBins

GAP = np.nan


def test_series_begins_at_first_seen_bin() -> None:
    past = past_of(np.array([GAP, GAP, 3.0, 4.0]))
    assert (past.start, len(past), past.end) == (MONDAY + 2 * HOUR, 2, MONDAY + 4 * HOUR)
    assert past.values.tolist() == [3.0, 4.0]
    assert (past.per_day, past.per_week) == (24, 168)


def test_missing_bin_is_filled_by_earlier() -> None:
    values = np.arange(1.0, 51.0)
    values[[5, 6, 24, 30]] = GAP
    past = past_of(values)
    assert past.values[[5, 6]].tolist() == [5.0, 5.0]
    assert past.values[[24, 30]].tolist() == [1.0, 5.0]
    assert np.flatnonzero(np.isnan(past.actual)).tolist() == [5, 6, 24, 30]


def test_appended_bins_equal_longer_series() -> None:
    values = wave(9)
    values[[30, 31, 100, 150]] = GAP
    whole, grown = past_of(values), past_of(values[:3])
    for value in values[3:]:
        grown.append(float(value))
    ends = np.arange(len(values) + 1)
    assert np.array_equal(whole.values, grown.values)
    assert np.array_equal(whole.actual, grown.actual, equal_nan=True)
    assert np.array_equal(whole.mean(ends, 5), grown.mean(ends, 5), equal_nan=True)
    assert (len(grown), grown.end) == (len(whole), whole.end)


def test_mean_is_of_bins_before_end() -> None:
    past = past_of(np.array([1.0, 2.0, 3.0, 10.0]))
    assert past.mean(np.array([2, 3, 4]), 2).tolist() == [1.5, 2.5, 6.5]
    assert np.isnan(past.mean(np.array([1, 5]), 2)).all()
    assert past.mean(np.array([3, 4]), np.array([3, 1])).tolist() == [2.0, 10.0]


def test_amounts_outside_are_unknown() -> None:
    past = past_of(np.array([1.0, 2.0]))
    assert past.values_at(np.array([0, 1])).tolist() == [1.0, 2.0]
    assert np.isnan(past.values_at(np.array([-1, 2]))).all()
    assert np.isnan(past_of(np.array([1.0, GAP])).actual_at(np.array([-1, 1, 2]))).all()


def test_seconds_are_whole_bins() -> None:
    past = past_of(wave(1), bin_seconds=900.0)
    assert [past.bins(seconds) for seconds in (1.0, 900.0, 1799.0, 3600.0)] == [1, 1, 1, 4]


def test_slots_follow_zone_beyond_end() -> None:
    assert past_of(wave(1)).slots(170).tolist() == [*range(168), 0, 1]
    # On 2023-03-26 the clock in Berlin goes from 02:00 to 03:00; the series begins at 00:00 of that Sunday.
    berlin = ObservedBins(series(wave(2), start=1_679_785_200.0, zone="Europe/Berlin"))
    assert berlin.slots(5).tolist() == [144, 145, 147, 148, 149]


@pytest.mark.parametrize("bin_seconds", [7 * HOUR, 1000.0, 2 * DAY])
def test_uneven_bins_are_refused(bin_seconds: float) -> None:
    with pytest.raises(ValueError, match="do not divide a day"):
        past_of(np.ones(3), bin_seconds=bin_seconds)


def test_a_series_without_an_observation_is_refused() -> None:
    with pytest.raises(NoObservationsError):
        past_of(np.full(30, GAP))


@pytest.mark.parametrize("value", [-1.0, float("inf")])
def test_an_amount_that_is_none_is_refused(value: float) -> None:
    past = past_of(wave(1))
    with pytest.raises(ValueError, match="finite and not negative"):
        past.append(value)
    assert len(past) == 24


def test_no_traffic_is_an_observation() -> None:
    past = past_of(np.array([3.0]))
    past.append(0.0)
    past.append(float("nan"))
    assert past.values.tolist() == [3.0, 0.0, 0.0]
    assert past.actual[:2].tolist() == [3.0, 0.0]
    assert np.isnan(past.actual[2])
