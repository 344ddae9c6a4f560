"""Recordings of the tests: where they stand (those that the demo ships are its package data), their replays, their production."""

import csv
import functools
import gzip
from pathlib import Path
from tempfile import TemporaryDirectory

from paths import TESTS

from agent.config.files import load_plan
from agent.history.daily_queries import read_production
from agent.history.store import HistoryStore
from agent.replay.replay import Replay, replay
from agent.sources.recording import load
from rules.evaluator.observation import ClosedMinute
from rules.plan.load_bins import bin_window
from rules.plan.schema import Plan
from rules.resize.production_summary import ProductionSummary
from rules.telemetry.windows import HOUR_SECONDS
from rules.verdicts.verdict import Finding

HERE = TESTS
FOLDERS = (HERE / "recordings", HERE.parent / "agent" / "demo" / "recordings")
PLANS = HERE / "plans"


def folder(name: str) -> Path:
    for parent in FOLDERS:
        if (parent / name / "recording.yaml").is_file():
            return parent / name
    raise FileNotFoundError(f"no recording {name} in {', '.join(map(str, FOLDERS))}")


def names() -> list[str]:
    return sorted(path.parent.name for parent in FOLDERS for path in parent.glob("*/recording.yaml"))


def requests(name: str) -> list[dict[str, str]]:
    """What the clients measured: a row a request."""
    with gzip.open(folder(name) / "requests.csv.gz", "rt", newline="") as rows:
        return list(csv.DictReader(rows))


@functools.cache
def replayed(name: str, plan: str | None = None) -> Replay:
    """The replay of a recording, with a plan of the tests' folder or with none."""
    recording, problems = load(folder(name))
    assert problems == ()
    return replay(recording, load_plan(PLANS / f"{plan}.yaml") if plan else None)


def findings(done: Replay) -> dict[str, Finding]:
    """The last finding of each rule, ended or open."""
    every = [one for one in done.ended if isinstance(one, Finding)]
    return {one.rule: one for one in [*every, *(s.finding for s in done.rule_states if s.finding is not None)]}


def read_recorded(name: str, plan: Plan | None = None) -> ProductionSummary:
    """Return the summary of a recording's first tier."""
    result = replay(load(folder(name))[0], plan)
    tier, context = next(iter(result.contexts.items()))
    minutes = [shown for shown in result.windows if shown.tier == tier and shown.replica is not None]
    with TemporaryDirectory() as place, HistoryStore(f"{place}/history.db") as store:
        store.book(
            ClosedMinute(tier=tier, plan_version="", slice=bin_window(shown.window, context.curve, shown.replica or ""))
            for shown in minutes
        )
        return read_production(store, context, result.start // HOUR_SECONDS * HOUR_SECONDS, result.end)
