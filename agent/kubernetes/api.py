"""Small client of the Kubernetes API: read an object or a list, and watch a list.

The official client would take 17 MiB more (kubernetes 37.0, Python 3.11, resident memory after the import).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import requests

from agent.config.peer import Peer, TlsConfig
from agent.errors import ScrapeError, SizewatchError
from agent.http_client.client import HttpClient

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder of a pod's service account: `token`, which the kubelet renews, and `ca.crt`."""

MOST_BYTES = 32 * 1024 * 1024
"""Limit of an answer. The list of a node's 250 pods has 3 to 5 MB."""

MOST_EVENT_BYTES = 2 * 1024 * 1024
"""Limit of an event of a watch. An object in etcd has at most 1.5 MB."""

_UNUSED = {"managedFields", "volumes", "volumeMounts", "env", "envFrom", "args", "command", "tolerations", "affinity"}
"""Keys that are dropped while an answer is parsed: most of a pod's memory."""


class KubernetesApiError(SizewatchError):
    """Failed request to the API. `status` is the HTTP status, None without a response."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(f"API server{text}")
        self.status = status


def endpoint_from_pod(environment: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> Peer:
    """Return the endpoint of the pod's cluster. Raise KubernetesApiError outside a cluster."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise KubernetesApiError(
            ": KUBERNETES_SERVICE_HOST is not set: this is no pod; name the API in discovery.kubernetes.api.url"
        )
    host = f"[{host}]" if ":" in host else host
    return Peer(
        url=f"https://{host}:{port}",
        bearer_token_file=str(account / "token"),
        tls=TlsConfig(ca_file=str(account / "ca.crt")),
    )


class KubernetesClient:
    """Client with one account, for one thread at a time. Token and CA are read again when they change."""

    def __init__(self, server: Peer) -> None:
        self._server = server
        self._client = HttpClient(server.model_copy(update={"max_bytes": MOST_BYTES}))

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return an object or a list. Raise KubernetesApiError."""
        with self._send(path, query, self._server.timeout_seconds) as response:
            return _parse(self._client.read(response))

    @contextmanager
    def watch(self, path: str, seconds: float, **query: str) -> Iterator[Iterator[dict[str, Any]]]:
        """Watch a list for some seconds. Yield its events as they arrive. Raise KubernetesApiError."""
        query |= {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": f"{seconds:.0f}"}
        with self._send(path, query, seconds + self._server.timeout_seconds) as response:
            yield map(parse_event, read_lines(self._client.stream(response, sys.maxsize)))

    def close(self) -> None:
        """Close the connection and its watch for ever. Any thread may call it."""
        self._client.abort()
        self._client.close()

    @contextmanager
    def _send(self, path: str, query: Mapping[str, str], seconds: float) -> Iterator[requests.Response]:
        """Send a GET request and yield its response of status 200. Raise KubernetesApiError."""
        url = self._server.url.rstrip("/") + path + (f"?{urlencode(query)}" if query else "")
        try:
            # The lines of a compressed watch would arrive late.
            headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
            with self._client.exchange("GET", url, headers, seconds=seconds) as response:
                status = response.status_code
                if status != 200:
                    hint = (
                        ": give the service account the role of docs/kubernetes-discovery.md" if status == 403 else ""
                    )
                    raise KubernetesApiError(f" answered {status}{hint}", status)
                yield response
        except ScrapeError as error:
            raise KubernetesApiError(f": {error.text}") from error


def read_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a watch, a JSON object each. Drop an incomplete last line. Raise KubernetesApiError."""
    rest = bytearray()
    for chunk in chunks:
        # A chunk may be a single byte: split only when a line has ended.
        rest += chunk
        if b"\n" in chunk:
            *lines, tail = bytes(rest).split(b"\n")
            rest = bytearray(tail)
            yield from (line for line in lines if line.strip())
        if len(rest) > MOST_EVENT_BYTES:
            raise KubernetesApiError(f": an event of more than {MOST_EVENT_BYTES} bytes")


def parse_event(line: bytes) -> dict[str, Any]:
    """Return an event of a watch, with its `object`. Raise KubernetesApiError for an ERROR event too."""
    event = _parse(line)
    if not isinstance(event.get("object"), dict):
        raise KubernetesApiError(": an event without an object")
    if event.get("type") == "ERROR":
        code = event["object"].get("code")
        status = None
        if type(code) is int and 100 <= code < 1000:
            status = code
        raise KubernetesApiError(f" ended the watch with {status or 'no status'}", status)
    return event


def _parse(body: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(body, object_hook=_without_unused)
    except (ValueError, RecursionError) as error:
        raise KubernetesApiError(": the answer is no JSON") from error
    if not isinstance(parsed, dict):
        raise KubernetesApiError(": the answer is no JSON object")
    return parsed


def _without_unused(parsed: dict[str, Any]) -> dict[str, Any]:
    for key in _UNUSED & parsed.keys():
        # A label may have the same name.
        if not isinstance(parsed[key], str):
            del parsed[key]
    return parsed
