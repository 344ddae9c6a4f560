from collections.abc import Callable

import pytest
from judging_samples import tier

from exporters.render.text import money as report_money
from rules.plan import money
from rules.plan.money import Price
from rules.resize.fleet_cost import FleetCost


def test_low_use_makes_five_replicas_surplus() -> None:
    surplus = [money.spare_replicas(10, use, 0.6) for use in (0.3, 0.6, 0.9, 0.0)]
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
    assert money.price_of(tier()) == Price(gpus_per_replica=1)
    priced = tier(cost={"gpu_hour_price": 3.0, "currency": "CHF"}, gpu={"product": "A", "per_replica": 8})
    assert money.price_of(priced) == Price(gpus_per_replica=8, gpu_hour_price=3.0, currency="CHF")
