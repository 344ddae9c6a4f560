"""Real little servers on loopback; each test lets one answer as badly as servers do."""

import contextlib
import gzip
import os
import socket
import socketserver
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import certifi
import pytest
import trustme
from loopback import answering, served
from peers import peer_fields
from waiting import CEILING_SECONDS, free_port, wait_for

from agent.config.peer import Peer, TlsConfig
from agent.errors import ScrapeError, ScrapeFailure
from agent.http_client import client as client_module
from agent.http_client.client import HttpClient, HttpError, PageFetcher, fetch_page
from agent.scrape.exposition import SeriesReader

PAGE = b"# TYPE x gauge\nx 12\n"
PROXY = "http://127.0.0.1:9"
SOON = 0.3
"""Seconds: the time limit of the scrapes here that are meant to run into it."""

Answer = Callable[[socket.socket], None]


class Server(socketserver.ThreadingTCPServer):
    """Lets `result` write what it likes after each request; remembers the requests."""

    daemon_threads, block_on_close = True, False

    def __init__(self, result: Answer, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[str] = []
        self.connections = 0
        self.result, self.tls = result, tls
        self.kept: list[socket.socket] = []

    def server_close(self) -> None:
        super().server_close()
        for connection in self.kept:
            connection.close()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}/metrics"


class _Handler(socketserver.BaseRequestHandler):
    server: Server

    def handle(self) -> None:
        self.server.connections += 1
        connection, tls = self.request, self.server.tls
        # A client that gives up is what many of these tests are about.
        with contextlib.suppress(OSError):
            if tls is not None:
                connection = tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
                # A refused handshake leaves the connection open: closing it might outrun the alert that says why.
                self.server.kept.append(connection)
                connection.do_handshake()
            received = b""
            while piece := connection.recv(4096):
                received += piece
                if received.endswith(b"\r\n\r\n"):
                    self.server.requests.append(received.decode())
                    received = b""
                    self.server.result(connection)


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    with contextlib.ExitStack() as servers:

        def start(result: Answer, tls: ssl.SSLContext | None = None) -> Server:
            server = Server(result, tls)
            servers.enter_context(served(server))
            return server

        yield start


def sends(body: bytes = PAGE, *headers: str, status: str = "200 OK", announced: int | None = None) -> Answer:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if announced is None else announced}", *headers]
    whole = "\r\n".join([*lines, "", ""]).encode() + body

    def result(connection: socket.socket) -> None:
        connection.sendall(whole)
        if announced is not None:
            connection.close()

    return result


