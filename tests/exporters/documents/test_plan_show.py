"""A plan as a page, and what is different between two plans; the exit code of `plan diff`."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from golden_text import check_golden
from making import plan_document
from paths import TESTS
from report_samples import POINTS, TIER, plan

from agent.cli import main
from exporters.documents.plan_show import plan_diff, show
from exporters.render.terminal import WIDTH
from rules.plan.schema import Plan, parse_plan

PLANS = TESTS / "plans"
NAMES = {"cpu-small": "cpu-small", "cpu-small-open": "cpu-small", "guide-h100": "h100-llama70b-fp8"}


def shown(name: str, **parts: Any) -> str:
    tiers = yaml.safe_load((PLANS / f"{name}.yaml").read_text(encoding="utf-8"))["tiers"]
    tiers[NAMES[name]] |= parts
    return show(parse_plan({"schema": 1, "tiers": tiers}), NAMES[name])


def shown_with(**parts: Any) -> str:
    return show(parse_plan(plan_document(**{"gpu": {"product": "A", "per_replica": 2}, **parts})), "t")


@pytest.mark.parametrize("name", NAMES)
def test_page_fits_the_terminal(name: str) -> None:
    assert max(map(len, shown(name).splitlines())) <= WIDTH


def test_guide_plan_has_its_golden_page() -> None:
    """13 replicas x 2760 tokens/s x 3600 s x 0.6 = 77.5008 million tokens for 130 USD."""
    check_golden(__file__, "plan.txt", shown("guide-h100"))


@pytest.mark.parametrize(
    ("points", "rows"),
    [
        ([{"completed_rps": 1, "tpot_p99_seconds": 0.02}, {"completed_rps": 2}], ["1 20 ms", "2"]),
        (
            [
                {"completed_rps": 2, "ttft_p99_seconds": 1},
                {"completed_rps": 4, "ttft_p99_seconds": 9, "censored": True},
            ],
            ["2 1 s", "4 at least 9 s"],
        ),
    ],
)
def test_curve_shows_bounds_of_its_points(points: list[dict[str, Any]], rows: list[str]) -> None:
    _, _, table = shown_with(curve={"points": points}).partition("Measured curve of one replica\n")
    assert [" ".join(line.split()) for line in table.splitlines()[1:3]] == rows


GIVEN = {"operating_point": {"usable_rps": 3, "c_max": 9}, "workload": {"requests_per_second": {"peak": 7}}}
BOUNDED = {
    "operating_point": {"usable_rps": 3},
    "workload": {"prompt_tokens": {"p50": 900, "p95": 3800, "p99": 7200}, "generation_tokens": {"p50": 180}},
    "guardrails": {"max_prompt_tokens": 12000},
}


def fleet(warm: int) -> dict[str, Any]:
    return {
        "operating_point": {"usable_rps": 3},
        "workload": {"requests_per_second": {"peak": 7}},
        "fleet": {"instances": 4, "safety_factor": 1.2, "minimum_warm": warm},
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (shown("cpu-small-open"), "at least 7.89 completed requests per second; the highest load"),
        (shown("cpu-small-open"), "at least 5.05 requests in the system (Little's law: rps x mean latency)"),
        (
            shown("guide-h100", operating_point={"usable_rps": 9.0, "source": "production"}),
            "9 completed requests per second; measured by production; curve and SLO give 12; benchmark again",
        ),
        (
            shown("guide-h100", operating_point={"usable_rps": 9.0, "source": "production"}),
            "C_max not known: the operating point names none",
        ),
        (shown("cpu-small"), "! curve.points: 6 of 6 points had fewer than 300 requests (16 to 192):"),
        (shown("cpu-small"), "· curve: C_max / SLO, 30.92 / 2 s = 15.46 rps, is 2.11 times"),
        (shown_with(fleet={"instances": 1}), "not known there is no curve that keeps the SLO, and the plan gives none"),
        (shown_with(fleet={"instances": 1}), "planned 1 replica, 2 GPUs"),
        (shown_with(**GIVEN), "usable 3 completed requests per second; as the plan gives it"),
        (shown_with(**GIVEN), "peak 7 rps / 3 usable = 2.33 full replicas"),
        (shown_with(**GIVEN), "C_max / SLO 9 / 2 s = 4.5 rps, 1.5 x usable (guide 8.3: up to 2)"),
        (shown_with(**GIVEN), "measured at lengths that the plan does not tell"),
        (shown_with(**BOUNDED), "measured at 629 to 2,568 prompt tokens and at least 90 output tokens"),
        (
            shown_with(**fleet(warm=4)),
            "4 replicas, 8 GPUs (1.2 x the peak, at most 90% used, one may be lost, at least 4 warm;",
        ),
        (
            shown_with(**fleet(warm=1)),
            "3 replicas, 6 GPUs (1.2 x the peak, at most 90% used; 3 for the peak alone)",
        ),
    ],
)
def test_page_explains_its_numbers(text: str, words: str) -> None:
    assert words in " ".join(text.split())


FLEET = TIER["fleet"]
FEWER = {**FLEET, "instances": 6}
LONGER = {**TIER["workload"], "prompt_tokens": {**TIER["workload"]["prompt_tokens"], "mean": 1000}}
SHORTER = {**TIER["workload"], "archetype": None, "prompt_tokens": {**TIER["workload"]["prompt_tokens"], "p95": None}}
BOTH = parse_plan({"schema": 1, "tiers": {"t": TIER, "u": TIER}})


def curve(points: Any) -> Plan:
    return plan(curve={"loop": "open", "points": list(points)})


DIFFERENCES = {
    "same": (plan(), plan()),
    "fewer": (plan(), plan(fleet=FEWER)),
    "more": (plan(), plan(fleet={**FLEET, "instances": 12})),
    "unpriced": (plan(cost=None), plan(cost=None, fleet=FEWER)),
    "shorter curve": (plan(), curve(POINTS[:3])),
    "other values": (plan(), curve({**point, "prompt_tokens_mean": 800} for point in POINTS)),
    "longer prompts": (plan(), plan(workload=LONGER)),
    "new tier": (plan(), BOTH),
    "gone tier": (BOTH, plan()),
    "new keys": (plan(fleet=None), plan(fleet={"instances": 10, "safety_factor": 1.2})),
    "missing keys": (plan(), plan(workload=SHORTER)),
}


def test_differences_have_a_line_each() -> None:
    lines = [f"# {name}: {line}" for name, plans in DIFFERENCES.items() for line in plan_diff(*plans) or ("none",)]
    check_golden(__file__, "plan_diff.txt", "\n".join(lines))


@pytest.mark.parametrize(
    ("instances", "code", "words"), [(10, 0, "The plans say the same."), (6, 1, "fleet instances: 10 -> 6")]
)
def test_command_exits_by_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], instances: int, code: int, words: str
) -> None:
    for name, count in (("a", 10), ("b", instances)):
        whole = {"schema": 1, "tiers": {"t": {**TIER, "fleet": {"instances": count}}}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(whole), encoding="utf-8")
    assert main.main(["plan", "diff", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]) == code
    assert words in capsys.readouterr().out
