"""From a demand quantile to replicas: what must hold whatever comes, and the reason that is given."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forecast.capacity.prewarm import DecisionBasis, Prewarmer, certainty, hold_minutes, lead_minutes
from forecast.capacity.simulation import SimulatedDemand, simulate_requests
from rules.plan.capacity import stated_capacity

PLAN = stated_capacity(2.0, "the plan")
DEMANDS = st.lists(st.tuples(st.none() | st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=40)


def prewarmer(minimum: int = 1, hold: int = 4) -> Prewarmer:
    return Prewarmer(minimum=minimum, hold=hold)


@given(DEMANDS, st.integers(0, 9), st.integers(1, 12))
def test_count_covers_now_and_minimum(demands: list[tuple[float | None, float]], minimum: int, hold: int) -> None:
    decider = prewarmer(minimum, hold)
    for quantile, now in demands:
        why = decider.step(quantile, now, PLAN)
        assert why.replicas >= minimum
        assert why.replicas * PLAN.rps >= now - 1e-8
        assert why.replicas * PLAN.rps >= (quantile or 0.0) - 1e-8


@given(DEMANDS, st.integers(1, 12))
def test_request_stays_for_the_hold(demands: list[tuple[float | None, float]], hold: int) -> None:
    decider = prewarmer(1, hold)
    results = [decider.step(quantile, now, PLAN) for quantile, now in demands]
    targets = [max(why.for_forecast or 0, why.needed_now, 1) for why in results]
    assert [why.replicas for why in results] == [
        max(targets[max(0, place - hold + 1) : place + 1]) for place in range(len(targets))
    ]


@given(DEMANDS, st.floats(0, 50), st.floats(0, 50))
def test_more_demand_never_asks_for_fewer(
    demands: list[tuple[float | None, float]], ahead: float, arriving: float
) -> None:
    lower, higher = prewarmer(), prewarmer()
    for quantile, now in demands:
        raised = None if quantile is None else quantile + ahead
        assert higher.step(raised, now + arriving, PLAN).replicas >= lower.step(quantile, now, PLAN).replicas


@given(DEMANDS)
def test_named_bound_explains_the_count(demands: list[tuple[float | None, float]]) -> None:
    decider = prewarmer(3)
    for quantile, now in demands:
        why = decider.step(quantile, now, PLAN)
        parts = {
            DecisionBasis.FORECAST: -1 if why.for_forecast is None else why.for_forecast,
            DecisionBasis.NOW: why.needed_now,
            DecisionBasis.MINIMUM: 3,
            DecisionBasis.HOLD: why.held,
        }
        assert parts[why.decided_by] >= why.replicas
        assert all(count < why.replicas for bound, count in list(parts.items())[: list(parts).index(why.decided_by)])


def test_production_rate_is_used_at_once() -> None:
    decider = prewarmer(hold=1)
    assert decider.step(10.0, 0.0, PLAN).replicas == 5
    assert decider.step(10.0, 0.0, stated_capacity(2.5, "production's own curve")).replicas == 4


def test_simulation_equals_live_decisions() -> None:
    random = np.random.default_rng(1)
    demand, quantile = random.uniform(0, 30, 200), random.uniform(0, 40, 200)
    quantile[:20] = np.nan
    world = SimulatedDemand(demand=demand, before=3.0, capacity=2.0, lead=3)
    decider = prewarmer(2)
    live = [
        decider.step(None if np.isnan(said) else said, seen, PLAN).replicas
        for said, seen in zip(quantile.tolist(), world.observed_demand.tolist(), strict=True)
    ]
    assert simulate_requests(world, quantile, minimum=2).asked.tolist() == live


@pytest.mark.parametrize(("seconds", "minutes"), [(1.0, 1), (60.0, 1), (61.0, 2), (207.0, 4)])
def test_lead_is_rounded_up_to_minutes(seconds: float, minutes: int) -> None:
    assert lead_minutes(seconds) == minutes
    assert hold_minutes(minutes) == minutes + 1


def test_what_cannot_be_decided_is_refused() -> None:
    with pytest.raises(ValueError, match="carries"):
        stated_capacity(0.0, "the plan")
    with pytest.raises(ValueError, match="lead"):
        lead_minutes(0.0)
    with pytest.raises(ValueError, match="hold"):
        prewarmer(hold=0)
    for demand in (float("nan"), float("inf"), -1.0):
        with pytest.raises(ValueError, match="cannot be served"):
            prewarmer().step(demand, 1.0, PLAN)


def test_certainty_is_the_cheapest() -> None:
    needed = np.random.default_rng(4).exponential(5.0, 100_000)
    lead, late = 3, 250.0

    def cost(level: float) -> float:
        bought = np.quantile(needed, level)
        return float((lead + 1) * bought + late * np.maximum(0.0, needed - bought).mean())

    levels = np.linspace(0.9, 0.999, 100)
    assert certainty(lead, late) == pytest.approx(levels[np.argmin([cost(level) for level in levels])], abs=0.002)


def test_certainty_follows_lead_and_price() -> None:
    assert certainty(3, 1000.0) == pytest.approx(0.996)
    assert certainty(5, 1000.0) < certainty(3, 1000.0) < certainty(3, 2000.0)
    assert certainty(10, 2.0) == 0.5
    with pytest.raises(ValueError, match="buys nothing"):
        certainty(3, 0.0)
