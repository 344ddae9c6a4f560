"""The minimum warm count against the cheapest count found by trying all of them."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from forecast.capacity.minimum_warm import CapacityPrices, excess, minimum_warm


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


@given(st.lists(st.integers(0, 12), min_size=1, max_size=60), st.floats(0, 0.999))
def test_smallest_sufficient_count_is_found(needed: list[int], ratio: float) -> None:
    assume(abs(ratio * len(needed) - round(ratio * len(needed))) > 1e-6 or ratio == 0)
    found = minimum_warm(np.array(needed, dtype=float), ratio)
    assert np.mean([one <= found for one in needed]) >= ratio
    if found > min(needed):
        assert np.mean([one <= found - 1 for one in needed]) < ratio


def test_critical_ratio_weighs_price_by_request() -> None:
    assert CapacityPrices(replica_hour=3600.0, late_request=0.25).critical_ratio(12.0) == pytest.approx(3 / 4)
    assert CapacityPrices(replica_hour=3600.0, late_request=0.25).late_to_warm(12.0) == pytest.approx(3.0)
    assert CapacityPrices(replica_hour=8.0, late_request=0.0).critical_ratio(12.0) == 0.0


def test_plan_count_is_the_floor() -> None:
    assert minimum_warm(np.array([0.0, 0.0, 1.0]), 0.9, at_least=2) == 2
    assert minimum_warm(np.empty(0), 0.9, at_least=2) == 2


def test_excess_is_the_most_within_lead() -> None:
    demand = np.array([1.0, 5.0, 2.0, 2.0, 9.0, 1.0, np.nan, np.nan, np.nan, 3.0])
    scheduled = np.array([1.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert excess(demand, scheduled, 2.0, 3).tolist() == [1.0, 4.0]
    assert len(excess(demand[:2], scheduled[:2], 2.0, 3)) == 0


def test_what_prices_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="price nothing"):
        CapacityPrices(replica_hour=0.0, late_request=1.0)
    with pytest.raises(ValueError, match="price nothing"):
        CapacityPrices(replica_hour=1.0, late_request=-1.0)
    with pytest.raises(ValueError, match="critical ratio"):
        minimum_warm(np.array([1.0]), 1.0)
    with pytest.raises(ValueError, match="no excess"):
        excess(np.array([1.0]), np.array([1.0]), 0.0, 3)
