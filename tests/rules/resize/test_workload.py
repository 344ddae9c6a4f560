"""The guide's guardrails (9.4) by its own numbers."""

import math

import pytest
from report_samples import hours, seen_of, tier_view

from rules.plan.load_bins import TierContext
from rules.resize.workload import GuardrailRange, compute_queue_breaker, list_guardrail_ranges, measure_workload


def fitting(context: TierContext, **more: object) -> dict[str, GuardrailRange]:
    seen = seen_of(context, hours(24, **more))
    return {one.key: one for one in list_guardrail_ranges(seen, measure_workload(seen))}


def test_the_guides_breaker_is_80_to_90_requests_at_2_s_and_50_rps() -> None:
    found = compute_queue_breaker(2.0, 50.0, None, {})
    assert (found.low, found.high, found.proposed) == (pytest.approx(80.0), pytest.approx(90.0), 85)


def test_the_breaker_is_for_the_larger_of_the_planned_and_the_observed_peak() -> None:
    assert fitting(tier_view())["queue_breaker"].proposed == 85
    assert fitting(tier_view(), rps=lambda number: 100.0)["queue_breaker"].proposed == 170


def test_limits_are_two_to_three_times_the_p95_of_prompts_and_the_p99_of_outputs() -> None:
    found = fitting(tier_view())
    prompts, outputs = found["max_prompt_tokens"], found["max_generation_tokens"]
    # All prompts lie in 500 to 1000 and all outputs in 50 to 100, falling by a constant factor to half of one of them.
    n = 24 * 3600 * 20.0
    p95, p99 = 500 * (1 + math.log(20) / math.log(2 * n)), 50 * (1 + math.log(100) / math.log(2 * n))
    assert (prompts.low, prompts.high) == (pytest.approx(2 * p95), pytest.approx(3 * p95))
    assert prompts.proposed == pytest.approx(2.5 * p95, abs=1)
    assert (outputs.low, outputs.high) == (pytest.approx(2 * p99), pytest.approx(3 * p99))


def test_what_the_plan_has_stands_beside_it() -> None:
    guarded = tier_view(guardrails={"max_prompt_tokens": 2500, "queue_breaker": 300})
    found = fitting(guarded)
    assert (found["max_prompt_tokens"].planned, found["queue_breaker"].planned) == (2500, 300)
    assert found["max_generation_tokens"].planned is None


def test_too_few_requests_give_no_limit() -> None:
    assert "max_prompt_tokens" not in fitting(tier_view(), rps=lambda number: 0.001)
