"""Web server: uvicorn in a thread of its own, deadlines of connections, and TLS that a reload renews."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from agent.config.load import is_loopback
from agent.config.web import TlsServerConfig, Web, page_url, read_web_file
from agent.errors import ConfigError
from agent.http_server.credentials import Authenticator, read_tokens
from agent.http_server.pages import MOST_HEAD_BYTES, Pages
from exporters.status.records import AgentStatus

HEAD_SECONDS = 5.0
"""Seconds for a TLS handshake, and for the head of the first request."""

ANSWER_SECONDS = 30.0
"""Seconds from the end of a request's head to the end of its answer, and of the next head."""

MOST_CONNECTIONS = 256
"""A quarter of the descriptors that a process usually may have."""

STOP_SECONDS = 5.0

HEADERS = (
    ("Server", "sizewatch"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
)


class _Connection(H11Protocol):
    """uvicorn's connection with deadlines. With too many connections, the oldest is closed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.opened_at = time.monotonic()
        self._deadline = self.loop.call_later(HEAD_SECONDS, transport.abort)
        if len(self.connections) > MOST_CONNECTIONS:
            oldest = min(self.connections, key=lambda connection: connection.opened_at)  # type: ignore[union-attr]
            self.connections.discard(oldest)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._deadline.cancel()

    def handle_events(self) -> None:
        before = self.cycle
        date = (b"date", formatdate(usegmt=True).encode())
        self.server_state.default_headers = [date, *self.config.encoded_headers]
        super().handle_events()
        if self.cycle is not before:
            # It also bounds the head of the next request, which uvicorn awaits for 5 s.
            self._deadline.cancel()
            self._deadline = self.loop.call_later(ANSWER_SECONDS, self.transport.abort)


def open_socket(listen: str) -> socket.socket:
    """Return a socket that listens on HOST:PORT, without a host on every address."""
    host, _, port = listen.rpartition(":")
    has_both = socket.has_dualstack_ipv6()
    host = host.strip("[]") or ("::" if has_both else "0.0.0.0")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, int(port)), family=family, dualstack_ipv6=has_both and host == "::")


class ThreadedServer:
    """An application that a thread of its own serves on HOST:PORT, until `stop`. Raise OSError."""

    def __init__(self, app: ASGIApp, listen: str, tls: ssl.SSLContext | None = None) -> None:
        self._socket = open_socket(listen)
        self.port = int(self._socket.getsockname()[1])
        self._tls = tls
        # Below this level uvicorn logs a line for each request that is none.
        quiet: dict[str, Any] = {"log_config": None, "log_level": "error"}
        quiet["h11_max_incomplete_event_size"] = MOST_HEAD_BYTES
        self._config = uvicorn.Config(app, ws="none", proxy_headers=False, headers=list(HEADERS), **quiet)
        self._config.load()
        self.state = ServerState()
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self.thread = threading.Thread(target=self._run, name="web", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        """Serve until the stop. uvicorn's own server wakes an idle process ten times a second."""
        server = await self._loop.create_server(
            partial(_Connection, self._config, self.state, {}, self._loop),
            sock=self._socket,
            ssl=self._tls,
            ssl_handshake_timeout=HEAD_SECONDS if self._tls is not None else None,
            backlog=MOST_CONNECTIONS,
        )
        await self._stopping.wait()
        server.close()
        for connection in tuple(self.state.connections):
            connection.transport.abort()
        if self.state.tasks:
            await asyncio.wait(self.state.tasks, timeout=STOP_SECONDS)

    def stop(self) -> None:
        """Close the port and all connections, and wait for the ends of their requests."""
        if self.thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self.thread.join(STOP_SECONDS)


class RenewedTls(ssl.SSLContext):
    """Context whose connections its `current` one makes: that can be replaced while a server listens."""

    current: ssl.SSLContext

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return self.current.wrap_bio(*args, **options)


def read_tls(keys: TlsServerConfig) -> ssl.SSLContext:
    """Return the server's side of TLS, by Python's defaults (forward secrecy). Raise ConfigError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if keys.min_version == "TLS13" else ssl.TLSVersion.TLSv1_2
    # Older OpenSSL lets a client ask for a new handshake, and another, at our expense.
    context.options |= ssl.OP_NO_RENEGOTIATION
    files = " and ".join(filter(None, (keys.cert_file, keys.key_file, keys.client_ca_file)))
    try:
        # OpenSSL would ask the terminal for the password of a key that has one.
        context.load_cert_chain(keys.cert_file, keys.key_file, password=lambda: "")
        if keys.client_ca_file is not None:
            context.load_verify_locations(keys.client_ca_file)
            required = keys.client_auth_type == "RequireAndVerifyClientCert"
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    except OSError as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigError((f"web.config_file: {files} cannot be used: {reason or error}",)) from error
    return context


def read_secrets(web: Web) -> tuple[Authenticator, ssl.SSLContext | None]:
    """Return who is let in, and the server's side of TLS if there is one. Raise ConfigError."""
    file = read_web_file(web.config_file)
    tls = read_tls(file.tls_server_config) if file.tls_server_config is not None else None
    return Authenticator(read_tokens("web.bearer_token_file", web.bearer_token_file), file.basic_auth_users), tls


class WebServer:
    """Server of the agent's pages. `start` and `stop` may be called once each. Raise ConfigError."""

    def __init__(
        self, web: Web, source: Callable[[], AgentStatus | None], seconds_since_cycle: Callable[[], float | None]
    ) -> None:
        self._web = web
        self._servers: list[ThreadedServer] = []
        self._tls: RenewedTls | None = None
        gate, tls = read_secrets(web)
        if tls is not None:
            self._tls = RenewedTls(ssl.PROTOCOL_TLS_SERVER)
            self._tls.current = tls
        # No certificate of ours is for a stranger's name, and what other machines read has names of any kind.
        guarded = tls is None and is_loopback(web.address[0])
        self.pages = Pages(source, seconds_since_cycle, gate, web.hosts if guarded else None)
        self.port = web.address[1]

    @property
    def url(self) -> str:
        return page_url(self._web, self.port)

    def start(self) -> None:
        """Listen and answer. Raise ConfigError."""
        self._serve("web.listen", self._web.listen, self.pages, self._tls)
        self.port = self._servers[0].port
        if self._web.probe_listen is not None:
            self._serve("web.probe_listen", self._web.probe_listen, Starlette(routes=self.pages.probe_routes()), None)

    def _serve(self, key: str, listen: str, app: ASGIApp, tls: ssl.SSLContext | None) -> None:
        try:
            self._servers.append(ThreadedServer(app, listen, tls))
        except OSError as error:
            # The address may be a name: Python adds it to the system's words.
            reason = (error.strerror or str(error)).partition(" (")[0].lower()
            raise ConfigError((f"{key}: cannot listen on {listen}: {reason}; name another",)) from error

    def stop(self) -> None:
        for server in self._servers:
            server.stop()

    def reload(self) -> None:
        """Read the secrets again. Raise ConfigError and keep all of them if a file is wrong."""
        gate, tls = read_secrets(self._web)
        if (tls is None) != (self._tls is None):
            raise ConfigError(("web.config_file: TLS begins or ends with a restart",))
        if self._tls is not None and tls is not None:
            self._tls.current = tls
        self.pages.gate = gate
