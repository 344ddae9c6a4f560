"""Traffic, guardrails and set-up on real recordings: what a recording is about is found, steady traffic is left in peace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import recorded
from paths import SHARED

from agent.cli.main import main

OPEN = recorded.PLANS / "cpu-small-open.yaml"
RULES = frozenset(
    {
        *("WorkloadDrift", "OutputLengthDrift", "BenchmarkNotRepresentative"),
        *("QuantizationMismatch", "ColdStartLate", "AdapterCachePressure"),
    }
)


def found(capsys: pytest.CaptureFixture[str], folder: Path, plan: Path = OPEN) -> dict[str, dict[str, Any]]:
    """What these rules found in a recording, the worst of each."""
    main(["replay", str(folder), "--plan", str(plan), "--format", "json"])
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    return {v["rule"]: v for v in verdicts if v["rule"] in RULES and v["status"] in ("warning", "critical")}


@pytest.mark.parametrize("name", ["diurnal_quiet", "steady_quiet"])
def test_steady_and_diurnal_traffic_on_a_quiet_machine_is_as_planned(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder = SHARED / "recordings" / name
    if name in recorded.names():
        folder = recorded.folder(name)
    if not folder.is_dir():
        pytest.skip(f"{name} is not among the tests' recordings, and ../shared/recordings has none")
    assert found(capsys, folder) == {}


def test_a_busy_machine_makes_the_benchmark_doubtful_and_never_certainly_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = found(capsys, recorded.folder("steady"))
    assert set(told) <= {"BenchmarkNotRepresentative"}
    assert all(one["certainty"] == "likely" for one in told.values())


def test_the_restart_shows_its_two_cold_starts_and_that_one_was_late(capsys: pytest.CaptureFixture[str]) -> None:
    """By the stopwatch 51.1 and 27.9 s; the page tells 50.6 and 26.8. The plan has 40."""
    late = found(capsys, recorded.folder("restart"))["ColdStartLate"]
    assert (late["status"], late["certainty"]) == ("warning", "certain")
    assert late["sentence"] == "1 of 2 starts took longer than the planned 40 s; cpu-small-0 50.6 s"
    assert "timed from process start to ready" in late["details"]


def test_two_adapters_on_one_slot_hold_each_other_up(capsys: pytest.CaptureFixture[str]) -> None:
    told = found(capsys, recorded.folder("lora"))
    pressure = told["AdapterCachePressure"]
    assert (pressure["status"], pressure["certainty"]) == ("warning", "certain")
    assert pressure["sentence"].startswith("Requests wait 406 ms for adapter slots on average; ")
    assert "how often adapters are loaded is not exposed" in pressure["details"]
    assert {"adapters", "adapters held back"} <= {c["cause"] for c in told["BenchmarkNotRepresentative"]["causes"]}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        # The bucket is from 500 tokens on; the plan has a P50 of 80 and a P95 of 120.
        ("prefix", "Prompts are at least 6.2x as long as planned"),
        ("kv_cascade", "as long as planned: P95 500 to 1,000 tokens, 120 planned"),
    ],
)
def test_longer_requests_than_planned_are_named_with_their_factor(
    capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    drift = found(capsys, recorded.folder(name))["WorkloadDrift"]
    assert (drift["status"], drift["certainty"]) == ("warning", "certain")
    assert words in drift["sentence"]


def test_answers_of_the_cascade_are_longer_than_planned(capsys: pytest.CaptureFixture[str]) -> None:
    told = found(capsys, recorded.folder("kv_cascade"))
    assert told["OutputLengthDrift"]["certainty"] == "certain"
