"""Status signs as shape, colour and word, so that colour never carries meaning alone; and the page icon."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from urllib.parse import quote

from rules.verdicts.verdict import Status

SIGNS: Mapping[Status, str] = {Status.OK: "✓", Status.WARNING: "▲", Status.CRITICAL: "■", Status.UNKNOWN: "?"}
"""Shape of each status, for readers and printers without colour."""


def sign(status: Status, text: str) -> str:
    """Return a status as shape, colour and word."""
    return f'<span class="sign {status.value}"><b aria-hidden="true">{SIGNS[status]}</b> {escape(text)}</span>'


_ICONS: Mapping[Status, str] = {
    Status.OK: '<circle cx="16" cy="16" r="13" fill="#1f883d"/>',
    Status.WARNING: '<path d="M16 2 31 29H1z" fill="#d29922"/>',
    Status.CRITICAL: '<rect x="3" y="3" width="26" height="26" fill="#cf222e"/>',
    Status.UNKNOWN: '<circle cx="16" cy="16" r="11" fill="none" stroke="#8b949e" stroke-width="5"/>',
}


def icon(status: Status) -> str:
    """Return the icon of the browser tab as a `data:` address."""
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">{_ICONS[status]}</svg>'
    return f"data:image/svg+xml,{quote(svg)}"
