"""Connections of the web server: one deadline for a whole connection, TLS, a limit per address, and our log.

Workers of cheroot wait for their clients. Here a connection waits in a pool until its request is complete, and again
until its answer is sent. A connection carries one request.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any

from cheroot import wsgi
from cheroot.errors import FatalSSLAlert
from cheroot.makefile import MakeFile
from cheroot.server import HeaderReader, HTTPConnection, HTTPRequest
from cheroot.ssl import Adapter

from agent.errors import ConfigError
from agent.http_server.connection_pool import NOTHING, READ, WRITE, ConnectionPool, is_head_complete, missing
from agent.http_server.options import WebOptions

WAKE_SECONDS = 0.02
"""After which a server that was asked to stop has asked its own loop to."""

GRACE_SECONDS = 1.0
"""What a connection gets at least once a worker takes it up, however long it had to wait for one."""

CLIENT_VERIFIED = "SSL_CLIENT_VERIFY"
"""In a request's environment: whether the peer has shown a certificate of the CA that is asked for. No header can set it."""

HURRY = "sizewatch.hurry"
"""In a request's environment: gives what is still to be read of it no more than so many seconds."""

SENT_AT_ONCE = 16_384
"""A record of TLS; OpenSSL refuses to try again with less than the time before."""

_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

_OLDEST = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

_log = logging.getLogger(__name__)


class _TimedSocket:
    """A socket as a worker has it. What the client sent before comes first, and a further read must end before one deadline;
    a write never waits: what does not go out at once is kept. For the rest, the socket itself."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline
        self.held = bytearray()
        """What has come and was not read yet."""
        self.unsent = bytearray()

    def extend_deadline(self, seconds: float) -> None:
        """Moves the deadline where less time than this is left."""
        self._deadline = max(self._deadline, time.monotonic() + seconds)

    def shorten_deadline(self, seconds: float) -> None:
        """Moves the deadline where more time than this is left."""
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def recv_into(self, buffer: Any) -> int:
        if self.held:
            count = min(len(buffer), len(self.held))
            buffer[:count] = self.held[:count]
            del self.held[:count]
            return count
        left_seconds = self._deadline - time.monotonic()
        if left_seconds <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left_seconds)
        return self._sock.recv_into(buffer)

    def send(self, data: bytes) -> int:
        self.unsent += data
        try:
            self.flush()
        except _NOT_NOW:
            _log.debug("%d bytes of an answer wait for its reader", len(self.unsent))
        return len(data)

    def flush(self) -> None:
        """Sends what goes out at once. Raises one of _NOT_NOW where that is not all."""
        sock, sent = self.nonblocking_socket(), 0
        try:
            while sent < len(self.unsent):
                sent += sock.send(self.unsent[sent : sent + SENT_AT_ONCE])
        finally:
            del self.unsent[:sent]

    def nonblocking_socket(self) -> socket.socket:
        """The socket itself, that waits for nothing."""
        self._sock.setblocking(False)
        return self._sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class _Headers(HeaderReader):
    """A head whose first line goes on another, which there is not, is none: cheroot 11.1 raises an error of its own."""

    def __call__(self, rfile: Any, hdict: Any = None) -> Any:
        try:
            return super().__call__(rfile, hdict)
        except UnboundLocalError:
            raise ValueError("Illegal header line.") from None


class _Request(HTTPRequest):
    header_reader = _Headers()


class _Connection(HTTPConnection):
    """One accepted connection: a guest of the room, then a worker's, then a guest again where its answer is not gone yet."""

    RequestHandlerClass = _Request
    remote_addr: str | None

    def __init__(self, server: Any, sock: socket.socket, makefile: Any = MakeFile) -> None:
        accepted = time.monotonic()
        self._head_ends_at: float = accepted + min(server.head_seconds, server.timeout)
        self._ends_at: float = accepted + server.timeout
        self._timed = _TimedSocket(sock, self._ends_at)
        self._shaking = isinstance(sock, ssl.SSLSocket)
        self._leaving = self._asked = False
        super().__init__(server, self._timed, makefile)

    def fileno(self) -> int:
        return int(self._timed.fileno())

    @property
    def ends_at(self) -> float:
        return self._ends_at if self._leaving or self._asked else self._head_ends_at

    @property
    def weight(self) -> int:
        return len(self._timed.held) + len(self._timed.unsent)

    def step(self) -> int:
        try:
            return self._send() if self._leaving else self._receive()
        except ssl.SSLWantReadError:
            return READ
        except ssl.SSLWantWriteError:
            return WRITE
        except BlockingIOError:
            return WRITE if self._leaving else READ

    def _receive(self) -> int:
        sock, held = self._timed.nonblocking_socket(), self._timed.held
        if self._shaking and isinstance(sock, ssl.SSLSocket):
            sock.do_handshake()
            self._shaking = False
            self.ssl_env = {**(self.ssl_env or {}), CLIENT_VERIFIED: "SUCCESS" if sock.getpeercert() else "NONE"}
        while wanted := missing(held, self.server.max_request_header_size, self.server.max_request_body_size):
            data = sock.recv(wanted)
            if not data and not held:
                raise ConnectionAbortedError("it asked for nothing")
            if not data:
                break
            held += data
            self._asked = self._asked or is_head_complete(held)
        return NOTHING

    def _send(self) -> int:
        self._timed.flush()
        return NOTHING

    def finish_served(self) -> None:
        if self._leaving or not self.server.hand_over(self):
            self._shut()

    def dismissed(self) -> None:
        self._shut()

    def communicate(self) -> bool:
        """Answers the one request."""
        self._timed.extend_deadline(min(GRACE_SECONDS, self.server.timeout))
        self.ssl_env = {**(self.ssl_env or {}), HURRY: self._timed.shorten_deadline}
        return bool(super().communicate())  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Closes, after what is still to be sent."""
        if not self._timed.unsent or self._leaving:
            self._shut()
            return
        self._leaving = True
        self._ends_at = max(self._ends_at, time.monotonic() + min(GRACE_SECONDS, self.server.timeout))
        self.server.room.enter(self)

    def _shut(self) -> None:
        """Whatever state the peer left the connection in; cheroot's worker would die of an error here."""
        # All that was sent has been read, so nobody needs to linger.
        self.linger = False
        try:
            super().close()
        except OSError as error:
            _log.debug("closing the connection of %s: %s", self.remote_addr, error)
        finally:
            self._timed.close()
            self.server.on_connection_closed(self)


