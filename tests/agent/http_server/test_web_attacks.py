"""The web server against people who mean it harm: odd HTTP, slow crowds, strangers' pages, certificates that prove nothing."""

from __future__ import annotations

import base64
import http.client
import resource
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme
from status_samples import agent_status
from test_server import TOKEN, ask, issue, raw, serving, silent, trusting
from waiting import CEILING_SECONDS, wait_for

from agent.alerting.webhook import WebhookReceiver
from agent.errors import ConfigError
from agent.http_server import connections, credentials
from agent.http_server import server as web
from agent.http_server.connection_pool import READ
from agent.http_server.connections import LONG_BYTES, MOST_LONG
from agent.http_server.credentials import Authenticator, PasswordCheckError, hash_password, users_line
from agent.http_server.options import WEBHOOK, WebOptions
from agent.http_server.probes import TurnProgress
from agent.http_server.reply import Reply, text_reply
from agent.http_server.server import PROBES, ROUTES, WebServer


@pytest.fixture(name="server", scope="module")
def plain() -> Iterator[WebServer]:
    with serving() as server:
        yield server


NEXT = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
ODD: dict[str, bytes] = {
    "two lengths": HEAD + b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(NEXT) + NEXT,
    "length and chunks": HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + NEXT,
    "chunks and more": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + NEXT,
    "hidden chunks": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + NEXT,
    "negative length": HEAD + b"Content-Length: -1\r\n\r\n" + NEXT,
    "signed length": HEAD + b"Content-Length: +5\r\n\r\n" + NEXT,
    "length that is no digit": HEAD + b"Content-Length: \xb2\r\n\r\n" + NEXT,
    "length with a gap": HEAD + b"Content-Length: 1_0\r\n\r\n" + NEXT,
    "blank before the colon": HEAD + b"Content-Length : 5\r\n\r\n" + NEXT,
    "folded header": HEAD + b"X: a\r\n Content-Length: 5\r\n\r\n" + NEXT,
    "bare line feeds": b"GET /healthz HTTP/1.1\nHost: localhost\n\n" + NEXT,
    "pipelined": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n" + NEXT,
    "expectation": HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(NEXT) + NEXT,
    "huge chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" + NEXT,
    "absolute address": b"GET http://elsewhere/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" + NEXT,
    "tunnel": b"CONNECT elsewhere:443 HTTP/1.1\r\nHost: localhost\r\n\r\n" + NEXT,
    "nul in the path": b"GET /\0metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" + NEXT,
    "other version": b"GET /metrics HTTP/9.9\r\nHost: localhost\r\n\r\n" + NEXT,
    "upgrade": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n" + NEXT,
}


@pytest.mark.parametrize("what", ODD)
def test_no_odd_request_brings_a_second_answer(server: WebServer, what: str) -> None:
    result = raw(server, ODD[what])
    finals = result.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"").count(b"HTTP/1.1 ")
    assert finals <= 1
    assert b"sizewatch_target_up" not in result
    assert ask(server, "/healthz")[0] == 200


def test_many_headers_are_refused_as_one_long_one_is(server: WebServer) -> None:
    many = b"".join(b"X-%d: a\r\n" % number for number in range(5_000))
    assert raw(server, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + many + b"\r\n").startswith(b"HTTP/1.1 413")


def test_a_crowd_of_half_requests_from_one_address_leaves_the_others_their_turn() -> None:
    """A further connection of an address with many takes the place of its oldest idle one, and of nobody else's."""
    patient = {"head_seconds": 3600.0, "timeout_seconds": 3600.0}
    with (
        serving(threads=2, most_of_one_address=4, **patient) as server,
        socket.create_connection(("127.0.0.1", server.port), CEILING_SECONDS, ("127.0.0.2", 0)) as other,
        silent(server, 4, b"GET / HT") as crowd,
    ):
        assert wait_for(lambda: server._server._open == {"127.0.0.1": 4, "127.0.0.2": 1})
        assert ask(server, "/healthz")[0] == 200
        assert crowd[0].recv(100) == b""
        assert ask(server, "/metrics")[0] == 200
        # There was room again: nobody else had to go.
        assert wait_for(lambda: server._server._open == {"127.0.0.1": 3, "127.0.0.2": 1})
        other.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert other.recv(100).startswith(b"HTTP/1.1 200")
    assert not server._server._open


