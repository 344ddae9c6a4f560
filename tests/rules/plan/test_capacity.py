"""The capacity of a replica: where it is known from, how fast it may change; the one count of replicas, and their cost."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judging_samples import tier as judging_tier
from report_samples import POINTS, USABLE, hour, tier, tier_view

from agent.config.config import Config
from agent.forecasting.messages import build_request
from exporters.render.text import money as report_money
from forecast.capacity.simulation import replicas
from rules.catalogue.registry import CATALOGUE, margin_of
from rules.confidence import Certainty
from rules.plan import money
from rules.plan.capacity import EVALUATIONS, MOST_FALL, MOST_RISE, damp_capacity, planned_capacity, stated_capacity
from rules.plan.checks import check_plan
from rules.plan.load_bins import BinnedWindow, TierContext, bin_window, with_capacity
from rules.plan.money import Price
from rules.plan.replica_count import NO_MARGIN, Margin, count_fleet, count_replicas, replica_count, spare_rps
from rules.plan.schema import Plan
from rules.resize.fleet_cost import FleetCost
from rules.resize.measured_capacity import DAYS, capacity_now
from rules.sizing import spare_replicas
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Missing
from rules.telemetry.work import Capacity, CapacitySource

SLOW = {0.15: 0.8, 3.0: 0.2}
SPLIT = {"pools": ["prefill", "decode"]}


def days(context: TierContext, loads: Mapping[int, float], **more: Any) -> list[list[BinnedWindow]]:
    """DAYS days of eight hours each; `loads` gives the tier's rps from that day on, 20 before."""
    rates = []
    for day in range(DAYS):
        known = [rps for first, rps in loads.items() if first <= day]
        rates.append(known[-1] if known else 20.0)
    slow = more.pop("slow_from", DAYS)
    return [
        [
            bin_window(hour(day * 24 + at, rate, ttft=SLOW if day >= slow else None, **more), context.curve, "all")
            for at in range(8)
        ]
        for day, rate in enumerate(rates)
    ]


BENCHMARK, OPERATOR, PRODUCTION = CapacitySource.BENCHMARK, CapacitySource.OPERATOR, CapacitySource.PRODUCTION
MEASURED = {"low": 4.5, "high": 9.5, "source": "production"}


@pytest.mark.parametrize(
    ("parts", "source", "expected"),
    [
        # The benchmark is an unconfirmed upper bound, of which an early end is none.
        ({}, BENCHMARK, (0.0, USABLE, USABLE)),
        ({"curve": {"points": list(POINTS[:3])}}, BENCHMARK, (0.0, 6.0, None)),
        # A lower given point counts, a higher one does not; measured production counts before the benchmark.
        ({"operating_point": {"usable_rps": 5.0, "c_max": 9}}, OPERATOR, (0.0, 5.0, 5.0)),
        ({"operating_point": {"usable_rps": 9.0}}, BENCHMARK, (0.0, USABLE, USABLE)),
        ({"operating_point": {"usable_rps": 5.0, **MEASURED}}, PRODUCTION, (4.5, 5.0, 9.5)),
        ({"operating_point": {"usable_rps": 9.0, **MEASURED}}, PRODUCTION, (4.5, 9.0, 9.5)),
    ],
)
def test_plan_states_a_capacity(parts: dict[str, Any], source: CapacitySource, expected: tuple[Any, ...]) -> None:
    found = planned_capacity(tier(**parts))
    assert (found.low, found.rps, found.high) == pytest.approx(expected)
    assert found.source is source
    assert source is not BENCHMARK or found.certainty is Certainty.LIKELY
    assert planned_capacity(tier(curve=None)) is None


def in_one_day(context: TierContext, loads: Mapping[int, float], **more: Any) -> Capacity | None:
    """What the same hours tell as one evaluation."""
    return capacity_now(context, [[one for day in days(context, loads, **more) for one in day]])