def sends_until_close(body: bytes, head: bytes = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n") -> Answer:
    def result(connection: socket.socket) -> None:
        connection.sendall(head + body)
        connection.close()

    return result


def drips(start: bytes, piece: bytes) -> Answer:
    def result(connection: socket.socket) -> None:
        connection.sendall(start)
        # It ends, so that a client without a deadline fails the test and does not hang it.
        end = time.monotonic() + 10
        while time.monotonic() < end:
            connection.sendall(piece)
            time.sleep(0.02)

    return result


def failure(url: str, timeout_seconds: object = CEILING_SECONDS, **options: object) -> ScrapeError:
    fetcher = PageFetcher(Peer(**peer_fields(url=url, timeout_seconds=timeout_seconds, **options)))
    with pytest.raises(ScrapeError) as caught:
        fetcher.fetch()
    fetcher.close()
    return caught.value


def assert_fails(kind: ScrapeFailure, words: str, url: str, **options: object) -> None:
    error = failure(url, **options)
    assert error.kind is kind
    assert words in error.text


Serve = Callable[..., Server]


def test_request_takes_nothing_of_the_environment(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password s3cret\n")
    for name, text in {"NETRC": str(tmp_path / "netrc"), "http_proxy": PROXY, "all_proxy": PROXY}.items():
        monkeypatch.setenv(name, text)
    server = serve(sends())
    assert PageFetcher(Peer(url=server.url + "?part=1")).fetch() == PAGE
    lines = server.requests[0].split("\r\n")
    assert lines[0] == "GET /metrics?part=1 HTTP/1.1"
    assert {"Accept: text/plain;version=0.0.4", "Accept-Encoding: gzip"} <= set(lines)
    assert "Authorization" not in server.requests[0]
    (tmp_path / "token").write_text("ours")
    PageFetcher(Peer(url=server.url, bearer_token_file=str(tmp_path / "token"))).fetch()
    assert "Authorization: Bearer ours" in server.requests[1].split("\r\n")


@pytest.mark.parametrize("over_tls", [False, True])
def test_connection_closed_at_use_is_retried(serve: Serve, authority: trustme.CA, over_tls: bool) -> None:
    results = iter([sends(), lambda connection: connection.close(), sends()])
    server = serve(lambda connection: next(results)(connection), server_side(authority) if over_tls else None)
    fetcher = PageFetcher(Peer(**peer_fields(url=server.url, insecure_skip_verify=over_tls or None)))
    assert [fetcher.fetch() for _ in range(2)] == [PAGE] * 2
    assert server.connections == 2


def test_refused_connection_is_a_failure_to_connect() -> None:
    closed = f"http://127.0.0.1:{free_port()}/metrics"
    error, unknown = failure(f"{closed}?token=s3cret"), failure("http://no-such-host.invalid/metrics")
    assert (error.kind, unknown.kind, "refused" in unknown.text) == (
        ScrapeFailure.CONNECT,
        ScrapeFailure.CONNECT,
        False,
    )
    assert error.text == f"{closed}: connection refused; is it up?"


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(lambda connection: time.sleep(60), id="silent"),
        pytest.param(drips(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"a"), id="dripping headers"),
        pytest.param(drips(b"HTTP/1.1 200 OK\r\n", b"X-Slow: a\r\n"[:1]), id="dripping header names"),
        pytest.param(drips(HEAD + b"\r\n", b"x 1\n"), id="dripping page without an end"),
        pytest.param(drips(HEAD + b"Content-Length: 9999\r\n\r\n", b"x"), id="dripping page of a known length"),
        pytest.param(drips(CHUNKED, b"1\r\nx\r\n"), id="dripping chunks"),
    ],
)
def test_time_limit_is_for_the_whole_scrape(serve: Serve, result: Answer) -> None:
    started = time.monotonic()
    error = failure(serve(result).url, SOON)
    assert SOON * 0.9 < time.monotonic() - started < CEILING_SECONDS
    assert error.kind is ScrapeFailure.TIMEOUT
    assert error.text.endswith("gave no complete answer within 0.3 s")


def test_fetch_after_a_failure_is_whole(serve: Serve) -> None:
    gone = threading.Event()
    error = sends(b"oops" * 1000, status="500 Internal Server Error")
    results = iter([error, lambda connection: gone.wait(), *[sends()] * 99])
    server = serve(lambda connection: next(results)(connection))
    fetcher = PageFetcher(Peer(url=server.url, timeout_seconds=SOON))
    for _ in range(2):
        with pytest.raises(ScrapeError):
            fetcher.fetch()
    gone.set()

    def fetch() -> bytes:
        with contextlib.suppress(ScrapeError):
            return fetcher.fetch()
        return b""

    # On a busy machine the second may be late as well; what counts is that it is another connection.
    assert wait_for(fetch) == PAGE
    assert server.connections >= 2


def test_endless_page_ends_at_the_limit(serve: Serve) -> None:
    url = serve(drips(HEAD + b"\r\n", b"x 1\n" * 4096)).url
    assert_fails(ScrapeFailure.TOO_LARGE, "100000 bytes", url, max_bytes=100_000)


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(sends(b"# TYPE x gauge\nx 1", announced=len(PAGE)), id="with a length"),
        pytest.param(sends(b"# TYPE x gauge\n", announced=len(PAGE)), id="with a length, after a line"),
        pytest.param(sends(b"# TYPE x gauge\nx 1"), id="with a length that fits"),
        pytest.param(sends_until_close(b"# TYPE x gauge\nx 1"), id="without a length"),
        pytest.param(sends_until_close(b"4\r\nx 1\n\r\n4\r\nx", head=CHUNKED), id="inside a chunk"),
        pytest.param(sends_until_close(b"4\r\nx 1\n\r\n", head=CHUNKED), id="between chunks"),
        pytest.param(sends(b""), id="empty"),
    ],
)
def test_page_cut_off_is_never_whole(serve: Serve, result: Answer) -> None:
    peer = Peer(url=serve(result).url, timeout_seconds=CEILING_SECONDS)
    with pytest.raises(ScrapeError) as caught:
        SeriesReader(lambda name: True).read(fetch_page(peer))
    assert caught.value.kind is ScrapeFailure.CUT_OFF


