"""The backtest: no method sees what comes, the published naive numbers come out, ours is what production would say."""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from forecast_traffic import week
from numpy.testing import assert_allclose, assert_array_equal
from paths import SHARED

from agent.forecasting.csv_series import read_trace
from forecast.backtest.scores import Scored, score_walk
from forecast.backtest.walk import NAMES, BacktestRun, walk
from forecast.backtest.window import CannotTest
from forecast.models.bin_forecaster import COMBINATION, Forecaster
from forecast.models.methods import SAME_AS_LAST_WEEK, SAME_AS_NOW, SAME_AS_YESTERDAY
from forecast.series.binned import select_bins, truncate_at

TRACES = SHARED / "traces"
NEXT, DAY = 900.0, 86_400.0
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
