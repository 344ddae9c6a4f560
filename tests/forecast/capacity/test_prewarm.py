"""From demand to replicas: the count and its reason, the day as shifts, the minimum by price, and the time to drain."""

import math
from collections.abc import Callable
from itertools import pairwise
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forecast.capacity.drain import DrainTime, measure_drain
from forecast.capacity.minimum_warm import CapacityPrices, excess, minimum_warm
from forecast.capacity.prewarm import (
    DecisionBasis,
    Prewarmer,
    ScheduleStep,
    certainty,
    hold_minutes,
    lead_minutes,
    schedule,
)
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
    simulate_requests,
    simulate_static,
)
from rules.plan.capacity import stated_capacity
from rules.telemetry.histograms import Histogram
from rules.telemetry.windows import Window

PLAN = stated_capacity(2.0, "the plan")
DEMANDS = st.lists(st.tuples(st.none() | st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=40)


def prewarmer(minimum: int = 1, hold: int = 4) -> Prewarmer:
    return Prewarmer(minimum=minimum, hold=hold)


@given(DEMANDS, st.integers(0, 9), st.integers(1, 12))
def test_count_covers_demand_and_is_held(demands: list[tuple[float | None, float]], minimum: int, hold: int) -> None:
    decider = prewarmer(minimum, hold)
    results = [decider.step(quantile, now, PLAN) for quantile, now in demands]
    for why, (quantile, now) in zip(results, demands, strict=True):
        assert why.replicas >= minimum
        assert why.replicas * PLAN.rps >= max(now, quantile or 0.0) - 1e-8
    targets = [max(why.for_forecast or 0, why.needed_now, minimum) for why in results]
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
    assert simulate_requests(world, quantile, minimum=2).billed.tolist() == live


@pytest.mark.parametrize(("seconds", "minutes"), [(1.0, 1), (60.0, 1), (61.0, 2), (207.0, 4)])
def test_lead_is_rounded_up_to_minutes(seconds: float, minutes: int) -> None:
    assert lead_minutes(seconds) == minutes
    assert hold_minutes(minutes) == minutes + 1


def test_certainty_is_the_cheapest() -> None:
    needed = np.random.default_rng(4).exponential(5.0, 100_000)
    lead, late = 3, 250.0

    def cost(level: float) -> float:
        bought = np.quantile(needed, level)
        return float((lead + 1) * bought + late * np.maximum(0.0, needed - bought).mean())

    levels = np.linspace(0.9, 0.999, 100)
    assert certainty(lead, late) == pytest.approx(levels[np.argmin([cost(level) for level in levels])], abs=0.002)
    assert certainty(3, 1000.0) == pytest.approx(0.996)
    assert certainty(5, 1000.0) < certainty(3, 1000.0) < certainty(3, 2000.0)
    assert certainty(10, 2.0) == 0.5


def made(values: list[float], **more: object) -> list[tuple[float, int, float]]:
    """Start, replicas and demand of the shifts of bins of five minutes from 0 on."""
    usual = {"start": 0.0, "bin_seconds": 300.0, "capacity_rps": PLAN.rps, "shortest_seconds": 600.0}
    found = schedule(values, **{**usual, **more})  # type: ignore[arg-type]
    return [(one.start, one.replicas, one.demand_rps) for one in found]


BINS = [1.0, 3.0, 4.0, 2.0, 9.0]
SHIFTS = [(0.0, 2, 4.0), (1200.0, 5, 9.0)]


def test_shift_carries_highest_bin() -> None:
    assert made(BINS) == SHIFTS
    found = schedule(BINS, start=1e6, bin_seconds=300.0, capacity_rps=PLAN.rps, shortest_seconds=600.0)
    assert [one.peak for one in found] == [1_000_600.0, 1_001_200.0]


def test_bins_have_enough_and_minimum() -> None:
    values = np.random.default_rng(2).uniform(0, 30, 288)
    values[:60] /= 10
    found = schedule(values.tolist(), start=0.0, bin_seconds=300.0, capacity_rps=PLAN.rps, minimum=4)
    assert found[0].start == 0.0
    assert all(earlier.start < later.start for earlier, later in pairwise(found))
    for place, value in enumerate(values):
        step = [one for one in found if one.start <= place * 300.0][-1]
        assert step.replicas >= max(4, value / 2.0)


@pytest.mark.parametrize(
    ("start", "replicas", "expected"),
    [
        (299.0, 2, SHIFTS),
        (1200.0, 4, SHIFTS),
        (9000.0, 7, SHIFTS),
        (299.0, 4, [(0.0, 4, 7.0), (600.0, 2, 4.0), (1200.0, 5, 9.0)]),
        (600.0, 5, [(0.0, 2, 3.0), (600.0, 5, 9.0)]),
    ],
)
def test_schedule_includes_the_decision(start: float, replicas: int, expected: list[tuple[float, int, float]]) -> None:
    assert made(BINS, decided=ScheduleStep(start=start, replicas=replicas, demand_rps=7.0)) == expected


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=60), st.floats(0.01, 5), st.floats(0.001, 5), st.floats(0.1, 20)
)
def test_no_other_count_costs_less(needed: list[int], hour: float, late: float, usable: float) -> None:
    prices = CapacityPrices(replica_hour=hour * 3600, late_request=late)
    under, over = usable * late, hour

    def cost(count: int) -> float:
        return sum(over * max(0, count - one) + under * max(0, one - count) for one in needed)

    found = minimum_warm(np.array(needed, dtype=float), prices.critical_ratio(usable))
    assert cost(found) == pytest.approx(min(cost(count) for count in range(14)), rel=1e-9, abs=1e-9)


