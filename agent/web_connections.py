"""The sockets of the web server: one clock for a whole connection, TLS, and a server that logs where we log.

Owns what cheroot leaves open. Its timeout is for each read of a socket, so a client that sends a byte now and then holds
a thread for hours; here the time left is set anew before every read and write. Its TLS adapter shakes hands in the one
thread that accepts, so a client that connects and stays silent stops everybody; here a worker does it, on that
connection's time. One request a connection: nothing a client left unread can be taken for a next request. One address has
so many connections at once and no more.
"""

from __future__ import annotations

import logging
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from typing import Any

from cheroot import wsgi
from cheroot.makefile import MakeFile
from cheroot.server import HTTPConnection, HTTPRequest
from cheroot.ssl import Adapter

from agent.errors import BadConfig
from agent.web_config import WebOptions

WAKE_SECONDS = 0.02
"""After which a server that was asked to stop has asked its own loop to."""

GRACE_SECONDS = 1.0
"""What a connection gets at least once a worker takes it up, however long it had to wait for one."""

CLIENT_VERIFIED = "SSL_CLIENT_VERIFY"
"""In a request's environment: whether the peer has shown a certificate of the CA that is asked for. No header can set it."""

_OLDEST = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

_log = logging.getLogger(__name__)


class _TimedSocket:
    """A socket whose every read and write must end before one deadline; for the rest, the socket itself."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def at_least(self, seconds: float) -> None:
        """Moves the deadline where less time than this is left."""
        self._deadline = max(self._deadline, time.monotonic() + seconds)

    def until(self, deadline: float) -> None:
        """Moves the deadline, of time.monotonic."""
        self._deadline = deadline

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


class _Request(HTTPRequest):
    """A request whose head has arrived: from here on the whole connection's time counts."""

    def respond(self) -> None:
        self.conn.head_arrived()
        super().respond()


class _Connection(HTTPConnection):
    """One accepted connection."""

    RequestHandlerClass = _Request
    remote_addr: str | None

    def __init__(self, server: Any, sock: socket.socket, makefile: Any = MakeFile) -> None:
        accepted = time.monotonic()
        self._ends_at = accepted + server.timeout
        self._timed = _TimedSocket(sock, accepted + min(server.head_seconds, server.timeout))
        super().__init__(server, self._timed, makefile)

    def head_arrived(self) -> None:
        """The answer gets what is left of the connection's time."""
        self._timed.until(self._ends_at)
        self._timed.at_least(min(GRACE_SECONDS, self.server.timeout))

    def communicate(self) -> bool:
        """Answers one request, after the handshake where there is TLS."""
        try:
            self._timed.at_least(min(GRACE_SECONDS, self.server.timeout))
            sock = self._timed.limit()
            if isinstance(sock, ssl.SSLSocket):
                sock.do_handshake()
                self.ssl_env = {**self.ssl_env, CLIENT_VERIFIED: "SUCCESS" if sock.getpeercert() else "NONE"}
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
        finally:
            self.server.gone(self)


class Tls(Adapter):
    """The server's side of TLS: 1.2 or newer, by Python's own defaults (forward secrecy, authenticated ciphers). `renew` takes
    up new files.

    A peer that shows a certificate of another CA than `client_ca_file` fails at the handshake; one that shows none is let
    through to `agent.web`, which knows which paths ask for one.
    """

    def __init__(self, certificate: str, private_key: str, client_ca: str | None = None, oldest: str = "1.2") -> None:
        super().__init__(certificate, private_key)
        self.client_ca = client_ca
        self._oldest = _OLDEST[oldest]
        self.context = self._context()

    def renew(self) -> None:
        """Reads the files again, for connections to come. Raises BadConfig and keeps what it has."""
        self.context = self._context()

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = self._oldest
        try:
            # OpenSSL would ask the terminal for the password of a key that has one.
            context.load_cert_chain(self.certificate, self.private_key, password=lambda: "")
        except OSError as error:
            raise self._unusable(f"{self.certificate} and {self.private_key}", error) from error
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except OSError as error:
                raise self._unusable(self.client_ca, error) from error
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    @staticmethod
    def _unusable(files: str, error: OSError) -> BadConfig:
        why = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        return BadConfig((f"web.tls: {files} cannot be used: {why or error}",))

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
        self.head_seconds = options.head_seconds
        self._most_of_one = options.most_of_one_address
        self._open: Counter[str] = Counter()
        self._counted: dict[_Connection, str] = {}
        self._counting = threading.Lock()
        self.max_request_header_size = options.max_header_bytes
        self.max_request_body_size = options.max_body_bytes
        self.ssl_adapter = tls

    def process_conn(self, conn: _Connection) -> None:
        """Into the queue; hung up on where its address has as many already as one may have."""
        address = str(conn.remote_addr)
        with self._counting:
            self._open[address] += 1
            self._counted[conn] = address
            full = self._open[address] > self._most_of_one
        if full:
            _log.debug("%s has %d connections already", address, self._most_of_one)
            conn.close()
        else:
            super().process_conn(conn)

    def gone(self, conn: _Connection) -> None:
        """A connection is closed; told twice, it counts once."""
        with self._counting:
            address = self._counted.pop(conn, None)
            if address is None:
                return
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]

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
