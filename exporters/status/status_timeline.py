"""The timeline of the last day on the status page: below the tiers, one line an entry, the newest first.

Owns the markup; the lines are `exporters.documents.timeline`'s. Everything in them came from outside and is escaped.
"""

from __future__ import annotations

from html import escape

from exporters.documents.timeline import line, place
from exporters.render.time_words import format_clock, format_rfc3339
from exporters.status.records import AgentStatus

SHOWN = 200
"""The newest; a day of a replica that restarts every minute must not make the page unreadable."""


def timeline(status: AgentStatus) -> str:
    """What folds out; nothing where nothing happened."""
    if not status.timeline:
        return ""
    newest = status.timeline[: -SHOWN - 1 : -1]
    rows = "".join(
        f'<li><time class="since" datetime="{format_rfc3339(entry.t)}">{escape(format_clock(entry.t, status.now))}</time> '
        f"<b>{escape(place(entry))}</b> {escape(line(entry, status.now))}</li>"
        for entry in newest
    )
    number = len(status.timeline)
    title = f"Timeline of the last day: {number} {'entry' if number == 1 else 'entries'}"
    more = f"<p>The newest {SHOWN}; `sizewatch timeline` has all.</p>" if number > SHOWN else ""
    return f'<section class="timeline"><details><summary>{title}</summary><ul class="past">{rows}</ul>{more}</details></section>'
