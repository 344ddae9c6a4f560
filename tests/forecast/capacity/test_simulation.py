"""Asked, ready and late against a loop that moves every replica by hand, and pre-warming against reacting by price."""

from math import ceil

import numpy as np
import pytest

from forecast.capacity.simulation import (
    UTILISATIONS,
    Choice,
    Outcome,
    PolicyComparison,
    SimulatedDemand,
    apply_hold,
    cheapest_reacting,
    compare_policies,
    initial_replicas,
    outcome,
    peak,
    replicas,
    simulate_fleet,
    simulate_foresight,
    simulate_reactive,
    simulate_static,
)


def by_hand(targets, lead, initial, hold):
    """The controller of the published baselines: every replica that starts is kept with the minute it will serve from."""
    ready, starting, recent, served, billed = initial, [], [], [], []
    for minute in range(len(targets) if isinstance(targets, list) else targets.minutes):
        ready += sum(count for at, count in starting if at <= minute)
        starting = [(at, count) for at, count in starting if at > minute]
        total = ready + sum(count for _, count in starting)
        target = targets[minute] if isinstance(targets, list) else targets(minute, total)
        recent = [*recent, target][-hold:]
        if target > total:
            starting.append((minute + lead, target - total))
        elif max(recent) < total:
            drop = total - max(recent)
            while drop and starting:
                at, count = starting.pop()
                gone = min(count, drop)
                drop -= gone
                if count > gone:
                    starting.append((at, count - gone))
            ready -= drop
        served.append(ready)
        billed.append(ready + sum(count for _, count in starting))
    return np.array(served, dtype=float), np.array(billed, dtype=float)


class Hpa:
    def __init__(self, world, utilisation):
        self.loads = world.observed_demand / (utilisation * world.capacity)
        self.minutes = len(world.demand)

    def __call__(self, minute, total):
        load = self.loads[minute]
        return max(1, total if total and abs(load / total - 1) <= 0.1 else ceil(load))


def jumpy(minutes=400, seed=3):
    random = np.random.default_rng(seed)
    return np.abs(np.cumsum(random.normal(0, 3, minutes))) + random.exponential(4, minutes)


def world(demand, lead=3, capacity=1.0, before=2.0):
    return SimulatedDemand(demand=np.asarray(demand, dtype=float), before=before, capacity=capacity, lead=lead)


@pytest.mark.parametrize("lead", [1, 3, 5])
@pytest.mark.parametrize("hold", [1, 4, 10])
def test_fleet_equals_moving_replicas_singly(lead, hold) -> None:
    targets = [int(value) for value in jumpy()]
    run = simulate_fleet(apply_hold(np.array(targets, dtype=float), hold), lead, 7)
    served, billed = by_hand(targets, lead, 7, hold)
    assert np.array_equal(run.ready, served)
    assert np.array_equal(run.billed, billed)


@pytest.mark.parametrize("utilisation", [0.4, 0.7, 1.0])
def test_reacting_equals_hpa_baseline(utilisation) -> None:
    here = world(jumpy(seed=5), capacity=1.7)
    run = simulate_reactive(here, utilisation)
    served, billed = by_hand(Hpa(here, utilisation), 3, int(initial_replicas(here)), 10)
    assert np.array_equal(run.ready, served)
    assert np.array_equal(run.billed, billed)


def test_an_outcome_counts_minutes_and_requests() -> None:
    here = world([1.0, 3.0, 2.0, 4.0])
    run = simulate_fleet(np.array([2.0, 2.0, 4.0, 2.0]), 1, 2)
    assert outcome(here, run) == Outcome(
        violated=0.5,
        late=pytest.approx(3 / 10),
        replica_hours=pytest.approx(10 / 60),
        missing_hours=pytest.approx(3 / 60),
        most_replicas=4,
    )
    assert outcome(here, run).priced(100.0) == pytest.approx(10 / 60 + 100 * 3 / 60)


def test_minute_sees_the_one_before() -> None:
    assert world([1.0, 3.0, 2.0], before=7.0).observed_demand.tolist() == [7.0, 1.0, 3.0]


def test_demand_at_capacity_is_no_violation() -> None:
    here = world([0.9], capacity=0.3)
    assert outcome(here, simulate_static(here, 3)).violated == 0.0
    assert outcome(here, simulate_static(here, 2)).violated == 1.0


@pytest.mark.parametrize("lead", [1, 3, 5])
def test_foresight_is_never_short(lead) -> None:
    here = world(jumpy(seed=9), lead=lead)
    run = simulate_foresight(here)
    assert outcome(here, run).violated == 0.0
    assert outcome(here, run).replica_hours < outcome(here, simulate_static(here, peak(here))).replica_hours
    highest = int(np.argmax(here.demand))
    assert run.billed[highest - lead] == replicas(here.demand, 1.0)[highest]


PRICE = 100.0


