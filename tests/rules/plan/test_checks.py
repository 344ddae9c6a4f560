"""Remarks on plans: weaknesses, and mistakes of a tired engineer, which come first."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from golden_text import check_golden
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


E2E = {"ttft_p99_seconds": 2, "e2e_p99_seconds": 8}
PROMPTS_P50 = {**PARTS["workload"], "prompt_tokens": {"p50": 900}}
NO_OUTPUTS = {**PARTS["workload"], "generation_tokens": None}
FAR_APART = [point(2, 1, concurrency=10), point(4, 4, concurrency=20)]
LONGER = [point(2, 1, output_tokens_per_second=800), point(4, 4, output_tokens_per_second=1600)]
BY_LOAD = [point(2, 1, concurrency=4), point(4, 4, concurrency=8)]
CACHED = [point(2, 1, prefix_hit_ratio=0.8), point(4, 4, prefix_hit_ratio=0.7)]

RATES = {"prefill_tokens_per_second": 4000, "decode_tokens_per_second": 500}

WEAKNESSES: list[dict[str, Any]] = [
    {"operating_point": {"usable_rps": 5}},
    {"operating_point": {"usable_rps": 2.5}},
    {"points": BY_LOAD, "operating_point": {"usable_rps": 3, "c_max": 8}},
    {"points": [point(2, 1), point(4, 4, requests=299)]},
    {"points": [point(2, 1, requests=None)]},
    {"workload": PROMPTS_P50},
    {"workload": NO_OUTPUTS},
    {"points": LONGER},
    {"kind": None},
    {"fleet": {"instances": 1}},
    {"fleet": {"instances": 2, "safety_factor": 1.6}},
    {"fleet": {"instances": 40}},
    {"points": FAR_APART},
    {"points": [point(2, 1, censored=True)]},
    {"points": [point(2, 1, ttft_p99_seconds=None), point(4, 4)]},
    {"curve": None},
    {"cost": None},
    {"fleet": {"instances": 3}, "workload": {"requests_per_second": {"peak": 30}}},
    {"slo": E2E},
    {"points": CACHED},
    {"points": CACHED, "workload": {"archetype": "chat"}},
    {"curve": None, "pools": ["prefill", "decode"], "disaggregation": RATES, "fleet": {"instances": 3}},
]


def test_weaknesses_read_as_the_golden() -> None:
    texts = ["\n".join(f"{one.severity}: {one.path}: {one.text}" for one in found(**case)) for case in WEAKNESSES]
    assert all(texts)
    check_golden(__file__, "checks.txt", "\n\n".join(texts))


BOTH = [point(2, 1, e2e_p99_seconds=4), point(4, 1.5, e2e_p99_seconds=16)]


@pytest.mark.parametrize(
    ("case", "path"),
    [
        *(
            ({"fleet": fleet}, "fleet.safety_factor")
            for fleet in (None, {"instances": 3, "safety_factor": 1.0}, {"instances": 3, "safety_factor": 1.5})
        ),
        ({"points": BOTH, "slo": E2E}, "slo.e2e_p99_seconds"),
        # Rounded and censored points pass.
        ({"operating_point": {"usable_rps": 3.1}}, ""),
        ({"points": [point(2, 1), point(4, 4), point(4.5, 5, requested_rps=9, censored=True)]}, ""),
        ({"points": CACHED, "workload": {**PARTS["workload"], "prefix_hit_ratio": 0.6}}, ""),
    ],
)
def test_what_is_given_and_sound_is_quiet(case: dict[str, Any], path: str) -> None:
    assert [one for one in found(**case) if one.path.startswith(f"tiers.t.{path}")] == []


def test_measured_objective_limits_the_point() -> None:
    plan = parse_plan(plan_document(slo=E2E, curve={"points": BOTH}))
    limited = operating_point(plan.tiers["t"])
    assert (limited.limited_by, limited.usable_rps) == ("e2e_p99_seconds", pytest.approx(3.0))


def test_sweeps_are_told_by_their_worth() -> None:
    told = {name: check_plan(plan_of(name), CATALOGUE) for name in ("cpu-small", "cpu-small-open", "cpu-small-cached")}
    severities = [one.severity for one in told["cpu-small"]]
    assert severities == sorted(severities, reverse=True), "warnings come before notes"
    warnings = {name: " ".join(f.text for f in several if f.severity == "warning") for name, several in told.items()}
    assert "fewer than 300 requests" in warnings["cpu-small"]
    assert warnings["cpu-small-open"] == ""
    assert "of its prompt tokens in the prefix cache" in warnings["cpu-small-cached"]
    (no_knee, *_) = told["cpu-small-open"]
    assert {one.severity for one in told["cpu-small-open"]} == {"info"}
    assert no_knee.text.startswith("no measured load breaks the SLO; usable rps, 7.886, is a lower bound")


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
    apart = [one for one in found(pools=["prefill", "decode"], workload=workload) if one.path == "tiers.t.pools"]
    assert [("do not disaggregate" in one.text, one.severity) for one in apart] == [(True, "warning")] * told
    assert not [one for one in found(workload=workload) if one.path == "tiers.t.pools"]


GUIDE = PLANS / "guide-h100.yaml"
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


OVERRUN = ("workload.requests_per_second", {"average": 3900, "peak": 7200})

MISTAKES: list[Edit] = [
    put("slo.ttft_p99_seconds", 2000),
    put("slo.ttft_p99_seconds", 61.0),
    put("slo.ttft_p99_seconds", 0.002),
    put("slo.tpot_p99_seconds", 50),
    put("slo.itl_p99_seconds", 30),
    put("cost.gpu_hour_price", 1825),
    put("cost.gpu_hour_price", 250),
    put("cost.gpu_hour_price", 0.0007),
    put("cold_start_seconds", 2),
    put("cold_start_seconds", 120_000),
    put("workload.prompt_tokens.p50", 0.9),
    put("speculation.verify_step_seconds", 24),
    times(1000, "ttft_p99_seconds", lowest=True),
    times(100, "eviction_rate"),
    put("engine", "vLLM"),
    put("slo.ttft_p99_seconds", 0.05),
    times(13, "completed_rps", "requested_rps", "output_tokens_per_second"),
    times(0.001, "ttft_p50_seconds", "tpot_p50_seconds"),
    also("e2e_p99_seconds", 0.1),
    also("e2e_p99_seconds", 1.0),
    not_streamed,
    put(*OVERRUN),
    put("guardrails.max_prompt_tokens", 512),
    requests(*[16] * 7),
]


def test_grave_mistakes_come_first() -> None:
    texts = ["\n".join(f"{path}: {text}" for path, text in mistakes(edit)) for edit in MISTAKES]
    assert all(texts)
    check_golden(__file__, "mistakes.txt", "\n\n".join(texts))


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


def checked(folder: Path, *edits: Edit) -> tuple[int, Path]:
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(edited(*edits)), encoding="utf-8")
    return main.main(["plan", "check", str(path)]), path


def test_mistake_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, path = checked(tmp_path, put("slo.ttft_p99_seconds", 2000))
    lines = capsys.readouterr().out.splitlines()
    assert (status, lines[0].startswith(f"mistake: tiers.{TIER}.slo.ttft_p99_seconds: 2000 s is above 60")) == (1, True)
    assert lines[-1] == f"{path}: 1 grave mistake; correct the plan before anything follows it (1 tier, 4 remarks)"
    assert checked(tmp_path)[0] == 0
    assert capsys.readouterr().out == f"{path}: a valid plan of 1 tier, 0 remarks\n"
    assert checked(tmp_path, put("slo.itl_p99_seconds", 150))[0] == 2
    assert "slo.itl_p99_seconds: must be at most 60 (seconds: 150 ms are written 0.15)" in capsys.readouterr().err


def test_mistakes_precede_other_tiers_remarks() -> None:
    plan = edited(put("cost", None))
    plan["tiers"]["second"] = copy.deepcopy(edited(put("cold_start_seconds", 2))["tiers"][TIER])
    assert [one.path for one in check_plan(parse_plan(plan), CATALOGUE)] == [
        "tiers.second.cold_start_seconds",
        f"tiers.{TIER}.cost",
    ]
