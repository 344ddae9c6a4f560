"""Timeline as text, a line per incident or event, and as JSON.

The module serves `sizewatch timeline`; the status page shows the same lines. Findings are folded into their incident,
or indented below it; the JSON has them all. Entries are defined in `rules.evaluator.timeline`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from exporters.render.text import copy_fields, format_duration, format_local
from rules.evaluator.timeline import TimelineEntry, TimelineKind

SCHEMA = 1
LONGEST = 200
"""Maximum characters of a text in a line. The JSON has the full text."""

NOTHING = "Nothing happened, as far as is known."

WORDS: dict[str, str] = {
    TimelineKind.FOREIGN_ALERT: "foreign alert",
    TimelineKind.RESTART: "restart",
    TimelineKind.COLD_START: "cold start",
    TimelineKind.PLAN: "plan changed",
    TimelineKind.RELOAD: "configuration",
    TimelineKind.STEP13: "step 13",
    TimelineKind.BACK_FILL: "history filled",
    TimelineKind.FORECAST: "forecasting",
    TimelineKind.START: "sizewatch started",
    TimelineKind.STOP: "sizewatch stopped",
}
"""Words for kinds of entries. A finding is named by its status, an incident by its severity."""


def timeline_text(entries: Sequence[TimelineEntry], now: float, findings: bool = False) -> str:
    """Return the entries in the given order, newest last. Times are UTC. `findings` are below their incident, or folded."""
    below: dict[str, list[TimelineEntry]] = {}
    for entry in entries if findings else ():
        if entry.kind == TimelineKind.EPISODE:
            below.setdefault(entry.incident, []).append(entry)
    lines = []
    for entry in fold_findings(entries):
        lines.append(_row(entry, now))
        lines.extend(f"    {_row(timeline_entry, now)}" for timeline_entry in below.get(entry.incident, ()))
    return "\n".join(lines) or NOTHING


def fold_findings(entries: Iterable[TimelineEntry]) -> list[TimelineEntry]:
    """Return the entries without those of findings, which their incidents tell."""
    return [entry for entry in entries if entry.kind != TimelineKind.EPISODE]


def _row(entry: TimelineEntry, now: float) -> str:
    return f"{format_local(entry.t, 'UTC', '%Y-%m-%d %H:%M:%S')}  {place(entry)}  {line(entry, now)}"


def line(entry: TimelineEntry, now: float) -> str:
    """Return an entry without time and place: kind, text and duration."""
    head = entry.status or WORDS.get(entry.kind, entry.kind.replace("_", " "))
    return f"{head}: {textwrap.shorten(entry.text, LONGEST, placeholder=' …')}{_length(entry, now)}"


def place(entry: TimelineEntry) -> str:
    """Return the subject: a tier, a replica or everything."""
    if entry.tier is None:
        return "all" if entry.kind != TimelineKind.FOREIGN_ALERT else "no tier"
    return entry.tier if entry.replica is None else f"{entry.tier}/{entry.replica}"


def timeline_json(entries: Iterable[TimelineEntry], since: float, until: float) -> dict[str, Any]:
    """Return the timeline as JSON. Times are unix seconds. `ended_at` is null while it lasts or if `lasts` is false."""
    return {
        "schema": SCHEMA,
        "since": since,
        "until": until,
        "entries": [entry_json(entry) for entry in entries],
    }


def entry_json(entry: TimelineEntry) -> dict[str, Any]:
    return {
        **copy_fields(entry, "t", "lasts", "ended_at"),
        "kind": str(entry.kind),
        **copy_fields(entry, "tier", "replica"),
        "rule": entry.rule or None,
        "status": entry.status or None,
        "incident": entry.incident or None,
        "text": entry.text,
    }


def _length(entry: TimelineEntry, now: float) -> str:
    if not entry.lasts:
        return ""
    if entry.ended_at is None:
        return f" (for {format_duration(now - entry.t)}, not over)"
    return f" (for {format_duration(entry.ended_at - entry.t)})"
