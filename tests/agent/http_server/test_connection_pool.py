"""Clients that are slow on purpose, from many addresses at once: nobody else waits for them, whatever they leave undone."""

from __future__ import annotations

import errno
import logging
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trustme
from status_samples import agent_status
from test_server import ask, issue, raw, serving, trusting
from waiting import CEILING_SECONDS, wait_for

from agent.http_server import connection_pool
from agent.http_server import server as web
from agent.http_server.connection_pool import NOTHING, READ, ConnectionPool, PendingConnection, origin
from agent.http_server.reply import text_reply
from agent.http_server.server import WebServer

CROWD = tuple(f"127.0.0.{number}" for number in range(2, 10))
EACH = 8
"""Of one address; 64 in all, and four workers with a queue of 32 is what they could fill."""

POST = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
UNDONE = {
    "nothing": b"",
    "half a head": b"GET / HTTP/1.1\r\nHost: loc",
    "no body": POST + b"Content-Length: 4000\r\n\r\n",
    "half a body": POST + b"Content-Length: 4000\r\n\r\n" + b"x" * 1000,
    "two lengths": POST + b"Content-Length: 0\r\nContent-Length: 4000\r\n\r\n",
    "a length with a gap": POST + b"Content-Length : 4000\r\n\r\n",
    "a body once it is asked for": POST + b"Expect: 100-continue\r\nContent-Length: 4000\r\n\r\n",
    "no chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n",
    "an empty line": b"\r\n",
}


@contextmanager
def crowd(server: WebServer, said: bytes, receive_buffer: int = 0) -> Iterator[int]:
    """Connections from many addresses that say this and then nothing."""
    with ExitStack() as open_ones:
        count = 0
        for address in CROWD * EACH:
            one = open_ones.enter_context(socket.socket())
            if receive_buffer:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            one.settimeout(CEILING_SECONDS)
            one.bind((address, 0))
            with suppress(OSError):
                one.connect(("127.0.0.1", server.port))
                one.sendall(said)
                count += 1
        yield count


PATIENT = {"head_seconds": 3600.0, "timeout_seconds": 3600.0, "busy_seconds": 3600.0}
"""Whoever waits for a crowd then waits for ever."""


def answered(server: WebServer, path: str = "/healthz", tls: ssl.SSLContext | None = None) -> bool:
    """Whether 200 comes. The crowd's whole requests may fill the queue for a moment: 503 at once then, and no waiting."""
    return bool(wait_for(lambda: ask(server, path, tls=tls)[0] == 200))


@pytest.mark.parametrize("what", UNDONE)
def test_a_crowd_from_many_addresses_that_leaves_something_undone_delays_nobody(what: str) -> None:
    with serving(**PATIENT) as server, crowd(server, UNDONE[what]) as count:
        assert count == len(CROWD) * EACH
        # Before there was a room, after all that time.
        assert answered(server)
        assert answered(server, "/metrics")


