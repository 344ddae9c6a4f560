"""The web server against people who mean it harm: odd HTTP, slow crowds, strangers' pages, certificates that prove nothing."""

from __future__ import annotations

import http.client
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from status_samples import agent_status
from test_server import TOKEN, ask, issue, raw, serving, silent, trusting
from waiting import CEILING_SECONDS, wait_for

from agent.alerting.webhook import WebhookReceiver
from agent.errors import ConfigError
from agent.http_server.credentials import Authenticator, hash_password
from agent.http_server.options import WEBHOOK, WebOptions
from agent.http_server.server import ROUTES, WebServer


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
    """One address may hold so many connections; its own further ones are hung up on, those of others answered."""
    patient = {"head_seconds": 3600.0, "timeout_seconds": 3600.0}
    with serving(threads=2, most_of_one_address=4, **patient) as server, silent(server, 4, b"GET / HT"):
        assert wait_for(lambda: sum(server._server._open.values()) == 4)
        assert hung_up(server)
        place, elsewhere = ("127.0.0.1", server.port), ("127.0.0.2", 0)
        with socket.create_connection(place, timeout=CEILING_SECONDS, source_address=elsewhere) as other:
            other.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert other.recv(100).startswith(b"HTTP/1.1 200")
    assert not server._server._open


def _status(server: WebServer) -> int:
    """0 for one that was cut off."""
    try:
        return ask(server, "/api/status")[0]
    except (OSError, http.client.HTTPException):
        return 0


def hung_up(server: WebServer) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=CEILING_SECONDS) as further:
            return further.recv(100) == b""
    except ConnectionResetError:
        return True


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


def test_a_flood_of_wrong_passwords_holds_three_threads_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Authenticator(users={"ada": hash_password(b"secret", b"0123456789abcdef")})
    gate._hashing.acquire()
    waiting = [threading.Thread(target=gate.admits, args=("Basic YWRhOmd1ZXNz",), daemon=True) for _ in range(3)]
    for one in waiting:
        one.start()
    assert wait_for(lambda: gate._places._value == 0)  # type: ignore[attr-defined]
    # The places are taken for as long as the one that hashes does: whoever waited would wait for ever.
    assert not gate.admits("Basic YWRhOmd1ZXNz")
    gate._hashing.release()
    for one in waiting:
        one.join(CEILING_SECONDS)
    assert gate.admits("Basic YWRhOnNlY3JldA==")


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
        for path in (*ROUTES, WEBHOOK, "/reports/", "/runbooks/TierDown"):
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
        for path in ROUTES:
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
        WebServer(WebOptions(port=0, cert_file=certificate, key_file=str(locked)), agent_status)


def test_a_variable_that_a_parent_left_does_not_decide_where_is_listened(monkeypatch: pytest.MonkeyPatch) -> None:
    """cheroot takes LISTEN_PID, whosever it is, as word that file descriptor 3 is its socket."""
    monkeypatch.setenv("LISTEN_PID", "1")
    with serving() as server:
        assert ask(server, "/healthz")[0] == 200
