"""Role `node`: the DaemonSet on GPU nodes, with all that belongs to it.

Owns the objects of this part, and the pieces that a component adds to it. It reserves no GPU: NVML is seen through NVIDIA's
container runtime, which the two variables ask for.
"""

from __future__ import annotations

from exporters.manifests import access, network, pods, settings
from exporters.manifests.slots import Content, Only, Slot, Tree

PART = "node"
PRIORITY = "sizewatch-node"

ARENAS: Tree = {"name": "MALLOC_ARENA_MAX", "value": "2"}
"""glibc's arenas of a dozen threads cost 1 to 2 MiB that nobody uses."""

NVML: tuple[Tree, ...] = (
    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
    {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
)

SOCKET_FOLDER = "/var/lib/kubelet/pod-resources"
SOCKET_VOLUME: Tree = {"name": "pod-resources", "hostPath": {"path": SOCKET_FOLDER, "type": "Directory"}}
SOCKET_MOUNT: Tree = {"name": "pod-resources", "mountPath": SOCKET_FOLDER, "readOnly": True}
SOCKET_USER: Tree = {"runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 0}
"""The kubelet's socket and its folder belong to user 0; without capabilities user 0 is let in as the owner, and nowhere else."""


def config_map(part: str, slot: Slot) -> Tree:
    """The configuration of one part."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": pods.metadata(part),
        "data": {"sizewatch.yaml": Content(slot=slot)},
    }


def priority() -> Tree:
    """Above nothing's default 0, so that it is not evicted before the engines; no pod is ever moved to make room for it."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": pods.metadata(PART, PRIORITY),
        "value": 100000,
        "preemptionPolicy": "Never",
        "globalDefault": False,
        "description": "Watchers of GPU nodes: kept under pressure, and preempting nobody.",
    }


def watching_container(image: Slot) -> Tree:
    """The container that reads engines and GPUs of its node."""
    return pods.container(
        image,
        settings.NODE_RESOURCES,
        env=[*pods.WHOSE, ARENAS, *NVML],
        volumeMounts=[
            pods.CONFIG_MOUNT,
            pods.secrets_mount(settings.NODE_SECRET),
            Only(slot=settings.POD_RESOURCES, tree=SOCKET_MOUNT),
        ],
        securityContext={
            **pods.CONTAINER_SECURITY,
            **{key: Only(slot=settings.POD_RESOURCES, tree=value) for key, value in SOCKET_USER.items()},
        },
    )


def watching_volumes(part: str) -> list[Tree]:
    """What that container mounts."""
    return [
        pods.config_volume(f"sizewatch-{part}"),
        pods.secrets_volume(settings.NODE_SECRET),
        Only(slot=settings.POD_RESOURCES, tree=SOCKET_VOLUME),
    ]


def daemon_set() -> Tree:
    """One agent a GPU node, a tenth of them renewed at a time."""
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": pods.metadata(PART),
        "spec": {
            "selector": {"matchLabels": pods.labels(PART)},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {
                "metadata": {
                    "labels": pods.labels(PART),
                    "annotations": {"kubectl.kubernetes.io/default-container": "sizewatch"},
                },
                "spec": {
                    "serviceAccountName": f"sizewatch-{PART}",
                    "automountServiceAccountToken": True,
                    "enableServiceLinks": False,
                    "priorityClassName": Only(slot=settings.PRIORITY_ON, tree=PRIORITY),
                    "runtimeClassName": settings.RUNTIME_CLASS,
                    "nodeSelector": settings.NODE_SELECTOR,
                    "tolerations": settings.NODE_TOLERATIONS,
                    "terminationGracePeriodSeconds": 30,
                    "imagePullSecrets": settings.PULL_SECRETS,
                    "securityContext": pods.pod_security(),
                    "containers": [watching_container(settings.NODE_IMAGE)],
                    "volumes": watching_volumes(PART),
                },
            },
        },
    }


def objects() -> dict[str, list[Tree]]:
    """By file."""
    return {
        "access": [access.account(PART), *access.cluster_reader(PART)],
        "config": [config_map(PART, settings.NODE_CONFIG)],
        "daemonset": [daemon_set()],
        "network": [network.watcher(PART)],
        "priority": [priority()],
    }
