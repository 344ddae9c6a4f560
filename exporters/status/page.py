"""Status page of the agent, its pages of text, and the JSON of `/api/status`.

The pages have no scripts or other files. The layout is `status.html.j2` over an AgentStatus, the style `page.css`.
The templates escape every text. In the JSON times are unix seconds, and infinity is null.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import chain
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from pydantic_core import to_jsonable_python

from exporters.documents import forecast, replay
from exporters.documents.forecast import forecast_json, prewarm_json
from exporters.documents.replay import entry_json, episode_json, incident_json, reading_json, unknown_json, verdict_json
from exporters.render import text
from exporters.render.safe_text import strip_control_characters
from exporters.render.text import copy_fields
from exporters.status import plan_comparison, tier_overview
from exporters.status.plan_comparison import PlanComparison, compare_with_plan
from exporters.status.records import ActiveFinding, AgentStatus, ForecastStatus, TierStatus
from exporters.status.tier_overview import describe_state, headline, summarize_tier, worst_first
from rules.evaluator.incident_alerts import IncidentAlert
from rules.plan.schema import plan_version, same_model
from rules.replicas.cascade import STAGES
from rules.telemetry import wording
from rules.telemetry.signals import Reading
from rules.telemetry.windows import HOUR_SECONDS, MINUTE_SECONDS, Window, group_by
from rules.verdicts.verdict import Unknown

TIERS_OPEN = 6
"""Maximum number of tiers with open cards. More tiers have a line each, which fit a screen."""

SHOWN = 200
"""Maximum number of timeline entries, newest first. A replica may restart every minute for a day."""


def render_page(status: AgentStatus, *, paused: bool = False) -> bytes:
    """Return the page in UTF-8. `paused` omits the refresh and opens all folded parts."""
    page = render_template("status/status.html.j2", status=status, verdict=headline(status), paused=paused)
    return page.encode("utf-8", "replace")


def text_page(title: str, html: str, links: Mapping[str, str]) -> bytes:
    """Return a page of HTML text, which is escaped already, in UTF-8. `links` are words by address."""
    page = render_template("status/base.html.j2", title=title, links=links, html=Markup(html))
    return page.encode("utf-8", "replace")


def render_template(template: str, **names: object) -> str:
    """Return a page from a template of the exporters, which escapes every text."""
    return strip_control_characters(_environment().get_template(template).render(names))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("exporters", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=wording.number, quantity=wording.quantity, count=wording.format_count)
    environment.filters.update(duration=wording.format_duration, title=text.rule_title)
    environment.globals.update(
        text=text, replay=replay, forecast=forecast, comparison=plan_comparison, overview=tier_overview
    )
    environment.globals.update(find_tones=find_tones, group_unknowns=group_unknowns, trace_hour=trace_hour)
    environment.globals.update(is_same_model=is_same_model, SHOWN=SHOWN, STAGES=STAGES, TIERS_OPEN=TIERS_OPEN)
    return environment


def page_policy(page: bytes) -> str:
    """Return the Content-Security-Policy of a page that allows only its own style sheet."""
    sheet = page.partition(b"<style>")[2].partition(b"</style>")[0]
    allowed = f"sha256-{base64.b64encode(hashlib.sha256(sheet).digest()).decode()}" if sheet else "none"
    return (
        f"default-src 'none'; style-src '{allowed}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def is_same_model(served: str, planned: str) -> bool:
    """Return whether the served names, by comma, hold that of the plan. No name yet is no other model."""
    return not served or any(same_model(name, planned) for name in served.split(","))


def find_tones(tier: TierStatus) -> dict[tuple[str | None, str], text.Tone]:
    """Return the tones of the active findings by replica and rule, for the replica table."""
    return {(finding.verdict.subject.replica, finding.verdict.rule): finding.tone for finding in tier.active}


def trace_hour(tier: TierStatus, signal: str, now: float) -> list[list[tuple[float, float]]]:
    """Return the last hour of a signal as `trace` does, the lower bound where no best estimate is."""
    minutes = []
    for point in tier.trend:
        reading = point.readings.get(signal)
        if isinstance(reading, Reading) and point.t > now - HOUR_SECONDS:
            minutes.append((point.t, (reading.low or 0.0) if reading.value is None else reading.value))
    top = max((value for _, value in minutes), default=0.0) or 1.0
    return trace(minutes, now - HOUR_SECONDS, now, MINUTE_SECONDS, top)


def trace(
    points: Iterable[tuple[float, float]], begin: float, end: float, step: float, top: float
) -> list[list[tuple[float, float]]]:
    """Return points in time (unix seconds) as lines in a unit square. A step without a value ends a line."""
    lines: list[list[tuple[float, float]]] = []
    last = 0.0
    for t, value in points:
        if t - last > 1.5 * step:
            lines.append([])
        lines[-1].append(((t - begin) / (end - begin), 1 - value / top))
        last = t
    return lines


def group_unknowns(tier: TierStatus) -> list[tuple[str, list[Unknown]]]:
    """Return the unknown rules by the words of their reason. A reason often affects many rules."""
    return sorted(group_by(tier.unknowns, lambda unknown: text.describe_gap(unknown.reason, unknown.text)).items())


_INTERNAL: Any = {"__all__": {"totals": True, "gpus": {"__all__": {"t", "index", "pids", "pods"}}}}


def status_json(status: AgentStatus) -> dict[str, Any]:
    """Return the status, ready for `json.dumps(..., allow_nan=False)`."""
    document: dict[str, Any] = {
        "schema": 2,
        **copy_fields(status, "role", "version", "config", "simulated", "started_at", "now"),
        "verdict": headline(status),
        "overview": [summarize_tier(status, tier) for tier in worst_first(status)],
        "tiers": list(map(_tier, status.tiers)),
        "incidents": list(map(incident_json, chain.from_iterable(status.incidents.values()))),
        "alerts": list(map(_alert, chain.from_iterable(status.incident_alerts.values()))),
        "foreign_alerts": status.foreign,
        "timeline": list(map(entry_json, status.timeline)),
        "agent": status.health,
    }
    jsonable: dict[str, Any] = to_jsonable_python(document, inf_nan_mode="null")
    for alert in jsonable["foreign_alerts"]:
        alert["labels"] = dict(alert["labels"])
    failures = []
    for (tier, replica, kind), count in sorted(status.health.scrape_failures.items()):
        failures.append({"tier": tier, "replica": replica, "kind": kind, "count": count})
    jsonable["agent"]["scrape_failures"] = failures
    return jsonable


def _tier(tier: TierStatus) -> dict[str, Any]:
    plan = tier.context.plan
    return {
        "tier": tier.name,
        "status": tier.tone,
        "state": describe_state(tier).words,
        "plan_version": plan_version(plan) if plan else None,
        "verdicts": list(map(_finding, tier.active)),
        "unknowns": list(map(unknown_json, tier.unknowns)),
        "numbers": [_number(comparison, tier.recent) for comparison in compare_with_plan(tier)],
        "episodes": list(map(episode_json, tier.findings)),
        "trend": [
            {"t": point.t, "readings": {name: reading_json(value) for name, value in point.readings.items()}}
            for point in tier.trend
        ],
        "replicas": to_jsonable_python(tier.replicas, exclude=_INTERNAL),
        "parts": to_jsonable_python(tier.parts, exclude=_INTERNAL),
        "step13": tier.step13,
        "forecast": _forecast(tier.forecast) if tier.forecast else None,
    }


def _finding(finding: ActiveFinding) -> dict[str, Any]:
    silent = unknown_json(finding.silent) if finding.silent else None
    own = {"started_at": finding.finding.started_at, "note": finding.is_note, "severity": finding.words}
    return verdict_json(finding.verdict) | own | {"silent": silent}


def _number(comparison: PlanComparison, recent: Window | None) -> dict[str, Any]:
    at_this_load = comparison.at_this_load
    return {
        **copy_fields(comparison.row, "key", "unit", "rules"),
        "window_seconds": recent.end - recent.start if recent else None,
        "planned": comparison.planned,
        "now": reading_json(comparison.now),
        "status": comparison.state[0],
        "at_this_load": reading_json(at_this_load) if at_this_load else None,
    }


def _forecast(forecast: ForecastStatus) -> dict[str, Any]:
    return {
        **to_jsonable_python(forecast, exclude={"forecast", "requests", "prewarm"}),
        "recommended": forecast.decision.replicas if forecast.decision else None,
        "forecast": forecast_json(forecast.forecast) if forecast.forecast else None,
        "requests": forecast_json(forecast.requests) if forecast.requests else None,
        "prewarm": prewarm_json(forecast.prewarm) if forecast.prewarm else None,
    }


def _alert(alert: IncidentAlert) -> dict[str, Any]:
    subject, sentence = copy_fields(alert.subject, "tier", "replica"), alert.incident.sentence
    return copy_fields(alert, "rule", "severity", "since") | subject | {"sentence": sentence}
