"""Command `sizewatch whatif`: effects, cost and limits of another replica count or load.

It reads the daemon's history and changes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import suppress
from dataclasses import asdict

from agent.cli.arguments import CANNOT_JUDGE, FINDING, FINE, add_config, add_format, add_since
from agent.config.load import LoadedConfig, build_tier_contexts, find, history_path, load, plan_versions, select_tier
from agent.durations import duration_text
from agent.history import reader
from agent.history.daily_queries import Material, choose_period, material, measured_views
from agent.history.store import HistoryStore
from exporters.documents.what_if import pools_text, whatif_text
from exporters.documents.what_if_json import SCHEMA, whatif_json
from rules.resize.production_curve import BAD
from rules.resize.production_curve import FINE as HELD
from rules.what_if.answer import WhatIfQuestion, answer_question, explain_unanswerable
from rules.what_if.limits import answer_pools

MOST_INSTANCES, LEAST_RPS, MOST_RPS = 100_000, 1e-9, 1e7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tier", metavar="T", help="which tier; default the only one")
    parser.add_argument(
        "--instances",
        type=_instances,
        required=True,
        metavar="N",
        help="so many replicas, or PREFILL+DECODE such as 2+6",
    )
    parser.add_argument(
        "--rps", type=_rps, metavar="R", help="requests per second of the whole tier; default the peak seen"
    )
    add_since(parser, "how far back the peak is looked for")
    add_config(parser)
    add_format(parser)


def _instances(text: str) -> tuple[int, ...]:
    parts = text.split("+")
    known = all(one.isascii() and one.isdecimal() and 1 <= int(one) <= MOST_INSTANCES for one in parts)
    if not known or len(parts) > 2:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of replicas from 1 to {MOST_INSTANCES:,}")
    return tuple(int(one) for one in parts)


def _rps(text: str) -> float:
    with suppress(ValueError):
        if LEAST_RPS <= float(text) <= MOST_RPS:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no load: requests per second above 0, at most {MOST_RPS:,.0f}")


def run(options: argparse.Namespace) -> int:
    """Print the result. The exit code tells whether the SLO would hold."""
    loaded = load(find(options.config))
    tier = select_tier(loaded, options.tier)
    question = WhatIfQuestion(instances=sum(options.instances), rps=options.rps)
    found, simulated = _material(loaded, tier, options.since, time.time())
    why = explain_unanswerable(found.seen, question)
    if not found.seen.context.serves_whole_requests or len(options.instances) > 1:
        try:
            pools = answer_pools(found.seen, options.instances, options.rps)
        except ValueError as error:
            why = str(error)
        else:
            whole_answer = {"schema": SCHEMA, **asdict(pools), **pools.summary}
            print(json.dumps(whole_answer, indent=2) if options.format == "json" else pools_text(pools))
            return FINE if pools.fits else FINDING
    if why:
        print(f"sizewatch whatif: {tier} in the last {duration_text(options.since)}: {why}", file=sys.stderr)
        return CANNOT_JUDGE
    result = answer_question(found.seen, found.binned, question)
    if options.format == "json":
        print(json.dumps(whatif_json(result, simulated), indent=2))
    else:
        print(whatif_text(result, loaded.config.forecast.zone))
    if result.asked.kept in BAD:
        return FINDING
    return FINE if result.asked.kept in HELD else CANNOT_JUDGE


def _material(loaded: LoadedConfig, tier: str, seconds: float, now: float) -> tuple[Material, str]:
    """Return the tier's data from the history, and the notice of simulated data."""
    path = history_path(loaded, "ask")
    with HistoryStore.open_reader(path) as store:
        reader.print_simulated_notice(store)
        versions = plan_versions(loaded)
        since, until = choose_period(store, (tier,), seconds, now)
        context = measured_views(store, {tier: build_tier_contexts(loaded)[tier]}, versions, until)[tier]
        found = material(store, context, versions.get(tier, ""), since, until)
        return found, reader.simulated_notice(store)
