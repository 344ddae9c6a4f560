"""Checks of Alertmanagers, the store, the web address and the daemon that answers there."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Iterator
from contextlib import closing

from pydantic import BaseModel, ValidationError

from agent.config.config import Config
from agent.config.load import LoadedConfig, build_tier_contexts, plan_versions
from agent.config.notifications import AlertingConfig
from agent.config.peer import Peer, TlsConfig
from agent.config.web import Web, page_url
from agent.doctor.check_result import CheckResult, fail, ok, warn
from agent.errors import ConfigError, ScrapeError
from agent.fleet.tier_readers import MOST_ENGINES, replica_count_query_for, uses_agent_series
from agent.http_client.client import JSON, HttpClient, fetch_page, place_of
from agent.http_server.credentials import read_tokens
from agent.http_server.pages import WEBHOOK
from agent.http_server.server import open_socket, read_secrets
from agent.prometheus.answers import StoreError
from agent.prometheus.api import StoreApi
from agent.version import VERSION
from exporters.render.safe_text import quote_external_text
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
        yield from (fail(problem, advice) for problem in error.problems)
    else:
        yield ok(f"alerts of others are taken at {WEBHOOK}")


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
        return ok(f"{place}: Alertmanager {quote_external_text(str(version), 40)}")
    return fail(text, "correct its entry in alerting.alertmanagers; alerts reach nobody by it")


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
            yield ok(f"{api.place}: answered in {milliseconds:.0f} ms")
            for tier in build_tier_contexts(loaded) if config.role == "fleet" else ():
                samples = api.query(replica_count_query_for(config, tier), now - config.fleet.delay_seconds)
                replicas = round(sum(sample.value for sample in samples))
                if replicas > MOST_ENGINES and not uses_agent_series(config, tier):
                    text = f"{tier}: {replicas} replicas from engines, more than the measured {MOST_ENGINES}"
                    yield warn(text, ENGINES_ADVICE)
                elif replicas:
                    yield ok(f"{tier}: {format_count(replicas, 'replica')} in it")
                else:
                    yield fail(f"{tier}: nothing is told of it", TIER_ADVICE)
        except StoreError as error:
            yield fail(str(error), "correct store; docs/connections.md has its keys")


WEB_SECONDS = 3.0
"""Time limit in seconds of the whole request: any program may hold the port."""

MOST_BYTES = 256 * 1024 * 1024


class DaemonHealth(BaseModel):
    config_trouble: str | None = None


class DaemonTier(BaseModel):
    tier: str
    plan_version: str | None = None


class DaemonStatus(BaseModel):
    """Part of a daemon's `/api/status`. Without `version` the page needs credentials."""

    version: str = ""
    agent: DaemonHealth = DaemonHealth()
    tiers: tuple[DaemonTier, ...] = ()


def read_daemon(config: Config) -> DaemonStatus | None:
    """Return the status of the daemon at the web address, None if no sizewatch answers there.

    No credentials are sent: any user of this machine may listen on a port.
    """
    web = config.web
    url = f"{page_url(web, web.address[1])}api/status"
    tls = None
    if url.startswith("https:"):
        tls = TlsConfig(insecure_skip_verify=True)
    peer = Peer(url=url, timeout_seconds=WEB_SECONDS, max_bytes=MOST_BYTES, tls=tls)
    try:
        with closing(HttpClient(peer)) as client, client.exchange("GET", url, {}) as response:
            if response.headers.get("Server") != "sizewatch":
                return None
            body = client.read(response)
        return DaemonStatus.model_validate_json(body if response.status_code == 200 else b"{}")
    except (ScrapeError, ValidationError):
        return None


def check_web(status: DaemonStatus | None, web: Web) -> Iterator[CheckResult]:
    """Check that the web address can be listened on, and that the files it needs can be used."""
    try:
        read_secrets(web)
    except ConfigError as error:
        for problem in error.problems:
            yield fail(problem, "correct the file or its name, and let this user read it")
    try:
        open_socket(web.listen).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE and status is not None:
            yield ok(f"{web.listen}: a sizewatch answers there already")
            return
        # The address may be a name: Python adds it to the system's words.
        reason = (error.strerror or str(error)).partition(" (")[0]
        advice = f"see who holds it (ss -ltnp 'sport = :{web.address[1]}'), or change web.listen"
        yield fail(f"{web.listen}: {reason}, and no sizewatch answers there", advice)
    else:
        yield ok(f"{web.listen} is free")


def check_daemon(status: DaemonStatus | None, loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Compare version, configuration and plan in use with those on disk. Report nothing without a status."""
    if status is None or not status.version:
        return
    results = []
    if status.version != VERSION:
        text = f"is sizewatch {quote_external_text(status.version, 40)}, {VERSION} is installed here"
        results.append(warn(text, "restart it, so that it is the one that is installed"))
    if trouble := status.agent.config_trouble:
        text = f"runs with an older configuration: {quote_external_text(trouble, 500)}"
        results.append(fail(text, "correct it, then reload (SIGHUP)"))
    in_use = {tier.tier: tier.plan_version for tier in status.tiers}
    for name, version in plan_versions(loaded).items():
        if name in in_use and in_use[name] != version:
            text = f"{name}: plan version in use {quote_external_text(in_use[name] or 'none', 40)}, on disk {version}"
            results.append(warn(text, "its log and its status page say why the file could not be taken up"))
    yield from results or [ok(f"{loaded.config.web.listen}: uses the configuration and the plan on disk")]
