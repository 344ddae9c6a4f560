from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from judging_samples import context, each, minute, unknown, verdict
from length_samples import sized, usual
from prose import explain

from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator.tier_rules import evaluate_rule
from rules.plan.load_bins import TierContext
from rules.plan.load_bins import build_tier_context as bare
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Status, Unknown, Verdict

LIMITS, BREAKER = "GuardrailMissing", "QueueBreakerOff"


def guarded(prompt: int | None = 500, output: int | None = 500, **parts: Any) -> TierContext:
    given = {"max_prompt_tokens": prompt, "max_generation_tokens": output}
    return context(guardrails={key: value for key, value in given.items() if value is not None}, **parts)


def said(found: Verdict) -> tuple[Status, Certainty]:
    return found.status, found.certainty


def seen_lengths(
    prompts: Mapping[float, float] | None = None, outputs: Mapping[float, float] | None = None, count: int = 6
) -> list[Window]:
    return each(count, lambda n: sized(n, prompts or usual(), outputs or usual()))


def test_limits_between_what_is_seen_and_three_times_that_are_fine() -> None:
    found = verdict(LIMITS, guarded(), seen_lengths())
    assert said(found) == (Status.OK, Certainty.CERTAIN)
    assert explain(found) == (
        "The token limits fit the requests; "
        "the prompt limit is 500 tokens, P95 100 to 200 tokens; "
        "the output limit is 500 tokens, P99 100 to 200 tokens"
    )


def test_a_limit_above_three_times_the_highest_possible_p95_protects_nothing() -> None:
    for limit, wanted in (
        (599, (Status.OK, Certainty.CERTAIN)),
        (601, (Status.WARNING, Certainty.CERTAIN)),
    ):
        found = verdict(LIMITS, guarded(prompt=limit), seen_lengths())
        assert said(found) == wanted, limit
    assert (
        found.sentence == "The prompt limit of 601 tokens protects nothing, at more than 3x; P95 is 100 to 200 tokens"
    )
    assert isinstance(found.observed, Reading)
    assert (found.observed.high, found.expected.high) == (200.0, 601.0)  # type: ignore[union-attr]


def test_prompts_are_measured_by_their_p95_and_outputs_by_their_p99() -> None:
    """Three in a hundred of 400 tokens: P95 is below 200, P99 is not."""
    rare = usual(long=5.4)
    assert verdict(LIMITS, guarded(prompt=700), seen_lengths(prompts=rare)).status is Status.WARNING
    assert verdict(LIMITS, guarded(output=700), seen_lengths(outputs=rare)).status is Status.OK
    assert (
        verdict(LIMITS, guarded(output=700), seen_lengths()).sentence
        == "The output limit of 700 tokens protects nothing, at more than 3x; P99 is 100 to 200 tokens"
    )


def test_a_limit_that_more_than_one_in_a_hundred_exceed_is_not_enforced() -> None:
    found = verdict(LIMITS, guarded(prompt=200), seen_lengths(prompts=usual(long=6)))
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert found.sentence == "The prompt limit of 200 tokens is not enforced; P99 is 200 to 500 tokens"
    assert verdict(LIMITS, guarded(prompt=201), seen_lengths(prompts=usual(long=6))).status is Status.OK
    assert verdict(LIMITS, guarded(prompt=200), seen_lengths(prompts=usual(long=1))).status is Status.OK


def test_a_burst_above_the_limit_is_no_finding() -> None:
    burst = each(6, lambda n: sized(n, usual(long=30 if n >= 4 else 0), usual()))
    assert verdict(LIMITS, guarded(prompt=200), burst).status is Status.OK


def test_few_requests_make_a_limit_only_likely_to_be_wrong() -> None:
    # 0.95^n is below 5 % from 59 requests on, below 0.1 % from 135 on.
    found = verdict(LIMITS, guarded(prompt=601), each(3, lambda n: sized(n, usual(n=40), usual(n=40))))
    assert said(found) == (Status.WARNING, Certainty.LIKELY)


def test_a_missing_limit_is_named_with_what_would_fit() -> None:
    found = verdict(LIMITS, guarded(prompt=None), seen_lengths())
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(found) == ("The plan's guardrails have no prompt limit; 400 to 600 tokens for prompts would fit")
    both = verdict(LIMITS, context(guardrails={"queue_breaker": 85}), seen_lengths())
    assert explain(both) == (
        "The plan's guardrails have no prompt limit and no output limit; "
        "400 to 600 tokens for prompts and 400 to 600 tokens for outputs would fit"
    )


def test_a_missing_limit_needs_no_traffic_to_be_missing_and_hides_no_other_complaint() -> None:
    idle = verdict(LIMITS, guarded(prompt=None), each(6, lambda n: minute(n, rps=0.0)))
    assert idle.sentence == "The plan's guardrails have no prompt limit"
    two = verdict(LIMITS, guarded(prompt=None, output=700), seen_lengths())
    assert explain(two) == (
        "The plan's guardrails have no prompt limit; "
        "400 to 600 tokens for prompts would fit; "
        "The output limit of 700 tokens protects nothing, at more than 3x; P99 is 100 to 200 tokens"
    )


