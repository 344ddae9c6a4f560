"""Life of KV blocks on a real vLLM: a calm cache, then one that holds nothing but what runs (guide 7.7)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from paths import TESTS

from agent.cli import main

FOLDER = TESTS / "residency"
"""220 s of few requests, then 24 at once; every block is sampled. Its plan expects a prefix again after 30 s."""


def replayed(capsys: pytest.CaptureFixture[str], plan: str) -> list[dict[str, Any]]:
    main.main(["replay", str(FOLDER / "kv_churn"), "--plan", plan, "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    found = (one for one in document["verdicts"] if one["rule"] == "KvResidencyShort")
    return [one for one in found if one["status"] == "warning"]


def test_blocks_that_are_gone_before_their_prefix_comes_back_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = replayed(capsys, str(FOLDER / "plan.yaml"))
    events = [json.loads(line) for line in (FOLDER / "kv_churn" / "events.jsonl").read_text().splitlines()]
    churn = next(event["t"] for event in events if event.get("name") == "churn")
    assert (found["status"], found["certainty"]) == ("warning", "certain")
    assert churn < found["started_at"] < churn + 60
    assert 1 / 30 < found["observed"]["value"] < 2 / 30


def test_without_the_planned_time_or_with_a_short_one_nothing_is_noted(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    text = (FOLDER / "plan.yaml").read_text()
    for workload in ("{}", "{prefix_reuse_seconds: 0.5}"):
        plan = tmp_path / "plan.yaml"
        plan.write_text(text.replace("{prefix_reuse_seconds: 30}", workload))
        assert replayed(capsys, str(plan)) == []
