"""Is it the load? Both rules that ask must name one action for the same minutes. A replica takes 6 rps (judging_samples).

180 requests a minute unless said; TTFT edges at 0.05, 0.1, 0.15, 0.26, 0.52 and 1 s, so that a tail leaves its median behind.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from judging_samples import context, each, gauge, minute, seen, verdict
from prose import explain

from rules.catalogue.registry import ACTIONS, BY_NAME
from rules.confidence import Certainty
from rules.methods.load import offered_load
from rules.plan import load_bins
from rules.plan.load_bins import TierContext
from rules.telemetry.windows import Window
from rules.telemetry.work import UNTOLD, Capacity, CapacityLengths, CapacitySource, MeanTokens
from rules.verdicts.rule import LatencyPattern
from rules.verdicts.verdict import Status, Verdict

ADD_REPLICAS, KEEP_REPLICAS = ACTIONS["add_replicas"], ACTIONS["keep_replicas"]
FIND_THE_HOLD = ACTIONS["find_the_hold"]

BEYOND = "LoadBeyondBenchmark"
EDGES = (0.05, 0.1, 0.15, 0.26, 0.52, 1.0, float("inf"))
LENGTHS = {"prompt_tokens": {"mean": 1000, "p50": 1000}, "generation_tokens": {"mean": 100, "p50": 100}}


def tailed(number: int, rps: float, in_system: float = 4.0, change: float = 0.0, **more: Any) -> Window:
    """A minute of which 4 % of the requests took 0.9 s and the others 0.03 s."""
    n = rps * 60
    made = minute(number, rps=rps, in_system=in_system, change=change, **more)
    return replace(made, histograms={"ttft_seconds": seen({0.03: 0.96 * n, 0.9: 0.04 * n}, EDGES)})


def beyond(make: Callable[[int], Window], known: TierContext | None = None) -> Verdict:
    found = verdict(BEYOND, known or context(), each(10, make))
    assert found.status is Status.WARNING
    return found


@pytest.mark.parametrize(
    "make",
    [
        lambda n: tailed(n, 7.0),
        lambda n: tailed(n, 7.0, in_system=12.0),
        lambda n: tailed(n, 5.5, in_system=12.0, change=60.0),  # completed requests saturate: 6.5 arrive
        lambda n: tailed(n, 3.0 if n < 7 else 7.0),  # most of the hold is calm
    ],
    ids=["completed", "completed and in the system", "arriving", "in the last quarter"],
)
def test_load_above_capacity_is_add_replicas(make: Callable[[int], Window]) -> None:
    found = beyond(make)
    actions = found.actions
    assert actions[0] == ADD_REPLICAS, found.sentence
    assert KEEP_REPLICAS not in actions
    assert "arrive at a replica, 6 rps are usable" in explain(found)


def test_held_requests_are_not_too_many() -> None:
    """0.9 rps of 6 with 9 requests in the system, where the benchmark's highest had 8."""
    found = beyond(lambda n: tailed(n, 0.9, in_system=9.0))
    actions = found.actions
    assert actions[0] == KEEP_REPLICAS
    assert not any(text.startswith("Add replicas") or "exceeded" in text for text in actions)
    assert "0.9 rps arrive at a replica, 6 rps are usable" in explain(found)
    assert found.sentence.startswith("a holds more requests than benchmarked; ")
    assert "the replicas together can take this load" in found.sentence
    assert any("a slow machine" in one for one in found.actions)
    assert not any(
        "hed load" in text for rule in BY_NAME.values() for text in rule.levers.get(LatencyPattern.HELD_UP, ())
    )


def test_hot_replica_needs_another_spread() -> None:
    replicas = {name: each(10, lambda n, rps=rps: tailed(n, rps)) for name, rps in (("a", 7.0), ("b", 2.0))}
    found = verdict(BEYOND, context(), replicas)
    assert found.sentence.startswith(
        "a (1 of 2 replicas) is beyond the benchmarked load; the replicas together can take this load"
    )
    assert "4.5 rps arrive at a replica, 6 rps are usable" in found.details
    texts = found.actions
    assert texts[0] == KEEP_REPLICAS
    assert any("spread evenly" in text for text in texts)


def test_long_requests_count_their_work() -> None:
    """3.5 rps, each of twice the tokens, are the work of 7: above 6. At half the load they are not."""

    def long(rps: float) -> Callable[[int], Window]:
        tokens = {"prompt_tokens": rps * 60 * 2000, "generation_tokens": rps * 60 * 200}
        return lambda n: tailed(n, rps, in_system=9.0, counters=tokens)

    known = context(workload=LENGTHS)
    found = beyond(long(3.5), known)
    assert found.actions[0] == ADD_REPLICAS
    assert "3.5 rps arrive at a replica (by their tokens the work of 7 rps), 6 rps are usable" in explain(found)
    assert beyond(long(1.75), known).actions[0] == KEEP_REPLICAS


