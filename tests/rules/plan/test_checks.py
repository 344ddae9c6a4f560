"""Remarks on plans: weaknesses, and mistakes of a tired engineer, which come first."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from making import plan_document
from paths import TESTS

from agent.cli import main
from rules.catalogue.registry import CATALOGUE
from rules.plan.checks import PlanWarning, check_plan
from rules.plan.curve import operating_point
from rules.plan.schema import Plan, parse_plan, plan_version

PLANS = TESTS / "plans"

# Every part but the curve, so that a test sees the findings of the curve alone.
PARTS: dict[str, Any] = {
    "workload": {
        "prompt_tokens": {"mean": 1300},
        "generation_tokens": {"mean": 230},
        "requests_per_second": {"average": 2, "peak": 4},
        "prefix_hit_ratio": 0.4,
    },
    "fleet": {"instances": 4, "safety_factor": 1.2},
    "cost": {"gpu_hour_price": 1, "currency": "EUR"},
    "cold_start_seconds": 60,
    "guardrails": {"max_prompt_tokens": 6000, "max_generation_tokens": 2000, "queue_breaker": 7},
}
MEASURED = {
    "itl_p99_seconds": 0.01,
    "tpot_p99_seconds": 0.01,
    "gpu_utilization": 0.5,
    "prefix_hit_ratio": 0.5,
    "eviction_rate": 0,
    "requests": 300,
}


def plan_of(name: str) -> Plan:
    return parse_plan(yaml.safe_load((PLANS / f"{name}.yaml").read_text(encoding="utf-8")))


def point(rps: float, ttft: float, **more: Any) -> dict[str, Any]:
    return {"completed_rps": rps, "ttft_p99_seconds": ttft, **MEASURED, **more}


def found(
    points: list[dict[str, Any]] | None = None, kind: str | None = "sm_active", **parts: Any
) -> list[PlanWarning]:
    points = points or [point(2, 1), point(4, 4)]
    curve = {"loop": "open", "gpu_utilization_kind": kind, "points": points}
    return list(check_plan(parse_plan(plan_document(**{"curve": curve, **PARTS, **parts})), CATALOGUE))


def test_a_sound_plan_has_no_findings() -> None:
    assert check_plan(plan_of("guide-h100"), CATALOGUE) == ()
    assert found() == []


def test_open_loop_plan_has_no_knee() -> None:
    infos = check_plan(plan_of("cpu-small-open"), CATALOGUE)
    assert {finding.severity for finding in infos} == {"info"}
    assert infos[0].text == (
        "no measured load breaks the SLO; usable rps, 7.886, is a lower bound: measure higher loads to find the knee"
    )


@pytest.mark.parametrize(
    ("case", "path", "severity", "text"),
    [
        (
            {"operating_point": {"usable_rps": 5}},
            "operating_point.usable_rps",
            "warning",
            "5 is given, curve and SLO give 3 (limited by ttft_p99_seconds); the latter is used",
        ),
        (
            {
                "points": [point(2, 1, concurrency=4), point(4, 4, concurrency=8)],
                "operating_point": {"usable_rps": 3, "c_max": 8},
            },
            "operating_point.c_max",
            "warning",
            "8 is given, curve and SLO give 6 (limited by ttft_p99_seconds); the latter is used",
        ),
        (
            {"points": [point(2, 1), point(4, 4, requests=299)]},
            "curve.points",
            "warning",
            "1 of 2 points had fewer than 300 requests (299): verdicts against them are likely at most, never certain",
        ),
        (
            {"workload": {**PARTS["workload"], "prompt_tokens": {"p50": 900}}},
            "workload.prompt_tokens.mean",
            "info",
            "is given neither here nor by the curve; fleet utilisation counts requests, or has bounds by quantiles",
        ),
        (
            {"workload": {**PARTS["workload"], "generation_tokens": None}},
            "workload.generation_tokens.mean",
            "info",
            "is given neither here nor by the curve; fleet utilisation counts requests, or has bounds by quantiles",
        ),
        (
            {"points": [point(2, 1, output_tokens_per_second=800), point(4, 4, output_tokens_per_second=1600)]},
            "workload.generation_tokens.mean",
            "warning",
            "is 230, the benchmark had 400 a request; fleet utilisation is measured against these",
        ),
        (
            {"points": [point(2, 1, requests=None)]},
            "curve.points",
            "warning",
            (
                "1 of 1 point had fewer than 300 requests (not given): "
                "verdicts against them are likely at most, never certain"
            ),
        ),
        (
            {"kind": None},
            "curve.gpu_utilization_kind",
            "warning",
            ("is missing: only like is compared with like, so GpuUtilizationShortfall will say not_in_plan"),
        ),
        (
            {"fleet": {"instances": 1}},
            "fleet.instances",
            "warning",
            "1 at 3 usable rps each carry 3 rps, 0.75 times the peak of 4; Step 11 asks for 2",
        ),
        (
            {"fleet": {"instances": 2, "safety_factor": 1.6}},
            "fleet.instances",
            "info",
            (
                "2 at 3 usable rps each carry 6 rps, 1.5 times the peak of 4; Step 11 asks for 3, "
                "for the safety factor, a spike or the loss of one replica"
            ),
        ),
        (
            {"points": [point(2, 1, concurrency=10), point(4, 4, concurrency=20)]},
            "curve",
            "info",
            (
                "C_max / SLO, 15 / 2 s = 7.5 rps, is 2.5 times the usable 3 rps; more than 2 x apart, the test's "
                "inputs are not production's (guide 8.4): check its lengths, arrivals and concurrency"
            ),
        ),
        (
            {"points": [point(2, 1, censored=True)]},
            "curve.points",
            "warning",
            ("all points are censored; rules that compare production with it will say not_in_plan"),
        ),
        (
            {"points": [point(2, 1, ttft_p99_seconds=None), point(4, 4)]},
            "curve.points",
            "warning",
            "the lowest load lacks a metric of the SLO, so no operating point follows from the curve",
        ),
        (
            {"curve": None},
            "curve",
            "info",
            ("is not in the plan; rules that compare production with it will say not_in_plan"),
        ),
        (
            {"fleet": {"instances": 40}},
            "fleet.instances",
            "warning",
            (
                "40 at 3 usable rps each carry 120 rps, 30 times the peak of 4; Step 11 asks for 2: make sure that "
                "instances are replicas, not GPUs, and the curve is that of one replica, not of the fleet"
            ),
        ),
        ({"cost": None}, "cost", "info", "is not in the plan; prices are left out"),
        (
            {"fleet": {"instances": 3}, "workload": {"requests_per_second": {"peak": 30}}},
            "fleet.safety_factor",
            "info",
            (
                "is not in the plan and counts as 1; the guide's are 1.2 for predictable traffic, "
                "and 1.5 for a new deployment or high variance"
            ),
        ),
    ],
)
def test_a_weakness_is_found_and_told(case: dict[str, Any], path: str, severity: str, text: str) -> None:
    assert (f"tiers.t.{path}", severity, text) in [(one.path, one.severity, one.text) for one in found(**case)]


@pytest.mark.parametrize(
    "fleet", [None, {"instances": 3, "safety_factor": 1.0}, {"instances": 3, "safety_factor": 1.5}]
)
def test_given_safety_factor_is_respected(fleet: dict[str, Any] | None) -> None:
    assert not [one for one in found(fleet=fleet) if one.path == "tiers.t.fleet.safety_factor"]


def test_unmeasured_objective_is_named() -> None:
    slo = {"ttft_p99_seconds": 2, "e2e_p99_seconds": 8}
    (warning,) = [one for one in found(slo=slo) if one.path == "tiers.t.slo.e2e_p99_seconds"]
    assert (warning.severity, warning.text) == (
        "warning",
        "no point of the curve gives e2e_p99_seconds; the operating point is taken without this objective",
    )
    points = [point(2, 1, e2e_p99_seconds=4), point(4, 1.5, e2e_p99_seconds=16)]
    assert not [one for one in found(points, slo=slo) if one.path == "tiers.t.slo.e2e_p99_seconds"]
    tier = {"model": "m", "engine": "vllm", "gpu": {"product": "A", "per_replica": 1}, "slo": slo}
    plan = parse_plan({"schema": 1, "tiers": {"t": {**tier, "curve": {"points": points}}}})
    limited = operating_point(plan.tiers["t"])
    assert (limited.limited_by, limited.usable_rps) == ("e2e_p99_seconds", pytest.approx(3.0))


def test_rounded_and_censored_points_pass() -> None:
    assert found(operating_point={"usable_rps": 3.1}) == []
    assert found([point(2, 1), point(4, 4), point(4.5, 5, requested_rps=9, censored=True)]) == []


def test_warnings_come_before_notes() -> None:
    severities = [finding.severity for finding in check_plan(plan_of("cpu-small"), CATALOGUE)]
    assert severities == sorted(severities, reverse=True)


def test_sweeps_are_told_by_their_worth() -> None:
    def warnings(name: str) -> str:
        return " ".join(f.text for f in check_plan(plan_of(name), CATALOGUE) if f.severity == "warning")

    assert "fewer than 300 requests" in warnings("cpu-small")
    assert warnings("cpu-small-open") == ""
    assert "of its prompt tokens in the prefix cache" in warnings("cpu-small-cached")


@pytest.mark.parametrize(
    ("measured", "paths"),
    [
        ({"tensor_parallel": 4, "pipeline_parallel": 1, "data_parallel": 2}, []),
        ({"tensor_parallel": 8}, ["tensor_parallel"]),
        ({"pipeline_parallel": 2, "data_parallel": 1}, ["pipeline_parallel", "data_parallel"]),
        ({"engine_version": "0.32.0"}, []),
    ],
)
def test_a_curve_of_another_parallelism_is_told(measured: dict[str, Any], paths: list[str]) -> None:
    curve = {"loop": "open", "gpu_utilization_kind": "sm_active", "points": [point(2, 1), point(4, 4)]}
    gpus = {"product": "A", "per_replica": 8, "tensor_parallel": 4, "interconnect": "nvlink"}
    told = found(gpu=gpus, curve={**curve, "measured": measured})
    assert [(one.path, one.severity) for one in told] == [(f"tiers.t.curve.measured.{key}", "warning") for key in paths]


def test_provenance_changes_no_plan_version() -> None:
    tier = plan_of("cpu-small").tiers["cpu-small"]
    assert tier.curve.measured is not None
    without = tier.model_copy(update={"curve": tier.curve.model_copy(update={"measured": None})})
    assert plan_version(without) == plan_version(tier)


@pytest.mark.parametrize(
    ("tokens", "told"), [({"p50": 300, "mean": 900}, True), ({"mean": 499}, True), ({"mean": 500}, False)]
)
def test_short_prompts_are_not_worth_two_pools(tokens: dict[str, float], told: bool) -> None:
    workload = {**PARTS["workload"], "prompt_tokens": tokens}
    apart = found(pools=["prefill", "decode"], workload=workload)
    texts = [one.text for one in apart if one.path == "tiers.t.pools"]
    assert bool(texts) is told
    assert all(
        "do not disaggregate" in text and one.severity == "warning" for text, one in zip(texts, apart, strict=False)
    )
    assert not [one for one in found(workload=workload) if one.path == "tiers.t.pools"]


def test_cached_benchmark_is_named() -> None:
    cached = [point(2, 1, prefix_hit_ratio=0.8), point(4, 4, prefix_hit_ratio=0.7)]
    (only,) = found(cached)
    assert (only.path, only.severity) == ("tiers.t.curve.points", "warning")
    assert only.text == (
        "the benchmark found 75% of its prompt tokens in the prefix cache, the workload has 40%: its TTFT may be "
        "that of repeated prompts (one seed for every rate?)"
    )
    assert found(cached, workload={**PARTS["workload"], "prefix_hit_ratio": 0.6}) == []
    assert "the workload has 0%" in found(cached, workload={"archetype": "chat"})[0].text


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
        (also("e2e_p99_seconds", 1.0), "curve.points[0]", "TTFT P50 + TPOT P50 x tokens is "),
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
