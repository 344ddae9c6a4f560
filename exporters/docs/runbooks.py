"""Runbooks: generated blocks of docs/runbooks.md, and the HTML pages of it that the agent serves.

A block lies between `<!-- generated: thresholds NAME -->` and `<!-- end -->`. The text around it is written by hand,
without these numbers. A page needs only the Markdown of that file: headings, paragraphs, lists, tables, code, links.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape
from importlib.resources import files
from io import StringIO
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console
from rich.markdown import Markdown

from exporters.prometheus_rules.self_monitoring import ROWS, SelfMonitoringAlert
from exporters.render.text import format_duration, wrap
from exporters.status.page import style
from rules.catalogue.registry import RULES
from rules.thresholds import Threshold
from rules.verdicts.rule import Rule, Scope, Severity

BLOCK = re.compile(r"<!-- generated: thresholds (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)

OVERVIEW = re.compile(r"<!-- generated: overview -->\n(.*?)<!-- end -->", re.DOTALL)

CAUSES = re.compile(r"<!-- generated: causes -->\n(.*?)<!-- end -->", re.DOTALL)

CHECKOUT = Path(__file__).resolve().parents[2] / "docs" / "runbooks.md"
"""The runbooks where sizewatch runs from a checkout. A wheel has a copy beside this module."""

SELF_ALERTS: Mapping[str, tuple[SelfMonitoringAlert, ...]] = {
    name: tuple(row for row in ROWS if row.name == name)
    for name in dict.fromkeys(row.name for row in ROWS)
    if name not in {rule.name for rule in RULES}
}
"""Alerts about sizewatch itself by name. They are no rules."""

METHOD_TEXTS: Mapping[str, str] = {
    "judge_tail": "the share of requests slower than the benchmark allows at equal load",
    "judge_mean": "a mean against the benchmark's at equal load",
    "judge_excess": "events per finished request against the benchmark's at equal load",
    "judge_beyond": "the load of each replica and minute against the highest that was measured",
    "judge_event_ratio": "events per finished request against fixed limits",
    "judge_band": "a reading against fixed limits",
    "judge_drift": "lengths and shape of the traffic against the plan's",
    "judge_representative": "time in the system against the benchmark's at equal load",
    "judge_precision": "the plan's number formats against what the planned GPU computes in hardware",
    "judge_benchmark_stale": "what each replica runs against what was benchmarked",
    "judge_cold_start": "measured starts against the planned lead",
    "judge_acceptance": "a reading against fixed limits",
    "judge_adapters": "requests held back for adapters against the objective",
    "judge_burn": "the share of requests outside the objective, over several windows at once",
    "judge_availability": "the share of requests that failed, over several windows at once",
    "judge_refused": "the share of requests that were refused, each kind against its own limit",
    **dict.fromkeys(
        ("judge_empty_cache", "judge_empty_queue", "judge_falling", "judge_headroom", "judge_trap"),
        "how the fleet is used, hour by hour (in a hold of minutes: minute by minute)",
    ),
    "judge_trend": "the end of that time against its beginning",
    "judge_replicas": "the replicas of the tier against each other",
    "judge_imbalance": "each replica against the others of its pool, minute by minute",
    "judge_tiers": "the tiers of one model against each other",
    "judge_pools": "prefill replicas against decode replicas",
    "judge_experts": "how evenly the tokens of a pass fall on the GPUs that hold the experts",
    "judge_demand": "arriving requests, now and by the forecast, against what the replicas may take together",
    "judge_forecast": "past forecasts against what came",
    "judge_faults": "events that should not happen at all",
    "judge_cascade": "a state machine that follows every scrape",
    **dict.fromkeys(("judge_target_down", "judge_tier_down"), "scrapes in a row that failed"),
    "judge_stalled": "time for which requests were in the engine and no counter of its work moved",
    "judge_stale_page": "time for which a page was served and did not move",
    "judge_unknown_too_long": "the time since each rule that can judge the tier last could",
}
"""Comparison that a method makes, by the name of its function. A method without a row gets a general text."""

SEVERITIES: Mapping[Severity, str] = {
    Severity.PAGE: "somebody is woken when it is critical, before that it is a ticket",
    Severity.TICKET: "looked at in working hours",
    Severity.REPORT: "told in the report only",
}
"""Notification by severity."""


class RunbookError(ValueError):
    """Error for blocks of the page that do not match the rules of the catalogue."""


def fill_runbooks(page: str) -> str:
    """Return the page with new blocks. Raise RunbookError unless each rule has exactly one block."""
    named = [match[1] for match in BLOCK.finditer(page)]
    known = {rule.name: rule for rule in RULES}
    wrong = [f"no block for {name}" for name in known if name not in named]
    wrong += [f"{name} is no rule" for name in dict.fromkeys(named) if name not in known]
    wrong += [f"{name} has {named.count(name)} blocks" for name in known if named.count(name) > 1]
    if wrong:
        raise RunbookError("; ".join(wrong))
    page = CAUSES.sub(lambda _: f"<!-- generated: causes -->\n{stages()}\n<!-- end -->", page)
    page = OVERVIEW.sub(lambda _: f"<!-- generated: overview -->\n{overview()}\n<!-- end -->", page)
    return BLOCK.sub(
        lambda candidate: f"<!-- generated: thresholds {candidate[1]} -->\n{block(known[candidate[1]])}\n<!-- end -->",
        page,
    )


def overview() -> str:
    """Return the table of all rules by severity, with links to their sections."""
    rows = []
    for severity, meaning in SEVERITIES.items():
        links = ", ".join(f"[{rule.name}](#{rule.name.lower()})" for rule in RULES if rule.severity is severity)
        rows.append(f"| `{severity.value}`: {meaning} | {links} |")
    return "\n".join(["| severity | rules |", "|---|---|", *rows])


def stages() -> str:
    """Return the table of the rules by stage, the most upstream first."""
    rows = []
    for stage in sorted({rule.stage for rule in RULES} - {0}):
        links = ", ".join(f"[{rule.name}](#{rule.name.lower()})" for rule in RULES if rule.stage == stage)
        rows.append(f"| {stage} | {links} |")
    return "\n".join(["| stage | rules |", "|---|---|", *rows])


def block(rule: Rule) -> str:
    """Return the text between the markers of a rule."""
    rows = [_row(rule, name, threshold) for name, threshold in rule.thresholds.items()]
    return "\n".join(
        [_summary(rule), "", "| threshold | value | unit | where it comes from |", "|---|---|---|---|", *rows]
    )


def _summary(rule: Rule) -> str:
    about = "each tier" if rule.scope is Scope.TIER else "each replica"
    comparison = METHOD_TEXTS.get(rule.method.__name__, f"{rule.about or rule.title} against the thresholds below")
    return (
        f"Judged for {about}, {_window_text(rule)}: {comparison}. Signal `{rule.signal}`. "
        f"Severity `{rule.severity.value}`: {SEVERITIES[rule.severity]}."
    )


def _window_text(rule: Rule) -> str:
    if any(name.endswith("_short_seconds") for name in rule.thresholds):
        return "over the windows below, each pair once its short one was seen"
    if not rule.window_seconds:
        return "at every scrape"
    return f"over the last {format_duration(rule.window_seconds)}, once {format_duration(rule.minimum_seconds)} of them were seen"


def _row(rule: Rule, name: str, threshold: Threshold) -> str:
    share = f" ({threshold.value * 100:g} %)" if threshold.unit == "ratio" and threshold.value < 1 else ""
    return f"| `{name}` | {threshold.value:g}{share} | {threshold.unit} | {threshold.source} |"


_RULE = re.compile(rf"\b({'|'.join(rule.name for rule in RULES)})\b")


def runbook_page(name: str) -> bytes | None:
    """Return the page of a rule's runbook in UTF-8, or None if there is no such rule."""
    rule = next((candidate for candidate in RULES if candidate.name == name), None)
    if rule is None:
        return None
    head = f"<p>{escape(rule.title)}. Severity {rule.severity.value}: {SEVERITIES[rule.severity]}.</p>"
    body = markdown_html(_sections().get(name, ""))
    return _document(name, head, body, '<a href="./">all runbooks</a> <a href="../">status</a>')


