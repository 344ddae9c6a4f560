"""Who may ask the API server what: service accounts, roles and their bindings.

Owns every permission. Role `node` reads the pods of its node and the node's own labels; role `fleet` keeps one lease. No
Secret, no ConfigMap and nothing of any workload is read or written. RBAC knows no field selector, so reading the pods of one
node takes reading pods; docs/install-kubernetes.md shows how to keep that to namespaces.
"""

from __future__ import annotations

from typing import Any

from exporters.manifests.pods import labels, metadata
from exporters.manifests.slots import NAMESPACE, Tree

LEASE = "sizewatch-fleet"

NODE_RULES: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
]
LEASE_RULES: list[dict[str, Any]] = [
    # Making one cannot be kept to a name: the name is not known to the server before.
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [LEASE],
        "verbs": ["get", "update"],
    },
]


def account(component: str) -> Tree:
    """An account whose token is mounted only where a pod asks for it."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(component),
        "automountServiceAccountToken": False,
    }


def cluster_reader(component: str) -> list[Tree]:
    """What discovery on a node takes."""
    return [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": metadata(component),
            "rules": NODE_RULES,
        },
        _binding("ClusterRole", component),
    ]


def lease_keeper(component: str) -> list[Tree]:
    """What the election of one among equal replicas takes."""
    return [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": metadata(component),
            "rules": LEASE_RULES,
        },
        _binding("Role", component),
    ]


def _binding(kind: str, component: str) -> Tree:
    name = f"sizewatch-{component}"
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": f"{kind}Binding",
        "metadata": {"name": name, "labels": labels(component)},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}],
    }
