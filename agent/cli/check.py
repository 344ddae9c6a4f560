"""Command `sizewatch check`: benchmark check (step 13) over the daemon's history."""

from __future__ import annotations

import argparse
import json
import sys
import time

from agent.cli.arguments import add_config, add_format, duration
from agent.config.load import LoadedConfig, build_tier_contexts, find, load, plan_versions
from agent.durations import duration_text
from agent.errors import ConfigError
from agent.history import reader
from agent.history.daily_queries import measured_views
from agent.history.schema import HOURS, MINUTES
from agent.history.service import check_tier
from agent.history.store import HistoryStore
from exporters.documents.check import check_json, check_text
from rules.evaluator.benchmark_check import FIRST_WEEK_SECONDS, Step13
from rules.verdicts.verdict import FIRING, Status

FINE, FINDING, CANNOT_JUDGE = 0, 1, 3

SHORTEST_SECONDS = MINUTES.seconds
"""Shortest span in seconds: the history has no smaller sums."""

LONGEST_SECONDS = HOURS.keep_seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--since",
        type=_since,
        default=FIRST_WEEK_SECONDS,
        metavar="7d",
        help="how far back (default 7d; 13 weeks are kept)",
    )
    parser.add_argument("--tier", metavar="T", help="one tier; default all of the plan")
    add_format(parser)


def _since(text: str) -> float:
    seconds = duration(text)
    if seconds < SHORTEST_SECONDS:
        raise argparse.ArgumentTypeError("must be 1m or longer: the history keeps sums of minutes")
    return seconds


def run(options: argparse.Namespace) -> int:
    loaded = load(find(options.config))
    for mistake in loaded.grave:
        print(f"sizewatch check: {mistake}", file=sys.stderr)
    seconds = min(options.since, LONGEST_SECONDS)
    found = _check(loaded, options.tier, seconds)
    if options.format == "json":
        print(json.dumps(check_json(found), indent=2))
    else:
        print(check_text(found, f"the last {duration_text(seconds)}{_instead(options.since, seconds)}", seconds))
    if any(one.status in FIRING for one in found):
        return FINDING
    return FINE if any(one.status is Status.OK for one in found) else CANNOT_JUDGE


def _instead(asked: float, used: float) -> str:
    return "" if asked == used else f", not {duration_text(asked)}: no more is kept"


def _check(loaded: LoadedConfig, tier: str | None, since_seconds: float) -> list[Step13]:
    views = build_tier_contexts(loaded)
    if tier is not None and tier not in views:
        raise ConfigError((f"there is no tier {tier}; there are {', '.join(sorted(views)) or 'none'}",))
    if loaded.config.history_path is None:
        raise ConfigError(
            (f"{loaded.path}: data_dir: there is no history to check; role node keeps none unless it is given",)
        )
    now, versions = time.time(), plan_versions(loaded)
    with HistoryStore.open_reader(loaded.config.history_path) as store:
        reader.print_simulated_notice(store)
        views = measured_views(store, views, versions, now)
        return [
            check_tier(store, view, versions.get(name, ""), now - since_seconds, now)
            for name, view in sorted(views.items())
            if tier in (None, name)
        ]
