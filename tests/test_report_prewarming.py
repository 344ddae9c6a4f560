"""What pre-warming was worth, on its way into the report."""

from __future__ import annotations

from dataclasses import replace

import pytest
from forecast_samples import question, series

from agent.forecasting.exchange import Answer
from agent.forecasting.tier_forecast import TierForecast
from agent.forecasting.worth import reacting_beside
from agent.reporting.prewarming import of_answer
from exporters.prewarm_worth import Strategy, Worth

OURS = Strategy(name="pre-warming", violation_minutes=10.0, late_requests=5.0, replica_hours=100.0)
PERFECT = Strategy(name="perfect foresight", violation_minutes=0.0, late_requests=0.0, replica_hours=90.0)


def reacting(at: int, minutes: float, hours: float) -> Strategy:
    return Strategy(name=f"reacting at {at}%", violation_minutes=minutes, late_requests=minutes, replica_hours=hours)


def worth(*others: Strategy) -> Worth:
    return Worth(
        start=0.0,
        end=604_800.0,
        zone="UTC",
        requests=1e6,
        strategies=(*others, OURS, PERFECT),
        ours=OURS.name,
        perfect=PERFECT.name,
        recommended=OURS.name,
        reason="",
    )


def test_ours_is_compared_with_the_cheapest_reacting_that_is_no_worse() -> None:
    assert reacting_beside(worth(reacting(50, 0.0, 200.0), reacting(70, 10.0, 140.0), reacting(90, 11.0, 110.0))) == (
        "reacting at 70%"
    )


def test_where_every_reacting_is_worse_the_best_of_them_counts() -> None:
    assert reacting_beside(worth(reacting(50, 20.0, 200.0), reacting(70, 90.0, 140.0))) == "reacting at 50%"


@pytest.fixture(scope="module")
def found() -> Answer:
    asked = question()
    return TierForecast(asked, series(4 * 1440)).answer(asked)


def test_what_the_forecast_found_comes_into_the_report_as_it_is(found: Answer) -> None:
    told = of_answer(found)
    assert told is not None
    assert found.forecast is not None
    projection = found.forecast.projection
    assert told.worth == found.prewarm.worth
    assert told.covered_ratio == pytest.approx(projection.covered / projection.forecasts)
    assert (told.method, told.naive) == (projection.method, projection.naive)
    assert told.error_ratio == projection.error_ratio


def test_without_a_forecast_and_a_comparison_nothing_is_told(found: Answer) -> None:
    nothing = replace(found, forecast=None, prewarm=replace(found.prewarm, worth=None))
    assert of_answer(nothing) is None
    assert of_answer(replace(found, prewarm=replace(found.prewarm, worth=None))) is not None
