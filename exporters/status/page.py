"""Status page of the agent and list of its weekly reports: HTML documents without scripts or other files.

The layout is `status.html.j2` over an AgentStatus, the style is `page.css`. The templates escape every text.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from exporters.documents import forecast, timeline
from exporters.render import text
from exporters.status import plan_comparison, tier_overview
from exporters.status.records import AgentStatus, TierStatus
from rules.catalogue.registry import BY_NAME
from rules.plan.schema import same_model
from rules.replicas.cascade import STAGES
from rules.telemetry import wording
from rules.telemetry.signals import Reading
from rules.telemetry.windows import HOUR_SECONDS, MINUTE_SECONDS, group_by

PAUSED = "paused=1"
"""Query of a page without refresh."""

TIERS_OPEN = 6
"""Number of tiers whose cards are open. Of more tiers the overview has a line each, so that it fits a screen."""

SHOWN = 200
"""Maximum number of timeline entries, newest first. A replica may restart every minute for a day."""

LINE_WIDTH, LINE_HEIGHT = 120.0, 24.0
"""Size of a small line, in its own units."""


def render_page(status: AgentStatus, *, paused: bool = False) -> bytes:
    """Return the page in UTF-8. `paused` omits the refresh and opens all folded parts."""
    return _render("status.html.j2", status=status, verdict=tier_overview.headline(status), paused=paused)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportListing:
    """Listed report: date, headline, whether its history is simulated, and its files by name."""

    name: str
    headline: str
    simulated: bool = False
    files: tuple[str, ...] = ()


def list_page(reports: Sequence[ReportListing]) -> bytes:
    """Return the page in UTF-8, newest report first."""
    html = "" if reports else Markup("<p>None was written yet.</p>")
    return _render("base.html.j2", title="Weekly reports", links={"../": "status"}, html=html, reports=reports)


def text_page(title: str, html: str, links: Mapping[str, str]) -> bytes:
    """Return a page of HTML text, which is escaped already, in UTF-8. `links` are words by address."""
    return _render("base.html.j2", title=title, links=links, html=Markup(html), reports=())


def _render(template: str, **names: object) -> bytes:
    page = _environment().get_template(template).render(names)
    return text.strip_control_characters(page).encode("utf-8", "replace")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("exporters.status", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=wording.number, quantity=wording.quantity, count=wording.format_count)
    environment.filters.update(duration=text.format_duration, other_models=list_other_models)
    environment.globals.update(
        text=text, timeline=timeline, forecast=forecast, comparison=plan_comparison, overview=tier_overview
    )
    environment.globals.update(find_tones=find_tones, group_unknowns=group_unknowns, trace_hour=trace_hour)
    environment.globals.update(PAUSED=PAUSED, SHOWN=SHOWN, STAGES=STAGES, TIERS_OPEN=TIERS_OPEN, style=Markup(style()))
    return environment


@cache
def style() -> str:
    """Return the style sheet as embedded in the page."""
    return files("exporters.status").joinpath("page.css").read_text("utf-8")


def page_policy(page: bytes) -> str:
    """Return the Content-Security-Policy of a page that allows only its own style sheet."""
    sheet = page.partition(b"<style>")[2].partition(b"</style>")[0]
    allowed = f"sha256-{base64.b64encode(hashlib.sha256(sheet).digest()).decode()}" if sheet else "none"
    return (
        f"default-src 'none'; style-src '{allowed}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def list_other_models(tier: TierStatus) -> Iterator[str]:
    """Yield that replicas serve another model than the plan's: every verdict of the tier is then about another sizing."""
    if tier.context.plan is None:
        return
    planned = tier.context.plan.model
    for model, replicas in sorted(group_by(tier.replicas, lambda replica: replica.model).items()):
        if model and not any(same_model(name, planned) for name in model.split(",")):
            served = f"{len(replicas)} of {len(tier.replicas)} replicas, such as {replicas[0].name}, serve {model}"
            yield f"{tier.name}: the plan is for {planned}, {served}: correct the plan, or move the target to its tier."


def find_tones(tier: TierStatus) -> dict[tuple[str | None, str], text.Tone]:
    """Return the tones of the active findings by replica and rule, for the replica table."""
    return {(finding.verdict.subject.replica, finding.verdict.rule): finding.tone for finding in tier.active}


def trace_hour(tier: TierStatus, signal: str, now: float) -> list[list[tuple[float, float]]]:
    """Return the last hour of a signal as lines of points in a box of LINE_WIDTH and LINE_HEIGHT.

    A minute without a value ends a line: a gap stays open. Of a value without a best estimate the lower bound is drawn.
    """
    minutes = []
    for point in tier.trend:
        reading = point.readings.get(signal)
        if isinstance(reading, Reading) and point.t > now - HOUR_SECONDS:
            minutes.append((point.t, (reading.low or 0.0) if reading.value is None else reading.value))
    top = max((value for _, value in minutes), default=0.0) or 1.0
    lines: list[list[tuple[float, float]]] = []
    last = 0.0
    for t, value in minutes:
        if t - last > 1.5 * MINUTE_SECONDS:
            lines.append([])
        lines[-1].append((LINE_WIDTH * (1 - (now - t) / HOUR_SECONDS), LINE_HEIGHT * (1 - value / top)))
        last = t
    return lines


def group_unknowns(tier: TierStatus) -> dict[str, list[str]]:
    """Return the titles of the unknown rules by the reason. A reason often affects many rules."""
    reasons: dict[str, list[str]] = {}
    for unknown in tier.unknowns:
        title = BY_NAME[unknown.rule].title if unknown.rule in BY_NAME else unknown.rule
        where = f" ({unknown.subject.replica})" if unknown.subject.replica else ""
        reasons.setdefault(text.describe_gap(unknown.reason, unknown.text), []).append(title + where)
    return dict(sorted(reasons.items()))