def test_without_guardrails_in_the_plan_the_rule_says_what_would_fit() -> None:
    found = unknown(LIMITS, context(), seen_lengths())
    assert found.reason is Gap.NOT_IN_PLAN
    assert (
        found.text
        == "the plan has no guardrails; 400 to 600 tokens for prompts and 400 to 600 tokens for outputs would fit"
    )
    assert unknown(LIMITS, bare("t", None), seen_lengths()).reason is Gap.NOT_IN_PLAN


def test_limits_without_lengths_to_compare_are_unknown() -> None:
    found = unknown(LIMITS, guarded(), each(6, minute))
    assert (found.reason, found.text) == (Gap.NOT_EXPOSED, "the engine shows no lengths of requests")
    few = unknown(LIMITS, guarded(), each(3, lambda n: sized(n, usual(n=33), usual(n=33))))
    assert few.text == "99 requests, 100 are needed"
    assert unknown(LIMITS, guarded(), seen_lengths(count=2)).text == "120 s seen, 180 s are needed"
    never = evaluate_rule(BY_NAME[LIMITS], guarded(), (), now=0.0)
    assert isinstance(never, Unknown)
    assert never.reason is Gap.SCRAPE_FAILED


def breaker(depth: float | None, peak: float | None = None, slo: float = 2.0) -> TierContext:
    guardrails = {"max_prompt_tokens": 500} if depth is None else {"queue_breaker": depth}
    rates = {"requests_per_second": {"peak": peak}} if peak is not None else {}
    return context(guardrails=guardrails, workload=rates, slo={"ttft_p99_seconds": slo})


def arriving(rps: float, count: int = 6) -> list[Window]:
    return each(count, lambda n: minute(n, rps=rps))


def test_the_guides_example_two_seconds_at_fifty_a_second_wants_eighty_to_ninety() -> None:
    for depth in (40.0, 80.0, 85.0, 90.0, 100.0):
        found = verdict(BREAKER, breaker(depth), arriving(50.0))
        assert said(found) == (Status.OK, Certainty.CERTAIN), depth
    assert found.sentence == "The breaker at 100 queued requests fits; 80 to 90 fit 2 s at 50 rps"
    assert found.expected == Reading(value=None, low=80.0, high=90.0, n=1.0)


def test_a_breaker_deeper_than_objective_times_arrivals_sheds_too_late() -> None:
    found = verdict(BREAKER, breaker(101.0), arriving(50.0))
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(found) == (
        "The breaker at 101 queued requests is too deep; 80 to 90 fit 2 s at 50 rps; "
        "from 100 on every queued request misses 2 s before any is shed"
    )


def test_a_breaker_far_below_it_refuses_what_could_wait() -> None:
    found = verdict(BREAKER, breaker(39.0), arriving(50.0))
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(found) == (
        "The breaker at 39 queued requests is too shallow; 80 to 90 fit 2 s at 50 rps; "
        "100 could wait within 2 s, most of them are refused"
    )


def test_a_quiet_night_makes_no_breaker_too_deep_and_a_planned_peak_none_too_shallow() -> None:
    assert verdict(BREAKER, breaker(85.0, peak=50.0), arriving(2.0)).status is Status.OK
    assert verdict(BREAKER, breaker(101.0, peak=50.0), arriving(2.0)).status is Status.WARNING
    assert verdict(BREAKER, breaker(85.0, peak=160.0), arriving(50.0)).status is Status.OK


def test_what_arrives_beyond_the_planned_peak_counts() -> None:
    assert verdict(BREAKER, breaker(100.0, peak=40.0), arriving(50.0)).status is Status.OK
    assert verdict(BREAKER, breaker(81.0, peak=40.0), arriving(2.0)).status is Status.WARNING


def test_two_busy_minutes_are_no_arrival_rate() -> None:
    burst = each(6, lambda n: minute(n, rps=50.0 if n < 2 else 5.0))
    assert verdict(BREAKER, breaker(15.0), burst).status is Status.WARNING
    assert explain(verdict(BREAKER, breaker(15.0), burst)) == (
        "The breaker at 15 queued requests is too deep; 8 to 9 fit 2 s at 5 rps; "
        "from 10 on every queued request misses 2 s before any is shed"
    )


def test_a_plan_without_a_breaker_is_told_which_would_fit() -> None:
    found = unknown(BREAKER, breaker(None, peak=50.0), arriving(2.0))
    assert found.reason is Gap.NOT_IN_PLAN
    assert found.text == "the plan's guardrails have no queue_breaker; 80 to 90 fit 2 s at 50 rps"
    assert unknown(BREAKER, bare("t", None), arriving(2.0)).text == "the plan has no guardrails"


def test_a_breaker_without_any_arrivals_is_unknown() -> None:
    idle = unknown(BREAKER, breaker(85.0), arriving(0.0))
    assert (idle.reason, idle.text) == (Gap.NO_TRAFFIC, "nothing arrived, and the plan has no peak")
    blind = [Window(start=w.start, end=w.end, expected_seconds=60, covered_seconds=60) for w in arriving(1.0)]
    assert unknown(BREAKER, breaker(85.0), blind).reason is Gap.NOT_EXPOSED
    assert unknown(BREAKER, breaker(85.0), arriving(50.0, count=2)).text == "120 s seen, 180 s are needed"
