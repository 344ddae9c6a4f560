"""Web server of the agent: metrics, health, the status page and its JSON.

Only GET and HEAD exist, and POST of the webhook if a receiver is configured. A new page is a function and a row in
ROUTES. A client never gets a traceback.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from agent.errors import ConfigError
from agent.http_server.connection_pool import origin
from agent.http_server.connections import Admission, HttpServer
from agent.http_server.credentials import PasswordCheckError, read_gate
from agent.http_server.options import (
    HEALTH,
    READY,
    WEBHOOK,
    WEBHOOK_BYTES,
    WebhookEndpoint,
    WebhookRejection,
    WebOptions,
    is_wrong_host,
)
from agent.http_server.probes import NOT_YET, TurnProgress, health_reply, ready_reply
from agent.http_server.reply import Reply, busy_reply, encode_reply, finish_reply
from agent.http_server.reply import text_reply as _text
from agent.http_server.reports import is_report, is_runbook, report_reply, runbook_reply
from agent.http_server.request_head import RequestHead, RequestHeadError, parse_head
from agent.http_server.tls import CLIENT_VERIFIED, TlsAdapter
from exporters.metrics import exposition
from exporters.status.records import AgentStatus
from rules.light_dataclass import light_dataclass

_log = logging.getLogger(__name__)

REFUSED_BODY_BYTES = 65_536
"""What is received of the body of a request that is refused: a real sender then learns why."""

RECEIVER = "sizewatch.receiver"
"""In a request's environment: the receiver that has admitted its alerts. No header can set it."""

BODIES = frozenset({"GET", "HEAD"})

Source = Callable[[], AgentStatus | None]
Progress = Callable[[], TurnProgress]


@light_dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a route needs to know of a request."""

    accept: str
    query: str


def _refused(receiver: WebhookEndpoint, refusal: WebhookRejection) -> Reply:
    """What a sender of alerts is told."""
    challenges = receiver.challenges if refusal.reason == "credentials" else ()
    return _text(refusal.status, refusal.text, *(("WWW-Authenticate", one) for one in challenges))


class StatusUnavailableError(Exception):
    """The agent does not say how it is: the turn that must end first takes too long."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer from the agent's loop for {seconds:.0f} s")


MISDIRECTED = _text(
    "421 Misdirected Request",
    "this address answers to localhost; further names go under web.hosts, or ask for credentials",
)


def _metrics(status: AgentStatus | None, request: Request) -> Reply:
    if status is None:
        return NOT_YET
    parts, content_type = exposition.render_parts(status, request.accept)
    # The first part is made here: what cannot be printed at all is an error 500, not an unfinished page.
    first = next(parts, b"")
    return Reply(status="200 OK", content_type=content_type, parts=chain((first,), parts))


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


ROUTES: Mapping[str, Callable[[AgentStatus | None, Request], Reply]] = {
    "/": _page,
    "/metrics": _metrics,
    "/api/status": _json,
}
PROBES = {HEALTH: health_reply, READY: ready_reply}
"""Answered by the thread that waits for connections, when no worker is free too."""


def is_page(path: str) -> bool:
    """Return whether there is a page at this path."""
    return is_report(path) or is_runbook(path) or path in ROUTES or path in PROBES


@light_dataclass(frozen=True, slots=True, kw_only=True)
class _AccessRequest:
    """What decides whether a request is answered."""

    method: str
    path: str
    authorization: str
    host: str
    verified: bool


