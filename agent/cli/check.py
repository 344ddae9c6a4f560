"""Command `sizewatch check`: benchmark check (step 13) over the daemon's history."""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace

import click

from agent.cli.arguments import CANNOT_JUDGE, CONFIG, FINDING, FINE, FORMAT, duration, since_option, tier_option
from agent.config.load import (
    LoadedConfig,
    build_tier_contexts,
    find,
    history_path,
    load,
    plan_versions,
    unknown_tier_error,
)
from agent.durations import duration_text
from agent.history import reader
from agent.history.daily_queries import measured_views
from agent.history.schema import HOURS, MINUTES
from agent.history.service import check_tier
from agent.history.store import HistoryStore
from exporters.documents.check import check_json, check_text
from rules.evaluator.benchmark_check import Step13
from rules.evaluator.incidents import Incident, group_incidents
from rules.verdicts.verdict import FIRING, Status

SHORTEST_SECONDS = MINUTES.seconds
"""Shortest span in seconds: the history has no smaller sums."""

LONGEST_SECONDS = HOURS.keep_seconds


def parameters() -> tuple[click.Parameter, ...]:
    return CONFIG, since_option(kind=_since), tier_option(), *FORMAT


def _since(text: str) -> float:
    seconds = duration(text)
    if seconds < SHORTEST_SECONDS:
        raise ValueError("must be 1m or longer: the history keeps sums of minutes")
    return seconds


def run(options: SimpleNamespace) -> int:
    loaded = load(find(options.config))
    for mistake in loaded.grave:
        print(f"sizewatch check: {mistake}", file=sys.stderr)
    seconds = min(options.since, LONGEST_SECONDS)
    found, incidents = _check(loaded, options.tier, seconds)
    if options.format == "json":
        print(json.dumps(check_json(found, incidents), indent=2))
    else:
        instead = "" if options.since == seconds else f", not {duration_text(options.since)}: no more is kept"
        print(check_text(found, f"the last {duration_text(seconds)}{instead}", seconds, incidents))
    if any(one.status in FIRING for one in found):
        return FINDING
    return FINE if any(one.status is Status.OK for one in found) else CANNOT_JUDGE


def _check(loaded: LoadedConfig, tier: str | None, since_seconds: float) -> tuple[list[Step13], tuple[Incident, ...]]:
    contexts = build_tier_contexts(loaded)
    if tier is not None and tier not in contexts:
        raise unknown_tier_error(tier, contexts)
    path = history_path(loaded, "check")
    now, versions = time.time(), plan_versions(loaded)
    with HistoryStore.open_reader(path) as store:
        reader.print_simulated_notice(store)
        contexts = measured_views(store, contexts, versions, now)
        found = [
            check_tier(store, context, versions.get(name, ""), now - since_seconds, now)
            for name, context in sorted(contexts.items())
            if tier in (None, name)
        ]
        return found, group_incidents(store.findings(now - since_seconds, tier), now=now)
