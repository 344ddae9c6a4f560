"""The backtest: what is tested, no method sees what comes, naive rows are the published ones, scores are those by hand."""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from forecast_traffic import DAY, HOUR, LATER_MONDAY, series, week
from numpy.testing import assert_allclose, assert_array_equal
from paths import SHARED

from agent.forecasting.csv_series import read_trace
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
from forecast.backtest.walk import NAMES, BacktestRun, MethodForecasts, walk
from forecast.backtest.window import BacktestWindow, CannotTest, ShortSeriesError, list_leads, window
from forecast.models.bin_forecaster import COMBINATION, Forecaster
from forecast.models.methods import SAME_AS_LAST_WEEK, SAME_AS_NOW, SAME_AS_YESTERDAY
from forecast.series.binned import Array, Series, select_bins, truncate_at

TRACES = SHARED / "traces"
NEXT = 900.0
DAYS = 12
TESTED = 2


def by_name(found: tuple[Scored, ...], horizon: float) -> dict[str, Scored]:
    return {one.method: one for one in found if one.horizon_seconds == horizon}


@pytest.mark.parametrize("method", NAMES)
def test_future_changes_no_earlier_forecast(method: str) -> None:
    series = week(DAYS)
    changed = len(series) - 30
    values = series.values.copy()
    values[changed:] *= 1000.0
    values[changed + 5 : changed + 9] = np.nan
    before, after = (
        walk(one, [NEXT, DAY], methods=[method], test_days=TESTED) for one in (series, replace(series, values=values))
    )
    for old, new in zip(before.forecasts, after.forecasts, strict=True):
        known = old.origins <= changed
        assert known.sum() > 2
        assert_array_equal(old.quantiles[:, known], new.quantiles[:, known])
        if len(old.leads) == 1:
            # ... and those made after it know of it, or this test would tell nothing.
            assert (old.quantiles[:, ~known] != new.quantiles[:, ~known]).any()


@pytest.fixture(scope="module")
def everything() -> BacktestRun:
    return walk(week(DAYS), [NEXT, DAY], test_days=TESTED)


def test_ours_equals_the_online_forecaster(everything: BacktestRun) -> None:
    series, test = everything.window.series, everything.window.test
    forecaster = Forecaster(select_bins(series, end=test), ahead_seconds=NEXT, since=test)
    for value in series.values[test : test + 10]:
        forecaster.step(float(value))
    path = forecaster.path(24)
    ours = next(one for one in everything.forecasts if (one.method, one.horizon_seconds) == (COMBINATION, NEXT))
    row = int(np.flatnonzero(ours.origins == test + 10)[0])
    assert path.start == series.time(test + 10)
    assert_allclose(ours.quantiles[:, row, 0], path.quantiles[:, 0])


def test_missing_bin_is_not_scored() -> None:
    series = week(DAYS)
    values = series.values.copy()
    values[-10:-4] = np.nan
    found = walk(replace(series, values=values), [NEXT], methods=[SAME_AS_NOW], test_days=TESTED)
    assert found.forecasts[0].quantiles.shape == (4, 48, 1)
    assert score_walk(found)[0].targets == 42


def test_method_without_history_is_named() -> None:
    found = walk(week(8), [DAY], methods=[SAME_AS_YESTERDAY, SAME_AS_LAST_WEEK], test_days=TESTED)
    assert [one.method for one in found.forecasts] == [SAME_AS_YESTERDAY]
    assert found.notes == ("not tested with 6.0 days before the test: same as last week",)


def test_known_events_are_not_learnt() -> None:
    series = week(DAYS)
    factors = np.ones(len(series))
    factors[-30:-24] = 5.0
    factors[24 * 3 : 24 * 3 + 4] = 3.0
    plain = walk(series, [NEXT], methods=[COMBINATION], test_days=TESTED)
    with_events = walk(
        replace(series, values=series.values * factors),
        [NEXT],
        methods=[COMBINATION],
        test_days=TESTED,
        factors=factors,
    )
    expected = plain.forecasts[0].quantiles * factors[plain.forecasts[0].targets][None]
    assert_allclose(with_events.forecasts[0].quantiles, expected, rtol=0.01)


