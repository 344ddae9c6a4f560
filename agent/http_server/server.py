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
from pathlib import Path
from typing import Any

import uvicorn
from anyio import to_thread
from starlette.applications import Starlette
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from agent.config.weaknesses import is_loopback
from agent.config.web import TlsServerConfig, Web, WebFile, bind_address, page_url, read_web_file
from agent.errors import ConfigError
from agent.http_server.credentials import Authenticator, read_tokens
from agent.http_server.interfaces import CycleProgress, WebhookEndpoint
from agent.http_server.pages import Pages
from exporters.status.records import AgentStatus

HEAD_SECONDS = 5.0
"""Seconds for a TLS handshake, and for the head of a request. An idle connection has as long."""

ANSWER_SECONDS = 30.0
"""Seconds from the end of a request's head to the end of its answer."""

MOST_CONNECTIONS = 256
"""A quarter of the descriptors that a process usually may have."""

HEAD_BYTES = 16_384
THREADS = 4
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
    """uvicorn's connection with deadlines. With too many connections, the one that has waited longest is closed."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.opened_at = time.monotonic()
        self._allow(HEAD_SECONDS)
        if len(self.connections) > MOST_CONNECTIONS:
            oldest = min(self.connections, key=lambda connection: (connection.is_busy, connection.opened_at))  # type: ignore[union-attr]
            self.connections.discard(oldest)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()

    def handle_events(self) -> None:
        before = self.cycle
        # uvicorn would renew it ten times a second, asked or not.
        self.server_state.default_headers[:1] = [(b"date", formatdate(usegmt=True).encode())]
        super().handle_events()
        if self.cycle is not before:
            self._allow(ANSWER_SECONDS)

    def on_response_complete(self) -> None:
        # What is still to be sent keeps the time of its request.
        if not self.transport.get_write_buffer_size():
            self._allow(HEAD_SECONDS)
        super().on_response_complete()

    @property
    def is_busy(self) -> bool:
        """Return whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _allow(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)


class _Loop(asyncio.SelectorEventLoop):
    async def create_server(self, *args: Any, **options: Any) -> Any:
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = HEAD_SECONDS
        return await super().create_server(*args, **options)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    async def main_loop(self) -> None:
        # Its first tick makes the headers; no further one wakes an idle process.
        await self.on_tick(0)
        await self.stopping.wait()


class ThreadedServer:
    """Applications on addresses of their own, in one thread. `start` and `stop` may be called once each."""

    def __init__(self) -> None:
        self._servers: list[_Server] = []
        self._sockets: list[socket.socket] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)

    def bind(self, app: ASGIApp, address: tuple[str, int], tls: ssl.SSLContext | None = None) -> int:
        """Listen on an address and return its port. Raise OSError. Connections wait until the start."""
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        both = family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6()
        listening = socket.create_server(address, family=family, backlog=MOST_CONNECTIONS, dualstack_ipv6=both)
        config = uvicorn.Config(
            app,
            http=_Connection,
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
        self._servers.append(_Server(config))
        self._sockets.append(listening)
        return int(listening.getsockname()[1])

    def start(self) -> None:
        """Begin to answer, and return."""
        self._thread.start()

    def stop(self) -> None:
        """Close the ports and wait a second for the requests under way."""
        # It logs a traceback for each request that is cut off now.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        for server in self._servers:
            server.should_exit = True
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(server.stopping.set)
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)
        for listening in self._sockets:
            listening.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        to_thread.current_default_thread_limiter().total_tokens = THREADS
        pairs = zip(self._servers, self._sockets, strict=True)
        await asyncio.gather(*(server.serve([listening]) for server, listening in pairs))


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
        self._server = ThreadedServer()
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
        self._server.start()

    def _bind(self, key: str, listen: str, app: ASGIApp, tls: ssl.SSLContext | None) -> int:
        try:
            return self._server.bind(app, bind_address(listen), tls)
        except OSError as error:
            # The address may be a name: Python adds it to the system's words.
            reason = (error.strerror or str(error)).partition(" (")[0].lower()
            raise ConfigError((f"{key}: cannot listen on {listen}: {reason}",)) from error

    def stop(self) -> None:
        """Close the ports and wait for requests under way."""
        self._server.stop()

    def reload(self) -> None:
        """Read tokens, users and certificates again. Raise ConfigError and keep all of them if a file is wrong."""
        problems: list[str] = []
        file, gate, tls = WebFile(), self.pages.gate, None
        try:
            file = read_web_file(self._web.config_file)
            tls = read_tls(file.tls_server_config) if file.tls_server_config is not None else None
            if (tls is None) != (self._tls is None):
                raise ConfigError(("web.config_file: TLS begins or ends with a restart",))
        except ConfigError as error:
            problems += error.problems
        try:
            gate = read_gate(self._web, file)
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(tuple(problems))
        if self._tls is not None and tls is not None:
            self._tls.current = tls
        self.pages.gate = gate

    def receive(self, receiver: WebhookEndpoint | None) -> None:
        """Take alerts for this receiver from now on; None takes none."""
        self.pages.receiver = receiver

    def serve_reports(self, folder: Path | None) -> None:
        """Serve the weekly reports of this folder from now on; None serves none."""
        self.pages.reports = folder