def test_critical_ratio_weighs_price_by_request() -> None:
    assert CapacityPrices(replica_hour=3600.0, late_request=0.25).critical_ratio(12.0) == pytest.approx(3 / 4)
    assert CapacityPrices(replica_hour=3600.0, late_request=0.25).late_to_warm(12.0) == pytest.approx(3.0)
    assert CapacityPrices(replica_hour=8.0, late_request=0.0).critical_ratio(12.0) == 0.0


def test_minimum_is_smallest_sufficient_count() -> None:
    assert [minimum_warm(np.arange(1.0, 11.0), ratio) for ratio in (0.0, 0.45, 0.55, 0.95)] == [1, 5, 6, 10]
    assert minimum_warm(np.array([0.0, 0.0, 1.0]), 0.9, at_least=2) == 2
    assert minimum_warm(np.empty(0), 0.9, at_least=2) == 2


def test_excess_is_the_most_within_lead() -> None:
    demand = np.array([1.0, 5.0, 2.0, 2.0, 9.0, 1.0, np.nan, np.nan, np.nan, 3.0])
    scheduled = np.array([1.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert excess(demand, scheduled, 2.0, 3).tolist() == [1.0, 4.0]
    assert len(excess(demand[:2], scheduled[:2], 2.0, 3)) == 0


@pytest.mark.parametrize(
    ("decide", "words"),
    [
        (lambda: stated_capacity(0.0, "the plan"), "carries"),
        (lambda: lead_minutes(0.0), "lead"),
        (lambda: prewarmer(hold=0), "hold"),
        (lambda: prewarmer().step(math.nan, 1.0, PLAN), "cannot be served"),
        (lambda: prewarmer().step(math.inf, 1.0, PLAN), "cannot be served"),
        (lambda: prewarmer().step(-1.0, 1.0, PLAN), "cannot be served"),
        (lambda: certainty(3, 0.0), "buys nothing"),
        (lambda: made([1.0, math.nan]), "every bin"),
        (lambda: CapacityPrices(replica_hour=0.0, late_request=1.0), "price nothing"),
        (lambda: CapacityPrices(replica_hour=1.0, late_request=-1.0), "price nothing"),
        (lambda: minimum_warm(np.array([1.0]), 1.0), "critical ratio"),
        (lambda: excess(np.array([1.0]), np.array([1.0]), 0.0, 3), "no excess"),
    ],
)
def test_what_cannot_be_decided_is_refused(decide: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decide()


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({10.0: 9_800.0, 20.5: 150.0, 60.0: 50.0, math.inf: 0.0}, (21, 15 + 21 + 20)),
        ({10.0: 98.0, math.inf: 1.0}, "99 requests are too few"),
        ({10.0: 980.0, math.inf: 20.0}, "more than 1 % of requests take longer than 10 s"),
        ({}, "the duration of requests is not known: not_exposed"),
    ],
)
def test_drain_is_upper_edge_of_p99(counts: dict[float, float], expected: object) -> None:
    part = Histogram(edges=(*counts,), counts=(*counts.values(),), total=60_000.0)
    seen = {"e2e_seconds": (part,)} if counts else {}
    found = measure_drain(Window(start=0, end=60, expected_seconds=60, covered_seconds=60, histograms=seen))
    if isinstance(found, DrainTime):
        assert (found.seconds, found.grace_seconds) == expected
    else:
        assert str(expected) in found


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


def compared(
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
    cheaper, dearer = compared(result(0.005, 12)), compared(result(0.005, 20))
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
    assert compared(result(0.05, 12), chosen=UTILISATIONS[1]).choice is Choice.PREWARM
    assert compared(result(0.05, 12), chosen=UTILISATIONS[3]).choice is Choice.REACT


def test_late_requests_have_their_price() -> None:
    reacting = ((0.4, result(0.0, 24)), (0.45, result(0.01, 16, missing=0.1)))
    found = compared(result(0.002, 20, missing=0.01), reacting=reacting)
    assert found.saving == pytest.approx(1 - 21 / 26)
    assert found.sentence.endswith("a replica that is missing costs as much as 100 that wait")
    assert compared(result(0.02, 12, missing=0.2), reacting=reacting).choice is Choice.REACT
    assert compared(result(0.0, 40)).sentence.endswith(
        "at the certainty in use always 9 replicas would have cost no more"
    )
    assert "always" not in compared(result(0.0, 39)).sentence


def test_equal_cost_prefers_reacting() -> None:
    same = "following what arrives (reacting at 45%) would have cost as little as the forecast, late requests priced"
    for hours in (15.7, 16.0, 16.3):
        found = compared(result(0.01, hours))
        assert (found.choice, found.reason) == (Choice.REACT, same)
    assert compared(result(0.01, 15.6)).choice is Choice.PREWARM


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