CONTENT, STATUS, AUTH = ScrapeFailure.CONTENT_TYPE, ScrapeFailure.HTTP_STATUS, ScrapeFailure.AUTH
DAMAGED = gzip.compress(PAGE)[:8] + b"\xff" * 20


@pytest.mark.parametrize(
    ("result", "kind", "hint"),
    [
        (sends(b"[]", "Content-Type: application/json"), CONTENT, "/prometheus/metrics"),
        (sends(b"[]", "Content-Type: text/plain"), CONTENT, "return_perf_metrics: true"),
        (sends(b'[{"iter": 1}]\n'), CONTENT, "/prometheus/metrics"),
        (sends(b"<html></html>\n", "Content-Type: text/html; charset=utf-8"), CONTENT, "login"),
        (sends(b"\n<!doctype html>\n", "Content-Type: text/plain"), CONTENT, "login"),
        (sends(PAGE, "Content-Type: application/octet-stream"), CONTENT, "is the path right?"),
        (sends(b"", status="500 Internal Server Error"), STATUS, "answered 500"),
        (sends(b"", status="404 Not Found"), STATUS, "is the path right?"),
        (sends(b"", status="401 Unauthorized"), AUTH, "set or renew bearer_token_file (option --bearer-token-file)"),
        (sends(b"", status="403 Forbidden"), AUTH, "may not read"),
        (sends(b"", status="204 No Content"), STATUS, "answered 204"),
        (sends(b"", status="304 Not Modified"), STATUS, "answered 304"),
        (sends(b"", "Location: /elsewhere", status="301 Moved"), ScrapeFailure.REDIRECT, "not followed"),
        (sends(b"", "Location: http://[::1", status="301 Moved"), ScrapeFailure.REDIRECT, "not followed"),
        (sends(b"", "Location: ", status="301 Moved"), ScrapeFailure.REDIRECT, "not followed"),
        (sends(DAMAGED, "Content-Encoding: gzip"), ScrapeFailure.CUT_OFF, "its gzip does not unpack"),
        (sends(PAGE, "Content-Encoding: gzip"), ScrapeFailure.CUT_OFF, "its gzip does not unpack"),
        (sends_until_close(b"SSH-2.0-OpenSSH_9.2\r\n", head=b""), ScrapeFailure.CONNECT, "not HTTP"),
        (lambda connection: connection.close(), ScrapeFailure.CONNECT, "is it up, and is it http?"),
    ],
)
def test_wrong_answer_has_its_kind_and_hint(serve: Serve, result: Answer, kind: ScrapeFailure, hint: str) -> None:
    assert_fails(kind, hint, serve(result).url)


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ("Content-Type: text/plain; version=1.0.0; charset=utf-8",),
        ("Content-Type: application/openmetrics-text; version=1.0.0",),
        ("Content-Type: text/plain", "Content-Encoding: gzip"),
    ],
)
def test_text_page_of_any_form_is_accepted(serve: Serve, headers: tuple[str, ...]) -> None:
    body = gzip.compress(PAGE) if "Content-Encoding: gzip" in headers else PAGE
    server = serve(sends(body, *headers))
    # The page is as long as the limit.
    assert PageFetcher(Peer(url=server.url, max_bytes=len(PAGE))).fetch() == PAGE


