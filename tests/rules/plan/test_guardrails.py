"""Guardrails against planned and observed lengths and arrivals: each state, by the guide's numbers (9.4)."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from rules.catalogue.registry import CATALOGUE
from rules.confidence import Certainty
from rules.plan.checks import PlanWarning, check_plan
from rules.plan.guardrails import Guardrail, judge_guardrails
from rules.plan.schema import parse_plan
from rules.telemetry.signals import Reading

PROMPTS, OUTPUTS, BREAKER = "max_prompt_tokens", "max_generation_tokens", "queue_breaker"
PLANNED: dict[str, Any] = {
    "prompt_tokens": {"p95": 4000, "p99": 7000},
    "generation_tokens": {"p95": 500, "p99": 900},
    "requests_per_second": {"peak": 50},
}


def whole(slo: float | None = 2.0, workload: Mapping[str, Any] | None = PLANNED, **guardrails: float) -> dict[str, Any]:
    tier = {"model": "m", "engine": "vllm", "gpu": {"product": "A", "per_replica": 1}, "guardrails": guardrails or None}
    kind = {"archetype": "batch"} if slo is None else {}
    return {
        "schema": 1,
        "tiers": {"t": {**tier, "slo": {"ttft_p99_seconds": slo}, "workload": {**(workload or {}), **kind}}},
    }


def judged(
    key: str,
    seen: Mapping[str, Reading] | None = None,
    rps: float | None = None,
    overrides: Mapping[str, Mapping[str, float]] | None = None,
    **parts: Any,
) -> Guardrail:
    threshold = partial(CATALOGUE["Guardrails"].limit, overrides=overrides or {})
    found = judge_guardrails(parse_plan(whole(**parts)).tiers["t"], threshold, seen or {}, rps)
    return next(guardrail for guardrail in found if guardrail.key == key)


def quantile(low: float, value: float | None, high: float | None, n: float = 1000.0) -> Reading:
    return Reading(value=value, low=low, high=high, n=n)


@pytest.mark.parametrize(
    ("depth", "state"),
    [
        *((1, "too_low"), (40, "too_low"), (79, "too_low"), (80, "fits"), (85, "fits"), (90, "fits")),
        *((91, "too_high"), (100, "too_high"), (101, "ineffective"), (1000, "ineffective")),
    ],
)
def test_breaker_fits_by_arrivals(depth: float, state: str) -> None:
    found = judged(BREAKER, queue_breaker=depth)
    assert (found.state, found.certainty, found.low, found.high) == (state, Certainty.CERTAIN, 80, 90)
    assert found.status == ("ok" if state == "fits" else "warning")


def test_breaker_sentence_has_verdict_and_fit() -> None:
    basis = "80% to 90% of 2 s x 50 rps, the planned peak"
    assert judged(BREAKER, queue_breaker=85).sentence == f"queue breaker 85 fits; 80 to 90: {basis}"
    assert (
        judged(BREAKER, queue_breaker=40).sentence == f"queue breaker 40 sheds too early, at 40%; 80 to 90 fit: {basis}"
    )
    assert judged(BREAKER, queue_breaker=95).sentence == (
        f"queue breaker 95 is too close to a guaranteed violation, at 95%; 80 to 90 fit: {basis}"
    )
    assert judged(BREAKER, queue_breaker=101).sentence == (
        "queue breaker 101 is too deep: beyond 100 a violation is guaranteed before any request is shed; "
        f"80 to 90 fit: {basis}"
    )
    assert judged(BREAKER, max_prompt_tokens=9000).sentence == f"no queue breaker; 80 to 90 fit: {basis}"


@pytest.mark.parametrize(("rps", "fitting"), [(6.0, (10, 11)), (3.0, (5, 5)), (1.0, (2, 2)), (0.2, (1, 1))])
def test_small_fleet_has_a_fitting_number(rps: float, fitting: tuple[int, int]) -> None:
    peak = {"requests_per_second": {"peak": rps}}
    for depth in range(1, 40):
        found = judged(BREAKER, workload=peak, queue_breaker=depth)
        assert (found.low, found.high) == fitting
        assert (found.state == "fits") is (fitting[0] <= depth <= fitting[1]), depth


def test_busiest_arrivals_count_for_breakers() -> None:
    assert judged(BREAKER, rps=2.0, queue_breaker=85).state == "fits"
    busy = judged(BREAKER, rps=100.0, queue_breaker=85)
    assert (busy.state, busy.low, busy.proposed) == ("too_low", 160, 170)
    assert busy.sentence.endswith("160 to 180 fit: 80% to 90% of 2 s x 100 rps, the peak seen")
    assert judged(BREAKER, workload=None, rps=50.0, queue_breaker=85).state == "fits"
    unknown = judged(BREAKER, workload=None, queue_breaker=85)
    assert (unknown.state, unknown.sentence) == (
        "unknown",
        "queue breaker 85 cannot be compared; no arrivals are planned or seen",
    )
    assert judged(BREAKER, workload=None, max_prompt_tokens=9000).state == "missing"


def test_batch_needs_no_breaker() -> None:
    threshold = partial(CATALOGUE["Guardrails"].limit, overrides={})
    tier = parse_plan(whole(slo=None)).tiers["t"]
    assert [guardrail.key for guardrail in judge_guardrails(tier, threshold, {}, None)] == [PROMPTS, OUTPUTS]


@pytest.mark.parametrize(
    ("limit", "state"),
    [
        *(
            (3999, "refuses"),
            (4000, "too_low"),
            (7999, "too_low"),
            (8000, "fits"),
            (12000, "fits"),
            (12001, "too_high"),
        ),
        (131072, "too_high"),
    ],
)
def test_prompt_limit_fits_by_planned_p95(limit: int, state: str) -> None:
    found = judged(PROMPTS, max_prompt_tokens=limit)
    assert (found.state, found.certainty, found.low, found.high) == (state, Certainty.CERTAIN, 8000, 12000)
    assert "8,000 to 12,000" in found.sentence
    assert found.sentence.endswith(": 2 to 3 x the planned P95, 4,000 tokens")


@pytest.mark.parametrize(("limit", "state"), [(499, "refuses"), (1799, "too_low"), (1800, "fits"), (2701, "too_high")])
def test_output_limit_fits_by_planned_p99(limit: int, state: str) -> None:
    assert judged(OUTPUTS, max_generation_tokens=limit).state == state


def test_missing_limit_is_told_with_fit() -> None:
    found = judged(OUTPUTS, max_prompt_tokens=9000)
    assert (found.state, found.status) == ("missing", "warning")
    assert found.sentence == "no output limit; 1,800 to 2,700 fit: 2 to 3 x the planned P99, 900 tokens"
    assert judged(OUTPUTS, workload={}).sentence == "no output limit; no P99 of generation_tokens is planned or seen"


def test_observed_lengths_precede_planned_ones() -> None:
    """The report said "fit" and "12,000; 12,778 to 19,167 would fit" four lines apart."""
    seen = {"prompt_tokens_p95": quantile(5000, 6389, 10_000)}
    likely = judged(PROMPTS, seen, max_prompt_tokens=12_000)
    assert (likely.state, likely.certainty, likely.low, likely.high) == ("too_low", Certainty.LIKELY, 12_778, 19_167)
    assert likely.sentence == (
        "prompt limit 12,000 is too low; 12,778 to 19,167 fit: 2 to 3 x the seen P95, 6,389 tokens (5,000 to 10,000 tokens)"
    )
    for limit, state, certainty in (
        (9999, "too_low", Certainty.CERTAIN),
        (10_000, "too_low", Certainty.LIKELY),
        (15_000, "fits", Certainty.LIKELY),
        (30_000, "too_high", Certainty.LIKELY),
        (30_001, "too_high", Certainty.CERTAIN),
    ):
        found = judged(PROMPTS, seen, max_prompt_tokens=limit)
        assert (found.state, found.certainty) == (state, certainty), limit
    exact = judged(PROMPTS, {"prompt_tokens_p95": quantile(6000, 6389, 6500)}, max_prompt_tokens=15_000)
    assert (exact.state, exact.certainty) == ("fits", Certainty.CERTAIN)


def test_few_observations_leave_planned_lengths() -> None:
    few = {"prompt_tokens_p95": quantile(100, 150, 200, n=99)}
    assert "the planned P95" in judged(PROMPTS, few, max_prompt_tokens=9000).sentence
    enough = {"prompt_tokens_p95": quantile(100, 150, 200, n=100)}
    assert "the seen P95" in judged(PROMPTS, enough, max_prompt_tokens=9000).sentence


def test_open_bucket_proves_low_limits_only() -> None:
    seen = {"prompt_tokens_p95": quantile(20_000, None, None)}
    low = judged(PROMPTS, seen, max_prompt_tokens=39_999)
    assert (low.state, low.certainty, low.high, low.proposed) == ("too_low", Certainty.CERTAIN, None, None)
    assert "40,000 or more fit" in low.sentence
    above = judged(PROMPTS, seen, max_prompt_tokens=40_001)
    assert (above.state, above.certainty) == ("fits", Certainty.LIKELY)


def test_longer_requests_prove_unenforced_limit() -> None:
    seen = {"generation_tokens_p99": quantile(2000, 3000, 5000)}
    for limit, certainty in ((2000, Certainty.CERTAIN), (2500, Certainty.LIKELY)):
        found = judged(OUTPUTS, seen, max_generation_tokens=limit)
        assert (found.state, found.certainty) == ("ineffective", certainty)
        assert "is not enforced, or cuts, as P99 is 2,000 to 5,000 tokens" in found.sentence
    assert judged(OUTPUTS, seen, max_generation_tokens=3000).state == "too_low"
    prompts = {"prompt_tokens_p95": quantile(500, 800, 1000), "prompt_tokens_p99": quantile(2000, 3000, 5000)}
    assert judged(PROMPTS, prompts, max_prompt_tokens=1900).state == "ineffective"


def test_a_tier_may_move_the_thresholds() -> None:
    moved = {"Guardrails": {"most_headroom": 4.0, "low": 0.5}}
    assert judged(PROMPTS, overrides=moved, max_prompt_tokens=16_000).state == "fits"
    assert judged(BREAKER, overrides=moved, queue_breaker=50).state == "fits"


@pytest.mark.parametrize("value", [0, 1e-300, 1e300, -1.0])
@pytest.mark.parametrize("name", CATALOGUE["Guardrails"].thresholds)
def test_every_threshold_is_answered(name: str, value: float) -> None:
    seen = {"prompt_tokens_p95": quantile(5000, 6389, 10_000), "prompt_tokens_p99": quantile(6000, 7000, 10_000)}
    for key, planned in ((PROMPTS, 12_000), (OUTPUTS, 2000), (BREAKER, 85)):
        assert judged(key, seen, 60.0, {"Guardrails": {name: value}}, **{key: planned}).sentence


def remarks(**parts: Any) -> list[PlanWarning]:
    found = check_plan(parse_plan(whole(**parts)), CATALOGUE)
    return [one for one in found if one.path.startswith("tiers.t.guardrails")]


def test_plan_check_warns_of_guardrails() -> None:
    fitting = {"max_prompt_tokens": 9000, "max_generation_tokens": 2000}
    assert remarks(**fitting, queue_breaker=85) == []
    assert remarks(**fitting, queue_breaker=85, workload={}) == []
    (told,) = remarks(**fitting, queue_breaker=12)
    assert (told.path, told.severity) == ("tiers.t.guardrails.queue_breaker", "warning")
    assert told.text.startswith("queue breaker 12 sheds too early, at 12%; 80 to 90 fit")
    (missing,) = remarks(**fitting)
    assert (missing.path, missing.severity) == ("tiers.t.guardrails.queue_breaker", "info")
    (told,) = remarks()
    assert (told.path, told.severity) == ("tiers.t.guardrails", "info")
    assert told.text.startswith("is not in the plan; no prompt limit; 8,000 to 12,000 fit")
    (bare,) = remarks(workload={})
    assert bare.text == "is not in the plan"


def test_limit_below_p95_is_a_mistake() -> None:
    worst = remarks(max_prompt_tokens=3000, max_generation_tokens=2000, queue_breaker=85)
    assert [(one.severity, one.path) for one in worst] == [("mistake", f"tiers.t.guardrails.{PROMPTS}")]
    p95_only = {"generation_tokens": {"p95": 500}}
    found = remarks(workload=p95_only, max_generation_tokens=400)
    assert ("mistake", f"tiers.t.guardrails.{OUTPUTS}") in [(one.severity, one.path) for one in found]
