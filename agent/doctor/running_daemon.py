"""Checks of the web address and of the daemon that answers there: version, configuration and plan in use.

No credentials are sent: any user of this machine may listen on a port.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import closing

from pydantic import BaseModel, ValidationError

from agent.config.config import Config
from agent.config.load import LoadedConfig, plan_versions
from agent.config.peer import Peer, TlsConfig
from agent.config.web import Web, bind_address, page_url
from agent.doctor.check_result import CheckResult, fail, ok, warn
from agent.errors import ConfigError, ScrapeError
from agent.http_client.client import HttpClient
from agent.http_server.server import read_secrets
from agent.version import VERSION
from exporters.render.text import quote_external_text

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
    """Return the status of the daemon at the web address, None if no sizewatch answers there."""
    web = config.web
    url = f"{page_url(web, web.address[1])}api/status"
    tls = TlsConfig(insecure_skip_verify=True) if url.startswith("https:") else None
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
            yield fail("web", problem, "correct the file or its name, and let this user read it")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(*bind_address(web.listen), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE and status is not None:
            yield ok("web", f"{web.listen}: a sizewatch answers there already")
            return
        advice = f"see who holds it (ss -ltnp 'sport = :{web.address[1]}'), or change web.listen"
        yield fail("web", f"{web.listen}: {error.strerror}, and no sizewatch answers there", advice)
    else:
        yield ok("web", f"{web.listen} is free")


def check_daemon(status: DaemonStatus | None, loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Compare version, configuration and plan in use with those on disk. Report nothing without a status."""
    if status is None or not status.version:
        return
    results = []
    if status.version != VERSION:
        text = f"is sizewatch {quote_external_text(status.version, 40)}, {VERSION} is installed here"
        results.append(warn("daemon", text, "restart it, so that it is the one that is installed"))
    if trouble := status.agent.config_trouble:
        text = f"runs with an older configuration: {quote_external_text(trouble, 500)}"
        results.append(fail("daemon", text, "correct it, then reload (SIGHUP)"))
    in_use = {tier.tier: tier.plan_version for tier in status.tiers}
    for name, version in plan_versions(loaded).items():
        if name in in_use and in_use[name] != version:
            text = f"{name}: plan version in use {quote_external_text(in_use[name] or 'none', 40)}, on disk {version}"
            results.append(warn("daemon", text, "its log and its status page say why the file could not be taken up"))
    yield from results or [ok("daemon", f"{loaded.config.web.listen}: uses the configuration and the plan on disk")]
