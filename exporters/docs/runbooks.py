"""Runbooks: generated blocks of docs/runbooks.md, and the HTML pages of it that the agent serves.

A block lies between `<!-- generated: thresholds NAME -->` and `<!-- end -->`. The text around it is written by hand,
without these numbers. A page needs only the Markdown of that file: headings, paragraphs, lists, tables, code, links.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape
from importlib.resources import files
from pathlib import Path

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

LOUDNESS: Mapping[Severity, str] = {
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
        lambda found: f"<!-- generated: thresholds {found[1]} -->\n{block(known[found[1]])}\n<!-- end -->", page
    )


def overview() -> str:
    """Return the table of all rules by severity, with links to their sections."""
    rows = []
    for severity, meaning in LOUDNESS.items():
        links = ", ".join(f"[{rule.name}](#{rule.name.lower()})" for rule in RULES if rule.loudness is severity)
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
        f"Loudness `{rule.loudness.value}`: {LOUDNESS[rule.loudness]}."
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


DOCS = "https://sizewatch.dev/"
"""Address of the other pages of docs/, which the agent does not serve."""

_INLINE = re.compile(
    r"`(?P<code>[^`]+)`|\[(?P<text>[^]]+)\]\((?P<to>[^)\s]+)\)|\*\*(?P<bold>.+?)\*\*|\*(?P<em>[^*\s][^*]*)\*"
    rf"|\b(?P<rule>{'|'.join(rule.name for rule in RULES)})\b"
)
_CODE = re.compile(r"^```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_ITEM = re.compile(r"(-|\d+\.) +")
_BAR = re.compile(r"(?<!\\)\|")


def runbook_page(name: str) -> bytes | None:
    """Return the page of a rule's runbook in UTF-8, or None if there is no such rule."""
    rule = next((one for one in RULES if one.name == name), None)
    if rule is None:
        return None
    head = f"<p>{escape(rule.title)}. Severity {rule.loudness.value}: {LOUDNESS[rule.loudness]}.</p>"
    body = markdown_html(_sections().get(name, ""))
    return _document(name, head, body, '<a href="./">all runbooks</a> <a href="../">status</a>')


def runbooks_page() -> bytes:
    """Return the page with all rules by severity, and what holds for every runbook, in UTF-8."""
    return _document("Runbooks", "", markdown_html(_sections()[""]), '<a href="../">status</a>')


def runbook_text(name: str, width: int) -> str:
    """Return a rule's runbook for a terminal of so many columns. Raise StopIteration for an unknown rule."""
    rule = next(one for one in RULES if one.name == name)
    lines = [name, *wrap(f"{rule.title}. Severity {rule.loudness.value}: {LOUDNESS[rule.loudness]}.", width=width)]
    return "\n".join((*lines, *_lines(_sections().get(name, ""), width)))


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
    for severity, meaning in LOUDNESS.items():
        lines += ["", *wrap(f"{severity.value}: {meaning}", width=width)]
        lines += [f"  {one.name:{longest}}  {one.title}" for one in RULES if one.loudness is severity]
    return "\n".join(lines)


def _lines(text: str, width: int) -> Iterator[str]:
    """Yield Markdown as lines for a terminal: paragraphs and lists are wrapped, a table is a line a row."""
    for number, part in enumerate(_CODE.split(text)):
        if number % 2:
            yield from ("", *(f"    {line}" for line in part.splitlines()))
            continue
        plain = re.sub(r"\[([^]]+)\]\([^)\s]+\)|\*\*(.+?)\*\*", lambda found: found[1] or found[2], part)
        for block in re.split(r"\n\s*\n", plain.strip()):
            yield ""
            is_table = block.startswith("|")
            items = block.splitlines()[2:] if is_table else re.split(r"\n(?=(?:-|\d+\.) )", block)
            margin = ("  ", "     ") if is_table or _ITEM.match(block) else ("", "")
            for item in items:
                yield from wrap("  ".join(_cells(item)) if is_table else _joined(item), *margin, width)


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
    """Return Markdown as HTML: paragraphs, flat lists, tables and fenced code. Everything is escaped."""
    return "".join(_blocks(text))


def _blocks(text: str) -> Iterator[str]:
    for number, part in enumerate(_CODE.split(text)):
        if number % 2:
            yield f"<pre><code>{escape(part)}</code></pre>"
        else:
            yield from (_block(lines) for lines in re.split(r"\n\s*\n", part) if lines.strip())


def _block(text: str) -> str:
    lines = text.strip().splitlines()
    if lines[0].startswith("|"):
        head, _, *rows = (_cells(line) for line in lines)
        titles = "".join(f"<th>{_inline(one)}</th>" for one in head)
        body = "".join(f"<tr>{''.join(map(_cell_html, head, row))}</tr>" for row in rows)
        return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"
    if _ITEM.match(lines[0]):
        kind = "ul" if lines[0].startswith("-") else "ol"
        items = re.split(r"^(?:-|\d+\.) +", "\n".join(lines), flags=re.MULTILINE)[1:]
        return f"<{kind}>{''.join(f'<li>{_inline(_joined(item))}</li>' for item in items)}</{kind}>"
    return f"<p>{_inline(_joined(text))}</p>"


def _joined(text: str) -> str:
    return " ".join(text.split())


def _cells(line: str) -> list[str]:
    return [one.strip().replace("\\|", "|") for one in _BAR.split(line.strip())[1:-1]]


def _cell_html(column: str, text: str) -> str:
    return f'<td data-column="{escape(column)}">{_inline(text)}</td>'


def _inline(text: str, *, linked: bool = False) -> str:
    """Return the text of a block. Rule names become links, but not inside of a link (`linked`)."""
    parts, end = [], 0
    for found in _INLINE.finditer(text):
        parts += [escape(text[end : found.start()]), _mark(found, linked)]
        end = found.end()
    return "".join((*parts, escape(text[end:])))


def _mark(found: re.Match[str], linked: bool) -> str:
    kind = found.lastgroup
    if kind == "to":
        return f'<a href="{escape(_address(found["to"]))}">{_inline(found["text"], linked=True)}</a>'
    if kind == "rule":
        return found[0] if linked else _rule_link(found[0])
    inner = escape(found["code"]) if kind == "code" else _inline(found[kind or 0], linked=linked)
    tag = {"code": "code", "bold": "b", "em": "i"}[kind or "code"]
    return f"<{tag}>{inner}</{tag}>"


def _address(target: str) -> str:
    """Return where a link of docs/runbooks.md leads from a served page."""
    page, _, anchor = target.partition("#")
    if page.endswith(".md") and "/" not in page:
        return f"{DOCS}{page.removesuffix('.md')}" + (f"#{anchor}" if anchor else "")
    return next((rule.name for rule in RULES if rule.name.lower() == anchor), DOCS)


def _rule_link(name: str) -> str:
    return f'<a href="{name}">{name}</a>'