@pytest.mark.parametrize("days", [1, 2])
def test_little_history_is_never_much_worse(days: int) -> None:
    found = walk(week(days, 600.0), [NEXT, DAY])
    assert {(one.method, one.horizon_seconds) for one in found.forecasts} == {(COMBINATION, NEXT), (SAME_AS_NOW, NEXT)}
    assert found.notes[0].startswith("little history")
    ours = by_name(score_walk(found), NEXT)[COMBINATION].values["wape_ratio"]
    assert ours <= 1.02


def test_unknown_method_is_refused() -> None:
    with pytest.raises(CannotTest, match=r"no method prophecy; there are sizewatch, same as now"):
        walk(week(DAYS), [NEXT], methods=["prophecy"])


PUBLISHED = {
    "servegen_mlarge_all": (0.189, 0.507),
    "servegen_mmid_diurnal": (0.060, 0.112),
    "nasa_http_1995": (0.218, 0.330),
    "nab_elb_requests": (0.872, 0.830),
    "nab_tweets_goog": (0.338, 0.473),
}
"""WAPE of the same as now at 15 minutes, and of the same as yesterday at 24 hours (BASELINES.md)."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_naive_rows_equal_published_ones(name: str) -> None:
    file = TRACES / f"{name}.csv.gz"
    if not file.is_file():
        pytest.skip("LOUD: ../shared/traces is absent; the published rows cannot be compared")
    series = read_trace(file, bin_seconds=300.0).requests
    if name == "nasa_http_1995":
        series = truncate_at(series, datetime(1995, 8, 31, 4, tzinfo=UTC).timestamp())
    found = score_walk(walk(series, [NEXT, DAY], methods=[SAME_AS_NOW, SAME_AS_YESTERDAY]))
    rows = (by_name(found, NEXT)[SAME_AS_NOW].values, by_name(found, DAY)[SAME_AS_YESTERDAY].values)
    for row, error in zip(rows, PUBLISHED[name], strict=True):
        # The published protocol leaves out the last origin or two.
        assert row["wape"] == pytest.approx(error, abs=0.0011)


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


@pytest.mark.parametrize(
    ("series", "days", "error", "words"),
    [
        (week(7), 4, ShortSeriesError, r"needs 8 days .* has 7\.0: test at most 3$"),
        (week(12), 14, ShortSeriesError, r"needs 18 days .* has 12\.0: test at most 8$"),
        (week(5), 2, ShortSeriesError, r"needs 6 days .* has 5\.0: test at most 1$"),
        (series(np.ones(11)), None, ShortSeriesError, r"has 11\.0 hours; a test needs 5 days, or 12 hours"),
        (series(np.full(500, np.nan)), None, ShortSeriesError, "no bin"),
        (unseen(week(60), 24, 56 * 24), 4, ShortSeriesError, "nothing was seen in the 30 days before"),
        (series(np.ones(9000), bin_seconds=420.0), None, CannotTest, "420 s do not divide a day"),
        *(
            (series(np.ones(900), bin_seconds=n * HOUR), None, CannotTest, f"{n} hours are too long")
            for n in (8, 12, 24)
        ),
        (week(20), 0, CannotTest, "0 days"),
    ],
)
def test_untestable_series_is_named(series: Series, days: int | None, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        window(series, days)


NAN = np.nan
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


def covered_sums(covered: Array) -> ScoreSums:
    one = np.ones(len(covered))
    return ScoreSums(errors=one, amounts=one, losses=one, covered=covered, bounded=one, targets=one, mean=1.0)


def persistent(days: int, seed: int = 2) -> ScoreSums:
    """Each day is covered wholly or hardly at all."""
    good = np.random.default_rng(seed).random(days) < 0.7
    return covered_sums(np.repeat(np.where(good, 1.0, 0.2), 24))


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
    found = covered_sums(np.repeat([1.0, 0.0, 0.0, 0.0], 24))
    assert bootstrap_scores(found, coverage, 24).mean() == pytest.approx(0.25, abs=0.02)


def test_single_day_has_no_interval() -> None:
    assert interval(bootstrap_scores(persistent(1), coverage, 24)) is None


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
