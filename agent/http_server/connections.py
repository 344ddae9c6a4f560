"""Connections of the web server: one deadline for a whole connection, TLS, a limit per address, and our log.

Workers of cheroot wait for their clients. Here a connection waits in a pool until its request is complete, and again
until its answer is sent: a worker reads what is there. A connection carries one request.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from cheroot import wsgi
from cheroot.makefile import MakeFile
from cheroot.server import HeaderReader, HTTPConnection, HTTPRequest

from agent.http_server.connection_pool import NOTHING, READ, WRITE, ConnectionPool, limit_guests, origin
from agent.http_server.options import WebOptions
from agent.http_server.reply import SERVER_NAME, busy_reply, encode_reply, text_reply
from agent.http_server.request_head import find_head_end
from agent.http_server.tls import CLIENT_VERIFIED, TlsAdapter
from rules.light_dataclass import light_dataclass

GRACE_SECONDS = 1.0
"""Seconds that an answer gets at least, however long its request took."""

DRAIN_SECONDS, DRAIN_BYTES = 1.0, 256 * 1024
"""How long, and how much, is read after an answer at most. Go's net/http has 0.5 s and as many bytes."""

RECORD_BYTES = 16_384
"""A record of TLS; OpenSSL refuses to try again with less than the time before."""

LONG_BYTES = 128 * 1024
MOST_LONG = 4
"""Requests of more than LONG_BYTES that are with the workers, at most: their bodies no longer count in the pool."""

_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

_log = logging.getLogger(__name__)


@light_dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What happens to a request whose head is complete: an `answer` without a worker, or the way to a worker.

    `body_bytes` of its body are waited for before. With `continues` the client is told to send them. `environ` joins the
    request's environment.
    """

    answer: bytes | None = None
    body_bytes: int = 0
    continues: bool = False
    environ: Mapping[str, Any] = field(default_factory=dict)


Admit = Callable[[bytes, bool], Admission]
"""Function from a head, and whether the client's certificate was verified, to an admission. It must not wait."""


def refuse(status: str, text: str) -> Admission:
    """Return the refusal of a request that has no head."""
    return Admission(answer=encode_reply(text_reply(status, text)))