def test_redirect_is_named_and_not_followed(serve: Serve) -> None:
    other = serve(sends())
    location = f"Location: http://user:s3cret@127.0.0.1:{other.port}/login?token=s3cret"
    server = serve(drips(f"HTTP/1.1 302 Found\r\n{location}\r\n\r\n".encode(), b"endless"))
    error = failure(server.url)
    assert error.kind is ScrapeFailure.REDIRECT
    assert "redirects; that is not followed" in error.text
    assert "s3cret" not in error.text
    assert other.connections == 0


def test_bomb_is_refused_without_unpacking(serve: Serve) -> None:
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(pack.compress(b"x 1\n" * 2**18) for _ in range(64)) + pack.flush()
    error = failure(serve(sends(bomb, "Content-Encoding: gzip")).url, max_bytes=2**20)
    assert error.kind is ScrapeFailure.TOO_LARGE


@pytest.mark.parametrize("part_bytes", [1, 7, 64, 1 << 16])
@pytest.mark.parametrize("form", ["plain", "gzip", "chunked"])
def test_page_in_parts_is_whole(serve: Serve, part_bytes: int, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PART_BYTES", part_bytes)
    body = PAGE + b"".join(b"# a comment %d\n" % n for n in range(50))
    whole = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:9], body[9:]))
    results = {
        "plain": sends(body),
        "gzip": sends(gzip.compress(body), "Content-Encoding: gzip"),
        "chunked": lambda connection: connection.sendall(CHUNKED + whole + b"0\r\n\r\n"),
    }
    server = serve(results[form])
    fetcher = PageFetcher(Peer(url=server.url))
    assert [fetcher.fetch() for _ in range(2)] == [body] * 2
    assert server.connections == 1
    fetcher.close()
    assert (fetcher.fetch(), server.connections) == (body, 2), "a closed client connects anew"


def test_bearer_token_is_read_again(serve: Serve, tmp_path: Path) -> None:
    server = serve(sends())
    token = tmp_path / "token"
    token.write_text("first-s3cret\n")
    fetcher = PageFetcher(Peer(url=server.url, bearer_token_file=str(token)))
    fetcher.fetch()
    fetcher.fetch()
    token.write_bytes(b"\xff\xfe")
    with pytest.raises(ScrapeError, match=f"bearer_token_file {token}: is not UTF-8"):
        fetcher.fetch()
    token.write_text("second\n")
    os.utime(token, ns=(1, 1))
    fetcher.fetch()
    sent = [line for request in server.requests for line in request.split("\r\n") if line.startswith("Authorization")]
    assert sent == ["Authorization: Bearer first-s3cret"] * 2 + ["Authorization: Bearer second"]


@pytest.mark.parametrize("content", [None, b"", b"s3cret\xff", "s3cret-ü".encode(), b"s3cret\nX-Injected: 1"])
def test_unusable_token_is_never_shown(serve: Serve, tmp_path: Path, content: bytes | None) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    server = serve(sends())
    error = failure(server.url, bearer_token_file=str(token))
    assert error.kind is ScrapeFailure.AUTH
    assert error.text.startswith(f"bearer_token_file {token}: ")
    assert "s3cret" not in f"{error!r} {error.__cause__!r}"
    assert server.connections == 0


def test_no_secret_is_in_a_message(serve: Serve, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret")
    fetcher = PageFetcher(Peer(url=serve(sends(status="401 No")).url, bearer_token_file=str(token)))
    with pytest.raises(ScrapeError) as caught:
        fetcher.fetch()
    assert caught.value.kind is ScrapeFailure.AUTH
    assert "s3cret" not in f"{caught.value!r} {fetcher!r} {fetcher.__dict__!r}"
    # A kept request would hold it, though its repr does not show it.
    assert fetcher._kept is None


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("ca") / "ca.pem")
    authority.cert_pem.write_to_path(path)
    return path


def server_side(authority: trustme.CA, name: str = "127.0.0.1") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def test_self_signed_server_is_refused(serve: Serve, tmp_path: Path) -> None:
    # The certificate of an authority is one that signed itself.
    own = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pem = tmp_path / "own.pem"
    own.private_key_pem.write_to_path(str(pem))
    own.cert_pem.write_to_path(str(pem), append=True)
    context.load_cert_chain(pem)
    words = "its certificate is refused (self-signed certificate); name its CA in tls.ca_file (option --ca-file)"
    assert_fails(ScrapeFailure.TLS, words, serve(sends(), context).url)


