"""Web server under clients that mean it harm: half requests, slow readers, bodies, ambiguous heads, wrong passwords."""

import http.client
import logging
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trustme
from test_credentials import basic, hash_password
from waiting import CEILING_SECONDS, wait_for
from web_clients import TOKEN, ask, issue, raw, serving, trusting, write_web_file

from agent.alerting.webhook import WebhookReceiver
from agent.http_server import credentials, server
from agent.http_server.credentials import Authenticator
from agent.http_server.pages import WEBHOOK
from agent.http_server.server import WebServer
from exporters.metrics import exposition

HEAD = b"POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n" % (
    WEBHOOK.encode(),
    TOKEN.encode(),
)
HALF_REQUESTS = (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX-A: ")


@contextmanager
def connected(web: WebServer, number: int, data: bytes = b"") -> Iterator[list[socket.socket]]:
    """Clients that connect, send this much and no more."""
    with ExitStack() as opened:
        clients = []
        for _ in range(number):
            address = ("127.0.0.1", web.port)
            clients.append(opened.enter_context(socket.create_connection(address, timeout=CEILING_SECONDS)))
            clients[-1].sendall(data)
        yield clients


def read_all(client: socket.socket) -> bytes:
    """Return what a client is sent until its connection ends."""
    received = b""
    try:
        while data := client.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return received


def is_healthy(web: WebServer, tls: ssl.SSLContext | None = None) -> bool:
    try:
        return ask(web, "/healthz", tls=tls)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


@pytest.fixture(name="receiving")
def served_webhook() -> Iterator[WebServer]:
    with serving() as web:
        web.pages.receiver = WebhookReceiver(Authenticator((TOKEN,))).receive
        yield web


def test_half_open_connections_delay_nobody() -> None:
    with serving() as web, ExitStack() as crowd:
        for data in HALF_REQUESTS:
            crowd.enter_context(connected(web, 70, data))
        for path in ("/healthz", "/metrics"):
            assert ask(web, path)[0] == 200


def test_half_requests_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.3)
    with serving() as web:
        for data in HALF_REQUESTS:
            with connected(web, 4, data) as clients:
                assert [read_all(client) for client in clients] == [b""] * 4
        with connected(web, 1, b"GET / HTTP/1.1\r\nX: ") as (client,):
            give_up_at, ended = time.monotonic() + CEILING_SECONDS, False
            while not ended and time.monotonic() < give_up_at:
                try:
                    client.sendall(b"x")
                except OSError:
                    ended = True
                time.sleep(0.05)
            assert ended
        # Neither does the next request on a connection that had its answer.
        monkeypatch.setattr(server, "ANSWER_SECONDS", 0.6)
        with connected(web, 1, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /he") as (client,):
            assert read_all(client).endswith(b"ok\n")


def test_oldest_connections_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 8)
    with serving() as web, connected(web, 20) as clients:
        assert [client.recv(1) for client in clients[:12]] == [b""] * 12
        assert ask(web, "/metrics")[0] == 200


def test_slow_reader_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "ANSWER_SECONDS", 1.0)
    parts = (b"x" * 65_536,) * 10_000
    monkeypatch.setattr(exposition, "render_parts", lambda status, accept: (iter(parts), "text/plain"))
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving() as web, ExitStack() as opened:
        clients = []
        for _ in range(8):
            client = opened.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(CEILING_SECONDS)
            client.connect(("127.0.0.1", web.port))
            client.sendall(request)
            clients.append(client)
        assert wait_for(lambda: is_healthy(web))
        assert wait_for(lambda: not web._servers[0].state.connections)
        assert max(len(read_all(client)) for client in clients) < 100 * 65_536


def test_missing_body_ends_without_an_error(
    receiving: WebServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "ANSWER_SECONDS", 0.3)
    for data in (HEAD + b"Content-Length: 1000\r\n\r\n{", HEAD + b"Content-Length: 900000\r\n\r\n" + b" " * 100_000):
        with connected(receiving, 20, data) as clients:
            assert wait_for(lambda: is_healthy(receiving))
            for client in clients:
                read_all(client)
    assert receiving.pages._errors == 0
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


