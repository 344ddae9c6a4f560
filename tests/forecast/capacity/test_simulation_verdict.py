"""Pre-warming against reacting, by price and at equal violations, on outcomes that can be checked by hand."""

import numpy as np
import pytest

from forecast.capacity.simulation import (
    UTILISATIONS,
    Choice,
    Outcome,
    PolicyComparison,
    SimulatedDemand,
    cheapest_reacting,
    compare_policies,
    simulate_foresight,
    simulate_static,
)

PRICE = 100.0


def outcome(violated: float, hours: float, missing: float = 0.0) -> Outcome:
    return Outcome(violated=violated, late=violated / 4, replica_hours=hours, missing_hours=missing, most_replicas=9)


REACTING = tuple(
    zip(UTILISATIONS[:4], (outcome(0.0, 24), outcome(0.01, 16), outcome(0.03, 18), outcome(0.05, 10)), strict=True)
)


def made(
    prewarmed: Outcome, reacting: tuple[tuple[float, Outcome], ...] = REACTING, chosen: float = UTILISATIONS[1]
) -> PolicyComparison:
    return PolicyComparison(
        static=outcome(0.0, 40),
        reacting=reacting,
        chosen=chosen,
        prewarmed=prewarmed,
        with_margin=prewarmed,
        foresight=outcome(0.0, 10),
        late_to_warm=PRICE,
    )


def test_cheaper_policy_is_recommended() -> None:
    cheaper, dearer = made(outcome(0.005, 12)), made(outcome(0.005, 20))
    assert (cheaper.choice, cheaper.saving) == (Choice.PREWARM, pytest.approx(0.25))
    assert (dearer.choice, dearer.saving) == (Choice.REACT, pytest.approx(-0.25))
    assert cheaper.sentence == (
        "pre-warming cost 25% less than reacting at 45%, late requests priced: "
        "pre-warming took 12 replica-hours and was short of capacity in "
        "0.50 % of the minutes, reacting 16 replica-hours and was short of capacity in 1.00 % of the minutes"
    )
    less = "following what arrives (reacting at 45%) would have cost less than the forecast, late requests priced"
    assert dearer.reason == less
    # In hindsight 55 % took fewer hours than what was chosen: that is not what it is compared with.
    assert made(outcome(0.05, 12), chosen=UTILISATIONS[1]).choice is Choice.PREWARM
    assert made(outcome(0.05, 12), chosen=UTILISATIONS[3]).choice is Choice.REACT


def test_late_requests_have_their_price() -> None:
    reacting = ((0.4, outcome(0.0, 24)), (0.45, outcome(0.01, 16, missing=0.1)))
    found = made(outcome(0.002, 20, missing=0.01), reacting=reacting)
    assert found.saving == pytest.approx(1 - 21 / 26)
    assert found.sentence.endswith("a replica that is missing costs as much as 100 that wait")
    assert made(outcome(0.02, 12, missing=0.2), reacting=reacting).choice is Choice.REACT


def test_peak_at_equal_cost_is_named() -> None:
    assert made(outcome(0.0, 40)).sentence.endswith("at the certainty in use always 9 replicas would have cost no more")
    assert "always" not in made(outcome(0.0, 39)).sentence


def test_equal_cost_prefers_reacting() -> None:
    assert made(outcome(0.01, 16)).choice is Choice.REACT
    assert made(outcome(0.01, 15.7)).choice is Choice.REACT
    same = "following what arrives (reacting at 45%) would have cost as little as the forecast, late requests priced"
    assert made(outcome(0.01, 15.7)).reason == same
    assert made(outcome(0.01, 16.3)).reason == same
    assert made(outcome(0.01, 15.6)).choice is Choice.PREWARM


def test_everything_is_simulated_in_the_same_world() -> None:
    demand = np.tile([1.0, 2.0, 8.0, 3.0], 50)
    world = SimulatedDemand(demand=demand, before=1.0, capacity=1.0, lead=2)
    found = compare_policies(
        world, simulate_foresight(world), with_margin=simulate_foresight(world), chosen=0.7, late_to_warm=PRICE
    )
    assert found.reacted == dict(found.reacting)[0.7]
    assert [utilisation for utilisation, _ in found.reacting] == list(UTILISATIONS)
    assert found.prewarmed == found.foresight
    assert found.static.most_replicas == 8
    assert found.static.violated == 0.0
    roomy = compare_policies(
        world, simulate_foresight(world), with_margin=simulate_static(world, 9), chosen=0.7, late_to_warm=PRICE
    )
    assert (roomy.with_margin.most_replicas, roomy.prewarmed, roomy.foresight) == (9, found.prewarmed, found.foresight)


def test_cheapest_reacting_follows_price() -> None:
    demand = np.tile(np.repeat([2.0, 20.0], 60), 12)
    world = SimulatedDemand(demand=demand, before=2.0, capacity=1.0, lead=3)
    careful, careless = cheapest_reacting(world, 1e6), cheapest_reacting(world, 1e-6)
    assert careful < careless
    found = compare_policies(
        world, simulate_foresight(world), with_margin=simulate_foresight(world), chosen=careful, late_to_warm=1200.0
    )
    chosen = cheapest_reacting(world, 1200.0)
    costs = {one: outcome.priced(1200.0) for one, outcome in found.reacting}
    assert costs[chosen] == min(costs.values())
    # Missing replica-hours are those of the requests that came late.
    late = found.reacted.late * demand.sum() / world.capacity / 60.0
    assert found.reacted.missing_hours == pytest.approx(late)
