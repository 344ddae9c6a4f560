"""The sockets of the web server: one clock for a whole connection, TLS, and a server that logs where we log.

Owns what cheroot leaves open. Its timeout is for each read of a socket, so a client that sends a byte now and then holds
a thread for hours; here the time left is set anew before every read and write. Its TLS adapter shakes hands in the one
thread that accepts, so a client that connects and stays silent stops everybody; here a worker does it, on that
connection's time. One request a connection: nothing a client left unread can be taken for a next request.
"""

from __future__ import annotations

import logging
import socket
import ssl
import sys
import threading
import time
from typing import Any

from cheroot import wsgi
from cheroot.makefile import MakeFile
from cheroot.server import HTTPConnection
from cheroot.ssl import Adapter

from agent.errors import BadConfig
from agent.web_config import WebOptions

WAKE_SECONDS = 0.02
"""After which a server that was asked to stop has asked its own loop to."""

GRACE_SECONDS = 1.0
"""What a connection gets at least once a worker takes it up, however long it had to wait for one."""

_log = logging.getLogger(__name__)


class _TimedSocket:
    """A socket whose every read and write must end before one deadline; for the rest, the socket itself."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def at_least(self, seconds: float) -> None:
        """Moves the deadline where less time than this is left."""
        self._deadline = max(self._deadline, time.monotonic() + seconds)

    def limit(self) -> socket.socket:
        """The socket with the time that is left as its timeout; raises TimeoutError where none is."""
        left_seconds = self._deadline - time.monotonic()
        if left_seconds <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left_seconds)
        return self._sock

    def recv_into(self, buffer: Any) -> int:
        return self.limit().recv_into(buffer)

    def send(self, data: bytes) -> int:
        return self.limit().send(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class _Connection(HTTPConnection):
    """One accepted connection."""

    def __init__(self, server: Any, sock: socket.socket, makefile: Any = MakeFile) -> None:
        self._timed = _TimedSocket(sock, time.monotonic() + server.timeout)
        super().__init__(server, self._timed, makefile)

    def communicate(self) -> bool:
        """Answers one request, after the handshake where there is TLS."""
        try:
            self._timed.at_least(min(GRACE_SECONDS, self.server.timeout))
            sock = self._timed.limit()
            if isinstance(sock, ssl.SSLSocket):
                sock.do_handshake()
        except OSError as error:
            _log.debug("no TLS with %s: %s", self.remote_addr, error)
            return False
        return bool(super().communicate())  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Closes whatever state the peer left the connection in; cheroot's worker would die of an error here."""
        try:
            super().close()
        except OSError as error:
            _log.debug("closing the connection of %s: %s", self.remote_addr, error)


class Tls(Adapter):
    """The server's side of TLS: 1.2 or newer, by Python's own defaults. `renew` takes up a new certificate."""

    def __init__(self, certificate: str, private_key: str) -> None:
        super().__init__(certificate, private_key)
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.renew()

    def renew(self) -> None:
        """Reads the files again, for connections to come. Raises BadConfig and keeps the certificate it has."""
        try:
            # Into a context of their own first: a certificate without its key must not replace a good pair.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.private_key)
            self.context.load_cert_chain(self.certificate, self.private_key)
        except OSError as error:
            why = error.reason if isinstance(error, ssl.SSLError) else error.strerror
            text = f"web.tls: {self.certificate} and {self.private_key} cannot be used: {why or error}"
            raise BadConfig((text,)) from error

    def bind(self, sock: socket.socket) -> socket.socket:
        return sock

    def wrap(self, sock: socket.socket) -> tuple[ssl.SSLSocket, dict[str, str]]:
        """TLS on an accepted socket, without the handshake."""
        return self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False), self.get_environ()

    def get_environ(self) -> dict[str, str]:
        return {"wsgi.url_scheme": "https", "HTTPS": "on"}

    def makefile(self, sock: Any, mode: str = "r", bufsize: int = -1) -> Any:
        return MakeFile(sock, mode, bufsize)


class Server(wsgi.Server):
    """cheroot's server with our connections, limits and log."""

    ConnectionClass = _Connection
    keep_alive_conn_limit = 0
    # Nothing is kept that could expire, and cheroot wakes up as often to look: at its half second, for a fifth of all
    # CPU of an agent on a GPU node.
    expiration_interval = 5.0

    def __init__(self, options: WebOptions, application: Any, tls: Tls | None) -> None:
        super().__init__(
            (options.bind_host, options.port),
            application,
            numthreads=options.threads,
            max=options.threads,
            # Without a version: the name is on every page anyway.
            server_name="sizewatch",
            request_queue_size=options.waiting,
            accepted_queue_size=options.waiting,
            accepted_queue_timeout=1,
            shutdown_timeout=2,
        )
        self.timeout = options.timeout_seconds
        self.max_request_header_size = options.max_header_bytes
        self.max_request_body_size = options.max_body_bytes
        self.ssl_adapter = tls

    def stop(self) -> None:
        """Ends at once: cheroot first waits until its wait for connections is over, which a connection ends."""
        waker = threading.Timer(WAKE_SECONDS, self._wake)
        waker.start()
        try:
            super().stop()
        finally:
            waker.cancel()

    def _wake(self) -> None:
        host, port = self.bind_addr[:2]
        loopback = "::1" if host == "::" else "127.0.0.1" if host == "0.0.0.0" else host
        try:
            socket.create_connection((loopback, port), timeout=1).close()
        except OSError as error:
            _log.debug("waking the web server: %s", error)

    @staticmethod
    def bind_socket(socket_: socket.socket, bind_addr: Any) -> socket.socket:
        """Binds; a socket that cannot be bound is closed, which cheroot leaves undone."""
        try:
            socket_.bind(bind_addr)
        except OSError:
            socket_.close()
            raise
        return socket_

    def error_log(self, msg: str = "", level: int = logging.INFO, traceback: bool = False) -> None:
        """What cheroot has to say, into our log: clients that hang up are no news."""
        _log.log(level if traceback else logging.DEBUG, "%s", msg, exc_info=traceback and sys.exc_info()[0] is not None)
