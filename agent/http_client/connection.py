"""One kept connection to one place: answers whole, in time, not too large, with secrets that are read again when they change.

Owns the files' reading, the connection's life and what an answer's bytes must be. It must not look at status or meaning:
`pages` does for pages, `agent.prometheus.query` for a store's answers. Sockets are transport.py's.

A request is prepared once and given to the adapter: `requests.Session.send` would read the body of a redirect without
limit, store cookies and ask the environment for proxies.

Fetches the exposition page of one target, whole and in time, or says in one word why not.

Owns what is asked of a target, what counts as a complete page, and how long a failing target is left alone. It must not
parse the page (exposition.py) nor keep time between scrapes (its caller does); the connection and its secrets are
connection.py's, how to get in target_options.py's, words for failures scrape_failures.py's.
"""

from __future__ import annotations

import os
import stat
import time
import zlib
from dataclasses import dataclass

import requests
import urllib3

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
from agent.http_client.transport import TargetAdapter, TargetOptions, authorization, files, secret, tls_of

_GZIP = 16 + zlib.MAX_WBITS


class KeptConnection:
    """For one thread at a time. Every method raises ScrapeError; nothing read from a file gets into it.

    `what` is how an answer is called in messages. `header_files` are further headers, by name, and the files that hold them.
    """

    def __init__(self, options: TargetOptions, what: str, header_files: tuple[tuple[str, str], ...] = ()) -> None:
        self._options = options
        self._what = what
        self._header_files = header_files
        self._files = (*files(options), *((f"header {name}", path, ScrapeFailure.AUTH) for name, path in header_files))
        self._place = place_of(options.url)
        self._loaded: tuple[tuple[int, int, int], ...] | None = None
        self._adapter = TargetAdapter(None)
        self._kept = False
        self._secrets: tuple[bytes, ...] = ()
        self._unmistakable: tuple[bytes, ...] = ()
        self.headers: dict[str, str] = {}
        """What the files make; secret."""
        if options.insecure_skip_verify:
            # Asked for by name; a warning at every connect would say nothing new.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)

    def load_if_changed(self) -> bool:
        """Reads the files at the first call and when one has changed; whether it did, so that `headers` are new."""
        stamps = []
        for field, path, kind in self._files:
            try:
                found = os.stat(path)
            except OSError as error:
                raise ScrapeError(kind, f"{field} {path}: {error.strerror}") from error
            if not stat.S_ISREG(found.st_mode):
                # A pipe would be waited for without end.
                raise ScrapeError(kind, f"{field} {path}: is no file")
            stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
        if self._loaded == tuple(stamps):
            return False
        self._load()
        self._loaded = tuple(stamps)
        return True

    def answer(self, request: requests.PreparedRequest, deadline: float) -> requests.Response:
        """The answer's status and headers; its body can be read until `deadline` (of time.monotonic)."""
        while True:
            kept, self._kept = self._kept, False
            try:
                return self._adapter.send_within(request, deadline - time.monotonic())
            except requests.RequestException as error:
                # A server may close an idle connection at the very moment it is used again; a new one settles it.
                if not (kept and closed_by_peer(error)):
                    raise self._translated(error) from error

    def body(self, response: requests.Response) -> bytes:
        """The whole body, unpacked. The connection is good for another request afterwards, and only then."""
        body = self._decoded(self._received(response), response.headers.get("Content-Encoding", ""))
        self._kept = True
        return body

    def redact_reply(self, said: str) -> str:
        """What the other side said, without our secrets: what of it gets into a message is cut, and half a secret is one."""
        return _without(said.encode("utf-8", "replace"), self._secrets).decode()

    def page(self, body: bytes) -> bytes:
        """The same of a page that is to be read, where nothing may go that could be anything else."""
        return _without(body, self._unmistakable)

    def close(self) -> None:
        """Ends the connection; a later request opens a new one."""
        self._adapter.close()
        self._kept = False

    def truncation_error(self, how: str) -> ScrapeError:
        """That not all has arrived."""
        return ScrapeError(ScrapeFailure.CUT_OFF, f"{self._place}: {how}")

    def _load(self) -> None:
        adapter = TargetAdapter(tls_of(self._options), self._options.server_name)
        headers = {name: self._header(name, path) for name, path in self._header_files}
        self.headers = headers | authorization(self._options)
        told = self.headers.values(), self._options.url
        self._secrets = tuple(one.encode() for one in secrets_of(*told))
        self._unmistakable = tuple(one.encode() for one in unmistakable(*told))
        self.close()
        self._adapter = adapter

    @staticmethod
    def _header(name: str, path: str) -> str:
        text = secret(f"header {name}", path)
        if not (text.isascii() and text.isprintable()):
            raise ScrapeError(ScrapeFailure.AUTH, f"header {name} {path}: holds characters that a header cannot carry")
        return text

    def _translated(self, error: Exception) -> ScrapeError:
        return translate_http_error(error, self._place, self._options.timeout_seconds, self._what)

    def _received(self, response: requests.Response) -> bytes:
        limit = self._options.max_bytes
        announced = response.raw.length_remaining
        if announced is not None and announced > limit:
            raise self._too_large()
        # What is framed in a way that http.client does not know, it reads to the end of the connection, wherever that comes.
        framed = response.headers.get("Transfer-Encoding", "identity")
        if framed.lower() not in ("identity", "chunked"):
            raise self.truncation_error(
                f"its Transfer-Encoding is {self.redact_reply(framed)[:40]!r}; only chunked is known"
            )
        if announced is None and "Content-Length" in response.headers and framed.lower() != "chunked":
            raise self.truncation_error("the length that it announces is no number")
        try:
            body: bytes = response.raw.read(limit + 1, decode_content=False)
        except urllib3.exceptions.HTTPError as error:
            raise self._translated(error) from error
        except ValueError as error:
            # http.client takes the length of a chunk for any whole number.
            raise self.truncation_error("a chunk of it has a length that is none") from error
        if len(body) > limit:
            raise self._too_large()
        if response.raw.length_remaining:
            raise self.truncation_error(f"{len(body)} of {announced} announced bytes arrived")
        return body

    def _decoded(self, body: bytes, encoding: str) -> bytes:
        if encoding.strip().lower() in ("", "identity"):
            return body
        if encoding.strip().lower() not in ("gzip", "x-gzip"):
            text = f"{self._place} sent Content-Encoding {self.redact_reply(encoding)[:40]!r}; only gzip is asked for"
            raise ScrapeError(ScrapeFailure.CONTENT_TYPE, text)
        limit = self._options.max_bytes
        # zlib itself rather than urllib3's decoder, which takes a truncated stream for a whole one.
        unzip = zlib.decompressobj(_GZIP)
        try:
            page = unzip.decompress(body, limit + 1)
        except zlib.error as error:
            raise self.truncation_error(f"its gzip does not unpack ({error})") from error
        if len(page) > limit:
            raise self._too_large()
        if not unzip.eof or unzip.unused_data:
            raise self.truncation_error(f"its gzip stream does not end with the {self._what}")
        return page

    def _too_large(self) -> ScrapeError:
        text = f"{self._place} sends more than {self._options.max_bytes} bytes; if that is right, raise max_bytes"
        return ScrapeError(ScrapeFailure.TOO_LARGE, text)