def result(violated: float, hours: float, missing: float = 0.0) -> Outcome:
    return Outcome(violated=violated, late=violated / 4, replica_hours=hours, missing_hours=missing, most_replicas=9)


REACTING = tuple(
    zip(UTILISATIONS[:4], (result(0.0, 24), result(0.01, 16), result(0.03, 18), result(0.05, 10)), strict=True)
)


def made(
    prewarmed: Outcome, reacting: tuple[tuple[float, Outcome], ...] = REACTING, chosen: float = UTILISATIONS[1]
) -> PolicyComparison:
    return PolicyComparison(
        static=result(0.0, 40),
        reacting=reacting,
        chosen=chosen,
        prewarmed=prewarmed,
        with_margin=prewarmed,
        foresight=result(0.0, 10),
        late_to_warm=PRICE,
    )


def test_cheaper_policy_is_recommended() -> None:
    cheaper, dearer = made(result(0.005, 12)), made(result(0.005, 20))
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
    assert made(result(0.05, 12), chosen=UTILISATIONS[1]).choice is Choice.PREWARM
    assert made(result(0.05, 12), chosen=UTILISATIONS[3]).choice is Choice.REACT


def test_late_requests_have_their_price() -> None:
    reacting = ((0.4, result(0.0, 24)), (0.45, result(0.01, 16, missing=0.1)))
    found = made(result(0.002, 20, missing=0.01), reacting=reacting)
    assert found.saving == pytest.approx(1 - 21 / 26)
    assert found.sentence.endswith("a replica that is missing costs as much as 100 that wait")
    assert made(result(0.02, 12, missing=0.2), reacting=reacting).choice is Choice.REACT
    assert made(result(0.0, 40)).sentence.endswith("at the certainty in use always 9 replicas would have cost no more")
    assert "always" not in made(result(0.0, 39)).sentence


def test_equal_cost_prefers_reacting() -> None:
    same = "following what arrives (reacting at 45%) would have cost as little as the forecast, late requests priced"
    for hours in (15.7, 16.0, 16.3):
        found = made(result(0.01, hours))
        assert (found.choice, found.reason) == (Choice.REACT, same)
    assert made(result(0.01, 15.6)).choice is Choice.PREWARM


def test_everything_is_simulated_in_the_same_world() -> None:
    here = world(np.tile([1.0, 2.0, 8.0, 3.0], 50), lead=2, before=1.0)
    ideal = simulate_foresight(here)
    found = compare_policies(here, ideal, with_margin=ideal, chosen=0.7, late_to_warm=PRICE)
    assert found.reacted == dict(found.reacting)[0.7]
    assert [utilisation for utilisation, _ in found.reacting] == list(UTILISATIONS)
    assert found.prewarmed == found.foresight
    assert found.static.most_replicas == 8
    assert found.static.violated == 0.0
    roomy = compare_policies(here, ideal, with_margin=simulate_static(here, 9), chosen=0.7, late_to_warm=PRICE)
    assert (roomy.with_margin.most_replicas, roomy.prewarmed, roomy.foresight) == (9, found.prewarmed, found.foresight)


def test_cheapest_reacting_follows_price() -> None:
    here = world(np.tile(np.repeat([2.0, 20.0], 60), 12))
    careful, careless = cheapest_reacting(here, 1e6), cheapest_reacting(here, 1e-6)
    assert careful < careless
    ideal = simulate_foresight(here)
    found = compare_policies(here, ideal, with_margin=ideal, chosen=careful, late_to_warm=1200.0)
    chosen = cheapest_reacting(here, 1200.0)
    costs = {one: outcome.priced(1200.0) for one, outcome in found.reacting}
    assert costs[chosen] == min(costs.values())
    # Missing replica-hours are those of the requests that came late.
    late = found.reacted.late * here.demand.sum() / here.capacity / 60.0
    assert found.reacted.missing_hours == pytest.approx(late)


def test_rounding_of_doubles_buys_no_replica() -> None:
    assert replicas(np.array([4.0, 3.0 + 1e-12]), 1.0).tolist() == [4.0, 3.0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"demand": np.array([])}, "every minute"),
        ({"demand": np.array([1.0, np.nan])}, "every minute"),
        ({"capacity": 0.0}, "carries none"),
        ({"lead": 0}, "lead of 0"),
    ],
)
def test_what_cannot_be_simulated_is_refused(change, words) -> None:
    given = {"demand": np.array([1.0]), "before": 1.0, "capacity": 1.0, "lead": 3} | change
    with pytest.raises(ValueError, match=words):
        SimulatedDemand(**given)


@pytest.mark.parametrize("utilisation", [0.0, 1.1])
def test_a_utilisation_outside_its_range_is_refused(utilisation) -> None:
    with pytest.raises(ValueError, match="utilisation"):
        simulate_reactive(world([1.0]), utilisation)
