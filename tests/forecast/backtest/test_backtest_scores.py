"""Which forecasts are compared: of bins that were seen, and for a ratio those that both methods made."""

import numpy as np
import pytest

from forecast.backtest.scores import Scored, score_walk
from forecast.backtest.walk import BacktestRun, MethodForecasts
from forecast.backtest.window import BacktestWindow
from forecast.models.methods import SAME_AS_NOW
from forecast.series.binned import Array, Series

NAN = np.nan
HOUR = 3600.0


def said(method: str, middle: list[float], upper: list[float], lone: bool = True) -> MethodForecasts:
    """Forecasts of bins 4 to 7: one a bin, or one path of them all."""
    rows: Array = np.array([middle, middle, upper, upper], dtype=np.float64)
    return MethodForecasts(
        method=method,
        horizon_seconds=HOUR,
        origins=np.arange(4, 8) if lone else np.array([4]),
        leads=np.array([1]) if lone else np.arange(1, 5),
        quantiles=rows[:, :, None] if lone else rows[:, None, :],
    )


def of(*forecasts: MethodForecasts, came: tuple[float, ...] = (10.0, 10.0, 10.0, 10.0)) -> tuple[Scored, ...]:
    series = Series(start=0.0, bin_seconds=HOUR, values=np.array([1.0, 1.0, 1.0, 1.0, *came]))
    window = BacktestWindow(series=series, test=4, per_day=24, little=False)
    return score_walk(BacktestRun(window=window, forecasts=forecasts, notes=()))


def test_ratio_needs_both_forecasts() -> None:
    naive = said(SAME_AS_NOW, [NAN, 8.0, 8.0, 8.0], [NAN, NAN, 12.0, 12.0])
    ours = said("ours", [0.0, 9.0, 9.0, 9.0], [99.0, 99.0, 11.0, 11.0])
    _, found = of(naive, ours)
    assert found.values["wape"] == pytest.approx((10 + 3) / 40)
    assert found.values["wape_ratio"] == pytest.approx(3 / 6)
    assert found.values["pinball_ratio"] == pytest.approx(1 / 2)


def test_ratio_ignores_unanswered_naive_forecasts() -> None:
    naive = said(SAME_AS_NOW, [0.0, 8.0, 8.0, 8.0], [99.0, 12.0, 12.0, 12.0])
    _, found = of(naive, said("ours", [NAN, 9.0, 9.0, 9.0], [NAN, 11.0, 11.0, 11.0]))
    assert found.values["wape_ratio"] == pytest.approx(3 / 6)
    assert found.values["pinball_ratio"] == pytest.approx(1 / 2)


def test_no_naive_method_means_no_ratio() -> None:
    (found,) = of(said("ours", [9.0] * 4, [11.0] * 4))
    assert found.values["wape"] == pytest.approx(0.1)
    assert found.values["wape_ratio"] is None
    assert found.interval("wape_ratio") is None


def test_unseen_test_has_no_scores() -> None:
    (found,) = of(said("ours", [9.0] * 4, [11.0] * 4), came=(NAN,) * 4)
    assert found.targets == 0
    assert set(found.values.values()) == {None}


def test_pinball_is_percent_of_mean() -> None:
    (found,) = of(said("ours", [9.0] * 4, [12.0] * 4), came=(10.0, 10.0, 10.0, 20.0))
    assert found.values["pinball"] == pytest.approx(100 * (3 * 0.05 * 2 + 0.95 * 8) / 4 / 12.5)
