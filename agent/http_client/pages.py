"""Fetches the exposition page of one target, whole and in time, or says in one word why not.

Owns what is asked of a target, what counts as a complete page, and how long a failing target is left alone. It must not
parse the page (exposition.py) nor keep time between scrapes (its caller does); the connection and its secrets are
connection.py's, how to get in target_options.py's, words for failures scrape_failures.py's.
"""

import time
from dataclasses import dataclass

import requests

from agent.http_client.connection import KeptConnection
from agent.http_client.error_text import http_status_error, place_of, wrong_content
from agent.http_client.target_options import TargetOptions

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

    def record_failure(self, now: float, interval: float) -> "Backoff":
        skipped = _SKIPPED_TURNS[min(self.failures, len(_SKIPPED_TURNS) - 1)]
        # Half a turn of slack: a turn that starts a little early or late is still that turn.
        return Backoff(self.failures + 1, now + (skipped + 0.5) * interval)

    def record_success(self) -> "Backoff":
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