def test_large_bodies_are_refused_unread(receiving: WebServer) -> None:
    for path, status in ((b"/", b"405"), (b"/metrics", b"405"), (WEBHOOK.encode(), b"401")):
        head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n" % path
        with connected(receiving, 1, head) as (client,):
            assert client.recv(65_536).startswith(b"HTTP/1.1 " + status)
    assert raw(receiving, HEAD + b"Content-Length: 99999999\r\n\r\n").startswith(b"HTTP/1.1 413 ")
    assert raw(receiving, HEAD + b"Transfer-Encoding: chunked\r\n\r\n").startswith(b"HTTP/1.1 411 ")
    assert raw(receiving, b"GET /" + b"a" * 20_000).startswith(b"HTTP/1.1 400 ")
    many = b"".join(b"X-%d: a\r\n" % number for number in range(5_000))
    assert raw(receiving, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + many).startswith(b"HTTP/1.1 400 ")


def test_refused_body_is_no_request(receiving: WebServer) -> None:
    inside = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(inside)
    result = raw(receiving, head + inside)
    assert result.startswith(b"HTTP/1.1 405 ")
    assert result.count(b"HTTP/1.1 ") == 1


AMBIGUOUS: dict[str, bytes] = {
    "two lengths": b"Content-Length: 0\r\nContent-Length: 50\r\n",
    "hidden chunks": b"Transfer-Encoding: xchunked\r\n",
    "negative length": b"Content-Length: -1\r\n",
    "length that is no digit": b"Content-Length: \xb2\r\n",
    "blank before the colon": b"Content-Length : 5\r\n",
    "two hosts": b"Host: elsewhere\r\n",
    "nul": b"X: a\0b\r\n",
}


@pytest.mark.parametrize("header", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_ambiguous_head_is_refused(receiving: WebServer, header: bytes, caplog: pytest.LogCaptureFixture) -> None:
    next_request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    result = raw(receiving, b"POST / HTTP/1.1\r\nHost: localhost\r\n" + header + b"\r\n" + next_request)
    assert result.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 "))
    assert result.count(b"HTTP/1.1 ") == 1
    assert caplog.text == ""


def test_wrong_passwords_delay_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text(TOKEN)
    file = write_web_file(tmp_path, {"ada": hash_password("ada")})
    matches, goes_on, running, most = credentials._matches, threading.Event(), [], [0]

    def slow(password: bytes, hashed: bytes) -> bool:
        if password.startswith(b"guess"):
            running.append(password)
            most[0] = max(most[0], len(running))
            goes_on.wait()
            running.remove(password)
        return matches(password, hashed)

    monkeypatch.setattr(credentials, "_matches", slow)
    with serving(config_file=file, bearer_token_file=str(tmp_path / "token")) as web:
        assert ask(web, "/metrics", Authorization=basic("ada", "ada"))[0] == 200
        statuses = []

        def guess(number: int) -> None:
            statuses.append(ask(web, "/metrics", Authorization=basic("ada", f"guess{number}"))[0])

        guesses = [threading.Thread(target=guess, args=(number,)) for number in range(40)]
        for thread in guesses:
            thread.start()
        assert wait_for(lambda: running)
        # The probe, a password that was right before, and a token.
        assert ask(web, "/healthz")[0] == 200
        for authorization in (basic("ada", "ada"), f"Bearer {TOKEN}"):
            assert ask(web, "/metrics", Authorization=authorization)[0] == 200
        goes_on.set()
        for thread in guesses:
            thread.join()
    assert statuses == [401] * 40
    assert most[0] <= 2


def test_stop_waits_for_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as web:
        web.pages.receiver = WebhookReceiver(Authenticator((TOKEN,))).receive
        half_a_body = HEAD + b"Content-Length: 1000\r\n\r\n{"
        with connected(web, 2, half_a_body), connected(web, 2, b"GET / HT"):
            ask(web, "/healthz")
            web.stop()
            assert not web._servers[0].thread.is_alive()
    assert "Traceback" not in caplog.text


def test_clients_without_tls_are_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 1.0)
    authority = trustme.CA()
    issue(authority, tmp_path)
    with (
        serving(config_file=write_web_file(tmp_path, cert_file="server.pem", key_file="server.key")) as web,
        connected(web, 50) as silent,
    ):
        assert b"HTTP/1.1 200" not in raw(web, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for number in range(12):
            with connected(web, 1, random.Random(number).randbytes(50 + number)) as (client,):
                read_all(client)
        assert wait_for(lambda: is_healthy(web, trusting(authority)))
        assert [read_all(client) for client in silent] == [b""] * 50
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
