"""The sidecar: sizewatch in an engine's own pod, as a kustomize component, with an engine to show it on.

Owns the patch, its configuration and the example. It asks no API, so it needs no account, and it must never keep its engine
from serving: it has no readiness probe, for that would take the pod out of its Service.
"""

from __future__ import annotations

from exporters.manifests import pods, settings
from exporters.manifests.configurations import PORT, SIDECAR, TIER
from exporters.manifests.monitoring import SIDECAR as LABEL
from exporters.manifests.slots import Tree

KINDS = ("Deployment", "StatefulSet")
PORT_NAME = "sizewatch"


def patch(kind: str) -> Tree:
    """What is added to every workload of that kind which carries the label."""
    own = pods.container(settings.NODE_IMAGE, settings.NODE_RESOURCES)
    del own["readinessProbe"]
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "any"},
        "spec": {
            "template": {
                "metadata": {
                    "labels": LABEL,
                    # A DaemonSet's agent leaves it to the sidecar.
                    "annotations": {"sizewatch.io/scrape": "false"},
                },
                "spec": {
                    "containers": [
                        {
                            **own,
                            "ports": [{"name": PORT_NAME, "containerPort": PORT, "protocol": "TCP"}],
                            "livenessProbe": {
                                **own["livenessProbe"],
                                "httpGet": {"path": "/healthz", "port": PORT_NAME},
                            },
                            # The pod's own settings are the engine's; these hold whatever they are.
                            "securityContext": {
                                **pods.CONTAINER_SECURITY,
                                "runAsNonRoot": True,
                                "runAsUser": pods.USER,
                                "runAsGroup": pods.USER,
                                "seccompProfile": {"type": "RuntimeDefault"},
                            },
                            "volumeMounts": [{**pods.CONFIG_MOUNT, "name": "sizewatch-config"}],
                        }
                    ],
                    "volumes": [{**pods.config_volume("sizewatch-sidecar"), "name": "sizewatch-config"}],
                },
            }
        },
    }


def engine() -> Tree:
    """An engine to try it on; its image, model and GPUs are yours to fill in."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "vllm", "labels": {**LABEL, "app": "vllm"}},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "vllm"}},
            "template": {
                "metadata": {"labels": {"app": "vllm", "sizewatch.io/tier": TIER}},
                "spec": {
                    "automountServiceAccountToken": False,
                    "containers": [
                        {
                            "name": "vllm",
                            "image": "vllm/vllm-openai:v0.11.0",
                            "args": ["--model", "meta-llama/Llama-3.3-70B-Instruct", "--tensor-parallel-size", "4"],
                            "ports": [{"name": "http", "containerPort": 8000, "protocol": "TCP"}],
                            "resources": {"limits": {"nvidia.com/gpu": "4"}},
                        }
                    ],
                },
            },
        },
    }


CONFIG = SIDECAR
