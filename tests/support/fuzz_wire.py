"""Fuzz targets that read raw bytes of servers over a socket: of a target with its page, of all others that we ask, of the kubelet.

Owns the server that says them, and the reading of one HTTP answer by other means, which tells what a whole page is: only what
this finds whole may `PageFetcher` return, and of an answer that says how long it is, no beginning.
"""

from __future__ import annotations

import gzip
import http.client
import io
import itertools
import json
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

from fuzz_pages import engine_pages, thinned
from fuzz_target import Target, message_trouble

from agent.alerting.delivery import PATH, AlertmanagerClient
from agent.cli.dashboards import GrafanaClient, GrafanaCredentials
from agent.errors import ScrapeError
from agent.http_client.connection import PageFetcher
from agent.http_client.transport import TargetOptions
from agent.kubernetes import pod_gpus
from agent.kubernetes.api import KubernetesClient, KubernetesEndpoint
from agent.prometheus.api import StoreApi
from agent.prometheus.options import StoreOptions
from agent.scrape.engine_probe import probe_engine
from exporters.alertmanager.payload import AlertPayload

MOST_PAGE_BYTES = 4 * 1024 * 1024
TIMEOUT_SECONDS = 2.0


class Saying:
    """A server that says `said` to every connection, whatever it is asked, and hangs up."""

    def __init__(self, listening: socket.socket) -> None:
        self.said = b""
        self._listening = listening
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            with sock:
                sock.settimeout(TIMEOUT_SECONDS)
                self._say(sock)

    def _say(self, sock: socket.socket) -> None:
        try:
            sock.recv(65_536)
            sock.sendall(self.said)
            sock.shutdown(socket.SHUT_WR)
            # What the other side still sends would else reset what we said.
            while sock.recv(65_536):
                pass
        except OSError:
            # It has heard enough.
            return


@cache
def over_http() -> tuple[Saying, str]:
    """The server and its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    return Saying(listening), f"http://127.0.0.1:{listening.getsockname()[1]}"


@cache
def over_a_file() -> tuple[Saying, str]:
    """The server and the socket's path."""
    path = str(Path(tempfile.mkdtemp()) / "kubelet.sock")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(path)
    listening.listen()
    return Saying(listening), path


def fetched(said: bytes) -> bytes:
    """The page that a target says so. Raises ScrapeError."""
    server, url = over_http()
    server.said = said
    options = TargetOptions(url=f"{url}/metrics", timeout_seconds=TIMEOUT_SECONDS, max_bytes=MOST_PAGE_BYTES)
    with closing(PageFetcher(options)) as fetcher:
        return fetcher.fetch()


def run_answer(data: bytes) -> None:
    page = fetched(data)
    whole, end = by_other_means(data)
    assert page == whole, f"{len(page)} bytes were taken for a page, {None if whole is None else len(whole)} were sent"
    assert len(page) <= MOST_PAGE_BYTES, "a page larger than any may be"
    for share in (0.3, 0.7, 0.9, 0.99) if end else ():
        cut = data[: int(share * end)]
        try:
            fetched(cut)
        except ScrapeError:
            continue
        raise AssertionError(f"{len(cut)} bytes of an answer of {end} are taken for a page")


def by_other_means(said: bytes) -> tuple[bytes | None, int]:
    """The page in an answer, None where there is none that is whole; and where it ends, 0 where it does not say."""
    stream = io.BytesIO(said)
    while (line := stream.readline(65_537).decode("latin-1")).split(None, 2)[1:2] == ["100"]:
        http.client.parse_headers(stream)
    if line.split(None, 2)[1:2] != ["200"]:
        return None, 0
    headers = http.client.parse_headers(stream)
    at = stream.tell()
    framed = (headers.get("transfer-encoding") or "identity").lower()
    if framed not in ("identity", "chunked"):
        return None, 0
    if framed == "chunked":
        body, end = _chunks(said, at)
    elif (told := headers.get("content-length")) is not None:
        length = int(told.split(",")[0]) if told.split(",")[0].strip().isdecimal() else -1
        body, end = (said[at : at + length], at + length) if len(said) >= at + length >= at else (None, 0)
    else:
        body, end = said[at:], 0
    encoding = (headers.get("content-encoding") or "").strip().lower()
    page = gzip.decompress(body) if body and encoding in ("gzip", "x-gzip") else body
    if "openmetrics" in (headers.get("content-type") or "").lower():
        # It says itself where it ends; what stands after that, the parser refuses.
        end = end or (said.find(b"# EOF\n", at) if page is body else 0)
        return (page, end) if page and page.endswith(b"# EOF\n") else (None, 0)
    return page, end


