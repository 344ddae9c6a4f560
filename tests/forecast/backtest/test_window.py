"""What is tested, from where on, and what a series must hold for it."""

from dataclasses import replace

import numpy as np
import pytest
from forecast_traffic import DAY, HOUR, LATER_MONDAY, week

from forecast.backtest.window import CannotTest, ShortSeriesError, list_leads, window
from forecast.series.binned import Array, Series


@pytest.mark.parametrize(
    ("horizon", "bin_seconds", "expected"),
    [
        (900.0, 60.0, [15]),
        (900.0, 300.0, [3]),
        (900.0, 600.0, [2]),
        (900.0, 1800.0, [1]),
        (900.0, HOUR, [1]),
        (5 * HOUR, HOUR, [5]),
        (6 * HOUR, HOUR, [1, 2, 3, 4, 5, 6]),
        (DAY, 6 * HOUR, [1, 2, 3, 4]),
    ],
)
def test_horizon_is_a_lead_or_path(horizon: float, bin_seconds: float, expected: list[int]) -> None:
    assert list_leads(horizon, bin_seconds).tolist() == expected


@pytest.mark.parametrize("horizon", [0.0, -1.0, DAY + 1])
def test_other_horizons_cannot_be_tested(horizon: float) -> None:
    with pytest.raises(CannotTest, match="at most a day"):
        list_leads(horizon, HOUR)


def unseen(series: Series, first: int, last: int) -> Series:
    values = series.values.copy()
    values[first:last] = np.nan
    return replace(series, values=values)


@pytest.mark.parametrize(
    ("series", "days", "start", "test", "end"),
    [
        (week(20, 300.0), None, 0, 16 * 288, 20 * 288),
        (week(20, 1800.0), None, 0, 6 * 48, 20 * 48),
        (week(20), None, 0, 6 * 24, 20 * 24),
        (week(60), 5, 25 * 24, 30 * 24, 35 * 24),
        (unseen(week(10), 0, 30), 2, 30, 162, 210),
        *((week(days), None, 0, 6, 24 * days) for days in (1, 3, 4)),
    ],
)
def test_days_after_a_known_past_are_tested(series: Series, days: int | None, start: int, test: int, end: int) -> None:
    """The last four days, of long bins two weeks, with at most thirty before them; of little history all after six hours."""
    found = window(series, days)
    assert (found.series.start - LATER_MONDAY, found.test, len(found.series)) == (start * HOUR, test, end)
    assert found.little == (test == 6)


def test_origins_are_bins_or_six_hours_apart() -> None:
    found = window(week(10), 2)
    assert found.origins(list_leads(2 * HOUR, HOUR)).tolist() == list(range(8 * 24, 10 * 24 - 1))
    assert found.origins(list_leads(DAY, HOUR)).tolist() == list(range(8 * 24, 9 * 24 + 1, 6))
    assert found.day_of_origins(list_leads(DAY, HOUR)) == 4


def bins_of(values: Array, bin_seconds: float = HOUR) -> Series:
    return Series(start=LATER_MONDAY, bin_seconds=bin_seconds, values=values)


@pytest.mark.parametrize(
    ("series", "days", "error", "words"),
    [
        (week(7), 4, ShortSeriesError, r"needs 8 days .* has 7\.0: test at most 3$"),
        (week(12), 14, ShortSeriesError, r"needs 18 days .* has 12\.0: test at most 8$"),
        (week(5), 2, ShortSeriesError, r"needs 6 days .* has 5\.0: test at most 1$"),
        (bins_of(np.ones(11)), None, ShortSeriesError, r"has 11\.0 hours; a test needs 5 days, or 12 hours"),
        (bins_of(np.full(500, np.nan)), None, ShortSeriesError, "no bin"),
        (unseen(week(60), 24, 56 * 24), 4, ShortSeriesError, "nothing was seen in the 30 days before"),
        (bins_of(np.ones(9000), 420.0), None, CannotTest, "420 s do not divide a day"),
        *((bins_of(np.ones(900), n * HOUR), None, CannotTest, f"{n} hours are too long") for n in (8, 12, 24)),
        (week(20), 0, CannotTest, "0 days"),
    ],
)
def test_untestable_series_is_named(series: Series, days: int | None, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        window(series, days)
