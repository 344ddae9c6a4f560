"""Command `sizewatch whatif`: effects, cost and limits of another replica count or load."""

from __future__ import annotations

import time
from types import SimpleNamespace

from agent.cli import arguments as cli
from agent.cli.loading import load_config, open_history
from agent.config.load import build_tier_contexts, plan_versions, select_tier
from agent.durations import duration_text
from agent.errors import CannotJudgeError
from agent.history.daily_queries import measured_views, read_production
from exporters.documents.what_if import pools_json, pools_text, whatif_json, whatif_text
from rules.resize.production_summary import BAD, FINE
from rules.telemetry.windows import MINUTE_SECONDS
from rules.verdicts.verdict import Finding
from rules.what_if.answer import answer_pools, answer_question, explain_unanswerable

MOST_REPLICAS = 100_000


def parameters() -> cli.Parameters:
    rps = "requests per second of the whole tier; default the peak seen"
    return (
        cli.tier_option("which tier; default the only one"),
        cli.option("--instances", "N", "so many replicas, or PREFILL+DECODE such as 2+6", _instances, required=True),
        cli.option("--rps", "R", rps, cli.number(1e-9, 1e7)),
        cli.since_option("how far back the peak is looked for"),
        cli.CONFIG,
        *cli.FORMAT,
    )


def _instances(text: str) -> tuple[int, ...]:
    parts = text.split("+")
    if len(parts) > 2 or not all(part.isdecimal() and 1 <= int(part) <= MOST_REPLICAS for part in parts):
        raise ValueError(f"{text!r} is no number of replicas from 1 to {MOST_REPLICAS:,}")
    return tuple(map(int, parts))


def run(options: SimpleNamespace) -> int:
    """Print the result. The exit code says whether the SLO would hold. Raise CannotJudgeError."""
    loaded = load_config(options)
    tier, now = select_tier(loaded, options.tier), time.time()
    with open_history(loaded) as store:
        contexts = {tier: build_tier_contexts(loaded)[tier]}
        context = measured_views(store, contexts, plan_versions(loaded), now)[tier]
        until = now // MINUTE_SECONDS * MINUTE_SECONDS
        seen = read_production(store, context, now - options.since, until)
        findings, simulated = store.spans(Finding, until, tier), store.simulated_notice()
    why = explain_unanswerable(seen, options.rps)
    if not context.serves_whole_requests or len(options.instances) > 1:
        try:
            pools = answer_pools(seen, options.instances, options.rps)
        except ValueError as error:
            why = str(error)
        else:
            cli.print_result(options, pools_json(pools), pools_text(pools))
            if max(pool.utilization for pool in pools.pools) <= 1:
                return cli.Exit.FINE
            return cli.Exit.FINDING
    if why:
        raise CannotJudgeError(f"{tier} in the last {duration_text(options.since)}: {why}")
    result, zone = answer_question(seen, options.instances[0], options.rps, findings), loaded.config.forecast.zone
    cli.print_result(options, whatif_json(result, zone, simulated), whatif_text(result, zone))
    if result.asked.kept in BAD:
        return cli.Exit.FINDING
    if result.asked.kept in FINE:
        return cli.Exit.FINE
    return cli.Exit.CANNOT_JUDGE
