"""HTTP(S) connections to one target, kept alive, whose answer must have arrived whole by one deadline.

Owns the sockets' clock and the TLS settings of a target. It must not look at status, headers or body: pages.py does.

`requests` and urllib3 give a timeout to each read of a socket, so a server that sends one byte a second is never late.
Here the time left is set anew before every read of the answer, its headers included.

Where something that speaks HTTP is, how to get in, and what is believed of it: the options of every connection.

Owns the fields, their checks and what their files make: a TLS context and an Authorization header. It opens no socket, and
nothing read from a file may get into a message or a repr. Another way to authenticate is a field of `TargetOptions`, a
row of `files` and a branch of `authorization`.
"""

import base64
import http.client
import io
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.models import PreparedRequest, Response
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, Timeout
from urllib3.connection import HTTPConnection, HTTPSConnection

from agent.errors import ConfigError, ScrapeError, ScrapeFailure


class DeadlineReader(io.RawIOBase):
    """The receiving side of a socket; a read that begins or lasts beyond the deadline raises TimeoutError."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_seconds = self._deadline - time.monotonic()
        if left_seconds <= 0:
            raise TimeoutError("the answer did not end in time")
        self._sock.settimeout(left_seconds)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _DeadlineSocket:
    """All that `http.client.HTTPResponse` asks of a socket."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(DeadlineReader(self._sock, self._deadline))


def _response(connection: HTTPConnection, sock: socket.socket, **options: Any) -> http.client.HTTPResponse:
    # urllib3 has by now left in `timeout` what remains of the total after connecting.
    assert isinstance(connection.timeout, int | float)
    return http.client.HTTPResponse(_DeadlineSocket(sock, time.monotonic() + connection.timeout), **options)  # type: ignore[arg-type]


class _HTTPConnection(HTTPConnection):
    def response_class(self, sock: socket.socket, **options: Any) -> http.client.HTTPResponse:  # type: ignore[override]
        return _response(self, sock, **options)


class _HTTPSConnection(HTTPSConnection):
    def response_class(self, sock: socket.socket, **options: Any) -> http.client.HTTPResponse:  # type: ignore[override]
        return _response(self, sock, **options)


class _HTTPPool(HTTPConnectionPool):
    ConnectionCls = _HTTPConnection


class _HTTPSPool(HTTPSConnectionPool):
    ConnectionCls = _HTTPSConnection


class TargetAdapter(HTTPAdapter):
    """One kept connection to one target; its certificate must be for `server_name`, where one is given, or else for its host."""

    def __init__(self, tls: ssl.SSLContext | None, server_name: str | None = None) -> None:
        self._tls = tls
        self._server_name = server_name
        super().__init__(pool_connections=1, pool_maxsize=1)

    def send_within(self, request: PreparedRequest, seconds: float) -> Response:
        """The answer with its headers; its body can be read until `seconds` from now. Raises RequestException.

        Not bounded: looking the host name up, and each further address of a name that has several.
        """
        # requests hands a urllib3.Timeout on untouched, though its types do not say so.
        timeout: Any = Timeout(total=max(seconds, 0.001))
        return self.send(request, stream=True, timeout=timeout)

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **options: Any) -> None:
        super().init_poolmanager(connections, maxsize, block=block, **options)
        self.poolmanager.pool_classes_by_scheme = {"http": _HTTPPool, "https": _HTTPSPool}

    def build_connection_pool_key_attributes(self, request: PreparedRequest, verify: Any, cert: Any = None) -> Any:
        host, _ = super().build_connection_pool_key_attributes(request, verify, cert)
        return host, {} if self._tls is None else {"ssl_context": self._tls, "server_hostname": self._server_name}

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        """Nothing to set: the context says what is trusted, and setting files here would load them on every connect."""


def tls_context(
    ca_file: str | None, *, verify: bool, client_certificate: tuple[str, str | None] | None
) -> ssl.SSLContext:
    """What a target's certificate is checked against. Raises OSError (ssl.SSLError among it) for unusable files.

    Without `ca_file` the machine's own store is trusted, as curl and Prometheus do, not the bundle `requests` ships.
    """
    context = ssl.create_default_context(cafile=ca_file)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if client_certificate is not None:
        context.load_cert_chain(*client_certificate)
    return context


