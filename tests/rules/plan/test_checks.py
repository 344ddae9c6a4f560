from typing import Any

import pytest
import yaml
from making import plan_document
from paths import TESTS

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
