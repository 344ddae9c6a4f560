"""Recordings with fewer scrapes than were made, and what the rules said of them scrape by scrape."""

import gzip
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import recorded

from agent.config.files import load_plan
from agent.replay import replay as replaying
from agent.sources.recording import Recording, load
from rules.evaluator.observation import Observation
from rules.plan.schema import Plan
from rules.verdicts.verdict import RuleResult, Subject

Answers = Mapping[tuple[str, Subject], RuleResult]

LATE_SECONDS = 0.5
"""A scrape this much before it is due is the one that is due: the recorder's clock is no metronome."""


def thin(name: str, seconds: float, into: Path) -> Path:
    """A folder with the recording as an agent that scrapes every so many seconds would have made it."""
    made = into / f"{name}-{seconds:g}"
    shutil.copytree(recorded.folder(name), made)
    for path in made.glob("*.jsonl.gz"):
        kept: list[str] = []
        due = float("-inf")
        with gzip.open(path, "rt") as lines:
            for line in lines:
                t = json.loads(line)["t"]
                if t >= due - LATE_SECONDS:
                    kept.append(line)
                    due = t + seconds
        with gzip.open(path, "wt", compresslevel=1) as file:
            file.writelines(kept)
    return made


def plan_of(recording: Recording) -> Plan | None:
    """The plan that has all of its tiers; None where there is none."""
    tiers = {target.tier for target in recording.targets}
    plans = (load_plan(recorded.PLANS / name) for name in ("cpu-small.yaml", "mixed-tier.yaml"))
    return next((plan for plan in plans if tiers <= plan.tiers.keys()), None)


def judge(folder: Path) -> list[tuple[float, Answers]]:
    """What stood after each scrape of a recording, with its time."""
    kept: list[tuple[float, Answers]] = []

    class Keeping(replaying.Replay):
        def evaluate(self, observation: Observation) -> None:
            super().evaluate(observation)
            kept.append((observation.now, {key: state.result for key, state in self.state.rules.items()}))

    recording, _ = load(folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(replaying, "Replay", Keeping)
        replaying.replay(recording, plan_of(recording))
    return kept
