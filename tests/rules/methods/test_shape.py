"""Shapes of a latency: 180 requests a minute, 0.26 s promised; edges at 0.05, 0.1, 0.15, 0.26, 0.52 and 1 s."""

from dataclasses import replace
from typing import Any

import pytest
from judging_samples import context, each, minute, unknown, verdict

from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.plan import load_bins
from rules.plan.load_bins import TierContext
from rules.telemetry.signals import Gap
from rules.verdicts.latency_pattern import LEVERS, LatencyPattern
from rules.verdicts.verdict import Status

PROMISED = {"ttft_p99_seconds": 0.26, "tpot_p99_seconds": 0.26}
TAILS = pytest.mark.parametrize("rule", ["TtftTail", "TpotTail"])
FINE = (0.01, 0.02, 0.05, 0.1, 0.15, 0.26, 0.52, 1.0, float("inf"))


def tier(**more: Any) -> TierContext:
    return context(slo=PROMISED, **more)


def levers(rule: str, shape: LatencyPattern) -> tuple[str, ...]:
    return LEVERS[rule][shape]


@TAILS
def test_a_slow_tail_over_a_good_median_is_only_the_tail(rule: str) -> None:
    found = verdict(rule, tier(), each(10, lambda n: minute(n, slow=5)))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert "only the tail is slow" in found.sentence
    assert tuple(action.text for action in found.actions) == levers(rule, LatencyPattern.TAIL)


@TAILS
def test_a_slow_median_is_everything(rule: str) -> None:
    found = verdict(rule, tier(), each(10, lambda n: minute(n, slow=100)))
    assert (found.status, found.certainty) == (Status.CRITICAL, Certainty.CERTAIN)
    assert "the median is slow too" in found.sentence
    assert tuple(action.text for action in found.actions) == levers(rule, LatencyPattern.EVERYTHING)


@TAILS
@pytest.mark.parametrize("slow", [100, 170], ids=["by the best estimate within", "by the best estimate not"])
def test_a_median_in_the_promises_own_bucket_leaves_it_open(rule: str, slow: int) -> None:
    within = context(slo={"ttft_p99_seconds": 0.27, "tpot_p99_seconds": 0.27})
    found = verdict(rule, within, each(10, lambda n: minute(n, slow=slow)))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.LIKELY)
    assert "the median may be" in found.sentence
    assert tuple(action.text for action in found.actions) == levers(rule, LatencyPattern.EITHER)


def test_the_levers_of_one_shape_are_not_those_of_the_other() -> None:
    """More hardware does not cure a tail of prefill; chunked prefill does not cure a tier that is too small."""
    assert not any("Chunked prefill" in text for text in levers("TpotTail", LatencyPattern.EVERYTHING))
    assert not any("chunked prefill" in text for text in levers("TtftTail", LatencyPattern.EVERYTHING))
    assert not any("--max-num-seqs" in text for text in levers("TpotTail", LatencyPattern.TAIL))
    for rule, shapes in LEVERS.items():
        assert {text for texts in shapes.values() for text in texts} <= set(BY_NAME[rule].actions)


@TAILS
def test_just_below_it_is_ok(rule: str) -> None:
    """20 of 1,800 are more than 1 %, and what chance makes of 1 %; from 26 on it is none (95 %)."""
    calm = verdict(rule, tier(), each(10, lambda n: minute(n, slow=2)))
    assert (calm.status, calm.certainty, calm.actions) == (Status.OK, Certainty.CERTAIN, ())
    assert calm.sentence.endswith("objective; this may be chance")
    assert verdict(rule, tier(), each(10, lambda n: minute(n, slow=2.7))).status is Status.WARNING


@TAILS
def test_before_its_minimum_nothing_is_said(rule: str) -> None:
    assert unknown(rule, tier(), each(2, lambda n: minute(n, slow=90))).reason is Gap.TOO_FEW_REQUESTS
    assert verdict(rule, tier(), each(3, lambda n: minute(n, slow=90))).status is not Status.OK


@TAILS
def test_what_is_over_or_was_one_burst_does_not_fire(rule: str) -> None:
    over = verdict(rule, tier(), each(12, lambda n: minute(n, slow=20 if n < 8 else 0)))
    assert over.status is Status.OK
    assert over.sentence.endswith("objective; no longer in the last quarter of the time")
    burst = verdict(rule, tier(), each(12, lambda n: minute(n, slow=60 if n > 9 else 0)))
    assert burst.status is Status.OK
    assert burst.sentence.endswith("objective; in fewer than 3 minutes")


@TAILS
def test_silence_at_the_end_is_no_recovery(rule: str) -> None:
    found = unknown(rule, tier(), each(12, lambda n: minute(n, slow=20) if n < 9 else minute(n, rps=0.1)))
    assert (found.reason, found.text) == (
        Gap.TOO_FEW_REQUESTS,
        "18 requests in the last quarter of the time, 25 are needed",
    )


@TAILS
def test_why_nothing_can_be_said(rule: str) -> None:
    assert unknown(rule, tier(), each(5, lambda n: minute(n, rps=0.0))).reason is Gap.NO_TRAFFIC
    few = unknown(rule, tier(), each(5, lambda n: minute(n, rps=0.3)))
    assert few.text == "90 requests, 100 are needed"
    bare = unknown(rule, tier(), [replace(one, histograms={}) for one in each(5, minute)])
    assert bare.reason is Gap.NOT_EXPOSED


@TAILS
def test_without_a_promise_there_is_nothing_to_break(rule: str) -> None:
    planless = load_bins.build_tier_context("t", None)
    assert unknown(rule, planless, each(5, minute)).reason is Gap.NOT_IN_PLAN
