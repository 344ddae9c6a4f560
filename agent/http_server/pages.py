"""Pages of the agent as a Starlette application: metrics, status, probes, reports, runbooks and the webhook.

Only GET and HEAD exist, and POST of the webhook if a receiver is configured. A new page is a method and a Route. A client
never gets a traceback.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.http_server.credentials import Authenticator
from agent.http_server.interfaces import (
    HEALTH,
    NOT_YET,
    READY,
    WEBHOOK,
    WEBHOOK_BYTES,
    CycleProgress,
    WebhookEndpoint,
)
from agent.http_server.reports import report_response, runbook_response
from exporters.metrics import exposition
from exporters.status.records import AgentStatus

PROBES = (HEALTH, READY)
"""Answered without credentials, in the event loop: they need neither a thread nor the status."""

PAGES = ("/", "/metrics", "/api/status", *PROBES)

BUSY_SECONDS = 2.0
"""Seconds that a page waits for the status. The loop may hang."""

COMPRESSED_FROM_BYTES = 2_048

LONG_BODY_BYTES = 65_536
"""A connection ends after the answer to a longer body, so that the rest of it is not read."""

NO_STORE = {"Cache-Control": "no-store"}


def text_response(status: int, text: str, *headers: tuple[str, str]) -> Response:
    """Return a line for people."""
    response = PlainTextResponse(f"{text}\n", status, NO_STORE)
    for name, value in headers:
        response.headers.append(name, value)
    return response


def is_wrong_host(host: str, hosts: tuple[str, ...]) -> bool:
    """Return whether a Host header ("" if it has none) names neither this machine nor one of `hosts`.

    It prevents DNS rebinding: a browser page whose name suddenly resolves to 127.0.0.1 could read what is served there.
    """
    if not host:
        return False
    try:
        name = (urlsplit(f"//{host}").hostname or "").removesuffix(".").lower()
    except ValueError:
        return True
    if name == "localhost" or name.endswith(".localhost") or name in {known.lower() for known in hosts}:
        return False
    try:
        ip_address(name)
    except ValueError:
        return True
    return False


class Pages:
    """ASGI application. The status is that of `source`, which may wait for a cycle; `progress` never waits.

    `hosts` are the allowed names beside localhost, None if every name is.
    """

    def __init__(
        self,
        source: Callable[[], AgentStatus | None],
        progress: Callable[[], CycleProgress],
        gate: Authenticator,
        hosts: tuple[str, ...] | None,
    ) -> None:
        self.gate = gate
        self.receiver: WebhookEndpoint | None = None
        self.reports: Path | None = None
        self._source, self._progress, self._hosts = source, progress, hosts
        self._errors = self._refusals = 0
        self._status_task: asyncio.Task[AgentStatus | None] | None = None
        self._status_asked_at = 0.0
        self._started_at = time.monotonic()
        self._app = Starlette(
            routes=[
                Route("/", self._status_page),
                Route("/metrics", self._metrics),
                Route("/api/status", self._status_json),
                Route(WEBHOOK, self._webhook, methods=["POST"]),
                Route("/reports", lambda request: RedirectResponse("reports/", 302)),
                Route("/reports/{path:path}", self._report),
                Route("/runbooks", lambda request: RedirectResponse("runbooks/", 302)),
                Route("/runbooks/{name:path}", self._runbook),
                *self.probe_routes(),
            ],
            middleware=[Middleware(GZipMiddleware, minimum_size=COMPRESSED_FROM_BYTES, compresslevel=1)],
            exception_handlers={HTTPException: _explain_status, Exception: _explain_defect},
        )
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        length = int(headers.get("content-length", "0"))
        app: ASGIApp = self._app
        if length > WEBHOOK_BYTES:
            app = text_response(413, f"a body of more than {WEBHOOK_BYTES} bytes is not read")
        elif refusal := await self._refuse(scope["path"], headers):
            self._refusals += 1
            app = refusal

        async def send_and_close(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        is_long = length > LONG_BODY_BYTES or "transfer-encoding" in headers
        try:
            await app(scope, receive, send_and_close if is_long else send)
        except Exception:
            # uvicorn logs it and closes the connection, so that a page that is not whole does not look whole.
            self._errors += 1
            raise

    def probe_routes(self) -> list[Route]:
        """Return the routes of the probes alone."""
        return [Route(HEALTH, self._health), Route(READY, self._ready)]

    async def _refuse(self, path: str, headers: Headers) -> Response | None:
        """Return the response to a request without credentials or with another host. The webhook has its own token."""
        if path in PROBES or (path == WEBHOOK and self.receiver is not None):
            return None
        if not await self.gate.admits(headers.get("authorization", "")):
            challenges = (("WWW-Authenticate", challenge) for challenge in self.gate.challenges)
            return text_response(401, "credentials are needed", *challenges)
        if self.gate.open and self._hosts is not None and is_wrong_host(headers.get("host", ""), self._hosts):
            text = "this address answers to localhost; further names go under web.hosts, or ask for credentials"
            return text_response(421, text)
        return None

    async def _status(self) -> AgentStatus:
        """Return the status with our own counts. Requests that come meanwhile share it: one that hangs costs one thread.

        Raise HTTPException.
        """
        if self._status_task is None or self._status_task.done():
            self._status_asked_at = time.monotonic()
            self._status_task = asyncio.create_task(run_in_threadpool(self._source))
        try:
            status = await asyncio.wait_for(asyncio.shield(self._status_task), BUSY_SECONDS)
        except TimeoutError:
            seconds = time.monotonic() - self._status_asked_at
            raise HTTPException(503, f"no answer from the agent's loop for {seconds:.0f} s") from None
        if status is None:
            raise HTTPException(503, NOT_YET, {"Refresh": "2"})
        health = replace(status.health, web_errors=self._errors, web_refusals=self._refusals)
        return replace(status, health=health)

    async def _metrics(self, request: Request) -> Response:
        parts, content_type = exposition.render_parts(await self._status(), request.headers.get("accept", ""))
        headers = {**NO_STORE, "Content-Type": content_type, "Vary": "Accept"}
        # The first part is made here: what cannot be printed at all is an error 500, not an unfinished page.
        first = await run_in_threadpool(next, parts, b"")
        return StreamingResponse(chain((first,), parts), headers=headers)

    async def _status_page(self, request: Request) -> Response:
        # A node's page is seldom looked at; its modules take 0.7 MiB.
        from exporters.status import page

        paused = request.scope["query_string"].decode("latin-1") == page.PAUSED
        body = await run_in_threadpool(page.render_page, await self._status(), paused=paused)
        return HTMLResponse(body, headers={**NO_STORE, "Content-Security-Policy": page.page_policy(body)})

    async def _status_json(self, request: Request) -> Response:
        from exporters.status.status_json import status_json

        status = await self._status()
        return await run_in_threadpool(lambda: JSONResponse(status_json(status), headers=NO_STORE))

    def _report(self, request: Request) -> Response:
        return report_response(self.reports, request.path_params["path"], request.headers.get("if-none-match", ""))

    def _runbook(self, request: Request) -> Response:
        return runbook_response(request.path_params["name"], request.headers.get("if-none-match", ""))

    async def _health(self, request: Request) -> Response:
        problem = self._progress().health_problem(time.monotonic() - self._started_at)
        return text_response(503, problem) if problem else text_response(200, "ok")

    async def _ready(self, request: Request) -> Response:
        progress = self._progress()
        if progress.seconds_since_cycle is None:
            return text_response(503, NOT_YET)
        problem = progress.health_problem(time.monotonic() - self._started_at)
        return text_response(503, problem) if problem else text_response(200, "ready")

    async def _webhook(self, request: Request) -> Response:
        receiver, headers = self.receiver, request.headers
        if receiver is None:
            raise HTTPException(404)
        rejection = receiver.refuses(headers.get("authorization", ""), headers.get("content-length", ""))
        if rejection is None:
            try:
                rejection = await run_in_threadpool(receiver.take, await request.body())
            except ClientDisconnect:
                return text_response(400, "the body ended before its announced length")
        if rejection is None:
            return text_response(200, "ok")
        challenges = receiver.gate.challenges if rejection.reason == "credentials" else ()
        return text_response(rejection.status, rejection.text, *(("WWW-Authenticate", each) for each in challenges))


async def _explain_status(request: Request, error: Exception) -> Response:
    """Return the response of an HTTPException: of a page, or of Starlette's router (404 and 405)."""
    assert isinstance(error, HTTPException)
    text = error.detail
    if text == "Not Found":
        text = f"there are {', '.join(PAGES)}"
    return text_response(error.status_code, text, *(error.headers or {}).items())


async def _explain_defect(request: Request, error: Exception) -> Response:
    return text_response(500, "this page could not be made; the agent's log says why")
