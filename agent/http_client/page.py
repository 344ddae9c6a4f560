"""Fetcher of a page of metrics, or of JSON: the page is complete, or an error."""

from __future__ import annotations

from contextlib import closing

import requests

from agent.config.peer import Peer
from agent.errors import ScrapeError, ScrapeFailure
from agent.http_client.client import HttpClient
from agent.http_client.errors import status_error

METRICS = "text/plain;version=0.0.4"
"""A newer version lets prometheus_client rename `vllm:x` to `vllm_x`."""

JSON = "application/json"

_PATHS = (
    "; is there a login or a proxy, or is the path wrong? Most engines use /metrics, trtllm-serve /prometheus/metrics,"
    " and only with return_perf_metrics: true in its options"
)


def wrong_content(place: str, content_type: str, start: bytes = b"") -> ScrapeError | None:
    """Return the error for a wrong content type or a wrong start of a page, or None. A missing type is accepted."""
    lowered = content_type.lower()
    first = start.lstrip()[:1]
    for sort, mark in (("JSON", b"["), ("HTML", b"<")):
        if sort.lower() in lowered or first == mark:
            return ScrapeError(ScrapeFailure.CONTENT_TYPE, f"{place} is {sort}, not a page of metrics{_PATHS}")
    if not lowered or lowered.startswith("text/plain") or "openmetrics" in lowered:
        return None
    text = f"{place} sent no text page of metrics, by its Content-Type"
    return ScrapeError(ScrapeFailure.CONTENT_TYPE, text)


class PageFetcher:
    """Fetcher of the page of one target over a kept connection, for one thread at a time. Other bodies than METRICS are
    not checked."""

    def __init__(self, peer: Peer, accept: str = METRICS) -> None:
        self._accept = accept
        self._client = HttpClient(peer, "page")
        self._request: requests.PreparedRequest | None = None
        self.date = ""
        """Date header of the last response."""

    def fetch(self) -> bytes:
        """Return one complete page, not yet parsed. Raise ScrapeError."""
        client = self._client
        if client.load_if_changed() or self._request is None:
            self._request = client.prepare("GET", client.peer.url, {"Accept": self._accept})
        with client.send(self._request) as response:
            self.date = response.headers.get("Date", "")
            if response.status_code != 200:
                raise status_error(client.place, response.status_code)
            content_type = response.headers.get("Content-Type", "")
            # Check twice: a wrong type is not worth reading, and a wrong page may have the right type.
            if self._accept == METRICS and (wrong := wrong_content(client.place, content_type)):
                raise wrong
            body = client.read(response)
        if self._accept == METRICS:
            if wrong := wrong_content(client.place, content_type, body[:100]):
                raise wrong
            if not body.endswith(b"\n"):
                raise client.cut_off("the page ends inside a line" if body else "the page is empty")
            if "openmetrics" in content_type.lower() and not body.endswith(b"# EOF\n"):
                raise client.cut_off("the page is OpenMetrics and does not end in # EOF")
        return body

    def close(self) -> None:
        """Close the kept connection. A later fetch opens a new one."""
        self._client.close()


def fetch_page(peer: Peer, accept: str = METRICS) -> bytes:
    """Fetch one page over a connection of its own. Raise ScrapeError."""
    with closing(PageFetcher(peer, accept)) as fetcher:
        return fetcher.fetch()