@pytest.mark.parametrize(
    ("name", "trusts_another", "text"),
    [
        ("127.0.0.1", True, "name its CA in tls.ca_file (option --ca-file)"),
        ("10.0.0.1", False, "give a name that it has as url, or in"),
    ],
)
def test_certificate_of_another_is_refused(
    serve: Serve, authority: trustme.CA, ca_file: str, name: str, trusts_another: bool, text: str
) -> None:
    signer = trustme.CA() if trusts_another else authority
    assert_fails(ScrapeFailure.TLS, text, serve(sends(), server_side(signer, name)).url, ca_file=ca_file)


def test_https_to_plain_http_says_so() -> None:
    with answering([b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"]) as url:
        assert_fails(ScrapeFailure.TLS, "does it want http://", f"{url.replace('http', 'https')}/metrics")


def test_time_limit_holds_in_tls(serve: Serve, authority: trustme.CA, ca_file: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        error = failure(f"https://127.0.0.1:{listener.getsockname()[1]}/metrics", SOON)
    assert error.kind is ScrapeFailure.TIMEOUT
    server = serve(drips(HEAD + b"\r\n", b"x 1\n"), server_side(authority))
    assert failure(server.url, SOON, ca_file=ca_file).kind is ScrapeFailure.TIMEOUT


def test_client_certificate_is_shown(serve: Serve, authority: trustme.CA, ca_file: str, tmp_path: Path) -> None:
    context = server_side(authority)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    server = serve(sends(), context)
    assert_fails(ScrapeFailure.TLS, "cert_file", server.url, ca_file=ca_file)
    client = authority.issue_cert("agent.example")
    files = {name: str(tmp_path / name) for name in ("cert_file", "key_file")}
    client.private_key_pem.write_to_path(files["key_file"])
    client.cert_chain_pems[0].write_to_path(files["cert_file"])
    assert PageFetcher(Peer(url=server.url, tls=TlsConfig(ca_file=ca_file, **files))).fetch() == PAGE


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_abort_ends_exchanges_of_any_thread(serve: Serve, authority: trustme.CA, ca_file: str, tls: bool) -> None:
    server = serve(drips(b"HTTP/1.1 200 OK\r\n\r\n", b"x"), server_side(authority) if tls else None)
    peer = {"url": server.url, "ca_file": ca_file if tls else None, "timeout_seconds": CEILING_SECONDS}
    client = HttpClient(Peer(**peer_fields(**peer)))
    threading.Timer(0.2, client.abort).start()
    with pytest.raises(HttpError), client.exchange("GET", server.url, {}) as response:
        client.read(response)
    with pytest.raises(HttpError, match="this process stops"), client.exchange("GET", server.url, {}):
        pass
    client.close()


@pytest.mark.parametrize("status", ["200 OK", "302 Found"])
def test_no_cookie_is_stored(serve: Serve, status: str) -> None:
    server = serve(sends(PAGE, "Set-Cookie: a=1; Path=/", status=status))
    client = HttpClient(Peer(url=server.url))
    for _ in range(2):
        with client.exchange("GET", server.url, {}) as response:
            client.read(response)
    assert not any("cookie" in request.lower() for request in server.requests)
    client.close()


def test_certifi_bundle_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[object] = []
    monkeypatch.setattr(certifi, "where", lambda: loaded.append("certifi") or "/nonexistent")
    error = failure("https://127.0.0.1:9/metrics")
    assert (error.kind, loaded) == (ScrapeFailure.CONNECT, [])


@pytest.mark.parametrize(("text", "why"), [(None, "No such file or directory"), ("no certificate", "[X509")])
def test_unusable_ca_file_is_named(tmp_path: Path, text: str | None, why: str) -> None:
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_text(text)
    words = f"({path}) cannot be used: {why}"
    assert_fails(AUTH, words, "https://127.0.0.1:9/metrics", ca_file=str(path))
