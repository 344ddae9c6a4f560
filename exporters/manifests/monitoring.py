"""How Prometheus finds the agents, as objects of the Prometheus operator.

Owns the monitors. Their interval is that at which agents scrape their engines: nothing is lost then. Alerts and recording
rules are `exporters.prometheus_rules.alerts`'.
"""

from __future__ import annotations

from dataclasses import replace

from exporters.manifests import fleet, node, pods, settings, standalone
from exporters.manifests.slots import MERGED, Tree

INTERVAL = "15s"
SIDECAR = {"sizewatch.io/sidecar": "enabled"}
"""What a pod is labelled with whose engine has a sidecar of sizewatch."""

_SCHEME = replace(settings.PROBE_SCHEME, default="http", filter="lower")
_SCRAPE: Tree = {"path": "/metrics", "scheme": _SCHEME, "interval": INTERVAL, "scrapeTimeout": "10s"}
NODE_NAME: Tree = {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "instance"}
"""`instance` is the node: an agent that gets another address is the same agent, and people know nodes by name."""


def _of(part: str, kind: str, spec: Tree) -> Tree:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": kind,
        "metadata": {**pods.metadata(part), "labels": {**pods.labels(part), MERGED: settings.MONITOR_LABELS}},
        "spec": spec,
    }


def pod_monitor() -> Tree:
    """The agents on nodes."""
    endpoint = {"port": pods.PORT_NAME, **_SCRAPE, "relabelings": [NODE_NAME]}
    spec = {"selector": {"matchLabels": pods.labels(node.PART)}, "podMetricsEndpoints": [endpoint]}
    return _of(node.PART, "PodMonitor", spec)


def service_monitor(part: str) -> Tree:
    """What stands behind a Service."""
    endpoint = {"port": pods.PORT_NAME, **_SCRAPE}
    spec = {"selector": {"matchLabels": pods.labels(part)}, "endpoints": [endpoint]}
    return _of(part, "ServiceMonitor", spec)


def sidecar_monitor() -> Tree:
    """Sidecars in pods of any namespace; the operator takes no port of a pod but by name."""
    endpoint = {"port": "sizewatch", **_SCRAPE, "scheme": "http"}
    return _of(
        "sidecar",
        "PodMonitor",
        {
            "namespaceSelector": {"any": True},
            "selector": {"matchLabels": SIDECAR},
            "podMetricsEndpoints": [endpoint],
        },
    )


OBJECTS = (
    (settings.NODE_ON, pod_monitor()),
    (settings.FLEET_ON, service_monitor(fleet.PART)),
    (settings.STANDALONE_ON, service_monitor(standalone.PART)),
)
"""With the switch of the part that they find."""