def test_a_crowd_that_shakes_no_hands_delays_nobody(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate, key = issue(authority, tmp_path)
    hello = bytes.fromhex("160301020001000100")
    with serving(cert_file=certificate, key_file=key, **PATIENT) as server:
        for said in (b"", hello, b"GET / HTTP/1.1\r\n\r\n"):
            with crowd(server, said):
                assert answered(server, tls=trusting(authority))


def test_a_crowd_that_reads_no_answer_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    long = text_reply("200 OK", "x" * 1_500_000)
    monkeypatch.setattr(web, "ROUTES", {**web.ROUTES, "/long": lambda status, request: long})
    with serving(**PATIENT) as server:
        with crowd(server, b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n", receive_buffer=2048):
            assert answered(server)
            # A 503 while answers of the crowd are still being made is no delay.
            assert wait_for(lambda: len(ask(server, "/long")[2]) == len(long.body))
            room = server._server.pool
            # What is kept for those who do not read has its limit.
            assert wait_for(lambda: sum(guest.weight for guest in list(room._guests)) <= room._most_bytes)
        assert wait_for(lambda: not server._server._open)


def test_a_body_that_does_not_come_is_answered_and_is_no_error_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with serving(head_seconds=0.3, timeout_seconds=0.5) as server:
        # A busy machine may take longer than that for the head as well.
        assert wait_for(lambda: b"HTTP/1.1 405" in raw(server, UNDONE["a body once it is asked for"]))
        assert raw(server, UNDONE["no body"]) == b""
        assert server._errors == 0
    assert [one for one in caplog.records if one.levelno > logging.DEBUG] == []


def test_a_client_that_hangs_up_at_once_is_no_error_of_ours(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = trustme.CA()
    certificate, key = issue(authority, tmp_path)
    caplog.set_level(logging.INFO)
    with serving(cert_file=certificate, key_file=key) as server:
        for _ in range(200):
            with socket.create_connection(("127.0.0.1", server.port), timeout=CEILING_SECONDS) as one:
                one.sendall(b"\x16\x03\x01")
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert ask(server, "/healthz", tls=trusting(authority))[0] == 200
        assert wait_for(lambda: not server._server._open)
    assert [one.getMessage() for one in caplog.records if one.levelno > logging.DEBUG] == []


def test_a_request_may_come_a_byte_at_a_time(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate, key = issue(authority, tmp_path)
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(cert_file=certificate, key_file=key) as server:
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=CEILING_SECONDS)
        with trusting(authority).wrap_socket(connection, server_hostname="localhost") as slow:
            for byte in request:
                slow.sendall(bytes([byte]))
            assert b"".join(iter(lambda: slow.recv(4096), b"")).endswith(b"\r\n\r\nok\n")


def test_a_long_answer_arrives_whole_however_slowly_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = text_reply("200 OK", "0123456789" * 300_000)
    monkeypatch.setattr(web, "ROUTES", {**web.ROUTES, "/long": lambda status, request: long})
    authority = trustme.CA()
    certificate, key = issue(authority, tmp_path)
    for tls in (None, trusting(authority)):
        options = {} if tls is None else {"cert_file": certificate, "key_file": key}
        with serving(agent_status, **options) as server, socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(CEILING_SECONDS)
            sock.connect(("127.0.0.1", server.port))
            with tls.wrap_socket(sock, server_hostname="localhost") if tls is not None else sock as reader:
                reader.sendall(b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n")
                found = reader.recv(1000)
                time.sleep(0.2)
                # A server over TLS that says goodbye by closing is Python's own business.
                with suppress(ssl.SSLEOFError):
                    while part := reader.recv(65536):
                        found += part
        assert found.partition(b"\r\n\r\n")[2] == long.body


def test_of_an_ipv6_network_every_address_is_the_same_client() -> None:
    assert origin("2001:db8::1") == origin("2001:db8::ffff:1:2:3") != origin("2001:db8:0:1::1")
    assert origin("fe80::1%eth0") == origin("fe80::2%eth0")
    assert origin("::ffff:10.0.0.7") == origin("10.0.0.7") != origin("10.0.0.8")
    assert origin("None") == "None"


@dataclass(eq=False)
class _Guest:
    """One that waits for ever, on a socket that nobody writes to."""

    weight: int = 1
    origin: str = "10.0.0.7"
    is_crowded: bool = False
    is_idle: bool = True
    is_answered: bool = False
    ends_at: float = field(default_factory=lambda: time.monotonic() + 3600)
    left: list[str] = field(default_factory=list)
    pair: tuple[socket.socket, socket.socket] = field(default_factory=socket.socketpair)

    def fileno(self) -> int:
        return self.pair[0].fileno()

    def step(self) -> int:
        self.pair[0].setblocking(False)
        try:
            if self.pair[0].recv(1) == b"!":
                raise RuntimeError("a defect")
        except BlockingIOError:
            return READ
        return NOTHING

    def finish_served(self) -> None:
        self.left.append("served")
        self._close()

    def dismissed(self) -> None:
        self.left.append("dismissed")
        self._close()

    def _close(self) -> None:
        for one in self.pair:
            one.close()


@pytest.fixture(name="room")
def _room() -> Iterator[ConnectionPool]:
    room = ConnectionPool(most=3, most_bytes=100)
    yield room
    room.stop()


@pytest.fixture(name="open_room")
def _open_room(room: ConnectionPool) -> ConnectionPool:
    room.start()
    return room


def test_the_one_that_has_waited_longest_leaves_a_full_room(open_room: ConnectionPool) -> None:
    guests = [_Guest() for _ in range(4)]
    for one in guests:
        open_room.enter(one)
    assert wait_for(lambda: guests[0].left)
    assert [one.left for one in guests] == [["dismissed"], [], [], []]
    guests[2].pair[1].send(b"x")
    assert wait_for(lambda: guests[2].left)
    assert guests[2].left == ["served"]


def test_bytes_fill_a_room_too_and_a_single_guest_may_have_as_many_as_it_likes(open_room: ConnectionPool) -> None:
    first, second, third = _Guest(weight=1_000), _Guest(weight=60), _Guest(weight=30)
    open_room.enter(first)
    time.sleep(0.05)
    assert first.left == []
    open_room.enter(second)
    open_room.enter(third)
    assert wait_for(lambda: first.left)
    time.sleep(0.05)
    assert (first.left, second.left, third.left) == (["dismissed"], [], [])


def test_whose_time_is_over_leaves_and_so_does_everybody_at_the_end() -> None:
    room = ConnectionPool(most=3, most_bytes=100)
    room.start()
    short, long = _Guest(ends_at=time.monotonic() + 0.05), _Guest()
    room.enter(short)
    room.enter(long)
    assert wait_for(lambda: short.left)
    assert long.left == []
    room.stop()
    late = _Guest()
    room.enter(late)
    assert [one.left for one in (short, long, late)] == [["dismissed"]] * 3
    room.stop()


def test_a_defect_with_one_guest_costs_the_others_nothing(
    open_room: ConnectionPool, caplog: pytest.LogCaptureFixture
) -> None:
    ill, well = _Guest(), _Guest()
    open_room.enter(ill)
    open_room.enter(well)
    ill.pair[1].send(b"!")
    assert wait_for(lambda: ill.left)
    well.pair[1].send(b"x")
    assert wait_for(lambda: well.left)
    assert (ill.left, well.left) == (["dismissed"], ["served"])
    assert "closed a connection after an unexpected error" in caplog.text


def test_of_a_crowded_address_the_oldest_idle_guest_makes_room(room: ConnectionPool) -> None:
    busy, idle = _Guest(is_idle=False), _Guest()
    stranger, newcomer = _Guest(origin="10.0.0.8"), _Guest(is_crowded=True)
    coming = iter((stranger, busy, idle, newcomer))
    with accepting(room, lambda listening: next(coming), 4):
        assert wait_for(lambda: idle.left)
        assert [one.left for one in (stranger, busy, idle, newcomer)] == [[], [], ["dismissed"], []]


def test_an_answered_guest_makes_no_room_for_its_address(room: ConnectionPool) -> None:
    answered, busy = _Guest(is_idle=False, is_answered=True), _Guest(is_idle=False)
    newcomer = _Guest(is_crowded=True)
    coming = iter((answered, busy, newcomer))
    with accepting(room, lambda listening: next(coming), 3):
        assert wait_for(lambda: busy.left)
        assert [one.left for one in (answered, busy, newcomer)] == [[], ["dismissed"], []]


def test_a_guest_whose_address_has_all_its_requests_with_the_workers_is_heard(room: ConnectionPool) -> None:
    stranger, guest = _Guest(origin="10.0.0.8"), _Guest(is_crowded=True)
    coming = iter((stranger, guest))
    with accepting(room, lambda listening: next(coming), 2):
        guest.pair[1].send(b"x")
        assert wait_for(lambda: guest.left)
        assert (stranger.left, guest.left) == ([], ["served"])


@contextmanager
def accepting(
    room: ConnectionPool, accept: Callable[[socket.socket], PendingConnection | None], number: int
) -> Iterator[None]:
    """The room listens, and so many clients have connected."""

    def accept_one(listening: socket.socket) -> PendingConnection | None:
        sock, _ = listening.accept()
        sock.close()
        return accept(listening)

    with socket.create_server(("127.0.0.1", 0)) as listening, ExitStack() as clients:
        listening.setblocking(False)
        for _ in range(number):
            clients.enter_context(socket.create_connection(listening.getsockname(), CEILING_SECONDS))
        room.start(listening, accept_one)
        yield


def test_without_descriptors_accepting_pauses_and_one_guest_makes_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection_pool, "PAUSE_SECONDS", 3600.0)
    room, first, later = ConnectionPool(most=3, most_bytes=100), _Guest(), _Guest()
    tried: list[int] = []

    def accept(listening: socket.socket) -> PendingConnection:
        tried.append(1)
        if len(tried) in (2, 3):
            raise OSError(errno.EMFILE, "Too many open files")
        return first if len(tried) == 1 else later

    with accepting(room, accept, 4):
        assert wait_for(lambda: first.left)
        # The waiting clients are not tried again before the pause is over, whatever else happens.
        visitor = _Guest(ends_at=0.0)
        room.enter(visitor)
        assert wait_for(lambda: visitor.left)
        assert len(tried) == 2
        for count in (3, 4):
            assert wait_for(lambda: room._accept_again_at > 0.0)
            room._accept_again_at = 0.0
            room._wake()
            assert wait_for(lambda count=count: len(tried) == count)
        assert [one.getMessage() for one in caplog.records if one.levelno > logging.DEBUG] == [
            'accept failed count=1 error="Too many open files"'
        ]
        assert later.left == []
        room.stop()