def _without(said: bytes, secrets: tuple[bytes, ...]) -> bytes:
    for one in secrets:
        said = said.replace(one, HIDDEN.encode())
    return said


# Anything newer lets prometheus_client rename `vllm:x` to `vllm_x`.
METRICS = "text/plain;version=0.0.4"
JSON = "application/json"
_HEADERS = {"Accept-Encoding": "gzip", "User-Agent": "sizewatch"}
_SKIPPED_TURNS = (0, 0, 1)
MOST_TAIL = 8_192
"""Of a page that is cut off, searched for secrets before its last words are quoted."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a failing target is left alone: 0, 0, then always 1 turn, to spare every other turn a timeout. One that is
    well again is seen within two turns.

    `now` is the start of a turn, in seconds of any one clock; `interval` the seconds between turns.
    """

    failures: int = 0
    skip_until: float = 0.0

    def is_due(self, now: float) -> bool:
        return now >= self.skip_until

    def record_failure(self, now: float, interval: float) -> Backoff:
        skipped = _SKIPPED_TURNS[min(self.failures, len(_SKIPPED_TURNS) - 1)]
        # Half a turn of slack: a turn that starts a little early or late is still that turn.
        return Backoff(self.failures + 1, now + (skipped + 0.5) * interval)

    def record_success(self) -> Backoff:
        return Backoff()


class PageFetcher:
    """The page of one target, over one kept connection. For one thread at a time.

    With `accept` another kind of answer is asked for and returned unchecked, to the same limits: what it is must be the
    caller's care. The files that the options name are read at the first fetch and again when they change, so a rotated
    token is in use without a restart. Nothing read from them gets into a message or a repr.

    CPU of one fetch of a 54 kB page over loopback, by time.process_time (Python 3.11,
    requests 2.34): 0.15 ms on the kept connection, 0.20 ms on a new one, 0.17 ms with gzip, 0.33 ms where headers and
    body come apart; `Session.get` takes 0.5 ms.
    """

    def __init__(self, options: TargetOptions, accept: str = METRICS) -> None:
        self._options = options
        self._accept = accept
        self._place = place_of(options.url)
        self._connection = KeptConnection(options, "page")
        self._request = requests.PreparedRequest()

    def fetch(self) -> bytes:
        """One complete page, not yet parsed. Raises ScrapeError."""
        deadline = time.monotonic() + self._options.timeout_seconds
        if self._connection.load_if_changed():
            headers = _HEADERS | {"Accept": self._accept} | self._connection.headers
            self._request = requests.Request("GET", self._options.url, headers=headers).prepare()
        response = self._connection.answer(self._request, deadline)
        try:
            return self._page(response)
        except BaseException:
            response.close()
            raise

    def close(self) -> None:
        """Ends the kept connection; a later fetch opens a new one."""
        self._connection.close()

    def _page(self, response: requests.Response) -> bytes:
        if response.status_code != 200:
            location = self._connection.redact_reply(response.headers.get("Location", ""))
            raise http_status_error(self._place, response.status_code, location)
        content_type = self._connection.redact_reply(response.headers.get("Content-Type", ""))
        # Twice: a wrong type is not worth reading, and a wrong page may come under the right type.
        if self._accept == METRICS and (wrong := wrong_content(self._place, content_type)):
            raise wrong
        body = self._connection.page(self._connection.body(response))
        if self._accept != METRICS:
            return body
        if wrong := wrong_content(self._place, content_type, body[:100]):
            raise wrong
        if not body.endswith(b"\n"):
            tail = self._connection.redact_reply(body[-MOST_TAIL:].decode("utf-8", "replace"))[-60:]
            raise self._connection.truncation_error(
                f"the page ends inside a line: {tail!r}" if body else "the page is empty"
            )
        if "openmetrics" in content_type.lower() and not body.endswith(b"# EOF\n"):
            raise self._connection.truncation_error("the page is OpenMetrics and does not end in # EOF")
        return body