def test_given_point_yields_to_production() -> None:
    context = tier_view(operating_point={"usable_rps": 4.0})
    fine, broken = in_one_day(context, {0: 55.0}), in_one_day(context, {0: 30.0}, slow_from=0)
    assert (fine.rps, fine.source, fine.certainty) == (4.0, OPERATOR, Certainty.CERTAIN)
    assert (broken.rps, broken.source) == (3.0, PRODUCTION)


def test_longer_requests_lower_capacity() -> None:
    lengths = {"prompt_tokens": {"mean": 800, "p50": 700}, "generation_tokens": {"mean": 80, "p50": 70}}
    context = tier_view(workload={"requests_per_second": {"average": 30, "peak": 50}, **lengths})
    as_planned = capacity_now(context, days(context, {}))
    longer = capacity_now(context, days(context, {}, prompts=1600.0, outputs=160.0))
    nearly = capacity_now(context, days(context, {}, prompts=816.0, outputs=80.0))
    assert as_planned.rps == nearly.rps == pytest.approx(USABLE)
    assert longer.rps == pytest.approx(USABLE / 2)
    assert "2 times the work" in longer.reason
    assert longer.lengths.prompt_tokens.low == pytest.approx(1600.0)


def test_measured_capacity_is_converted_once() -> None:
    """A report wrote the operating point and the workload's lengths; the curve was measured with shorter requests."""
    lengths = {"prompt_tokens": {"mean": 1600, "p50": 1500}, "generation_tokens": {"mean": 160, "p50": 150}}
    short = [{**point, "prompt_tokens_mean": 800} for point in POINTS]
    context = tier_view(
        workload={"requests_per_second": {"average": 30, "peak": 50}, **lengths},
        curve={"points": short},
        operating_point={"usable_rps": 4.0, "low": 3.0, "high": 5.0, "source": "production"},
    )
    assert context.capacity.lengths.prompt_tokens.low == 1600
    found = capacity_now(context, days(context, {}, prompts=1600.0, outputs=160.0))
    assert found.rps == 4.0
    assert not any(
        "the benchmark had" in one.text for one in check_plan(Plan(schema=1, tiers={"t": context.plan}), CATALOGUE)
    )


def test_broken_slo_lowers_capacity_by_days() -> None:
    context = tier_view()
    found = capacity_now(context, days(context, {0: 30.0, DAYS - 1: 50.0}, slow_from=DAYS - 1))
    assert found.rps == pytest.approx(USABLE * (1 - MOST_FALL))
    assert "capacity falls at most 30% a day" in found.reason
    assert found.low == pytest.approx(3.0)
    later = capacity_now(context, days(context, {0: 30.0, DAYS - 5: 50.0}, slow_from=DAYS - 5))
    assert 3.0 < later.rps < 5.0
    assert (later.low, later.high, later.source) == (3.0, 5.0, CapacitySource.PRODUCTION)


def test_slow_tier_is_not_scaled_for_ever() -> None:
    """Each replica more lowers the load of all: capacity must not follow it down."""
    found = [in_one_day(tier_view(), {0: rps}, slow_from=0) for rps in (50.0, 35.0, 25.0, 15.0)]
    assert {(one.low, one.certainty, one.kept_rps) for one in found} == {(0.0, Certainty.LIKELY, None)}
    assert [one.rps for one in found] == pytest.approx([5.0, USABLE / 2, USABLE / 2, USABLE])
    assert "does not hold, 3.67 is taken before a load is seen that does" in found[1].reason
    assert "load is not the cause" in found[-1].reason


