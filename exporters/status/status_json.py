"""JSON of `/api/status`: the records of the status page for programs, written by pydantic.

Readings, verdicts and findings are written as in `exporters.documents.replay`. Times are unix seconds, units are base
units. NaN and infinity are null.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pydantic_core import to_jsonable_python

from exporters.documents.forecast import forecast_json
from exporters.documents.prewarm import prewarm_json
from exporters.documents.replay import episode_json, incident_json, reading_json, unknown_json, verdict_json
from exporters.documents.timeline import entry_json
from exporters.render.text import copy_fields
from exporters.status.active_findings import ActiveFinding, list_alerting, list_notes, list_unknowns, tier_state
from exporters.status.plan_comparison import PlanComparison, compare_with_plan
from exporters.status.records import AgentHealth, AgentStatus, ForecastStatus, ReplicaStatus, TierStatus
from exporters.status.tier_overview import describe_state, headline, summarize_tier, worst_first
from rules.evaluator.external_alerts import ExternalAlert
from rules.evaluator.incident_alerts import IncidentAlert
from rules.plan.schema import plan_version

SCHEMA = 1


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
        "foreign_alerts": list(map(_foreign_alert, status.foreign)),
        "timeline": list(map(entry_json, status.timeline)),
        "agent": _health(status.health),
    }
    jsonable: dict[str, Any] = to_jsonable_python(document, inf_nan_mode="null")
    return jsonable


def _rename_fields(record: Any, *left_out: str, **keys: str) -> dict[str, Any]:
    """Return the fields of a record by name, without `left_out`. `keys` are those of fields with another key."""
    names = [field.name for field in fields(record) if field.name not in left_out]
    return {keys.get(name, name): getattr(record, name) for name in names}


def _tier(tier: TierStatus) -> dict[str, Any]:
    plan = tier.context.plan
    return {
        "tier": tier.name,
        "status": tier_state(tier),
        "state": describe_state(tier).words,
        "plan_version": plan_version(plan) if plan else None,
        "verdicts": [_finding(finding) for finding in (*list_alerting(tier), *list_notes(tier))],
        "unknowns": list(map(unknown_json, list_unknowns(tier))),
        "numbers": list(map(_number, compare_with_plan(tier))),
        "episodes": list(map(episode_json, tier.findings)),
        "trend": [
            {"t": point.t, "readings": {name: reading_json(value) for name, value in point.readings.items()}}
            for point in tier.trend
        ],
        "replicas": list(map(_replica, tier.replicas)),
        "parts": list(map(_replica, tier.parts)),
        "step13": tier.step13,
        "forecast": _forecast(tier.forecast) if tier.forecast else None,
    }


def _finding(finding: ActiveFinding) -> dict[str, Any]:
    silent = unknown_json(finding.silent) if finding.silent else None
    own = {
        "started_at": finding.finding.started_at,
        "note": finding.is_note,
        "severity": finding.words,
        "silent": silent,
    }
    return verdict_json(finding.verdict) | own


def _number(comparison: PlanComparison) -> dict[str, Any]:
    at_this_load = comparison.at_this_load
    return {
        **copy_fields(comparison.row, "key", "unit", "rules"),
        **copy_fields(comparison, "window_seconds", "planned"),
        "now": reading_json(comparison.now),
        "status": comparison.state[0],
        "at_this_load": reading_json(at_this_load) if at_this_load else None,
    }


def _replica(replica: ReplicaStatus) -> dict[str, Any]:
    keys = {"name": "replica", "versions": "engine_version", "cascade_stage": "kv_cascade_stage"}
    return _rename_fields(replica, "tier", "totals", **keys)


def _forecast(forecast: ForecastStatus) -> dict[str, Any]:
    requests = {
        "now_rps": forecast.now_requests,
        "at_lead": forecast.requests_at_lead,
        "for_now": forecast.requests_for_now,
        "forecast": forecast_json(forecast.requests) if forecast.requests else None,
    }
    return {
        **copy_fields(forecast, "now_rps", "at_lead", "for_now", "cold_start", "gap", "trouble"),
        "requests": requests,
        "recommended_replicas": forecast.recommended,
        "minimum_warm_replicas": forecast.minimum_warm,
        "ready_replicas": forecast.ready,
        "forecast": forecast_json(forecast.forecast) if forecast.forecast else None,
        "prewarm": prewarm_json(forecast.prewarm) if forecast.prewarm else None,
    }


def _alert(alert: IncidentAlert) -> dict[str, Any]:
    subject, sentence = copy_fields(alert.subject, "tier", "replica"), alert.incident.sentence
    return copy_fields(alert, "rule", "severity", "since") | subject | {"sentence": sentence}


def _foreign_alert(alert: ExternalAlert) -> dict[str, Any]:
    diagnosis = alert.diagnosis
    flat = None
    if diagnosis is not None:
        flat = _rename_fields(diagnosis, "subject") | copy_fields(diagnosis.subject, "tier", "replica")
    return _rename_fields(alert, "heard_at") | {"labels": dict(alert.labels), "diagnosis": flat}


def _health(health: AgentHealth) -> dict[str, Any]:
    failures = [
        {"tier": tier, "replica": replica, "kind": kind, "count": count}
        for (tier, replica, kind), count in sorted(health.scrape_failures.items())
    ]
    forecasting = _rename_fields(health.forecasting, runs="answers") if health.forecasting else None
    return _rename_fields(health) | {"scrape_failures": failures, "forecasting": forecasting}
