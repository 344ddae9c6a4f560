"""Scores by hand, of bins that were seen, and intervals that know that neighbouring errors are no separate evidence."""

import numpy as np
import pytest

from forecast.backtest.scores import (
    MEASURES,
    Measure,
    Scored,
    ScoreSums,
    bootstrap_scores,
    compute_score,
    interval,
    ratio,
    score_walk,
    sums,
)
from forecast.backtest.walk import BacktestRun, MethodForecasts
from forecast.backtest.window import BacktestWindow
from forecast.models.methods import SAME_AS_NOW
from forecast.series.binned import Array, Series

NAN, HOUR = np.nan, 3600.0
wape, pinball, coverage = (MEASURES[name] for name in ("wape", "pinball", "coverage"))


def column(*values: float) -> Array:
    return np.array(values, dtype=np.float64)[:, None]


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        (wape, 6 / 60),
        # 5 below, 2 above, 10 below; three bins, a mean of 20.
        (pinball, 100 * (0.05 * 5 + 0.95 * 2 + 0.05 * 10) / 3 / 20),
        (coverage, 2 / 3),
    ],
)
def test_scores_are_worked_out_by_hand(measure: Measure, expected: float) -> None:
    found = sums(column(10, 20, 30, NAN), column(12, 16, 30, 5), column(15, 18, 40, 9), 20.0)
    assert compute_score(found, measure) == pytest.approx(expected)
    assert compute_score(sums(column(NAN), column(1), column(2), 1.0), measure) is None
    assert compute_score(sums(column(10), column(9), column(10), 10.0), coverage) == 1.0


def test_missing_quantile_counts_for_wape_only() -> None:
    found = sums(column(10, 20), column(9, 20), column(NAN, 20), 15.0)
    assert compute_score(found, wape) == pytest.approx(1 / 30)
    assert compute_score(found, coverage) == 1.0


def persistent(days: int, seed: int = 2) -> ScoreSums:
    """Each day is covered wholly or hardly at all."""
    good = np.random.default_rng(seed).random(days) < 0.7
    covered = np.repeat(np.where(good, 1.0, 0.2), 24)
    one = np.ones(len(covered))
    return ScoreSums(errors=one, amounts=one, losses=one, covered=covered, bounded=one, targets=one, mean=1.0)


def test_whole_days_are_drawn() -> None:
    found = persistent(60)
    by_day, by_hour = interval(bootstrap_scores(found, coverage, 24)), interval(bootstrap_scores(found, coverage, 1))
    assert by_day[1] - by_day[0] > 3 * (by_hour[1] - by_hour[0])


def test_interval_holds_as_often_as_stated() -> None:
    held = 0
    for seed in range(100):
        found = interval(bootstrap_scores(persistent(60, seed), coverage, 24, draws=300))
        held += found[0] <= 0.7 * 1.0 + 0.3 * 0.2 <= found[1]
    assert 84 <= held <= 99


def test_end_days_count_fully() -> None:
    covered = np.zeros(96)
    covered[:24] = 1.0
    one = np.ones(96)
    found = ScoreSums(errors=one, amounts=one, losses=one, covered=covered, bounded=one, targets=one, mean=1.0)
    assert bootstrap_scores(found, coverage, 24).mean() == pytest.approx(0.25, abs=0.02)


def test_single_day_has_no_interval() -> None:
    found = persistent(1)
    assert interval(bootstrap_scores(found, coverage, 24)) is None


@pytest.mark.parametrize(
    ("value", "naive", "expected"), [(1.0, 2.0, 0.5), (None, 2.0, None), (1.0, None, None), (1.0, 0.0, None)]
)
def test_ratio_needs_erring_naive_method(value: float | None, naive: float | None, expected: float | None) -> None:
    assert ratio(value, naive) == expected


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
