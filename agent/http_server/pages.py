"""Pages of the agent as a Starlette application: metrics, status, probes, reports, runbooks and the webhook.

Only GET and HEAD exist, and POST of a configured webhook. What takes memory is imported on demand.
A new page is a method and a Route.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
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
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from agent.http_server.credentials import Authenticator
from agent.reporting import storage
from exporters.metrics import exposition
from exporters.status.records import AgentStatus

WEBHOOK = "/webhook/alertmanager"

PROBES = ("/healthz", "/readyz")
"""Answered without credentials, in the event loop: they need neither a thread nor the status."""

STUCK_SECONDS = 300.0
"""Seconds without a successful cycle after which /healthz is 503."""

BUSY_SECONDS = 2.0
"""Seconds that a page waits for the status. The loop may hang."""

THREADS, MOST_HEAD_BYTES = 4, 16_384

NO_STORE = {"Cache-Control": "no-store"}
NOT_YET = "the first cycle has not succeeded yet"
HTML = "text/html; charset=utf-8"

LOCAL = re.compile(r"(?:(?:.+\.)?localhost|[0-9.]+|\[[0-9a-f:.]+\])?")
"""Hosts that no name server can lead elsewhere: this machine's name and IP addresses. HTTP/1.0 may have none."""

WebhookEndpoint = Callable[[Request], Awaitable[None]]
"""Receiver of the alerts of a request. Its own credentials count. Raise HTTPException."""


def text_response(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{text}\n", status, {**NO_STORE, **(headers or {})})


def content_response(body: bytes, content_type: str = HTML, cache: str = "private, no-cache") -> Response:
    """Return a page or a file with the policy that only its own style is allowed."""
    from exporters.status.page import page_policy

    policy = page_policy(body if content_type == HTML else b"")
    headers = {"Cache-Control": cache, "Content-Security-Policy": policy, "Content-Type": content_type}
    return Response(body, headers=headers)


class Pages:
    """ASGI application. The status is that of `source`, which may wait for a cycle.

    `seconds_since_cycle` never waits. It counts from the last cycle that succeeded, None before it. `hosts` are the
    allowed names beside localhost, None if every name is. `reports` is their folder, None without reports.
    """

    def __init__(
        self,
        source: Callable[[], AgentStatus | None],
        seconds_since_cycle: Callable[[], float | None],
        gate: Authenticator,
        hosts: tuple[str, ...] | None,
    ) -> None:
        self.gate = gate
        self.receiver: WebhookEndpoint | None = None
        self.reports: Path | None = None
        self._source, self._seconds_since_cycle, self._hosts = source, seconds_since_cycle, hosts
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
                Route("/reports/", self._report_list),
                Route("/reports/{name}/{file:path}", self._report),
                Route("/runbooks", lambda request: RedirectResponse("runbooks/", 302)),
                Route("/runbooks/{name:path}", self._runbook),
                *self.probe_routes(),
            ],
            middleware=[Middleware(GZipMiddleware, compresslevel=1)],
            exception_handlers={OSError: lambda request, error: text_response(503, f"cannot be read: {error}")},
        )
        self._app.router.redirect_slashes = False

    def probe_routes(self) -> list[Route]:
        return [Route(path, self._probe) for path in PROBES]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        to_thread.current_default_thread_limiter().total_tokens = THREADS
        refusal = await self._refuse(scope)
        self._refusals += refusal is not None
        app: ASGIApp = refusal or self._app
        try:
            await app(scope, receive, send)
        except Exception:
            # uvicorn logs it and closes the connection, so that a page that is not whole does not look whole.
            self._errors += 1
            raise

    async def _refuse(self, scope: Scope) -> Response | None:
        """Return the refusal of a request, None without one. The webhook has its own token."""
        path, headers = scope["path"], Headers(scope=scope)
        # h11 limits a head that is incomplete: this one came in one read.
        head = scope["raw_path"], scope["query_string"], *chain.from_iterable(headers.raw)
        if sum(map(len, head)) > MOST_HEAD_BYTES:
            return text_response(400, f"a head of more than {MOST_HEAD_BYTES} bytes is refused")
        if path in PROBES or (path == WEBHOOK and self.receiver is not None):
            return None
        if not await self.gate.admits(headers.get("authorization", "")):
            return text_response(401, "credentials are needed", {"WWW-Authenticate": self.gate.challenge})
        host = re.sub(r"\.?(:\d*)?$", "", headers.get("host", "").lower())
        is_checked = self.gate.open and self._hosts is not None
        # DNS rebinding: a page of another host leads the reader's browser here.
        if is_checked and LOCAL.fullmatch(host) is None and host not in map(str.lower, self._hosts or ()):
            text = "this address answers to localhost; further names go under web.hosts, or ask for credentials"
            return text_response(421, text)
        return None

    async def _status(self) -> AgentStatus:
        """Return the status with our own counts. Raise HTTPException. Later calls share the thread of one that hangs."""
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
        return StreamingResponse(parts, headers={**NO_STORE, "Content-Type": content_type, "Vary": "Accept"})

    async def _status_page(self, request: Request) -> Response:
        from exporters.status.page import render_page

        paused = "paused" in request.query_params
        body = await run_in_threadpool(render_page, await self._status(), paused=paused)
        return content_response(body, cache="no-store")

    async def _status_json(self, request: Request) -> Response:
        from exporters.status.page import status_json

        status = await self._status()
        return await run_in_threadpool(lambda: JSONResponse(status_json(status), headers=NO_STORE))

    async def _probe(self, request: Request) -> Response:
        seconds = self._seconds_since_cycle()
        if seconds is None and request.scope["path"] == "/readyz":
            return text_response(503, NOT_YET)
        if seconds is None:
            seconds = time.monotonic() - self._started_at
        if seconds > STUCK_SECONDS:
            return text_response(503, f"no cycle has succeeded for {seconds:.0f} s, the agent's log says why")
        return text_response(200, "ok")

    async def _webhook(self, request: Request) -> Response:
        if self.receiver is None:
            raise HTTPException(404)
        await self.receiver(request)
        return text_response(200, "ok")

    def _report_list(self, request: Request) -> Response:
        from exporters.docs.runbooks import markdown_html
        from exporters.status.page import text_page

        if self.reports is None:
            raise HTTPException(404, "this agent writes no reports (report.enabled, role)")
        lines = []
        for name in storage.names(self.reports):
            links = [f"[{file}]({name}/{file})" for file in storage.files(self.reports, name)]
            lines.append(f"- {name}: {', '.join(links)}")
        html = markdown_html("\n".join(lines) or "None was written yet.")
        return content_response(text_page("Weekly reports", html, {"../": "status"}))

    def _report(self, request: Request) -> Response:
        """Return a file of a report. A path is compared with names and never joined."""
        name, file = request.path_params["name"], request.path_params["file"] or "report.html"
        content = None
        if self.reports is not None:
            if name == storage.LATEST:
                name = next(iter(storage.names(self.reports)), name)
            content = storage.read_report_file(self.reports, name, file)
        if content is None:
            raise HTTPException(404, "there is no such report; /reports/ lists those there are")
        return content_response(content, storage.FILES[file])

    def _runbook(self, request: Request) -> Response:
        from exporters.docs.runbooks import runbook_page, runbooks_page

        name = request.path_params["name"]
        body = runbook_page(name) if name else runbooks_page()
        if body is None:
            raise HTTPException(404, "there is no such runbook; /runbooks/ lists those there are")
        return content_response(body)
