"""Small client of the Kubernetes API: read, list and watch objects of any kind.

The official client would take 17 MiB more (kubernetes 37.0, Python 3.11, resident memory after the import).
"""

from __future__ import annotations

import codecs
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import requests

from agent.errors import ScrapeError, SizewatchError
from agent.http_client.client import HttpClient
from agent.http_client.options import TargetOptions

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder of a pod's service account: `token`, which the kubelet renews, and `ca.crt`."""

MOST_BYTES = 2 * 1024 * 1024
"""Limit of an object, in a response, a list or a line of a watch. An object in etcd has at most 1.5 MB."""

MOST_LIST_BYTES = 256 * 1024 * 1024
"""Limit of a list, of which one item at a time is in memory. A node's 250 pods are 3 to 5 MB."""

_HEAVY = frozenset(
    (
        *("managedFields", "volumes", "volumeMounts", "volumeDevices", "env", "envFrom", "args", "command", "images"),
        *("tolerations", "affinity", "topologySpreadConstraints", "securityContext", "lifecycle"),
        *("livenessProbe", "startupProbe", "readinessProbe"),
    )
)
"""Unused keys, dropped while a response is parsed: most of a pod's memory."""

_ALIVE = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""Socket options that end a watch a minute after the server has vanished."""

_ITEMS = re.compile(r'"items"\s*:\s*(\[|null)')

_HINTS = {
    401: "the service account's token is not valid",
    403: "give the service account the role of docs/kubernetes-discovery.md",
    429: "it takes no more at the moment",
}


class KubernetesApiError(SizewatchError):
    """Failed request to the API. `status` is the HTTP status, None without a response."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.status = status

    @property
    def is_expired(self) -> bool:
        """Return whether the resource version is too old and a new list is needed."""
        return self.status == 410

    @property
    def missing(self) -> bool:
        return self.status == 404


def endpoint_from_pod(environment: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> TargetOptions:
    """Return the endpoint of the pod's cluster. Raise KubernetesApiError outside a cluster."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise KubernetesApiError(
            "KUBERNETES_SERVICE_HOST is not set: this is no pod; name the API in discovery.kubernetes.api.url"
        )
    host = f"[{host}]" if ":" in host else host
    return TargetOptions(
        url=f"https://{host}:{port}", bearer_token_file=str(account / "token"), ca_file=str(account / "ca.crt")
    )


class KubernetesClient:
    """Client with one account, for one thread at a time. `close` ends a watch from any thread.

    Token and CA are read again when they change. After a 401 they are read again, and the request is repeated once.
    """

    def __init__(self, server: TargetOptions) -> None:
        self._server = server
        self._client = HttpClient(replace(server, max_bytes=MOST_BYTES), "answer", socket_options=_ALIVE)

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return an object. Raise KubernetesApiError."""
        with self._send(path, query, self._server.timeout_seconds) as response:
            answer = _parsed(self._client.read(response))
        if not isinstance(answer, dict):
            raise KubernetesApiError(f"{self._client.place}: the answer is no JSON object")
        return answer

    def read_list(self, path: str, take: Callable[[dict[str, Any]], None], **query: str) -> dict[str, Any]:
        """Give each object of a list to `take` as it arrives. Return the list without them. Raise KubernetesApiError."""
        # The reader of a long list is slower than its server.
        with self._send(path, query, 3 * self._server.timeout_seconds) as response:
            return read_items(self._client.stream(response, MOST_LIST_BYTES), take)

    def watch(self, path: str, seconds: float, **query: str) -> Iterator[dict[str, Any]]:
        """Start a watch for some seconds and return its events as they arrive. Raise KubernetesApiError.

        Read the events to their end, or call `close`. An ERROR event is raised.
        """
        query |= {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": f"{seconds:.0f}"}
        exchange = ExitStack()
        response = exchange.enter_context(self._send(path, query, seconds + self._server.timeout_seconds))
        return self._events(exchange, response)

    def close(self) -> None:
        """Close the connection and its watch for ever."""
        self._client.abort()
        self._client.close()

    def _events(self, exchange: ExitStack, response: requests.Response) -> Iterator[dict[str, Any]]:
        with exchange:
            for line in read_lines(self._client.stream(response, sys.maxsize)):
                yield _event(line)

    @contextmanager
    def _send(self, path: str, query: Mapping[str, str], seconds: float) -> Iterator[requests.Response]:
        """Send a GET request and yield its response of status 200. Raise KubernetesApiError."""
        client = self._client
        url = self._server.url.rstrip("/") + path + (f"?{urlencode(query)}" if query else "")
        for is_repeated in (False, True):
            try:
                client.load_if_changed()
                # A compressed list could not be read item by item.
                request = client.prepare("GET", url, {"Accept": "application/json", "Accept-Encoding": "identity"})
                with client.send(request, seconds) as response:
                    status = response.status_code
                    if status == 200:
                        yield response
                        return
            except ScrapeError as error:
                raise KubernetesApiError(f"API server: {error.text}") from error
            if status != 401 or is_repeated or not self._server.bearer_token_file:
                hint = f": {_HINTS[status]}" if status in _HINTS else ""
                raise KubernetesApiError(f"API server answered {status}{hint}", status)
            client.forget_files()


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
        if len(rest) > MOST_BYTES:
            raise KubernetesApiError(f"API server: an event of more than {MOST_BYTES} bytes")


def _lighter(found: dict[str, Any]) -> dict[str, Any]:
    for key in _HEAVY & found.keys():
        # A label may have the same name.
        if not isinstance(found[key], str):
            del found[key]
    return found


def read_items(chunks: Iterable[bytes], take: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Give each item of a list object to `take` as it arrives. Return the object without items."""
    parse = json.JSONDecoder(object_hook=_lighter).raw_decode
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    head, text, wanted, ended = "", "", 0, False
    for chunk in chain(chunks, (b"",)):
        text += decode(chunk)
        if not head and (begin := _ITEMS.search(text, max(0, len(text) - len(chunk) - 64))):
            head, text, ended = text[: begin.end()], text[begin.end() :], begin[1] == "null"
        while head and not ended and len(text := text.lstrip(" \t\r\n,")) > (wanted if chunk else 0):
            if ended := text.startswith("]"):
                break
            try:
                item, end = parse(text)
            except (ValueError, RecursionError):
                # Cut off so far. Wait for as much again: a parse of every chunk would be quadratic.
                wanted = min(2 * len(text), MOST_BYTES)
                break
            text, wanted = text[end:], 0
            if isinstance(item, dict):
                take(item)
        if len(text) > MOST_BYTES:
            raise KubernetesApiError(f"API server: an object of more than {MOST_BYTES} bytes, or no list")
    if not ended:
        raise KubernetesApiError("API server: the answer is no list, or is cut off")
    found: dict[str, Any] = _parsed((head + text).encode())
    return found


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body, object_hook=_lighter)
    except (ValueError, RecursionError) as error:
        raise KubernetesApiError("API server: the answer is no JSON") from error


def _event(line: bytes) -> dict[str, Any]:
    found = _parsed(line)
    if not isinstance(found, dict) or not isinstance(found.get("object"), dict):
        raise KubernetesApiError("API server: an event without an object")
    if found.get("type") == "ERROR":
        code = found["object"].get("code")
        status = code if type(code) is int and 100 <= code < 1000 else None
        raise KubernetesApiError(f"the watch ended with {status or 'no status'}", status)
    return found
