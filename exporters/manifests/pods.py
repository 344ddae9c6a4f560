"""What every pod of sizewatch has: labels, security, probes, where its configuration is mounted.

Owns these parts, so that no manifest is laxer than another by accident. Nothing here is privileged: what takes more is a
component of its own (`exporters.manifests.kustomize_files`) and a value that is off (`exporters.manifests.settings`).
"""

from __future__ import annotations

from typing import Any

from exporters.manifests import settings
from exporters.manifests.configurations import PORT
from exporters.manifests.slots import Joined, Only, Slot, Tree

USER = 10001
"""The image's; no account of any node."""

CONFIG_DIR = "/etc/sizewatch"
SECRETS_DIR = "/etc/sizewatch-secrets"
PORT_NAME = "http"

NAME = "app.kubernetes.io/name"
COMPONENT = "app.kubernetes.io/component"

CONTAINER_SECURITY: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def labels(component: str) -> dict[str, str]:
    """By which the pods of one part are found."""
    return {NAME: "sizewatch", COMPONENT: component}


def metadata(component: str, name: str = "") -> dict[str, Any]:
    """Of an object of one part; called sizewatch-PART where it has no other name."""
    return {"name": name or f"sizewatch-{component}", "labels": labels(component)}


def pod_security(**more: Tree) -> dict[str, Tree]:
    """Nobody's user with a group of its own, whom mounted Secrets are readable for, and the runtime's filter of system calls."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
        **more,
    }


def probes() -> dict[str, Tree]:
    """Alive while turns end, ready once the first has; /healthz and /readyz of agent.http_server.server."""
    return {
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": PORT_NAME, "scheme": settings.PROBE_SCHEME},
            "initialDelaySeconds": 10,
            "periodSeconds": 15,
            "timeoutSeconds": 5,
            "failureThreshold": 4,
        },
        "readinessProbe": {
            "httpGet": {"path": settings.READY_PATH, "port": PORT_NAME, "scheme": settings.PROBE_SCHEME},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
        },
    }


def field(name: str, path: str) -> dict[str, Tree]:
    """An environment variable with what the pod knows of itself."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


WHOSE = (
    field("NODE_NAME", "spec.nodeName"),
    field("POD_NAME", "metadata.name"),
    field("POD_NAMESPACE", "metadata.namespace"),
)


def image(slot: Slot) -> Joined:
    """One of the two images."""
    return Joined(parts=(slot, ":", settings.TAG))


def container(image_slot: Slot, resources: Slot, **more: Tree) -> dict[str, Tree]:
    """The one container of a pod; `more` replaces or adds keys."""
    return {
        "name": "sizewatch",
        "image": image(image_slot),
        "imagePullPolicy": settings.PULL,
        "args": ["run", "-c", f"{CONFIG_DIR}/sizewatch.yaml"],
        "env": list(WHOSE),
        "ports": [{"name": PORT_NAME, "containerPort": PORT, "protocol": "TCP"}],
        "resources": resources,
        "securityContext": dict(CONTAINER_SECURITY),
        **probes(),
        "volumeMounts": [CONFIG_MOUNT],
        **more,
    }


CONFIG_MOUNT = {"name": "config", "mountPath": CONFIG_DIR, "readOnly": True}


def config_volume(config_map: str) -> dict[str, Tree]:
    """Configuration and plan in one folder, so that a changed ConfigMap is seen without a new pod (a subPath never is)."""
    maps = [(config_map, "sizewatch.yaml"), ("sizewatch-plan", "plan.yaml")]
    sources = [{"configMap": {"name": name, "items": [{"key": key, "path": key}]}} for name, key in maps]
    return {"name": "config", "projected": {"defaultMode": 0o444, "sources": sources}}


def secrets_volume(slot: Slot) -> Only:
    """Tokens and certificates, for the container's user alone, where a Secret is named."""
    return Only(slot=slot, tree={"name": "secrets", "secret": {"secretName": slot, "defaultMode": 0o440}})


def secrets_mount(slot: Slot) -> Only:
    """The same, inside."""
    return Only(slot=slot, tree={"name": "secrets", "mountPath": SECRETS_DIR, "readOnly": True})


def scratch(size: str) -> dict[str, Tree]:
    """/tmp, where the root file system is read-only."""
    return {"name": "tmp", "emptyDir": {"sizeLimit": size}}


SCRATCH_MOUNT = {"name": "tmp", "mountPath": "/tmp"}