def test_unknown_capacity_names_no_action() -> None:
    known = context(slo={"ttft_p99_seconds": 0.05})
    assert known.capacity is None
    found = beyond(lambda n: tailed(n, 7.0), known)
    assert {ADD_REPLICAS, KEEP_REPLICAS}.isdisjoint(found.actions)
    assert "what load a replica can take is not known" in explain(found)


def test_measured_capacity_asks_no_replicas() -> None:
    measured = Capacity(
        rps=9.0, low=8.0, high=10.0, source=CapacitySource.PRODUCTION, certainty=Certainty.CERTAIN, reason="measured"
    )
    found = verdict(BEYOND, load_bins.with_capacity(context(), measured), each(10, lambda n: tailed(n, 7.0)))
    assert found.actions[0] == KEEP_REPLICAS
    assert any("benchmark up to it" in one for one in found.actions)


def test_actions_follow_distinguishing_causes() -> None:
    actions = BY_NAME[BEYOND].actions
    assert actions[0].startswith("Check first whether it is the load")
    assert {ADD_REPLICAS, KEEP_REPLICAS} < set(actions)


def test_stuck_engine_still_has_arrivals() -> None:
    capacity = Capacity(
        rps=6.0,
        low=6.0,
        high=6.0,
        source=CapacitySource.BENCHMARK,
        certainty=Certainty.LIKELY,
        reason="",
        lengths=CapacityLengths(prompt_tokens=MeanTokens(low=1000, high=1000)),
    )
    jammed = minute(0, rps=0.0, in_system=30.0, change=30.0)
    found = offered_load(jammed, capacity)
    assert (found.arriving_rps, found.work_rps) == (0.5, 0.5)
    assert offered_load(replace(jammed, counters={}), replace(capacity, lengths=UNTOLD)) is None


@pytest.mark.parametrize(("rps", "first"), [(2.0, FIND_THE_HOLD), (5.9, ADD_REPLICAS)])
def test_growing_queues_keep_no_replicas(rps: float, first: str) -> None:
    """12 more arrive each minute than finish, 0.2 a second: 2.2 and 6.1 rps of 6."""
    several = each(9, lambda n: tailed(n, rps, in_system=30.0, waiting=4.0 + 12 * n, change=12.0))
    for rule in (BEYOND, "QueueGrowing"):
        found = verdict(rule, context(), several)
        assert (found.status, found.actions[0]) == (Status.WARNING, first), found.sentence
        assert KEEP_REPLICAS not in found.actions


def test_standing_queues_keep_no_replicas() -> None:
    """30 wait in each of nine minutes, as many arrive as finish: no neighbour takes one of them."""
    standing = each(9, lambda n: tailed(n, 3.0, in_system=60.0, waiting=30.0))
    found = verdict(BEYOND, context(), {"a": standing, "b": standing})
    assert KEEP_REPLICAS not in found.actions, found.sentence
    short = verdict(BEYOND, context(), each(9, lambda n: tailed(n, 3.0, in_system=60.0, waiting=0.2)))
    assert short.actions[0] == KEEP_REPLICAS


def test_queue_beside_idle_needs_spread() -> None:
    def grows(number: int) -> Window:
        return tailed(number, 2.0, in_system=30.0, waiting=4.0 + 12 * number, change=12.0)

    for rule in (BEYOND, "QueueGrowing"):
        found = verdict(rule, context(), {"a": each(9, grows), "b": each(9, lambda n: tailed(n, 0.5))})
        assert found.actions[0] == KEEP_REPLICAS, found.sentence


def test_growing_queue_asks_for_replicas() -> None:
    def queue(rps: float) -> Callable[[int], Window]:
        # Growth too small to show in any one minute.
        return lambda n: tailed(n, rps, change=0.7, gauges={"requests_waiting_capacity": gauge(0.3 + n / 3)})

    small = verdict(BEYOND, context(), each(9, queue(3.0)))
    assert small.actions[0] == FIND_THE_HOLD
    assert verdict(BEYOND, context(), each(9, queue(5.995))).actions[0] == ADD_REPLICAS


def test_levers_are_actions_of_rules() -> None:
    for rule in BY_NAME.values():
        assert {text for texts in rule.levers.values() for text in texts} <= set(rule.actions)
    assert [rule.name for rule in BY_NAME.values() if rule.levers] == ["LoadBeyondBenchmark", "QueueGrowing"]
