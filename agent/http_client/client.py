"""HTTP client of one host: an adapter of requests with a deadline, a size limit and credentials from followed files.

Each read of a socket has what is left of the time of its exchange, so a server that sends one byte a second is late.
"""

from __future__ import annotations

import gzip
import io
import logging
import os
import socket
import stat
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection

from agent.config.peer import Peer
from agent.errors import ScrapeError, ScrapeFailure
from agent.http_client.credentials import authorization, header_secret, load_tls
from agent.http_client.errors import HttpError, place_of, transport_error

PART_BYTES = 65_536

_log = logging.getLogger(__name__)


class _Exchange:
    """Deadline (of time.monotonic) and socket of the present exchange. After an abort there is none."""

    deadline = 0.0
    is_aborted = False
    socket: socket.socket | None = None

    def seconds_left(self) -> float:
        """Return the seconds to the deadline, more than 0. Raise TimeoutError, or ConnectionAbortedError."""
        if self.is_aborted:
            raise ConnectionAbortedError
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def abort(self) -> None:
        self.is_aborted = True
        if self.socket is not None:
            with suppress(OSError):
                # Not that of SSLSocket, which takes the TLS state away from a running read.
                socket.socket.shutdown(self.socket, socket.SHUT_RDWR)


class _Adapter(HTTPAdapter):
    """Adapter with one kept connection, without a session: no redirects, cookies, .netrc or proxies of the environment."""

    def __init__(self, exchange: _Exchange, **pool_options: Any) -> None:
        self._exchange, self._pool_options = exchange, pool_options
        super().__init__(pool_connections=1, pool_maxsize=1)

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **options: Any) -> None:
        super().init_poolmanager(connections, maxsize, block, **options, **self._pool_options)

    def get_connection_with_tls_context(self, *args: Any, **options: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*args, **options)
        connection = _TimedTlsConnection if pool.scheme == "https" else _TimedConnection
        pool.ConnectionCls = partial(connection, self._exchange)
        return pool

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        """Leave the connection alone: its TLS context has the certificates. requests would add those of certifi."""


class _TimedConnection(HTTPConnection):
    def __init__(self, exchange: _Exchange, **options: Any) -> None:
        super().__init__(**options)
        self._exchange = exchange
        self.response_class = self._respond  # type: ignore[assignment]

    def connect(self) -> None:
        super().connect()
        self._exchange.socket = self.sock
        self._exchange.seconds_left()

    def _respond(self, sock: socket.socket, *args: Any, **options: Any) -> Any:
        response: Any = HTTPConnection.response_class(sock, *args, **options)
        response.fp = io.BufferedReader(_Reader(self._exchange, sock, response.fp.detach()), PART_BYTES)
        return response


class _TimedTlsConnection(_TimedConnection, HTTPSConnection):
    pass