class WebServer:
    """Serves the status that `source` gives. `start` and `stop` may be called once each; `url` is where it listens.

    Raises ConfigError for files that cannot be used, and on `start` for an address that cannot be listened on.
    """

    def __init__(self, options: WebOptions, source: Source, progress: Progress) -> None:
        self._options = options
        self._source = source
        self._progress = progress
        self._gate = read_gate(options)
        self._tls = None
        if options.cert_file:
            key_file = options.key_file or options.cert_file
            self._tls = TlsAdapter(options.cert_file, key_file, options.client_ca_file, options.min_version)
        self._server = HttpServer(options, self._application, self._admit, self._tls)
        self._started = False
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
        self._started = True

    def stop(self) -> None:
        """Closes the port and waits for requests under way."""
        if self._started:
            self._server.stop()

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

    def _admit(self, data: bytes, verified: bool) -> Admission:
        """Decide about a request by its head alone. The pool's thread calls this and must not wait."""
        try:
            head = parse_head(data)
        except RequestHeadError as error:
            return Admission(answer=encode_reply(_text(error.status, str(error))))
        most = self._server.max_request_body_size
        if head.body_bytes > most:
            text = f"a body of more than {most} bytes is not read"
            return Admission(answer=encode_reply(_text("413 Content Too Large", text), head.method))
        reply, receiver = self._judge(head, verified)
        if receiver is not None:
            environ = {RECEIVER: receiver}
            return Admission(body_bytes=head.body_bytes, continues=head.expects_continue, environ=environ)
        # A sender that waits to be told sends nothing.
        body_bytes = 0 if head.expects_continue else min(head.body_bytes, REFUSED_BODY_BYTES)
        return Admission(answer=encode_reply(reply, head.method) if reply else None, body_bytes=body_bytes)

    def _judge(self, head: RequestHead, verified: bool) -> tuple[Reply | None, WebhookEndpoint | None]:
        """Return the answer to a request that needs no worker, or the receiver that takes its alerts."""
        authorization = head.headers.get("authorization", "")
        asked = _AccessRequest(
            method=head.method,
            path=head.path,
            authorization=authorization,
            host=head.headers.get("host", ""),
            verified=verified,
        )
        receiver = self._receiver
        if head.path == WEBHOOK and receiver is not None:
            if (refusal := self._refuse_certificate(asked)) is not None:
                return refusal, None
            if head.method != "POST":
                return _text("405 Method Not Allowed", "only POST", ("Allow", "POST")), None
            rejection = receiver.refuses(
                authorization,
                head.headers.get("content-type", ""),
                head.headers.get("content-encoding", ""),
                head.headers.get("content-length", ""),
            )
            return (_refused(receiver, rejection), None) if rejection is not None else (None, receiver)
        known = self._gate.knows(authorization)
        refusal = self._refuse(asked, lambda: known is not False)
        if refusal is None and head.path in PROBES and (known or head.path in self._options.open_paths):
            return self._probe(head.path), None
        return refusal, None

    def _probe(self, path: str) -> Reply:
        up_seconds = time.monotonic() - self._begun_at
        return PROBES[path](self._progress(), up_seconds, self._options.stuck_after_seconds)

    def _refuse_certificate(self, asked: _AccessRequest) -> Reply | None:
        if asked.path in self._options.open_paths or not self._options.client_ca_file or asked.verified:
            return None
        self._count(refusals=1)
        return _text("403 Forbidden", "a client certificate is needed")

    def _refuse(self, asked: _AccessRequest, has_credentials: Callable[[], bool]) -> Reply | None:
        """Return why a page is not shown, or None."""
        closed = asked.path not in self._options.open_paths
        if (refusal := self._refuse_certificate(asked)) is not None:
            return refusal
        if closed and not has_credentials():
            self._count(refusals=1)
            challenges = (("WWW-Authenticate", one) for one in self._gate.challenges)
            return _text("401 Unauthorized", "credentials are needed", *challenges)
        if asked.method not in BODIES:
            return _text("405 Method Not Allowed", "only GET and HEAD", ("Allow", "GET, HEAD"))
        if closed and is_page(asked.path) and self._gate.open and is_wrong_host(self._options, asked.host):
            self._count(refusals=1)
            return MISDIRECTED
        return None

    def _application(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        reply = self._reply(environ)
        headers, parts = finish_reply(reply, environ.get("HTTP_ACCEPT_ENCODING", ""))
        start_response(reply.status, headers)
        return () if environ["REQUEST_METHOD"] == "HEAD" else self._watch(parts)

    def _watch(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the parts. Count a defect: cheroot logs it and closes the connection inside the page."""
        try:
            yield from parts
        except Exception:
            self._count(errors=1)
            raise

    def _reply(self, environ: dict[str, Any]) -> Reply:
        try:
            reply = self._routed(environ)
            # HTTP/1.0 has no chunks: without a length a page that is cut off would look whole.
            if reply.parts is not None and environ["SERVER_PROTOCOL"] == "HTTP/1.0":
                return replace(reply, body=b"".join(reply.parts), parts=None)
            return reply
        except StatusUnavailableError as error:
            return _text("503 Service Unavailable", str(error))
        except PasswordCheckError as error:
            return busy_reply(str(error))
        except Exception:  # noqa: BLE001 - a page that fails is told in the log and counted; the server goes on
            self._count(errors=1)
            _log.exception("%s failed", environ.get("PATH_INFO", ""))
            return _text("500 Internal Server Error", "this page could not be made; the agent's log says why")

    def _routed(self, environ: dict[str, Any]) -> Reply:
        path = environ.get("PATH_INFO", "")
        receiver: WebhookEndpoint | None = environ.get(RECEIVER)
        if receiver is not None:
            return self._webhook(receiver, environ)
        asked = _AccessRequest(
            method=environ["REQUEST_METHOD"],
            path=path,
            authorization=environ.get("HTTP_AUTHORIZATION", ""),
            host=environ.get("HTTP_HOST", ""),
            verified=environ.get(CLIENT_VERIFIED) == "SUCCESS",
        )
        address = origin(environ.get("REMOTE_ADDR", ""))
        refusal = self._refuse(asked, lambda: self._gate.admits(asked.authorization, address))
        if refusal is not None:
            return refusal
        if is_report(path):
            return report_reply(self._reports, path, environ.get("HTTP_IF_NONE_MATCH", ""))
        if is_runbook(path):
            return runbook_reply(path, environ.get("HTTP_IF_NONE_MATCH", ""))
        if path in PROBES:
            return self._probe(path)
        route = ROUTES.get(path)
        if route is None:
            return _text("404 Not Found", f"there are {', '.join((*ROUTES, *PROBES))}")
        request = Request(accept=environ.get("HTTP_ACCEPT", ""), query=environ.get("QUERY_STRING", ""))
        return route(self._status(), request)

    def _webhook(self, receiver: WebhookEndpoint, environ: dict[str, Any]) -> Reply:
        """Alerts of others, which the receiver has admitted by their head."""
        length = int(environ["CONTENT_LENGTH"])
        body = environ["wsgi.input"].read(length)
        if len(body) < length:
            return _text("400 Bad Request", "the body ended before its announced length")
        rejection = receiver.take(body)
        return _refused(receiver, rejection) if rejection is not None else _text("200 OK", "ok")

    def _status(self) -> AgentStatus | None:
        """The source's status with our own counts. One asks at a time: a loop that hangs must hang one thread, not all."""
        if not self._asking.acquire(timeout=self._options.busy_seconds):
            raise StatusUnavailableError(time.monotonic() - self._asked_at)
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