def test_broken_curves_and_lower_loads() -> None:
    context = tier_view()
    slow = [hour(at, 50.0 if at % 2 else 10.0, ttft={1.5: 1.0}) for at in range(8)]
    found = capacity_now(context, [[bin_window(one, context.curve, "all") for one in slow]])
    assert found.rps == pytest.approx(5.0)
    assert "at equal load: 5 rps a replica are taken, not 7.33" in found.reason
    # Two calm hours of each day, in which something else made requests slow: five times that load was fine.
    context = tier_view()
    week = [hour(at, 10.0, ttft={9.0: 1.0}) if at % 12 == 0 else hour(at, 50.0, ttft={0.08: 1.0}) for at in range(168)]
    found = capacity_now(context, [[bin_window(one, context.curve, "all") for one in week]])
    assert (found.rps, found.source) == (pytest.approx(USABLE), CapacitySource.BENCHMARK)


def test_kept_load_without_benchmark_bounds_below() -> None:
    context = tier_view(curve=None)
    found = capacity_now(context, days(context, {}))
    assert found.is_lower_bound
    measured = with_capacity(context, found)
    window = hour(0, 20.0)
    used = read(BY_NAME["fleet_utilization"], window, measured.basis)
    assert isinstance(used, Missing)
    asked = build_request(measured, (), Config(), Path("h.db"), 0.0)
    assert (asked.capacity, asked.no_replicas) == (None, "the plan has no curve to derive usable rps from")


@pytest.mark.parametrize(
    ("parts", "found"),
    [({}, [[] for _ in range(DAYS)]), (SPLIT, days(tier_view(**SPLIT), {}, slow_from=0))],
    ids=["no history", "split pools"],
)
def test_planned_capacity_stays(parts: dict[str, Any], found: list[list[BinnedWindow]]) -> None:
    capacity = capacity_now(tier_view(**parts), found)
    assert (capacity.rps, capacity.source) == (pytest.approx(USABLE), BENCHMARK)
    assert capacity_now(tier_view(curve=None), [[] for _ in range(DAYS)]) is None


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=8))
def test_capacity_moves_slowly_to_its_end(rates: list[float]) -> None:
    estimates = [stated_capacity(rps, "seen") for rps in rates]
    found = [damp_capacity(estimates[: count + 1]) for count in range(len(estimates))]
    used = [one.rps for one in found if one is not None]
    for before, after in pairwise(used):
        assert before * (1 - MOST_FALL) * (1 - 1e-9) <= after <= before * (1 + MOST_RISE) * (1 + 1e-9)
    for one in found:
        assert one.low <= one.rps
        assert one.rps <= one.high
    lasting = damp_capacity([*estimates[:1], *[estimates[0]] * 7])
    assert lasting.rps == rates[0]


def test_unfinished_rise_and_unknown_days() -> None:
    rates = [3.0] * EVALUATIONS + [12.0] * EVALUATIONS
    estimates = [stated_capacity(rps, "seen") for rps in rates]
    found = [damp_capacity(estimates[last - EVALUATIONS : last]) for last in range(EVALUATIONS, len(estimates) + 1)]
    used = [one.rps for one in found if one is not None]
    slowly = [3.0 * (1 + MOST_RISE) ** day for day in range(EVALUATIONS)]
    assert used == pytest.approx([*slowly, 12.0])
    assert slowly[-1] / 3.0 == pytest.approx(1.95, abs=0.01)
    one = stated_capacity(5.0, "seen")
    assert damp_capacity([None, None, one]) is one
    assert damp_capacity([one, None]) is None
    assert damp_capacity([]) is None
    risen = damp_capacity([one, replace(one, rps=50.0, low=50.0, high=50.0)])
    assert (risen.rps, risen.certainty) == (pytest.approx(5.5), Certainty.LIKELY)


USUAL, UNSERVED = margin_of(), (-1.0, math.inf, math.nan)
DEMANDS, CAPACITIES = st.floats(0, 1e5), st.floats(0.01, 1e3)
MARGINS = st.builds(Margin, target_utilization=st.floats(0.1, 1.0), survives_loss_from=st.integers(0, 12))


