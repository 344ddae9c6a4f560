"""Weekly reports and runbooks over HTTP: the lists, the files of each report, and the runbook of each rule.

A path is compared with known names and never joined, so it leads nowhere else. Links are not followed
(`agent.reporting.storage`).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from agent.http_server.reply import Reply, text_reply

if TYPE_CHECKING:
    from exporters.status.page import ReportListing

REPORTS = "/reports"
RUNBOOKS = "/runbooks"

CACHED = ("Cache-Control", "private, no-cache")
"""A browser may keep it, and asks by its ETag each time."""

MOST_LISTED = 200

_log = logging.getLogger(__name__)

NOT_THERE = text_reply("404 Not Found", "there is no such report; /reports/ lists those there are")
NOT_READABLE = text_reply("503 Service Unavailable", "reports cannot be read just now; the agent's log says why")


def is_report(path: str) -> bool:
    """Return whether this path is ours."""
    return path == REPORTS or path.startswith(f"{REPORTS}/")


def is_runbook(path: str) -> bool:
    """Return whether this path is one of the runbooks."""
    return path == RUNBOOKS or path.startswith(f"{RUNBOOKS}/")


def runbook_reply(path: str, etag: str) -> Reply:
    """Return the runbook at `path`, or the list. `etag` is what the client has already (If-None-Match)."""
    # Read on demand: its expressions and texts are no part of what an agent needs to work.
    from exporters.docs.runbooks import runbook_page, runbooks_page
    from exporters.status.page import page_policy

    if path == RUNBOOKS:
        return _moved("runbooks/")
    name = path.removeprefix(f"{RUNBOOKS}/")
    body = runbook_page(name) if name else runbooks_page()
    if body is None:
        return text_reply("404 Not Found", "there is no such runbook; /runbooks/ lists those there are")
    headers = (("Content-Security-Policy", page_policy(body)),)
    return _known(Reply(status="200 OK", content_type="text/html; charset=utf-8", body=body, headers=headers), etag)


def report_reply(place: Path | None, path: str, etag: str) -> Reply:
    """What stands at `path`; `etag` is what the client has already (If-None-Match). Without a `place` no report is written."""
    if place is None:
        return text_reply("404 Not Found", "this agent writes no reports (report.enabled, role)")
    if path == REPORTS:
        return _moved("reports/")
    try:
        reply = _reply(place, path.removeprefix(f"{REPORTS}/").split("/"))
    except OSError as error:
        _log.warning("%s cannot be read: %s", place, error.strerror or error)
        return NOT_READABLE
    return _known(reply, etag) if reply.status == "200 OK" else reply


def _reply(place: Path, parts: list[str]) -> Reply:
    from agent.reporting import storage
    from exporters.status.page import list_page, page_policy

    if parts == [""]:
        body = list_page(tuple(_listed(place)))
        headers = (("Content-Security-Policy", page_policy(body)),)
        return Reply(status="200 OK", content_type="text/html; charset=utf-8", body=body, headers=headers)
    name, *rest = parts
    if name == storage.LATEST and len(rest) == 1:
        several = storage.names(place)
        return _moved(f"../{several[0]}/{rest[0]}") if several and rest[0] in ("", *storage.FILES) else NOT_THERE
    if len(rest) != 1 or not storage.is_name(name):
        return NOT_THERE
    file = rest[0]
    if not file:
        return _moved("report.html") if name in storage.names(place) else NOT_THERE
    body_or_none = storage.read_report_file(place, name, file)
    if body_or_none is None:
        return NOT_THERE
    policy = page_policy(body_or_none) if file == "report.html" else "default-src 'none'; frame-ancestors 'none'"
    headers = (("Content-Security-Policy", policy),)
    return Reply(status="200 OK", content_type=storage.FILES[file], body=body_or_none, headers=headers)


def _listed(place: Path) -> Iterator[ReportListing]:
    from agent.reporting import storage
    from exporters.status.page import ReportListing

    for name in storage.names(place)[:MOST_LISTED]:
        headline, simulated = _told(place, name, storage.stamp(place, name))
        yield ReportListing(name=name, headline=headline, simulated=simulated, files=storage.files(place, name))


@lru_cache(maxsize=2 * MOST_LISTED)
def _told(place: Path, name: str, stamp: int) -> tuple[str, bool]:
    """The headline of report.json and whether it was made up, "" where that is none; read once for each report and `stamp`."""
    from agent.reporting import storage

    try:
        found = json.loads(storage.read_report_file(place, name, "report.json") or b"{}")
        return str(found.get("headline", "")), bool(found.get("simulated", False))
    except (ValueError, AttributeError, RecursionError):
        return "", False


def _moved(where: str) -> Reply:
    """To another path of ours, told relative to this one: a proxy may serve us below a path of its own."""
    reply = text_reply("302 Found", "it is elsewhere")
    return Reply(status=reply.status, content_type=reply.content_type, body=reply.body, headers=(("Location", where),))


def _known(reply: Reply, etag: str) -> Reply:
    """With its ETag; without its body where the client has it."""
    # Weak: the same bytes go out compressed or not.
    ours = f'W/"{hashlib.sha256(reply.body).hexdigest()[:32]}"'
    headers = (*reply.headers, CACHED, ("ETag", ours))
    if ours.removeprefix("W/") in {one.strip().removeprefix("W/") for one in etag.split(",")}:
        return Reply(status="304 Not Modified", content_type=reply.content_type, body=b"", headers=headers)
    return Reply(status=reply.status, content_type=reply.content_type, body=reply.body, headers=headers)
