"""A web server on loopback, its certificates and web file, and clients of it."""

import base64
import http.client
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bcrypt
import trustme
import yaml
from status_samples import agent_status
from waiting import CEILING_SECONDS

from agent.config.web import Web
from agent.http_server.server import WebServer
from exporters.status.records import AgentStatus

STATUS = agent_status()
WELL = 4.0
TOKEN = "an-honest-token-of-32-characters"


@contextmanager
def serving(
    source: Callable[[], AgentStatus | None] = lambda: STATUS,
    seconds_since_cycle: Callable[[], float | None] = lambda: WELL,
    **keys: Any,
) -> Iterator[WebServer]:
    server = WebServer(Web.model_construct(**{"listen": "127.0.0.1:0", **keys}), source, seconds_since_cycle)
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
    """Return the bytes that come back until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=CEILING_SECONDS) as sock:
        sock.sendall(data)
        return b"".join(iter(lambda: sock.recv(65536), b""))


def issue(authority: trustme.CA, folder: Path, name: str = "server") -> tuple[str, str]:
    made = authority.issue_cert("localhost", "127.0.0.1")
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    made.private_key_pem.write_to_path(key)
    certificate.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    return str(certificate), str(key)


def write_web_file(folder: Path, users: dict[str, str] | None = None, **tls: str) -> str:
    """Write a web configuration file with these users and keys of TLS, and return its path."""
    path = folder / "web.yml"
    parts = {"tls_server_config": tls, "basic_auth_users": users}
    path.write_text(yaml.safe_dump({name: part for name, part in parts.items() if part}))
    return str(path)


def trusting(authority: trustme.CA, client: trustme.CA | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if client is not None:
        client.issue_cert("reader").configure_cert(context)
    return context


def hash_password(password: str) -> str:
    """Return the bcrypt hash of a password, as cheap as possible."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()
