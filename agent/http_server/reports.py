"""Weekly reports and runbooks over HTTP: the lists, the files of each report, and the runbook of each rule.

A path is compared with known names and never joined, so it leads nowhere else. Links are not followed
(`agent.reporting.storage`).
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

HTML = "text/html; charset=utf-8"

_log = logging.getLogger(__name__)


def runbook_response(name: str) -> Response:
    """Return the runbook of a rule, or the list without a name. Raise HTTPException."""
    # Imported on demand: expressions and texts of the runbooks are no part of what an agent needs to work.
    from exporters.docs.runbooks import runbook_page, runbooks_page

    body = runbook_page(name) if name else runbooks_page()
    if body is None:
        raise HTTPException(404, "there is no such runbook; /runbooks/ lists those there are")
    return _content(body, HTML)


def report_response(folder: Path | None, path: str) -> Response:
    """Return the list of reports, or the file at `path` below /reports/. Raise HTTPException.

    `folder` is None if the agent writes no reports.
    """
    if folder is None:
        raise HTTPException(404, "this agent writes no reports (report.enabled, role)")
    try:
        return _report_response(folder, path)
    except OSError as error:
        _log.warning("%s cannot be read: %s", folder, error.strerror or error)
        raise HTTPException(503, "reports cannot be read just now; the agent's log says why") from None


def _report_response(folder: Path, path: str) -> Response:
    from agent.reporting import storage
    from exporters.status.page import ReportListing, list_page

    names, (name, _, file) = storage.names(folder), path.partition("/")
    if not path:
        reports = ((listed, _read_report(folder, listed)) for listed in names)
        listings = [
            ReportListing(
                name=listed,
                headline=str(report.get("headline", "")),
                simulated=bool(report.get("simulated")),
                files=storage.files(folder, listed),
            )
            for listed, report in reports
        ]
        return _content(list_page(listings), HTML)
    # Redirects are relative: a proxy may serve the pages below a path of its own.
    if name == storage.LATEST and file in ("", *storage.FILES) and names:
        return RedirectResponse(f"../{names[0]}/{file}", 302)
    if path.endswith("/") and not file and name in names:
        return RedirectResponse("report.html", 302)
    content = storage.read_report_file(folder, name, file)
    if content is None:
        raise HTTPException(404, "there is no such report; /reports/ lists those there are")
    return _content(content, storage.FILES[file])


def _read_report(folder: Path, name: str) -> dict[str, Any]:
    from agent.reporting import storage

    try:
        report = json.loads(storage.read_report_file(folder, name, "report.json") or b"{}")
    except (ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) else {}


def _content(body: bytes, content_type: str) -> Response:
    from exporters.status.page import page_policy

    policy = page_policy(body if content_type == HTML else b"")
    headers = {"Cache-Control": "private, no-cache", "Content-Security-Policy": policy, "Content-Type": content_type}
    return Response(body, headers=headers)
