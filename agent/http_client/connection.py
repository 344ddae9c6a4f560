"""Kept connection to one target, and the fetcher of its exposition page.

Responses are complete, within a deadline and a size limit. Secrets are read again when their files change; no message
contains them.
"""

from __future__ import annotations

import os
import queue
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from typing import Any

import urllib3
from urllib3 import BaseHTTPResponse

from agent.errors import ScrapeError, ScrapeFailure
from agent.http_client.error_text import (
    HIDDEN,
    closed_by_peer,
    http_status_error,
    place_of,
    secrets_of,
    translate_http_error,
    unmistakable,
    wrong_content,
)
from agent.http_client.line_limits import LineLimits
from agent.http_client.transport import (
    HttpRequest,
    HttpTransport,
    TargetOptions,
    authorization,
    files,
    header_secret,
    tls_of,
)

# A newer version lets prometheus_client rename `vllm:x` to `vllm_x`.
METRICS = "text/plain;version=0.0.4"
JSON = "application/json"
MOST_THREADS = 32
"""Threads that scrape while targets answer. A waiting thread costs about 35 kB, its connection included."""

MOST_HUNG_THREADS = 256
"""Maximum threads while targets hang: each of these holds one until its deadline."""

MOST_RETRY_THREADS = 64
"""Further threads, for targets that hung last time. With a timeout of 10 s these ask 192 targets in two cycles of 15 s."""

PART_BYTES = 65_536
"""Bytes of a body that are read and decompressed at once: all of a usual page."""

MOST_TAIL = 8_192
"""Bytes of a truncated page that are searched for secrets before its end is quoted."""

_HEADERS = {"Accept-Encoding": "gzip", "User-Agent": "sizewatch"}
_GZIP = 16 + zlib.MAX_WBITS


