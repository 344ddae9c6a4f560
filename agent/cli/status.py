"""Commands `sizewatch status` and `sizewatch timeline`: a running daemon in a line a tier, and what its history holds."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agent.cli import arguments as cli
from agent.cli.loading import load_config, open_history
from agent.cli.terminal import ERASE_SCREEN
from agent.config.load import find, load_web, select_tier
from agent.config.peer import Peer
from agent.config.web import page_url, read_web_file
from agent.errors import ConfigError, ScrapeError
from agent.http_client.client import JSON, HttpError, fetch_page, place_of
from exporters.documents.replay import timeline_json, timeline_text
from exporters.status.tier_overview import overview_text
from rules.evaluator.external_alerts import ExternalAlert
from rules.evaluator.incidents import group_incidents
from rules.evaluator.timeline import list_entries
from rules.verdicts.verdict import Finding, Status

TIMEOUT_SECONDS = 30.0
NO_STATUS_PAGE = "this is no status page of sizewatch. --url takes its address, such as http://127.0.0.1:19095"
MOST_BYTES = 256 * 1024 * 1024
"""Longest accepted answer: forty tiers with an hour of readings are 10 MB."""


def parameters() -> cli.Parameters:
    url = cli.option("--url", "URL", "address of the status page; default: web.listen of the configuration")
    again = "print it again every so many seconds (5 without a number), until Ctrl-C"
    watch = cli.option("--watch", "SECONDS", again, cli.number(1.0, 3600.0), is_flag=False, flag_value="5")
    return cli.CONFIG, url, watch, *cli.connection_options("the status page"), *cli.FORMAT


def run(options: SimpleNamespace) -> int:
    """Print the overview. Return 1 with an incident, 3 without a verdict or an answer."""
    path = None
    if options.url is None:
        path = find(options.config)
    target = _target(options, path)
    code = _print_overview(options, target, path)
    while options.watch is not None:
        time.sleep(options.watch)
        code = _print_overview(options, target, path)
    return code


def _print_overview(options: SimpleNamespace, target: Peer, path: Path | None) -> int:
    """Print the overview and return the exit code. Raise ConfigError for its files."""
    why = ""
    try:
        document = json.loads(fetch_page(target, JSON))
        text = overview_text(document)
        if path is not None:
            _refuse_other_daemon(document.get("config"), path)
    except json.JSONDecodeError:
        why = NO_STATUS_PAGE
    except ValueError as error:
        why = str(error)
    except HttpError as error:
        # Without the address and the hints for engines.
        reason = error.text.removeprefix(place_of(target.url)).lstrip(": ").partition("; ")[0]
        why = f"{reason}. Is `sizewatch run` up? Another address needs --url, its certificate --ca-file"
        if error.status == HTTPStatus.NOT_FOUND:
            why = NO_STATUS_PAGE
    except ScrapeError as error:
        raise ConfigError((error.text,)) from None
    if options.watch is not None and sys.stdout.isatty():
        print(ERASE_SCREEN, end="", file=sys.__stdout__, flush=True)
    if why:
        print(f"sizewatch status: {place_of(target.url)}: {why}", file=sys.stderr)
        return cli.Exit.CANNOT_JUDGE
    tiers = document["overview"]
    summary = {"schema": document["schema"], "now": document["now"], "verdict": document["verdict"], "tiers": tiers}
    cli.print_result(options, summary, text)
    if any(tier["incidents"] for tier in tiers):
        return cli.Exit.FINDING
    if all(tier["state"] == Status.UNKNOWN for tier in tiers):
        return cli.Exit.CANNOT_JUDGE
    return cli.Exit.FINE


def _refuse_other_daemon(config: Any, path: Path) -> None:
    """Raise ValueError if the daemon that answered has another configuration file than `path`."""
    with suppress(OSError, TypeError, ValueError):
        if not config or config == os.path.abspath(path) or os.path.samefile(config, path):
            return
    raise ValueError(f"the daemon there uses the configuration {config}, not {path}. --url shows it all the same")


def _target(options: SimpleNamespace, path: Path | None) -> Peer:
    """Return the address and the credentials: those given, else of the configuration. Raise ConfigError.

    The configured token is sent over TLS only: any user of this machine may listen on a port.
    """
    if path is None:
        scheme = "http://"
        if "://" in options.url:
            scheme = ""
        page = f"{scheme}{options.url.rstrip('/')}/"
    else:
        web = load_web(path)
        page = page_url(web, web.address[1])
        tls = read_web_file(web.config_file).tls_server_config
        if tls is not None:
            options.ca_file = options.ca_file or tls.cert_file
            if options.username is None:
                options.bearer_token_file = options.bearer_token_file or web.bearer_token_file
    return Peer.read(
        dict(url=f"{page}api/status", timeout_seconds=TIMEOUT_SECONDS, max_bytes=MOST_BYTES, **cli.ways_in(options))
    )


def parameters_timeline() -> cli.Parameters:
    findings = cli.flag("--findings", "the findings of each incident too, below it")
    chosen = cli.tier_option("one tier, and what is about the whole installation; default all")
    return cli.CONFIG, cli.since_option(), chosen, findings, *cli.FORMAT


def run_timeline(options: SimpleNamespace) -> int:
    now = time.time()
    since = now - options.since
    loaded, tier = load_config(options), options.tier
    with open_history(loaded) as store:
        findings, alerts = store.spans(Finding, since, tier), store.spans(ExternalAlert, since)
        events = store.events(since)
    # The history has tiers of earlier configurations too.
    if tier is not None and tier not in {*(f.subject.tier for f in findings), *(event.tier for event in events)}:
        select_tier(loaded, tier)
    entries = list_entries(group_incidents(findings, now=now), alerts, events, since, tier)
    cli.print_result(options, timeline_json(entries, since, now), timeline_text(entries, now, options.findings))
    return cli.Exit.FINE
