"""What every part shares: the namespace and the plan.

Owns these two objects. The chart has no namespace of its own: its installer names one.
"""

from __future__ import annotations

from exporters.manifests import settings
from exporters.manifests.pods import NAME
from exporters.manifests.slots import NAMESPACE, Content, Tree

STANDARD = "pod-security.kubernetes.io"


def namespace() -> Tree:
    """Pods here keep to the strictest of Kubernetes' standards; what breaks it is refused when it is made."""
    levels = {f"{STANDARD}/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "labels": {NAME: "sizewatch", **levels}},
    }


def plan() -> Tree:
    """The sizing plan that every part reads."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "sizewatch-plan", "labels": {NAME: "sizewatch"}},
        "data": {"plan.yaml": Content(slot=settings.PLAN_CONTENT)},
    }
