"""Fetcher of a page of metrics, or of JSON."""

from __future__ import annotations

from contextlib import closing

from agent.config.peer import Peer
from agent.errors import ScrapeError, ScrapeFailure
from agent.http_client.client import HttpClient
from agent.http_client.errors import PATHS, status_error

METRICS = "text/plain;version=0.0.4"
"""A newer version lets prometheus_client rename `vllm:x` to `vllm_x`."""

JSON = "application/json"


def wrong_content(place: str, content_type: str, start: bytes) -> ScrapeError | None:
    """Return the error for a wrong content type or a wrong start of a page, or None. A missing type is accepted."""
    lowered = content_type.lower()
    is_text = not lowered or lowered.startswith("text/plain") or "openmetrics" in lowered
    if is_text and start.lstrip()[:1] not in (b"[", b"{", b"<"):
        return None
    hint = f"is there a login or a proxy, or {PATHS} (with return_perf_metrics: true)"
    return ScrapeError(ScrapeFailure.CONTENT_TYPE, f"{place} is not a page of metrics; {hint}")


class PageFetcher(HttpClient):
    """Fetcher of the page of one target over a kept connection, for one thread at a time. Other bodies than METRICS are
    not checked. `date` is the Date header of the last response."""

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
