"""Folder of a simulated fleet: history, plan and configuration. A folder with any file is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from agent.config.files import load_plan
from agent.demo.simulation.scenario import QUARTER
from agent.demo.simulation.tier_run import TierRun
from agent.demo.simulation.weeks import Progress, fill_weeks
from agent.errors import ConfigError
from agent.history.reader import KEPT, NOTE
from agent.history.schema import MINUTES
from agent.history.store import HistoryStore
from rules.plan.schema import Plan

PLAN = Path(__file__).parent / "plan.yaml"

BANNER = "SIMULATED: made-up engines, GPUs and prices, with {past} of made-up past. None of it was ever measured."

SEED = 7

ENGINES_PORT = 9096
"""Where the configuration of a folder that is only filled looks for engines; nobody serves there."""

CONFIG, HISTORY = "sizewatch.yaml", "history.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedHistory:
    """Filled weeks: the plan, and the engines of each tier as they stand at `end` (unix seconds)."""

    plan: Plan
    runs: Mapping[str, TierRun]
    begin: float
    end: float


def fill(
    folder: Path,
    *,
    seconds: float,
    end: float,
    seed: int = SEED,
    progress: Progress = lambda share: None,
    fine_seconds: float = MINUTES.keep_seconds,
) -> SimulatedHistory:
    """Fill so many seconds up to `end` (unix seconds; both are cut to quarters of an hour) into an empty or new folder.

    The last `fine_seconds` are there in minutes. Raise ConfigError where the folder holds anything or cannot be written,
    HistoryOpenError and HistoryError of its file.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(
                (f"{folder} is not empty; name a new folder, so that nothing real is mixed with made-up weeks",)
            )
    except OSError as error:
        raise ConfigError((f"{folder} cannot be made or read ({error.strerror}); name another folder",)) from error
    end = end // QUARTER * QUARTER
    begin = end - seconds // QUARTER * QUARTER
    plan = load_plan(PLAN)
    try:
        with HistoryStore(folder / HISTORY) as store:
            about = {"text": NOTE, "seed": seed, "begin": begin, "end": end}
            store.keep(KEPT, json.dumps(about))
            runs = fill_weeks(store, plan, begin, end, seed, fine_seconds, progress)
        shutil.copyfile(PLAN, folder / "plan.yaml")
    except BaseException:
        # The folder was empty. Half a history would be in the way of the next try.
        for path in folder.iterdir():
            path.unlink()
        raise
    return SimulatedHistory(plan=plan, runs=runs, begin=begin, end=end)


def unserved_url(replica: str) -> str:
    """The address of a replica that nobody serves: a folder that is only filled is looked at, not watched."""
    return f"http://127.0.0.1:{ENGINES_PORT}/{replica}/metrics"


def configuration(targets: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """The configuration, as its file holds it: files stand beside it."""
    return {
        "plan": "plan.yaml",
        "data_dir": ".",
        "scrape_interval": "15s",
        "targets": [dict(target) for target in targets],
    }


def write_configuration(folder: Path, data: Mapping[str, object]) -> Path:
    """Writes it, with a remark that says what it is."""
    path = folder / CONFIG
    path.write_text(f"# {NOTE}\n{yaml.safe_dump(dict(data), sort_keys=False)}", encoding="utf-8")
    return path


def next_steps_text(folder: Path) -> str:
    """What to run on a folder that was filled."""
    config = folder / CONFIG
    lines = (
        f"{NOTE}",
        f"The history is in {folder}.",
        "Look at it:",
        f"  sizewatch check -c {config} --since 7d",
        f"  sizewatch timeline -c {config} --since 28d",
        f"  sizewatch forecast -c {config} --tier chat-h100",
        f"  sizewatch report -c {config} --since 28d --out {folder / 'report'}",
    )
    return "\n".join(lines)
