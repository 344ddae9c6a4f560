"""JSON of `/api/status`: the records of the status page for programs, written by pydantic.

Readings, verdicts and findings are written as in `exporters.documents.replay`. Times are unix seconds, units are base
units. NaN and infinity are null.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import to_jsonable_python

from exporters.documents.forecast import forecast_json
from exporters.documents.prewarm import prewarm_json
from exporters.documents.replay import episode_json, incident_json, reading_json, unknown_json, verdict_json
from exporters.documents.timeline import entry_json
from exporters.render.text import copy_fields
from exporters.status.active_findings import ActiveFinding
from exporters.status.plan_comparison import PlanComparison, compare_with_plan
from exporters.status.records import AgentStatus, ForecastStatus, TierStatus
from exporters.status.tier_overview import describe_state, headline, summarize_tier, worst_first
from rules.evaluator.incident_alerts import IncidentAlert
from rules.plan.schema import plan_version

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
