"""Web server: uvicorn in a thread of its own, deadlines of its connections, and TLS that is renewed while it runs."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from agent.config.weaknesses import is_loopback
from agent.config.web import TlsServerConfig, Web, WebFile, bind_address, page_url, read_web_file
from agent.errors import ConfigError
from agent.http_server.credentials import Authenticator, read_tokens
from agent.http_server.interfaces import CycleProgress
from agent.http_server.pages import Pages
from exporters.status.records import AgentStatus

HEAD_SECONDS = 5.0
"""Seconds for a TLS handshake, and for the head of a request. An idle connection has as long."""

ANSWER_SECONDS = 30.0
"""Seconds from the end of a request's head to the end of its answer."""

MOST_CONNECTIONS = 256
"""A quarter of the descriptors that a process usually may have."""

HEAD_BYTES = 16_384
GRACE_SECONDS = 1
"""Seconds that requests under way get at a stop."""

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

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.opened_at = time.monotonic()
        self._allow(HEAD_SECONDS)
        if len(self.connections) > MOST_CONNECTIONS:
            oldest = min(self.connections, key=lambda connection: connection.opened_at)  # type: ignore[union-attr]
            self.connections.discard(oldest)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()

    def handle_events(self) -> None:
        before = self.cycle
        # Renewed by a request, not by a timer.
        self.server_state.default_headers[:1] = [(b"date", formatdate(usegmt=True).encode())]
        super().handle_events()
        if self.cycle is not before:
            self._allow(ANSWER_SECONDS)

    def on_response_complete(self) -> None:
        # What is still to be sent keeps the time of its request.
        if not self.transport.get_write_buffer_size():
            self._allow(HEAD_SECONDS)
        super().on_response_complete()

    def _allow(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)


class HandshakeLoop(asyncio.SelectorEventLoop):
    """Event loop whose TLS handshakes have a deadline, which uvicorn has no option for."""

    async def create_server(self, *args: Any, **options: Any) -> Any:
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = HEAD_SECONDS
        return await super().create_server(*args, **options)


class _Server(uvicorn.Server):
    """uvicorn's server without its timer, which wakes an idle process ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None

    async def main_loop(self) -> None:
        self.loop = asyncio.get_running_loop()
        # Its first tick makes the headers.
        if not await self.on_tick(0):
            await self.stopping.wait()

    def end(self) -> None:
        """Let the server end. Any thread may call it."""
        self.should_exit = True
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.stopping.set)


class ThreadedServer:
    """An application on an address, in a thread of its own. Raise OSError. Connections wait until the start."""

    def __init__(self, app: ASGIApp, address: tuple[str, int], tls: ssl.SSLContext | None = None) -> None:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        both = address[0] == "::" and socket.has_dualstack_ipv6()
        self._socket = socket.create_server(address, family=family, backlog=MOST_CONNECTIONS, dualstack_ipv6=both)
        self.port = int(self._socket.getsockname()[1])
        config = uvicorn.Config(
            app,
            http=_Connection,
            loop=f"{__name__}:{HandshakeLoop.__name__}",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            # Below it uvicorn logs a line for each request that is none.
            log_level="error",
            access_log=False,
            proxy_headers=False,
            headers=list(HEADERS),
            backlog=MOST_CONNECTIONS,
            timeout_graceful_shutdown=GRACE_SECONDS,
            h11_max_incomplete_event_size=HEAD_BYTES,
            ssl_context_factory=(lambda config, default: tls) if tls is not None else None,
        )
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="web", daemon=True)

    def start(self) -> None:
        """Begin to answer, and return."""
        self._thread.start()

    def stop(self) -> None:
        """Close the port and wait a second for the requests under way."""
        # It logs a traceback for each request that is cut off now.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self._server.end()
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)
        self._socket.close()


class RenewedTls(ssl.SSLContext):
    """Context whose connections are made by its `current` one, so that it can be replaced while a server listens."""

    current: ssl.SSLContext

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return self.current.wrap_bio(*args, **options)


def read_tls(keys: TlsServerConfig) -> ssl.SSLContext:
    """Return the server's side of TLS, by Python's own defaults (forward secrecy). Raise ConfigError for a bad file."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if keys.min_version == "TLS13" else ssl.TLSVersion.TLSv1_2
    # Older OpenSSL lets a client ask for a new handshake, and another, at our expense.
    context.options |= ssl.OP_NO_RENEGOTIATION
    files = f"{keys.cert_file} and {keys.key_file}"
    try:
        # OpenSSL would ask the terminal for the password of a key that has one.
        context.load_cert_chain(keys.cert_file, keys.key_file, password=lambda: "")
        if keys.client_ca_file is not None:
            files = keys.client_ca_file
            context.load_verify_locations(keys.client_ca_file)
            required = keys.client_auth_type == "RequireAndVerifyClientCert"
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    except OSError as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigError((f"web.config_file: {files} cannot be used: {reason or error}",)) from error
    return context


