"""Each test that docs/security.md names exists; no file unfolds without end; no message quotes what may be our secret.

Every way to ask without leave, against each way to ask for it; and where a pod can lead us that asks to be watched.
"""

import ast
import gzip
import itertools
import re
import socket
import ssl
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme
from hostile_store import Handler
from hostile_store import serving as serving_store
from kube_standin import pod
from loopback import give
from paths import ROOT
from test_kubernetes_discovery import ON, found
from test_server import FILES, NAME
from waiting import CEILING_SECONDS
from web_clients import TOKEN, hash_password, issue, serving, trusting, write_web_file

from agent.alerting.delivery import AlertmanagerClient
from agent.alerting.webhook import WebhookReceiver
from agent.benchmarks.formats import read_all_results
from agent.config.files import load_plan
from agent.config.load import load as load_config
from agent.config.peer import Peer
from agent.config.store import StoreConfig
from agent.errors import ConfigError, ScrapeError, SizewatchError
from agent.http_client.client import PageFetcher
from agent.http_server.credentials import Authenticator
from agent.http_server.server import WebServer
from agent.kubernetes.api import MOST_EVENT_BYTES, KubernetesApiError, KubernetesClient, read_lines
from agent.kubernetes.node_pods import target_from_pod
from agent.prometheus.answers import StoreError
from agent.prometheus.api import StoreApi
from agent.reporting import storage
from agent.sources.recording import load as load_recording

PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 40
    paths = ROOT.glob("tests/**/test_*.py")
    known = {name for path in paths for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)}
    assert named - known == set()


BILLION = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)


def _folder(path: Path) -> object:
    (path.parent / "recording.yaml").write_text(f"{BILLION}targets: *j\n")
    return load_recording(path.parent)


READERS: dict[str, Callable[[Path], object]] = {
    "plan": load_plan,
    "configuration": load_config,
    "recording": _folder,
    "benchmark": lambda path: read_all_results((path,)),
}


