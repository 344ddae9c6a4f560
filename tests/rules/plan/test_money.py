import pytest
from judging_samples import tier
from report_samples import hours, plan, reported

from exporters.render.text import money as report_money
from rules.methods.utilization import compute_idle_replicas
from rules.plan import money
from rules.plan.money import Price
from rules.plan.replica_count import Margin
from rules.resize.fleet_cost import FleetCost


def test_replica_bills_all_its_gpu_hours() -> None:
    assert money.gpu_hours_a_day(1, 4) == 96
    assert money.gpu_hours_a_day(0, 4) == 0


def test_low_use_makes_five_replicas_surplus() -> None:
    assert money.spare_replicas(10, 0.3, 0.6) == pytest.approx(5)
    assert money.spare_replicas(10, 0.6, 0.6) == 0
    assert money.spare_replicas(10, 0.9, 0.6) == 0, "nothing is spare above the target"
    assert money.spare_replicas(10, 0.0, 0.6) == 10


@pytest.mark.parametrize(
    ("ready", "busiest", "warm", "surplus"),
    [
        (10, 3.0, 5, 5),
        (10, 3.0, 2, 6),
        (10, 3.0, None, 6),
        (8, 3.0, 10, 0),
        (10, 8.1, 5, 0),
        (1, 0.0, None, 0),
        (2.5, 0.4, 1, 1.5),
    ],
)
def test_minimum_warm_floors_the_count(ready: float, busiest: float, warm: int | None, surplus: float) -> None:
    planned = tier(fleet={"instances": 10, "minimum_warm": warm})
    idle = compute_idle_replicas(planned, ready, busiest, Margin(target_utilization=0.9, survives_loss_from=4))
    assert idle.replicas == pytest.approx(surplus)


def test_amounts_have_currency_and_month() -> None:
    price = Price(gpus_per_replica=4, gpu_hour_price=2.5, currency="EUR")
    assert money.cost_per_day(1, price) == "240 EUR a day"
    assert money.cost_per_day(5.1234, price) == "1,230 EUR a day"
    assert money.cost_per_day(0.01, price) == "2.4 EUR a day"
    assert money.cost_per_day(5 / 12 * (1 - 1e-12), price) == "100 EUR a day", (
        "what rounds to a hundred is written as one"
    )
    assert money.cost_per_day(0, price) == "0 EUR a day"
    price = Price(gpus_per_replica=4, gpu_hour_price=2.5, currency="EUR")
    assert FleetCost(replicas=2, price=price, tokens_per_hour=None).money_per_month == 2 * 4 * 2.5 * 730


def test_money_is_written_one_way() -> None:
    amounts = (0, 0.00001234, 0.0868, 2.5, 72.0, 99.96, 1234.4, 2.5e6, -72.0)
    told = (
        "0 USD",
        "0.0000123 USD",
        "0.0868 USD",
        "2.5 USD",
        "72 USD",
        "100 USD",
        "1,234 USD",
        "2,500,000 USD",
        "-72 USD",
    )
    assert tuple(money.amount(value, "USD") for value in amounts) == told
    assert tuple(report_money(value, "USD") for value in amounts) == told


def test_diff_and_report_tell_one_bill() -> None:
    found, _ = reported(plan(cost={"gpu_hour_price": 0.15, "currency": "USD"}), hours())
    assert ": cost: 72 USD a day -> 43.2 USD a day: 28.8 USD a day less, 10,512 USD a year" in found.plan_changes[-1]
    assert "it costs 72 USD a day, the proposal saves 28.8 USD a day" in found.tiers[0].verdict
    assert found.headline == "Shrink t: 28.8 USD a day less."


def test_bill_without_price_and_planned_price() -> None:
    assert money.cost_per_day(1.5, Price(gpus_per_replica=4)) == "144 GPU-hours a day"
    assert money.price_of(tier()) == Price(gpus_per_replica=1)
    priced = tier(cost={"gpu_hour_price": 3.0, "currency": "CHF"}, gpu={"product": "A", "per_replica": 8})
    assert money.price_of(priced) == Price(gpus_per_replica=8, gpu_hour_price=3.0, currency="CHF")
