"""Checks of the endpoints of alerts and of the store: credentials, response time, known tiers. Nothing is posted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from agent.config.config import Config
from agent.config.load import LoadedConfig, build_tier_contexts
from agent.doctor.check_result import CheckResult, fail, ok, warn
from agent.errors import ConfigError, ScrapeError, ScrapeFailure
from agent.http_client.errors import place_of
from agent.http_client.options import TargetOptions
from agent.http_client.page import JSON, fetch_page
from agent.http_server.credentials import read_tokens
from agent.http_server.interfaces import WEBHOOK
from agent.prometheus.answers import StoreError, StoreErrorKind
from agent.prometheus.api import StoreApi
from exporters.render.text import quote_external_text
from rules.telemetry.wording import format_count

STATUS = "/api/v2/status"

ADDRESS = "mend its url in alerting.alertmanagers: it is what /api/v2 stands under"

ALERTING_ADVICE: Mapping[ScrapeFailure, str] = {
    ScrapeFailure.CONNECT: "start it, or mend its url in alerting.alertmanagers",
    ScrapeFailure.TIMEOUT: "see what it is busy with, or raise its timeout in alerting.alertmanagers",
    ScrapeFailure.AUTH: "give what it asks for in alerting.alertmanagers: bearer_token_file or basic_auth",
    ScrapeFailure.TLS: "mend its tls or url in alerting.alertmanagers",
    ScrapeFailure.HTTP_STATUS: f"look into its log, or {ADDRESS}",
}
"""Advice per failure. After any other failure the address is not of an Alertmanager."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertmanagerProbe:
    """Version of an Alertmanager, or the error."""

    place: str
    version: str = ""
    trouble: str = ""
    failure: ScrapeFailure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertingProbe:
    """Alertmanagers and webhook. `receives`: a webhook is configured."""

    alertmanagers: tuple[AlertmanagerProbe, ...] = ()
    receives: bool = False
    token_troubles: tuple[str, ...] = ()


def probe_alerting(config: Config) -> AlertingProbe:
    """Request the status of each Alertmanager in turn, and read the token of the webhook."""
    alerting = config.alerting
    troubles: tuple[str, ...] = ()
    if alerting.receiver is not None:
        try:
            read_tokens("alerting.receiver.bearer_token_file", alerting.receiver.bearer_token_file)
        except ConfigError as bad:
            troubles = bad.problems
    return AlertingProbe(
        alertmanagers=tuple(_alertmanager(one.options(STATUS)) for one in alerting.alertmanagers),
        receives=alerting.receiver is not None,
        token_troubles=troubles,
    )


def _alertmanager(options: TargetOptions) -> AlertmanagerProbe:
    place = place_of(options.url).removesuffix(STATUS)
    try:
        version = json.loads(fetch_page(options, JSON))["versionInfo"]["version"]
    except ScrapeError as error:
        return AlertmanagerProbe(place=place, trouble=error.text, failure=error.kind)
    except (ValueError, KeyError, TypeError, RecursionError):
        return AlertmanagerProbe(place=place, trouble=f"{place} does not answer as Alertmanager's API v2 does")
    return AlertmanagerProbe(place=place, version=quote_external_text(str(version), 40))


def check_alerting(seen: AlertingProbe, _: LoadedConfig) -> Iterator[CheckResult]:
    """Report each Alertmanager and the webhook."""
    for one in seen.alertmanagers:
        if one.trouble:
            advice = ALERTING_ADVICE.get(one.failure, ADDRESS) if one.failure else ADDRESS
            yield fail("alerting", one.trouble, f"{advice}; alerts reach nobody by it")
        else:
            yield ok("alerting", f"{one.place}: Alertmanager {one.version}")
    for trouble in seen.token_troubles:
        yield fail("alerting", trouble, "put a token of at least 16 characters into it, the same in Alertmanager")
    if seen.receives and not seen.token_troubles:
        yield ok("alerting", f"alerts of others are taken at {WEBHOOK}")