def _chunks(said: bytes, at: int) -> tuple[bytes | None, int]:
    """The body, and the place of the last chunk's size, which says that this is the end."""
    body = b""
    while True:
        line_end = said.find(b"\n", at)
        if line_end < 0:
            return None, 0
        size = int(said[at:line_end].partition(b";")[0], 16)
        if size == 0:
            return body, at
        body += said[line_end + 1 : line_end + 1 + size]
        at = line_end + 1 + size + 2
        if size < 0 or at > len(said):
            return None, 0


ALERT = AlertPayload(title="A", firing=True, body={"labels": {"alertname": "A"}})


def _grafana(url: str) -> None:
    with tempfile.NamedTemporaryFile() as token:
        token.write(b"glsa_token")
        token.flush()
        grafana = GrafanaClient(url, GrafanaCredentials(token_file=Path(token.name)))
        grafana.folder("sizewatch")
        assert not message_trouble([grafana.save({"uid": "a"}, "f")]), "an address that nobody can read"


def _alertmanager(url: str) -> None:
    done = AlertmanagerClient(TargetOptions(url=url + PATH, timeout_seconds=TIMEOUT_SECONDS)).round((ALERT,))
    assert not (wrong := message_trouble(done.refused.values())), wrong


def _kubernetes(url: str) -> None:
    with closing(KubernetesClient(KubernetesEndpoint(url=url, timeout_seconds=TIMEOUT_SECONDS))) as api:
        api.get("/api/v1/pods")


def _watch(url: str) -> None:
    with closing(KubernetesClient(KubernetesEndpoint(url=url, timeout_seconds=TIMEOUT_SECONDS))) as api:
        for _ in itertools.islice(api.watch("/api/v1/pods", 1.0), 1000):
            pass


def _store(url: str) -> None:
    with closing(StoreApi(StoreOptions(url=url, timeout_seconds=TIMEOUT_SECONDS, max_bytes=MOST_PAGE_BYTES))) as api:
        api.query("up", 1.0)


def _engine(url: str) -> None:
    found = probe_engine(TargetOptions(url=f"{url}/metrics", timeout_seconds=TIMEOUT_SECONDS))
    assert not (wrong := message_trouble((found.model, *found.remarks))), wrong


PEERS: tuple[Callable[[str], None], ...] = (_grafana, _alertmanager, _kubernetes, _watch, _store, _engine)


def run_peer(data: bytes) -> None:
    """The first byte chooses who asks."""
    server, url = over_http()
    server.said = data[1:]
    PEERS[(data[:1] or b"\0")[0] % len(PEERS)](url)


def run_kubelet(data: bytes) -> None:
    server, path = over_a_file()
    server.said = data
    for one in pod_gpus.read_devices(path, TIMEOUT_SECONDS):
        assert not (wrong := message_trouble((one.namespace, one.pod, one.container, one.resource, *one.ids))), wrong


OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"


def _framed(head: bytes, body: bytes) -> Iterator[bytes]:
    half = len(body) // 2
    yield head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:]) if part)
    yield head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def _answers() -> Iterator[bytes]:
    for page in (thinned(engine_pages()[0]), b"vllm:num_requests_running 1\n"):
        yield from _framed(OK, page)
        yield from _framed(OK + b"Content-Encoding: gzip\r\n", gzip.compress(page, mtime=0))
    yield OK + b"\r\nvllm:num_requests_running 1\n"
    head = b"HTTP/1.0 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0\r\n\r\n"
    yield head + b'# TYPE a gauge\na 1\na{b="c"} 1\n# EOF\n'
    yield b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    yield next(_framed(OK + b"Content-Encoding: gzip\r\n", gzip.compress(b"0" * 12_000_000, mtime=0)))


