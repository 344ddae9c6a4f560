"""HorizontalPodAutoscaler (autoscaling/v2) on the gauge as an external metric, and its Prometheus Adapter rule.

The rule names the metric by tier. A tier's name may be invalid in a label selector, and an HPA cannot escape it. The
HPA asks for ceil(value / 1) replicas (AverageValue 1), like KEDA. It has no schedule. Without the metric it keeps its
count; `sizewatch prewarm --format cronjob` moves its `minReplicas`.
"""

from __future__ import annotations

from exporters.autoscaling.manifests import (
    Manifest,
    Object,
    behavior,
    behavior_notes,
    comment_name,
    dump_yaml,
    metadata,
    now_notes,
)
from exporters.autoscaling.records import GAUGE, WORKLOADS, Scaling, label_value, object_name, recommended_query


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
    return dump_yaml({"externalRules": [rule]})


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
            f"Apply nothing beside it that sets replicas of {target}: no ScaledObject, no second HPA, no PodAutoscaler, no CronJob "
            "that scales (one that moves minReplicas of this HPA may stand beside it), and no spec.replicas in what is deployed."
        ),
        (
            "While sizewatch or Prometheus is away, the HPA keeps the count that it has: it neither grows nor shrinks. Give it a "
            "schedule with `--format cronjob` and this HPA as its autoscaler."
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
            "scaleTargetRef": {
                "apiVersion": WORKLOADS[scaling.workload.kind].api_version,
                "kind": scaling.workload.kind,
                "name": scaling.workload.name,
            },
            "minReplicas": max(scaling.minimum_warm, 1),
            "maxReplicas": scaling.maximum,
            "metrics": [metric],
            "behavior": behavior(scaling),
        },
    }
