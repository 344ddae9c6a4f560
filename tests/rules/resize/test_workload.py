"""Guardrails against production: the lengths and the busiest arrivals that a summary has (guide 9.4)."""

import math

import pytest
from report_samples import hours, seen_of, tier_view

from rules.plan.guardrails import Guardrail
from rules.plan.load_bins import TierContext
from rules.resize.workload import list_guardrails, measure_workload


def fitting(context: TierContext, **more: object) -> dict[str, Guardrail]:
    seen = seen_of(context, hours(24, **more))
    return {guardrail.key: guardrail for guardrail in list_guardrails(seen, measure_workload(seen))}


def test_breaker_uses_larger_peak() -> None:
    assert fitting(tier_view())["queue_breaker"].proposed == 85
    assert fitting(tier_view(), rps=lambda number: 100.0)["queue_breaker"].proposed == 170


def test_limits_follow_observed_quantiles() -> None:
    found = fitting(tier_view())
    # All prompts lie in 500 to 1000 and all outputs in 50 to 100, falling by a constant factor to half of one of them.
    n = 24 * 3600 * 20.0
    p95, p99 = 500 * (1 + math.log(20) / math.log(2 * n)), 50 * (1 + math.log(100) / math.log(2 * n))
    for key, best in (("max_prompt_tokens", p95), ("max_generation_tokens", p99)):
        assert (found[key].low, found[key].high) == (pytest.approx(2 * best, abs=1), pytest.approx(3 * best, abs=1))
        assert found[key].proposed == pytest.approx(2.5 * best, abs=1)


def test_what_the_plan_has_stands_beside_it() -> None:
    found = fitting(tier_view(guardrails={"max_prompt_tokens": 2500, "queue_breaker": 300}))
    assert [(one.planned, one.state) for one in found.values()] == [
        (2500, "too_high"),
        (None, "missing"),
        (300, "ineffective"),
    ]


def test_too_few_requests_leave_the_planned_lengths() -> None:
    few = fitting(tier_view(), rps=lambda number: 0.001)
    assert few["max_prompt_tokens"].sentence.endswith("2 to 3 x the planned P95, 1,900 tokens")
