"""Status page of the agent, list of its weekly reports, and the JSON of `/api/status`.

The pages are without scripts or other files. The layout is `status.html.j2` over an AgentStatus, the style is
`page.css`. The templates escape every text. In the JSON times are unix seconds, and infinity is null.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
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
from exporters.status.active_findings import ActiveFinding
from exporters.status.plan_comparison import PlanComparison, compare_with_plan
from exporters.status.records import AgentStatus, DiscoveryHealth, ForecastStatus, ReportHealth, TierStatus
from exporters.status.tier_overview import describe_state, headline, summarize_tier, worst_first
from rules.evaluator.incident_alerts import IncidentAlert
from rules.plan.schema import plan_version, same_model
from rules.replicas.cascade import STAGES
from rules.telemetry import wording
from rules.telemetry.signals import Reading
from rules.telemetry.windows import HOUR_SECONDS, MINUTE_SECONDS, group_by

PAUSED = "paused=1"
"""Query of a page without refresh."""

TIERS_OPEN = 6
"""Number of tiers whose cards are open. Of more tiers the overview has a line each, so that it fits a screen."""

PODS_SHOWN = 8
"""Maximum number of rejected pods that the page names."""

SHOWN = 200
"""Maximum number of timeline entries, newest first. A replica may restart every minute for a day."""


def render_page(status: AgentStatus, *, paused: bool = False) -> bytes:
    """Return the page in UTF-8. `paused` omits the refresh and opens all folded parts."""
    names = {"verdict": headline(status), "troubles": list(list_troubles(status)), "paused": paused}
    return _render("status/status.html.j2", status=status, **names)


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
    return _render("status/base.html.j2", title="Weekly reports", links={"../": "status"}, html=html, reports=reports)


def text_page(title: str, html: str, links: Mapping[str, str]) -> bytes:
    """Return a page of HTML text, which is escaped already, in UTF-8. `links` are words by address."""
    return _render("status/base.html.j2", title=title, links=links, html=Markup(html), reports=())


def _render(template: str, **names: object) -> bytes:
    return render_template(template, style=style("status/page.css"), **names).encode("utf-8", "replace")


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
    environment.filters.update(duration=text.format_duration)
    environment.globals.update(
        text=text, replay=replay, forecast=forecast, comparison=plan_comparison, overview=tier_overview
    )
    environment.globals.update(find_tones=find_tones, group_unknowns=group_unknowns, trace_hour=trace_hour)
    environment.globals.update(PAUSED=PAUSED, SHOWN=SHOWN, STAGES=STAGES, TIERS_OPEN=TIERS_OPEN)
    return environment


@cache
def style(*sheets: str) -> Markup:
    """Return style sheets of the exporters as embedded in a page."""
    return Markup("").join(Markup(files("exporters").joinpath(sheet).read_text("utf-8")) for sheet in sheets)


def page_policy(page: bytes) -> str:
    """Return the Content-Security-Policy of a page that allows only its own style sheet."""
    sheet = page.partition(b"<style>")[2].partition(b"</style>")[0]
    allowed = f"sha256-{base64.b64encode(hashlib.sha256(sheet).digest()).decode()}" if sheet else "none"
    return (
        f"default-src 'none'; style-src '{allowed}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def list_troubles(status: AgentStatus) -> Iterator[str]:
    """Yield what is wrong with the agent itself and its surroundings, for the top of the page."""
    health, now = status.health, status.now
    if health.last_cycle_at is not None and now - health.last_cycle_at > MINUTE_SECONDS:
        ago = text.format_duration(now - health.last_cycle_at)
        yield f"The last cycle ended {ago} ago: this page is that old. See the log of sizewatch."
    if health.history_trouble is not None:
        yield f"History write failed: {health.history_trouble}. Minutes in the buffer: {health.unbooked_minutes}."
    if health.dropped_minutes:
        yield f"The history lost {health.dropped_minutes} replica-minutes."
    if health.config_trouble is not None:
        yield f"Configuration reload failed; the previous configuration is active: {health.config_trouble}"
    for tier in status.tiers:
        yield from _list_other_models(tier)
    yield from health.gpu_problems
    if health.store is not None:
        yield from (f"No data of {tier}: {reason}" for tier, reason in sorted(health.store.in_sight.items()) if reason)
    if health.discovery is not None:
        yield from _list_discovery_troubles(health.discovery)
    if health.forecasting is not None:
        yield from (f"No new forecast of {trouble}" for trouble in health.forecasting.troubles)
    if health.reporting is not None:
        yield from _list_report_troubles(health.reporting, now)
    for receiver in health.alertmanagers:
        if receiver.trouble is not None:
            yield f"Alertmanager unreachable, alerts are not delivered: {receiver.trouble}"
        yield from (f"{receiver.alertmanager} rejected an alert: {refused}" for refused in receiver.refused)


def _list_discovery_troubles(discovery: DiscoveryHealth) -> Iterator[str]:
    if discovery.trouble is not None:
        yield f"Pod discovery has failed for {text.format_duration(discovery.age_seconds)}: {discovery.trouble}"
    yield from (f"Pod {pod}" for pod in discovery.left_out[:PODS_SHOWN])
    if len(discovery.left_out) > PODS_SHOWN:
        yield f"{len(discovery.left_out) - PODS_SHOWN} more pods are left out; /api/status lists all."
    yield from discovery.notes


def _list_report_troubles(reporting: ReportHealth, now: float) -> Iterator[str]:
    if reporting.trouble:
        yield f"The weekly report cannot be written: {reporting.trouble}. Writing is retried."
    for delivery in reporting.deliveries:
        if delivery.trouble:
            trouble = f"The weekly report does not reach {delivery.destination}: {delivery.trouble}."
            if delivery.next_at is not None:
                trouble += f" The next attempt is in {text.format_duration(delivery.next_at - now)}."
            yield trouble


def _list_other_models(tier: TierStatus) -> Iterator[str]:
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
    """Return the last hour of a signal as `trace` does. Of a value without a best estimate the lower bound is drawn."""
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
    """Return points in time (unix seconds) as lines in a unit square. A step without a value ends a line: a gap stays open."""
    lines: list[list[tuple[float, float]]] = []
    last = 0.0
    for t, value in points:
        if t - last > 1.5 * step:
            lines.append([])
        lines[-1].append(((t - begin) / (end - begin), 1 - value / top))
        last = t
    return lines


def group_unknowns(tier: TierStatus) -> dict[str, list[str]]:
    """Return the titles of the unknown rules by the reason. A reason often affects many rules."""
    reasons: dict[str, list[str]] = {}
    for unknown in tier.unknowns:
        where = f" ({unknown.subject.replica})" if unknown.subject.replica else ""
        reasons.setdefault(text.describe_gap(unknown.reason, unknown.text), []).append(
            text.rule_title(unknown.rule) + where
        )
    return dict(sorted(reasons.items()))


SCHEMA = 2
_INTERNAL: Any = {"__all__": {"totals": True, "gpus": {"__all__": {"t", "index", "pids", "pods"}}}}


def status_json(status: AgentStatus) -> dict[str, Any]:
    """Return the status, ready for `json.dumps(..., allow_nan=False)`."""
    alerts = [alert for rows in status.incident_alerts.values() for alert in rows]
    incidents = [incident for rows in status.incidents.values() for incident in rows]
    document: dict[str, Any] = {
        "schema": SCHEMA,
        **copy_fields(status, "role", "version", "config", "simulated", "started_at", "now"),
        "verdict": headline(status),
        "overview": [summarize_tier(status, tier) for tier in worst_first(status)],
        "tiers": list(map(_tier, status.tiers)),
        "incidents": list(map(incident_json, incidents)),
        "alerts": list(map(_alert, alerts)),
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
        "verdicts": list(map(_finding, (*tier.alerting, *tier.notes))),
        "unknowns": list(map(unknown_json, tier.unknowns)),
        "numbers": list(map(_number, compare_with_plan(tier))),
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


def _number(comparison: PlanComparison) -> dict[str, Any]:
    at_this_load = comparison.at_this_load
    return {
        **copy_fields(comparison.row, "key", "unit", "rules"),
        **copy_fields(comparison, "window_seconds", "planned"),
        "now": reading_json(comparison.now),
        "status": comparison.state[0],
        "at_this_load": reading_json(at_this_load) if at_this_load else None,
    }


def _forecast(forecast: ForecastStatus) -> dict[str, Any]:
    return {
        **to_jsonable_python(forecast, exclude={"forecast", "requests", "prewarm"}),
        "recommended": forecast.recommended,
        "forecast": forecast_json(forecast.forecast) if forecast.forecast else None,
        "requests": forecast_json(forecast.requests) if forecast.requests else None,
        "prewarm": prewarm_json(forecast.prewarm) if forecast.prewarm else None,
    }


def _alert(alert: IncidentAlert) -> dict[str, Any]:
    subject, sentence = copy_fields(alert.subject, "tier", "replica"), alert.incident.sentence
    return copy_fields(alert, "rule", "severity", "since") | subject | {"sentence": sentence}