def runbooks_page() -> bytes:
    """Return the page with all rules by severity, and what holds for every runbook, in UTF-8."""
    return _document("Runbooks", "", markdown_html(_sections()[""]), '<a href="../">status</a>')


def runbook_text(name: str, width: int) -> str:
    """Return a rule's runbook for a terminal of so many columns. Raise StopIteration for an unknown rule."""
    rule = next(candidate for candidate in RULES if candidate.name == name)
    lines = [name, *wrap(f"{rule.title}. Severity {rule.severity.value}: {SEVERITIES[rule.severity]}.", width=width)]
    return "\n".join((*lines, "", _terminal_lines(_sections().get(name, ""), width)))


def self_alert_text(name: str, width: int) -> str:
    """Return what an alert about sizewatch itself means, by reason, for a terminal of so many columns."""
    lines = [name, *wrap("Alert about sizewatch itself: Prometheus raises it, no rule judges it.", width=width)]
    for row in SELF_ALERTS[name]:
        reason = f"{row.reason}: " if row.reason else ""
        lines += ["", *wrap(f"{reason}{_plain(row.summary)}.", width=width)]
        lines += [line for part in _plain(row.description).splitlines() for line in wrap(part, "  ", "  ", width=width)]
    return "\n".join(lines)


def _plain(template: str) -> str:
    """Return an annotation with <instance> for the label of that name, and <value> for the value."""
    return re.sub(r"\{\{ \$(?:labels\.)?(\w+)[^}]*\}\}", r"<\1>", template)


