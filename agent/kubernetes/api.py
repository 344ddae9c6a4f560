"""Small client of the Kubernetes API: read, list and watch objects of any kind.

The official client would take 17 MiB more than urllib3 (kubernetes 37.0, Python 3.11, resident memory after the
import), more than a quarter of a node's 64 MiB.
"""

from __future__ import annotations

import codecs
import json
import logging
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import urllib3
from urllib3 import BaseHTTPResponse
from urllib3.connection import HTTPConnection

from agent.errors import SizewatchError
from agent.http_client.error_text import HIDDEN, closed_by_peer, place_of, redact, translate_http_error
from agent.http_client.transport import HttpRequest, HttpTransport, tls_context
from agent.kubernetes.pods import truncate_value
from exporters.render.text import quote_external_text

_log = logging.getLogger(__name__)

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
    *HTTPConnection.default_socket_options,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesEndpoint:
    """Address and credentials files of the API. `timeout_seconds` bounds a request."""

    url: str
    token_file: str | None = None
    ca_file: str | None = None
    timeout_seconds: float = 10.0


def endpoint_from_pod(environment: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> KubernetesEndpoint:
    """Return the endpoint of the pod's cluster. Raise KubernetesApiError outside a cluster."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise KubernetesApiError(
            "KUBERNETES_SERVICE_HOST is not set: this is no pod; name the API in discovery.kubernetes.api.url"
        )
    host = f"[{host}]" if ":" in host else host
    return KubernetesEndpoint(
        url=f"https://{host}:{port}", token_file=str(account / "token"), ca_file=str(account / "ca.crt")
    )


class KubernetesClient:
    """Client with one account, for one thread at a time. `close` ends a watch from any thread.

    Token and CA are read again when they change. After a 401 the token is read again and the request repeated once.
    """

    def __init__(self, server: KubernetesEndpoint) -> None:
        self._server = server
        self._transport: HttpTransport | None = None
        self._stamps: tuple[object, ...] | None = None
        self._token = self._file_trouble = ""
        self._place = place_of(server.url)
        self._watched: BaseHTTPResponse | None = None
        self._closed = False

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return an object. Raise KubernetesApiError."""
        with closing(self._send(path, query, self._server.timeout_seconds)) as result:
            reply = self._read(result)
            if not 200 <= result.status < 300:
                raise self._refused(result, reply)
        found = _parsed(reply)
        if not isinstance(found, dict):
            raise KubernetesApiError(f"{self._place}: the answer is no JSON object")
        return found

    def read_list(self, path: str, take: Callable[[dict[str, Any]], None], **query: str) -> dict[str, Any]:
        """Give each object of a list to `take` as it arrives. Return the list without them. Raise KubernetesApiError."""
        # The reader of a long list is slower than its server.
        seconds = 3 * self._server.timeout_seconds
        with self._watching(self._send(path, query, seconds)) as result:
            if result.status != 200:
                raise self._refused(result, self._read(result))
            return read_items(self._chunks(result), take)

    def watch(self, path: str, seconds: float, **query: str) -> Iterator[dict[str, Any]]:
        """Start a watch for some seconds and return its events as they arrive. Raise KubernetesApiError.

        Read the events to their end, or call `close`. An ERROR event is raised.
        """
        query |= {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": f"{seconds:.0f}"}
        result = self._send(path, query, seconds + self._server.timeout_seconds)
        if result.status != 200:
            with closing(result):
                raise self._refused(result, self._read(result))
        return self._events(result)

    def _events(self, result: BaseHTTPResponse) -> Iterator[dict[str, Any]]:
        with self._watching(result):
            for line in self._lines(result):
                yield _event(self._plain(line))

    @contextmanager
    def _watching(self, result: BaseHTTPResponse) -> Iterator[BaseHTTPResponse]:
        """Let `close` end a response that takes long."""
        with closing(result):
            self._watched = result
            try:
                if self._closed:
                    self._shut(result)
                yield result
            finally:
                self._watched = None

    def close(self) -> None:
        """Close the connection and its watch for ever."""
        self._closed = True
        watched = self._watched
        if watched is not None:
            self._shut(watched)
        if self._transport is not None:
            self._transport.close()

    def _shut(self, result: BaseHTTPResponse) -> None:
        try:
            result.shutdown()
        except (OSError, ValueError, RuntimeError):
            # The watch has just ended.
            self._watched = None

    def _send(self, path: str, query: Mapping[str, str], seconds: float) -> BaseHTTPResponse:
        result = self._sent(path, query, seconds)
        if result.status == 401 and self._server.token_file:
            result.close()
            self._stamps = None
            result = self._sent(path, query, seconds)
        return result

    def _sent(self, path: str, query: Mapping[str, str], seconds: float) -> BaseHTTPResponse:
        transport = self._connection()
        headers = {"Accept": "application/json", "User-Agent": "sizewatch"}
        headers |= {"Authorization": f"Bearer {self._token}"} if self._token else {}
        url = self._server.url.rstrip("/") + path + (f"?{urlencode(query)}" if query else "")
        request = HttpRequest(method="GET", url=url, headers=headers)
        try:
            try:
                return transport.send_within(request, seconds)
            except urllib3.exceptions.HTTPError as error:
                # A server may close an idle connection just when it is used again.
                if not closed_by_peer(error):
                    raise
                return transport.send_within(request, seconds)
        except urllib3.exceptions.HTTPError as error:
            raise KubernetesApiError(f"API server: {translate_http_error(error, self._place, seconds).text}") from error

    def _connection(self) -> HttpTransport:
        files = [name for name in (self._server.token_file, self._server.ca_file) if name]
        try:
            stamps = tuple((s.st_mtime_ns, s.st_size, s.st_ino) for s in map(os.stat, files))
            if self._transport is None or stamps != self._stamps:
                self._load()
                self._stamps, self._file_trouble = stamps, ""
        except (OSError, KubernetesApiError) as error:
            text = str(error) if isinstance(error, KubernetesApiError) else _file_trouble(error)
            if self._transport is None:
                raise KubernetesApiError(f"service account: {text}") from None
            if text != self._file_trouble:
                # The file may be half written: it is read again with the next request.
                _log.warning('service account not reloaded, previous in use error="%s"', text)
            self._file_trouble = text
        assert self._transport is not None
        return self._transport

    def _load(self) -> None:
        file = self._server.token_file
        token = _read_token(file) if file else ""
        tls = None
        if urlsplit(self._server.url).scheme == "https":
            tls = tls_context(self._server.ca_file, verify=True, client_certificate=None)
        if self._transport is not None:
            self._transport.close()
        self._transport, self._token = HttpTransport(tls, socket_options=_ALIVE), token

    def _read(self, result: BaseHTTPResponse) -> bytes:
        try:
            body: bytes = result.read(MOST_BYTES + 1, decode_content=False)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            text = translate_http_error(error, self._place, self._server.timeout_seconds, reading=True).text
            raise KubernetesApiError(f"API server: {text}") from error
        if len(body) > MOST_BYTES:
            raise KubernetesApiError(f"{self._place} sends more than {MOST_BYTES} bytes")
        return body

    def _chunks(self, result: BaseHTTPResponse) -> Iterator[bytes]:
        number = 0
        try:
            for chunk in result.stream(65_536, decode_content=False):
                number += len(chunk)
                if number > MOST_LIST_BYTES:
                    raise KubernetesApiError(
                        f"{self._place} sends more than {MOST_LIST_BYTES} bytes; narrow discovery.kubernetes.selector"
                    )
                yield chunk
        except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
            raise KubernetesApiError(f"API server: the list broke off ({type(error).__name__})") from error

    def _lines(self, result: BaseHTTPResponse) -> Iterator[bytes]:
        """Yield the lines of a watch, a JSON object each. An incomplete last line is dropped."""
        rest = bytearray()
        try:
            for chunk in result.stream(65_536, decode_content=False):
                # A chunk may be a single byte: split only when a line has ended.
                rest += chunk
                if b"\n" in chunk:
                    *lines, tail = bytes(rest).split(b"\n")
                    rest = bytearray(tail)
                    yield from (line for line in lines if line.strip())
                if len(rest) > MOST_BYTES:
                    raise KubernetesApiError(f"{self._place}: an event of more than {MOST_BYTES} bytes")
        except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
            raise KubernetesApiError(f"API server: the watch broke off ({type(error).__name__})") from error

    def _plain(self, line: bytes) -> bytes:
        """Remove our token, which an error may repeat."""
        return line.replace(self._token.encode(), HIDDEN.encode()) if self._token else line

    def _refused(self, result: BaseHTTPResponse, body: bytes) -> KubernetesApiError:
        status = result.status
        try:
            message = str(_parsed(body).get("message", ""))
        except (KubernetesApiError, AttributeError):
            message = ""
        words = quote_external_text(redact(message, (f"Bearer {self._token}",) if self._token else ()), 300)
        hint = _HINTS.get(status, "")
        return KubernetesApiError(
            f"API server answered {status}" + "".join(f": {x}" for x in (words, hint) if x), status
        )


def _file_trouble(error: OSError) -> str:
    return f"{error.filename or 'CA'}: {error.strerror or error}"


def _read_token(file: str) -> str:
    """Return the token in a file. Raise OSError, or KubernetesApiError without any part of it."""
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        # Drop the cause, which contains the bytes of the secret.
        raise KubernetesApiError(f"{file}: is not UTF-8") from None
    if not token:
        raise KubernetesApiError(f"{file}: is empty")
    if not (token.isascii() and token.isprintable()):
        raise KubernetesApiError(f"{file}: holds characters that a header cannot carry")
    return token


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
        reported = found["object"]
        code = reported.get("code")
        text = truncate_value(str(reported.get("message", "")), 300)
        status = code if type(code) is int and 100 <= code < 1000 else None
        raise KubernetesApiError(f"the watch ended with {status or 'no status'}: {text}", status)
    return found
