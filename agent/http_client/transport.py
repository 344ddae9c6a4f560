"""HTTP(S) connections to one target, kept alive, whose answer must have arrived whole by one deadline.

Owns the sockets' clock and the TLS settings of a target. It must not look at status, headers or body: pages.py does.

`requests` and urllib3 give a timeout to each read of a socket, so a server that sends one byte a second is never late.
Here the time left is set anew before every read of the answer, its headers included.
"""

import http.client
import io
import socket
import ssl
import time
from typing import Any

from requests.adapters import HTTPAdapter
from requests.models import PreparedRequest, Response
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, Timeout
from urllib3.connection import HTTPConnection, HTTPSConnection


class DeadlineReader(io.RawIOBase):
    """The receiving side of a socket; a read that begins or lasts beyond the deadline raises TimeoutError."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_seconds = self._deadline - time.monotonic()
        if left_seconds <= 0:
            raise TimeoutError("the answer did not end in time")
        self._sock.settimeout(left_seconds)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _DeadlineSocket:
    """All that `http.client.HTTPResponse` asks of a socket."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(DeadlineReader(self._sock, self._deadline))


def _response(connection: HTTPConnection, sock: socket.socket, **options: Any) -> http.client.HTTPResponse:
    # urllib3 has by now left in `timeout` what remains of the total after connecting.
    assert isinstance(connection.timeout, int | float)
    return http.client.HTTPResponse(_DeadlineSocket(sock, time.monotonic() + connection.timeout), **options)  # type: ignore[arg-type]


class _HTTPConnection(HTTPConnection):
    def response_class(self, sock: socket.socket, **options: Any) -> http.client.HTTPResponse:  # type: ignore[override]
        return _response(self, sock, **options)


class _HTTPSConnection(HTTPSConnection):
    def response_class(self, sock: socket.socket, **options: Any) -> http.client.HTTPResponse:  # type: ignore[override]
        return _response(self, sock, **options)


class _HTTPPool(HTTPConnectionPool):
    ConnectionCls = _HTTPConnection


class _HTTPSPool(HTTPSConnectionPool):
    ConnectionCls = _HTTPSConnection


class TargetAdapter(HTTPAdapter):
    """One kept connection to one target; its certificate must be for `server_name`, where one is given, or else for its host."""

    def __init__(self, tls: ssl.SSLContext | None, server_name: str | None = None) -> None:
        self._tls = tls
        self._server_name = server_name
        super().__init__(pool_connections=1, pool_maxsize=1)

    def send_within(self, request: PreparedRequest, seconds: float) -> Response:
        """The answer with its headers; its body can be read until `seconds` from now. Raises RequestException.

        Not bounded: looking the host name up, and each further address of a name that has several.
        """
        # requests hands a urllib3.Timeout on untouched, though its types do not say so.
        timeout: Any = Timeout(total=max(seconds, 0.001))
        return self.send(request, stream=True, timeout=timeout)

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **options: Any) -> None:
        super().init_poolmanager(connections, maxsize, block=block, **options)
        self.poolmanager.pool_classes_by_scheme = {"http": _HTTPPool, "https": _HTTPSPool}

    def build_connection_pool_key_attributes(self, request: PreparedRequest, verify: Any, cert: Any = None) -> Any:
        host, _ = super().build_connection_pool_key_attributes(request, verify, cert)
        return host, {} if self._tls is None else {"ssl_context": self._tls, "server_hostname": self._server_name}

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        """Nothing to set: the context says what is trusted, and setting files here would load them on every connect."""


def tls_context(
    ca_file: str | None, *, verify: bool, client_certificate: tuple[str, str | None] | None
) -> ssl.SSLContext:
    """What a target's certificate is checked against. Raises OSError (ssl.SSLError among it) for unusable files.

    Without `ca_file` the machine's own store is trusted, as curl and Prometheus do, not the bundle `requests` ships.
    """
    context = ssl.create_default_context(cafile=ca_file)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if client_certificate is not None:
        context.load_cert_chain(*client_certificate)
    return context
