"""HTTP client of one host, and fetcher of its pages: requests with a deadline, a size limit and credentials from files.

A read waits until the deadline of its exchange: a server that sends one byte a second is late. An error names status
and host with a hint, and nothing that the other side sent. No message holds a secret.
"""

from __future__ import annotations

import base64
import math
import os
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection

from agent.config.peer import Peer, TlsConfig
from agent.errors import ScrapeError, ScrapeFailure

PATHS = "is the path right? Most engines use /metrics (SGLang with --enable-metrics), trtllm-serve /prometheus/metrics"
_STATUSES = {
    401: (ScrapeFailure.AUTH, "set or renew bearer_token_file (option --bearer-token-file) or basic_auth (--username)"),
    403: (ScrapeFailure.AUTH, "these credentials may not read the metrics"),
    404: (ScrapeFailure.HTTP_STATUS, PATHS),
}


class HttpError(ScrapeError):
    """Failed exchange with a host. `status` is the HTTP status, None without a response."""

    def __init__(self, kind: ScrapeFailure, host: str, text: str, status: int | None = None) -> None:
        super().__init__(kind, f"{host}{text}")
        self.status = status


def place_of(url: str) -> str:
    """Return the part of a URL without user, password and query, for messages."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def status_error(host: str, status: int) -> HttpError:
    if status in (301, 302, 303, 307, 308):
        text = " redirects; that is not followed: give the final address as url"
        return HttpError(ScrapeFailure.REDIRECT, host, text, status)
    kind, hint = _STATUSES.get(status, (ScrapeFailure.HTTP_STATUS, "look into the log of the target"))
    return HttpError(kind, host, f" answered {status}: {hint}", status)


def transport_error(error: Exception, host: str, seconds: float, status: int | None) -> HttpError:
    """Map an exception of requests or urllib3. With a `status` a response had begun."""
    causes = tuple(_causes(error))
    # urllib3 counts a refused connection among its timeouts.
    refused = any(isinstance(cause, urllib3.exceptions.NewConnectionError) for cause in causes)
    if not refused and any(isinstance(cause, urllib3.exceptions.TimeoutError | TimeoutError) for cause in causes):
        return HttpError(ScrapeFailure.TIMEOUT, host, f" gave no complete answer within {seconds:g} s", status)
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            text = f": TLS failed ({cause.reason}): does it want http://, or a certificate (tls.cert_file)?"
            if isinstance(cause, ssl.SSLCertVerificationError):
                hint = "name its CA in tls.ca_file (option --ca-file)"
                if "mismatch" in cause.verify_message:
                    hint = "give a name that it has as url, or in tls.server_name (option --server-name)"
                text = f": its certificate is refused ({cause.verify_message.rstrip('.')}); {hint}"
            return HttpError(ScrapeFailure.TLS, host, text, status)
    if status is not None:
        text = " ended the connection in the middle of the answer, or its gzip does not unpack"
        return HttpError(ScrapeFailure.CUT_OFF, host, text, status)
    reasons = (cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror)
    reason = next(reasons, "the answer is not HTTP, or the connection ended before it")
    hint = "is it up?"
    if not refused:
        hint = f"is it up, and is it {host.partition(':')[0]}?"
    return HttpError(ScrapeFailure.CONNECT, host, f": {reason[:1].lower()}{reason[1:]}; {hint}")


def _causes(error: object) -> Iterator[BaseException]:
    if isinstance(error, BaseException):
        yield error
        for inner in (error.__cause__ or error.__context__, getattr(error, "reason", None), *error.args):
            yield from _causes(inner)


PART_BYTES, NO_TLS = 65_536, TlsConfig()


class _Exchange:
    """Deadline (of `time.monotonic`) and socket of the present exchange."""

    is_aborted = False
    ends_at = math.inf
    socket: socket.socket | None = None

    def is_over(self) -> bool:
        return self.is_aborted or time.monotonic() >= self.ends_at

    def check(self) -> None:
        """Raise TimeoutError if it is over: its shut socket looks like the end of a body."""
        if self.is_over():
            raise TimeoutError


class _TimedReads:
    """Socket whose reads end at the deadline of its exchange."""

    exchange: _Exchange

    def recv_into(self, *arguments: Any) -> int:
        self.settimeout(max(self.exchange.ends_at - time.monotonic(), 0.001))  # type: ignore[attr-defined]
        size: int = super().recv_into(*arguments)  # type: ignore[misc]
        return size


class _TimedSocket(_TimedReads, socket.socket):
    pass


class _TimedTlsSocket(_TimedReads, ssl.SSLSocket):
    pass


class _Adapter(HTTPAdapter):
    """Adapter with one kept connection, without a session: no redirects, cookies, .netrc or proxies of the environment."""

    def __init__(self, exchange: _Exchange, **pool_options: Any) -> None:
        self._exchange = exchange
        if "ssl_context" in pool_options:
            pool_options["ssl_context"].sslsocket_class = _TimedTlsSocket
        super().__init__(pool_connections=1, pool_maxsize=1)
        self.poolmanager.connection_pool_kw.update(pool_options)
        self.pool: Any = None

    def get_connection_with_tls_context(self, *args: Any, **options: Any) -> Any:
        """Return the open pool of the only host. A look-up is a tenth of an exchange's CPU."""
        if self.pool is None:
            self.pool = super().get_connection_with_tls_context(*args, **options)
            connection = _TimedTlsConnection if self.pool.scheme == "https" else _TimedConnection
            self.pool.ConnectionCls = partial(connection, self._exchange)
        return self.pool

    def build_response(self, req: Any, resp: Any) -> requests.Response:
        """Return a response without cookies, and without the guess of an encoding: nobody reads them."""
        response = requests.Response()
        response.status_code, response.headers, response.raw = resp.status, resp.headers, resp
        return response

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        """Leave the connection alone: requests would add the certificates of certifi."""


