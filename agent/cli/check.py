"""Command `sizewatch check`: benchmark check (step 13) over the daemon's history."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

from agent.cli.arguments import CONFIG, FORMAT, Exit, Parameters, print_result, since_option, tier_option
from agent.cli.loading import load_config, open_history
from agent.config.load import build_tier_contexts, plan_versions, select_tier
from agent.durations import duration_text
from agent.history.daily_queries import measured_views
from agent.history.schema import HOURS, MINUTES
from agent.history.service import check_tier
from exporters.documents.replay import check_json, check_text
from rules.evaluator.incidents import group_incidents
from rules.verdicts.verdict import FIRING, Finding, Status


def parameters() -> Parameters:
    # The history has no smaller sums than those of minutes.
    return CONFIG, since_option(least=MINUTES.seconds), tier_option(), *FORMAT


def run(options: SimpleNamespace) -> int:
    loaded, tier = load_config(options), options.tier
    for mistake in loaded.grave:
        print(f"sizewatch check: {mistake}", file=sys.stderr)
    seconds = min(options.since, HOURS.keep_seconds)
    contexts, versions = build_tier_contexts(loaded), plan_versions(loaded)
    if tier is not None:
        select_tier(loaded, tier)
    now = time.time()
    with open_history(loaded) as store:
        measured = measured_views(store, contexts, versions, now)
        checks = []
        for name, context in sorted(measured.items()):
            if tier in (None, name):
                checks.append(check_tier(store, context, versions.get(name, ""), now - seconds, now))
        incidents = group_incidents(store.spans(Finding, now - seconds, tier), now=now)
    span = f"the last {duration_text(seconds)}"
    if options.since != seconds:
        span += f", not {duration_text(options.since)}: no more is kept"
    print_result(options, check_json(checks, incidents), check_text(checks, span, seconds, incidents))
    if any(check.status in FIRING for check in checks):
        return Exit.FINDING
    if any(check.status is Status.OK for check in checks):
        return Exit.FINE
    return Exit.CANNOT_JUDGE
