"""HorizontalPodAutoscaler (autoscaling/v2) with its Prometheus Adapter rule, and KEDA ScaledObject, both on the gauge.

Both ask for ceil(value / 1) replicas (AverageValue 1), so the gauge is the count. The adapter rule names the metric by
tier: a tier's name may be invalid in a label selector. The HPA has no schedule and keeps its count without the metric.
KEDA fields are those of `keda.sh/v1alpha1` (CRD of
kedacore/keda 8b4f083c; semantics of `prometheus_scaler.go`, `cron_scaler.go`, `fallback.go`, documentation 2.17). The
schedule becomes cron triggers, a floor. Without sizewatch, only the schedule and the present count remain.
"""

from __future__ import annotations

from exporters.autoscaling.manifests import (
    Manifest,
    Object,
    behavior,
    behavior_notes,
    comment_name,
    metadata,
    now_notes,
    scale_target,
    week_notes,
)
from exporters.autoscaling.records import GAUGE, Scaling, label_value, object_name, recommended_query
from exporters.autoscaling.schedule import CronEntry, Week, week_of
from exporters.render.text import dump_object


def hpa(scaling: Scaling) -> Manifest:
    """Return the HPA. The Prometheus Adapter rule is in its comment, as it belongs in the adapter's configuration."""
    return Manifest(head=_head(scaling), objects=(_autoscaler(scaling),))


def metric_name(tier: str) -> str:
    """Return the external metric of a tier. It is part of a path: letters, digits and underscores only."""
    return f"{GAUGE}_{object_name(tier).removeprefix('sizewatch-').replace('-', '_')}"


def adapter_rule(tier: str) -> str:
    """Return the rule for `externalRules` (kubernetes-sigs/prometheus-adapter docs/externalmetrics.md).

    `namespaced: false`: the gauge has the agent's namespace, if any, not the workload's.
    """
    rule = {
        "seriesQuery": f'{GAUGE}{{tier="{label_value(tier)}"}}',
        "resources": {"namespaced": False},
        "name": {"matches": f"^{GAUGE}$", "as": metric_name(tier)},
        "metricsQuery": recommended_query(tier),
    }
    return dump_object({"externalRules": [rule]})


def _head(scaling: Scaling) -> tuple[str, ...]:
    target = f"{scaling.workload.kind} {scaling.workload.name}"
    zero = (
        ("The minimum is 1: an HPA does not scale to none unless the cluster has HPAScaleToZero on.",)
        if scaling.minimum_warm == 0
        else ()
    )
    rule = "\n".join(f"   {line}" for line in adapter_rule(scaling.tier).splitlines())
    return (
        (
            f"Written by sizewatch for tier {comment_name(scaling.tier)}. This HorizontalPodAutoscaler owns the replica field of "
            f"{target}; sizewatch writes nothing."
        ),
        (
            f"Apply nothing beside it that sets replicas of {target}: no ScaledObject, no second HPA, and no spec.replicas in "
            "what is deployed."
        ),
        (
            "While sizewatch or Prometheus is away, the HPA keeps the count that it has: it neither grows nor shrinks. It knows no "
            "schedule; KEDA does (--format keda)."
        ),
        *now_notes(scaling),
        *zero,
        *behavior_notes(scaling),
        "The metric comes from Prometheus Adapter. Add to its configuration:",
        rule,
    )


def _autoscaler(scaling: Scaling) -> Object:
    metric = {
        "type": "External",
        "external": {
            "metric": {"name": metric_name(scaling.tier)},
            "target": {"type": "AverageValue", "averageValue": "1"},
        },
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(scaling),
        "spec": {
            "scaleTargetRef": scale_target(scaling),
            "minReplicas": max(scaling.minimum_warm, 1),
            "maxReplicas": scaling.maximum,
            "metrics": [metric],
            "behavior": behavior(scaling),
        },
    }


POLLING_SECONDS = 15
"""Polling interval in seconds, the HPA's default. A slower interval delays a start."""

FAILURES = 3
"""Failed polls in a row before the fallback. A lost scrape does not trigger it; within a minute it must."""


def keda(scaling: Scaling) -> Manifest:
    """Return the ScaledObject, and a TriggerAuthentication if the server needs a token."""
    week = week_of(scaling)
    return Manifest(head=_keda_head(scaling, week), objects=(*_authentication(scaling), _scaled_object(scaling, week)))


def _keda_head(scaling: Scaling, week: Week) -> tuple[str, ...]:
    target = f"{scaling.workload.kind} {scaling.workload.name}"
    kept = "the present count if that is higher, else " + ("the schedule" if week.entries else f"{_fallback(week)}")
    return (
        (
            f"Written by sizewatch for tier {comment_name(scaling.tier)}. "
            f"KEDA owns the replica field of {target}, through the HPA that "
            "it makes; sizewatch writes nothing."
        ),
        (
            f"Apply nothing beside it that sets replicas of {target}: no other ScaledObject, no HorizontalPodAutoscaler, "
            "and no spec.replicas in what is deployed."
        ),
        (
            f"While sizewatch or Prometheus is away: {kept}. A missing gauge is an error, never zero "
            "(ignoreNullValues). Needs KEDA 2.17 (fallback.behavior)."
        ),
        *now_notes(scaling),
        *week_notes(week, scaling),
        *behavior_notes(scaling),
    )


def _scaled_object(scaling: Scaling, week: Week) -> Object:
    zero = {"cooldownPeriod": round(scaling.hold_seconds)} if week.floor == 0 else {}
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": metadata(scaling),
        "spec": {
            "scaleTargetRef": scale_target(scaling),
            "pollingInterval": POLLING_SECONDS,
            **zero,
            "minReplicaCount": week.floor,
            "maxReplicaCount": scaling.maximum,
            "fallback": {
                "failureThreshold": FAILURES,
                "replicas": _fallback(week),
                "behavior": "currentReplicasIfHigher",
            },
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior(scaling)}},
            "triggers": [_follow(scaling), *(_scheduled(scaling, entry) for entry in week.entries)],
        },
    }


def _fallback(week: Week) -> int:
    """Return the fallback replicas, never 0: traffic is unknown then."""
    return max(week.floor, 1)


def _follow(scaling: Scaling) -> Object:
    modes = {"authModes": "bearer"} if scaling.token else {}
    reference = {"authenticationRef": {"name": object_name(scaling.tier)}} if scaling.token else {}
    return {
        "type": "prometheus",
        "name": "recommendation",
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": scaling.prometheus.rstrip("/"),
            "query": recommended_query(scaling.tier),
            "threshold": "1",
            "ignoreNullValues": "false",
            **modes,
        },
        **reference,
    }


def _scheduled(scaling: Scaling, entry: CronEntry) -> Object:
    return {
        "type": "cron",
        "metadata": {
            "timezone": scaling.zone,
            "start": entry.start,
            "end": entry.end,
            "desiredReplicas": str(entry.replicas),
        },
    }


def _authentication(scaling: Scaling) -> tuple[Object, ...]:
    if scaling.token is None:
        return ()
    token = {"parameter": "bearerToken", "name": scaling.token.name, "key": scaling.token.key}
    return (
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "TriggerAuthentication",
            "metadata": metadata(scaling),
            "spec": {"secretTargetRef": [token]},
        },
    )
