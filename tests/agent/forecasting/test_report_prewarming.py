"""What pre-warming was worth, on its way into the report."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from forecast_samples import question, series

from agent.forecasting.messages import ForecastResponse
from agent.forecasting.prewarm_value import Stretch, compare_strategies, split_last_week
from agent.forecasting.tier_forecast import TierForecast
from agent.reporting.generate import prewarming_from_response
from exporters.documents.forecast import PrewarmValue
from forecast.capacity.minimum_warm import excess, minimum_warm
from forecast.capacity.simulation import SimulatedDemand, cheapest_reacting, simulate_requests
from forecast.lead.online import run_past
from forecast.series.binned import Array
from rules.catalogue.registry import margin_of
from rules.plan.replica_count import NO_MARGIN

DAY = 1440


def split(rates: Array, certainty: float = 0.99) -> tuple[Stretch, Stretch]:
    """The judged week and the time before."""
    week = split_last_week(rates, np.ones(len(rates)), run_past(rates, 5, 3), certainty, usable_rps=2.0, hold=None)
    assert week is not None
    return week


def compare(judged: Stretch, before: Stretch, at_least: int = 1, **changes: Any) -> PrewarmValue:
    requests = judged.world.demand
    given = {"certainty": 0.99, "at_least": at_least, "ratio": None, "requests": requests, "end": 60.0 * len(requests)}
    given |= {name: changes.pop(name) for name in ("certainty", "ratio") if name in changes}
    return compare_strategies(question(currency="USD", **changes), judged, before, **given)


def days(surges: float, count: int, seed: int) -> Array:
    """A daily wave, with a surge of ten minutes every two hours to so many times of it."""
    place = np.arange(count * DAY)
    wave = 10.0 + 6.0 * np.sin(2 * np.pi * place / DAY)
    shape = np.where(place % 120 < 10, surges, 1.0)
    return wave * shape * np.random.default_rng(seed).lognormal(0.0, 0.02, len(place))


def test_reacting_is_chosen_before_judged_week() -> None:
    """It was calm and surges began with the judged week: nobody could have chosen to be careful then."""
    calm, wild = days(1.0, 10, 1), days(3.0, 7, 2)
    for before, after in ((calm, wild), (days(3.0, 10, 1), days(1.0, 7, 2))):
        week = split(np.concatenate([before, after]))
        assert [len(stretch.world.demand) for stretch in week] == [7 * DAY, 10 * DAY - 1]
        price = 4 / 0.01
        judged = SimulatedDemand(demand=after, before=float(before[-1]), capacity=2.0, lead=3)
        known = SimulatedDemand(demand=before[1:], before=float(before[0]), capacity=2.0, lead=3)
        chosen, hindsight = cheapest_reacting(known, price), cheapest_reacting(judged, price)
        assert chosen != hindsight
        told = compare(*week)
        assert told.reacting == f"reacting at {chosen:.0%}"
        assert f"The {chosen:.0%} was the cheapest of the 9 d 23 h before." in told.reason
        assert told.recommended in (told.reacting, told.ours)


def test_minimum_warm_needs_enough_history() -> None:
    rates = days(1.0, 10, 4)
    judged, before = split(rates[: 3 * DAY + 600])
    assert 0.97 < judged.coverage_ratio <= 1.0
    assert np.isfinite(before.quantile).sum() < DAY
    assert before.minimum_warm(0.99, 2, NO_MARGIN) == 2


def test_margin_is_a_line_of_its_own() -> None:
    rates = days(1.5, 12, 5)
    judged, before = split(rates, 0.5)
    bare, told = (
        compare(judged, before, certainty=0.5, margin=margin, replica_hour=2.0) for margin in (NO_MARGIN, margin_of())
    )
    assert bare.with_margin == ""
    assert told.with_margin == "pre-warming with the margin"
    roomy = next(one for one in told.strategies if one.name == told.with_margin)
    ours = next(one for one in told.strategies if one.name == told.ours)
    assert tuple(one for one in told.strategies if one is not roomy) == bare.strategies
    assert (told.recommended, told.reason, told.reacting) == (bare.recommended, bare.reason, bare.reacting)
    counted = simulate_requests(judged.world, judged.quantile, margin=margin_of()).asked
    assert roomy.replica_hours == pytest.approx(counted.sum() / 60)
    assert roomy.replica_hours > ours.replica_hours / 0.9
    assert roomy.violation_minutes < ours.violation_minutes


def test_margin_lowers_the_warm_minimum() -> None:
    """Surges of a half: the margin carries a part of each. In the quiet half of the day the minimum is what is warm."""
    rates = days(1.5, 12, 6)
    rates[np.arange(len(rates)) % DAY < DAY // 2] *= 0.02
    judged, before = split(rates, 0.5)
    margin, ratio = margin_of(), 0.99
    bare, roomy = (before.minimum_warm(ratio, 0, each) for each in (NO_MARGIN, margin))
    assert 0 <= roomy < bare
    world = before.world
    known = np.where(np.isfinite(before.quantile), world.demand, np.nan)
    ready = simulate_requests(world, before.quantile, minimum=0, margin=margin).ready
    assert roomy == minimum_warm(excess(known, ready, world.capacity, world.lead), ratio)

    # Each strategy keeps the minimum that fits its own counts.
    told = compare(judged, before, 0, ratio=ratio, certainty=0.5, margin=margin)
    hours = {strategy.name: strategy.replica_hours for strategy in told.strategies}
    for name, minimum, each in ((told.ours, bare, NO_MARGIN), (told.with_margin, roomy, margin)):
        fleet = simulate_requests(judged.world, judged.quantile, minimum=minimum, margin=each)
        assert hours[name] == pytest.approx(fleet.asked.sum() / 60)


@pytest.fixture(scope="module")
def found() -> ForecastResponse:
    asked = question()
    return TierForecast(asked, series(4 * 1440)).respond(asked)


def test_forecast_reaches_the_report_unchanged(found: ForecastResponse) -> None:
    told = prewarming_from_response(found)
    projection = found.forecast.projection
    assert told.worth == found.prewarm.worth
    assert told.worth.reacting in {one.name for one in told.worth.strategies}
    assert told.covered_ratio == pytest.approx(projection.covered / projection.forecasts)
    assert (told.method, told.naive) == (projection.method, projection.naive)
    assert told.error_ratio == projection.error_ratio
    worthless = replace(found.prewarm, worth=None)
    assert prewarming_from_response(replace(found, prewarm=worthless)) is not None
    assert prewarming_from_response(replace(found, forecast=None, prewarm=worthless)) is None
