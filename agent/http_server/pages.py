"""Pages of the agent as a Starlette application: metrics, status, probes, reports, runbooks and the webhook.

Only GET and HEAD exist, and POST of the webhook if a receiver is configured. A new page is a method and a Route.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import ip_address
from itertools import chain
from pathlib import Path

from anyio import to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

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

BUSY_SECONDS = 2.0
"""Seconds that a page waits for the status. The loop may hang."""

COMPRESSED_FROM_BYTES = 2_048

THREADS = 4

NO_STORE = {"Cache-Control": "no-store"}


def text_response(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a line for people."""
    return PlainTextResponse(f"{text}\n", status, {**NO_STORE, **(headers or {})})


def is_wrong_host(host: str, hosts: tuple[str, ...]) -> bool:
    """Return whether a Host header ("" if it has none) names neither this machine nor one of `hosts`.

    It prevents DNS rebinding: a browser page whose name suddenly resolves to 127.0.0.1 could read what is served there.
    """
    name = re.sub(r":\d*$", "", host.lower()).strip("[]").removesuffix(".")
    if not host or name in ("localhost", *map(str.lower, hosts)) or name.endswith(".localhost"):
        return False
    try:
        return not ip_address(name)
    except ValueError:
        return True


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
        )
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        to_thread.current_default_thread_limiter().total_tokens = THREADS
        headers = Headers(scope=scope)
        app: ASGIApp = self._app
        if int(headers.get("content-length", "0")) > WEBHOOK_BYTES:
            text = f"a body of more than {WEBHOOK_BYTES} bytes is not read"
            app = text_response(413, text, {"Connection": "close"})
        elif refusal := await self._refuse(scope["path"], headers):
            self._refusals += 1
            app = refusal
        try:
            await app(scope, receive, send)
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
            return text_response(401, "credentials are needed", {"WWW-Authenticate": self.gate.challenge})
        if self.gate.open and self._hosts is not None and is_wrong_host(headers.get("host", ""), self._hosts):
            text = "this address answers to localhost; further names go under web.hosts, or ask for credentials"
            return text_response(421, text)
        return None

    async def _status(self) -> AgentStatus:
        """Return the status with our own counts. Requests that come meanwhile share it: one that hangs costs one thread.

        Raise HTTPException.
        """
        if self._status_task is None or self._status_task.done():
            self._status_task = asyncio.create_task(run_in_threadpool(self._source))
        try:
            status = await asyncio.wait_for(asyncio.shield(self._status_task), BUSY_SECONDS)
        except TimeoutError:
            raise HTTPException(503, "no answer from the agent's loop") from None
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
        return report_response(self.reports, request.path_params["path"])

    def _runbook(self, request: Request) -> Response:
        return runbook_response(request.path_params["name"])

    async def _health(self, request: Request) -> Response:
        problem = self._progress().health_problem(time.monotonic() - self._started_at)
        return text_response(503, problem) if problem else text_response(200, "ok")

    async def _ready(self, request: Request) -> Response:
        if self._progress().seconds_since_cycle is None:
            return text_response(503, NOT_YET)
        return await self._health(request)

    async def _webhook(self, request: Request) -> Response:
        if self.receiver is None:
            raise HTTPException(404)
        await self.receiver(request)
        return text_response(200, "ok")
