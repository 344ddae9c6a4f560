"""Recordings with a known cause: one incident, its root the true cause. On quiet ones nothing is louder than a note.

The truth is in `recording.yaml`: `root_by_plan` has the true root against each plan, an empty list where nothing is wrong.
"""

from functools import cache
from typing import Any

import pytest
import recorded
import yaml

from agent.config.files import load_plan
from agent.replay.replay import Replay, replay
from agent.sources.recording import load
from rules.evaluator.incidents import Incident, group_incidents
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Finding


@cache
def truth(name: str) -> dict[str, Any]:
    text = (recorded.folder(name) / "recording.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)["truth"]
    return found


CASES = [(name, plan) for name in recorded.names() for plan in truth(name)["root_by_plan"]]


def incidents(name: str, plan: str) -> tuple[Incident, ...]:
    recording, _ = load(recorded.folder(name))
    done: Replay = replay(recording, None if plan == "none" else load_plan(recorded.PLANS / f"{plan}.yaml"))
    found = [one for one in done.ended if isinstance(one, Finding)]
    return group_incidents([*found, *(state.finding for state in done.rule_states if state.finding)])


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_known_cause_is_only_root(name: str, plan: str) -> None:
    found = incidents(name, plan)
    roots = truth(name)["root_by_plan"][plan]
    if roots:
        assert [one.root.rule for one in found] == roots
    else:
        assert [one.root.rule for one in found if one.severity is not Severity.REPORT] == []


def test_every_recording_names_its_cause() -> None:
    assert all(truth(name)["cause"] for name in recorded.names())
    assert len(CASES) > 50
