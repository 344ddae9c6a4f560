"""What is different between two plans, in words; the exit code of `plan diff`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from report_samples import POINTS, TIER, plan

from agent.cli import main
from exporters.documents.plan_diff import plan_diff
from rules.plan.schema import parse_plan


def test_the_same_plan_has_no_difference() -> None:
    assert plan_diff(plan(), plan()) == ()


def test_fewer_replicas_and_what_that_saves() -> None:
    lines = plan_diff(plan(), plan(fleet={"instances": 6, "safety_factor": 1.2, "minimum_warm": 2}))
    assert lines == (
        "t: replicas: 10 -> 6 (-40%)",
        "t: cost: 1,200 USD a day -> 720 USD a day: saves 480 USD a day, 175,200 USD a year",
    )


def test_more_replicas_cost_more() -> None:
    lines = plan_diff(plan(), plan(fleet={"instances": 12, "safety_factor": 1.2, "minimum_warm": 2}))
    assert lines[-1] == "t: cost: 1,200 USD a day -> 1,440 USD a day: costs 240 USD a day more, 87,600 USD a year"


def test_without_a_price_gpu_hours_are_told() -> None:
    lines = plan_diff(plan(cost=None), plan(cost=None, fleet={"instances": 6, "safety_factor": 1.2, "minimum_warm": 2}))
    assert lines[-1] == "t: cost: 480 GPU-hours a day -> 288 GPU-hours a day"


def test_what_is_new_and_what_is_gone() -> None:
    lines = plan_diff(plan(fleet=None), plan(workload=None))
    assert "t: replicas: 10, not given before" in lines
    assert "t: prompts, P95 tokens: 1,900 before, not given any more" in lines
    assert "t: kind of traffic: chat before, not given any more" in lines


def test_another_curve_says_what_a_replica_takes() -> None:
    fewer = plan(curve={"loop": "open", "points": list(POINTS[:3])})
    assert plan_diff(plan(), fewer) == (
        "t: benchmark curve: 4 -> 3 points",
        "t: usable requests per second and replica: 7.33 -> 6",
    )
    measured = plan(curve={"loop": "open", "points": [{**point, "prompt_tokens_mean": 800} for point in POINTS]})
    assert plan_diff(plan(), measured) == ("t: benchmark curve: other values at its 4 points",)


def test_a_mean_length_has_words_of_its_own() -> None:
    lengths = {**TIER["workload"], "prompt_tokens": {**TIER["workload"]["prompt_tokens"], "mean": 1000}}
    assert plan_diff(plan(), plan(workload=lengths)) == ("t: prompts, mean tokens: 800 -> 1,000 (+25%)",)


def test_tiers_that_come_and_go_with_their_bill() -> None:
    both = parse_plan({"schema": 1, "tiers": {"t": TIER, "u": TIER}})
    assert plan_diff(plan(), both) == ("u: the tier is new, 10 replicas, 1,200 USD a day",)
    assert plan_diff(both, plan()) == ("u: the tier is gone, 10 replicas, 1,200 USD a day",)


@pytest.mark.parametrize(
    ("instances", "code", "said"), [(10, 0, "The plans say the same."), (6, 1, "replicas: 10 -> 6")]
)
def test_the_command_tells_and_exits_with_1_where_they_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], instances: int, code: int, said: str
) -> None:
    for name, count in (("a", 10), ("b", instances)):
        whole = {"schema": 1, "tiers": {"t": {**TIER, "fleet": {"instances": count}}}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(whole), encoding="utf-8")
    assert main.main(["plan", "diff", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]) == code
    assert said in capsys.readouterr().out
