"""The capacity that daemon and commands read while a replica is overloaded, and after it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from judging_samples import gauge
from report_samples import DAY, HOUR, START, USABLE, hour, tier_view

from agent.history import daily_queries
from agent.history.daily_queries import measured_views, read_capacity, read_daily_capacities
from agent.history.store import HistoryStore
from rules.evaluator.observation import ClosedMinute
from rules.plan.load_bins import bin_window
from rules.telemetry.work import Capacity

TIER = tier_view()
BEGIN = START + 10 * HOUR
"""When the overload begins: ten in the morning."""

VERSIONS = {"t": "v1"}


def minutes(rps: float, count: int, begin: float, queue: float = 0.0, replica: str = "r0") -> Iterator[ClosedMinute]:
    """So many minutes of a replica that finishes `rps`, of which so many requests wait."""
    for place in range(count):
        whole = hour(0, rps, 1, ttft={9.0: 1.0} if queue else None)
        window = replace(
            whole,
            start=begin + 60 * place,
            end=begin + 60 * place + 60,
            expected_seconds=60.0,
            covered_seconds=60.0,
            counters={name: value / 60 for name, value in whole.counters.items()},
            gauges={
                **whole.gauges,
                "requests_running": gauge(9.0 if queue else 2.0, seconds=60.0),
                "requests_waiting": gauge(queue, seconds=60.0),
            },
        )
        placed = bin_window(window, TIER.curve, replica)
        placed = replace(placed, bin=None, beyond="its queue grew") if queue else placed
        yield ClosedMinute(tier="t", plan_version="v1", slice=placed)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HistoryStore]:
    """Half an hour at 3 rps as planned, then ten minutes in which 3.67 rps finish and 50 requests wait."""
    with HistoryStore(tmp_path / "history.db") as opened:
        opened.book(minutes(3.0, 30, BEGIN - 1800))
        opened.book(minutes(USABLE / 2, 10, BEGIN, queue=50.0))
        yield opened


def capacity(store: HistoryStore, now: float, version: str = "v1") -> Capacity:
    context = measured_views(store, {"t": TIER}, {"t": version}, now)["t"]
    assert context.capacity is not None
    return context.capacity


def test_overload_bounds_the_capacity_within_minutes(tmp_path: Path) -> None:
    with HistoryStore(tmp_path / "history.db") as store:
        store.book(minutes(3.0, 30, BEGIN - 1800))
        store.book(minutes(USABLE / 2, 2, BEGIN, queue=50.0))
        assert capacity(store, BEGIN + 150).rps == pytest.approx(USABLE)
        store.book(minutes(USABLE / 2, 2, BEGIN + 120, queue=50.0))
        bounded = capacity(store, BEGIN + 270)
    assert bounded.rps == pytest.approx(USABLE / 2, rel=0.01)
    assert bounded.low <= bounded.rps <= (bounded.high or 0.0)


def test_bound_lasts_for_days_and_plans(store: HistoryStore) -> None:
    for later in (2 * HOUR, DAY, 4 * DAY):
        assert capacity(store, BEGIN + later, "v2").rps == pytest.approx(USABLE / 2, rel=0.01)
    assert capacity(store, BEGIN + 6 * DAY, "v2").rps == pytest.approx(USABLE)


def test_later_load_lifts_the_bound(store: HistoryStore) -> None:
    store.book(minutes(1.0, 2, BEGIN + 2 * HOUR, queue=9.0))
    assert capacity(store, BEGIN + 3 * HOUR).rps == pytest.approx(USABLE / 2, rel=0.01)
    store.book(minutes(6.0, 30, BEGIN + 4 * HOUR))
    assert capacity(store, BEGIN + 5 * HOUR).rps == pytest.approx(6.0, rel=0.01)


def test_replicas_that_carry_more_count(store: HistoryStore) -> None:
    store.book(minutes(5.0, 10, BEGIN, replica="r1"))
    store.book(minutes(0.2, 10, BEGIN, replica="new"))
    assert capacity(store, BEGIN + 660).rps == pytest.approx(USABLE * 0.75, rel=0.01)


def test_earlier_days_are_read_once(store: HistoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier whose days tell nothing is read no oftener than others."""
    days: list[float] = []
    read = daily_queries.read_capacity_days
    monkeypatch.setattr(daily_queries, "read_capacity_days", lambda *words: days.append(words[3]) or read(*words))
    bare = tier_view(curve=None)
    known = read_daily_capacities(store, {"t": bare}, VERSIONS, BEGIN)
    assert known == {"t": None}
    measured_views(store, {"t": bare}, VERSIONS, BEGIN + 60, known)
    assert read_capacity(store, bare, BEGIN + 60, None) is None
    assert len(days) == 1
