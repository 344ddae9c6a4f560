"""Web server under clients that mean it harm: half requests, slow readers, bodies, ambiguous heads, wrong passwords."""

import base64
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
from waiting import CEILING_SECONDS, wait_for
from web_clients import STATUS, TOKEN, WELL, ask, basic, hash_password, issue, raw, serving, trusting, write_web_file

from agent.alerting.webhook import WebhookReceiver
from agent.config.web import Web, read_web_file
from agent.errors import ConfigError
from agent.http_server import credentials, server
from agent.http_server.credentials import Authenticator, read_tokens
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
    head = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    for number, status in ((5_000, b"400"), (3_000, b"400"), (500, b"200")):
        many = b"".join(b"X-%d: a\r\n" % name for name in range(number))
        assert raw(receiving, head + many + b"\r\n").startswith(b"HTTP/1.1 " + status)


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


# ---- tokens, passwords and the web configuration file ----


@pytest.fixture(name="server", scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "tokens").write_text(f"# rotated in May\n{TOKEN}\n\nthe-token-that-comes-after-it\n")
    # As htpasswd writes them.
    grace = hash_password("bögen").replace("$2b$", "$2y$")
    users = {"ada": hash_password("engine: 1843"), "grace": grace, "long": hash_password("x" * 72)}
    with serving(bearer_token_file=str(folder / "tokens"), config_file=write_web_file(folder, users)) as server:
        yield server


@pytest.mark.parametrize(
    "authorization",
    [f"Bearer {TOKEN}", f"bearer  {TOKEN}", "Bearer the-token-that-comes-after-it", basic("ada", "engine: 1843"),
     basic("grace", "bögen"), basic("long", "x" * 72), basic("long", "x" * 80)],
)  # fmt: skip
def test_known_credentials_are_let_in(server: WebServer, authorization: str) -> None:
    for _ in range(2):
        assert ask(server, "/runbooks/", Authorization=authorization)[0] == 200


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN, f"Token {TOKEN}", f"Bearer {TOKEN}\xff",
     "Bearer # rotated in May", basic("ada", "wrong"), basic("ada", ""), basic("grace", "engine: 1843"), basic("", ""),
     basic("nobody", "engine: 1843"), "Basic", "Basic !!!", "Basic " + base64.b64encode(b"ada").decode(),
     basic("ada", "engine: 1843\0"), "Basic " + base64.b64encode(b"\xff:x").decode(), "Basic \xe9"],
)  # fmt: skip
def test_other_credentials_are_always_refused(server: WebServer, authorization: str) -> None:
    assert ask(server, "/runbooks/", Authorization=basic("ada", "engine: 1843"))[0] == 200
    status, headers, _ = ask(server, "/runbooks/", Authorization=authorization)
    assert status == 401
    assert headers["www-authenticate"].endswith('Bearer realm="sizewatch"')


def test_unknown_name_is_hashed_as_often(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    matches = credentials._matches
    monkeypatch.setattr(credentials, "_matches", lambda *args: counted.append(args[0]) or matches(*args))
    server.reload()
    for name, password in (("ada", "engine: 1843"), ("ada", "engine: 1843"), ("ada", "guess"), ("eve", "guess")):
        ask(server, "/runbooks/", Authorization=basic(name, password))
    assert counted == [b"engine: 1843", b"guess", b"guess"]
    assert b"1843" not in repr(vars(server.pages.gate)).encode()


def test_password_is_of_one_user(tmp_path: Path) -> None:
    with serving(
        config_file=write_web_file(tmp_path, {"ada": hash_password("a"), "bob": hash_password("b")})
    ) as server:
        assert ask(server, "/runbooks/", Authorization=basic("eve", "a"))[0] == 401
        assert ask(server, "/runbooks/", Authorization=basic("ada", "a"))[0] == 200
        assert ask(server, "/runbooks/", Authorization=basic("bob", "a"))[0] == 401
        # A changed password is taken up without a restart, and the one before no longer counts.
        write_web_file(tmp_path, {"ada": hash_password("new")})
        server.reload()
        assert ask(server, "/runbooks/", Authorization=basic("ada", "a"))[0] == 401
        assert ask(server, "/runbooks/", Authorization=basic("ada", "new"))[0] == 200


def test_unusable_token_file_hides_its_secret(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    unusable = f"{path} must hold tokens of at least 16 ASCII characters without a space, one a line"
    for content, problem in (
        (b"short-secret\n", unusable),
        (b"this one has a space in it", unusable),
        ("a-token-that-is-sound\nt\u00f6kens-are-ascii-only-in-headers\n".encode(), unusable),
        (b"# nothing yet\n", unusable),
        (b"\xff", f"{path} cannot be read: it is no UTF-8 text"),
    ):
        path.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            read_tokens("web.bearer_token_file", str(path))
        assert caught.value.problems == (f"web.bearer_token_file: {problem}",)
    with pytest.raises(ConfigError, match="missing cannot be read: No such file"):
        read_tokens("web.bearer_token_file", str(tmp_path / "missing"))


TLS = "tls_server_config: {cert_file: c, key_file: k"

PROBLEMS: tuple[tuple[str, str], ...] = (
    ("basic_auth_users:\n  ada: a-plain-secret\n", ": basic_auth_users.ada: must be a bcrypt hash"),
    ("basic_auth_users: {ada: $2y$31$" + "a" * 53 + "}", ": basic_auth_users.ada: must be a bcrypt hash"),
    ("basic_auth_users:\n  ada: x\n  ada: y\n", ": basic_auth_users.ada: is given twice"),
    ("http_server_config: {http2: true}", ": http_server_config: is not a key"),
    ("rate_limit: {burst: 1}", ": rate_limit: is not a key"),
    (TLS + ", cipher_suites: [a]}", ": tls_server_config.cipher_suites: is not a key"),
    (TLS + ", client_allowed_sans: [a]}", ": tls_server_config.client_allowed_sans: is not a key"),
    (TLS + ", key: secret}", ": tls_server_config.key: is not a key"),
    (TLS + ", client_auth_type: RequireAnyClientCert}", ": tls_server_config.client_auth_type: must be"),
    (TLS + ", client_auth_type: RequireAndVerifyClientCert}", ": tls_server_config: client_ca_file goes with"),
    (TLS + ", client_ca_file: ca}", ": tls_server_config: client_ca_file goes with"),
    (TLS + ", min_version: TLS10}", ": tls_server_config.min_version: must be"),
    ("tls_server_config: {cert_file: c}", ": tls_server_config.key_file: is missing"),
    ("a secret\n", ": file: must be a mapping"),
    ("{", ": is not YAML"),
)


@pytest.mark.parametrize(("text", "problem"), PROBLEMS, ids=range(len(PROBLEMS)))
def test_web_file_problem_names_its_key(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "web.yml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        WebServer(Web.model_construct(config_file=str(path)), lambda: STATUS, lambda: WELL)
    assert any(f"{path}{problem}" in found for found in caught.value.problems), caught.value
    assert "secret" not in str(caught.value)


def test_web_files_are_relative_to_it(tmp_path: Path) -> None:
    tls = read_web_file(write_web_file(tmp_path, cert_file="a/c.pem", key_file="/k.pem")).tls_server_config
    assert (tls.cert_file, tls.key_file) == (str(tmp_path / "a" / "c.pem"), "/k.pem")
    with pytest.raises(ConfigError, match=r"missing\.yml: there is no such file"):
        read_web_file(str(tmp_path / "missing.yml"))
