"""Role `standalone`: everything in one pod with a volume for its history, for a cluster of one machine.

Owns the objects of this part.
"""

from __future__ import annotations

from exporters.manifests import access, network, pods, settings
from exporters.manifests.configurations import DATA_DIR
from exporters.manifests.fleet import service
from exporters.manifests.node import config_map, watching_container, watching_volumes
from exporters.manifests.slots import Tree

PART = "standalone"
DATA = {"name": "data", "mountPath": DATA_DIR}


def _claim() -> Tree:
    return {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": settings.STORAGE_CLASS,
            "resources": {"requests": {"storage": settings.STANDALONE_SIZE}},
        },
    }


def stateful_set() -> Tree:
    """One pod, never two: the history has one writer."""
    own = watching_container(settings.FULL_IMAGE)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": pods.metadata(PART),
        "spec": {
            "serviceName": f"sizewatch-{PART}",
            "replicas": 1,
            "selector": {"matchLabels": pods.labels(PART)},
            "template": {
                "metadata": {"labels": pods.labels(PART)},
                "spec": {
                    "serviceAccountName": f"sizewatch-{PART}",
                    "automountServiceAccountToken": True,
                    "enableServiceLinks": False,
                    "runtimeClassName": settings.RUNTIME_CLASS,
                    "nodeSelector": settings.NODE_SELECTOR,
                    "tolerations": settings.NODE_TOLERATIONS,
                    "terminationGracePeriodSeconds": 30,
                    "imagePullSecrets": settings.PULL_SECRETS,
                    "securityContext": pods.pod_security(fsGroupChangePolicy="OnRootMismatch"),
                    "containers": [
                        {
                            **own,
                            "resources": settings.FLEET_RESOURCES,
                            "volumeMounts": [*own["volumeMounts"], DATA, pods.SCRATCH_MOUNT],
                        }
                    ],
                    "volumes": [*watching_volumes(PART), pods.scratch("64Mi")],
                },
            },
            "volumeClaimTemplates": [_claim()],
        },
    }


def objects() -> dict[str, list[Tree]]:
    """By file."""
    return {
        "access": [access.account(PART), *access.cluster_reader(PART)],
        "config": [config_map(PART, settings.STANDALONE_CONFIG)],
        "network": [network.watcher(PART)],
        "service": [service(PART)],
        "statefulset": [stateful_set()],
    }
