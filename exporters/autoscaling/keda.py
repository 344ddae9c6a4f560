"""KEDA ScaledObject that follows the gauge, with the schedule as cron triggers.

Fields are those of `keda.sh/v1alpha1` (CRD of kedacore/keda 8b4f083c; semantics of `prometheus_scaler.go`,
`cron_scaler.go`, `fallback.go` and the documentation 2.17). An external metric of type AverageValue with threshold 1
asks for ceil(value / 1) replicas. The gauge is therefore the count. The HPA takes the highest of all triggers. The
schedule is a floor while sizewatch runs. Without sizewatch, only the schedule and the present count remain.
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
    week_notes,
)
from exporters.autoscaling.records import WORKLOADS, Scaling, object_name, recommended_query
from exporters.autoscaling.schedule import CronEntry, Week, week_of

POLLING_SECONDS = 15
"""Polling interval in seconds, the HPA's default. A slower interval delays a start."""

FAILURES = 3
"""Failed polls in a row before the fallback. A lost scrape does not trigger it; within a minute it must."""


def keda(scaling: Scaling) -> Manifest:
    """Return the ScaledObject, and a TriggerAuthentication if the server needs a token."""
    week = week_of(scaling)
    return Manifest(head=_head(scaling, week), objects=(*_authentication(scaling), _scaled_object(scaling, week)))


def _head(scaling: Scaling, week: Week) -> tuple[str, ...]:
    target = f"{scaling.workload.kind} {scaling.workload.name}"
    kept = "the present count if that is higher, else " + ("the schedule" if week.entries else f"{_fallback(week)}")
    return (
        (
            f"Written by sizewatch for tier {comment_name(scaling.tier)}. "
            f"KEDA owns the replica field of {target}, through the HPA that "
            "it makes; sizewatch writes nothing."
        ),
        (
            f"Apply nothing beside it that sets replicas of {target}: no other ScaledObject, no HorizontalPodAutoscaler, no "
            "PodAutoscaler, no CronJob that scales, and no spec.replicas in what is deployed."
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
            "scaleTargetRef": {
                "apiVersion": WORKLOADS[scaling.workload.kind].api_version,
                "kind": scaling.workload.kind,
                "name": scaling.workload.name,
            },
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
