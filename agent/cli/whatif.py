"""Command `sizewatch whatif`: effects, cost and limits of another replica count or load.

It reads the daemon's history and changes nothing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from types import SimpleNamespace

import click

from agent.cli.arguments import CANNOT_JUDGE, CONFIG, FINDING, FINE, FORMAT, since_option, tier_option
from agent.config.load import LoadedConfig, build_tier_contexts, find, history_path, load, plan_versions, select_tier
from agent.durations import duration_text
from agent.history import reader
from agent.history.daily_queries import measured_views, read_production
from agent.history.store import HistoryStore
from exporters.documents.what_if import pools_text, whatif_text
from exporters.documents.what_if_json import SCHEMA, whatif_json
from rules.resize.production_curve import BAD
from rules.resize.production_curve import FINE as HELD
from rules.resize.production_summary import ProductionSummary
from rules.telemetry.windows import HOUR_SECONDS, MINUTE_SECONDS
from rules.verdicts.finding import Finding
from rules.what_if.answer import answer_question, explain_unanswerable
from rules.what_if.pools import answer_pools

MOST_INSTANCES, LEAST_RPS, MOST_RPS = 100_000, 1e-9, 1e7


def parameters() -> tuple[click.Parameter, ...]:
    instances = click.Option(
        ["--instances"],
        type=_instances,
        required=True,
        metavar="N",
        help="so many replicas, or PREFILL+DECODE such as 2+6",
    )
    rps = click.Option(
        ["--rps"], type=_rps, metavar="R", help="requests per second of the whole tier; default the peak seen"
    )
    chosen = tier_option("which tier; default the only one")
    return chosen, instances, rps, since_option("how far back the peak is looked for"), CONFIG, *FORMAT


def _instances(text: str) -> tuple[int, ...]:
    parts = text.split("+")
    known = all(one.isascii() and one.isdecimal() and 1 <= int(one) <= MOST_INSTANCES for one in parts)
    if not known or len(parts) > 2:
        raise ValueError(f"{text!r} is no number of replicas from 1 to {MOST_INSTANCES:,}")
    return tuple(int(one) for one in parts)


def _rps(text: str) -> float:
    with suppress(ValueError):
        if LEAST_RPS <= float(text) <= MOST_RPS:
            return float(text)
    raise ValueError(f"{text!r} is no load: requests per second above 0, at most {MOST_RPS:,.0f}")


def run(options: SimpleNamespace) -> int:
    """Print the result. The exit code tells whether the SLO would hold."""
    loaded = load(find(options.config))
    tier = select_tier(loaded, options.tier)
    seen, findings, simulated = _read(loaded, tier, options.since, time.time())
    why = explain_unanswerable(seen, options.rps)
    if not seen.context.serves_whole_requests or len(options.instances) > 1:
        try:
            pools = answer_pools(seen, options.instances, options.rps)
        except ValueError as error:
            why = str(error)
        else:
            whole_answer = {"schema": SCHEMA, **asdict(pools), **pools.summary}
            print(json.dumps(whole_answer, indent=2) if options.format == "json" else pools_text(pools))
            return FINE if pools.fits else FINDING
    if why:
        print(f"sizewatch whatif: {tier} in the last {duration_text(options.since)}: {why}", file=sys.stderr)
        return CANNOT_JUDGE
    result, zone = answer_question(seen, options.instances[0], options.rps, findings), loaded.config.forecast.zone
    if options.format == "json":
        print(json.dumps(whatif_json(result, zone, simulated), indent=2))
    else:
        print(whatif_text(result, zone))
    if result.asked.kept in BAD:
        return FINDING
    return FINE if result.asked.kept in HELD else CANNOT_JUDGE


def _read(
    loaded: LoadedConfig, tier: str, seconds: float, now: float
) -> tuple[ProductionSummary, Iterable[Finding], str]:
    """Return the tier's production up to the last full minute, its findings, and the notice of simulated data."""
    with HistoryStore.open_reader(history_path(loaded, "ask")) as store:
        reader.print_simulated_notice(store)
        context = measured_views(store, {tier: build_tier_contexts(loaded)[tier]}, plan_versions(loaded), now)[tier]
        # The history sums by full hours; the present hour counts as far as it went.
        since, until = (now - seconds) // HOUR_SECONDS * HOUR_SECONDS, now // MINUTE_SECONDS * MINUTE_SECONDS
        seen = read_production(store, context, since, until)
        return seen, store.findings(until, tier), reader.simulated_notice(store)
