"""Options of the web server, the host names it answers to, and the protocol of a webhook receiver.

The host check prevents DNS rebinding: a browser page whose name suddenly resolves to 127.0.0.1 could read what is
served there. Addresses and localhost are allowed, other names must be configured. There is no check with credentials,
when other machines are served, or over TLS: no certificate of ours is for a stranger's name.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Protocol
from urllib.parse import urlsplit

from agent.config.config import Web
from agent.config.weaknesses import is_loopback
from rules.light_dataclass import light_dataclass

HEALTH = "/healthz"
READY = "/readyz"
WEBHOOK = "/webhook/alertmanager"
WEBHOOK_BYTES = 1024 * 1024
"""The longest body that the webhook reads; other paths read none."""

OPEN_TO_ALL = frozenset({HEALTH})
"""Answered without credentials: it says nothing but whether the agent works."""


@light_dataclass(frozen=True, slots=True, kw_only=True)
class WebOptions:
    """`host` "" is every address of the machine, `port` 0 any free one. Files are None where there are none.

    `open_paths` are answered without credentials. `timeout_seconds` is all the time one connection gets, from its
    acceptance to the end of its answer (its client then has a second to close), `head_seconds` of it to the end of its
    request's head; `most_of_one_address` may be open at once from one address. `most_guests` clients are waited for at
    once, whose requests and answers take `most_guest_bytes` together: beyond it the answered have to leave, then those
    that have been waited for longest. `stuck_after_seconds` without a turn is told as ill by /healthz.
    """

    host: str = "127.0.0.1"
    port: int = 9095
    cert_file: str | None = None
    key_file: str | None = None
    client_ca_file: str | None = None
    min_version: str = "1.2"
    bearer_token_file: str | None = None
    basic_auth_users_file: str | None = None
    hosts: tuple[str, ...] = ()
    open_paths: frozenset[str] = OPEN_TO_ALL
    threads: int = 4
    waiting: int = 32
    most_of_one_address: int = 16
    most_guests: int = 256
    most_guest_bytes: int = 8 * 1024 * 1024
    head_seconds: float = 5.0
    timeout_seconds: float = 15.0
    busy_seconds: float = 2.0
    stuck_after_seconds: float = 300.0
    max_header_bytes: int = 16_384
    max_body_bytes: int = 4_096

    @property
    def tls(self) -> bool:
        return self.cert_file is not None

    @property
    def bind_host(self) -> str:
        """The address to bind; every address is both families where the machine has both."""
        return self.host or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0")

    def url(self, port: int) -> str:
        """Return where a browser on this machine finds the status page."""
        host = "127.0.0.1" if self.host in ("", "0.0.0.0", "::") else self.host
        return f"{'https' if self.tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}/"


def options_of(web: Web) -> WebOptions:
    """The options that the `web` part of a configuration gives."""
    host, port = web.address
    return WebOptions(
        host=host,
        port=port,
        cert_file=web.tls.cert_file if web.tls else None,
        key_file=web.tls.key_file if web.tls else None,
        client_ca_file=web.tls.client_ca_file if web.tls else None,
        min_version=web.tls.min_version if web.tls else "1.2",
        bearer_token_file=web.bearer_token_file,
        basic_auth_users_file=web.basic_auth_users_file,
        hosts=web.hosts,
    )


def is_wrong_host(options: WebOptions, host: str) -> bool:
    """Return whether a request with this Host header, "" where it has none, is for somebody else."""
    if not host or options.tls or not is_loopback(options.host):
        return False
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return True
    plain = name.removesuffix(".").lower()
    if plain == "localhost" or plain.endswith(".localhost") or plain in {one.lower() for one in options.hosts}:
        return False
    try:
        ip_address(plain)
    except ValueError:
        return True
    return False


@light_dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRejection:
    """Answer other than 200: its status line and one sentence. `reason` labels the metric of refusals."""

    status: str
    reason: str
    text: str


class WebhookEndpoint(Protocol):
    """Receiver of the alerts that a request carries. Its own credentials count, not those of the pages."""

    @property
    def challenges(self) -> tuple[str, ...]:
        """Values of the WWW-Authenticate header."""

    def refuses(
        self, authorization: str, content_type: str, content_encoding: str, length: str
    ) -> WebhookRejection | None:
        """Return why a request is refused before its body is read, or None."""

    def take(self, body: bytes) -> WebhookRejection | None:
        """Accept the alerts of a body. Return why it is refused, or None."""
