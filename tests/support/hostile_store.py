"""A Prometheus-compatible server that misbehaves as it is told, on loopback: `act` is what it does with a query."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs

import trustme
from hypothesis import strategies as st
from loopback import LoopbackServer, Quiet, give, hangs, served  # noqa: F401 - an act, for tests

SERIES = {"metric": {"__name__": "vllm:x", "instance": "a:1"}, "values": [[1.5, "2"], [3, "NaN"]]}
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def matrix(*series: object) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": series}}).encode()


def vector(*series: object, **further: object) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": series}, **further}).encode()


class Server(LoopbackServer):
    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(Handler)
        self._scheme = "http" if tls is None else "https"
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.act: Callable[[Handler], None] = lambda handler: give(handler, matrix())
        self.asked: list[tuple[str, dict[str, str], dict[str, list[str]]]] = []
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return super().url.replace("http", self._scheme)


class Handler(Quiet, BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append((self.path, dict(self.headers.items()), parse_qs(form)))
        self.server.act(self)

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers.items()), {}))
        self.server.act(self)

    def do_HEAD(self) -> None:
        self.do_GET()


class Tls:
    """A server that lets in who shows a certificate of this authority, and the files of one who may."""

    def __init__(self, folder: Path, name: str = "127.0.0.1") -> None:
        authority = trustme.CA()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(self.context)
        authority.configure_trust(self.context)
        self.context.verify_mode = ssl.CERT_REQUIRED
        self.ca_file = str(folder / "ca.pem")
        authority.cert_pem.write_to_path(self.ca_file)
        ours = authority.issue_cert("sizewatch")
        self.cert_file, self.key_file = str(folder / "cert.pem"), str(folder / "key.pem")
        ours.cert_chain_pems[0].write_to_path(self.cert_file)
        ours.private_key_pem.write_to_path(self.key_file)


def drips(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "10000")
    handler.end_headers()
    while not handler.server.released.wait(0.05):
        handler.wfile.write(b" ")
        handler.wfile.flush()


def never_ends(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.end_headers()
    while not handler.server.released.is_set():
        handler.wfile.write(b" " * 4096)


def cuts_off(handler: Handler) -> None:
    give(handler, matrix(SERIES)[:20], length="5000")
    handler.close_connection = True


def hangs_up(handler: Handler) -> None:
    handler.close_connection = True


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """One that runs until the end of the block."""
    made = Server(tls)
    with served(made):
        try:
            yield made
        finally:
            made.released.set()