@pytest.mark.parametrize("what", READERS)
@pytest.mark.parametrize(
    "end", ["", "schema: 1\ntiers: *j\n", "targets: *j\n", "thresholds: {t: *j}\n", "self: &s [*s]\n"]
)
def test_billion_laughs_is_refused_cheaply(tmp_path: Path, what: str, end: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(BILLION + end)
    tracemalloc.start()
    try:
        with pytest.raises(SizewatchError) as caught:
            READERS[what](path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A benchmark's file may be that large, so that much is set aside for reading it.
    assert peak < (320 if what == "benchmark" else 64) * 2**20
    assert len(str(caught.value)) < 100_000


SECRET = "s3cret-token-of-ours"


def fetch_page(url: str, file: str) -> None:
    PageFetcher(Peer(url=url, bearer_token_file=file)).fetch()


def query_store(url: str, file: str) -> None:
    StoreApi(StoreConfig(url=url, bearer_token_file=file)).query("up", time.time())


def post_alerts(url: str, file: str) -> None:
    AlertmanagerClient(Peer(url=f"{url}?key={SECRET}")).round(())


def redirect(place: str) -> Callable[[Handler], None]:
    return lambda handler: give(handler, b"", 302, Location=place)


REPEATED: dict[str, tuple[Callable[[str, str], None], Callable[[Handler], None], str]] = {
    "host": (fetch_page, redirect(f"https://{SECRET}.evil.example/"), "redirects"),
    # A host's name has no case; what a server changes on purpose it could as well say in the clear elsewhere.
    "host in capitals": (fetch_page, redirect(f"https://{SECRET.upper()}.evil.example/"), "redirects"),
    "host alone": (fetch_page, redirect(f"//{SECRET}/"), "redirects"),
    "host and port": (fetch_page, redirect(f"https://{SECRET}:443/x"), "redirects"),
    "store's redirect": (query_store, redirect(f"https://{SECRET}.evil.example/"), "redirects"),
    "content type": (fetch_page, lambda handler: give(handler, b"x 1\n", 200, SECRET), ""),
    "Alertmanager's words": (
        post_alerts,
        lambda handler: give(handler, b'"no: %s"' % SECRET.encode(), 400),
        "answered 400",
    ),
}
"""Who asks, what it is answered, and what is said of it."""


@pytest.mark.parametrize("case", REPEATED)
def test_repeated_secret_is_not_shown(tmp_path: Path, case: str) -> None:
    ask, act, words = REPEATED[case]
    (tmp_path / "token").write_text(SECRET)
    with serving_store() as server:
        server.act = act
        with pytest.raises((ScrapeError, StoreError)) as caught:
            ask(server.url, str(tmp_path / "token"))
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


def test_secret_of_a_query_is_not_shown() -> None:
    with serving_store() as server:
        server.act = redirect("https://another-secret9.evil.example/")
        with pytest.raises(ScrapeError, match="redirects") as caught:
            PageFetcher(Peer(url=f"{server.url}?token=another-secret9")).fetch()
    assert "another-secret9" not in str(caught.value)


HOSTS = (".example", "a..b", "*", "a" * 70, "a b", "[::1]x", "h\0")


@pytest.mark.parametrize("host", HOSTS)
def test_impossible_address_is_refused_at_start(host: str) -> None:
    """It was a defect in every turn, told with its traceback."""
    with pytest.raises(ConfigError, match=r"must be an http:// or https:// address") as caught:
        Peer.read({"url": f"http://{host}/m?key=abcd-1234-secret"})
    assert "secret" not in str(caught.value)


def test_secrets_are_compared_in_constant_time() -> None:
    """No comparison of a token, password or hash in the web server's own gate but `hmac.compare_digest`."""
    text = (ROOT / "agent/http_server/credentials.py").read_text("utf-8")
    suspects = {"token", "digest", "proof", "hash", "password", "found"}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare) and any(isinstance(sign, ast.Eq | ast.NotEq) for sign in node.ops):
            sides = {ast.unparse(side).rpartition(".")[2] for side in (node.left, *node.comparators)}
            assert not suspects & sides, ast.unparse(node)
    assert text.count("hmac.compare_digest(") >= 2


PATHS = (
    *("/", "/metrics", "/api/status", "/readyz", "/reports", "/reports/", f"/reports/{NAME}/", "/reports/latest/"),
    *(f"/reports/{NAME}/{file}" for file in FILES),
    *(
        "/webhook/alertmanager",
        "/-/healthy",
        "/-/ready",
        "/api",
        "/static/x",
        "/favicon.ico",
        "//metrics",
        "/./metrics",
    ),
    *(
        "/healthz/../metrics",
        "/healthz/..%2fmetrics",
        "/healthz%2f..%2fmetrics",
        "/%6detrics",
        "/metrics%00",
        "/metrics;x",
    ),
    *("/healthz;/metrics", "/metrics?/healthz", "/METRICS", "/metrics/", "/metrics#/healthz", "/healthz%23/../metrics"),
    *("/%2e%2e/metrics", "/reports/../metrics", "/reports/../../../../etc/passwd", "/reports/..%2f..%2fetc%2fpasswd"),
    *(f"/reports/{NAME}/..%2f..%2fsecret", f"/reports/{NAME}/../../secret", f"/reports/{NAME}/report.html%00.md"),
    *("/healthz/", "*", "http://127.0.0.1/metrics", "https://x/metrics", "/healthz\\..\\metrics", "/\xff/metrics"),
)
METHODS = ("GET", "HEAD", "OPTIONS", "TRACE", "POST", "PUT", "DELETE", "PATCH", "PROPFIND", "CONNECT", "get", "X" * 300)
VERSIONS = ("HTTP/1.1", "HTTP/1.0", "HTTP/0.9", "", "HTTP/2.0")
HEADERS = (
    "",
    "Connection: keep-alive",
    "Expect: 100-continue",
    "X-Original-URL: /healthz",
    "X-Forwarded-For: 127.0.0.1",
    "Authorization: Bearer",
    "Authorization: Basic Og==",
    f"Authorization: Bearer {TOKEN[:-1]}",
    "Authorization: Bearer a\r\nAuthorization: Bearer b",
    'Authorization: Digest username="ada"',
    "SSL-Client-Verify: SUCCESS\r\nRemote-User: ada",
    "Upgrade: h2c\r\nConnection: Upgrade",
)
REQUESTS = tuple(
    dict.fromkeys(
        (
            *itertools.product(METHODS, PATHS, VERSIONS[:1], HEADERS[:1]),
            *itertools.product(("GET",), PATHS, VERSIONS, HEADERS[:1]),
            *itertools.product(("GET", "POST"), PATHS[:8], VERSIONS[:1], HEADERS),
        )
    )
)
MARKS = (b"sizewatch_", b'"tiers"', b"<html", b"alert(1)", b"schema: 1", b"root:", b"precious")
"""What only a page that is not for everybody holds."""


@contextmanager
def guarded(way: str, place: Path) -> Iterator[tuple[WebServer, ssl.SSLContext | None]]:
    """A server with reports and a webhook that lets nobody in who asks as REQUESTS do."""
    authority = trustme.CA()
    issue(authority, place)
    (place / "token").write_text(TOKEN)
    trustme.CA().cert_pem.write_to_path(place / "readers.pem")
    (place / "secret").write_text("precious")
    storage.publish(place / "reports", NAME, FILES, keep=26)
    tls = {"cert_file": "server.pem", "key_file": "server.key"}
    readers = {"client_ca_file": "readers.pem", "client_auth_type": "RequireAndVerifyClientCert"}
    options: dict[str, Any] = {}
    if way == "users":
        options["config_file"] = write_web_file(place, {"ada": hash_password("a password")})
    elif way == "client certificates":
        options["config_file"] = write_web_file(place, **tls, **readers)
    elif way == "tls and token":
        options["config_file"] = write_web_file(place, **tls)
    if "token" in way:
        options["bearer_token_file"] = str(place / "token")
    with serving(**options) as server:
        server.pages.reports = place / "reports"
        server.pages.receiver = WebhookReceiver(Authenticator(("another-token-of-senders",))).receive
        yield server, trusting(authority) if "token" != way != "users" else None


def said(server: WebServer, tls: ssl.SSLContext | None, request: bytes) -> bytes:
    with ExitStack() as opened:
        sock = opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=CEILING_SECONDS))
        if tls is not None:
            sock = opened.enter_context(tls.wrap_socket(sock, server_hostname="localhost"))
        sock.sendall(request)
        result = b"".join(iter(lambda: sock.recv(65536), b""))
    head, _, body = result.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n" + (gzip.decompress(body) if b"\r\nContent-Encoding: gzip" in head else body)