# A hundred times the page of a busy engine; beyond it is a mistake or an attack.
DEFAULT_MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """Where a target is and how to ask it. Raises BadConfig with every problem; opens neither file nor socket.

    `timeout_seconds` is for the whole scrape, `max_bytes` for the page after decompression. Secrets are given as the
    names of files that hold them, never as values.
    """

    url: str
    timeout_seconds: float = 10.0
    max_bytes: int = DEFAULT_MAX_BYTES
    ca_file: str | None = None
    insecure_skip_verify: bool = False
    bearer_token_file: str | None = None
    username: str | None = None
    password_file: str | None = None
    client_cert_file: str | None = None
    client_key_file: str | None = None
    server_name: str | None = None
    """What its certificate must be for, where that is not the host of the url."""

    def __post_init__(self) -> None:
        problems = tuple(text for wrong, text in self._findings() if wrong)
        if problems:
            raise ConfigError(problems)

    def _findings(self) -> Iterator[tuple[bool, str]]:
        yield from _url_findings(self.url)
        yield not self.timeout_seconds > 0, "timeout_seconds: must be above 0"
        yield not self.max_bytes > 0, "max_bytes: must be above 0"
        halves = (self.username is None) != (self.password_file is None)
        yield halves, "username: basic authentication needs username and password_file together"
        twice = self.bearer_token_file is not None and self.username is not None
        yield twice, "bearer_token_file: give either this or username and password_file"
        keyless = self.client_key_file is not None and self.client_cert_file is None
        yield keyless, "client_key_file: needs client_cert_file"


def _url_findings(url: str) -> Iterator[tuple[bool, str]]:
    try:
        parts = urlsplit(url)
        # Read for its error: a port that is no number.
        _ = parts.port
    except ValueError as error:
        yield True, f"url: is no address that can be read: {error}"
        return
    yield parts.scheme not in ("http", "https"), "url: must begin with http:// or https://"
    yield not parts.hostname, "url: names no host"
    yield "@" in parts.netloc, "url: must hold no user or password; use username and password_file"
    yield (
        parts.scheme in ("http", "https") and bool(parts.hostname) and not _askable(url, parts.hostname or ""),
        "url: names a host that no host can be called",
    )


def _askable(url: str, host: str) -> bool:
    """Return whether a request for this address can be made at all; what the libraries say of it may hold its query."""
    try:
        requests.Request("GET", url).prepare()
        host.encode("idna")
    except (requests.RequestException, UnicodeError):
        return False
    return True


def files(options: TargetOptions) -> tuple[tuple[str, str, ScrapeFailure], ...]:
    """The files that are named: by which field, where, and what has failed where one cannot be read."""
    rows = (
        ("bearer_token_file", options.bearer_token_file, ScrapeFailure.AUTH),
        ("password_file", options.password_file, ScrapeFailure.AUTH),
        ("ca_file", options.ca_file, ScrapeFailure.TLS),
        ("client_cert_file", options.client_cert_file, ScrapeFailure.TLS),
        ("client_key_file", options.client_key_file, ScrapeFailure.TLS),
    )
    return tuple((field, path, kind) for field, path, kind in rows if path is not None)


def tls_of(options: TargetOptions) -> ssl.SSLContext | None:
    """What the other side's certificate is checked against, None for http. Raises ScrapeError."""
    if urlsplit(options.url).scheme != "https":
        return None
    certificate = None
    if options.client_cert_file is not None:
        certificate = (options.client_cert_file, options.client_key_file)
    try:
        return tls_context(options.ca_file, verify=not options.insecure_skip_verify, client_certificate=certificate)
    except OSError as error:
        text = f"ca_file, client_cert_file or client_key_file cannot be used: {error.strerror or error}"
        raise ScrapeError(ScrapeFailure.TLS, text) from error


def authorization(options: TargetOptions) -> dict[str, str]:
    """The header that the options' files make, empty where they name none. Raises ScrapeError."""
    if options.bearer_token_file is not None:
        token = secret("bearer_token_file", options.bearer_token_file)
        if not (token.isascii() and token.isprintable()):
            text = f"bearer_token_file {options.bearer_token_file}: holds characters that a header cannot carry"
            raise ScrapeError(ScrapeFailure.AUTH, text)
        return {"Authorization": f"Bearer {token}"}
    if options.username is not None and options.password_file is not None:
        pair = f"{options.username}:{secret('password_file', options.password_file)}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    return {}


def secret(field: str, path: str) -> str:
    """What a file holds, without blanks around it. Raises ScrapeError, whose text holds no part of it."""
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        # Without its cause: a decoding error holds the bytes of the secret.
        raise ScrapeError(ScrapeFailure.AUTH, f"{field} {path}: {reason}") from None
    if not text:
        raise ScrapeError(ScrapeFailure.AUTH, f"{field} {path}: is empty")
    return text