class _HeldSocket:
    """A socket as a worker has it. A read gets what has been received and no more; a write never waits: what does not go out
    at once is kept. For the rest, the socket itself."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.held = bytearray()
        """What has come and was not read yet."""
        self.unsent = bytearray()

    def recv_into(self, buffer: Any) -> int:
        count = min(len(buffer), len(self.held))
        buffer[:count] = self.held[:count]
        del self.held[:count]
        return count

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
                sent += sock.send(self.unsent[sent : sent + RECORD_BYTES])
        finally:
            del self.unsent[:sent]

    def nonblocking_socket(self) -> socket.socket:
        """The socket itself, that waits for nothing."""
        self._sock.setblocking(False)
        return self._sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class _Headers(HeaderReader):
    """Headers without Expect: the pool has answered it, and cheroot would again."""

    def _allow_header(self, key_name: bytes) -> bool:
        return key_name != b"Expect"


class _Request(HTTPRequest):
    header_reader = _Headers()


class _Connection(HTTPConnection):
    """One accepted connection: a guest of the pool, then a worker's, then a guest again where its answer is not gone yet."""

    RequestHandlerClass = _Request
    remote_addr: str | None

    def __init__(self, server: Any, sock: socket.socket, address: str, makefile: Any = MakeFile) -> None:
        accepted = time.monotonic()
        self._head_ends_at: float = accepted + min(server.head_seconds, server.timeout)
        self._ends_at: float = accepted + server.timeout
        self._held = _HeldSocket(sock)
        self._shaking = isinstance(sock, ssl.SSLSocket)
        self._leaving = self._draining = False
        self._drain_bytes_left = DRAIN_BYTES
        self._admission: Admission | None = None
        self._request_bytes = 0
        super().__init__(server, self._held, makefile)
        self.remote_addr = address
        self.origin = origin(address)

    def fileno(self) -> int:
        return int(self._held.fileno())

    @property
    def is_crowded(self) -> bool:
        return bool(self.server.is_crowded(self.origin))

    @property
    def is_idle(self) -> bool:
        return not self._leaving

    @property
    def is_answered(self) -> bool:
        return self._draining

    @property
    def ends_at(self) -> float:
        return self._ends_at if self._leaving or self._admission else self._head_ends_at

    @property
    def weight(self) -> int:
        return len(self._held.held) + len(self._held.unsent)

    def step(self) -> int:
        try:
            if not self._leaving:
                self._receive()
            if self._leaving and not self._draining:
                self._held.flush()
            if self._leaving and self._drain():
                return READ
        except ssl.SSLWantReadError:
            return READ
        except ssl.SSLWantWriteError:
            return WRITE
        except BlockingIOError:
            return WRITE if self._leaving and not self._draining else READ
        return NOTHING

    def _receive(self) -> None:
        """Raises one of _NOT_NOW until the request is there. One that needs no worker is answered then."""
        sock, held = self._held.nonblocking_socket(), self._held.held
        if self._shaking and isinstance(sock, ssl.SSLSocket):
            sock.do_handshake()
            self._shaking = False
            self.ssl_env = {**(self.ssl_env or {}), CLIENT_VERIFIED: "SUCCESS" if sock.getpeercert() else "NONE"}
        while wanted := self._missing_bytes():
            data = sock.recv(wanted)
            if not data and not held:
                raise ConnectionAbortedError("it asked for nothing")
            if not data:
                self._admission = self._admission or refuse("400 Bad Request", "the head is incomplete")
                break
            held += data
        if self._admission is not None and self._admission.answer is not None:
            self._leave_with(self._admission.answer)

    def _missing_bytes(self) -> int:
        """How many bytes more are to be waited for, at most."""
        held = self._held.held
        if self._admission is None:
            end = find_head_end(held)
            if not end:
                missing = int(self.server.max_request_header_size) + 1 - len(held)
                if missing <= 0:
                    status = "413 Content Too Large" if b"\n" in held else "414 URI Too Long"
                    self._admission = refuse(status, "the head is too long")
                return max(0, missing)
            self._admission = self.server.admit(
                bytes(held[:end]), (self.ssl_env or {}).get(CLIENT_VERIFIED) == "SUCCESS"
            )
            self._request_bytes = end + self._admission.body_bytes
            if self._admission.continues and len(held) == end:
                self._held.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        return max(0, self._request_bytes - len(held))

    def _drain(self) -> bool:
        """Read what the client still sends after its answer. Return whether there may be more.

        The system resets a connection that is closed with unread data. The client may then lose the answer (RFC 9112, 9.6).
        """
        sock = self._held.nonblocking_socket()
        if not self._draining:
            self._draining, self._ends_at = True, time.monotonic() + DRAIN_SECONDS
            self.server.release(self)
            sock.shutdown(socket.SHUT_WR)
        count = len(sock.recv(RECORD_BYTES))
        self._drain_bytes_left -= count
        return count > 0 and self._drain_bytes_left > 0

    def _leave_with(self, answer: bytes) -> None:
        self._held.held.clear()
        self._held.unsent += answer
        self._leaving = True
        self._ends_at = max(self._ends_at, time.monotonic() + min(GRACE_SECONDS, self.server.timeout))

    def finish_served(self) -> None:
        if self._leaving or not self.server.ready:
            self._shut()
        elif self.is_crowded or not self.server.hand_over(self):
            self._leave_with(encode_reply(busy_reply("too many requests at once")))
            self.server.pool.enter(self)

    def dismissed(self) -> None:
        self._shut()

    def communicate(self) -> bool:
        """Answers the one request."""
        environ = self._admission.environ if self._admission is not None else {}
        self.ssl_env = {**(self.ssl_env or {}), **environ}
        return bool(super().communicate())  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Leave to the pool what is still to be sent, and the client's end."""
        if self._leaving:
            self._shut()
            return
        self._leave_with(b"")
        if not self._held.unsent:
            self.server.release(self)
        self.server.pool.enter(self)

    def _shut(self) -> None:
        """Whatever state the peer left the connection in; cheroot's worker would die of an error here."""
        # `_drain` has waited for the client: cheroot need not.
        self.linger = False
        try:
            super().close()
        except OSError as error:
            _log.debug("closing the connection of %s: %s", self.remote_addr, error)
        finally:
            self._held.close()
            self.server.release(self)


