"""The web server over real sockets: routes, refusals, TLS, slow and silent clients, a loop that hangs."""

import gzip
import http.client
import json
import logging
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families
from status_samples import NOW, agent_status
from waiting import CEILING_SECONDS, free_port, wait_for

from agent.config.config import Web
from agent.errors import ConfigError
from agent.http_server.options import WebOptions, options_of
from agent.http_server.probes import TurnProgress
from agent.http_server.server import PROBES, ROUTES, WebServer
from exporters.metrics import exposition
from exporters.status.records import AgentStatus

STATUS = agent_status()
WELL = TurnProgress(seconds_since_turn=4.0)
TOKEN = "an-honest-token-of-32-characters"


@contextmanager
def serving(
    source: Callable[[], AgentStatus | None] = lambda: STATUS,
    progress: Callable[[], TurnProgress] = lambda: WELL,
    **options: Any,
) -> Iterator[WebServer]:
    server = WebServer(WebOptions(**{"port": 0, **options}), source, progress)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def ask(
    server: WebServer, path: str = "/", method: str = "GET", tls: ssl.SSLContext | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers (lower case) and body of one request; `headers` with _ for -."""
    if tls is None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=CEILING_SECONDS)
    else:
        connection = http.client.HTTPSConnection("localhost", server.port, timeout=CEILING_SECONDS, context=tls)
    try:
        connection.request(method, path, headers={key.replace("_", "-"): value for key, value in headers.items()})
        result = connection.getresponse()
        return result.status, {key.lower(): value for key, value in result.getheaders()}, result.read()
    finally:
        connection.close()


def raw(server: WebServer, data: bytes) -> bytes:
    """Everything that comes back for these bytes until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=CEILING_SECONDS) as sock:
        sock.sendall(data)
        return b"".join(iter(lambda: sock.recv(65536), b""))


@pytest.fixture(scope="module")
def plain() -> Iterator[WebServer]:
    with serving() as server:
        yield server


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/metrics", "text/plain; version=0.0.4; charset=utf-8"),
        ("/api/status", "application/json"),
        ("/healthz", "text/plain; charset=utf-8"),
        ("/readyz", "text/plain; charset=utf-8"),
    ],
)
def test_every_route_answers_with_its_type_and_the_security_headers(
    plain: WebServer, path: str, content_type: str
) -> None:
    status, headers, body = ask(plain, path)
    assert (status, headers["content-type"]) == (200, content_type)
    assert body
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert path in {**ROUTES, **PROBES}


