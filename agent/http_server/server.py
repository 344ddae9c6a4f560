"""Web server of the agent: metrics, health, the status page and its JSON.

Only GET and HEAD exist, and POST of the webhook if a receiver is configured. A new page is a function and a row in
ROUTES. A client never gets a traceback.
"""

from __future__ import annotations

import gzip
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent.errors import ConfigError
from agent.http_server.connection_pool import MOST_BODY_BYTES
from agent.http_server.connections import CLIENT_VERIFIED, HURRY, HttpServer, TlsAdapter
from agent.http_server.credentials import read_gate
from agent.http_server.options import (
    HEALTH,
    WEBHOOK,
    WEBHOOK_BYTES,
    WebhookEndpoint,
    WebhookRejection,
    WebOptions,
    is_wrong_host,
)
from agent.http_server.reports import Reply, is_report, is_runbook, report_reply, runbook_reply
from agent.http_server.reports import text_reply as _text
from exporters.metrics import exposition
from exporters.status.records import AgentHealth, AgentStatus

_log = logging.getLogger(__name__)

COMPRESSED_FROM_BYTES = 2_048
DRAINED_BYTES = MOST_BODY_BYTES
"""What is read of the body of a webhook that is refused: a real sender then learns why."""

DRAINED_SECONDS = 0.05
"""For what has not come until a worker takes the request up; mostly all has (`agent.http_server.connection_pool`)."""

MOST_FAILED_TURNS = 3
"""Failed turns in a row that make an agent ill: one may be an accident, and the next comes after an interval."""

BODIES = frozenset({"GET", "HEAD"})

