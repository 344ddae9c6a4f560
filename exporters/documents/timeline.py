"""Timeline as text, a line per incident or event, and as JSON.

The module serves `sizewatch timeline`; the status page shows the same lines. Findings are folded into their incident,
or indented below it; the JSON has them all. Entries are defined in `rules.evaluator.timeline`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from exporters.render.terminal import WIDEST, terminal_text, text_grid
from exporters.render.text import format_duration, format_local, json_fields
from rules.evaluator.timeline import TimelineEntry, TimelineKind

LONGEST = 200
"""Maximum characters of a text in a line. The JSON has the full text."""

WORDS: dict[str, str] = {
    TimelineKind.PLAN: "plan changed",
    TimelineKind.RELOAD: "configuration",
    TimelineKind.STEP13: "step 13",
    TimelineKind.BACK_FILL: "history filled",
    TimelineKind.FORECAST: "forecasting",
    TimelineKind.START: "sizewatch started",
    TimelineKind.STOP: "sizewatch stopped",
}
"""Words for kinds of entries. A finding is named by its status, an incident by its severity, others by their kind."""


def timeline_text(entries: Sequence[TimelineEntry], now: float, findings: bool = False) -> str:
    """Return the entries in the given order, newest last. Times are UTC. `findings` are below their incident, or folded."""
    rows = []
    for entry in fold_findings(entries):
        rows.append(_row(entry, now))
        if findings and entry.incident:
            of_incident = (below for below in entries if below.incident == entry.incident and below is not entry)
            rows += [_row(below, now, "  ") for below in of_incident]
    if not rows:
        return "Nothing happened, as far as is known."
    # A line an entry, so that lines can be searched.
    return terminal_text(text_grid(rows, indent=0), width=WIDEST)


def _row(entry: TimelineEntry, now: float, margin: str = "") -> tuple[str, str, str]:
    return format_local(entry.t, "UTC", "%Y-%m-%d %H:%M:%S"), place(entry), f"{margin}{line(entry, now)}"


def fold_findings(entries: Iterable[TimelineEntry]) -> list[TimelineEntry]:
    """Return the entries without those of findings, which their incidents tell."""
    return [entry for entry in entries if entry.kind != TimelineKind.EPISODE]


def line(entry: TimelineEntry, now: float) -> str:
    """Return an entry without time and place: kind, text and duration."""
    head = entry.status or WORDS.get(entry.kind, entry.kind.replace("_", " "))
    text = f"{head}: {textwrap.shorten(entry.text, LONGEST, placeholder=' …')}"
    if not entry.lasts:
        return text
    if entry.ended_at is None:
        return f"{text} (for {format_duration(now - entry.t)}, not over)"
    return f"{text} (for {format_duration(entry.ended_at - entry.t)})"


def place(entry: TimelineEntry) -> str:
    """Return the subject: a tier, a replica or everything."""
    if entry.tier is None:
        return "all" if entry.kind != TimelineKind.FOREIGN_ALERT else "no tier"
    return entry.tier if entry.replica is None else f"{entry.tier}/{entry.replica}"


def timeline_json(entries: Iterable[TimelineEntry], since: float, until: float) -> dict[str, Any]:
    """Return the timeline as JSON. Times are unix seconds. `ended_at` is null while it lasts or if `lasts` is false."""
    return {"schema": 1, "since": since, "until": until, "entries": [entry_json(entry) for entry in entries]}


def entry_json(entry: TimelineEntry) -> dict[str, Any]:
    fields: dict[str, Any] = json_fields(entry)
    return fields | {name: fields[name] or None for name in ("rule", "status", "incident")}