def _status(server: WebServer) -> int:
    """0 for one that was cut off."""
    try:
        return ask(server, "/api/status")[0]
    except (OSError, http.client.HTTPException):
        return 0


@contextmanager
def hanging(server: WebServer, monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[None]:
    """So many requests that are with the workers and get no answer."""
    goes_on, begun = threading.Event(), threading.Semaphore(0)

    def hang(status: object, request: object) -> Reply:
        begun.release()
        goes_on.wait()
        return text_reply("200 OK", "at last")

    monkeypatch.setattr(web, "ROUTES", {**ROUTES, "/hang": hang})
    asking = [threading.Thread(target=ask, args=(server, "/hang")) for _ in range(number)]
    asking[0].start()
    try:
        assert begun.acquire(timeout=CEILING_SECONDS)
        for one in asking[1:]:
            one.start()
        assert wait_for(lambda: server._server.requests.qsize == number - 1)
        yield
    finally:
        goes_on.set()
        for one in asking:
            one.join(CEILING_SECONDS)


EXPECT = b"Expect: 100-continue\r\nContent-Length: 4000\r\n\r\n"


@pytest.mark.parametrize("most_of_one_address", [16, 2])
def test_probes_and_refusals_need_no_worker(most_of_one_address: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # With 2 the hanging requests are all that this address may have at once.
    options = {"threads": 1, "waiting": 1, "most_of_one_address": most_of_one_address}
    with serving(**options) as server, hanging(server, monkeypatch, 2):
        server.receive(WebhookReceiver(Authenticator((TOKEN,))))
        for path in PROBES:
            assert ask(server, path)[0] == 200
            assert ask(server, path, "HEAD")[::2] == (200, b"")
        # A body is neither asked for nor waited for where the credentials are missing.
        assert raw(server, f"POST {WEBHOOK} HTTP/1.1\r\nHost: localhost\r\n".encode() + EXPECT)[9:12] == b"401"
        assert raw(server, HEAD + EXPECT)[9:12] == b"405"
        assert raw(server, b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n")[9:12] == b"400"
        status, headers, _ = ask(server, "/metrics")
        assert (status, headers["retry-after"]) == (503, "1")


def posting(length: int, more: str = "") -> bytes:
    return (
        f"POST {WEBHOOK} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n{more}\r\n"
    ).encode()


LONG_HEAD = b"GET / HTTP/1.1\r\n X: " + b"x" * 20_000


def test_a_head_without_an_end_is_refused_and_no_worker_reads_it() -> None:
    with serving() as server, socket.create_connection(("127.0.0.1", server.port), CEILING_SECONDS) as client:
        client.sendall(b"GET / HTTP/1.1\r\n X: folded\r\n")
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100)[9:12] == b"400"


@pytest.fixture(name="tls")
def _tls(tmp_path: Path) -> tuple[dict[str, str], ssl.SSLContext]:
    """Options of a server with a certificate, and its client's context."""
    authority = trustme.CA()
    certificate, key = issue(authority, tmp_path)
    return {"cert_file": certificate, "key_file": key}, trusting(authority)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(
    ("data", "status"), [(LONG_HEAD, b"413"), (posting(10**9), b"413"), (NEXT, b"200")], ids=["head", "body", "page"]
)
def test_a_client_that_still_sends_gets_its_answer(
    data: bytes,
    status: bytes,
    secure: bool,
    tls: tuple[dict[str, str], ssl.SSLContext],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that closes with unread data resets the connection, and the client may lose the answer."""
    monkeypatch.setattr(connections, "DRAIN_SECONDS", 3600.0)
    options, context = tls if secure else ({}, None)
    with serving(**options) as server:
        server.receive(WebhookReceiver(Authenticator((TOKEN,))))
        sock = socket.create_connection(("127.0.0.1", server.port), CEILING_SECONDS)
        with context.wrap_socket(sock, server_hostname="localhost") if context else sock as client:
            client.sendall(data)
            assert client.recv(100)[9:12] == status
            # It waits for the client, and no thread is busy with that.
            assert wait_for(lambda: list(server._server.pool._guests.values()) == [READ])
            for _ in range(3):
                client.sendall(b"x" * 10_000)
            while client.recv(65536):
                pass
            assert len(server._server.pool._guests) == 1
        assert wait_for(lambda: not server._server.pool._guests)
        assert not server._server._open


LONG_PAGE = text_reply("200 OK", "0123456789" * 600_000)
PATIENT = {"head_seconds": 3600.0, "timeout_seconds": 3600.0, "most_of_one_address": 2}


@contextmanager
def slow_reader(server: WebServer) -> Iterator[Callable[[], bytes]]:
    """A client that has read the begin of a long page. The function reads the rest and returns the page."""
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.settimeout(CEILING_SECONDS)
        reader.connect(("127.0.0.1", server.port))
        reader.sendall(b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n")
        begin = reader.recv(1000)
        assert wait_for(lambda: any(one.weight for one in list(server._server.pool._guests)))
        yield lambda: (begin + b"".join(iter(lambda: reader.recv(65536), b""))).partition(b"\r\n\r\n")[2]


@pytest.fixture(name="long_page")
def _long_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "ROUTES", {**ROUTES, "/long": lambda status, request: LONG_PAGE})


@pytest.mark.usefixtures("long_page")
def test_answered_clients_that_do_not_close_cost_nobody_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where one address has as many as it may, nor where the pool is full."""
    monkeypatch.setattr(connections, "DRAIN_SECONDS", 3600.0)
    with (
        serving(most_guests=4, **PATIENT) as server,
        silent(server, 1, b"GET / HT") as asking,
        slow_reader(server) as read_page,
        silent(server, 0) as answered,
    ):
        for number in range(12):
            source = (f"127.0.0.{2 + number % 3}", 0)
            answered.append(socket.create_connection(("127.0.0.1", server.port), CEILING_SECONDS, source))
            answered[-1].sendall(LONG_HEAD)
            assert answered[-1].recv(100)[9:12] == b"413"
        assert wait_for(lambda: server._server._open == {"127.0.0.1": 2})
        asking[0].sendall(b"TP/1.1 junk\r\n\r\n")
        assert asking[0].recv(100)[9:12] == b"400"
        assert read_page() == LONG_PAGE.body


@pytest.mark.usefixtures("long_page")
def test_of_a_crowded_address_an_incomplete_request_leaves_before_an_answer() -> None:
    with serving(**PATIENT) as server, slow_reader(server) as read_page, silent(server, 1, b"GET / HT") as asking:
        assert wait_for(lambda: len(server._server.pool._guests) == 2)
        assert ask(server, "/healthz")[0] == 200
        assert asking[0].recv(100) == b""
        assert read_page() == LONG_PAGE.body


def test_an_answered_client_that_does_not_close_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "DRAIN_SECONDS", 0.0)
    with serving(timeout_seconds=3600.0) as server, silent(server, 1, LONG_HEAD) as clients:
        assert clients[0].recv(100)[9:12] == b"413"
        assert wait_for(lambda: not server._server.pool._guests)


MESSAGE = b'{"version": "4", "alerts": []}'


def test_long_bodies_that_come_slowly_hold_no_worker() -> None:
    length = 500_000
    with serving(threads=1, head_seconds=3600.0, timeout_seconds=3600.0, busy_seconds=3600.0) as server:
        server.receive(WebhookReceiver(Authenticator((TOKEN,))))
        with silent(server, 8, posting(length) + b" " * 70_000) as senders:
            assert wait_for(lambda: sum(one.weight for one in list(server._server.pool._guests)) > 8 * 70_000)
            assert ask(server, "/metrics")[0] == 200
            senders[3].sendall(b" " * (length - 70_000 - len(MESSAGE)) + MESSAGE)
            assert senders[3].recv(100).startswith(b"HTTP/1.1 200")


def test_a_sender_that_waits_to_be_told_is_told_once_its_token_is_right() -> None:
    with serving() as server:
        server.receive(WebhookReceiver(Authenticator((TOKEN,))))
        with socket.create_connection(("127.0.0.1", server.port), CEILING_SECONDS) as sender:
            sender.sendall(posting(len(MESSAGE), "Expect: 100-continue\r\n"))
            assert sender.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            sender.sendall(MESSAGE)
            found = b"".join(iter(lambda: sender.recv(4096), b""))
        assert found.startswith(b"HTTP/1.1 200")
        assert found.count(b"HTTP/1.1") == 1


def test_of_long_bodies_only_so_many_are_with_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    length = 2 * LONG_BYTES
    with serving(threads=1) as server, hanging(server, monkeypatch, 1):
        server.receive(WebhookReceiver(Authenticator((TOKEN,))))
        with silent(server, MOST_LONG, posting(length) + b" " * (length - len(MESSAGE)) + MESSAGE):
            assert wait_for(lambda: server._server.requests.qsize == MOST_LONG)
            found = raw(server, posting(length) + b" " * length)
            assert found.startswith(b"HTTP/1.1 503")
            assert b"\r\nRetry-After: 1\r\n" in found
            assert len(server._server._long) == MOST_LONG
    assert not server._server._long


def test_a_crowd_that_comes_at_once_waits_to_be_accepted() -> None:
    """Without a place the system would drop it, and it would try again only a second later."""
    goes_on, begun = threading.Event(), threading.Event()

    def wait() -> TurnProgress:
        begun.set()
        goes_on.wait()
        return TurnProgress(seconds_since_turn=1.0)

    with serving(progress=wait) as server:
        try:
            with silent(server, 1, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"):
                assert begun.wait(CEILING_SECONDS)
                with silent(server, 100) as crowd:
                    assert len(crowd) == 100
        finally:
            goes_on.set()


def test_waiting_connections_leave_most_descriptors_to_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (64, 4096))
    with serving() as server:
        assert server._server.pool._most == 16
    monkeypatch.setattr("resource.getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with serving() as server:
        assert server._server.pool._most == WebOptions().most_guests


def test_a_head_that_is_not_there_in_time_is_not_waited_for_as_long_as_an_answer() -> None:
    with serving(head_seconds=0.3, timeout_seconds=3600.0) as server:
        # `raw` reads until the server hangs up, and raises where it does not.
        assert b"200 OK" not in raw(server, b"GET / HTTP/1.1\r\nHost: loc")


def test_an_answer_may_take_longer_than_a_head() -> None:
    def slow() -> object:
        time.sleep(0.5)
        return agent_status()

    with serving(slow, head_seconds=0.2, timeout_seconds=CEILING_SECONDS) as server:  # type: ignore[arg-type]
        # A busy machine may take longer than that for the head as well.
        assert wait_for(lambda: _status(server) == 200)


def login(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


ADA, EVE = login("ada", "secret"), login("eve", "guess")


@contextmanager
def checking(gate: Authenticator, checks: Iterable[tuple[str, str]]) -> Iterator[None]:
    """Passwords with their addresses that are being checked."""
    asking = [threading.Thread(target=gate.admits, args=one) for one in checks]
    with gate._hashing:
        for one in asking:
            one.start()
        assert wait_for(lambda: len(gate._checks) == len(asking))
        yield
    for one in asking:
        one.join(CEILING_SECONDS)


@pytest.fixture(name="gate")
def _gate(monkeypatch: pytest.MonkeyPatch) -> Authenticator:
    monkeypatch.setattr(credentials, "BUSY_SECONDS", CEILING_SECONDS)
    return Authenticator(users={"ada": hash_password(b"secret", b"0123456789abcdef")})


def test_a_flood_of_wrong_passwords_holds_three_threads_at_most(gate: Authenticator) -> None:
    with checking(gate, ((EVE, f"10.0.0.{number}") for number in range(3))), pytest.raises(PasswordCheckError):
        gate.admits(ADA, "10.0.0.7")
    assert gate.admits(ADA, "10.0.0.7")


def test_wrong_passwords_of_one_address_leave_another_its_check(gate: Authenticator) -> None:
    with checking(gate, ((EVE, "10.0.0.1"), (login("mallory", "guess"), "10.0.0.1"))):
        with pytest.raises(PasswordCheckError):
            gate.admits(login("trent", "guess"), "10.0.0.1")
        found: list[bool] = []
        other = threading.Thread(target=lambda: found.append(gate.admits(ADA, "10.0.0.2")))
        other.start()
        assert wait_for(lambda: len(gate._checks) == 3)
    other.join(CEILING_SECONDS)
    assert found == [True]


def test_wrong_passwords_of_one_user_leave_another_user_of_the_address_its_check(gate: Authenticator) -> None:
    with checking(gate, ((EVE, "10.0.0.1"),)):
        with pytest.raises(PasswordCheckError):
            gate.admits(login("eve", "another guess"), "10.0.0.1")
        found: list[bool] = []
        other = threading.Thread(target=lambda: found.append(gate.admits(ADA, "10.0.0.1")))
        other.start()
        assert wait_for(lambda: len(gate._checks) == 2)
    other.join(CEILING_SECONDS)
    assert found == [True]
    # The same password twice is no second guess.
    with checking(gate, ((EVE, "10.0.0.1"), (EVE, "10.0.0.1"))):
        pass


def test_a_known_password_is_let_in_whatever_else_is_checked(gate: Authenticator) -> None:
    assert gate.admits(ADA)
    with checking(gate, ((EVE, f"10.0.0.{number}") for number in range(3))):
        assert gate.knows(ADA)
        assert gate.admits(ADA, "10.0.0.0")


def test_a_password_that_cannot_be_checked_now_gets_503_and_not_401(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "BUSY_SECONDS", CEILING_SECONDS)
    file = tmp_path / "users"
    file.write_text(users_line("ada", b"secret"))
    with serving(basic_auth_users_file=str(file)) as server:
        with checking(server._gate, ((EVE, f"10.0.0.{number}") for number in range(3))):
            status, headers, _ = ask(server, "/metrics", Authorization=ADA)
            assert (status, headers["retry-after"]) == (503, "1")
        assert wait_for(lambda: ask(server, "/metrics", Authorization=ADA)[0] == 200)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9095", "localhost.evil.example", "127.0.0.1.evil.example", "[", "a b"]
)
def test_a_strangers_name_that_leads_to_this_machine_reads_nothing(server: WebServer, host: str) -> None:
    """DNS rebinding: a page in a browser here is of the same origin as what its own name leads to."""
    for path in ("/", "/metrics", "/api/status", "/reports/", "/runbooks/", "/runbooks/TierDown"):
        status, _, body = ask(server, path, Host=host)
        assert status in (400, 421), path
        assert b"sizewatch_" not in body
    assert ask(server, "/healthz", Host=host)[0] in (200, 400)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9095", "127.0.0.1:9095", "[::1]:9095", "10.0.0.7", "x.localhost", "watch.corp"]
)
def test_names_that_lead_here_rightly_are_answered(host: str) -> None:
    with serving(hosts=("watch.corp",)) as server:
        assert ask(server, "/api/status", Host=host)[0] == 200


def test_where_credentials_are_asked_for_the_name_does_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    with serving(bearer_token_file=str(file)) as server:
        assert ask(server, "/metrics", Host="a.proxy", Authorization=f"Bearer {TOKEN}")[0] == 200


def test_another_origin_is_allowed_nothing(server: WebServer) -> None:
    for method in ("GET", "OPTIONS", "POST"):
        for path in (*ROUTES, *PROBES, WEBHOOK, "/reports/", "/runbooks/TierDown"):
            headers = ask(server, path, method, Origin="https://evil.example", Access_Control_Request_Method="GET")[1]
            assert not [name for name in headers if name.startswith("access-control-")]
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert headers["x-frame-options"] == "DENY"


def test_no_answer_leaves_a_cookie_or_what_a_request_said(server: WebServer) -> None:
    for path in ("/", "/<script>x</script>", "/reports/<b>", "/runbooks/<b>", "/api/status?x=<script>"):
        status, headers, body = ask(
            server, path.replace("<", "%3C").replace(">", "%3E"), Cookie="a=b", User_Agent="<b>"
        )
        assert "set-cookie" not in headers
        assert b"<script>" not in body
        if status == 404:
            assert headers["content-type"] == "text/plain; charset=utf-8"


def test_a_browser_cannot_be_led_to_send_an_alert() -> None:
    """What a page elsewhere can send without asking first (a form, a plain text) is refused; the token no page has."""
    gate = Authenticator((TOKEN,))
    with serving() as server:
        server.receive(WebhookReceiver(gate))
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            for token in ("", f"Bearer {TOKEN}"):
                status = ask(server, WEBHOOK, "POST", Content_Type=kind, Content_Length="0", Authorization=token)[0]
                assert status == (415 if token else 401)


@pytest.fixture(name="authority", scope="module")
def _authority() -> trustme.CA:
    return trustme.CA()


def client(authority: trustme.CA, of: trustme.CA | None, folder: Path) -> ssl.SSLContext:
    """One that trusts the server, and shows a certificate of this authority where one is given."""
    context = trusting(authority)
    if of is not None:
        made = of.issue_cert("reader@example.org")
        place = folder / "client.pem"
        made.private_key_and_cert_chain_pem.write_to_path(place)
        context.load_cert_chain(place)
    return context


def test_with_a_client_ca_only_its_certificates_read_and_the_health_page_asks_for_none(
    authority: trustme.CA, tmp_path: Path
) -> None:
    certificate, key = issue(authority, tmp_path)
    readers, strangers = trustme.CA(), trustme.CA()
    ca = tmp_path / "readers.pem"
    readers.cert_pem.write_to_path(ca)
    with serving(cert_file=certificate, key_file=key, client_ca_file=str(ca)) as server:
        server.receive(WebhookReceiver(Authenticator((TOKEN,))))
        nobody, reader = client(authority, None, tmp_path), client(authority, readers, tmp_path)
        for path in (*ROUTES, *PROBES):
            assert ask(server, path, tls=reader)[0] == 200
            assert ask(server, path, tls=nobody)[0] == (200 if path == "/healthz" else 403)
        assert ask(server, "/reports/", tls=nobody)[0] == 403
        assert ask(server, "/runbooks/", tls=nobody)[0] == 403
        assert ask(server, WEBHOOK, "POST", tls=nobody, Authorization=f"Bearer {TOKEN}")[0] == 403
        assert ask(server, "/metrics", tls=nobody, SSL_CLIENT_VERIFY="SUCCESS")[0] == 403
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask(server, "/healthz", tls=client(authority, strangers, tmp_path))
        # The machine's own store of CAs vouches for nobody here.
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask(server, "/metrics", tls=client(authority, authority, tmp_path))


def test_a_client_ca_is_renewed_by_a_reload_and_a_broken_one_changes_nothing(
    authority: trustme.CA, tmp_path: Path
) -> None:
    certificate, key = issue(authority, tmp_path)
    first, second = trustme.CA(), trustme.CA()
    ca = tmp_path / "readers.pem"
    first.cert_pem.write_to_path(ca)
    with serving(cert_file=certificate, key_file=key, client_ca_file=str(ca)) as server:
        second.cert_pem.write_to_path(ca)
        server.reload()
        assert ask(server, "/metrics", tls=client(authority, second, tmp_path))[0] == 200
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask(server, "/metrics", tls=client(authority, first, tmp_path))
        ca.write_text("nothing")
        with pytest.raises(ConfigError, match=r"web.tls: .*readers.pem cannot be used"):
            server.reload()
        assert ask(server, "/metrics", tls=client(authority, second, tmp_path))[0] == 200


def test_the_oldest_tls_can_be_raised_and_every_cipher_keeps_its_secrets_forward(
    authority: trustme.CA, tmp_path: Path
) -> None:
    certificate, key = issue(authority, tmp_path)
    old = trusting(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with serving(cert_file=certificate, key_file=key, min_version="1.3") as server:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask(server, "/healthz", tls=old)
        assert ask(server, "/healthz", tls=trusting(authority))[0] == 200
    with serving(cert_file=certificate, key_file=key) as server:
        assert ask(server, "/healthz", tls=old)[0] == 200
        assert server._tls is not None
        ciphers = server._tls.context.get_ciphers()
        assert ciphers
        for one in ciphers:
            assert one["protocol"] == "TLSv1.3" or one["name"].startswith(("ECDHE-", "DHE-")), one["name"]
            assert not [word for word in ("RC4", "3DES", "NULL", "EXPORT", "MD5") if word in one["name"]]


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_at_the_terminal(
    authority: trustme.CA, tmp_path: Path
) -> None:
    certificate, key = issue(authority, tmp_path)
    locked = tmp_path / "locked.key"
    words = ["openssl", "pkcs8", "-topk8", "-in", key, "-out", str(locked), "-passout", "pass:secret"]
    subprocess.run(words, check=True, capture_output=True, timeout=CEILING_SECONDS)
    with pytest.raises(ConfigError, match=r"web.tls: .*locked.key cannot be used"):
        WebServer(WebOptions(port=0, cert_file=certificate, key_file=str(locked)), agent_status, TurnProgress)


def test_a_variable_that_a_parent_left_does_not_decide_where_is_listened(monkeypatch: pytest.MonkeyPatch) -> None:
    """cheroot takes LISTEN_PID, whosever it is, as word that file descriptor 3 is its socket."""
    monkeypatch.setenv("LISTEN_PID", "1")
    with serving() as server:
        assert ask(server, "/healthz")[0] == 200
