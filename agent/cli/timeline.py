"""Command `sizewatch timeline`: past events from the daemon's history."""

from __future__ import annotations

import argparse
import json
import time

from agent.cli.arguments import FINE, add_config, add_format, add_since
from agent.config.load import build_tier_contexts, find, history_path, load, unknown_tier_error
from agent.history import reader
from agent.history.store import HistoryStore
from exporters.documents.timeline import timeline_json, timeline_text
from rules.evaluator.incidents import group_incidents
from rules.evaluator.timeline import list_entries


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_since(parser)
    parser.add_argument("--tier", metavar="T", help="one tier, and what is about the whole installation; default all")
    parser.add_argument("--findings", action="store_true", help="the findings of each incident too, below it")
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    now = time.time()
    since = now - options.since
    loaded, tier = load(find(options.config)), options.tier
    with HistoryStore.open_reader(history_path(loaded)) as store:
        reader.print_simulated_notice(store)
        findings, alerts = store.findings(since, tier), store.foreign_alerts(since)
        events = store.events(since)
    tiers = build_tier_contexts(loaded)
    known = {*tiers, *(finding.subject.tier for finding in findings), *(event.tier for event in events)}
    if tier is not None and tier not in known:
        raise unknown_tier_error(tier, tiers)
    found = list_entries(group_incidents(findings, now=now), alerts, events, since, tier)
    if options.format == "json":
        print(json.dumps(timeline_json(found, since, now), indent=2))
    else:
        print(timeline_text(found, now, options.findings))
    return FINE
