"""Is it the load? Both rules that ask must name one action for the same minutes. A replica takes 6 rps (judging_samples).

180 requests a minute unless said; TTFT edges at 0.05, 0.1, 0.15, 0.26, 0.52 and 1 s, so that a tail leaves its median behind.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from judging_samples import context, each, gauge, minute, seen, verdict
from rule_cases import explain

from rules.catalogue.registry import ACTIONS, BY_NAME
from rules.confidence import Certainty
from rules.methods.load import offered_load
from rules.plan import load_bins
from rules.plan.load_bins import TierContext
from rules.telemetry.windows import Window
from rules.telemetry.work import UNTOLD, Capacity, CapacityLengths, CapacitySource, MeanTokens
from rules.verdicts.rule import LatencyPattern
from rules.verdicts.verdict import Status

ADD_REPLICAS, KEEP_REPLICAS = ACTIONS["add_replicas"], ACTIONS["keep_replicas"]
FIND_THE_HOLD = ACTIONS["find_the_hold"]

BEYOND = "LoadBeyondBenchmark"
RULES = (BEYOND, "QueueGrowing")
EDGES = (0.05, 0.1, 0.15, 0.26, 0.52, 1.0, float("inf"))
LENGTHS = {"prompt_tokens": {"mean": 1000, "p50": 1000}, "generation_tokens": {"mean": 100, "p50": 100}}


def tailed(number: int, rps: float, in_system: float = 4.0, change: float = 0.0, **more: Any) -> Window:
    """A minute of which 4 % of the requests took 0.9 s and the others 0.03 s."""
    n = rps * 60
    made = minute(number, rps=rps, in_system=in_system, change=change, **more)
    return replace(made, histograms={"ttft_seconds": seen({0.03: 0.96 * n, 0.9: 0.04 * n}, EDGES)})


def long(rps: float) -> Callable[[int], Window]:
    """Requests of twice the benchmarked tokens."""
    tokens = {"prompt_tokens": rps * 60 * 2000, "generation_tokens": rps * 60 * 200}
    return lambda n: tailed(n, rps, in_system=9.0, counters=tokens)


def grows(rps: float) -> Callable[[int], Window]:
    """12 more arrive each minute than finish, 0.2 a second."""
    return lambda n: tailed(n, rps, in_system=30.0, waiting=4.0 + 12 * n, change=12.0)


def creeps(rps: float) -> Callable[[int], Window]:
    """Growth too small to show in any one minute."""
    return lambda n: tailed(n, rps, change=0.7, gauges={"requests_waiting_capacity": gauge(0.3 + n / 3)})


def calm(number: int) -> Window:
    return tailed(number, 0.5)


TIER, SIZED, UNUSABLE = context(), context(workload=LENGTHS), context(slo={"ttft_p99_seconds": 0.05})
ROOM = load_bins.with_capacity(
    TIER,
    Capacity(
        rps=9.0, low=8.0, high=10.0, source=CapacitySource.PRODUCTION, certainty=Certainty.CERTAIN, reason="measured"
    ),
)
SMALL = FIND_THE_HOLD
ARRIVING, BOTH_CAN = "arrive at a replica, 6 rps are usable", "the replicas together can take this load"
HOT = f"a (1 of 2 replicas) is beyond the benchmarked load; {BOTH_CAN}"
WORK = "3.5 rps arrive at a replica (by their tokens the work of 7 rps), 6 rps are usable"
STANDING = each(9, lambda n: tailed(n, 3.0, in_system=60.0, waiting=30.0))

ROWS = [
    ("completed", BEYOND, TIER, [lambda n: tailed(n, 7.0)], ADD_REPLICAS, ARRIVING),
    ("in the system too", BEYOND, TIER, [lambda n: tailed(n, 7.0, in_system=12.0)], ADD_REPLICAS, ARRIVING),
    # Completed requests saturate: 6.5 arrive.
    ("arriving", BEYOND, TIER, [lambda n: tailed(n, 5.5, in_system=12.0, change=60.0)], ADD_REPLICAS, ARRIVING),
    # Most of the hold is calm.
    ("in the last quarter", BEYOND, TIER, [lambda n: tailed(n, 3.0 if n < 7 else 7.0)], ADD_REPLICAS, ARRIVING),
    ("hot", BEYOND, TIER, [lambda n: tailed(n, 7.0), lambda n: tailed(n, 2.0)], KEEP_REPLICAS, HOT),
    (
        "on average",
        BEYOND,
        TIER,
        [lambda n: tailed(n, 7.0), lambda n: tailed(n, 2.0)],
        KEEP_REPLICAS,
        f"4.5 rps {ARRIVING}",
    ),
    # 3.5 rps, each of twice the tokens, are the work of 7: above 6. At half the load they are not.
    ("long requests", BEYOND, SIZED, [long(3.5)], ADD_REPLICAS, WORK),
    ("half as many", BEYOND, SIZED, [long(1.75)], KEEP_REPLICAS, ""),
    ("no capacity", BEYOND, UNUSABLE, [lambda n: tailed(n, 7.0)], "", "what load a replica can take is not known"),
    ("measured capacity", BEYOND, ROOM, [lambda n: tailed(n, 7.0)], KEEP_REPLICAS, ""),
    # 2.2 and 6.1 rps of 6 arrive.
    *((f"{rule} of a slow one", rule, TIER, [grows(2.0)], SMALL, "") for rule in RULES),
    *((f"{rule} of a full one", rule, TIER, [grows(5.9)], ADD_REPLICAS, "") for rule in RULES),
    *((f"{rule} beside a calm one", rule, TIER, [grows(2.0), calm], KEEP_REPLICAS, "") for rule in RULES),
    ("creeping", BEYOND, TIER, [creeps(3.0)], SMALL, ""),
    ("creeping at the end", BEYOND, TIER, [creeps(5.995)], ADD_REPLICAS, ""),
    ("short queues", BEYOND, TIER, [lambda n: tailed(n, 3.0, in_system=60.0, waiting=0.2)], KEEP_REPLICAS, ""),
]


@pytest.mark.parametrize(
    ("rule", "known", "makers", "first", "text"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_load_decides_the_action(
    rule: str, known: TierContext, makers: list[Callable[[int], Window]], first: str, text: str
) -> None:
    found = verdict(rule, known, {name: each(9, make) for name, make in zip("ab", makers, strict=False)})
    assert found.status is Status.WARNING
    assert text in explain(found)
    assert {ADD_REPLICAS, KEEP_REPLICAS}.intersection(found.actions) == {first} - {"", SMALL}
    assert not first or found.actions[0] == first


def test_held_requests_are_not_too_many() -> None:
    """0.9 rps of 6 with 9 requests in the system, where the benchmark's highest had 8."""
    found = verdict(BEYOND, TIER, each(10, lambda n: tailed(n, 0.9, in_system=9.0)))
    assert found.actions[0] == KEEP_REPLICAS
    assert not any(text.startswith("Add replicas") or "exceeded" in text for text in found.actions)
    assert f"0.9 rps {ARRIVING}" in explain(found)
    assert found.sentence.startswith("a holds more requests than benchmarked; ")
    assert BOTH_CAN in found.sentence
    assert any("a slow machine" in one for one in found.actions)
    held_up = (text for rule in BY_NAME.values() for text in rule.levers.get(LatencyPattern.HELD_UP, ()))
    assert not any("hed load" in text for text in held_up)


def test_standing_queues_keep_no_replicas() -> None:
    """30 wait in each of nine minutes, as many arrive as finish: no neighbour takes one of them."""
    assert KEEP_REPLICAS not in verdict(BEYOND, TIER, {"a": STANDING, "b": STANDING}).actions


@pytest.mark.parametrize(
    ("known", "makers", "text"),
    [
        (TIER, [lambda n: tailed(n, 7.0), calm], "spread evenly"),
        (ROOM, [lambda n: tailed(n, 7.0)], "benchmark up to it"),
    ],
)
def test_kept_replicas_have_other_levers(known: TierContext, makers: list[Callable[[int], Window]], text: str) -> None:
    found = verdict(BEYOND, known, {name: each(10, make) for name, make in zip("ab", makers, strict=False)})
    assert any(text in action for action in found.actions)


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


def test_levers_are_actions_of_rules() -> None:
    for rule in BY_NAME.values():
        assert {text for texts in rule.levers.values() for text in texts} <= set(rule.actions)
    assert [rule.name for rule in BY_NAME.values() if rule.levers] == ["LoadBeyondBenchmark", "QueueGrowing"]
