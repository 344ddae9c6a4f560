"""Command `sizewatch whatif`: effects, cost and limits of another replica count, load or prompt length.

It reads the daemon's history and changes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

from agent.cli.arguments import CANNOT_JUDGE, FINDING, FINE, add_config, add_format, add_since
from agent.config.load import LoadedConfig, build_tier_contexts, find, history_path, load, plan_versions, select_tier
from agent.durations import duration_text
from agent.history import reader
from agent.history.daily_queries import Material, choose_period, material, measured_views
from agent.history.store import HistoryStore
from exporters.documents.what_if import other_text, whatif_text
from exporters.documents.what_if_json import SCHEMA, whatif_json
from rules.resize.production_curve import BAD
from rules.resize.production_curve import FINE as HELD
from rules.what_if.answer import ChangedWhatIf, WhatIfQuestion, answer_change, answer_question, explain_unanswerable
from rules.what_if.limits import PoolsWhatIf, answer_pools
from rules.what_if.variations import Change

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
        "--rps", type=RPS, metavar="R", help="requests per second of the whole tier; default the peak seen"
    )
    parser.add_argument(
        "--prompt-scale",
        type=FACTOR,
        default=1.0,
        metavar="FACTOR",
        help="prompts so many times as long as now, such as 0.7",
    )
    changes = parser.add_argument_group("changes", "of requests, or of the configuration by another tier's curve")
    changes.add_argument("--output-tokens", type=TOKENS, metavar="N", help="mean output of a request in tokens")
    changes.add_argument("--prefix-hits", type=RATIO, metavar="RATIO", help="share of prompt tokens that are cached")
    changes.add_argument("--precision", type=_named, metavar="FORMAT", help="format of the weights, such as fp8")
    changes.add_argument("--gpu", type=_named, metavar="PRODUCT", help="other GPU, such as 'NVIDIA H200'")
    changes.add_argument("--tp", type=GPUS, metavar="N", help="GPUs that share each layer")
    changes.add_argument("--speculation", type=RATIO, metavar="RATIO", help="speculation with this acceptance")
    add_since(parser, "how far back the peak is looked for, and what other prompts did")
    add_config(parser)
    add_format(parser)


def _instances(text: str) -> tuple[int, ...]:
    parts = text.split("+")
    known = all(one.isascii() and one.isdecimal() and 1 <= int(one) <= MOST_INSTANCES for one in parts)
    if not known or len(parts) > 2:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of replicas from 1 to {MOST_INSTANCES:,}")
    return tuple(int(one) for one in parts)


def _named(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("a name is missing")
    return text


def _between(low: float, high: float, what: str, kind: Callable[[str], float] = float) -> Callable[[str], float]:
    """Return a parser of numbers from `low` to `high`, named in its message."""

    def parsed(text: str) -> float:
        with suppress(ValueError):
            if low <= kind(text) <= high:
                return kind(text)
        raise argparse.ArgumentTypeError(f"{text!r} is no {what}")

    return parsed


RPS = _between(1e-9, MOST_RPS, f"load: requests per second above 0, at most {MOST_RPS:,.0f}")
FACTOR = _between(*SCALES, f"factor from {SCALES[0]:g} to {SCALES[1]:g}")
TOKENS = _between(1, MOST_RPS, "number of tokens")
RATIO = _between(0, 1, "ratio from 0 to 1")
GPUS = _between(1, MOST_INSTANCES, f"number of GPUs from 1 to {MOST_INSTANCES:,}", int)

PARTS = {"precision": "weights", "gpu": "GPU", "tp": "TP", "speculation": "acceptance"}
"""Parts of the configuration by argument, as `configuration_of` names them."""


def run(options: argparse.Namespace) -> int:
    """Print the result. The exit code tells whether the SLO would hold."""
    loaded = load(find(options.config))
    tier = select_tier(loaded, options.tier)
    question = WhatIfQuestion(instances=sum(options.instances), rps=options.rps, prompt_scale=options.prompt_scale)
    found, simulated = _material(loaded, tier, options.since, time.time())
    asked = {name: value for key, name in PARTS.items() if (value := getattr(options, key)) is not None}
    change = Change(output_tokens=options.output_tokens, prefix_hits=options.prefix_hits, configuration=asked)
    other: PoolsWhatIf | ChangedWhatIf | None = None
    whole, why = found.seen.context.serves_whole_requests, explain_unanswerable(found.seen, question)
    try:
        if question.prompt_scale != 1 and (change != Change() or not whole):
            raise ValueError("--prompt-scale is for latencies of whole requests, with nothing else changed")
        if change != Change() and len(options.instances) == 1:
            other = answer_change(found.seen, question, change, loaded.plan.tiers if loaded.plan else {})
        elif not whole or len(options.instances) > 1:
            if change != Change() and not whole:
                raise ValueError("only replicas and --rps of prefill and decode pools can be varied")
            other = answer_pools(found.seen, options.instances, options.rps)
    except ValueError as error:
        why = str(error)
    if other is not None:
        whole_answer = {"schema": SCHEMA, **asdict(other), **other.summary}
        print(json.dumps(whole_answer, indent=2) if options.format == "json" else other_text(other))
        return CANNOT_JUDGE if other.fits is None else FINE if other.fits else FINDING
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
    with HistoryStore.open_reader(path) as store:
        reader.print_simulated_notice(store)
        versions = plan_versions(loaded)
        since, until = choose_period(store, (tier,), seconds, now)
        context = measured_views(store, {tier: build_tier_contexts(loaded)[tier]}, versions, until)[tier]
        found = material(store, context, versions.get(tier, ""), since, until)
        return found, reader.simulated_notice(store)
