"""Command `sizewatch timeline`: past events from the daemon's history."""

from __future__ import annotations

import argparse
import json
import time

from agent.cli.arguments import add_config, add_format, duration
from agent.config.load import LoadedConfig, build_tier_contexts, find, load
from agent.errors import ConfigError
from agent.history import reader
from agent.history.store import HistoryStore
from exporters.documents.timeline import timeline_json, timeline_text
from rules.evaluator.timeline import TimelineEntry, list_entries

FINE = 0
WEEK_SECONDS = 604_800.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--since",
        type=duration,
        default=WEEK_SECONDS,
        metavar="7d",
        help="how far back (default 7d; 13 weeks are kept)",
    )
    parser.add_argument("--tier", metavar="T", help="one tier, and what is about the whole installation; default all")
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    now = time.time()
    since = now - options.since
    found = _entries(load(find(options.config)), options.tier, since)
    if options.format == "json":
        print(json.dumps(timeline_json(found, since, now), indent=2))
    else:
        print(timeline_text(found, now))
    return FINE


def _entries(loaded: LoadedConfig, tier: str | None, since: float) -> tuple[TimelineEntry, ...]:
    if loaded.config.history_path is None:
        raise ConfigError(
            (f"{loaded.path}: data_dir: there is no history to read; role node keeps none unless it is given",)
        )
    with HistoryStore.open_reader(loaded.config.history_path) as store:
        reader.print_simulated_notice(store)
        episodes, foreign = store.episodes(since, tier), store.foreign_alerts(since)
        events = store.events(since)
    known = {*build_tier_contexts(loaded), *(e.subject.tier for e in episodes), *(event.tier for event in events)}
    if tier is not None and tier not in known:
        raise ConfigError(
            (f"there is no tier {tier}; there are {', '.join(sorted(build_tier_contexts(loaded))) or 'none'}",)
        )
    return list_entries(episodes, foreign, events, since, tier)