class HttpServer(wsgi.Server):
    """cheroot's workers with our connections, limits and log. The pool accepts connections, and answers what needs no worker."""

    ConnectionClass = _Connection
    keep_alive_conn_limit = 0

    def __init__(self, options: WebOptions, application: Any, admit: Admit, tls: TlsAdapter | None) -> None:
        super().__init__(
            (options.bind_host, options.port),
            application,
            numthreads=options.threads,
            max=options.threads,
            server_name=SERVER_NAME,
            # The system drops a client that finds no place here; it tries again only a second later.
            request_queue_size=options.most_guests,
            accepted_queue_size=options.waiting,
            # The pool's thread hands over and must not wait for a place; who finds none is told 503.
            accepted_queue_timeout=0,
            shutdown_timeout=2,
        )
        self.admit = admit
        self.timeout = options.timeout_seconds
        self.head_seconds = options.head_seconds
        self._most_of_one = options.most_of_one_address
        self._most_guests = limit_guests(options.most_guests)
        self._most_bytes = options.most_guest_bytes
        self._open: Counter[str] = Counter()
        self._counted: set[_Connection] = set()
        self._long: set[_Connection] = set()
        self._counting = threading.Lock()
        self.max_request_header_size = options.max_header_bytes
        self.max_request_body_size = options.max_body_bytes
        self.ssl_adapter = tls

    def prepare(self) -> None:
        """Binds, and opens the pool."""
        # cheroot would take whatever stands at file descriptor 3 for its socket, in place of the address that was asked for.
        os.environ.pop("LISTEN_PID", None)
        super().prepare()
        self.socket.setblocking(False)
        self.pool = ConnectionPool(self._most_guests, self._most_bytes)
        self.pool.start(self.socket, self._accept)

    def _accept(self, listening: socket.socket) -> _Connection | None:
        """Accept a connection. Return None for a client that is gone. Raise OSError."""
        sock, address = listening.accept()
        environ: dict[str, str] = {}
        if self.ssl_adapter is not None:
            try:
                sock, environ = self.ssl_adapter.wrap(sock)
            except (OSError, ValueError) as error:
                _log.debug("TLS failed address=%s error=%s", address[0], error)
                sock.close()
                return None
        conn = _Connection(self, sock, address[0])
        conn.remote_port, conn.ssl_env = address[1], environ
        with self._counting:
            self._open[conn.origin] += 1
            self._counted.add(conn)
        return conn

    def is_crowded(self, address: str) -> bool:
        """Return whether an address has more connections than one may have."""
        return self._open[address] > self._most_of_one

    def hand_over(self, conn: _Connection) -> bool:
        """Give a complete request to the workers. Return False if there is no place for it."""
        if conn.weight > LONG_BYTES:
            if len(self._long) >= MOST_LONG:
                return False
            self._long.add(conn)
        try:
            self.requests.put(conn)
        except queue.Full:
            self._long.discard(conn)
            return False
        return True

    def release(self, conn: _Connection) -> None:
        """Count an answered or closed connection for its address no longer. A second call changes nothing."""
        self._long.discard(conn)
        with self._counting:
            if conn not in self._counted:
                return
            self._counted.remove(conn)
            self._open[conn.origin] -= 1
            if not self._open[conn.origin]:
                del self._open[conn.origin]

    def stop(self) -> None:
        """Closes the port and ends the workers after what they are at. Requests without a worker are left."""
        self.pool.stop()
        # The pool has closed it; cheroot would first connect to it.
        self.socket = None
        with contextlib.suppress(queue.Empty):
            while True:
                self.requests.get(block=False).dismissed()
        super().stop()

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