def test_margin_is_not_the_headroom_limit() -> None:
    assert Margin(target_utilization=0.9, survives_loss_from=4) == USUAL
    other = margin_of({"NoHeadroom": {"above": 0.7, "survives_loss_from": 0}})
    assert other == Margin(target_utilization=0.7, survives_loss_from=0)
    assert margin_of({"NoHeadroom": {"above": 1.5}}) == Margin(target_utilization=1.0, survives_loss_from=4)


@pytest.mark.parametrize(
    ("demand", "capacity", "margin", "expected"),
    [
        (14.0, 3.51, USUAL, 5),
        (14.0, 3.51, NO_MARGIN, 4),
        (9.15, 7.0, USUAL, 2),
        (8.1, 3.0, USUAL, 3),
        (8.11, 3.0, USUAL, 4),
        (10.5, 3.0, USUAL, 5),
        (10.5, 3.0, Margin(target_utilization=0.9), 4),
        (0.0, 3.0, USUAL, 0),
        (55.0, 1.0, Margin(target_utilization=1 / 1.1), 61),
        (119.0, 12.0, NO_MARGIN, 10),
    ],
)
def test_count_by_hand(demand: float, capacity: float, margin: Margin, expected: int) -> None:
    assert count_replicas(demand, capacity, margin) == expected


def test_fleet_is_counted_and_rounded_once() -> None:
    """Step 11 of the guide, and its tier at 119 rps."""
    peaks = ((120, 12, 1.3, USUAL), (160, 12, 1.3, USUAL), (120, 12, 1.0, USUAL), (50, 1, 1.1, NO_MARGIN))
    assert [count_fleet(*peak) for peak in peaks] == [13, 18, 12, 55]
    assert count_fleet(4, 3.2, 1.2, USUAL, minimum=3) == 3
    found = replica_count(119.0, stated_capacity(12.0, "the plan"), USUAL)
    assert (found.utilization, found.utilization_one_lost) == pytest.approx((119 / 144, 119 / 132))
    assert found.arithmetic_text == "119 rps at 12 rps a replica at up to 0.9 of it, one may be lost: 12"


@given(DEMANDS, CAPACITIES, MARGINS)
def test_count_keeps_its_margin(demand: float, capacity: float, margin: Margin) -> None:
    found = count_replicas(demand, capacity, margin)
    full = demand / capacity
    assert found * margin.target_utilization >= full * (1 - 1e-6) - 1e-6
    if 0 < margin.survives_loss_from <= found:
        assert found - 1 >= full * (1 - 1e-6) - 1e-6
    fewer = found - 1
    held = fewer * margin.target_utilization >= full + 1e-6
    if 0 < margin.survives_loss_from <= fewer:
        held = held and fewer - 1 >= full + 1e-6
    assert not held or fewer < 0


@given(DEMANDS, st.floats(0, 100), CAPACITIES, MARGINS)
def test_more_demand_never_needs_fewer(demand: float, more: float, capacity: float, margin: Margin) -> None:
    assert count_replicas(demand + more, capacity, margin) >= count_replicas(demand, capacity, margin)


@given(st.lists(DEMANDS, min_size=1, max_size=20), CAPACITIES, MARGINS)
def test_arrays_are_counted_as_numbers_are(demands: list[float], capacity: float, margin: Margin) -> None:
    found = replicas(np.array(demands), capacity, margin)
    assert found.tolist() == [count_replicas(demand, capacity, margin) for demand in demands]


def test_capacity_bounds_bound_the_count() -> None:
    between = replace(stated_capacity(3.5, "production's own"), low=3.0, high=4.0)
    found = replica_count(20.0, between, USUAL)
    assert (found.fewest, found.replicas, found.most, found.bounds_text) == (6, 7, 8, "6 to 8")
    open_ended = replica_count(20.0, replace(between, low=0.0, high=None), USUAL)
    assert (open_ended.fewest, open_ended.most, open_ended.bounds_text) == (None, None, "1 or more")


EIGHTY, ONE_LOST = Margin(target_utilization=0.8), Margin(target_utilization=0.8, survives_loss_from=4)


