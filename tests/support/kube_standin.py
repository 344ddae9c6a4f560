"""A Kubernetes API server for tests, on loopback: pods and nodes in their true JSON shapes, list and watch.

It keeps versions as the real one does: every write has a higher one, a watch tells what came after the one asked for, an
old one is Gone. What it does wrong on purpose is set on `Kube`: refuse, hang, forget, break off.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from loopback import LoopbackServer, Quiet, give, served

Object = dict[str, Any]


def stamp(t: float) -> str:
    return datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(
    name: str,
    *,
    node: str = "gpu-1",
    address: str | None = "127.0.0.1",
    ports: tuple[tuple[str, int], ...] = (("http", 8000),),
    namespace: str = "llm",
    uid: str = "",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    gpus: int = 1,
    ready: bool = True,
    phase: str = "Running",
    restarts: int = 0,
    made: float = 1_700_000_000.0,
    started: float | None = None,
    became_ready: float | None = None,
    **spec: Any,
) -> Object:
    """A pod with one container `engine` and a proxy beside it, as `kubectl get pod -o json` prints it."""
    began = made + 60.0 if started is None else started
    # A condition that was never another one tells when the kubelet first saw the pod.
    at = (made + 300.0 if ready else made) if became_ready is None else became_ready
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {"memory": "1Gi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-{namespace}-{name}",
            "creationTimestamp": stamp(made),
            "labels": {"app": "vllm", **(labels or {})},
            "annotations": annotations or {},
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}],
        },
        "spec": {
            "nodeName": node,
            "containers": [
                {
                    "name": "engine",
                    "image": "vllm/vllm-openai:v0.11.0",
                    "env": [{"name": "A", "value": "b"}],
                    "resources": {"limits": limits, "requests": limits},
                    "ports": [{"name": n, "containerPort": p, "protocol": "TCP"} for n, p in ports],
                },
                {"name": "proxy", "image": "envoy", "resources": {}, "ports": []},
            ],
            **spec,
        },
        "status": {
            "phase": phase,
            **({"podIP": address, "podIPs": [{"ip": address}]} if address else {}),
            "conditions": [{"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": stamp(at)}],
            "containerStatuses": [
                _state("proxy", "envoy", True, 0, made),
                _state("engine", "vllm/vllm-openai:v0.11.0", ready, restarts, began),
            ],
        },
    }


def _state(name: str, image: str, ready: bool, restarts: int, began: float) -> Object:
    running = {"running": {"startedAt": stamp(began)}}
    return {"name": name, "image": image, "imageID": "x", "ready": ready, "restartCount": restarts, "state": running}


@dataclass
class Kube:
    """What the API knows and how it behaves. Change pods by `put` and `delete` alone."""

    url: str = ""
    tokens: set[str] = field(default_factory=lambda: {"good"})
    pods: dict[tuple[str, str], Object] = field(default_factory=dict)
    nodes: dict[str, Object] = field(default_factory=dict)
    version: int = 100
    events: list[tuple[int, Object]] = field(default_factory=list)
    oldest: int = 0
    """Versions below are forgotten: who asks for one is told 410."""
    asked: list[str] = field(default_factory=list)
    refuse: int = 0
    """HTTP status of every answer, where not 0."""
    hang: bool = False
    break_off: bool = False
    list_body: bytes | None = None
    """Body of every list, where not None."""
    lock: threading.Condition = field(default_factory=threading.Condition)
    ended: bool = False

    def put(self, data: Object) -> None:
        key = (data["metadata"]["namespace"], data["metadata"]["name"])
        with self.lock:
            self.version += 1
            data["metadata"]["resourceVersion"] = str(self.version)
            kind = "MODIFIED" if key in self.pods else "ADDED"
            self.pods[key] = data
            self.events.append((self.version, {"type": kind, "object": data}))
            self.lock.notify_all()

    def tell(self, data: Object) -> None:
        """An event with an object of any shape, to everybody."""
        with self.lock:
            self.version += 1
            self.events.append((self.version, {"type": "ADDED", "object": data, "raw": True}))
            self.lock.notify_all()

    def delete(self, name: str, namespace: str = "llm") -> None:
        with self.lock:
            self.version += 1
            data = self.pods.pop((namespace, name))
            data = {**data, "metadata": {**data["metadata"], "resourceVersion": str(self.version)}}
            self.events.append((self.version, {"type": "DELETED", "object": data}))
            self.lock.notify_all()

    def node(self, name: str, **labels: str) -> None:
        self.nodes[name] = {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": {"images": []}}

    def forget(self) -> None:
        """As etcd's compaction: what came before now can no longer be followed, and watches end."""
        with self.lock:
            self.version += 1
            self.oldest = self.version
            self.events.clear()
            self.break_off = True
            self.lock.notify_all()
        time.sleep(0.05)
        self.break_off = False

    def paths(self) -> list[str]:
        return [urlsplit(one).path for one in self.asked]