def read_gate(web: Web, file: WebFile) -> Authenticator:
    """Return the authenticator of the tokens and users. Raise ConfigError for an unusable token file."""
    return Authenticator(read_tokens("web.bearer_token_file", web.bearer_token_file), file.basic_auth_users)


class WebServer:
    """Server of the agent's pages. `start` and `stop` may be called once each; `url` is where it listens.

    Raise ConfigError for files that cannot be used, and on `start` for an address that cannot be listened on.
    """

    def __init__(
        self, web: Web, source: Callable[[], AgentStatus | None], progress: Callable[[], CycleProgress]
    ) -> None:
        self._web = web
        self._servers: list[ThreadedServer] = []
        file = read_web_file(web.config_file)
        self._tls: RenewedTls | None = None
        if file.tls_server_config is not None:
            self._tls = RenewedTls(ssl.PROTOCOL_TLS_SERVER)
            self._tls.current = read_tls(file.tls_server_config)
        # No certificate of ours is for a stranger's name, and what other machines read has names of any kind.
        guarded = self._tls is None and is_loopback(web.address[0])
        self.pages = Pages(source, progress, read_gate(web, file), web.hosts if guarded else None)
        self.port = web.address[1]
        self.probe_port: int | None = None

    @property
    def url(self) -> str:
        """Return where a browser on this machine finds the status page."""
        return page_url(self._web, self.port)

    def start(self) -> None:
        """Listen and begin to answer. Raise ConfigError."""
        self.port = self._bind("web.listen", self._web.listen, self.pages, self._tls)
        if self._web.probe_listen is not None:
            probes = Starlette(routes=self.pages.probe_routes())
            self.probe_port = self._bind("web.probe_listen", self._web.probe_listen, probes, None)
        for server in self._servers:
            server.start()

    def _bind(self, key: str, listen: str, app: ASGIApp, tls: ssl.SSLContext | None) -> int:
        try:
            self._servers.append(ThreadedServer(app, bind_address(listen), tls))
        except OSError as error:
            # The address may be a name: Python adds it to the system's words.
            reason = (error.strerror or str(error)).partition(" (")[0].lower()
            raise ConfigError((f"{key}: cannot listen on {listen}: {reason}",)) from error
        return self._servers[-1].port

    def stop(self) -> None:
        """Close the ports and wait for requests under way."""
        for server in self._servers:
            server.stop()

    def reload(self) -> None:
        """Read tokens, users and certificates again. Raise ConfigError and keep all of them if a file is wrong."""
        file = read_web_file(self._web.config_file)
        if (file.tls_server_config is None) != (self._tls is None):
            raise ConfigError(("web.config_file: TLS begins or ends with a restart",))
        gate = read_gate(self._web, file)
        if self._tls is not None and file.tls_server_config is not None:
            self._tls.current = read_tls(file.tls_server_config)
        self.pages.gate = gate
