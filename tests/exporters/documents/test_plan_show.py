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


def fleet(warm: int) -> str:
    return shown_with(
        operating_point={"usable_rps": 3},
        workload={"requests_per_second": {"peak": 7}},
        fleet={"instances": 4, "safety_factor": 1.2, "minimum_warm": warm},
    )


def curve_of(*points: dict[str, Any]) -> str:
    return shown_with(curve={"points": list(points)})


GIVEN = {"operating_point": {"usable_rps": 3, "c_max": 9}, "workload": {"requests_per_second": {"peak": 7}}}
BOUNDED = {
    "operating_point": {"usable_rps": 3},
    "workload": {"prompt_tokens": {"p50": 900, "p95": 3800, "p99": 7200}, "generation_tokens": {"p50": 180}},
    "guardrails": {"max_prompt_tokens": 12000},
}
POINT, FLEET_SIZE, CURVE = "Operating point of one replica", "Fleet", "Measured curve of one replica"
SECTIONS = {
    "usable by production": (
        POINT,
        shown("guide-h100", operating_point={"usable_rps": 9.0, "source": "production"}),
    ),
    "too few requests": ("Findings", shown("cpu-small")),
    "curve to its highest load": (POINT, shown("cpu-small-open")),
    "nothing known": (POINT, shown_with(fleet={"instances": 1})),
    "one planned": (FLEET_SIZE, shown_with(fleet={"instances": 1})),
    "usable as given": (POINT, shown_with(**GIVEN)),
    "peak by usable": (FLEET_SIZE, shown_with(**GIVEN)),
    "lengths with bounds": (POINT, shown_with(**BOUNDED)),
    "four warm": (FLEET_SIZE, fleet(warm=4)),
    "one warm": (FLEET_SIZE, fleet(warm=1)),
    "points with gaps": (CURVE, curve_of({"completed_rps": 1.0, "tpot_p99_seconds": 0.02}, {"completed_rps": 2.0})),
    "censored point": (
        CURVE,
        curve_of(
            {"completed_rps": 2, "ttft_p99_seconds": 1}, {"completed_rps": 4, "ttft_p99_seconds": 9, "censored": True}
        ),
    ),
}


def test_page_explains_its_numbers() -> None:
    """13 replicas x 2760 tokens/s x 3600 s x 0.6 = 77.5008 million tokens for 130 USD."""
    texts = [shown("guide-h100")]
    for name, (heading, text) in SECTIONS.items():
        (section,) = (part for part in text.split("\n\n") if part.startswith(heading))
        texts.append(f"# {name}\n{section}")
    check_golden(__file__, "plan.txt", "\n\n".join(texts))
    assert CURVE not in shown_with(fleet={"instances": 1})


@pytest.mark.parametrize("name", NAMES)
def test_page_fits_the_terminal(name: str) -> None:
    assert max(map(len, shown(name).splitlines())) <= WIDTH


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
