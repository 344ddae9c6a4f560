"""HTTP client of one host: a `requests.Session` with a deadline, a size limit and credentials from followed files.

A timeout of requests is for each read of a socket, so a server that sends one byte a second is never late. Here one
thread of the process shuts down the socket of each exchange at its deadline.
"""

from __future__ import annotations

import heapq
import itertools
import os
import socket
import stat
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.cookies import RequestsCookieJar
from urllib3.connection import HTTPConnection, HTTPSConnection

from agent.errors import ScrapeError, ScrapeFailure
from agent.http_client.errors import HttpError, is_closed_by_peer, place_of, transport_error
from agent.http_client.options import Peer, authorization, header_secret, hidden_in_bodies, load_tls

PART_BYTES = 65_536
_GZIP = 16 + zlib.MAX_WBITS


class _Deadlines:
    """Thread that ends the exchanges of all clients at their deadlines."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, HttpClient]] = []
        self._thread: threading.Thread | None = None

    def add(self, deadline: float, number: int, client: HttpClient) -> None:
        """End an exchange that runs at `deadline` (of time.monotonic)."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="deadlines", daemon=True)
                self._thread.start()
            heapq.heappush(self._waiting, (deadline, number, client))
            if self._waiting[0][1] == number:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._forget_ended()
                while not self._waiting or self._waiting[0][0] > time.monotonic():
                    self._changed.wait(self._waiting[0][0] - time.monotonic() if self._waiting else None)
                    self._forget_ended()
                _, number, client = heapq.heappop(self._waiting)
            client.expire(number)

    def _forget_ended(self) -> None:
        """Drop exchanges that have ended, so that the scrapes of a cycle wake this thread once and not each."""
        while self._waiting and not self._waiting[0][2].is_running(self._waiting[0][1]):
            heapq.heappop(self._waiting)


_DEADLINES = _Deadlines()
_NUMBERS = itertools.count(1)
"""Numbers of exchanges."""


class _SocketConnection(HTTPConnection):
    """Connection that keeps its socket: http.client forgets the socket of a response that ends the connection."""

    socket: socket.socket | None = None

    def connect(self) -> None:
        super().connect()
        self.socket = self.sock


class _TlsConnection(_SocketConnection, HTTPSConnection):
    pass


class _Adapter(HTTPAdapter):
    """Adapter with one kept connection and its own TLS context. requests would add the bundle of certifi."""

    def __init__(self, pool_options: Mapping[str, Any]) -> None:
        self._pool_options = dict(pool_options)
        self.connection: _SocketConnection | None = None
        super().__init__(pool_connections=1, pool_maxsize=1)

    def build_connection_pool_key_attributes(
        self, request: requests.PreparedRequest, verify: Any, cert: Any = None
    ) -> tuple[Any, Any]:
        parts = urlsplit(str(request.url))
        return {"scheme": parts.scheme, "host": parts.hostname, "port": parts.port}, self._pool_options

    def get_connection_with_tls_context(self, *args: Any, **options: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*args, **options)
        pool.ConnectionCls = self._new_connection
        return pool

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        """Leave the connection alone: the TLS context has certificates and trust."""

    def _new_connection(self, **options: Any) -> _SocketConnection:
        kind = _TlsConnection if "ssl_context" in options else _SocketConnection
        self.connection = kind(**options)
        return self.connection

    def shut_down(self) -> None:
        """End a read or write of the connection at once. Any thread may call it."""
        sock = self.connection.socket if self.connection is not None else None
        if sock is not None:
            with suppress(OSError):
                # Not that of SSLSocket, which takes the TLS state away from a running read.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)


class _NoCookies(RequestsCookieJar):
    def extract_cookies(self, response: Any, request: Any) -> None:
        """Store nothing."""