class KeptConnection:
    """Connection for one thread at a time. Every method raises ScrapeError.

    `what` names a response in messages. `header_files` are pairs of a further header and the file with its value.
    """

    def __init__(self, options: TargetOptions, what: str, header_files: tuple[tuple[str, str], ...] = ()) -> None:
        self._options = options
        self._what = what
        self._header_files = header_files
        self._files = (*files(options), *((f"header {name}", path, ScrapeFailure.AUTH) for name, path in header_files))
        self._place = place_of(options.url)
        self._loaded: tuple[tuple[int, int, int], ...] | None = None
        self._transport = HttpTransport(None)
        self._kept = False
        self._secrets: tuple[bytes, ...] = ()
        self._unmistakable: tuple[bytes, ...] = ()
        self.headers: dict[str, str] = {}
        """Headers with the content of the files; secret."""
        if options.insecure_skip_verify:
            # The option is explicit: a warning at every connect adds nothing.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)

    def load_if_changed(self) -> bool:
        """Read the files at the first call and after a change. Return whether `headers` are new.

        If a changed file is unusable, the contents before stay in use; the daemon reports it (`agent.daemon.followed_files`).
        """
        try:
            stamps = self._stamps()
            if self._loaded == stamps:
                return False
            self._load()
        except ScrapeError:
            if self._loaded is None:
                raise
            return False
        self._loaded = stamps
        return True

    def _stamps(self) -> tuple[tuple[int, int, int], ...]:
        stamps = []
        for field, path, kind in self._files:
            try:
                found = os.stat(path)
            except OSError as error:
                raise ScrapeError(kind, f"{field} {path}: {error.strerror}") from error
            if not stat.S_ISREG(found.st_mode):
                # Reading a pipe could block without end.
                raise ScrapeError(kind, f"{field} {path}: is no file")
            stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
        return tuple(stamps)

    def send(self, request: HttpRequest, deadline: float) -> BaseHTTPResponse:
        """Return status and headers. The body can be read until `deadline` (of time.monotonic)."""
        while True:
            kept, self._kept = self._kept, False
            try:
                return self._transport.send_within(request, deadline - time.monotonic())
            except urllib3.exceptions.HTTPError as error:
                # A server may close an idle connection just when it is used again; retry on a new one.
                if not (kept and closed_by_peer(error)):
                    raise self._translated(error, reading=False) from error

    def body(self, response: BaseHTTPResponse, check: Callable[[bytes], None] | None = None) -> bytes:
        """Return the complete, decompressed body. The connection can then serve another request.

        `check` sees each decompressed part when it arrives, and may raise ScrapeError: nothing more is read then.
        """
        most = PART_BYTES if check is not None else self._options.max_bytes + 1
        received = self._received(response, most)
        parts, size = [], 0
        for part in self._decoded(received, response.headers.get("Content-Encoding", ""), most):
            size += len(part)
            if size > self._options.max_bytes:
                raise self._too_large()
            if check is not None:
                check(part)
            parts.append(part)
        self._kept = True
        return b"".join(parts)

    def redact_reply(self, reply: str) -> str:
        """Remove all secrets from a response text. Redact before truncation: half a secret is not recognised."""
        return _without(reply.encode("utf-8", "replace"), self._secrets).decode()

    def redact_page(self, body: bytes) -> bytes:
        """Remove the secrets that cannot be anything else from a page that is parsed later."""
        return _without(body, self._unmistakable)

    def close(self) -> None:
        """Close the connection. A later request opens a new one."""
        self._transport.close()
        self._kept = False

    def truncation_error(self, text: str) -> ScrapeError:
        return ScrapeError(ScrapeFailure.CUT_OFF, f"{self._place}: {text}")

    def _load(self) -> None:
        transport = HttpTransport(tls_of(self._options), self._options.server_name)
        headers = {name: header_secret(f"header {name}", path) for name, path in self._header_files}
        headers |= authorization(self._options)
        self.headers = headers
        values = self.headers.values()
        self._secrets = tuple(map(str.encode, secrets_of(values, self._options.url)))
        self._unmistakable = tuple(map(str.encode, unmistakable(values, self._options.url)))
        self.close()
        self._transport = transport

    def _translated(self, error: Exception, *, reading: bool) -> ScrapeError:
        return translate_http_error(error, self._place, self._options.timeout_seconds, self._what, reading=reading)

    def _received(self, response: BaseHTTPResponse, most: int) -> Iterator[bytes]:
        """Yield the body as it is sent, in parts of at most so many bytes."""
        announced = response.length_remaining
        if announced is not None and announced > self._options.max_bytes:
            raise self._too_large()
        # With an unknown framing http.client reads until the connection ends, wherever that is.
        framed = response.headers.get("Transfer-Encoding", "identity")
        if framed.lower() not in ("identity", "chunked"):
            raise self.truncation_error(
                f"its Transfer-Encoding is {self.redact_reply(framed)[:40]!r}; only chunked is known"
            )
        if announced is None and "Content-Length" in response.headers and framed.lower() != "chunked":
            raise self.truncation_error("the length that it announces is no number")
        size, more = 0, True
        while more:
            try:
                part = response.read(most, decode_content=False)
            except urllib3.exceptions.HTTPError as error:
                raise self._translated(error, reading=True) from error
            except ValueError as error:
                # http.client accepts any integer as the length of a chunk.
                raise self.truncation_error("a chunk of it has a length that is none") from error
            more = len(part) == most
            size += len(part)
            if size > self._options.max_bytes:
                raise self._too_large()
            yield part
        if response.length_remaining:
            raise self.truncation_error(f"{size} of {announced} announced bytes arrived")

    def _decoded(self, received: Iterator[bytes], encoding: str, most: int) -> Iterator[bytes]:
        """Yield the decompressed body in parts of at most so many bytes."""
        if encoding.strip().lower() in ("", "identity"):
            yield from received
            return
        if encoding.strip().lower() not in ("gzip", "x-gzip"):
            text = f"{self._place} sent Content-Encoding {self.redact_reply(encoding)[:40]!r}; only gzip is asked for"
            raise ScrapeError(ScrapeFailure.CONTENT_TYPE, text)
        # Not urllib3's decoder: it takes a truncated stream for a complete one.
        unzip = zlib.decompressobj(_GZIP)
        for packed in received:
            if unzip.eof and packed:
                raise self._unended()
            more = True
            while more:
                try:
                    part = unzip.decompress(packed, most)
                except zlib.error as error:
                    raise self.truncation_error(f"its gzip does not unpack ({error})") from error
                yield part
                packed = unzip.unconsumed_tail
                more = not unzip.eof and (bool(packed) or len(part) == most)
        if not unzip.eof or unzip.unused_data:
            raise self._unended()

    def _unended(self) -> ScrapeError:
        return self.truncation_error(f"its gzip stream does not end with the {self._what}")

    def _too_large(self) -> ScrapeError:
        text = f"{self._place} sends more than {self._options.max_bytes} bytes; if that is right, raise max_bytes"
        return ScrapeError(ScrapeFailure.TOO_LARGE, text)


def _without(text: bytes, secrets: tuple[bytes, ...]) -> bytes:
    for secret in secrets:
        text = text.replace(secret, HIDDEN.encode())
    return text