class TlsAdapter(Adapter):
    """The server's side of TLS: 1.2 or newer, by Python's own defaults (forward secrecy, authenticated ciphers). `renew` takes
    up new files.

    A peer that shows a certificate of another CA than `client_ca_file` fails at the handshake; one that shows none is let
    through to `agent.http_server.server`, which knows which paths ask for one.
    """

    def __init__(self, certificate: str, private_key: str, client_ca: str | None = None, oldest: str = "1.2") -> None:
        super().__init__(certificate, private_key)
        self.client_ca = client_ca
        self._oldest = _OLDEST[oldest]
        self.context = self._context()

    def renew(self) -> None:
        """Reads the files again, for connections to come. Raises ConfigError and keeps what it has."""
        self.context = self._context()

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = self._oldest
        # Older OpenSSL lets a client ask for a new handshake, and another, at our expense.
        context.options |= ssl.OP_NO_RENEGOTIATION
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
    def _unusable(files: str, error: OSError) -> ConfigError:
        why = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        return ConfigError((f"web.tls: {files} cannot be used: {why or error}",))

    def bind(self, sock: socket.socket) -> socket.socket:
        return sock

    def wrap(self, sock: socket.socket) -> tuple[ssl.SSLSocket, dict[str, str]]:
        """TLS on an accepted socket, without the handshake."""
        try:
            return self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False), self.get_environ()
        except (OSError, ValueError) as error:
            # It hung up before its turn came; cheroot would tell it as a defect of its own.
            sock.close()
            raise FatalSSLAlert(*error.args) from error

    def get_environ(self) -> dict[str, str]:
        return {"wsgi.url_scheme": "https", "HTTPS": "on"}

    def makefile(self, sock: Any, mode: str = "r", bufsize: int = -1) -> Any:
        return MakeFile(sock, mode, bufsize)


def origin(address: str) -> str:
    """Whom an address counts for: in IPv6 a network of 64 bits is one customer's, who has every address in it."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv4Address):
        return str(found)
    return str(found.ipv4_mapped or ip_network((int(found) >> 64 << 64, 64)))


class HttpServer(wsgi.Server):
    """cheroot's server with our connections, limits and log."""

    ConnectionClass = _Connection
    keep_alive_conn_limit = 0
    # Nothing is kept that could expire, and cheroot wakes up as often to look: at its half second, for a fifth of all
    # CPU of an agent on a GPU node.
    expiration_interval = 5.0

    def __init__(self, options: WebOptions, application: Any, tls: TlsAdapter | None) -> None:
        super().__init__(
            (options.bind_host, options.port),
            application,
            numthreads=options.threads,
            max=options.threads,
            # Without a version: the name is on every page anyway.
            server_name="sizewatch",
            request_queue_size=options.waiting,
            accepted_queue_size=options.waiting,
            # The room's thread hands over and must not wait for a place; who finds none is told 503.
            accepted_queue_timeout=0,
            shutdown_timeout=2,
        )
        self.timeout = options.timeout_seconds
        self.head_seconds = options.head_seconds
        self._most_of_one = options.most_of_one_address
        self._most_guests = options.most_guests
        self._most_bytes = options.most_guest_bytes
        self._open: Counter[str] = Counter()
        self._counted: dict[_Connection, str] = {}
        self._counting = threading.Lock()
        self.max_request_header_size = options.max_header_bytes
        self.max_request_body_size = options.max_body_bytes
        self.ssl_adapter = tls

    def prepare(self) -> None:
        """Binds, and opens the room."""
        # cheroot would take whatever stands at file descriptor 3 for its socket, in place of the address that was asked for.
        os.environ.pop("LISTEN_PID", None)
        super().prepare()
        self.room = ConnectionPool(self._most_guests, self._most_bytes)
        self.room.start()

    def process_conn(self, conn: _Connection) -> None:
        """Into the room; hung up on where its address has as many already as one may have."""
        address = origin(str(conn.remote_addr))
        with self._counting:
            self._open[address] += 1
            self._counted[conn] = address
            full = self._open[address] > self._most_of_one
        if full:
            _log.debug("%s has %d connections already", address, self._most_of_one)
            conn.close()
        else:
            self.room.enter(conn)

    def hand_over(self, conn: _Connection) -> bool:
        """A request that is there, to the workers; False once the server ends."""
        if not self.ready:
            return False
        super().process_conn(conn)
        return True

    def on_connection_closed(self, conn: _Connection) -> None:
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
            self.room.stop()

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
        _log.log(
            level if traceback else logging.DEBUG,
            'http server message="%s"',
            msg,
            exc_info=traceback and sys.exc_info()[0] is not None,
        )
