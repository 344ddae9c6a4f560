"""Role `fleet`: a Deployment of two that both judge, of which the holder of a lease speaks; its state is the store's, so its
history is a cache that goes with the pod.

Owns the objects of this part.
"""

from __future__ import annotations

from exporters.manifests import access, network, pods, settings
from exporters.manifests.configurations import DATA_DIR, PORT
from exporters.manifests.node import config_map
from exporters.manifests.slots import Tree

PART = "fleet"


def _apart(key: str, weight: int) -> Tree:
    """Wished, not required: a cluster of one node runs both there."""
    return {
        "weight": weight,
        "podAffinityTerm": {"labelSelector": {"matchLabels": pods.labels(PART)}, "topologyKey": key},
    }


def deployment() -> Tree:
    """Two pods on two nodes."""
    mounts = [
        pods.CONFIG_MOUNT,
        {"name": "data", "mountPath": DATA_DIR},
        pods.SCRATCH_MOUNT,
        pods.secrets_mount(settings.FLEET_SECRET),
    ]
    volumes = [
        pods.config_volume(f"sizewatch-{PART}"),
        {"name": "data", "emptyDir": {"sizeLimit": settings.FLEET_CACHE}},
        pods.scratch("64Mi"),
        pods.secrets_volume(settings.FLEET_SECRET),
    ]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": pods.metadata(PART),
        "spec": {
            "replicas": settings.FLEET_REPLICAS,
            "selector": {"matchLabels": pods.labels(PART)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 1}},
            "template": {
                "metadata": {"labels": pods.labels(PART)},
                "spec": {
                    "serviceAccountName": f"sizewatch-{PART}",
                    "automountServiceAccountToken": True,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": 30,
                    "imagePullSecrets": settings.PULL_SECRETS,
                    "affinity": {
                        "podAntiAffinity": {
                            "preferredDuringSchedulingIgnoredDuringExecution": [
                                _apart("kubernetes.io/hostname", 100),
                                _apart("topology.kubernetes.io/zone", 50),
                            ]
                        }
                    },
                    "securityContext": pods.pod_security(),
                    "containers": [pods.container(settings.FULL_IMAGE, settings.FLEET_RESOURCES, volumeMounts=mounts)],
                    "volumes": volumes,
                },
            },
        },
    }


def service(part: str) -> Tree:
    """The status page and the metrics."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": pods.metadata(part),
        "spec": {
            "selector": pods.labels(part),
            "ports": [{"name": pods.PORT_NAME, "port": PORT, "targetPort": pods.PORT_NAME, "protocol": "TCP"}],
        },
    }


def budget() -> Tree:
    """A drained node takes one of them at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": pods.metadata(PART),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": pods.labels(PART)}},
    }


def objects() -> dict[str, list[Tree]]:
    """By file."""
    return {
        "access": [access.account(PART), *access.lease_keeper(PART)],
        "budget": [budget()],
        "config": [config_map(PART, settings.FLEET_CONFIG)],
        "deployment": [deployment()],
        "network": [network.fleet(PART)],
        "service": [service(PART)],
    }