class _Session(requests.Session):
    """Session that follows no redirect, stores no cookie, and uses neither proxies nor .netrc of the environment."""

    def __init__(self, adapter: _Adapter) -> None:
        super().__init__()
        self.trust_env = False
        self.cookies = _NoCookies()
        self.mount("http://", adapter)
        self.mount("https://", adapter)

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return None. requests reads the whole body of a redirect, even if it does not follow it."""


class HttpClient:
    """Client with one kept connection, for one thread at a time. Every method raises HttpError or ScrapeError.

    `what` names a response in messages. `header_files` are pairs of a further header and the file with its value.
    Changed files are read again; if one is unusable, the contents before stay in use.
    """

    def __init__(
        self,
        peer: Peer,
        what: str = "answer",
        header_files: tuple[tuple[str, str], ...] = (),
        socket_options: Sequence[tuple[int, int, int]] | None = None,
    ) -> None:
        self.peer = peer
        self.place = place_of(peer.url)
        self._what = what
        self._header_files = header_files
        self._files = (
            *peer.files,
            *((f"header {name}", path, ScrapeFailure.AUTH) for name, path in header_files),
        )
        self._pool_options: dict[str, Any] = {} if socket_options is None else {"socket_options": socket_options}
        self._loaded: tuple[tuple[int, int, int], ...] | None = None
        self._credentials: dict[str, str] = {}
        self._secrets: tuple[bytes, ...] = ()
        self._session: _Session | None = None
        self._adapter = _Adapter({})
        self._lock = threading.Lock()
        self._kept = self._expired = self._aborted = False
        self._running = 0

    def load_if_changed(self) -> bool:
        """Read the files at the first call and after a change. Return whether requests must be prepared again."""
        try:
            stamps = tuple(_stamp(*each) for each in self._files)
            if self._loaded == stamps:
                return False
            self._load()
        except ScrapeError:
            if self._loaded is None:
                raise
            return False
        self._loaded = stamps
        return True

    def prepare(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> requests.PreparedRequest:
        """Return a request with the credentials. It may be sent many times."""
        headers = {"User-Agent": "sizewatch", "Accept-Encoding": "gzip", **headers, **self._credentials}
        return requests.Request(method, url, headers=headers, data=body).prepare()

    @contextmanager
    def send(self, request: requests.PreparedRequest, seconds: float | None = None) -> Iterator[requests.Response]:
        """Send a prepared request. Yield its response, whose body `read` or `stream` returns in the same block.

        The exchange ends `seconds` from now, by default after the timeout of the peer. Not bounded: the name lookup,
        and each further address of a name with several.
        """
        seconds = max(self.peer.timeout_seconds if seconds is None else seconds, 0.001)
        response = None
        self._begin(seconds)
        try:
            response = self._response(request, seconds)
            yield response
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            status = response.status_code if response is not None else None
            raise transport_error(
                error, self.place, seconds, self._what, expired=self._expired, status=status
            ) from error
        finally:
            self._end()
            if response is not None and not self._kept:
                response.close()

    def read(self, response: requests.Response) -> bytes:
        """Return the complete, decompressed body without the secrets that were sent.

        The connection can then serve another request.
        """
        most = self.peer.max_bytes
        if (response.raw.length_remaining or 0) > most:
            raise self._too_large()
        packed: bytes = b"".join(self.stream(response, most))
        self._kept = True
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        if encoding in ("", "identity"):
            return self.without_secrets(packed)
        if encoding not in ("gzip", "x-gzip"):
            text = " sent a Content-Encoding that was not asked for; only gzip is"
            raise HttpError(ScrapeFailure.CONTENT_TYPE, self.place, text, response.status_code)
        # Not urllib3's decoder: it takes a truncated stream for a complete one.
        unzip = zlib.decompressobj(_GZIP)
        try:
            body = unzip.decompress(packed, most + 1)
        except zlib.error as error:
            raise self.cut_off("its gzip does not unpack") from error
        if len(body) > most:
            raise self._too_large()
        if not unzip.eof or unzip.unused_data:
            raise self.cut_off(f"its gzip stream does not end with the {self._what}")
        return self.without_secrets(body)

    def stream(self, response: requests.Response, most: int) -> Iterator[bytes]:
        """Yield the body as it arrives, not decompressed, of at most so many bytes."""
        framing = response.headers.get("Transfer-Encoding", "identity").lower()
        length = response.headers.get("Content-Length", "0")
        # With another framing http.client reads until the connection ends, wherever that is.
        if framing not in ("identity", "chunked") or not (framing == "chunked" or length.isdecimal()):
            raise self.cut_off("its Transfer-Encoding or Content-Length is not known")
        size = 0
        try:
            while part := response.raw.read1(PART_BYTES, decode_content=False):
                size += len(part)
                if size > most:
                    raise self._too_large()
                yield part
        except ValueError as error:
            # http.client accepts any integer as the length of a chunk.
            raise self.cut_off("a chunk of it has a length that is none") from error
        if self._expired or self._aborted:
            # The end of a body without a length is then that of the socket.
            raise ConnectionAbortedError
        if response.raw.length_remaining:
            raise self.cut_off(f"{size} of the announced bytes arrived")

    def without_secrets(self, body: bytes) -> bytes:
        """Return a part of a body without the secrets that were sent. `read` has done it."""
        for secret in self._secrets:
            body = body.replace(secret, b"[secret]")
        return body

    def cut_off(self, text: str) -> HttpError:
        """Return the error for an incomplete body."""
        return HttpError(ScrapeFailure.CUT_OFF, self.place, f": {text}")

    def is_running(self, number: int) -> bool:
        """Return whether an exchange has not ended."""
        return self._running == number

    def expire(self, number: int) -> None:
        """Shut down the socket of an exchange, unless it has ended."""
        with self._lock:
            if self._running == number:
                self._expired = True
                self._adapter.shut_down()

    def abort(self) -> None:
        """End the present exchange at once, and refuse all later ones. Any thread may call it."""
        with self._lock:
            self._aborted = True
            if self._running:
                self._adapter.shut_down()

    def close(self) -> None:
        """Close the connection. A later request opens a new one."""
        if self._session is not None:
            self._session.close()
        self._kept = False

    def _load(self) -> None:
        tls = load_tls(self.peer)
        headers = {name: header_secret(f"header {name}", path) for name, path in self._header_files}
        self._credentials = headers | authorization(self.peer)
        self._secrets = hidden_in_bodies(self._credentials, self.peer.url)
        if tls is not None:
            self._pool_options |= {
                "ssl_context": tls,
                "server_hostname": self.peer.tls.server_name if self.peer.tls else None,
            }
        self.close()
        self._adapter = _Adapter(self._pool_options)
        self._session = _Session(self._adapter)

    def _begin(self, seconds: float) -> None:
        with self._lock:
            if self._aborted:
                raise HttpError(ScrapeFailure.CONNECT, self.place, ": is not asked, because this process stops")
            self._running, self._expired = next(_NUMBERS), False
        _DEADLINES.add(time.monotonic() + seconds, self._running, self)

    def _end(self) -> None:
        with self._lock:
            self._running = 0

    def _response(self, request: requests.PreparedRequest, seconds: float) -> requests.Response:
        assert self._session is not None, "load_if_changed comes first"
        end = time.monotonic() + seconds
        kept, self._kept = self._kept, False
        while True:
            timeout: Any = urllib3.Timeout(total=max(end - time.monotonic(), 0.001))
            try:
                return self._session.send(request, stream=True, allow_redirects=False, timeout=timeout)
            except requests.RequestException as error:
                # A server may close an idle connection just when it is used again; retry on a new one.
                if not kept or self._expired or self._aborted or not is_closed_by_peer(error):
                    raise
                kept = False

    def _too_large(self) -> HttpError:
        text = f" sends more than {self.peer.max_bytes} bytes; if that is right, raise max_bytes"
        return HttpError(ScrapeFailure.TOO_LARGE, self.place, text)


def _stamp(field: str, path: str, kind: ScrapeFailure) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise ScrapeError(kind, f"{field} {path}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        # Reading a pipe could block without end.
        raise ScrapeError(kind, f"{field} {path}: is no file")
    return status.st_mtime_ns, status.st_size, status.st_ino
