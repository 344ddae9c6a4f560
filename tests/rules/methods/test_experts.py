"""ExpertImbalance: below 0.33 in minutes with at least 32 requests in the batch, replica by replica."""

from __future__ import annotations

from collections.abc import Callable

from judging_samples import answered, context, each, gauge, minute, unknown, verdict

from rules.confidence import Certainty
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Status

RULE = "ExpertImbalance"


def balanced(value: float, running: float = 40.0, passes: float = 600.0) -> Callable[[int], Window]:
    """Minutes whose forward passes had this balance."""
    counters = {"expert_balance_sum": value * passes, "expert_balance_passes": passes}
    return lambda number: minute(number, counters=counters, gauges={"requests_running": gauge(running)})


def test_crowded_experts_are_told_with_the_balance_and_what_is_healthy() -> None:
    found = verdict(RULE, context(), each(5, balanced(0.3)))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert found.sentence == "Expert balance is 30.0%; 33.0% or more is healthy; on replica a"
    assert found.actions


def test_just_within_is_fine() -> None:
    assert verdict(RULE, context(), each(5, balanced(0.335))).status is Status.OK


def test_before_its_minimum_it_says_nothing() -> None:
    assert unknown(RULE, context(), each(2, balanced(0.3))).reason is Gap.TOO_FEW_REQUESTS
    assert verdict(RULE, context(), each(3, balanced(0.3))).status is Status.WARNING


def test_what_was_over_at_the_end_is_fine() -> None:
    assert (
        verdict(RULE, context(), [*each(8, balanced(0.2)), *(balanced(0.9)(n) for n in range(8, 11))]).status
        is Status.OK
    )


def test_small_batches_are_uneven_by_chance_and_say_nothing() -> None:
    assert verdict(RULE, context(), each(5, balanced(0.1, running=32.0))).status is Status.WARNING
    found = unknown(RULE, context(), each(5, balanced(0.1, running=31.0)))
    assert (found.reason, found.text[:35]) == (Gap.TOO_FEW_REQUESTS, "no minute with 32 requests in the b")
    quiet_first = [*each(5, balanced(0.1, running=5.0)), *(balanced(0.8)(n) for n in range(5, 10))]
    assert verdict(RULE, context(), quiet_first).status is Status.OK


def test_one_replica_is_found_among_even_ones() -> None:
    replicas = {"a": each(5, balanced(0.9)), "b": each(5, balanced(0.25)), "c": each(5, balanced(0.9))}
    found = verdict(RULE, context(), replicas)
    assert found.status is Status.WARNING
    assert found.sentence == "Expert balance is 25.0%; 33.0% or more is healthy; on replica b"


def test_an_engine_that_tells_nothing_is_not_judged() -> None:
    assert unknown(RULE, context(), each(5, minute)).reason is Gap.NOT_EXPOSED


def test_a_tier_may_have_other_limits() -> None:
    assert verdict(RULE, context(limits={RULE: {"below": 0.5}}), each(5, balanced(0.4))).status is Status.WARNING
    assert answered(RULE, context(limits={RULE: {"minimum_running": 100.0}}), each(5, balanced(0.2))).rule == RULE
