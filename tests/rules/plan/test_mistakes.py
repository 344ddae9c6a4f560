"""Mistakes of a tired engineer: each is told first, with its path and what to write instead, and none where a plan is sound."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from paths import TESTS

from agent.cli import main
from rules.catalogue.registry import CATALOGUE
from rules.plan.checks import check_plan
from rules.plan.schema import parse_plan

GUIDE = TESTS / "plans" / "guide-h100.yaml"
TIER = "h100-llama70b-fp8"

Edit = Callable[[dict[str, Any]], object]


def put(path: str, value: Any) -> Edit:
    def edit(tier: dict[str, Any]) -> None:
        *keys, last = path.split(".")
        for key in keys:
            tier = tier[key]
        tier[last] = value

    return edit


def times(factor: float, *names: str, lowest: bool = False) -> Edit:
    """Of every point of the curve, or of the lowest alone."""

    def edit(tier: dict[str, Any]) -> None:
        for point in tier["curve"]["points"][: 1 if lowest else None]:
            point.update({name: point[name] * factor for name in names})

    return edit


def also(name: str, value: float) -> Edit:
    """Of the lowest point."""
    return lambda tier: tier["curve"]["points"][0].update({name: value})


def not_streamed(tier: dict[str, Any]) -> None:
    point = tier["curve"]["points"][0]
    point.update(e2e_p99_seconds=point["ttft_p99_seconds"], tpot_p50_seconds=None, tpot_p99_seconds=None)


def requests(*numbers: int) -> Edit:
    def edit(tier: dict[str, Any]) -> None:
        for point, number in zip(tier["curve"]["points"], numbers, strict=True):
            point["requests"] = number

    return edit


def edited(*edits: Edit) -> dict[str, Any]:
    plan: dict[str, Any] = yaml.safe_load(GUIDE.read_text(encoding="utf-8"))
    for edit in edits:
        edit(plan["tiers"][TIER])
    return plan


def mistakes(*edits: Edit) -> list[tuple[str, str]]:
    found = check_plan(parse_plan(edited(*edits)), CATALOGUE)
    told = [(one.path.removeprefix(f"tiers.{TIER}."), one.text) for one in found if one.severity == "mistake"]
    assert [one.severity for one in found[: len(told)]] == ["mistake"] * len(told), "a mistake is not told first"
    return told


@pytest.mark.parametrize(
    ("edit", "path", "words"),
    [
        (put("slo.ttft_p99_seconds", 2000), "slo.ttft_p99_seconds", "if it is milliseconds, write 2"),
        (put("slo.ttft_p99_seconds", 61.0), "slo.ttft_p99_seconds", "61 s is above 60"),
        (put("slo.ttft_p99_seconds", 0.002), "slo.ttft_p99_seconds", "0.002 s is below 0.005"),
        (put("slo.tpot_p99_seconds", 50), "slo.tpot_p99_seconds", "if it is milliseconds, write 0.05"),
        (put("slo.itl_p99_seconds", 30), "slo.itl_p99_seconds", "if it is milliseconds, write 0.03"),
        (put("cost.gpu_hour_price", 1825), "cost.gpu_hour_price", "1825 is above 25"),
        (put("cost.gpu_hour_price", 250), "cost.gpu_hour_price", "250 is above 25"),
        (put("cost.gpu_hour_price", 0.0007), "cost.gpu_hour_price", "0.0007 is below 0.01"),
        (put("cold_start_seconds", 2), "cold_start_seconds", "2 s is below 5"),
        (put("cold_start_seconds", 120_000), "cold_start_seconds", "if it is milliseconds, write 120"),
        (put("workload.prompt_tokens.p50", 0.9), "workload.prompt_tokens.p50", "0.9 is below 1"),
        (put("speculation.verify_step_seconds", 24), "speculation.verify_step_seconds", "milliseconds, write 0.024"),
        (times(1000, "ttft_p99_seconds", lowest=True), "slo.ttft_p99_seconds", "220 s at its lowest load"),
        (times(100, "eviction_rate"), "curve.points[6].eviction_rate", "19 is above 2"),
        (put("engine", "vLLM"), "engine", "did you mean vllm?"),
        (
            put("slo.ttft_p99_seconds", 0.05),
            "slo.ttft_p99_seconds",
            "0.05 s is below all that the curve measured: 0.22 s at its lowest load, 1.6 completed rps",
        ),
        (
            times(13, "completed_rps", "requested_rps", "output_tokens_per_second"),
            "curve.points",
            "times the concurrency (Little's law)",
        ),
        (
            times(0.001, "ttft_p50_seconds", "tpot_p50_seconds"),
            "curve.points",
            "completed_rps x time in system is 0.00114 times the concurrency",
        ),
        (
            also("e2e_p99_seconds", 0.1),
            "curve.points[0]",
            "TTFT P99 0.22 s is above E2E P99 0.1 s, which cannot be; correct them, or benchmark again",
        ),
        (
            also("e2e_p99_seconds", 1.0),
            "curve.points[0]",
            "TTFT P50 + TPOT P50 x tokens is ",
        ),
        (
            not_streamed,
            "curve.points[0]",
            "TTFT P99 0.22 s is E2E P99 0.22 s for 230 tokens: answers were not streamed, which cannot be",
        ),
        (
            put("workload.requests_per_second", {"average": 3900, "peak": 7200}),
            "fleet.instances",
            "carry 156 rps, 0.0217 times the peak of 7200; Step 11 asks for 780; write requests per second",
        ),
        (put("guardrails.max_prompt_tokens", 512), "guardrails.max_prompt_tokens", "below the planned P95 of 3,800"),
        (
            requests(16, 16, 16, 16, 16, 16, 16),
            "curve.points",
            "a load of 16 requests, whose P99 is the slowest of them; the true P99 is above it with a probability of 85%",
        ),
    ],
)
def test_grave_mistake_comes_first_with_path(edit: Edit, path: str, words: str) -> None:
    found = mistakes(edit)
    assert [text for place, text in found if place == path and words in text], found


@pytest.mark.parametrize(
    "edit",
    [
        put("slo.ttft_p99_seconds", 60.0),
        put("cost", {"gpu_hour_price": 400, "currency": "JPY"}),
        put("cold_start_seconds", 3600),
        lambda tier: tier["curve"]["points"].reverse(),
        times(100, "ttft_p99_seconds"),
        # Only what the capacity rests on, 10 and 14 rps, must have a P99.
        requests(16, 16, 16, 100, 100, 16, 16),
        put("guardrails.max_prompt_tokens", 3800),
        put("operating_point", {"usable_rps": 24, "source": "production"}),
        put("workload.requests_per_second", {"average": 600, "peak": 1560}),
    ],
)
def test_what_is_only_unusual_is_no_mistake(edit: Edit) -> None:
    # Long first tokens at every load break the objective, which is told; that is all.
    assert [found for found in mistakes(edit) if "is below all that the curve measured" not in found[1]] == []


def test_a_batch_may_take_its_time() -> None:
    slow = put("slo", {"ttft_p99_seconds": 2000.0})
    assert mistakes(slow)
    assert mistakes(slow, put("workload.archetype", "batch")) == []


def test_sound_plans_cross_no_limit() -> None:
    assert mistakes() == []


def test_mistake_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(edited(put("slo.ttft_p99_seconds", 2000))), encoding="utf-8")
    assert main.main(["plan", "check", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"mistake: tiers.{TIER}.slo.ttft_p99_seconds: 2000 s is above 60")
    assert lines[-1] == f"{path}: 1 grave mistake; correct the plan before anything follows it (1 tier, 4 remarks)"
    assert main.main(["plan", "check", str(GUIDE)]) == 0
    assert capsys.readouterr().out == f"{GUIDE}: a valid plan of 1 tier, 0 remarks\n"


def test_mistakes_precede_other_tiers_remarks() -> None:
    plan = edited(put("cost", None))
    plan["tiers"]["second"] = copy.deepcopy(edited(put("cold_start_seconds", 2))["tiers"][TIER])
    assert [one.path for one in check_plan(parse_plan(plan), CATALOGUE)] == [
        "tiers.second.cold_start_seconds",
        f"tiers.{TIER}.cost",
    ]


def test_impossible_milliseconds_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(edited(put("slo.itl_p99_seconds", 150))), encoding="utf-8")
    assert main.main(["plan", "check", str(path)]) == 2
    assert "slo.itl_p99_seconds: must be at most 60 (seconds: 150 ms are written 0.15)" in capsys.readouterr().err