@pytest.mark.parametrize("way", ["token", "users", "tls and token", "client certificates"])
def test_no_request_form_reads_a_page(way: str, tmp_path: Path) -> None:
    # Handshakes and passwords take their time.
    requests = REQUESTS if way == "token" else REQUESTS[::4]
    leaks = []
    with guarded(way, tmp_path) as (server, tls):
        for method, path, version, header in requests:
            line = f"{method} {path} {version}".rstrip()
            more = f"{header}\r\n" if header else ""
            result = said(
                server, tls, f"{line}\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n".encode("latin-1")
            )
            fine = result.startswith((b"HTTP/1.1 4", b"HTTP/1.1 505", b"HTTP/1.1 100"))
            # The probes are open, and who shows no certificate is not answered at all.
            fine = fine or path == "/readyz" or (way == "client certificates" and result == b"\r\n\r\n")
            if not fine or any(mark in result for mark in MARKS):
                leaks.append((line, header, result[:200]))
        assert server.pages._errors == 0
    assert len(requests) > 150
    assert leaks == []


NOTES: tuple[dict[str, str], ...] = (
    {"path": "//evil.example/metrics"},
    {"path": "@evil.example/"},
    {"path": "/../../x"},
    {"path": "/%2e%2e/x"},
    {"path": "/a?x=http://evil.example"},
    {"path": "/a#b"},
    {"path": "\\\\evil.example"},
    {"path": "/a b"},
    {"path": "/a\r\nHost: evil.example"},
    {"path": "/" + "a" * 300},
    {"port": "80@evil.example"},
    {"port": "evil.example:80"},
    {"port": "-1"},
    {"port": "0"},
    {"port": "65536"},
    {"port": "22"},
    {"port": "٨٠٨٠"},
    {"scheme": "file"},
    {"scheme": "http://evil.example/?"},
    {"scheme": "gopher"},
    {"host": "evil.example"},
    {"address": "evil.example"},
    {"url": "http://evil.example/"},
    {"bearer_token_file": "/var/run/secrets/kubernetes.io/serviceaccount/token"},
)


@pytest.mark.parametrize("notes", NOTES, ids=str)
def test_pod_annotations_stay_at_pod_address(notes: dict[str, str]) -> None:
    annotations = {**ON, **{f"sizewatch.io/{name}": text for name, text in notes.items()}}
    for one in found(pod("a", annotations=annotations, address="10.1.2.3")).targets:
        parts = urlsplit(one.url)
        assert (parts.hostname, parts.scheme, parts.query, parts.fragment) == ("10.1.2.3", "http", "", "")
        target = target_from_pod(one)
        assert (target.bearer_token_file, target.basic_auth, target.tls) == (None, None, None)


def test_single_bytes_cost_little_cpu() -> None:
    """What had come was copied for every chunk: an event of 2 MB in single bytes took an hour of it."""
    line = b'{"type": "BOOKMARK", "object": {}}'
    long = b'"' + b"x" * 300_000 + b'"'
    for sent, expected in ((line + b"\n\n" + line, [line]), (long + b"\n", [long])):
        start = time.process_time()
        assert list(read_lines(bytes([one]) for one in sent)) == expected
        assert time.process_time() - start < 20
    with pytest.raises(KubernetesApiError, match=f"more than {MOST_EVENT_BYTES} bytes"):
        list(read_lines(itertools.repeat(b"x" * 65_536)))


def test_token_without_utf8_is_not_shown(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_bytes(b"s3cret\xff\xfe-token")
    with pytest.raises(KubernetesApiError, match="is not UTF-8") as caught:
        KubernetesClient(Peer(url="http://127.0.0.1:1", bearer_token_file=str(token))).get("/x")
    assert caught.value.__cause__.__cause__ is None
    assert "s3cret" not in str(caught.value)
