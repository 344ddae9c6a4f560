"""Checks of the endpoints of alerts and of the store: they answer, and have the tiers. Nothing is posted."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing

from agent.config.load import LoadedConfig, build_tier_contexts
from agent.config.notifications import AlertingConfig
from agent.config.peer import Peer
from agent.doctor.check_result import CheckResult, fail, ok, warn
from agent.errors import ConfigError, ScrapeError
from agent.fleet.tier_readers import MOST_ENGINES, replica_count_query_for, uses_agent_series
from agent.http_client.errors import place_of
from agent.http_client.page import JSON, fetch_page
from agent.http_server.credentials import read_tokens
from agent.http_server.pages import WEBHOOK
from agent.prometheus.api import StoreApi
from agent.prometheus.errors import StoreError
from exporters.render.text import quote_external_text
from rules.telemetry.wording import format_count

STATUS = "/api/v2/status"

TIER_ADVICE = "let the store scrape the node agents of it, or name its engines' series in tiers (docs/fleet.md)"

ENGINES_ADVICE = "run node agents beside its engines: the store adds up what they export (docs/fleet.md)"

ANYTHING = "vector(1)"
"""Query without samples that every PromQL server answers."""


def check_alerting(alerting: AlertingConfig) -> Iterator[CheckResult]:
    """Request the status of each Alertmanager in turn, and read the token of the webhook."""
    for alertmanager in alerting.alertmanagers:
        yield _check_alertmanager(alertmanager.to_peer(timeout_seconds=alertmanager.timeout_seconds))
    if alerting.receiver is None:
        return
    try:
        read_tokens("alerting.receiver.bearer_token_file", alerting.receiver.bearer_token_file)
    except ConfigError as error:
        advice = "put a token of at least 16 characters into it, the same in Alertmanager"
        yield from (fail("alerting", problem, advice) for problem in error.problems)
    else:
        yield ok("alerting", f"alerts of others are taken at {WEBHOOK}")


def _check_alertmanager(alertmanager: Peer) -> CheckResult:
    place = place_of(alertmanager.url).rstrip("/")
    status = alertmanager.model_copy(update={"url": place + STATUS})
    try:
        version = json.loads(fetch_page(status, JSON))["versionInfo"]["version"]
    except ScrapeError as error:
        text = error.text
    except (ValueError, KeyError, TypeError, RecursionError):
        text = f"{place} does not answer as Alertmanager's API v2 does"
    else:
        return ok("alerting", f"{place}: Alertmanager {quote_external_text(str(version), 40)}")
    return fail("alerting", text, "correct its entry in alerting.alertmanagers; alerts reach nobody by it")


def check_store(loaded: LoadedConfig, now: float) -> Iterator[CheckResult]:
    """Query the store once, and for the replicas of each tier. `now` is unix seconds."""
    config = loaded.config
    if config.store is None:
        return
    with closing(StoreApi(config.store)) as api:
        started_at = time.monotonic()
        try:
            api.query(ANYTHING, now)
            milliseconds = 1000 * (time.monotonic() - started_at)
            yield ok("store", f"{api.place}: answered in {milliseconds:.0f} ms")
            for tier in build_tier_contexts(loaded) if config.role == "fleet" else ():
                samples = api.query(replica_count_query_for(config, tier), now - config.fleet.delay_seconds)
                replicas = round(sum(sample.value for sample in samples))
                if replicas > MOST_ENGINES and not uses_agent_series(config, tier):
                    text = f"{tier}: {replicas} replicas from engines, more than the measured {MOST_ENGINES}"
                    yield warn("store", text, ENGINES_ADVICE)
                elif replicas:
                    yield ok("store", f"{tier}: {format_count(replicas, 'replica')} in it")
                else:
                    yield fail("store", f"{tier}: nothing is told of it", TIER_ADVICE)
        except StoreError as error:
            yield fail("store", str(error), "correct store; docs/connections.md has its keys")
