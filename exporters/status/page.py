"""Status page of the agent and list of its weekly reports: HTML documents without scripts or other files.

This module holds the frame of the status page: headline, notices about the agent, links to the tiers and footer. Tier cards are in
`exporters.status.page_tier`, the style is `page.css`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from string import Template

from exporters.render.text import (
    SIGNS,
    format_duration,
    format_rfc3339,
    icon,
    sign,
    strip_control_characters,
    tier_anchor,
)
from exporters.status.page_incident import incidents
from exporters.status.page_tables import notices as report_notices
from exporters.status.page_tables import reports, timeline
from exporters.status.page_tier import HEADS, card
from exporters.status.records import AgentStatus, AlertmanagerHealth, DiscoveryHealth, StoreHealth, TierStatus
from exporters.status.tier_overview import Headline, headline, list_incidents, summarize_tier, worst_first
from rules.plan.schema import same_model
from rules.telemetry.wording import format_count
from rules.verdicts.verdict import FIRING

REFRESH_SECONDS = 5
PAUSED = "paused=1"
"""Query of a page without refresh."""

TIERS_OPEN = 6
"""Number of tiers whose cards are open. Of more tiers the overview has a line each, so that it fits a screen."""

_FOLDED = re.compile(r"<details(?! [^>]*\bopen\b)([^>]*>)")

MOST_PODS_TOLD = 8

MOST_LETTERS = 400
"""Maximum length of a listed report's headline, in characters."""

LABELS = {
    "report.html": "report",
    "report.md": "Markdown",
    "report.json": "JSON",
    "plan.next.yaml": "next plan",
}
"""Words for the files of a listed report."""

_STYLE = re.compile(rb"<style>(.*?)</style>", re.DOTALL)

OLD_AFTER_SECONDS = 60.0
"""Age of the last cycle in seconds that is reported: four cycles of the default 15 s were missed."""


def render_page(status: AgentStatus, *, paused: bool = False) -> bytes:
    """Return the page in UTF-8. `paused` omits the refresh and opens all folded parts."""
    verdict = headline(status)
    body = "".join((_top(status, verdict, paused), _tiers(status, paused), _foot(status)))
    text = _template().substitute(
        refresh="" if paused else f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">',
        title=escape(f"{SIGNS[verdict.status]} {verdict.text} · sizewatch"),
        icon=icon(verdict.status),
        style=style(),
        body=body,
    )
    return strip_control_characters(text).encode("utf-8", "replace")


@cache
def style() -> str:
    """Return the style sheet as embedded in the page."""
    return files("exporters.status").joinpath("page.css").read_text("utf-8")


