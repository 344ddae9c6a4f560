"""A walked backtest as plain records: scores as they were counted, and one line through the forecasts."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from traffic_samples import HOUR, week

from agent.forecasting.results import backtest_report
from exporters.documents.forecast import backtest_svg, backtest_text
from forecast.backtest.walk import SAME_AS_YESTERDAY, BacktestRun, walk
from forecast.models.bin_forecaster import COMBINATION
from forecast.models.simple_methods import SAME_AS_NOW

NEXT, DAY = 900.0, 86_400.0


@pytest.fixture(scope="module")
def walked() -> BacktestRun:
    return walk(week(8), [NEXT, DAY], methods=[COMBINATION, SAME_AS_NOW, SAME_AS_YESTERDAY], test_days=2)


def test_the_test_and_the_naive_methods_are_told(walked: BacktestRun) -> None:
    report = backtest_report("trace", walked, ("a remark",))
    assert (report.end, report.end - report.start) == (week(8).end, 2 * DAY)
    assert report.naive == ((15.0, SAME_AS_NOW), (1440.0, SAME_AS_YESTERDAY))
    assert report.notes == ("a remark",)
    assert "sizewatch *" in backtest_text(report)


def test_each_bin_has_one_point_of_the_newest_forecast(walked: BacktestRun) -> None:
    report = backtest_report("trace", walked)
    hours = [report.start + HOUR * place for place in range(48)]
    for traced in report.traced:
        assert [point.t for point in traced.forecast] == hours
        assert [t for t, _ in traced.seen] == hours
    day = next(one for one in walked.forecasts if (one.method, one.horizon_seconds) == (COMBINATION, DAY))
    newest = np.concatenate([*day.quantiles[2, :-1, :6], day.quantiles[2, -1]]) / HOUR
    assert_allclose([point.q95 for point in report.traced[1].forecast], newest)
    assert_allclose([value for _, value in report.traced[0].seen if value is not None], week(8).values[-48:] / HOUR)


def test_both_horizons_can_be_drawn(walked: BacktestRun) -> None:
    report = backtest_report("trace", walked)
    assert backtest_svg(report, 15.0) != backtest_svg(report, 1440.0)