def _of_peers() -> Iterator[bytes]:
    model = {"data": [{"id": "m", "max_model_len": 4096}]}
    bodies: tuple[tuple[object, ...], ...] = (
        ([{"uid": "f", "title": "sizewatch"}], {"uid": "f", "url": "/d/a"}, {"message": "no"}),
        ("words", {"message": "words"}),
        ({"kind": "PodList", "items": []}, {"message": "no", "code": 403}),
        ({"type": "ADDED", "object": {"metadata": {"name": "a"}}}, {"type": "ERROR", "object": {"code": 410}}),
        ({"status": "success", "data": {"resultType": "vector", "result": []}}, {"status": "error", "error": "e"}),
        (model,),
    )
    for place, several in enumerate(bodies):
        for body in several:
            for status in (b"200 OK", b"400 Bad Request", b"302 Found\r\nLocation: /login"):
                head = b"HTTP/1.1 " + status + b"\r\nContent-Type: application/json\r\n"
                yield bytes([place]) + next(_framed(head, json.dumps(body).encode()))
    yield b"\x05" + next(_framed(OK, thinned(engine_pages()[4])))


def _kubelet_answers() -> Iterator[bytes]:
    from fuzz_answers import pod_resources_seeds
    from h2.config import H2Configuration
    from h2.connection import H2Connection

    for status, words in (("0", ""), ("8", "too often")):
        client, server = (H2Connection(H2Configuration(client_side=side)) for side in (True, False))
        for side in (client, server):
            side.initiate_connection()
        client.send_headers(1, pod_gpus._HEADERS)
        client.send_data(1, b"\0\0\0\0\0", end_stream=True)
        server.receive_data(client.data_to_send())
        body = next(iter(pod_resources_seeds()))
        server.send_headers(1, [(":status", "200"), ("content-type", "application/grpc")])
        server.send_data(1, b"\0" + len(body).to_bytes(4, "big") + body)
        server.send_headers(1, [("grpc-status", status), ("grpc-message", words)], end_stream=True)
        yield server.data_to_send()


HEAD_WORDS = (
    *(b"\r\n", b"\n", b"\r\n\r\n", b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Content-Length: 9, 9\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Content-Encoding: gzip\r\n"),
    *(b"Content-Encoding: deflate\r\n", b"ffffffffffffffff\r\n", b"-1\r\n", b"0\r\n\r\n", b";a=b", b"0x5", b"1_0"),
    *(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/0.9", b"HTTP/1.0 200", b" 204 ", b" 401 ", b" 503 ", b"\x00", b"\xff"),
    *(b"A: " + b"B" * 70_000 + b"\r\n", b"A: b\r\n" * 120, b"Location: file:///etc/passwd\r\n", b"\x1f\x8b", b"+5"),
    *(b"Content-Type: text/html\r\n", b"Content-Type: \x1b[2J\r\n", b"Connection: close\r\n", b"Set-Cookie: a=b\r\n"),
)

BODY_WORDS = (
    b"[" * 2000,
    b"null",
    b"1" + b"0" * 400,
    b"\x1b[2J",
    b'"\\ud800"',
    b'"' + b"A" * 10_000 + b'"',
    b"9" * 5000,
)

TARGETS = (
    Target(
        name="answer",
        run=run_answer,
        seeds=_answers,
        words=HEAD_WORDS,
        reads=(
            "agent.http_client.connection",
            "agent.http_client.connection",
            "agent.http_client.transport",
            "agent.http_client.error_text",
        ),
    ),
    Target(
        name="peer",
        run=run_peer,
        seeds=_of_peers,
        words=(*HEAD_WORDS, *BODY_WORDS),
        reads=(
            *("agent.cli.dashboards", "agent.alerting.delivery", "agent.kubernetes.api", "agent.prometheus.query"),
            *("agent.prometheus.query", "agent.scrape.engine_probe"),
        ),
    ),
    Target(
        name="kubelet",
        run=run_kubelet,
        seeds=_kubelet_answers,
        words=(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00", b"\x00\x00\x08\x07", b"\x80", b"\xff" * 9, b"\x00\x40\x00\x00"),
        reads=("agent.kubernetes.pod_gpus",),
    ),
)
