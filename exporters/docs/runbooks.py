"""Runbooks: docs/runbooks.md from the catalogue, and its sections as HTML pages of the agent and as terminal text.

The page is a template over the rules. A text between `<!-- by hand: NAME -->` and `<!-- end -->` is kept: causes without
a check, and what to look at first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from rich.markdown import Markdown

from exporters.prometheus_rules.alerts import ROWS
from exporters.render.terminal import terminal_text
from exporters.render.text import table
from exporters.status.page import text_page
from rules.catalogue.registry import BY_NAME, REMEDIES, RULES, SUSPECTED
from rules.causes.explain import LAST, LATENCY, SUSPECTS
from rules.telemetry.wording import format_duration
from rules.verdicts.rule import LatencyPattern, Rule, Severity

HAND_WRITTEN = re.compile(r"<!-- by hand: (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)
CHECKOUT = Path(__file__).resolve().parents[2] / "docs" / "runbooks.md"
"""The runbooks where sizewatch runs from a checkout. A wheel has a copy beside this module."""

SELF_ALERTS = tuple(dict.fromkeys(row.name for row in ROWS if row.name not in BY_NAME))
"""Names of the alerts about sizewatch itself. They are no rules."""

SEVERITIES: Mapping[Severity, str] = {
    Severity.PAGE: "pages when it is critical, before that it is a ticket",
    Severity.TICKET: "a ticket for working hours",
    Severity.REPORT: "a note in the report",
}
"""Notification by severity."""

PATTERNS: Mapping[LatencyPattern, str] = {
    LatencyPattern.KNEE: "The load is above what replicas take",
    LatencyPattern.HELD_UP: "Requests are held up below capacity",
    LatencyPattern.SLOWED: "Requests wait at every replica below capacity",
    LatencyPattern.EITHER: "Not known which",
    LatencyPattern.UNCOUNTED: "The engine does not count its load",
}
"""Situations of rules whose actions depend on what makes requests wait."""


class RunbookError(ValueError):
    """Error for hand-written texts of the page that do not match the rules of the catalogue."""


def fill_runbooks(page: str) -> str:
    """Return docs/runbooks.md with the texts by hand of this one. Raise RunbookError unless each rule has one text."""
    written = HAND_WRITTEN.findall(page)
    counts, names = Counter(name for name, _ in written), {"intro", *BY_NAME}
    wrong = sorted(name for name in {*names, *counts} if counts[name] != int(name in names))
    if wrong:
        raise RunbookError(
            "; ".join(
                f"{name} has {counts[name]} texts by hand: <!-- by hand: {name} --> to <!-- end -->" for name in wrong
            )
        )
    environment = Environment(loader=PackageLoader("exporters.docs", ""), undefined=StrictUndefined, autoescape=False)
    environment.filters["causes_of"] = causes_of
    template = environment.get_template("runbooks.md.j2")
    values = {"rules": RULES, "severities": SEVERITIES, "patterns": PATTERNS, "suspected": SUSPECTED}
    return template.render(values, remedies=REMEDIES, texts=dict(written), window_of=window_of).rstrip() + "\n"


def causes_of(rule: Rule) -> list[str]:
    causes = dict.fromkeys(suspect.cause for suspect in SUSPECTS if suspect.explains(rule))
    if rule.method in LATENCY:
        causes |= dict.fromkeys(cause for cause, families in LAST.items() if rule.family in families)
    return list(causes)


def window_of(rule: Rule) -> str:
    if any(name.endswith("_short_seconds") for name in rule.thresholds):
        return "over the windows below, each pair once its short one was seen"
    if rule.per_scrape:
        return "at every scrape"
    seen = format_duration(rule.minimum_seconds)
    return f"over the last {format_duration(rule.window_seconds)}, once {seen} of them were seen"


def runbook_page(name: str) -> bytes | None:
    """Return the page of a rule's runbook in UTF-8, or None if there is no such rule."""
    if name not in BY_NAME:
        return None
    return text_page(name, markdown_html(_sections()[name]), {"./": "all runbooks", "../": "status"})


def runbooks_page() -> bytes:
    """Return the page with all rules by severity, and what holds for every runbook, in UTF-8."""
    return text_page("Runbooks", markdown_html(_sections()[""]), {"../": "status"})


def runbook_text(name: str, width: int) -> str:
    """Return a rule's runbook for a terminal of so many columns."""
    text = _sections().get(name, "Its runbook is not written yet: `sizewatch render`.")
    return terminal_text(Markdown(f"**{name}**\n{text}", hyperlinks=False), width=width)


def self_alert_text(name: str, width: int) -> str:
    """Return what an alert about sizewatch itself means, by reason, for a terminal of so many columns."""
    parts = [f"**{name}**", "Alert about sizewatch itself: Prometheus raises it, no rule evaluates it."]
    for row in ROWS:
        if row.name == name:
            text = f"{row.reason or 'in short'}: {row.summary}.\n\n{row.description}"
            # Labels and the value of the alert appear as names.
            parts.append(re.sub(r"\{\{ \$(?:labels\.)?(\w+)[^}]*\}\}", r"`<\1>`", text))
    return terminal_text(Markdown("\n\n".join(parts)), width=width)


def rules_text(width: int) -> str:
    """Return a line for each rule, by severity, for a terminal of so many columns."""
    parts = ["`sizewatch explain RULE` prints the runbook of a rule."]
    for severity, meaning in SEVERITIES.items():
        rows = [(rule.name, rule.title) for rule in RULES if rule.severity is severity]
        parts.append(table((severity.value, meaning), rows))
    return terminal_text(Markdown("\n\n".join(parts)), width=width)


def _sections() -> dict[str, str]:
    """Return the Markdown of the runbooks by rule, what precedes the rules under "". Other pages are named, not linked."""
    packaged = files("exporters.docs").joinpath("runbooks.md")
    text = (packaged if packaged.is_file() else CHECKOUT).read_text("utf-8")
    text = re.sub(r"^<!--.*?-->", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[(\w+)\]\(#\w+\)", r"\1", text)
    text = re.sub(r"\[([^]]+)\]\(([\w-]+\.md)[^)]*\)", r"\1 (docs/\2)", text)
    intro, *parts = re.split(r"^## (\w+)$", text, flags=re.MULTILINE)
    return {"": intro.partition("\n")[2], **dict(zip(parts[::2], parts[1::2], strict=True))}


def markdown_html(text: str) -> str:
    """Return Markdown as HTML. Names of rules outside of code become links, and HTML in the text is escaped."""
    names = re.compile(rf"`[^`]*`|\b({'|'.join(BY_NAME)})\b")
    linked = names.sub(lambda match: f"[{match[1]}]({match[1]})" if match[1] else match[0], text)
    return str(MarkdownIt("commonmark", {"html": False}).enable("table").render(linked))
