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

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

if TYPE_CHECKING:
    from exporters.status.page import ReportListing

MOST_LISTED = 200

HTML = "text/html; charset=utf-8"

_log = logging.getLogger(__name__)

NOT_THERE = "there is no such report; /reports/ lists those there are"


def runbook_response(name: str, if_none_match: str) -> Response:
    """Return the runbook of a rule, or the list without a name. `if_none_match` is the header of the request.

    Raise HTTPException.
    """
    # Imported on demand: expressions and texts of the runbooks are no part of what an agent needs to work.
    from exporters.docs.runbooks import runbook_page, runbooks_page
    from exporters.status.page import page_policy

    body = runbook_page(name) if name else runbooks_page()
    if body is None:
        raise HTTPException(404, "there is no such runbook; /runbooks/ lists those there are")
    return _cached_response(body, HTML, page_policy(body), if_none_match)


def report_response(folder: Path | None, path: str, if_none_match: str) -> Response:
    """Return the list of reports, or the file at `path` below /reports/. Raise HTTPException.

    `folder` is None if the agent writes no reports. `if_none_match` is the header of the request.
    """
    if folder is None:
        raise HTTPException(404, "this agent writes no reports (report.enabled, role)")
    try:
        return _report_response(folder, path.split("/"), if_none_match)
    except OSError as error:
        _log.warning("%s cannot be read: %s", folder, error.strerror or error)
        raise HTTPException(503, "reports cannot be read just now; the agent's log says why") from None


def _report_response(folder: Path, parts: list[str], if_none_match: str) -> Response:
    from agent.reporting import storage
    from exporters.status.page import list_page, page_policy

    if parts == [""]:
        body = list_page(tuple(_list_reports(folder)))
        return _cached_response(body, HTML, page_policy(body), if_none_match)
    if len(parts) != 2:
        raise HTTPException(404, NOT_THERE)
    name, file = parts
    # Redirects are relative: a proxy may serve the pages below a path of its own.
    if name == storage.LATEST and file in ("", *storage.FILES) and (names := storage.names(folder)):
        return RedirectResponse(f"../{names[0]}/{file}", 302)
    if not file and name in storage.names(folder):
        return RedirectResponse("report.html", 302)
    content = storage.read_report_file(folder, name, file)
    if content is None:
        raise HTTPException(404, NOT_THERE)
    policy = page_policy(content) if file == "report.html" else "default-src 'none'; frame-ancestors 'none'"
    return _cached_response(content, storage.FILES[file], policy, if_none_match)


def _list_reports(folder: Path) -> Iterator[ReportListing]:
    from agent.reporting import storage
    from exporters.status.page import ReportListing

    for name in storage.names(folder)[:MOST_LISTED]:
        headline, simulated = _read_headline(folder, name, storage.stamp(folder, name))
        yield ReportListing(name=name, headline=headline, simulated=simulated, files=storage.files(folder, name))


@lru_cache(maxsize=2 * MOST_LISTED)
def _read_headline(folder: Path, name: str, stamp: int) -> tuple[str, bool]:
    """Return the headline of a report.json ("" if unusable), and whether it is simulated. Read once for each `stamp`."""
    from agent.reporting import storage

    try:
        report = json.loads(storage.read_report_file(folder, name, "report.json") or b"{}")
        return str(report.get("headline", "")), bool(report.get("simulated", False))
    except (ValueError, AttributeError, RecursionError):
        return "", False


def _cached_response(body: bytes, content_type: str, policy: str, if_none_match: str) -> Response:
    """Return a body with its ETag, or 304 if the client has it. A browser keeps it, and asks each time."""
    # Weak: the same bytes are sent compressed or not.
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"Cache-Control": "private, no-cache", "ETag": etag, "Content-Security-Policy": policy}
    if etag.removeprefix("W/") in {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}:
        return Response(status_code=304, headers=headers)
    return Response(body, headers={**headers, "Content-Type": content_type})
