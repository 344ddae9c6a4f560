"""JSON of `/api/status`: findings, numbers and trends of the status page for programs.

Readings, verdicts and findings are written as in `exporters.documents.replay`. Times are unix seconds, units are base
units. NaN and infinity are null.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from exporters.documents.forecast import forecast_json
from exporters.documents.prewarm import prewarm_json
from exporters.documents.replay import episode_json, incident_json, reading_json, unknown_json, verdict_json
from exporters.documents.timeline import entry_json
from exporters.render.text import copy_fields
from exporters.status.active_findings import list_active_findings, list_notes, tier_state, unknowns
from exporters.status.plan_comparison import PlanComparison, compare_with_plan
from exporters.status.records import (
    AgentHealth,
    AgentStatus,
    ForecastHealth,
    ForecastStatus,
    GpuStatus,
    ReplicaStatus,
    TierStatus,
)
from exporters.status.tier_overview import describe_state, headline, overview_json
from rules.evaluator.external_alerts import ExternalAlert
from rules.evaluator.incident_alerts import IncidentAlert
from rules.plan.schema import plan_version

SCHEMA = 1


def status_json(status: AgentStatus) -> dict[str, Any]:
    """Return the status, ready for `json.dumps(..., allow_nan=False)`."""
    verdict = headline(status)
    mapping: dict[str, Any] = _without_nan(
        {
            "schema": SCHEMA,
            **copy_fields(status, "role", "version", "simulated", "started_at", "now"),
            "verdict": {"status": str(verdict.status), "text": verdict.text, "detail": verdict.detail},
            "overview": overview_json(status),
            "tiers": [_tier(tier) for tier in status.tiers],
            "incidents": [incident_json(candidate) for incident in status.incidents.values() for candidate in incident],
            "alerts": [_alert(alert) for alerts in status.incident_alerts.values() for alert in alerts],
            "foreign_alerts": [_foreign(alert) for alert in status.foreign],
            "timeline": [entry_json(entry) for entry in status.timeline],
            "agent": _health(status.health),
        }
    )
    return mapping


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _tier(tier: TierStatus) -> dict[str, Any]:
    plan = tier.context.plan
    return {
        "tier": tier.name,
        "status": str(tier_state(tier)),
        "state": describe_state(tier).words,
        "plan_version": plan_version(plan) if plan else None,
        "verdicts": [
            verdict_json(finding.verdict)
            | {"started_at": finding.since, "note": finding.is_note, "severity": finding.words}
            | {"silent": unknown_json(finding.silent) if finding.silent else None}
            for finding in (*list_active_findings(tier), *list_notes(tier))
        ],
        "unknowns": [unknown_json(unknown) for unknown in unknowns(tier)],
        "numbers": [_number(comparison) for comparison in compare_with_plan(tier)],
        "episodes": [episode_json(finding) for finding in tier.findings],
        "trend": [
            {"t": point.t, "readings": {name: reading_json(value) for name, value in point.readings.items()}}
            for point in tier.trend
        ],
        "replicas": [_replica(replica) for replica in tier.replicas],
        "parts": [
            {"replica": part.name, "pool": part.pool, "gpus": [_gpu(gpu) for gpu in part.gpus]} for part in tier.parts
        ],
        "step13": tier.step13,
        "forecast": _forecast(tier.forecast) if tier.forecast else None,
    }


def _forecast(forecast: ForecastStatus) -> dict[str, Any]:
    return {
        "now_rps": forecast.now_rps,
        "at_lead": asdict(forecast.at_lead) if forecast.at_lead else None,
        "for_now": asdict(forecast.for_now) if forecast.for_now else None,
        "requests": {
            "now_rps": forecast.now_requests,
            "at_lead": asdict(forecast.requests_at_lead) if forecast.requests_at_lead else None,
            "for_now": asdict(forecast.requests_for_now) if forecast.requests_for_now else None,
            "forecast": forecast_json(forecast.requests) if forecast.requests else None,
        },
        "recommended_replicas": forecast.recommended,
        "minimum_warm_replicas": forecast.minimum_warm,
        "ready_replicas": forecast.ready,
        "cold_start": asdict(forecast.cold_start) if forecast.cold_start else None,
        "forecast": forecast_json(forecast.forecast) if forecast.forecast else None,
        "prewarm": prewarm_json(forecast.prewarm) if forecast.prewarm else None,
        **copy_fields(forecast, "gap", "trouble"),
    }


def _number(comparison: PlanComparison) -> dict[str, Any]:
    return {
        **copy_fields(comparison.row, "key", "unit"),
        "rules": list(comparison.row.rules),
        "now": reading_json(comparison.now),
        "window_seconds": comparison.window_seconds,
        "status": comparison.state[0],
        "planned": {"value": comparison.planned.value, "text": comparison.planned.text} if comparison.planned else None,
        "at_this_load": reading_json(comparison.at_this_load) if comparison.at_this_load else None,
    }


def _replica(replica: ReplicaStatus) -> dict[str, Any]:
    return {
        "replica": replica.name,
        **copy_fields(replica, "pool", "url", "up", "last_seen", "misses", "engine"),
        "engine_version": replica.versions,
        "model": replica.model,
        "gauges": dict(replica.gauges),
        "problems": list(replica.problems),
        "gpus": [_gpu(gpu) for gpu in replica.gpus],
        "kv_cascade_stage": replica.cascade_stage,
        "scrape_seconds": replica.scrape_seconds,
    }


def _gpu(gpu: GpuStatus) -> dict[str, Any]:
    return {
        **copy_fields(gpu, "gpu", "product"),
        "gauges": dict(gpu.gauges),
        "gaps": dict(gpu.gaps),
        "sampled": sorted(gpu.sampled),
    }


def _alert(alert: IncidentAlert) -> dict[str, Any]:
    return {
        "rule": alert.rule,
        **copy_fields(alert.subject, "tier", "replica"),
        "severity": alert.severity.value,
        "since": alert.since,
        "sentence": alert.incident.sentence,
    }


def _foreign(alert: ExternalAlert) -> dict[str, Any]:
    diagnosis = alert.diagnosis
    return {
        **copy_fields(alert, "name", "tier", "replica"),
        "labels": dict(alert.labels),
        **copy_fields(alert, "summary", "started_at", "ended_at"),
        "diagnosis": {
            "rule": diagnosis.rule,
            **copy_fields(diagnosis.subject, "tier", "replica"),
            **copy_fields(diagnosis, "began_at", "certain", "sentence"),
        }
        if diagnosis
        else None,
    }


def _forecasting(health: ForecastHealth) -> dict[str, Any]:
    return {
        "answers": health.runs,
        "failures": dict(health.failures),
        **copy_fields(health, "last_seconds", "memory_bytes"),
        "troubles": list(health.troubles),
    }


def _health(health: AgentHealth) -> dict[str, Any]:
    failures = [
        {"tier": tier, "replica": replica, "kind": kind, "count": number}
        for (tier, replica, kind), number in sorted(health.scrape_failures.items())
    ]
    return {
        **copy_fields(
            health, "cycles", "overruns", "last_cycle_at", "failed_in_row", "last_cycle_seconds", "cycle_errors"
        ),
        "scrape_failures": failures,
        **copy_fields(health, "history_trouble", "unbooked_minutes", "dropped_minutes"),
        **copy_fields(health, "config_reloads", "config_trouble"),
        "gpu_problems": list(health.gpu_problems),
        "discovery": asdict(health.discovery) if health.discovery else None,
        **copy_fields(health, "web_errors", "web_refusals"),
        "alertmanagers": [asdict(alertmanager) for alertmanager in health.alertmanagers],
        "webhook": asdict(health.webhook) if health.webhook else None,
        "forecasting": _forecasting(health.forecasting) if health.forecasting else None,
        "reporting": asdict(health.reporting) if health.reporting else None,
    }
