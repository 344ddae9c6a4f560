"""Fetches the exposition page of one target, whole and in time, or says in one word why not.

Owns what is asked of a target, what counts as a complete page, and how long a failing target is left alone. It must not
parse the page (exposition.py) nor keep time between scrapes (its caller does); sockets are transport.py's, words for
failures scrape_failures.py's. Add a way to authenticate as a field of `TargetOptions`, a row of `_files` and a branch
of `authorization`.
"""

import base64
import os
import ssl
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import requests
import urllib3

from agent.collect.scrape_failures import closed_by_peer, place_of, refused, translated, wrong_content
from agent.collect.transport import TargetAdapter, tls_context
from agent.errors import BadConfig, ScrapeError, ScrapeFailure

# A hundred times the page of a busy engine; beyond it is a mistake or an attack.
DEFAULT_MAX_BYTES = 16 * 1024 * 1024
# Anything newer lets prometheus_client rename `vllm:x` to `vllm_x`.
METRICS = "text/plain;version=0.0.4"
JSON = "application/json"
_HEADERS = {"Accept-Encoding": "gzip", "User-Agent": "sizewatch"}
_GZIP = 16 + zlib.MAX_WBITS
_SKIPPED_TURNS = (0, 0, 1, 2, 4)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a failing target is left alone: 0, 0, 1, 2, then always 4 turns, to spare every turn a timeout.

    `now` is the start of a turn, in seconds of any one clock; `interval` the seconds between turns.
    """

    failures: int = 0
    skip_until: float = 0.0

    def due(self, now: float) -> bool:
        return now >= self.skip_until

    def failed(self, now: float, interval: float) -> "Backoff":
        skipped = _SKIPPED_TURNS[min(self.failures, len(_SKIPPED_TURNS) - 1)]
        # Half a turn of slack: a turn that starts a little early or late is still that turn.
        return Backoff(self.failures + 1, now + (skipped + 0.5) * interval)

    def ok(self) -> "Backoff":
        return Backoff()


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

    def __post_init__(self) -> None:
        problems = tuple(text for wrong, text in self._findings() if wrong)
        if problems:
            raise BadConfig(problems)

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
        yield True, f"url: {error}"
        return
    yield parts.scheme not in ("http", "https"), "url: must begin with http:// or https://"
    yield not parts.hostname, "url: names no host"
    yield "@" in parts.netloc, "url: must hold no user or password; use username and password_file"


class PageFetcher:
    """The page of one target, over one kept connection. For one thread at a time.

    With `accept` another kind of answer is asked for and returned unchecked, to the same limits: what it is must be the
    caller's care. The files that the options name are read at the first fetch and again when they change, so a rotated
    token is in use without a restart. Nothing read from them gets into a message or a repr.

    The request is prepared once and given to the session's adapter: `Session.send` would read the body of a redirect
    without limit and store cookies. CPU of one fetch of a 54 kB page over loopback, by time.process_time (Python 3.11,
    requests 2.34): 0.15 ms on the kept connection, 0.20 ms on a new one, 0.17 ms with gzip, 0.33 ms where headers and
    body come apart; `Session.get` takes 0.5 ms.
    """

    def __init__(self, options: TargetOptions, accept: str = METRICS) -> None:
        self._options = options
        self._accept = accept
        self._place = place_of(options.url)
        self._loaded: tuple[tuple[int, int, int], ...] | None = None
        self._session = requests.Session()
        self._adapter = TargetAdapter(None)
        self._request = requests.PreparedRequest()
        self._kept = False
        if options.insecure_skip_verify:
            # Asked for by name; a warning at every connect would say nothing new.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)

    def fetch(self) -> bytes:
        """One complete page, not yet parsed. Raises ScrapeError."""
        deadline = time.monotonic() + self._options.timeout_seconds
        self._load_if_changed()
        response = self._answer(deadline)
        try:
            body = self._page(response)
        except BaseException:
            response.close()
            raise
        self._kept = True
        return body

    def close(self) -> None:
        """Ends the kept connection; a later fetch opens a new one."""
        self._session.close()
        self._kept = False

    def _files(self) -> Iterator[tuple[str, str, ScrapeFailure]]:
        options = self._options
        rows = (
            ("bearer_token_file", options.bearer_token_file, ScrapeFailure.AUTH),
            ("password_file", options.password_file, ScrapeFailure.AUTH),
            ("ca_file", options.ca_file, ScrapeFailure.TLS),
            ("client_cert_file", options.client_cert_file, ScrapeFailure.TLS),
            ("client_key_file", options.client_key_file, ScrapeFailure.TLS),
        )
        return ((field, path, kind) for field, path, kind in rows if path is not None)

    def _load_if_changed(self) -> None:
        stamps = []
        for field, path, kind in self._files():
            try:
                found = os.stat(path)
            except OSError as error:
                raise ScrapeError(kind, f"{field} {path}: {error.strerror}") from error
            stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
        if self._loaded != tuple(stamps):
            self._load()
            self._loaded = tuple(stamps)

    def _load(self) -> None:
        adapter = TargetAdapter(tls_of(self._options))
        headers = _HEADERS | {"Accept": self._accept} | authorization(self._options)
        self.close()
        self._adapter = adapter
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)
        self._request = self._session.prepare_request(requests.Request("GET", self._options.url, headers=headers))

    def _answer(self, deadline: float) -> requests.Response:
        while True:
            kept, self._kept = self._kept, False
            try:
                return self._adapter.send_within(self._request, deadline - time.monotonic())
            except requests.RequestException as error:
                # A server may close an idle connection at the very moment it is used again; a new one settles it.
                if not (kept and closed_by_peer(error)):
                    raise translated(error, self._place, self._options.timeout_seconds) from error

    def _page(self, response: requests.Response) -> bytes:
        if response.status_code != 200:
            raise refused(self._place, response.status_code, response.headers.get("Location"))
        content_type = response.headers.get("Content-Type", "")
        # Twice: a wrong type is not worth reading, and a wrong page may come under the right type.
        if self._accept == METRICS and (wrong := wrong_content(self._place, content_type)):
            raise wrong
        body = self._decoded(self._received(response), response.headers.get("Content-Encoding", ""))
        if self._accept != METRICS:
            return body
        if wrong := wrong_content(self._place, content_type, body[:100]):
            raise wrong
        if not body.endswith(b"\n"):
            raise self._cut_off(f"the page ends inside a line: {body[-60:]!r}" if body else "the page is empty")
        return body

    def _received(self, response: requests.Response) -> bytes:
        limit = self._options.max_bytes
        announced = response.raw.length_remaining
        if announced is not None and announced > limit:
            raise self._too_large()
        try:
            body: bytes = response.raw.read(limit + 1, decode_content=False)
        except urllib3.exceptions.HTTPError as error:
            raise translated(error, self._place, self._options.timeout_seconds) from error
        if len(body) > limit:
            raise self._too_large()
        if response.raw.length_remaining:
            raise self._cut_off(f"{len(body)} of {announced} announced bytes arrived")
        return body

    def _decoded(self, body: bytes, encoding: str) -> bytes:
        if encoding.strip().lower() in ("", "identity"):
            return body
        if encoding.strip().lower() not in ("gzip", "x-gzip"):
            text = f"{self._place} sent Content-Encoding {encoding[:40]!r}; only gzip is asked for"
            raise ScrapeError(ScrapeFailure.CONTENT_TYPE, text)
        limit = self._options.max_bytes
        # zlib itself rather than urllib3's decoder, which takes a truncated stream for a whole one.
        unzip = zlib.decompressobj(_GZIP)
        try:
            page = unzip.decompress(body, limit + 1)
        except zlib.error as error:
            raise self._cut_off(f"its gzip does not unpack ({error})") from error
        if len(page) > limit:
            raise self._too_large()
        if not unzip.eof or unzip.unused_data:
            raise self._cut_off("its gzip stream does not end with the page")
        return page

    def _too_large(self) -> ScrapeError:
        text = f"{self._place} sends more than {self._options.max_bytes} bytes; if that is right, raise max_bytes"
        return ScrapeError(ScrapeFailure.TOO_LARGE, text)

    def _cut_off(self, how: str) -> ScrapeError:
        return ScrapeError(ScrapeFailure.CUT_OFF, f"{self._place}: {how}")


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
        token = _secret("bearer_token_file", options.bearer_token_file)
        if not (token.isascii() and token.isprintable()):
            text = f"bearer_token_file {options.bearer_token_file}: holds characters that a header cannot carry"
            raise ScrapeError(ScrapeFailure.AUTH, text)
        return {"Authorization": f"Bearer {token}"}
    if options.username is not None and options.password_file is not None:
        pair = f"{options.username}:{_secret('password_file', options.password_file)}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    return {}


def _secret(field: str, path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        # Without its cause: a decoding error holds the bytes of the secret.
        raise ScrapeError(ScrapeFailure.AUTH, f"{field} {path}: {reason}") from None
    if not text:
        raise ScrapeError(ScrapeFailure.AUTH, f"{field} {path}: is empty")
    return text
