"""Command `sizewatch whatif`: effects, cost and limits of another replica count, load or prompt length.

It reads the daemon's history and changes nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time

from agent.cli.arguments import CANNOT_JUDGE, FINDING, FINE, add_config, add_format, add_since
from agent.config.load import LoadedConfig, build_tier_contexts, find, history_path, load, plan_versions, select_tier
from agent.durations import duration_text
from agent.history import reader
from agent.history.daily_queries import Material, material, measured_views
from agent.history.store import HistoryStore
from exporters.documents.what_if import pools_text, whatif_text
from exporters.documents.what_if_json import pools_json, whatif_json
from rules.resize.production_curve import BAD
from rules.resize.production_curve import FINE as HELD
from rules.what_if.answer import PoolsWhatIf, WhatIfQuestion, answer_pools, answer_question, explain_unanswerable

HOUR_SECONDS, LONGEST_SECONDS = 3600.0, 91 * 86_400.0
MOST_INSTANCES, MOST_RPS = 100_000, 1e7
SCALES = (0.1, 10.0)
"""Valid prompt factors. Beyond them the workload is another one, for which this curve does not hold."""


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
    parser.add_argument(
        "--prompt-scale",
        type=_scale,
        default=1.0,
        metavar="FACTOR",
        help="prompts so many times as long as now, such as 0.7",
    )
    add_since(parser, "how far back the peak is looked for, and what other prompts did")
    add_config(parser)
    add_format(parser)


def _instances(text: str) -> tuple[int, ...]:
    parts = text.split("+")
    known = all(one.isascii() and one.isdecimal() and 1 <= int(one) <= MOST_INSTANCES for one in parts)
    if not known or len(parts) > 2:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of replicas from 1 to {MOST_INSTANCES:,}")
    return tuple(int(one) for one in parts)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _rps(text: str) -> float:
    if not 0 < _number(text) <= MOST_RPS:
        raise argparse.ArgumentTypeError(f"{text!r} is no load: requests per second above 0, at most {MOST_RPS:,.0f}")
    return _number(text)


def _scale(text: str) -> float:
    low, high = SCALES
    if not low <= _number(text) <= high:
        raise argparse.ArgumentTypeError(f"{text!r} is no factor from {low:g} to {high:g}")
    return _number(text)


def run(options: argparse.Namespace) -> int:
    """Print the result. The exit code tells whether the SLO would hold."""
    loaded = load(find(options.config))
    tier = select_tier(loaded, options.tier)
    question = WhatIfQuestion(
        instances=sum(options.instances),
        rps=options.rps,
        prompt_scale=options.prompt_scale,
        instances_by_pool=options.instances if len(options.instances) > 1 else (),
    )
    found, simulated = _material(loaded, tier, options.since, time.time())
    apart = None if found.seen.context.serves_whole_requests else answer_pools(found.seen, question)
    if isinstance(apart, PoolsWhatIf):
        print(json.dumps(pools_json(apart), indent=2) if options.format == "json" else pools_text(apart))
        return FINDING if apart.first.utilization > 1 else FINE
    why = apart or explain_unanswerable(found.seen, question)
    if why:
        print(f"sizewatch whatif: {tier} in the last {duration_text(options.since)}: {why}", file=sys.stderr)
        return CANNOT_JUDGE
    result = answer_question(found.seen, found.binned, found.hours, question)
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
    # Full hours: for weeks, the history keeps load bins of a tier per hour only.
    until = now // HOUR_SECONDS * HOUR_SECONDS
    span = min(LONGEST_SECONDS, max(HOUR_SECONDS, seconds // HOUR_SECONDS * HOUR_SECONDS))
    with HistoryStore.open_reader(path) as store:
        reader.print_simulated_notice(store)
        versions = plan_versions(loaded)
        context = measured_views(store, {tier: build_tier_contexts(loaded)[tier]}, versions, until)[tier]
        found = material(store, context, versions.get(tier, ""), until - span, until)
        return found, reader.simulated_notice(store)