class _TimedConnection(HTTPConnection):
    def __init__(self, exchange: _Exchange, **options: Any) -> None:
        super().__init__(**options)
        self._exchange = exchange

    def connect(self) -> None:
        super().connect()
        if not isinstance(self.sock, _TimedTlsSocket):
            self.sock = _TimedSocket(fileno=self.sock.detach())
        self.sock.exchange = self._exchange
        self._exchange.socket = self.sock
        self._exchange.check()


class _TimedTlsConnection(_TimedConnection, HTTPSConnection):
    pass


class HttpClient:
    """Client with one kept connection, for one thread at a time. Methods raise ScrapeError."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.place = place_of(peer.url)
        self._certificates: list[int | None] | None = None
        self._kept: tuple[object, requests.PreparedRequest] | None = None
        self._exchange = _Exchange()
        self._adapter = _Adapter(self._exchange)

    def load(self) -> dict[str, str]:
        """Read certificates that changed, and return the headers with the credentials of now."""
        tls = self.peer.tls or NO_TLS
        files = [Path(path) for path in (tls.ca_file, tls.cert_file, tls.key_file) if path is not None]
        certificates = [path.stat().st_mtime_ns if os.path.exists(path) else None for path in files]
        if certificates != self._certificates:
            self.close()
            self._adapter = _Adapter(self._exchange, **tls_options(self.peer))
            self._certificates = certificates
        headers = {}
        for name, path in self.peer.header_files.items():
            headers[name] = _secret(f"header {name}", path, True)
        if self.peer.bearer_token_file is not None:
            token = _secret("bearer_token_file", self.peer.bearer_token_file, True)
            headers["Authorization"] = f"Bearer {token}"
        elif (basic := self.peer.basic_auth) is not None:
            pair = f"{basic.username}:{_secret('password_file', basic.password_file)}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return headers

    @contextmanager
    def exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None, seconds: float | None = None
    ) -> Iterator[requests.Response]:
        """Send a request with the credentials of now. Yield its response, to `read` or `stream` in the same block.

        The exchange ends `seconds` from now, by default after the timeout of the peer. Not bounded: the name lookup,
        and each further address of a name with several.
        """
        if self._exchange.is_aborted:
            raise HttpError(ScrapeFailure.CONNECT, self.place, ": is not asked, because this process stops")
        secrets = self.load()
        sent = (method, url, headers, body)
        if self._kept is not None and self._kept[0] == sent and not secrets:
            request = self._kept[1]
        else:
            headers = {"User-Agent": "sizewatch", "Accept-Encoding": "gzip", **headers, **secrets}
            request = requests.Request(method, url, headers=headers, data=body).prepare()
            # Preparing is a quarter of the exchange's CPU. No secret is kept.
            self._kept = None if secrets else (sent, request)
        seconds = max(self.peer.timeout_seconds if seconds is None else seconds, 0.001)
        is_verified = not (self.peer.tls and self.peer.tls.insecure_skip_verify)
        options: Any = {"stream": True, "timeout": seconds, "verify": is_verified}
        self._exchange.ends_at = time.monotonic() + seconds
        response = None
        try:
            try:
                response = self._adapter.send(request, **options)
            except requests.ConnectionError as error:
                # A server may close an idle connection just when it is used again.
                if self._exchange.socket is None or self._exchange.is_over() or isinstance(error, requests.Timeout):
                    raise
                response = self._adapter.send(request, **options)
            yield response
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            # ValueError: http.client accepts any integer as the length of a chunk.
            status = response.status_code if response is not None else None
            cause = TimeoutError() if self._exchange.is_over() else error
            raise transport_error(cause, self.place, seconds, status) from error
        finally:
            if response is not None:
                # A connection whose response was read to its end is kept.
                response.close()

    def read(self, response: requests.Response) -> bytes:
        """Return the complete, decompressed body. The connection can then serve another request."""
        return b"".join(self.stream(response, self.peer.max_bytes))

    def stream(self, response: requests.Response, most: int) -> Iterator[bytes]:
        """Yield the body as it arrives, decompressed, of at most so many bytes."""
        size = 0
        while part := response.raw.read1(PART_BYTES, decode_content=True):
            size += len(part)
            if size > most:
                text = f" sends more than {self.peer.max_bytes} bytes"
                raise HttpError(ScrapeFailure.TOO_LARGE, self.place, text)
            yield part
        self._exchange.check()
        if response.raw.length_remaining:
            raise HttpError(ScrapeFailure.CUT_OFF, self.place, f": {size} of the announced bytes arrived")

    def abort(self) -> None:
        """End the present exchange at once, and refuse all later ones. Any thread may call it."""
        self._exchange.is_aborted = True
        if self._exchange.socket is not None:
            with suppress(OSError):
                # Not that of SSLSocket, which takes the TLS state away from a running read.
                socket.socket.shutdown(self._exchange.socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. A later request opens a new one."""
        self._adapter.close()
        self._adapter.pool = None  # The last reference: the pool closes its connections with it.