HEADERS: tuple[tuple[str, str], ...] = (
    ("Cache-Control", "no-store"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
)

Source = Callable[[], AgentStatus | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a route needs to know of a request."""

    accept: str
    query: str
    stuck_after_seconds: float
    up_seconds: float = 0.0
    """Seconds since the start of the server."""


def _refused(receiver: WebhookEndpoint, refusal: WebhookRejection) -> Reply:
    """What a sender of alerts is told."""
    reply = _text(refusal.status, refusal.text)
    if refusal.reason != "credentials":
        return reply
    return replace(reply, headers=tuple(("WWW-Authenticate", challenge) for challenge in receiver.challenges))


class StatusUnavailableError(Exception):
    """The agent does not say how it is: the turn that must end first takes too long. `seconds`: how long already."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer from the agent's loop for {seconds:.0f} s")
        self.seconds = seconds


MISDIRECTED = _text(
    "421 Misdirected Request",
    "this address answers to localhost; further names go under web.hosts, or ask for credentials",
)
NOT_YET = _text("503 Service Unavailable", "the first turn has not succeeded yet")


def _metrics(status: AgentStatus | None, request: Request) -> Reply:
    if status is None:
        return NOT_YET
    body, content_type = exposition.render(status, request.accept)
    return Reply(status="200 OK", content_type=content_type, body=body)


def _page(status: AgentStatus | None, request: Request) -> Reply:
    if status is None:
        return replace(NOT_YET, headers=(("Refresh", "2"),))
    # A node's page is seldom looked at; its modules take 0.7 MiB.
    from exporters.status import page

    body = page.render_page(status, paused=request.query == page.PAUSED)
    headers = (("Content-Security-Policy", page.page_policy(body)),)
    return Reply(status="200 OK", content_type="text/html; charset=utf-8", body=body, headers=headers)


def _json(status: AgentStatus | None, request: Request) -> Reply:
    if status is None:
        return NOT_YET
    from exporters.status.status_json import status_json

    body = json.dumps(status_json(status), allow_nan=False).encode()
    return Reply(status="200 OK", content_type="application/json", body=body)


def _health(status: AgentStatus | None, request: Request) -> Reply:
    """Health is progress: ill when turns have stopped or fail, or when none has succeeded in time since the start."""
    health = status.health if status is not None else AgentHealth()
    ill = ""
    if health.failed_in_row >= MOST_FAILED_TURNS:
        ill = f"the last {health.failed_in_row} turns failed, the agent's log says why"
    elif status is None or health.last_turn_at is None:
        if request.up_seconds > request.stuck_after_seconds:
            ill = f"no turn has succeeded in the {request.up_seconds:.0f} s since the start"
    elif status.now - health.last_turn_at > request.stuck_after_seconds:
        ill = f"the last turn ended {status.now - health.last_turn_at:.0f} s ago"
    return _text("503 Service Unavailable", ill) if ill else _text("200 OK", "ok")


def _ready(status: AgentStatus | None, request: Request) -> Reply:
    """Ready after a turn that succeeded, until too many in a row fail."""
    if status is None or (status.health.failed_in_row and status.health.last_turn_at is None):
        return NOT_YET
    return _health(status, request) if status.health.failed_in_row >= MOST_FAILED_TURNS else _text("200 OK", "ready")


ROUTES: Mapping[str, Callable[[AgentStatus | None, Request], Reply]] = {
    "/": _page,
    "/metrics": _metrics,
    "/api/status": _json,
    HEALTH: _health,
    "/readyz": _ready,
}


class WebServer:
    """Serves the status that `source` gives. `start` and `stop` may be called once each; `url` is where it listens.

    Raises ConfigError for files that cannot be used, and on `start` for an address that cannot be listened on.
    """

    def __init__(self, options: WebOptions, source: Source) -> None:
        self._options = options
        self._source = source
        self._gate = read_gate(options)
        self._tls = None
        if options.cert_file:
            key_file = options.key_file or options.cert_file
            self._tls = TlsAdapter(options.cert_file, key_file, options.client_ca_file, options.min_version)
        self._server = HttpServer(options, self._application, self._tls)
        self._thread: threading.Thread | None = None
        self._counting, self._asking = threading.Lock(), threading.Lock()
        self._errors = self._refusals = 0
        self._asked_at = 0.0
        self._begun_at = time.monotonic()
        self._receiver: WebhookEndpoint | None = None
        self._reports: Path | None = None

    @property
    def port(self) -> int:
        """The port it listens on; before `start` the one it will."""
        return int(self._server.bind_addr[1])

    @property
    def url(self) -> str:
        return self._options.url(self.port)

    def start(self) -> None:
        """Begins to listen, and returns."""
        try:
            self._server.prepare()
        except OSError as error:
            where = f"{self._options.host}:{self._options.port}"
            # cheroot wraps the system's words: "No socket could be created -- (... [Errno 98] Address already in use)".
            reason = str(error).rpartition("] ")[2].rstrip(")").lower()
            raise ConfigError((f"web.listen: cannot listen on {where}: {reason}",)) from error
        self._thread = threading.Thread(target=self._server.serve, name="web", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Closes the port and waits for requests under way."""
        if self._thread is not None:
            self._server.stop()
            self._thread.join(timeout=5)

    def reload(self) -> None:
        """Read tokens, users and certificates again. Each keeps what it has if its file is wrong; raise ConfigError then."""
        problems: list[str] = []
        try:
            self._gate = read_gate(self._options)
        except ConfigError as error:
            problems += error.problems
        try:
            if self._tls is not None:
                self._tls.renew()
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(tuple(problems))

    def receive(self, receiver: WebhookEndpoint | None) -> None:
        """Takes alerts for this receiver from now on; None takes none."""
        self._receiver = receiver
        self._server.max_request_body_size = WEBHOOK_BYTES if receiver is not None else self._options.max_body_bytes

    def serve_reports(self, folder: Path | None) -> None:
        """Weekly reports of this folder from now on; None serves none."""
        self._reports = folder

    def _application(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        reply = self._reply(environ)
        body = reply.body
        own = {name for name, _ in reply.headers}
        everywhere = [(name, value) for name, value in HEADERS if name not in own]
        headers = [("Content-Type", reply.content_type), *everywhere, *reply.headers]
        if len(body) >= COMPRESSED_FROM_BYTES and not reply.content_type.startswith("image/"):
            headers.append(("Vary", "Accept, Accept-Encoding"))
            if "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
                # The fastest level: a page of metrics shrinks to a tenth, and this machine has better things to do.
                body = gzip.compress(body, compresslevel=1, mtime=0)
                headers.append(("Content-Encoding", "gzip"))
        start_response(reply.status, [*headers, ("Content-Length", str(len(body)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def _reply(self, environ: dict[str, Any]) -> Reply:
        try:
            return self._routed(environ)
        except StatusUnavailableError as error:
            return _text("503 Service Unavailable", str(error))
        except Exception:  # noqa: BLE001 - a page that fails is told in the log and counted; the server goes on
            self._count(errors=1)
            _log.exception("%s failed", environ.get("PATH_INFO", ""))
            return _text("500 Internal Server Error", "this page could not be made; the agent's log says why")

    def _routed(self, environ: dict[str, Any]) -> Reply:
        path = environ.get("PATH_INFO", "")
        closed = path not in self._options.open_paths
        if closed and self._options.client_ca_file and environ.get(CLIENT_VERIFIED) != "SUCCESS":
            self._count(refusals=1)
            self._drain(environ)
            return _text("403 Forbidden", "a client certificate is needed")
        if path == WEBHOOK and self._receiver is not None:
            return self._webhook(self._receiver, environ)
        if closed and not self._gate.admits(environ.get("HTTP_AUTHORIZATION", "")):
            self._count(refusals=1)
            challenges = tuple(("WWW-Authenticate", challenge) for challenge in self._gate.challenges)
            return replace(_text("401 Unauthorized", "credentials are needed"), headers=challenges)
        if environ["REQUEST_METHOD"] not in BODIES:
            self._drain(environ)
            return replace(_text("405 Method Not Allowed", "only GET and HEAD"), headers=(("Allow", "GET, HEAD"),))
        known = is_report(path) or is_runbook(path) or path in ROUTES
        if known and closed and self._gate.open and is_wrong_host(self._options, environ.get("HTTP_HOST", "")):
            self._count(refusals=1)
            return MISDIRECTED
        if is_report(path):
            return report_reply(self._reports, path, environ.get("HTTP_IF_NONE_MATCH", ""))
        if is_runbook(path):
            return runbook_reply(path, environ.get("HTTP_IF_NONE_MATCH", ""))
        route = ROUTES.get(path)
        if route is None:
            return _text("404 Not Found", f"there are {', '.join(ROUTES)}")
        request = Request(
            accept=environ.get("HTTP_ACCEPT", ""),
            query=environ.get("QUERY_STRING", ""),
            stuck_after_seconds=self._options.stuck_after_seconds,
            up_seconds=time.monotonic() - self._begun_at,
        )
        return route(self._status(path), request)

    def _webhook(self, receiver: WebhookEndpoint, environ: dict[str, Any]) -> Reply:
        """Alerts of others; the receiver's own credentials count here, and nowhere else."""
        if environ["REQUEST_METHOD"] != "POST":
            self._drain(environ)
            return replace(_text("405 Method Not Allowed", "only POST"), headers=(("Allow", "POST"),))
        length = environ.get("CONTENT_LENGTH", "")
        refusal = receiver.refuses(
            environ.get("HTTP_AUTHORIZATION", ""),
            environ.get("CONTENT_TYPE", ""),
            environ.get("HTTP_CONTENT_ENCODING", ""),
            length,
        )
        if refusal is not None:
            self._drain(environ, DRAINED_BYTES)
            return _refused(receiver, refusal)
        try:
            body = environ["wsgi.input"].read(int(length))
        except ValueError:
            # A length and chunks at once, and the chunks are none.
            return _text("400 Bad Request", "the body is not framed as HTTP says")
        except OSError:
            return _text("408 Request Timeout", "the body did not come in time")
        if len(body) < int(length):
            return _text("400 Bad Request", "the body ended before its announced length")
        refusal = receiver.take(body)
        return _refused(receiver, refusal) if refusal is not None else _text("200 OK", "ok")

    def _drain(self, environ: dict[str, Any], most: int = 0) -> None:
        """A body that was sent is read, within the limit, so that the answer is not lost with the connection. Of one that was
        announced and did not come nobody is told."""
        length = environ.get("CONTENT_LENGTH", "")
        if not length.isdecimal():
            return
        environ[HURRY](DRAINED_SECONDS)
        try:
            environ["wsgi.input"].read(min(int(length), most or self._options.max_body_bytes))
        except (OSError, ValueError) as error:
            # A length and chunks at once, and the chunks are none.
            _log.debug('unreadable body of a refused request error="%s"', error)

    def _status(self, path: str) -> AgentStatus | None:
        """The source's status with our own counts. One asks at a time: a loop that hangs must hang one thread, not all."""
        if not self._asking.acquire(timeout=self._options.busy_seconds):
            seconds = time.monotonic() - self._asked_at
            if path == HEALTH and seconds <= self._options.stuck_after_seconds:
                return None
            raise StatusUnavailableError(seconds)
        try:
            self._asked_at = time.monotonic()
            status = self._source()
        finally:
            self._asking.release()
        if status is None:
            return None
        health = replace(status.health, web_errors=self._errors, web_refusals=self._refusals)
        return replace(status, health=health)

    def _count(self, *, errors: int = 0, refusals: int = 0) -> None:
        with self._counting:
            self._errors += errors
            self._refusals += refusals