class _Handler(Quiet, BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        kube = self.server.kube
        kube.asked.append(self.path)
        if kube.hang:
            with kube.lock:
                kube.lock.wait_for(lambda: kube.ended or not kube.hang, 30)
            self.close_connection = True
            return
        if kube.refuse:
            self._status(kube.refuse, "as asked for")
            return
        if self.headers.get("Authorization", "").removeprefix("Bearer ") not in kube.tokens:
            self._status(401, "Unauthorized")
            return
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path.endswith("/pods"):
            (self._watch if query.get("watch") else self._list)(parts.path, query)
        elif parts.path.startswith("/api/v1/nodes/") and (found := kube.nodes.get(parts.path.rpartition("/")[2])):
            self._json(200, found)
        else:
            self._status(404, "the server could not find the requested resource")

    def _wanted(self, path: str, query: dict[str, str], data: Object) -> bool:
        fields = query.get("fieldSelector", "").split(",")
        node = next((one.removeprefix("spec.nodeName=") for one in fields if one.startswith("spec.nodeName=")), "")
        namespace = path.split("/")[4] if "/namespaces/" in path else ""
        labels = dict(one.split("=") for one in query.get("labelSelector", "").split(",") if one)
        return (
            (not node or data["spec"].get("nodeName") == node)
            and f"status.phase!={data.get('status', {}).get('phase')}" not in fields
            and (not namespace or data["metadata"]["namespace"] == namespace)
            and labels.items() <= data["metadata"]["labels"].items()
        )

    def _list(self, path: str, query: dict[str, str]) -> None:
        kube = self.server.kube
        if kube.list_body is not None:
            give(self, kube.list_body)
            return
        with kube.lock:
            items = [data for data in kube.pods.values() if self._wanted(path, query, data)]
            meta = {"resourceVersion": str(kube.version)}
        self._json(200, {"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": items})

    def _watch(self, path: str, query: dict[str, str]) -> None:
        kube, at = self.server.kube, int(query["resourceVersion"])
        until = time.monotonic() + float(query["timeoutSeconds"])
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if at < kube.oldest:
            status = {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": "too old"}
            self._chunk({"type": "ERROR", "object": status})
        while at >= kube.oldest and time.monotonic() < until and not kube.ended and not kube.break_off:
            with kube.lock:
                kube.lock.wait_for(lambda at=at: kube.break_off or kube.ended or kube.version > at, 0.2)  # type: ignore[misc]
                fresh = [(version, event) for version, event in kube.events if version > at]
                now = kube.version
            for version, event in fresh:
                if event.get("raw") or self._wanted(path, query, event["object"]):
                    self._chunk(event)
                elif event["type"] == "MODIFIED":
                    # What no longer fits the selector is gone for a client that watches by it.
                    self._chunk({"type": "DELETED", "object": event["object"]})
                at = version
            if not fresh and not kube.break_off:
                self._chunk({"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": str(now)}}})
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, event: Object) -> None:
        text = json.dumps(event).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
        self.wfile.flush()

    def _status(self, code: int, message: str) -> None:
        self._json(code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message})

    def _json(self, code: int, data: Object | None) -> None:
        give(self, json.dumps(data).encode(), code)


class _Server(LoopbackServer):
    def __init__(self, kube: Kube, port: int = 0) -> None:
        self.kube = kube
        super().__init__(_Handler, port)


@contextmanager
def serving(kube: Kube, port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[Kube]:
    """The API at an address of its own, or at a given port."""
    server = _Server(kube, port)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    kube.url, kube.ended = server.url.replace("http", "http" if tls is None else "https"), False
    with served(server):
        try:
            yield kube
        finally:
            with kube.lock:
                kube.ended = True
                kube.lock.notify_all()


@pytest.fixture(name="kube")
def kube_of_node() -> Iterator[Kube]:
    """The API of a cluster whose node is gpu-1."""
    with serving(Kube()) as served:
        served.node("gpu-1")
        yield served
