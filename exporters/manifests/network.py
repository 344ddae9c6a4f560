"""Network policies: every pod of sizewatch is shut, then what it needs is opened.

Owns who may reach whom on which port. A policy opens nothing on the other side: where engines are shut as well, they must let
the agent in (docs/install-kubernetes.md).
"""

from __future__ import annotations

from exporters.manifests import settings
from exporters.manifests.pods import NAME, PORT_NAME, labels, metadata
from exporters.manifests.slots import Slot, Tree

NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""The label that the API server puts on every namespace."""

_DNS: Tree = {
    "to": [
        {
            "namespaceSelector": {"matchLabels": {NAMESPACE_NAME: "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
        }
    ],
    "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
}
_PROMETHEUS: Tree = {"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: settings.SCRAPERS}}}
_SCRAPED: Tree = {"from": [_PROMETHEUS], "ports": [{"port": PORT_NAME, "protocol": "TCP"}]}
_API: Tree = {"ports": settings.API_PORTS}
_STORE: Tree = {"to": [_PROMETHEUS], "ports": settings.STORE_PORTS}


def _pods_anywhere(ports: Slot) -> Tree:
    return {"to": [{"namespaceSelector": {}}], "ports": ports}


_ENGINES = _pods_anywhere(settings.ENGINE_PORTS)
_EXPORTERS = _pods_anywhere(settings.EXPORTER_PORTS)


def shut() -> Tree:
    """Nothing in and nothing out, for every pod of sizewatch in its namespace."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "sizewatch-shut", "labels": {NAME: "sizewatch"}},
        "spec": {"podSelector": {"matchLabels": {NAME: "sizewatch"}}, "policyTypes": ["Ingress", "Egress"]},
    }


def _opened(component: str, egress: list[Tree]) -> Tree:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(component),
        "spec": {
            "podSelector": {"matchLabels": labels(component)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [_SCRAPED],
            "egress": egress,
        },
    }


def watcher(component: str) -> Tree:
    """For who scrapes engines and GPU exporters and asks for pods."""
    return _opened(component, [_DNS, _API, _ENGINES, _EXPORTERS])


def fleet(component: str) -> Tree:
    """For who asks the store and keeps a lease."""
    return _opened(component, [_DNS, _API, _STORE])
