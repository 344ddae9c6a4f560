"""Guardrails against planned and observed lengths and arrivals: each state, by the guide's numbers (9.4)."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from golden_text import check_golden

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


@pytest.mark.parametrize(("rps", "fitting"), [(6.0, (10, 11)), (3.0, (5, 5)), (1.0, (2, 2)), (0.2, (1, 1))])
def test_small_fleet_has_a_fitting_number(rps: float, fitting: tuple[int, int]) -> None:
    peak = {"requests_per_second": {"peak": rps}}
    for depth in range(1, 40):
        found = judged(BREAKER, workload=peak, queue_breaker=depth)
        assert (found.low, found.high) == fitting
        assert (found.state == "fits") is (fitting[0] <= depth <= fitting[1]), depth


CERTAIN, LIKELY = Certainty.CERTAIN, Certainty.LIKELY
SEEN = {"prompt_tokens_p95": quantile(5000, 6389, 10_000)}
EXACT = {"prompt_tokens_p95": quantile(6000, 6389, 6500)}
OPEN_ENDED = {"prompt_tokens_p95": quantile(20_000, None, None)}
LONG_OUTPUTS = {"generation_tokens_p99": quantile(2000, 3000, 5000)}
LONG_PROMPTS = {"prompt_tokens_p95": quantile(500, 800, 1000), "prompt_tokens_p99": quantile(2000, 3000, 5000)}
MOVED = {"Guardrails": {"most_headroom": 4.0, "low": 0.5}}


@pytest.mark.parametrize(
    ("key", "limits", "parts", "state"),
    [
        # 80 to 90 % of what arrives within the objective, 100.
        (BREAKER, (1, 40, 79), {}, "too_low"),
        (BREAKER, (80, 85, 90), {}, "fits"),
        (BREAKER, (91, 100), {}, "too_high"),
        (BREAKER, (101, 1000), {}, "ineffective"),
        # 2 to 3 times the planned P95 of prompts, or P99 of outputs.
        (PROMPTS, (3999,), {}, "refuses"),
        (PROMPTS, (4000, 7999), {}, "too_low"),
        (PROMPTS, (8000, 12_000), {}, "fits"),
        (PROMPTS, (12_001, 131_072), {}, "too_high"),
        (OUTPUTS, (499,), {}, "refuses"),
        (OUTPUTS, (1799,), {}, "too_low"),
        (OUTPUTS, (1800,), {}, "fits"),
        (OUTPUTS, (2701,), {}, "too_high"),
        # Lengths that were seen, and their bounds, count before planned ones.
        (PROMPTS, (9999,), {"seen": SEEN}, "too_low"),
        (PROMPTS, (10_000, 12_000), {"seen": SEEN}, "too_low likely"),
        (PROMPTS, (15_000,), {"seen": SEEN}, "fits likely"),
        (PROMPTS, (30_000,), {"seen": SEEN}, "too_high likely"),
        (PROMPTS, (30_001,), {"seen": SEEN}, "too_high"),
        (PROMPTS, (15_000,), {"seen": EXACT}, "fits"),
        # An open bucket proves low limits only.
        (PROMPTS, (39_999,), {"seen": OPEN_ENDED}, "too_low"),
        (PROMPTS, (40_001,), {"seen": OPEN_ENDED}, "fits likely"),
        # Longer requests prove a limit that is not enforced.
        (OUTPUTS, (2000,), {"seen": LONG_OUTPUTS}, "ineffective"),
        (OUTPUTS, (2500,), {"seen": LONG_OUTPUTS}, "ineffective likely"),
        (OUTPUTS, (3000,), {"seen": LONG_OUTPUTS}, "too_low"),
        (PROMPTS, (1900,), {"seen": LONG_PROMPTS}, "ineffective"),
        # The busiest arrivals count for the breaker.
        (BREAKER, (85,), {"rps": 2.0}, "fits"),
        (BREAKER, (85,), {"rps": 100.0}, "too_low"),
        (BREAKER, (85,), {"rps": 50.0, "workload": None}, "fits"),
        # A tier may move the thresholds.
        (PROMPTS, (16_000,), {"overrides": MOVED}, "fits"),
        (BREAKER, (50,), {"overrides": MOVED}, "fits"),
    ],
)
def test_limit_fits_by_lengths_and_arrivals(
    key: str, limits: tuple[int, ...], parts: dict[str, Any], state: str
) -> None:
    for limit in limits:
        found = judged(key, **parts, **{key: limit})
        assert f"{found.state}{' likely' if found.certainty is LIKELY else ''}" == state, limit
        assert (found.status == "ok") is state.startswith("fits")


FEW, ENOUGH = ({"prompt_tokens_p95": quantile(100, 150, 200, n=n)} for n in (99, 100))
SENTENCES: list[tuple[str, dict[str, Any]]] = [
    *((BREAKER, {BREAKER: depth}) for depth in (85, 40, 95, 101)),
    (BREAKER, {}),
    (BREAKER, {BREAKER: 85, "rps": 100.0}),
    (BREAKER, {BREAKER: 85, "workload": None}),
    (PROMPTS, {}),
    (PROMPTS, {PROMPTS: 12_000, "seen": SEEN}),
    (PROMPTS, {PROMPTS: 39_999, "seen": OPEN_ENDED}),
    # Few observations leave planned lengths.
    *((PROMPTS, {"seen": seen}) for seen in (FEW, ENOUGH)),
    (OUTPUTS, {OUTPUTS: 2000, "seen": LONG_OUTPUTS}),
    # A limit that is missing is told with its fit.
    (OUTPUTS, {}),
    (OUTPUTS, {"workload": {}}),
]


def test_sentences_read_as_the_golden() -> None:
    """Each with what would fit, from and to."""
    found = [judged(key, **{PROMPTS: 9000, **parts}) for key, parts in SENTENCES]
    check_golden(__file__, "guardrails.txt", "\n".join(f"{one.low} to {one.high}: {one.sentence}" for one in found))


def test_missing_unknown_and_unneeded_limits() -> None:
    missing = judged(OUTPUTS, max_prompt_tokens=9000)
    assert (missing.state, missing.status) == ("missing", "warning")
    assert judged(BREAKER, workload=None, max_prompt_tokens=9000).state == "missing"
    assert judged(BREAKER, workload=None, queue_breaker=85).state == "unknown"
    proposals = [judged(BREAKER, rps=100.0, queue_breaker=85), judged(PROMPTS, OPEN_ENDED, max_prompt_tokens=39_999)]
    assert [one.proposed for one in proposals] == [170, None]
    tier = parse_plan(whole(slo=None)).tiers["t"]
    found = judge_guardrails(tier, partial(CATALOGUE["Guardrails"].limit, overrides={}), {}, None)
    assert [guardrail.key for guardrail in found] == [PROMPTS, OUTPUTS], "a batch needs no breaker"


@pytest.mark.parametrize("value", [0, 1e-300, 1e300, -1.0])
@pytest.mark.parametrize("name", CATALOGUE["Guardrails"].thresholds)
def test_every_threshold_is_answered(name: str, value: float) -> None:
    seen = {"prompt_tokens_p95": quantile(5000, 6389, 10_000), "prompt_tokens_p99": quantile(6000, 7000, 10_000)}
    for key, planned in ((PROMPTS, 12_000), (OUTPUTS, 2000), (BREAKER, 85)):
        assert judged(key, seen, 60.0, {"Guardrails": {name: value}}, **{key: planned}).sentence


def remarks(**parts: Any) -> list[PlanWarning]:
    found = check_plan(parse_plan(whole(**parts)), CATALOGUE)
    return [one for one in found if one.path.startswith("tiers.t.guardrails")]


FITTING = {"max_prompt_tokens": 9000, "max_generation_tokens": 2000}


@pytest.mark.parametrize(
    ("parts", "path", "severity", "words"),
    [
        ({**FITTING, BREAKER: 12}, f".{BREAKER}", "warning", "queue breaker 12 sheds too early, at 12%; 80 to 90 fit"),
        (FITTING, f".{BREAKER}", "info", "no queue breaker; 80 to 90 fit"),
        ({}, "", "info", "is not in the plan; no prompt limit; 8,000 to 12,000 fit"),
        ({"workload": {}}, "", "info", "is not in the plan"),
        ({**FITTING, PROMPTS: 3000, BREAKER: 85}, f".{PROMPTS}", "mistake", ""),
        ({"workload": {"generation_tokens": {"p95": 500}}, OUTPUTS: 400}, f".{OUTPUTS}", "mistake", ""),
    ],
)
def test_plan_check_warns_of_guardrails(parts: dict[str, Any], path: str, severity: str, words: str) -> None:
    (worst, *_) = remarks(**parts)
    assert (worst.path, worst.severity) == (f"tiers.t.guardrails{path}", severity)
    assert worst.text.startswith(words)
    assert remarks(**FITTING, queue_breaker=85) == remarks(**FITTING, queue_breaker=85, workload={}) == []