class _Reader(io.RawIOBase):
    """Reader of a socket until the deadline of the exchange."""

    def __init__(self, exchange: _Exchange, sock: socket.socket, raw: io.RawIOBase) -> None:
        self._exchange, self._socket, self._raw = exchange, sock, raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(self._exchange.seconds_left())
        size = self._raw.readinto(buffer)
        if not size:
            # An abort ends the stream, and so may look like the end of a body without a length.
            self._exchange.seconds_left()
        return size

    def close(self) -> None:
        self._raw.close()
        super().close()


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
        self._socket_options = socket_options
        self._files = (*peer.files, *((f"header {name}", path, ScrapeFailure.AUTH) for name, path in header_files))
        self._loaded: tuple[tuple[int, int, int], ...] | None = None
        self._credentials: dict[str, str] = {}
        self._exchange = _Exchange()
        self._adapter = _Adapter(self._exchange)
        self._is_kept = False
        self._trouble = ""

    def load_if_changed(self) -> bool:
        """Read the files at the first call and after a change, and return whether they were read."""
        try:
            stamps = tuple(_stamp(*file) for file in self._files)
            if self._loaded == stamps:
                return False
            self._load()
        except ScrapeError as error:
            if self._loaded is None:
                raise
            if error.text != self._trouble:
                _log.warning('unusable file, its contents before stay in use error="%s"', error.text)
                self._trouble = error.text
            return False
        self._loaded, self._trouble = stamps, ""
        return True

    @contextmanager
    def exchange(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        seconds: float | None = None,
    ) -> Iterator[requests.Response]:
        """Send a request with the credentials of now. Yield its response, to `read` or `stream` in the same block.

        The exchange ends `seconds` from now, by default after the timeout of the peer. Not bounded: the name lookup,
        and each further address of a name with several.
        """
        if self._exchange.is_aborted:
            raise HttpError(ScrapeFailure.CONNECT, self.place, ": is not asked, because this process stops")
        self.load_if_changed()
        headers = {"User-Agent": "sizewatch", "Accept-Encoding": "gzip", **headers, **self._credentials}
        request = requests.Request(method, url, headers=headers, data=body).prepare()
        seconds = max(self.peer.timeout_seconds if seconds is None else seconds, 0.001)
        response = None
        try:
            response = self._response(request, seconds)
            yield response
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            status = response.status_code if response is not None else None
            raise transport_error(error, self.place, seconds, self._what, status) from error
        finally:
            if response is not None and not self._is_kept:
                response.close()

    def read(self, response: requests.Response) -> bytes:
        """Return the complete, decompressed body. The connection can then serve another request."""
        most = self.peer.max_bytes
        body = b"".join(self.stream(response, most))
        self._is_kept = True
        if response.headers.get("Content-Encoding", "").lower() != "gzip":
            return body
        try:
            # Not urllib3's decoder: it takes a truncated stream for a complete one.
            body = gzip.GzipFile(fileobj=io.BytesIO(body)).read(most + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise self.cut_off("its gzip does not unpack") from error
        if len(body) > most:
            raise self._too_large()
        return body

    def stream(self, response: requests.Response, most: int) -> Iterator[bytes]:
        """Yield the body as it arrives, not decompressed, of at most so many bytes."""
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
        if response.raw.length_remaining:
            raise self.cut_off(f"{size} of the announced bytes arrived")

    def cut_off(self, text: str) -> HttpError:
        """Return the error for an incomplete body."""
        return HttpError(ScrapeFailure.CUT_OFF, self.place, f": {text}")

    def abort(self) -> None:
        """End the present exchange at once, and refuse all later ones. Any thread may call it."""
        self._exchange.abort()

    def close(self) -> None:
        """Close the connection. A later request opens a new one."""
        self._adapter.close()
        self._is_kept = False

    def _load(self) -> None:
        options: dict[str, Any] = {}
        if self._socket_options is not None:
            options["socket_options"] = self._socket_options
        if (tls := load_tls(self.peer)) is not None:
            options |= {"ssl_context": tls, "server_hostname": self.peer.tls and self.peer.tls.server_name}
        headers = {name: header_secret(f"header {name}", path) for name, path in self._header_files}
        self._credentials = headers | authorization(self.peer)
        self.close()
        self._adapter = _Adapter(self._exchange, **options)

    def _response(self, request: requests.PreparedRequest, seconds: float) -> requests.Response:
        self._exchange.deadline = time.monotonic() + seconds
        is_kept, self._is_kept = self._is_kept, False
        is_verified = not (self.peer.tls and self.peer.tls.insecure_skip_verify)
        while True:
            timeout: Any = urllib3.Timeout(total=self._exchange.seconds_left())
            try:
                return self._adapter.send(request, stream=True, timeout=timeout, verify=is_verified)
            except requests.ConnectionError:
                # A server may close an idle connection just when it is used again; retry on a new one.
                if not is_kept:
                    raise
                is_kept = False

    def _too_large(self) -> HttpError:
        return HttpError(ScrapeFailure.TOO_LARGE, self.place, f" sends more than {self.peer.max_bytes} bytes")


def _stamp(field: str, path: str, kind: ScrapeFailure) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise ScrapeError(kind, f"{field} {path}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        # Reading a pipe could block without end.
        raise ScrapeError(kind, f"{field} {path}: is no file")
    return status.st_mtime_ns, status.st_size, status.st_ino