def tls_options(peer: Peer) -> dict[str, Any]:
    """Return the options of a pool of TLS connections, none for http. Raise ScrapeError.

    Without `ca_file` it trusts the certificates of the machine, as curl and Prometheus do, not the bundle of `certifi`.
    """
    if urlsplit(peer.url).scheme != "https":
        return {}
    tls = peer.tls or NO_TLS
    files = [path for path in (tls.ca_file, tls.cert_file, tls.key_file) if path is not None]
    for path in files:
        if os.path.exists(path) and not os.path.isfile(path):
            raise ScrapeError(ScrapeFailure.AUTH, f"{path}: is no file")
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file is not None:
            context.load_cert_chain(tls.cert_file, tls.key_file)
    except OSError as error:
        text = f"ca_file, cert_file or key_file ({', '.join(files)}) cannot be used: {error.strerror or error}"
        raise ScrapeError(ScrapeFailure.AUTH, text) from error
    if tls.ca_file is not None:
        # As curl does: a file with the server's own certificate is trusted without its issuer.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # noqa: TID251
        # The option is explicit: a warning at every connect adds nothing.
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    return {"ssl_context": context, "server_hostname": tls.server_name}


def _secret(field: str, path: str, is_header: bool = False) -> str:
    """Return the text of a file. Raise ScrapeError without any part of it."""
    if os.path.exists(path) and not os.path.isfile(path):
        # Reading a pipe could block without end.
        raise ScrapeError(ScrapeFailure.AUTH, f"{field} {path}: is no file")
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        # Drop the cause: a decoding error contains the bytes of the secret.
        raise ScrapeError(ScrapeFailure.AUTH, f"{field} {path}: {reason}") from None
    if not text:
        raise ScrapeError(ScrapeFailure.AUTH, f"{field} {path}: is empty")
    if is_header and not (text.isascii() and text.isprintable()):
        raise ScrapeError(ScrapeFailure.AUTH, f"{field} {path}: holds characters that a header cannot carry")
    return text


METRICS = "text/plain;version=0.0.4"
"""A newer version lets prometheus_client rename `vllm:x` to `vllm_x`."""
JSON = "application/json"


def wrong_content(place: str, content_type: str, start: bytes) -> ScrapeError | None:
    """Return the error for a wrong content type or start, or None. A missing type is fine."""
    if start.startswith(b"\x1f\x8b"):
        return ScrapeError(ScrapeFailure.CONTENT_TYPE, f"{place} is compressed, and not announced as such: unpack it")
    is_text = not content_type or any(name in content_type.lower() for name in ("text/plain", "openmetrics"))
    if is_text and start.lstrip()[:1] not in (b"[", b"{", b"<"):
        return None
    hint = f"is there a login or a proxy, or {PATHS} (with return_perf_metrics: true)"
    return ScrapeError(ScrapeFailure.CONTENT_TYPE, f"{place} is not a page of metrics; {hint}")


class PageFetcher(HttpClient):
    """Fetcher of a target's page, for one thread. Only METRICS bodies are checked. `date` is the last Date header."""

    date = ""

    def __init__(self, peer: Peer, accept: str = METRICS) -> None:
        super().__init__(peer)
        self._accept = accept

    def fetch(self) -> bytes:
        """Return one page, not yet parsed: all that was announced. Raise ScrapeError."""
        with self.exchange("GET", self.peer.url, {"Accept": self._accept}) as response:
            self.date = response.headers.get("Date", "")
            if response.status_code != 200:
                raise status_error(self.place, response.status_code)
            content_type = response.headers.get("Content-Type", "")
            body = self.read(response)
        if self._accept == METRICS and (wrong := wrong_content(self.place, content_type, body[:100])):
            raise wrong
        return body


def fetch_page(peer: Peer, accept: str = METRICS) -> bytes:
    """Fetch one page over a connection of its own. Raise ScrapeError."""
    with closing(PageFetcher(peer, accept)) as fetcher:
        return fetcher.fetch()
