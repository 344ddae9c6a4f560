"""Command `sizewatch prewarm`: replicas to keep warm one cold start ahead, reasons, benefit and manifests.

It only prints: the user applies a manifest. The forecast libraries are imported on demand.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from types import SimpleNamespace

import click

from agent.cli.arguments import CANNOT_JUDGE, FINE, JSON, Keyword, duration, tier_option
from agent.cli.forecast import HISTORY
from agent.config.load import build_tier_contexts, find, history_path, load, select_tier
from agent.durations import duration_text
from agent.errors import ConfigError
from agent.history import reader
from agent.history.store import HistoryStore
from agent.worker.process import ONE_THREAD
from exporters.autoscaling.formats import FORMATS
from exporters.autoscaling.records import WORKLOADS, ObjectReference, Secret
from exporters.render.text import copy_fields
from rules.catalogue.registry import margin_of
from rules.plan.replica_count import count_pools
from rules.replicas.drain import SPOT_WARNING_SECONDS


def parameters() -> tuple[click.Parameter, ...]:
    return (
        tier_option("which tier; default the only one"),
        *HISTORY,
        click.Option(
            ["--usable-rps"], type=amount, metavar="N", help="what one replica carries; default what it takes now"
        ),
        click.Option(
            ["--start"],
            type=duration,
            metavar="DURATION",
            help="how long a start takes, such as 3m; default the P95 of those measured",
        ),
        click.Option(
            ["--spot-warning"],
            type=duration,
            default=duration_text(SPOT_WARNING_SECONDS),
            metavar="DURATION",
            help="how long before its end a spot instance is told (default: 2m)",
        ),
        click.Option(["--explain"], is_flag=True, help="also what pre-warming was worth on the last week"),
        click.Option(
            ["--format"],
            type=Keyword(("text", "json", *FORMATS)),
            default="text",
            help="for people, for programs, or as manifests for an autoscaler",
        ),
        JSON,
        *MANIFESTS,
    )


def amount(text: str) -> float:
    """Parse a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"{text!r} is no number above 0")
    return value


def count(text: str) -> int:
    """Parse a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is no whole number above 0")
    return int(text)


def _pair(text: str, what: str) -> tuple[str, str]:
    first, slash, second = text.partition("/")
    if not (first and slash and second):
        raise ValueError(f"{text!r} is no {what}")
    return first, second


def reference(text: str) -> ObjectReference:
    """Parse an object by kind and name."""
    kind, name = _pair(text, "KIND/NAME, such as Deployment/chat")
    return ObjectReference(kind=kind, name=name)


def secret(text: str) -> Secret:
    """Parse a Secret by name and key."""
    name, key = _pair(text, "NAME/KEY of a Secret")
    return Secret(name=name, key=key)


MANIFESTS = (
    click.Option(
        ["--namespace"], default="default", metavar="NS", help="of the workload in a manifest (default: default)"
    ),
    click.Option(
        ["--workload"],
        type=reference,
        metavar="KIND/NAME",
        help=f"what a manifest scales: {', '.join(WORKLOADS)}",
    ),
    click.Option(
        ["--maximum"], type=count, metavar="N", help="replicas at most in a manifest; default twice the most wanted"
    ),
    click.Option(
        ["--prometheus"],
        default="http://prometheus.monitoring:9090",
        metavar="URL",
        help="where the autoscaler reads the number (default: http://prometheus.monitoring:9090)",
    ),
    click.Option(
        ["--token-secret"],
        type=secret,
        metavar="NAME/KEY",
        help="Secret that holds a bearer token for Prometheus",
    ),
    click.Option(["--exact-steps"], is_flag=True, help="the cluster knows an HPA's tolerance (Kubernetes 1.35)"),
)
"""What --format keda or hpa writes."""


def run(options: SimpleNamespace) -> int:
    # Same reason as in `agent.cli.forecast`.
    os.environ.update(ONE_THREAD)
    from agent.forecasting.prewarm_result import (
        ManifestOptions,
        PlanOverrides,
        manifest,
        prewarm_from_csv,
        prewarm_from_history,
        too_old,
    )
    from exporters.documents.prewarm import prewarm_json, prewarm_text

    if options.format in FORMATS and options.workload is None:
        raise ConfigError((f"--format {options.format}: say with --workload what is scaled, such as Deployment/chat",))
    if options.bin is not None and options.history is None:
        raise ConfigError(
            ("--bin is for --history: the daemon's demand is kept by the minute, and forecast in `forecast.bin`",)
        )
    said = PlanOverrides(usable_rps=options.usable_rps, start_seconds=options.start)
    loaded = load(find(options.config)) if options.history is None or options.config is not None else None
    if options.history is not None:
        tier = options.tier or "trace" if loaded is None else select_tier(loaded, options.tier)
        result = prewarm_from_csv(options.history, loaded, tier, said, options.bin)
    else:
        assert loaded is not None
        result = prewarm_from_history(
            loaded, select_tier(loaded, options.tier), said, warning_seconds=options.spot_warning
        )
        with HistoryStore.open_reader(history_path(loaded)) as store:
            reader.print_simulated_notice(store)
    planned = loaded.plan.tiers.get(result.tier) if loaded and loaded.plan else None
    ahead = result.forecast.projection.points_until(result.made_at) if result.forecast else ()
    margin = margin_of(build_tier_contexts(loaded)[result.tier].limits) if loaded else margin_of()
    pools = count_pools(planned, max(one.q95 for one in ahead), margin) if planned and ahead else {}
    found = result.prewarm.recommendation is not None or bool(pools)
    if options.format in FORMATS:
        if result.prewarm.recommendation is None:
            print(f"sizewatch prewarm: no manifest: {prewarm_text(result.prewarm)}", file=sys.stderr)
            return CANNOT_JUDGE
        where = ManifestOptions(
            **copy_fields(options, "namespace", "workload", "maximum", "prometheus", "exact_steps"),
            token=options.token_secret,
        )
        text = manifest(result, options.format, where)
        if old := too_old(result.prewarm, time.time()):
            print(f"sizewatch prewarm: no manifest: {result.tier}: {old}", file=sys.stderr)
            return CANNOT_JUDGE
        print(text, end="")
    elif options.format == "json":
        counts = {pool: one.replicas for pool, one in pools.items()}
        print(json.dumps({**prewarm_json(result.prewarm), **({"pools": counts} if pools else {})}, indent=2))
    else:
        if result.prewarm.recommendation is not None or not pools:
            print(prewarm_text(result.prewarm, explain=options.explain))
        for pool, one in pools.items():
            print(f"{pool} pool, 95% of demand: {one.arithmetic_text}; {one.capacity.reason}")
    return FINE if found else CANNOT_JUDGE
