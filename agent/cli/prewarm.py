"""Command `sizewatch prewarm`: replicas to keep warm one cold start ahead, reasons, benefit and manifests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import TypeVar

import click

from agent.cli import arguments as cli
from agent.cli.forecast import DAY_SECONDS, HISTORY
from agent.cli.loading import load_config, open_history
from agent.config.load import build_tier_contexts, select_tier
from agent.errors import ConfigError
from agent.worker.process import ONE_THREAD
from exporters.autoscaling.manifests import FORMATS, WORKLOADS, ObjectReference, Secret
from rules.catalogue.registry import margin_of
from rules.plan.replica_count import count_pools

T = TypeVar("T")

PROMETHEUS = "http://prometheus.monitoring:9090"


def parameters() -> cli.Parameters:
    start = "how long a start takes, such as 3m; default the P95 of those measured"
    formats = "for people, for programs, or as manifests for an autoscaler"
    reference = _pair(lambda kind, name: ObjectReference(kind=kind, name=name), "KIND/NAME, such as Deployment/chat")
    secret_key = _pair(lambda name, key: Secret(name=name, key=key), "NAME/KEY of a Secret")
    prometheus = f"where the autoscaler reads the number (default: {PROMETHEUS})"
    return (
        cli.tier_option("which tier; default the only one"),
        *HISTORY,
        cli.option("--usable-rps", "N", "what one replica carries; default what it takes now", cli.number(1e-9, 1e9)),
        cli.option("--start", "DURATION", start, cli.duration(most=DAY_SECONDS)),
        cli.flag("--explain", "also what pre-warming was worth on the last week"),
        cli.choice("--format", ("text", "json", *FORMATS), "text", formats),
        cli.JSON,
        cli.option("--namespace", "NS", "of the workload in a manifest (default: default)", default="default"),
        cli.option("--workload", "KIND/NAME", f"what a manifest scales: {', '.join(WORKLOADS)}", reference),
        cli.option(
            "--maximum", "N", "replicas at most in a manifest; default twice the most wanted", click.IntRange(1)
        ),
        cli.option("--prometheus", "URL", prometheus, default=PROMETHEUS),
        cli.option("--token-secret token", "NAME/KEY", "Secret that holds a bearer token for Prometheus", secret_key),
    )


def _pair(make: Callable[[str, str], T], what: str) -> Callable[[str], T]:
    def read(text: str) -> T:
        first, _, second = text.partition("/")
        if not (first and second):
            raise ValueError(f"{text!r} is no {what}")
        return make(first, second)

    return read


def run(options: SimpleNamespace) -> int:
    """Print the recommendation, or return 3. Print a manifest, or raise CannotJudgeError."""
    # Same reason as in `agent.cli.forecast`.
    os.environ.update(ONE_THREAD)
    from agent.forecasting.prewarm_result import PlanOverrides, manifest, prewarm_from_csv, prewarm_from_history
    from exporters.documents.forecast import prewarm_json, prewarm_text

    if options.format in FORMATS and options.workload is None:
        raise ConfigError((f"--format {options.format}: say with --workload what is scaled, such as Deployment/chat",))
    if options.bin is not None and options.history is None:
        raise ConfigError(
            ("--bin is for --history: the daemon's demand is kept by the minute, and forecast in `forecast.bin`",)
        )
    overrides = PlanOverrides(usable_rps=options.usable_rps, start_seconds=options.start)
    loaded = None
    if options.history is None or options.config is not None:
        loaded = load_config(options)
    tier = select_tier(loaded, options.tier) if loaded else options.tier or "trace"
    if loaded is None or options.history is not None:
        result = prewarm_from_csv(options.history, loaded, tier, overrides, options.bin)
    else:
        result = prewarm_from_history(loaded, tier, overrides)
        with open_history(loaded):
            pass
    prewarm = result.prewarm
    if options.format in FORMATS:
        print(manifest(result, options, time.time()), end="")
        return cli.Exit.FINE
    planned = None
    if loaded and loaded.plan:
        planned = loaded.plan.tiers.get(result.tier)
    ahead = result.forecast.projection.points_until(result.made_at) if result.forecast else ()
    margin = margin_of(build_tier_contexts(loaded)[result.tier].limits) if loaded else margin_of()
    pools = count_pools(planned, max(point.q95 for point in ahead), margin) if planned and ahead else {}
    texts = [prewarm_text(prewarm, explain=options.explain)] if prewarm.recommendation is not None or not pools else []
    for name, pool in pools.items():
        texts.append(f"{name} pool, 95% of demand: {pool.arithmetic_text}; {pool.capacity.reason}")
    counts = {"pools": {name: pool.replicas for name, pool in pools.items()}} if pools else {}
    cli.print_result(options, {**prewarm_json(prewarm), **counts}, "\n".join(texts))
    if prewarm.recommendation is not None or pools:
        return cli.Exit.FINE
    return cli.Exit.CANNOT_JUDGE
