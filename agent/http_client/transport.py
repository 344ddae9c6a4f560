"""HTTP(S) transport with one deadline per response, and the options of a connection.

urllib3 applies a timeout to each read of a socket, so a server that sends one byte a second is never late. Here every
read of headers and body gets the remaining time. `requests` is not used: it takes 4.8 MiB more (requests 2.34, resident
memory after the import), reads the body of a redirect without limit, and stores cookies. A new kind of authentication
needs a field of `TargetOptions`, a row of `files` and a branch of `authorization`.
"""

import base64
import http.client
import io
import socket
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPSConnectionPool, PoolManager, Timeout
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import LocationValueError
from urllib3.util import parse_url

from agent.errors import ConfigError, ScrapeError, ScrapeFailure
from rules.light_dataclass import light_dataclass


class DeadlineReader(io.RawIOBase):
    """Receiving side of a socket. A read beyond the deadline raises TimeoutError."""

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
    """Part of a socket that `http.client.HTTPResponse` uses."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(DeadlineReader(self._sock, self._deadline))


class _DeadlineResponses:
    """Mixin of a connection: its responses end by the deadline."""

    timeout: Any

    def response_class(self, sock: socket.socket, **options: Any) -> http.client.HTTPResponse:
        # After connecting, urllib3 has set `timeout` to the rest of the total.
        assert isinstance(self.timeout, int | float)
        return http.client.HTTPResponse(_DeadlineSocket(sock, time.monotonic() + self.timeout), **options)  # type: ignore[arg-type]


class _HTTPConnection(_DeadlineResponses, HTTPConnection):  # type: ignore[misc]
    pass


class _HTTPSConnection(_DeadlineResponses, HTTPSConnection):  # type: ignore[misc]
    pass


class _HTTPPool(HTTPConnectionPool):
    ConnectionCls = _HTTPConnection


class _HTTPSPool(HTTPSConnectionPool):
    ConnectionCls = _HTTPSConnection


@light_dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """Request to be sent by an `HttpTransport`. `headers` may contain secrets."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes | None = None


class HttpTransport:
    """Transport over one kept connection. The certificate must be for `server_name` if given, else for the host.

    `socket_options` replace those of urllib3. Redirects, cookies and proxies of the environment are not used.
    """

    def __init__(
        self,
        tls: ssl.SSLContext | None,
        server_name: str | None = None,
        socket_options: Sequence[tuple[int, int, int]] | None = None,
    ) -> None:
        keys: dict[str, Any] = {} if socket_options is None else {"socket_options": socket_options}
        if tls is not None:
            keys |= {"ssl_context": tls, "server_hostname": server_name}
        self._pools = PoolManager(num_pools=1, maxsize=1, **keys)
        self._pools.pool_classes_by_scheme = {"http": _HTTPPool, "https": _HTTPSPool}

    def send_within(self, request: HttpRequest, seconds: float) -> BaseHTTPResponse:
        """Return status and headers. The body can be read until `seconds` from now. Raise urllib3's HTTPError.

        Not bounded: the DNS lookup, and each further address of a name with several.
        """
        return self._pools.urlopen(
            request.method,
            request.url,
            redirect=False,
            body=request.body,
            headers=request.headers,
            retries=False,
            timeout=Timeout(total=max(seconds, 0.001)),
            preload_content=False,
            decode_content=False,
        )

    def close(self) -> None:
        """Close the connection. A later request opens a new one."""
        self._pools.clear()


def tls_context(
    ca_file: str | None, *, verify: bool, client_certificate: tuple[str, str | None] | None
) -> ssl.SSLContext:
    """Return the TLS context of a client. Raise OSError (also ssl.SSLError) for unusable files.

    Without `ca_file` it trusts the certificates of the machine, as curl and Prometheus do, not the bundle of `certifi`.
    """
    context = ssl.create_default_context(cafile=ca_file)
    if ca_file is not None:
        # As curl does: a file with the server's own certificate is trusted without its issuer.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if client_certificate is not None:
        context.load_cert_chain(*client_certificate)
    return context


# A hundred times the page of a busy engine.
DEFAULT_MAX_BYTES = 16 * 1024 * 1024


@light_dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """Options of a connection. Raises ConfigError with every problem; opens neither file nor socket.

    `timeout_seconds` bounds a whole scrape, `max_bytes` the decompressed page. Secrets are names of files.
    `server_name` is the name in the certificate if it is not the host of `url`.
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

    def __post_init__(self) -> None:
        problems = tuple(text for wrong, text in self.find_problems() if wrong)
        if problems:
            raise ConfigError(problems)

    def find_problems(self) -> Iterator[tuple[bool, str]]:
        """Yield for each check whether it fails, and its text."""
        yield from _url_problems(self.url)
        yield not self.timeout_seconds > 0, "timeout_seconds: must be above 0"
        yield not self.max_bytes > 0, "max_bytes: must be above 0"
        halves = (self.username is None) != (self.password_file is None)
        yield halves, "username: basic authentication needs username and password_file together"
        twice = self.bearer_token_file is not None and self.username is not None
        yield twice, "bearer_token_file: give either this or username and password_file"
        keyless = self.client_key_file is not None and self.client_cert_file is None
        yield keyless, "client_key_file: needs client_cert_file"


def _url_problems(url: str) -> Iterator[tuple[bool, str]]:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for a port that is no number
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
    """Return whether a request can be made. The error text of the libraries is not used: it may contain the query."""
    try:
        parse_url(url)
        host.encode("idna")
    except (LocationValueError, UnicodeError):
        return False
    return not host.startswith("*")


def files(options: TargetOptions) -> tuple[tuple[str, str, ScrapeFailure], ...]:
    """Return field, path and failure kind of each file in the options."""
    rows = (
        ("bearer_token_file", options.bearer_token_file, ScrapeFailure.AUTH),
        ("password_file", options.password_file, ScrapeFailure.AUTH),
        ("ca_file", options.ca_file, ScrapeFailure.TLS),
        ("client_cert_file", options.client_cert_file, ScrapeFailure.TLS),
        ("client_key_file", options.client_key_file, ScrapeFailure.TLS),
    )
    return tuple((field, path, kind) for field, path, kind in rows if path is not None)


def tls_of(options: TargetOptions) -> ssl.SSLContext | None:
    """Return the TLS context for a url, None for http. Raise ScrapeError."""
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
    """Return the Authorization header, or an empty dict without credentials. Raise ScrapeError."""
    if options.bearer_token_file is not None:
        return {"Authorization": f"Bearer {header_secret('bearer_token_file', options.bearer_token_file)}"}
    if options.username is not None and options.password_file is not None:
        pair = f"{options.username}:{_secret('password_file', options.password_file)}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    return {}


def header_secret(field: str, path: str) -> str:
    """Read a file with the value of a header. Raise ScrapeError without any part of it."""
    text = _secret(field, path)
    if not (text.isascii() and text.isprintable()):
        raise ScrapeError(ScrapeFailure.AUTH, f"{field} {path}: holds characters that a header cannot carry")
    return text


def _secret(field: str, path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        # Drop the cause: a decoding error contains the bytes of the secret.
        raise ScrapeError(ScrapeFailure.AUTH, f"{field} {path}: {reason}") from None
    if not text:
        raise ScrapeError(ScrapeFailure.AUTH, f"{field} {path}: is empty")
    return text