class PageFetcher:
    """Fetcher of the page of one target over a kept connection, for one thread at a time.

    A response to another `accept` is not checked. CPU of one fetch of a 54 kB page over loopback, by time.process_time
    (Python 3.11, requests 2.34): 0.15 ms on the kept connection, 0.20 ms on a new one, 0.17 ms with gzip, 0.33 ms if
    headers and body arrive separately; `Session.get` takes 0.5 ms.
    """

    def __init__(self, options: TargetOptions, accept: str = METRICS) -> None:
        self._options = options
        self._accept = accept
        self._place = place_of(options.url)
        self._connection = KeptConnection(options, "page")
        self._request = HttpRequest(method="GET", url=options.url)

    def fetch(self) -> bytes:
        """Return one complete page, not yet parsed. Raise ScrapeError."""
        deadline = time.monotonic() + self._options.timeout_seconds
        if self._connection.load_if_changed():
            headers = _HEADERS | {"Accept": self._accept} | self._connection.headers
            self._request = replace(self._request, headers=headers)
        response = self._connection.send(self._request, deadline)
        try:
            return self._page(response)
        except BaseException:
            response.close()
            raise

    def close(self) -> None:
        """Close the kept connection. A later fetch opens a new one."""
        self._connection.close()

    def _page(self, response: BaseHTTPResponse) -> bytes:
        connection = self._connection
        if response.status != 200:
            location = connection.redact_reply(response.headers.get("Location", ""))
            raise http_status_error(self._place, response.status, location)
        content_type = connection.redact_reply(response.headers.get("Content-Type", ""))
        # Check twice: a wrong type is not worth reading, and a wrong page may have the right type.
        if self._accept == METRICS and (wrong := wrong_content(self._place, content_type)):
            raise wrong
        if self._accept != METRICS:
            return connection.redact_page(connection.body(response))
        limits = LineLimits()

        def check(part: bytes) -> None:
            if not limits.begun and (wrong := wrong_content(self._place, content_type, part[:100])):
                raise wrong
            limits.check(part)

        body = connection.redact_page(connection.body(response, check))
        if not body.endswith(b"\n"):
            tail = connection.redact_reply(body[-MOST_TAIL:].decode("utf-8", "replace"))[-60:]
            raise connection.truncation_error(f"the page ends inside a line: {tail!r}" if body else "the page is empty")
        if "openmetrics" in content_type.lower() and not body.endswith(b"# EOF\n"):
            raise connection.truncation_error("the page is OpenMetrics and does not end in # EOF")
        return body


def fetch_page(options: TargetOptions, accept: str = METRICS) -> bytes:
    """Fetch one page over a connection of its own. Raise ScrapeError."""
    with closing(PageFetcher(options, accept)) as fetcher:
        return fetcher.fetch()


class FetchThreads:
    """Threads for scrapes. As daemon threads they hold up no exit, which a hung name lookup otherwise would."""

    def __init__(self, most: int = MOST_HUNG_THREADS) -> None:
        self._waiting: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._counting = threading.Lock()
        self._idle = self.count = 0
        self._most = most

    def submit(self, fetch: Callable[[], Any]) -> Future[Any]:
        scrape: Future[Any] = Future()
        if self._waiting.qsize() >= self._idle and self.count < min(MOST_THREADS, max(1, self._most)):
            self.grow(1)
        self._waiting.put((scrape, fetch))
        return scrape

    def grow(self, more: int) -> None:
        """Start up to `more` threads. Where the machine gives none, the present ones go on; raise RuntimeError without any."""
        for _ in range(more):
            with self._counting:
                self.count += 1
            try:
                threading.Thread(target=self._work, name="scrape", daemon=True).start()
            except (RuntimeError, MemoryError):
                with self._counting:
                    self.count -= 1
                    self._most = self.count
                    if not self.count:
                        raise
                return

    def relieve(self) -> None:
        """Double the threads if scrapes wait for one."""
        self.grow(min(self._waiting.qsize(), self.count, self._most - self.count))

    def _work(self) -> None:
        while True:
            with self._counting:
                if self.count > MOST_THREADS and self._waiting.empty():
                    self.count -= 1
                    return
                self._idle += 1
            job = self._waiting.get()
            with self._counting:
                self._idle -= 1
                if job is None:
                    self.count -= 1
                    return
            scrape, fetch = job
            if scrape.set_running_or_notify_cancel():
                scrape.set_result(fetch())

    def stop(self) -> None:
        """Let every thread end after its scrape."""
        for _ in range(self.count):
            self._waiting.put(None)