def page_policy(page: bytes) -> str:
    """Return the Content-Security-Policy of a page that allows only its own style sheet."""
    match = _STYLE.search(page)
    allowed = f"sha256-{base64.b64encode(hashlib.sha256(match[1]).digest()).decode()}" if match else "none"
    return (
        f"default-src 'none'; style-src '{allowed}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


@cache
def _template() -> Template:
    return Template(files("exporters.status").joinpath("page.html").read_text("utf-8"))


def _top(status: AgentStatus, verdict: Headline, paused: bool) -> str:
    banner = f'<p class="banner">{escape(status.simulated)}</p>' if status.simulated else ""
    toggle = '<a href="?">refresh again</a>' if paused else f'<a href="?{PAUSED}">pause and open all</a>'
    notices = "".join(f"<li>{escape(notice)}</li>" for notice in _notices(status))
    word = f"{verdict.status.capitalize()}: " if verdict.status in FIRING else ""
    # With an incident its card follows in place of the line below the headline.
    about = "" if verdict.status in FIRING else f"<p>{escape(verdict.detail)}</p>"
    return (
        f'{banner}<header class="top {verdict.status}"><p class="brand"><b>sizewatch</b><span>'
        f'<time datetime="{format_rfc3339(status.now)}">{format_rfc3339(status.now)[11:19]} UTC</time> {toggle}</span></p>'
        f'<h1><span class="sign {verdict.status}"><b aria-hidden="true">{SIGNS[verdict.status]}</b></span>'
        f"{word}{escape(verdict.text)}</h1>{about}{_links(status)}</header>"
        + (f'<ul class="notices">{notices}</ul>' if notices else "")
    )


def _links(status: AgentStatus) -> str:
    """Return links to the open cards. Folded cards are links themselves."""
    if not 1 < len(status.tiers) <= TIERS_OPEN:
        return ""
    lines = (summarize_tier(status, tier) for tier in worst_first(status))
    links = "".join(
        f'<li><a href="#{escape(tier_anchor(line.tier))}">{sign(line.tone, line.tier)}</a></li>' for line in lines
    )
    return f'<nav aria-label="Tiers"><ul>{links}</ul></nav>'


def _notices(status: AgentStatus) -> Iterator[str]:
    """Yield problems of the agent itself, which affect everything below."""
    health = status.health
    if health.last_cycle_at is not None and status.now - health.last_cycle_at > OLD_AFTER_SECONDS:
        age = format_duration(status.now - health.last_cycle_at)
        yield f"The last cycle ended {age} ago: this page is that old. See the log of sizewatch."
    if health.history_trouble is not None:
        waiting = f" {health.unbooked_minutes} minutes are buffered." if health.unbooked_minutes else ""
        yield f"History write failed: {health.history_trouble}.{waiting}"
    if health.dropped_minutes:
        yield f"The history lost {health.dropped_minutes} replica-minutes."
    if health.config_trouble is not None:
        yield f"Configuration reload failed; the previous configuration is active: {health.config_trouble}"
    for tier in status.tiers:
        yield from _of_other_models(tier)
    yield from health.gpu_problems
    if health.store is not None:
        yield from _of_store(health.store)
    if health.discovery is not None:
        yield from _of_discovery(health.discovery)
    if health.forecasting is not None:
        yield from (f"No new forecast of {text}" for text in health.forecasting.troubles)
    yield from report_notices(health.reporting, status.now)
    for alertmanager in health.alertmanagers:
        if alertmanager.trouble is not None:
            yield f"Alertmanager unreachable, alerts are not delivered: {alertmanager.trouble}"
        yield from (f"{alertmanager.alertmanager} rejected an alert: {words}" for words in alertmanager.refused)


def _of_other_models(tier: TierStatus) -> Iterator[str]:
    """Yield that replicas serve another model than the plan's: every verdict of the tier is then about another sizing."""
    planned = tier.context.plan.model if tier.context.plan is not None else ""
    by_model: dict[str, list[str]] = {}
    for replica in tier.replicas:
        served = replica.model.split(",") if replica.model else []
        if planned and served and not any(same_model(name, planned) for name in served):
            by_model.setdefault(", ".join(served), []).append(replica.name)
    for model, names in sorted(by_model.items()):
        some = f"{names[0]} and {len(names) - 1} more serve" if len(names) > 1 else f"{names[0]} serves"
        yield f"{tier.name}: the plan is for {planned}, {some} {model}: correct the plan, or move the target to its tier."


def _of_store(store: StoreHealth) -> Iterator[str]:
    yield from (f"No data of {tier}: {why}" for tier, why in sorted(store.in_sight.items()) if why)


def _of_discovery(discovery: DiscoveryHealth) -> Iterator[str]:
    if discovery.trouble is not None:
        yield f"Pod discovery has failed for {format_duration(discovery.age_seconds)}: {discovery.trouble}"
    yield from (f"Pod {text}" for text in discovery.left_out[:MOST_PODS_TOLD])
    if len(discovery.left_out) > MOST_PODS_TOLD:
        yield f"{len(discovery.left_out) - MOST_PODS_TOLD} more pods are left out; /api/status lists all."
    yield from discovery.notes


def _tiers(status: AgentStatus, paused: bool) -> str:
    if not status.tiers:
        return '<main><p class="none">Name a tier with its targets in the configuration, then reload.</p></main>'
    tiers = worst_first(status)
    folded = len(tiers) > TIERS_OPEN
    cards = "".join(card(status, tier, folded=folded) for tier in tiers)
    lines = f'<section class="tiers{" many" if folded else ""}" aria-label="Tiers">{HEADS * 2 if folded else ""}{cards}</section>'
    text = incidents((incident for _, incident in list_incidents(status)), status.now)
    rest = f"{timeline(status)}{reports(status.health.reporting, status.now)}"
    # External markup is escaped by now, so each match is our own.
    whole = f"<main>{text}{lines}{rest}</main>"
    return _FOLDED.sub(r"<details open\1", whole) if paused else whole


def _asked(store: StoreHealth | None) -> tuple[str, ...]:
    if store is None:
        return ()
    return (f"{store.queries} queries of {store.place}, {sum(store.failures.values())} failed or incomplete",)


def _foot(status: AgentStatus) -> str:
    health = status.health
    failures = sum(health.scrape_failures.values())
    texts = [
        f"sizewatch {status.version}, role {status.role}, up {format_duration(status.now - status.started_at)}",
        f"{health.cycles} cycles, {health.overruns} late, {health.cycle_errors} with errors",
        f"last cycle {health.last_cycle_seconds * 1000:.0f} ms"
        if health.last_cycle_seconds is not None
        else "no cycle yet",
        f"{failures} failed scrapes{_by_kind(status)}",
        *_asked(health.store),
        f"{format_count(sum(map(len, status.incident_alerts.values())), 'alert')} firing",
        *(
            f"{alertmanager.alertmanager} has {alertmanager.firing} of them{_last(alertmanager, status.now)}"
            for alertmanager in health.alertmanagers
        ),
    ]
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    links = '<a href="metrics">metrics</a> <a href="api/status">this page as JSON</a> <a href="runbooks/">runbooks</a>'
    if health.reporting is not None:
        links += ' <a href="reports/">weekly reports</a>'
    return f"<footer><ul>{items}</ul><p>{links}</p></footer>"


def _last(health: AlertmanagerHealth, now: float) -> str:
    return (
        f", last post {format_duration(now - health.last_success_at)} ago"
        if health.last_success_at is not None
        else ", never reached"
    )


def _by_kind(status: AgentStatus) -> str:
    kinds: dict[str, int] = {}
    for (_, _, kind), number in status.health.scrape_failures.items():
        kinds[kind] = kinds.get(kind, 0) + number
    text = ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items(), key=lambda item: -item[1]))
    return f" ({text})" if text else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportListing:
    """Listed report: date, headline, whether its history is simulated, and its files by name."""

    name: str
    headline: str
    simulated: bool = False
    files: tuple[str, ...] = ()


def list_page(reports: Sequence[ReportListing]) -> bytes:
    """Return the page in UTF-8, newest report first."""
    rows = "".join(_listed(report) for report in reports)
    body = rows or "<p>None was written yet.</p>"
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>Weekly reports · sizewatch</title><style>{style()}</style></head><body>"
        '<header class="top"><p class="brand"><b>sizewatch</b><span><a href="../">status</a></span></p>'
        f"<h1>Weekly reports</h1></header><main>{body}</main></body></html>"
    )
    return strip_control_characters(text).encode("utf-8", "replace")


def _listed(listing: ReportListing) -> str:
    name = escape(listing.name)
    links = "".join(
        f'<li><a href="{name}/{escape(file)}">{label}</a></li>'
        for file, label in LABELS.items()
        if file in listing.files
    )
    text = escape(listing.headline[:MOST_LETTERS]) or "no headline"
    text = f"<b>Simulated.</b> {text}" if listing.simulated else text
    head = f'<header><h2><a href="{name}/report.html">{name}</a></h2><ul class="facts">{links}</ul></header>'
    return f'<section class="tier">{head}<p>{text}</p></section>'