def rules_text(width: int) -> str:
    """Return a line for each rule, by severity."""
    longest = max(len(rule.name) for rule in RULES)
    lines = ["`sizewatch explain RULE` prints the runbook of a rule."]
    for severity, meaning in SEVERITIES.items():
        lines += ["", *wrap(f"{severity.value}: {meaning}", width=width)]
        lines += [f"  {rule.name:{longest}}  {rule.title}" for rule in RULES if rule.severity is severity]
    return "\n".join(lines)


def _terminal_lines(text: str, width: int) -> str:
    """Return Markdown as plain text of so many columns."""
    console = Console(width=width, file=StringIO(), color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(Markdown(text, hyperlinks=False))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _sections() -> dict[str, str]:
    """Return the text of docs/runbooks.md by rule, the part before the rules under ""."""
    packaged = files("exporters.docs").joinpath("runbooks.md")
    text = (packaged if packaged.is_file() else CHECKOUT).read_text("utf-8")
    intro, *parts = re.split(r"^## (\w+)$", re.sub(r"^<!--.*?-->\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)
    return {"": intro.partition("\n")[2], **dict(zip(parts[::2], parts[1::2], strict=True))}


def _document(title: str, head: str, body: str, links: str) -> bytes:
    css = files("exporters.docs").joinpath("runbooks.css").read_text("utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)} · sizewatch</title><style>{style()}{css}</style></head><body>"
        f'<header class="top"><p class="brand"><b>sizewatch</b><span>{links}</span></p><h1>{escape(title)}</h1>{head}</header>'
        f'<main class="text">{body}</main></body></html>'
    ).encode()


def markdown_html(text: str) -> str:
    """Return Markdown as HTML. Rule names become links, links lead to served pages, and HTML in the text is escaped."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(text)
    columns: list[str] = []
    cell = 0
    for place, token in enumerate(tokens):
        if token.type == "thead_open":
            columns = []
        elif token.type == "th_open":
            columns.append(tokens[place + 1].content)
        elif token.type == "tr_open":
            cell = 0
        elif token.type == "td_open":
            token.attrSet("data-column", columns[cell])
            cell += 1
        elif token.children:
            token.children = list(_link_rules(token.children))
    return str(parser.renderer.render(tokens, parser.options, {}))


def _link_rules(tokens: list[Token]) -> Iterator[Token]:
    """Yield the tokens of a paragraph with links to rules. Pages that the agent does not serve are named."""
    inside, page = False, ""
    for token in tokens:
        if token.type == "link_open":
            page, _, anchor = str(token.attrGet("href")).partition("#")
            rule = next((rule.name for rule in RULES if rule.name.lower() == anchor and not page), "")
            token.attrSet("href", rule)
            inside = True
            if rule:
                yield token
        elif token.type == "link_close":
            yield Token("text", "", 0, content=f" (docs/{page})") if page else token
            inside = False
        elif token.type != "text" or inside:
            yield token
        else:
            for place, part in enumerate(_RULE.split(token.content)):
                words = Token("text", "", 0, content=part)
                if place % 2:
                    yield from (Token("link_open", "a", 1, attrs={"href": part}), words, Token("link_close", "a", -1))
                elif part:
                    yield words