BY_AGENTS = (
    "let the store scrape the agents of role node that watch it, or say where its engines' own series are "
    "(docs/fleet.md, tiers)"
)

ANYTHING = "vector(1)"
"""Query without samples that every PromQL server answers."""

SLOW_SHARE = 0.5
"""Share of the timeout above which a query without samples is too slow."""

STORE_ADVICE: Mapping[StoreErrorKind, str] = {
    StoreErrorKind.AWAY: "start it, or mend store.url; until it answers every tier is unknown",
    StoreErrorKind.SLOW: "look what it is busy with, or raise store.timeout",
    StoreErrorKind.CREDENTIALS: "give what it asks for: store.bearer_token_file, basic_auth, tls or org_id",
    StoreErrorKind.REFUSED: "mend store.url: is it what PromQL is served under? Mimir: /prometheus, vmselect: /select/0/prometheus",
    StoreErrorKind.TOO_MUCH: "raise the limit: the store's own where it refuses, else store.max_answer_bytes or store.most_samples",
    StoreErrorKind.PARTIAL: "mend the part of the store that is away; until then every tier is unknown",
    StoreErrorKind.WRONG_ANSWER: "mend store.url: it is what /api/v1/query stands under",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreProbe:
    """Response time of the store, or the error; replicas per tier; tiers with series of agents."""

    place: str
    seconds: float = 0.0
    timeout_seconds: float
    trouble: StoreError | None = None
    replicas: Mapping[str, float] = field(default_factory=dict)
    by_agents: frozenset[str] = frozenset()


def probe_store(loaded: LoadedConfig, clock: Callable[[], float]) -> StoreProbe | None:
    """Query the store once, and for each tier. Return None without a store. `clock` returns unix seconds."""
    config = loaded.config
    if config.store is None:
        return None
    from agent.fleet.tier_readers import replica_count_query_for, uses_agent_series

    options, trouble = config.store.options(), None
    tiers = tuple(build_tier_contexts(loaded)) if config.role == "fleet" else ()
    replicas: dict[str, float] = {}
    with closing(StoreApi(options)) as api:
        began = time.monotonic()
        try:
            api.query(ANYTHING, clock())
            seconds = time.monotonic() - began
            for tier in tiers:
                found = api.query(replica_count_query_for(config, tier), clock() - config.fleet.delay_seconds)
                replicas[tier] = sum(one.value for one in found)
        except StoreError as met:
            trouble, seconds = met, time.monotonic() - began
    return StoreProbe(
        place=api.place,
        seconds=seconds,
        timeout_seconds=options.timeout_seconds,
        trouble=trouble,
        replicas=replicas,
        by_agents=frozenset(tier for tier in tiers if uses_agent_series(config, tier)),
    )


def check_store(seen: StoreProbe | None, _: LoadedConfig) -> Iterator[CheckResult]:
    """Report the response time of the store, and the replicas of each tier."""
    if seen is None:
        return
    if seen.trouble is not None:
        yield fail("store", str(seen.trouble), STORE_ADVICE[seen.trouble.kind])
    elif seen.seconds > SLOW_SHARE * seen.timeout_seconds:
        text = f"{seen.place}: took {seen.seconds:.1f} s to answer a query that reads nothing"
        yield warn("store", text, STORE_ADVICE[StoreErrorKind.SLOW])
    else:
        yield ok("store", f"{seen.place}: answered in {seen.seconds * 1000:.0f} ms")
    for tier, number in seen.replicas.items():
        if number:
            yield ok("store", f"{tier}: {format_count(round(number), 'replica')} in it")
        else:
            advice = BY_AGENTS if tier in seen.by_agents else f"mend tiers.{tier}.selector: `up` has no series of it"
            yield fail("store", f"{tier}: nothing is told of it", advice)