@pytest.mark.parametrize(
    ("replicas", "demand", "margin", "expected"),
    [
        (2, 10.0, ONE_LOST, 6.0),
        (3, 10.0, ONE_LOST, 14.0),
        (4, 10.0, ONE_LOST, 20.0),
        (4, 10.0, EIGHTY, 22.0),
        (10, 10.0, ONE_LOST, 70.0),
        (2, 17.0, EIGHTY, 0.0),
        (0, 0.0, EIGHTY, 0.0),
    ],
)
def test_spare_rate_is_what_the_margin_leaves(replicas: int, demand: float, margin: Margin, expected: float) -> None:
    """Of four replicas of 10 rps one may be lost: 30 are usable, not 32."""
    assert spare_rps(replicas, demand, 10.0, margin) == pytest.approx(expected)
    assert not expected or count_replicas(demand + expected, 10.0, margin) <= replicas


@pytest.mark.parametrize(("demand", "capacity"), [*((bad, 2.0) for bad in UNSERVED), (1.0, 0.0), (1.0, math.inf)])
def test_what_cannot_be_served_is_refused(demand: float, capacity: float) -> None:
    with pytest.raises(ValueError, match="cannot be served"):
        count_replicas(demand, capacity)
    for rps in (0.0, *UNSERVED):
        with pytest.raises(ValueError, match="cannot be counted in"):
            stated_capacity(rps, "said")


def test_minimum_count_is_said_as_such() -> None:
    capacity = stated_capacity(12.0, "said")
    texts = [replica_count(rps, capacity, margin_of(), minimum=3).arithmetic_text for rps in (20.0, 30.0)]
    assert texts[0].endswith("of it, never fewer than 3: 3")
    assert "fewer" not in texts[1]
    assert replica_count(0.0, capacity, margin_of()).arithmetic_text.endswith("never fewer than 1: 1")


def test_low_use_makes_five_replicas_surplus() -> None:
    surplus = [spare_replicas(10, use, 0.6) for use in (0.3, 0.6, 0.9, 0.0)]
    assert surplus == pytest.approx([5, 0, 0, 10]), "nothing is spare above the target"
    assert [money.gpu_hours_a_day(count, 4) for count in (1, 0)] == [96, 0]


def test_amounts_have_currency_and_month() -> None:
    price = Price(gpus_per_replica=4, gpu_hour_price=2.5, currency="EUR")
    # What rounds to a hundred is written as one.
    told = {1: "240", 5.1234: "1,230", 0.01: "2.4", 5 / 12 * (1 - 1e-12): "100", 0: "0"}
    assert {count: money.cost_per_day(count, price) for count in told} == {
        count: f"{amount} EUR a day" for count, amount in told.items()
    }
    assert FleetCost(replicas=2, price=price, tokens_per_hour=None).money_per_month == 2 * 4 * 2.5 * 730


@pytest.mark.parametrize("write", [money.amount, report_money])
def test_money_is_written_one_way(write: Callable[[float, str], str]) -> None:
    told = {
        0: "0",
        0.00001234: "0.0000123",
        0.0868: "0.0868",
        2.5: "2.5",
        72.0: "72",
        99.96: "100",
        1234.4: "1,234",
        2.5e6: "2,500,000",
        -72.0: "-72",
    }
    assert {value: write(value, "USD") for value in told} == {value: f"{text} USD" for value, text in told.items()}


def test_bill_without_price_and_planned_price() -> None:
    assert money.cost_per_day(1.5, Price(gpus_per_replica=4)) == "144 GPU-hours a day"
    assert money.price_of(judging_tier()) == Price(gpus_per_replica=1)
    priced = judging_tier(cost={"gpu_hour_price": 3.0, "currency": "CHF"}, gpu={"product": "A", "per_replica": 8})
    assert money.price_of(priced) == Price(gpus_per_replica=8, gpu_hour_price=3.0, currency="CHF")
