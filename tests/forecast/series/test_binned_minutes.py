"""Minutes between bins: each way adds up to what its bins said, and a gap is filled for a simulation only."""

import numpy as np
import pytest

from forecast.series.binned import Array, Series, bin_minutes, per_minute, rates


def series(values: list[float] | Array, seconds: float = 600.0) -> Series:
    return Series(start=0.0, bin_seconds=seconds, values=np.asarray(values, dtype=np.float64))


def test_lines_join_the_middles() -> None:
    assert per_minute(np.array([1.0, 2.0]), 4) == pytest.approx([1, 1, 1.125, 1.375, 1.625, 1.875, 2, 2])


def test_minute_bins_stay_unchanged() -> None:
    assert per_minute(np.array([3.0, 1.0]), 1).tolist() == [3.0, 1.0]


def test_missing_bin_is_yesterday_or_between() -> None:
    values = np.tile(np.arange(144.0), 2)
    values[[5, 144 + 7]] = np.nan
    found = rates(series(values)) * 600.0
    assert found[5] == pytest.approx(5.0)
    assert found[144 + 7] == pytest.approx(7.0)
    values[7] = np.nan
    assert rates(series(values))[144 + 7] * 600.0 == pytest.approx(7.0), "between what stands beside it"


def test_what_has_no_minutes_is_refused() -> None:
    for seconds in (90.0, 30.0, 7 * 60.0):
        with pytest.raises(ValueError, match="whole minutes"):
            bin_minutes(series([1.0], seconds))
    with pytest.raises(ValueError, match="no bin"):
        rates(series([np.nan, np.nan]))
