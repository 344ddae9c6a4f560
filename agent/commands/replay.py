"""`sizewatch replay`: the same judgement over a recording."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from agent.commands.arguments import add_format, duration
from agent.config_files import load_plan
from agent.recording import load
from agent.replay import DEFAULT_STEP_SECONDS, Replayed, replay
from exporters.replay_json import replay_json
from exporters.replay_text import not_exposed_text, replay_text
from rules.catalogue import BY_NAME, Loudness
from rules.episodes import Episode

FINE, FINDING, CANNOT_JUDGE = 0, 1, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recording", type=Path, metavar="RECORDING", help="folder with recording.yaml and its scrapes")
    parser.add_argument(
        "--plan", type=Path, metavar="PLAN", help="sizing plan (YAML or JSON); without it nothing is compared"
    )
    add_format(parser)
    parser.add_argument(
        "--step",
        type=duration,
        default=DEFAULT_STEP_SECONDS,
        metavar="60s",
        help="width of the windows that are shown; the judgement does not depend on it",
    )


def run(options: argparse.Namespace) -> int:
    plan = load_plan(options.plan) if options.plan else None
    recording, problems = load(options.recording)
    found = replay(recording, plan, options.step, problems)
    if options.format == "json":
        shown = [(s.tier, s.replica, s.window) for s in found.windows]
        bases = {tier: view.basis for tier, view in found.views.items()}
        document = replay_json(shown, bases, found.ended, found.standings, found.problems)
        print(json.dumps(document, allow_nan=False))
    else:
        print(replay_text(found.name, found.start, found.end, found.views, found.ended, found.standings))
        if missing := not_exposed_text(found.engines, found.whole()):
            print(missing)
    for problem in found.problems:
        print(f"sizewatch replay: {problem}", file=sys.stderr)
    return _exit_code(found)


def _exit_code(found: Replayed) -> int:
    """What is for the report only fails nothing."""
    if not found.windows:
        return CANNOT_JUDGE
    met = [e for e in found.ended if isinstance(e, Episode)] + [s.episode for s in found.standings if s.episode]
    return FINDING if any(BY_NAME[e.rule].loudness is not Loudness.REPORT for e in met) else FINE
