from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from judging_samples import context, each, minute, unknown, verdict
from length_samples import sized
from prose import explain

from rules.confidence import Certainty
from rules.plan.load_bins import TierContext
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Status, Verdict

RULE = "RunawayGeneration"


def planned(p99: float = 160) -> TierContext:
    """A P99 of 160 tokens: above 192 an answer is longer than any the plan knows."""
    return context(workload={"generation_tokens": {"p99": p99}})


def results(number: int, long: float, cut: float, n: float = 180.0, **more: Any) -> Window:
    """A minute in which `long` of the answers had 400 tokens, and `cut` ended at their token limit."""
    lengths: Mapping[float, float] = {80.0: n - long, 400.0: long}
    counters = {"requests_ended_by_length": cut}
    return sized(number, {80.0: n}, lengths, counters=counters, rps=n / 60, **more)


def said(found: Verdict) -> tuple[Status, Certainty]:
    return found.status, found.certainty


def test_clients_that_ask_for_few_tokens_are_all_cut_and_none_runs_away() -> None:
    found = verdict(RULE, planned(), each(6, lambda n: results(n, long=0, cut=180)))
    assert said(found) == (Status.OK, Certainty.CERTAIN)
    assert explain(found) == (
        "0.0% of answers ran into their token limit; 1% is allowed; "
        "0.0% of 1,080 answers are longer than 192 tokens; "
        "100% ended at their token limit"
    )


def test_long_answers_that_end_by_themselves_are_no_runaways() -> None:
    assert verdict(RULE, planned(), each(6, lambda n: results(n, long=20, cut=0))).status is Status.OK


def test_long_answers_are_runaways_likely_where_they_may_be_the_cut_ones() -> None:
    found = verdict(RULE, planned(), each(6, lambda n: results(n, long=18, cut=18)))
    assert said(found) == (Status.WARNING, Certainty.LIKELY)
    assert explain(found) == (
        "0.0% to 10.0% of answers ran into their token limit; 1% is allowed; "
        "10.0% of 1,080 answers are longer than 192 tokens; "
        "10% ended at their token limit"
    )
    assert found.observed == Reading(value=0.1, low=0.0, high=0.1, n=1080)


def test_runaways_are_certain_where_long_and_cut_ones_must_overlap() -> None:
    """Of 180 answers 18 are long and 171 are cut: 9 at least are both."""
    found = verdict(RULE, planned(), each(6, lambda n: results(n, long=18, cut=171)))
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert found.sentence.startswith("5.0% to 10.0% of")


def test_more_than_half_of_the_answers_are_no_single_prompts() -> None:
    for long, is_told in ((89, False), (91, True)):
        found = verdict(RULE, planned(), each(6, lambda n, k=long: results(n, long=k, cut=180)))
        assert ("so many are no single prompts" in explain(found)) is is_told


def test_the_allowed_share_is_a_planned_p99s_and_a_few_more_may_be_chance() -> None:
    # 10.8 of 1080 are allowed: 12 are chance, 18 are likely, 24 are certain.
    for long, wanted in (
        (2, (Status.OK, Certainty.CERTAIN)),
        (3, (Status.WARNING, Certainty.LIKELY)),
        (4, (Status.WARNING, Certainty.CERTAIN)),
    ):
        assert said(verdict(RULE, planned(), each(6, lambda n, k=long: results(n, long=k, cut=180)))) == wanted, long


def test_only_buckets_wholly_beyond_the_longest_planned_answer_count() -> None:
    for p99, status in ((166, Status.WARNING), (167, Status.OK)):
        assert verdict(RULE, planned(p99), each(6, lambda n: results(n, long=18, cut=180))).status is status


def test_a_burst_of_runaways_and_one_that_is_over_are_no_finding() -> None:
    burst = each(6, lambda n: results(n, long=60 if n >= 4 else 0, cut=180))
    assert verdict(RULE, planned(), burst).status is Status.OK
    assert verdict(RULE, planned(), each(8, lambda n: results(n, long=60 if n < 6 else 0, cut=180))).status is Status.OK
    assert verdict(RULE, planned(), each(6, lambda n: results(n, long=60 if n >= 3 else 0, cut=180))).status is (
        Status.WARNING
    )


def test_the_rule_waits_for_its_minimum_of_time_and_requests() -> None:
    assert unknown(RULE, planned(), each(2, lambda n: results(n, 60, 180))).text == "120 s seen, 180 s are needed"
    assert unknown(RULE, planned(), each(3, lambda n: results(n, 8, 33, n=33))).text == "99 requests, 100 are needed"
    assert unknown(RULE, planned(), each(3, lambda n: results(n, 0, 0, n=0))).reason is Gap.TOO_FEW_REQUESTS


def test_without_a_planned_p99_the_share_that_is_cut_is_all_that_can_be_said() -> None:
    found = unknown(RULE, context(), each(6, lambda n: results(n, long=0, cut=90)))
    assert found.reason is Gap.NOT_IN_PLAN
    assert found.text == "the plan has no P99 of generation_tokens; 50% of the answers end at their token limit"


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda n: sized(n, {80.0: 180}, {80.0: 180}), "the engine does not tell why requests ended"),
        (
            lambda n: minute(n, counters={"requests_ended_by_length": 3.0}),
            "the engine does not tell how long answers were",
        ),
    ],
)
def test_an_engine_that_does_not_count_ends_or_lengths_says_so(made: Any, text: str) -> None:
    found = unknown(RULE, planned(), each(6, made))
    assert (found.reason, found.text) == (Gap.NOT_EXPOSED, text)
