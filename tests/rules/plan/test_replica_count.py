"""The one count of replicas: by hand on the guide's tier, for whatever comes, and alike for numbers and for arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forecast.capacity.simulation import replicas
from rules.catalogue.registry import margin_of
from rules.confidence import Certainty
from rules.plan.capacity import stated_capacity
from rules.plan.replica_count import NO_MARGIN, Margin, count_fleet, count_replicas, replica_count, spare_rps
from rules.telemetry.work import Capacity, CapacitySource

USUAL = margin_of()
DEMANDS, CAPACITIES = st.floats(0, 1e5), st.floats(0.01, 1e3)
MARGINS = st.builds(Margin, target_utilization=st.floats(0.1, 1.0), survives_loss_from=st.integers(0, 12))


def test_margin_is_not_the_headroom_limit() -> None:
    assert Margin(target_utilization=0.9, survives_loss_from=4) == USUAL
    other = margin_of({"NoHeadroom": {"above": 0.7, "survives_loss_from": 0}})
    assert other == Margin(target_utilization=0.7, survives_loss_from=0)
    assert margin_of({"NoHeadroom": {"above": 1.5}}) == Margin(target_utilization=1.0, survives_loss_from=4)


def test_the_guides_tier_at_119_rps() -> None:
    found = replica_count(119.0, stated_capacity(12.0, "the plan"), USUAL)
    assert found.replicas == 12
    assert found.utilization == pytest.approx(119 / 144)
    assert found.utilization_one_lost == pytest.approx(119 / 132)
    assert count_replicas(119.0, 12.0) == 10
    assert found.arithmetic_text == "119 rps at 12 rps a replica at up to 0.9 of it, one may be lost: 12"


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
    ],
)
def test_by_hand(demand: float, capacity: float, margin: Margin, expected: int) -> None:
    assert count_replicas(demand, capacity, margin) == expected


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
    between = Capacity(
        rps=3.5,
        low=3.0,
        high=4.0,
        source=CapacitySource.PRODUCTION,
        certainty=Certainty.LIKELY,
        reason="production's own",
    )
    found = replica_count(20.0, between, USUAL)
    assert (found.fewest, found.replicas, found.most) == (6, 7, 8)
    assert found.bounds_text == "6 to 8"
    open_ended = replica_count(20.0, Capacity(**{**_fields(between), "low": 0.0, "high": None}), USUAL)
    assert (open_ended.fewest, open_ended.most, open_ended.bounds_text) == (None, None, "1 or more")


def _fields(one: Capacity) -> dict[str, object]:
    return {name: getattr(one, name) for name in Capacity.__slots__}


def test_step_11_rounds_once() -> None:
    assert count_fleet(120, 12, 1.3, USUAL) == 13
    assert count_fleet(160, 12, 1.3, USUAL) == 18
    assert count_fleet(120, 12, 1.0, USUAL) == 12
    assert count_fleet(50, 1, 1.1, NO_MARGIN) == 55
    assert count_fleet(4, 3.2, 1.2, USUAL, minimum=3) == 3


@pytest.mark.parametrize(
    ("replicas", "demand", "margin", "expected"),
    [
        (2, 10.0, Margin(target_utilization=0.8, survives_loss_from=4), 6.0),
        (3, 10.0, Margin(target_utilization=0.8, survives_loss_from=4), 14.0),
        (4, 10.0, Margin(target_utilization=0.8, survives_loss_from=4), 20.0),
        (4, 10.0, Margin(target_utilization=0.8), 22.0),
        (10, 10.0, Margin(target_utilization=0.8, survives_loss_from=4), 70.0),
        (2, 17.0, Margin(target_utilization=0.8), 0.0),
        (0, 0.0, Margin(target_utilization=0.8), 0.0),
    ],
)
def test_spare_rate_is_what_the_margin_leaves(replicas: int, demand: float, margin: Margin, expected: float) -> None:
    """Of four replicas of 10 rps one may be lost: 30 are usable, not 32."""
    assert spare_rps(replicas, demand, 10.0, margin) == pytest.approx(expected)
    assert not expected or count_replicas(demand + expected, 10.0, margin) <= replicas


@pytest.mark.parametrize(
    ("demand", "capacity"), [(-1.0, 2.0), (float("nan"), 2.0), (float("inf"), 2.0), (1.0, 0.0), (1.0, float("inf"))]
)
def test_what_cannot_be_served_is_refused(demand: float, capacity: float) -> None:
    with pytest.raises(ValueError, match="cannot be served"):
        count_replicas(demand, capacity)


def test_minimum_count_is_said_as_such() -> None:
    capacity = stated_capacity(12.0, "said")
    assert replica_count(20.0, capacity, margin_of(), minimum=3).arithmetic_text.endswith(
        "of it, never fewer than 3: 3"
    )
    assert "fewer" not in replica_count(30.0, capacity, margin_of(), minimum=3).arithmetic_text
    assert replica_count(0.0, capacity, margin_of()).arithmetic_text.endswith("never fewer than 1: 1")
