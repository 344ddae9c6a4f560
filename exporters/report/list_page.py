"""HTML page /reports/ that lists the weekly reports, and the Content-Security-Policy of list and report.

It uses the style of the status page. The page of a report is in `exporters.report.html`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from exporters.render.text import strip_control_characters
from exporters.status.page import style, style_hash

MOST_LETTERS = 400
"""Maximum length of a headline, in characters."""

_STYLE = re.compile(rb"<style>(.*?)</style>", re.DOTALL)

LABELS = {
    "report.html": "report",
    "report.md": "Markdown",
    "report.json": "JSON",
    "plan.next.yaml": "next plan",
    "report.png": "picture",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportListing:
    """Listed report: date, headline, whether its history is simulated, and its files by name."""

    name: str
    headline: str
    simulated: bool = False
    files: tuple[str, ...] = ()


def list_page(reports: Sequence[ReportListing]) -> bytes:
    """Return the page in UTF-8, newest report first."""
    rows = "".join(_row(one) for one in reports)
    body = rows or "<p>None was written yet.</p>"
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>Weekly reports · sizewatch</title><style>{style()}</style></head><body>"
        '<header class="top"><p class="brand"><b>sizewatch</b><span><a href="../">status</a></span></p>'
        f"<h1>Weekly reports</h1></header><main>{body}</main></body></html>"
    )
    return strip_control_characters(text).encode("utf-8", "replace")


def _row(one: ReportListing) -> str:
    name = escape(one.name)
    links = "".join(
        f'<li><a href="{name}/{escape(file)}">{label}</a></li>' for file, label in LABELS.items() if file in one.files
    )
    said = escape(one.headline[:MOST_LETTERS]) or "no headline"
    said = f"<b>Simulated.</b> {said}" if one.simulated else said
    head = f'<header><h2><a href="{name}/report.html">{name}</a></h2><ul class="facts">{links}</ul></header>'
    return f'<section class="tier">{head}<p>{said}</p></section>'


def list_policy() -> str:
    """Return the Content-Security-Policy of the list."""
    return _policy(style_hash())


def report_policy(page: bytes) -> str:
    """Return the Content-Security-Policy of a report: allow only its own style sheet, as versions differ."""
    found = _STYLE.search(page)
    if found is None:
        return _policy("'none'")
    return _policy(f"'sha256-{base64.b64encode(hashlib.sha256(found[1]).digest()).decode()}'")


def _policy(styles: str) -> str:
    return f"default-src 'none'; style-src {styles}; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
