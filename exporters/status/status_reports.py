"""The weekly report on the status page: the last one, the next, and to whom it was sent.

Owns this section and its notices. Everything that came from outside goes through `escape`. The list of all reports is
`exporters.report.list_page`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from exporters.render.html_parts import sign
from exporters.render.time_words import format_duration
from exporters.status.records import DeliveryHealth, ReportHealth
from rules.verdicts.verdict import Status


def notices(found: ReportHealth | None, now: float) -> Iterator[str]:
    """What is wrong with the report and its delivery."""
    if found is None:
        return
    if found.trouble:
        yield f"The weekly report cannot be written: {found.trouble}. It is tried again."
    for one in found.deliveries:
        if one.trouble:
            again = (
                f" It is tried again in {format_duration(max(0.0, one.next_at - now))}."
                if one.next_at is not None
                else ""
            )
            yield f"The weekly report does not reach {one.destination}: {one.trouble}.{again}"


def reports(found: ReportHealth | None, now: float) -> str:
    """The section; nothing where no report is written."""
    if found is None:
        return ""
    rows = "".join(f"<li>{_delivered(one, now)}</li>" for one in found.deliveries)
    sent = f'<ul class="past">{rows}</ul>' if rows else ""
    return (
        f'<section class="tier" id="weekly-report"><header><h2>Weekly report</h2></header><p>{_last(found, now)} '
        f'The next is due in {format_duration(found.next_at - now)}. <a href="reports/">All reports</a></p>{sent}</section>'
    )


def _last(found: ReportHealth, now: float) -> str:
    if not found.newest:
        return "None was written yet."
    name = escape(found.newest)
    age = (
        f", written {format_duration(now - found.made_at)} ago"
        if found.made_at is not None and now > found.made_at
        else ""
    )
    said = f": {escape(found.headline)}" if found.headline else "."
    return f'<a href="reports/{name}/report.html">{name}</a>{age}{said}'


def _delivered(one: DeliveryHealth, now: float) -> str:
    name = escape(one.destination)
    if one.trouble:
        return f"{sign(Status.WARNING, 'not delivered')} {name}: {escape(one.trouble)}"
    if one.pending:
        return f"{sign(Status.UNKNOWN, 'on its way')} {name}"
    if one.last_success_at is not None:
        return f"{sign(Status.OK, 'sent')} {name}, {format_duration(now - one.last_success_at)} ago"
    return f"{sign(Status.UNKNOWN, 'nothing sent since the start')} {name}"
