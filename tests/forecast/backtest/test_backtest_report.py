"""A walked backtest as plain records: scores as they were counted."""

from __future__ import annotations

import pytest
from traffic_samples import week

from agent.forecasting.results import backtest_report
from exporters.documents.forecast import backtest_text
from forecast.backtest.walk import BacktestRun, walk
from forecast.models.bin_forecaster import COMBINATION
from forecast.models.methods import SAME_AS_NOW, SAME_AS_YESTERDAY

NEXT, DAY = 900.0, 86_400.0


@pytest.fixture(scope="module")
def walked() -> BacktestRun:
    return walk(week(8), [NEXT, DAY], methods=[COMBINATION, SAME_AS_NOW, SAME_AS_YESTERDAY], test_days=2)


def test_the_test_and_the_naive_methods_are_told(walked: BacktestRun) -> None:
    report = backtest_report("trace", walked, ("a remark",))
    assert (report.end, report.end - report.start) == (week(8).end, 2 * DAY)
    assert {(score.horizon_seconds, score.naive) for score in report.scores} == {
        (NEXT, SAME_AS_NOW),
        (DAY, SAME_AS_YESTERDAY),
    }
    assert report.notes == ("a remark",)
    assert "sizewatch *" in backtest_text(report)
