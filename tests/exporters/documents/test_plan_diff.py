"""What is different between two plans, in words; the exit code of `plan diff`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from report_samples import POINTS, TIER, plan

from agent.cli import main
from exporters.documents.plan_show import plan_diff
from rules.plan.schema import Plan, parse_plan

FLEET = TIER["fleet"]
FREE, FEWER = plan(cost=None), {**FLEET, "instances": 6}
LONGER = {**TIER["workload"], "prompt_tokens": {**TIER["workload"]["prompt_tokens"], "mean": 1000}}
BOTH = parse_plan({"schema": 1, "tiers": {"t": TIER, "u": TIER}})


def curve(points: Any) -> Plan:
    return plan(curve={"loop": "open", "points": list(points)})


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        (plan(), plan(), ()),
        (
            plan(),
            plan(fleet=FEWER),
            (
                "t: fleet instances: 10 -> 6 (-40%)",
                "t: cost: 1,200 USD a day -> 720 USD a day: 480 USD a day less, 175,200 USD a year",
            ),
        ),
        (
            plan(),
            plan(fleet={**FLEET, "instances": 12}),
            (
                "t: fleet instances: 10 -> 12 (+20%)",
                "t: cost: 1,200 USD a day -> 1,440 USD a day: 240 USD a day more, 87,600 USD a year",
            ),
        ),
        (
            FREE,
            plan(cost=None, fleet=FEWER),
            ("t: fleet instances: 10 -> 6 (-40%)", "t: cost: 480 GPU-hours a day -> 288 GPU-hours a day"),
        ),
        (
            plan(),
            curve(POINTS[:3]),
            (
                "t: benchmark curve: other values, 4 -> 3 points",
                "t: usable requests per second and replica: 7.33 -> 6",
            ),
        ),
        (
            plan(),
            curve({**point, "prompt_tokens_mean": 800} for point in POINTS),
            ("t: benchmark curve: other values, 4 -> 4 points",),
        ),
        (plan(), plan(workload=LONGER), ("t: prompt tokens mean: 800 -> 1,000 (+25%)",)),
        (plan(), BOTH, ("u: the tier is new, 10 replicas, 1,200 USD a day",)),
        (BOTH, plan(), ("u: the tier is gone, 10 replicas, 1,200 USD a day",)),
    ],
    ids=["same", "fewer", "more", "unpriced", "shorter", "values", "length", "new", "gone"],
)
def test_differences_have_a_line_each(before: Plan, after: Plan, lines: tuple[str, ...]) -> None:
    assert plan_diff(before, after) == lines


def test_new_and_missing_keys_are_named() -> None:
    lines = plan_diff(plan(fleet=None), plan(workload=None))
    assert "t: fleet instances: 10, not given before" in lines
    assert "t: prompt tokens p95: 1,900 before, not given any more" in lines
    assert "t: workload archetype: chat before, not given any more" in lines


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
