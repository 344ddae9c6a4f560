"""Commands `sizewatch status` and `sizewatch timeline`: a running daemon in a line a tier, and what its history holds."""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import click

from agent.cli.arguments import (
    CANNOT_JUDGE,
    CONFIG,
    FINDING,
    FINE,
    FORMAT,
    connection_options,
    since_option,
    tier_option,
    ways_in,
)
from agent.config.load import build_tier_contexts, find, history_path, load, unknown_tier_error
from agent.config.web import page_url, read_web_file
from agent.errors import ScrapeError, ScrapeFailure
from agent.history import reader
from agent.history.store import HistoryStore
from agent.http_client.errors import place_of
from agent.http_client.options import TargetOptions
from agent.http_client.page import JSON, fetch_page
from exporters.documents.timeline import timeline_json, timeline_text
from exporters.status.tier_overview import overview_text
from rules.evaluator.incidents import group_incidents
from rules.evaluator.timeline import list_entries
from rules.verdicts.verdict import Status

TIMEOUT_SECONDS = 30.0
MOST_BYTES = 256 * 1024 * 1024
"""Longest accepted answer: forty tiers with an hour of readings are 10 MB."""

PATH = "api/status"


def parameters() -> tuple[click.Parameter, ...]:
    url = click.Option(
        ["--url"], metavar="URL", help="address of the status page; default: web.listen of the configuration"
    )
    return CONFIG, url, *connection_options("the status page"), *FORMAT


def run(options: SimpleNamespace) -> int:
    target = _target(options)
    try:
        told = json.loads(fetch_page(target, JSON))
        text = overview_text(told)
    except ScrapeError as error:
        return _fail(target, _explain(target, error))
    except ValueError as error:
        return _fail(target, str(error))
    summary = {"schema": told["schema"], "now": told["now"], "verdict": told["verdict"], "tiers": told["overview"]}
    print(json.dumps(summary, indent=2) if options.format == "json" else text)
    return _exit_code(told["overview"])


def _exit_code(lines: list[dict[str, Any]]) -> int:
    """Return 1 with an incident, 3 where no tier has a verdict, else 0: what is likely, learning or oversized fails nothing."""
    if any(line["incidents"] for line in lines):
        return FINDING
    return CANNOT_JUDGE if all(line["state"] == Status.UNKNOWN for line in lines) else FINE


def _explain(target: TargetOptions, error: ScrapeError) -> str:
    """Return the reason without the address and without the hints for engines."""
    if error.kind is ScrapeFailure.HTTP_STATUS:
        return "this is no status page of sizewatch. --url takes the address of its page, such as http://127.0.0.1:9095"
    reason = error.text.removeprefix(f"{place_of(target.url)}: ").partition("; ")[0]
    return f"{reason}. Is `sizewatch run` up? Another address needs --url, its certificate --ca-file"


def _fail(target: TargetOptions, why: str) -> int:
    print(f"sizewatch status: {place_of(target.url)}: {why}", file=sys.stderr)
    return CANNOT_JUDGE


def _target(options: SimpleNamespace) -> TargetOptions:
    """Return the address and the credentials: those given, else of the configuration. Raise ConfigError.

    The configured token is sent over TLS only, to the configured certificate: any user of this machine may listen on a
    port without TLS.
    """
    given = {name: value for name, value in ways_in(options).items() if value is not None}
    if options.url is not None:
        return _options(f"{options.url.rstrip('/')}/", given)
    web = load(find(options.config)).config.web
    known: dict[str, Any] = {}
    tls = read_web_file(web.config_file).tls_server_config
    if tls is not None:
        known["ca_file"] = tls.cert_file
        if "username" not in given and web.bearer_token_file is not None:
            known["bearer_token_file"] = web.bearer_token_file
    return _options(page_url(web, web.address[1]), known | given)


def _options(page: str, ways: dict[str, Any]) -> TargetOptions:
    return TargetOptions(url=f"{page}{PATH}", timeout_seconds=TIMEOUT_SECONDS, max_bytes=MOST_BYTES, **ways)


def parameters_timeline() -> tuple[click.Parameter, ...]:
    findings = click.Option(["--findings"], is_flag=True, help="the findings of each incident too, below it")
    chosen = tier_option("one tier, and what is about the whole installation; default all")
    return CONFIG, since_option(), chosen, findings, *FORMAT


def run_timeline(options: SimpleNamespace) -> int:
    now = time.time()
    since = now - options.since
    loaded, tier = load(find(options.config)), options.tier
    with HistoryStore.open_reader(history_path(loaded)) as store:
        reader.print_simulated_notice(store)
        findings, alerts = store.findings(since, tier), store.foreign_alerts(since)
        events = store.events(since)
    tiers = build_tier_contexts(loaded)
    known = {*tiers, *(finding.subject.tier for finding in findings), *(event.tier for event in events)}
    if tier is not None and tier not in known:
        raise unknown_tier_error(tier, tiers)
    found = list_entries(group_incidents(findings, now=now), alerts, events, since, tier)
    if options.format == "json":
        print(json.dumps(timeline_json(found, since, now), indent=2))
    else:
        print(timeline_text(found, now, options.findings))
    return FINE