def test_the_page_allows_its_own_style_and_nothing_else(plain: WebServer) -> None:
    policy = ask(plain, "/")[1]["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_the_json_and_the_metrics_are_those_of_the_status(plain: WebServer) -> None:
    assert json.loads(ask(plain, "/api/status")[2])["now"] == NOW
    families = {f.name for f in text_string_to_metric_families(ask(plain, "/metrics")[2].decode())}
    assert "sizewatch_target_up" in families


def test_the_asker_gets_openmetrics_and_gzip_for_the_asking(plain: WebServer) -> None:
    _, headers, body = ask(
        plain, "/metrics", Accept="application/openmetrics-text;version=1.0.0", Accept_Encoding="gzip"
    )
    assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert headers["content-encoding"] == "gzip"
    assert headers["transfer-encoding"] == "chunked"
    assert gzip.decompress(body).endswith(b"# EOF\n")


def test_stopping_is_a_matter_of_moments() -> None:
    with serving(head_seconds=3600.0, timeout_seconds=3600.0) as server, silent(server, 2, b"GET / HT"):
        ask(server)
        stopping = threading.Thread(target=server.stop, daemon=True)
        stopping.start()
        stopping.join(CEILING_SECONDS)
        # Nobody is waited for, not even one that has begun.
        assert not stopping.is_alive()


def test_stopping_waits_for_no_request_that_has_no_worker() -> None:
    hangs, goes_on, asked = threading.Event(), threading.Event(), []

    def source() -> AgentStatus:
        hangs.set()
        goes_on.wait()
        asked.append(1)
        return STATUS

    with serving(source, threads=1) as server, silent(server, 1, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        assert hangs.wait(CEILING_SECONDS)
        with silent(server, 5, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n") as waiting:
            assert wait_for(lambda: server._server.requests.qsize == 5)
            stopping = threading.Thread(target=server.stop)
            stopping.start()
            assert [one.recv(1) for one in waiting] == [b""] * 5
            goes_on.set()
            stopping.join(CEILING_SECONDS)
    assert asked == [1]


def test_head_tells_the_headers_without_the_page(plain: WebServer) -> None:
    status, headers, body = ask(plain, "/", method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 1000
    status, headers, body = ask(plain, "/metrics", method="HEAD")
    assert (status, body) == (200, b"")
    assert headers["content-type"].startswith("text/plain; version=0.0.4")


def test_metrics_that_fail_while_they_are_sent_are_no_whole_page(
    plain: WebServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(status: AgentStatus, accept: str) -> tuple[Iterator[bytes], str]:
        def parts() -> Iterator[bytes]:
            yield b"a 1\n"
            raise RuntimeError("a defect")

        return parts(), "text/plain"

    monkeypatch.setattr(exposition, "render_parts", fail)
    with pytest.raises(http.client.IncompleteRead):
        ask(plain, "/metrics")
    monkeypatch.undo()
    assert "a defect" in caplog.text
    assert b"\nsizewatch_web_errors_total 1.0\n" in ask(plain, "/metrics")[2]


@pytest.mark.parametrize("protocol", ["1.0", "1.1"])
def test_a_page_whose_first_part_fails_is_an_error(
    plain: WebServer, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    def fail(status: object, accept: str) -> tuple[Iterator[bytes], str]:
        return (b"%d" % (1 // 0) for _ in "a"), "text/plain"

    monkeypatch.setattr(exposition, "render_parts", fail)
    for method in ("GET", "HEAD"):
        asked = f"{method} /metrics HTTP/{protocol}\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        assert raw(plain, asked).startswith(b"HTTP/1.1 500 ")


def test_a_client_of_http_1_0_gets_a_length_with_the_page(plain: WebServer) -> None:
    head, _, body = raw(plain, b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").partition(b"\r\n\r\n")
    assert b"\r\nContent-Length: %d" % len(body) in head
    assert b"chunked" not in head
    assert body.endswith(b"\n")


def test_a_page_can_be_asked_to_keep_still(plain: WebServer) -> None:
    assert b'http-equiv="refresh"' in ask(plain, "/")[2]
    assert b'http-equiv="refresh"' not in ask(plain, "/?paused=1")[2]


def test_no_answer_tells_what_software_of_which_version_serves(plain: WebServer) -> None:
    results = [
        raw(plain, b"GET / HTTP/1.0\r\n\r\n"),
        raw(plain, b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n"),
        raw(plain, b"nonsense\r\n\r\n"),
    ]
    for result in results:
        head = result.partition(b"\r\n\r\n")[0].lower()
        assert head.startswith(b"http/1.1 ")
        assert not [word for word in (b"cheroot", b"python", b"cherrypy") if word in head]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_whatever_is_not_get_or_head_is_refused(plain: WebServer, method: str) -> None:
    status, headers, _ = ask(plain, "/metrics", method=method)
    assert (status, headers["allow"]) == (405, "GET, HEAD")


def test_a_post_with_a_body_gets_its_refusal_and_the_body_is_no_next_request(plain: WebServer) -> None:
    body = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    result = raw(plain, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    assert result.startswith(b"HTTP/1.1 405")
    assert result.count(b"HTTP/1.1") == 1


def test_a_chunked_body_is_no_next_request_either(plain: WebServer) -> None:
    result = raw(plain, b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert result.startswith(b"HTTP/1.1 405")
    assert result.count(b"HTTP/1.1") == 1


def test_requests_that_are_too_large_are_refused_before_they_are_read(plain: WebServer) -> None:
    assert raw(plain, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n").startswith(b"HTTP/1.1 413")
    long_uri = b"GET /" + b"a" * 20_000
    assert raw(plain, long_uri).startswith(b"HTTP/1.1 414")
    many = b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000
    assert raw(plain, many).startswith(b"HTTP/1.1 413")


def test_what_does_not_exist_is_not_found(plain: WebServer) -> None:
    for path in ("/nothing", "/metrics/", "/../etc/passwd", "/%2e%2e/", "/static/app.js"):
        assert ask(plain, path)[0] == 404


def test_it_listens_on_loopback_unless_told_otherwise() -> None:
    assert WebOptions().host == "127.0.0.1"
    assert options_of(Web()) == WebOptions()
    with serving() as server:
        assert server.url == f"http://127.0.0.1:{server.port}/"
        assert server.port != 0


def test_every_address_of_the_machine_is_listened_on_when_told_so() -> None:
    with serving(host="") as server:
        assert ask(server, "/healthz")[0] == 200
        assert server.url == f"http://127.0.0.1:{server.port}/"


def test_before_the_first_turn_it_lives_and_is_not_ready() -> None:
    with serving(lambda: None, TurnProgress) as server:
        assert ask(server, "/healthz")[0] == 200
        for path in ("/readyz", "/metrics", "/api/status"):
            assert ask(server, path)[0] == 503
        status, headers, body = ask(server, "/")
        assert (status, headers["refresh"]) == (503, "2")
        assert b"first turn" in body


def test_a_loop_whose_turns_have_stopped_is_ill() -> None:
    with serving(progress=lambda: TurnProgress(seconds_since_turn=301.0)) as server:
        for path in ("/healthz", "/readyz"):
            status, _, body = ask(server, path)
            assert (status, body) == (503, b"the last turn ended 301 s ago\n")


@pytest.mark.parametrize(("failed", "code"), [(1, 200), (2, 200), (3, 503)])
def test_turns_that_all_fail_are_ill_and_never_ready(failed: int, code: int) -> None:
    with serving(progress=lambda: TurnProgress(failed_in_row=failed)) as server:
        assert ask(server, "/readyz")[0] == 503
        status, _, body = ask(server, "/healthz")
        assert status == code
        assert code == 200 or body == b"the last 3 turns failed, the agent's log says why\n"


def test_no_first_turn_in_time_is_ill() -> None:
    with serving(lambda: None, TurnProgress, stuck_after_seconds=0.0) as server:
        status, _, body = ask(server, "/healthz")
        assert status == 503
        assert body.startswith(b"no turn has succeeded in the ")


def test_a_page_that_cannot_be_made_is_told_in_the_log_and_counted_and_shows_no_traceback(caplog: Any) -> None:
    results: list[AgentStatus | Exception] = [RuntimeError("secret detail"), STATUS]

    def source() -> AgentStatus:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    with serving(source) as server, caplog.at_level(logging.ERROR):
        status, headers, body = ask(server, "/metrics")
        assert status == 500
        assert b"secret" not in body
        assert b"Traceback" not in body
        assert headers["x-content-type-options"] == "nosniff"
        assert "secret detail" in caplog.text
        assert b"\nsizewatch_web_errors_total 1.0\n" in ask(server, "/metrics")[2]


def test_a_loop_that_hangs_costs_one_thread_and_the_others_say_so() -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def source() -> AgentStatus:
        hangs.set()
        goes_on.wait()
        return STATUS

    with serving(source, busy_seconds=0.05) as server:
        first = threading.Thread(target=ask, args=(server, "/metrics"))
        first.start()
        assert hangs.wait(CEILING_SECONDS)
        # The probes wait for no loop.
        assert [ask(server, path)[0] for path in PROBES] == [200, 200]
        for path in ROUTES:
            status, _, body = ask(server, path)
            assert (status, body[:32]) == (503, b"no answer from the agent's loop ")
        goes_on.set()
        first.join()
        assert ask(server, "/metrics")[0] == 200


@contextmanager
def silent(server: WebServer, number: int, data: bytes = b"") -> Iterator[list[socket.socket]]:
    """Clients that connect, say this much and no more."""
    several = [socket.create_connection(("127.0.0.1", server.port), timeout=CEILING_SECONDS) for _ in range(number)]
    try:
        for sock in several:
            sock.sendall(data)
        yield several
    finally:
        for sock in several:
            sock.close()


def test_clients_that_stay_silent_or_stop_half_way_are_cut_off_and_others_get_their_turn() -> None:
    with serving(threads=2, timeout_seconds=0.25) as server:
        for data in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX-A: "):
            with silent(server, 4, data) as clients:
                # A busy machine may take longer than that for an answer as well.
                assert wait_for(lambda: _answered(server))
                for client in clients:
                    while client.recv(4096):
                        pass


def test_a_client_that_sends_a_byte_now_and_then_has_one_deadline_for_all_of_them() -> None:
    with (
        serving(timeout_seconds=0.5) as server,
        silent(server, 1, b"GET / HTTP/1.1\r\n") as (client,),
        pytest.raises(OSError),
    ):
        drip(client, time.monotonic() + CEILING_SECONDS)


def _answered(server: WebServer, tls: ssl.SSLContext | None = None) -> bool:
    try:
        return ask(server, "/healthz", tls=tls)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def drip(client: socket.socket, until: float) -> None:
    while time.monotonic() < until:
        client.sendall(b"x")
        time.sleep(0.05)


def test_a_port_that_is_taken_is_told_with_its_key() -> None:
    with serving() as server:
        second = WebServer(WebOptions(port=server.port), lambda: STATUS, lambda: WELL)
        with pytest.raises(ConfigError, match=rf"web.listen: cannot listen on 127.0.0.1:{server.port}: .*in use"):
            second.start()


def test_a_stopped_server_gives_its_port_back() -> None:
    with serving(port=free_port()) as server:
        port = server.port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=CEILING_SECONDS)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def issue(authority: trustme.CA, folder: Path, name: str = "server") -> tuple[str, str]:
    made = authority.issue_cert("localhost", "127.0.0.1")
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    made.private_key_pem.write_to_path(key)
    certificate.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    return str(certificate), str(key)


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def test_over_tls_everything_is_served_and_the_certificate_is_the_given_one(
    authority: trustme.CA, tmp_path: Path
) -> None:
    certificate, key = issue(authority, tmp_path)
    with serving(cert_file=certificate, key_file=key) as server:
        assert server.url.startswith("https://127.0.0.1:")
        for path in (*ROUTES, *PROBES):
            assert ask(server, path, tls=trusting(authority))[0] == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(server, "/", tls=ssl.create_default_context())


def test_old_versions_of_tls_are_refused(authority: trustme.CA, tmp_path: Path) -> None:
    certificate, key = issue(authority, tmp_path)
    with serving(cert_file=certificate, key_file=key) as server:
        assert server._tls is not None
        assert server._tls.context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_silent_and_plain_clients_on_a_tls_port_stop_nobody(authority: trustme.CA, tmp_path: Path) -> None:
    certificate, key = issue(authority, tmp_path)
    with (
        serving(cert_file=certificate, key_file=key, head_seconds=3600.0, timeout_seconds=3600.0) as server,
        silent(server, 2),
    ):
        assert b"HTTP/1.1 200" not in raw(server, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert ask(server, "/healthz", tls=trusting(authority))[0] == 200


def test_a_renewed_certificate_is_served_after_a_reload_and_a_broken_one_is_not(
    authority: trustme.CA, tmp_path: Path
) -> None:
    certificate, key = issue(authority, tmp_path)
    with serving(cert_file=certificate, key_file=key) as server:
        other = trustme.CA()
        issue(other, tmp_path)
        server.reload()
        assert ask(server, "/healthz", tls=trusting(other))[0] == 200
        Path(key).write_text("no key at all")
        with pytest.raises(ConfigError, match=r"web.tls: .* cannot be used"):
            server.reload()
        assert ask(server, "/healthz", tls=trusting(other))[0] == 200


def test_a_certificate_that_cannot_be_used_stops_the_start(authority: trustme.CA, tmp_path: Path) -> None:
    certificate, _ = issue(authority, tmp_path)
    _, other_key = issue(authority, tmp_path, "other")
    with pytest.raises(ConfigError, match=r"web.tls: .* cannot be used"):
        WebServer(WebOptions(port=0, cert_file=certificate, key_file=other_key), lambda: STATUS, lambda: WELL)
    with pytest.raises(ConfigError, match=r"web.tls: .* cannot be used: No such file"):
        WebServer(
            WebOptions(port=0, cert_file=str(tmp_path / "none.pem"), key_file=other_key), lambda: STATUS, lambda: WELL
        )


def test_bytes_that_are_no_tls_leave_every_worker_alive(authority: trustme.CA, tmp_path: Path) -> None:
    certificate, key = issue(authority, tmp_path)
    with serving(cert_file=certificate, key_file=key, threads=2, timeout_seconds=0.5) as server:
        for number in range(12):
            # Random bytes now and then begin like a hello that is not whole yet: what is sent is the same in every run.
            raw(server, random.Random(number).randbytes(50 + number))
        for half_a_hello in (b"\x16\x03\x01\x02\x00\x01\x00\x01", b"\x97\xa5\x01\x29\x69" + b"x" * 50):
            raw(server, half_a_hello)
        # A busy machine may take longer than that for a handshake as well.
        assert wait_for(lambda: _answered(server, trusting(authority)))


def test_credentials_are_asked_for_everywhere_but_on_the_health_page(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with serving(bearer_token_file=str(file)) as server:
        for path in (*ROUTES, *PROBES, "/nothing"):
            status, headers, body = ask(server, path)
            assert status == (200 if path == "/healthz" else 401), path
            assert ask(server, path, Authorization=f"Bearer {TOKEN}")[0] == (404 if path == "/nothing" else 200)
        assert headers["www-authenticate"] == 'Bearer realm="sizewatch"'
        assert b"metrics" not in body
        assert ask(server, f"/metrics?token={TOKEN}")[0] == 401
        assert ask(server, "/metrics", method="POST")[0] == 401
        page = ask(server, "/metrics", Authorization=f"Bearer {TOKEN}")[2]
        assert f"\nsizewatch_web_refusals_total {len(ROUTES) + len(PROBES) + 2:.1f}\n".encode() in page


def test_the_health_page_too_can_be_put_behind_credentials(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    with serving(bearer_token_file=str(file), open_paths=frozenset()) as server:
        assert ask(server, "/healthz")[0] == 401


def test_a_token_is_replaced_without_a_restart_and_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    with serving(bearer_token_file=str(file)) as server:
        fresh = "another-token-of-enough-length"
        file.write_text(f"{TOKEN}\n{fresh}\n")
        server.reload()
        assert ask(server, "/readyz", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert ask(server, "/readyz", Authorization=f"Bearer {fresh}")[0] == 200
        file.write_text(fresh)
        server.reload()
        assert ask(server, "/readyz", Authorization=f"Bearer {TOKEN}")[0] == 401
        file.write_text("short")
        with pytest.raises(ConfigError, match=r"web.bearer_token_file: .*token:1: a token of fewer than 16"):
            server.reload()
        assert ask(server, "/readyz", Authorization=f"Bearer {fresh}")[0] == 200
