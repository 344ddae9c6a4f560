"""report.md for terminals, tickets and repositories, and report.html: a single file without scripts or other resources.

The layout of the page is `report.html.j2`, its style `report.css`. The template escapes every text; only pictures are
markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from exporters.render.text import SIGNS, icon, strip_control_characters, table
from exporters.report.records import Report, Section
from exporters.report.sections import list_sections
from rules.verdicts.verdict import Status

HERE = Path(__file__).parent


def report_markdown(report: Report) -> str:
    """Return report.md."""
    lines = [line for section in list_sections(report) for line in _section(section)]
    # A name must not inject HTML or links.
    text = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", strip_control_characters("\n".join(lines)))
    return text.replace("](", "]\\(").rstrip() + "\n"


def _section(section: Section) -> Iterator[str]:
    yield f"{'#' * section.level} {section.title}"
    for line in section.text:
        yield from ("", line)
    if section.entries:
        yield ""
    for entry, *below in section.entries:
        yield f"- {entry}"
        yield from (f"  - {line}" for line in below)
    if section.table and section.table.rows:
        yield from ("", table(section.table.head, section.table.rows))
    yield ""


def report_html(report: Report) -> str:
    """Return the whole page."""
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["coded"] = _coded
    page = environment.get_template("report.html.j2").render(
        sections=list_sections(report),
        style=Markup((HERE / "report.css").read_text(encoding="utf-8")),
        icon=icon(_worst(report)),
        signs=SIGNS,
        markup=Markup,
    )
    return strip_control_characters(page)


def _coded(text: str) -> Markup:
    """Return the text with backtick spans as code."""
    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(Markup("<code>{}</code>").format(p) if n % 2 else p for n, p in enumerate(parts))


def _worst(report: Report) -> Status:
    states = {tier.status for tier in report.tiers}
    order = (Status.CRITICAL, Status.WARNING, Status.OK)
    return next((status for status in order if status.value in states), Status.UNKNOWN)
