"""Asks a Prometheus-compatible server for the raw samples of a span.

Owns one question of its HTTP API (`/api/v1/query` of a range selector, which gives samples with their true times: a range
query would repeat old ones at its steps) and every way in which the answer can be useless. It knows no metric. No message
holds a password, a token or a query. API: prometheus.io/docs/prometheus/latest/querying/api, "Instant queries".
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import requests
import urllib3

from agent.benchmarks.telemetry_found import in_words
from agent.collect.scrape_failures import place_of, refused, translated
from agent.collect.transport import TargetAdapter, tls_context
from agent.errors import BadBenchmark

TIMEOUT_SECONDS = 10.0

MOST_BYTES = 64 * 1024 * 1024
"""An hour of a hundred replicas at a scrape every 15 s is a quarter of it."""

_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "Content-Type": "application/x-www-form-urlencoded",
    "User-Agent": "sizewatch",
}
_STATUSES = {
    401: "wants credentials: give --bearer-token-file",
    403: "does not let these credentials query it",
    404: "answered 404: is this the address of a Prometheus server?",
    405: "does not take a query: is this the address of a Prometheus server?",
}
_NARROWER = "narrow it with --telemetry-selector"


@dataclass(frozen=True, slots=True)
class RawSeries:
    """One series of an answer: its name, its other labels, its samples (unix seconds, value) in order of time."""

    name: str
    labels: tuple[tuple[str, str], ...]
    samples: tuple[tuple[float, float], ...]


class PrometheusApi:
    """One server. Raises BadBenchmark where its address or a file for it cannot be used; nothing is asked before `raw`."""

    def __init__(
        self,
        url: str,
        bearer_token_file: str | None = None,
        ca_file: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.place = _checked(url)
        self._timeout = timeout_seconds
        self._most_bytes = most_bytes
        headers = _HEADERS | _authorization(bearer_token_file)
        self._adapter = TargetAdapter(_tls(self.place, ca_file))
        self._request = requests.Request("POST", f"{self.place.rstrip('/')}/api/v1/query", headers=headers)

    def raw(self, selector: str, start: float, end: float) -> tuple[RawSeries, ...]:
        """All samples of the series that match from start to end (unix seconds). Raises BadBenchmark."""
        seconds = math.ceil(end - start)
        data = self._asked({"query": f"{selector}[{seconds}s]", "time": f"{end:.3f}"})
        if not isinstance(data, dict) or data.get("resultType") != "matrix" or not isinstance(data.get("result"), list):
            raise self._bad("did not answer as Prometheus does: no matrix of samples")
        return tuple(self._series(entry) for entry in data["result"])

    def close(self) -> None:
        """Ends the kept connection."""
        self._adapter.close()

    def _asked(self, form: dict[str, str]) -> Any:
        body, status = self._body(urlencode(form))
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            raise self._bad("answered something else than JSON: is this the address of a Prometheus server?") from None
        if not isinstance(answer, dict) or answer.get("status") not in ("success", "error"):
            raise self._bad("answered JSON that is not Prometheus'")
        if answer["status"] == "error" or status != 200:
            # The end: VictoriaMetrics repeats the query before it says what is wrong with it.
            said = " ".join(str(answer.get("error", "")).split())[-200:]
            raise self._bad(f"refused the query ({status}): {said or 'it does not say why'}")
        return answer.get("data")

    def _body(self, form: str) -> tuple[bytes, int]:
        prepared = self._request.prepare()
        prepared.prepare_body(form, None)
        deadline = time.monotonic() + self._timeout
        try:
            response = self._adapter.send_within(prepared, deadline - time.monotonic())
        except requests.RequestException as error:
            raise self._bad(self._without_place(translated(error, self.place, self._timeout).text)) from error
        try:
            return self._read(response), response.status_code
        except urllib3.exceptions.HTTPError as error:
            raise self._bad(self._without_place(translated(error, self.place, self._timeout).text)) from error
        finally:
            response.close()

    def _read(self, response: requests.Response) -> bytes:
        status = response.status_code
        if 300 <= status < 400:
            raise self._bad(self._without_place(refused(self.place, status, response.headers.get("Location")).text))
        if status in _STATUSES:
            raise self._bad(_STATUSES[status])
        kind = response.headers.get("Content-Type", "").lower()
        if status != 200 and "json" not in kind:
            raise self._bad(f"answered {status}")
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise self._bad("sent a compressed answer, which was not asked for")
        body: bytes = response.raw.read(self._most_bytes + 1, decode_content=False)
        if len(body) > self._most_bytes:
            raise self._bad(f"answers with more than {self._most_bytes} bytes: {_NARROWER}")
        if response.raw.length_remaining:
            raise self._bad("ended the connection in the middle of its answer")
        return body

    def _series(self, entry: Any) -> RawSeries:
        try:
            labels = {str(name): text for name, text in entry["metric"].items() if isinstance(text, str)}
            name = labels.pop("__name__")
            samples = tuple((_time(t), float(value)) for t, value in entry.get("values", ()))
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            raise self._bad("sent a series that is not written as Prometheus does") from None
        return RawSeries(name, tuple(sorted(labels.items())), samples)

    def _without_place(self, text: str) -> str:
        return text.removeprefix(self.place).lstrip(": ")

    def _bad(self, text: str) -> BadBenchmark:
        return BadBenchmark(self.place, text)


def nothing_there(api: PrometheusApi, what: str, start: float, end: float) -> BadBenchmark:
    """An answer without samples: the span that was asked for shows a mistaken time zone."""
    return BadBenchmark(api.place, f"has no {what} from {in_words(start, end)}: do the times and the selector fit?")


def _time(t: Any) -> float:
    if isinstance(t, bool) or not math.isfinite(t):
        raise ValueError("no time")
    return float(t)


def _checked(url: str) -> str:
    """The address without what may not stand in a message. Raises BadBenchmark."""
    try:
        parts = urlsplit(url)
        _ = parts.port
        place = place_of(url)
    except ValueError as error:
        raise BadBenchmark("--telemetry", f"is no address that can be read: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadBenchmark(place, "must begin with http:// or https:// and name a host")
    if "@" in parts.netloc:
        raise BadBenchmark(place, "must hold no user or password")
    if parts.query or parts.fragment:
        raise BadBenchmark(place, "must be the server's base address, without a query")
    return place


def _tls(place: str, ca_file: str | None) -> Any:
    if not place.startswith("https:"):
        return None
    try:
        return tls_context(ca_file, verify=True, client_certificate=None)
    except OSError as error:
        raise BadBenchmark(ca_file or place, f"cannot be used as a CA: {error.strerror or error}") from error


def _authorization(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        # Without its cause: a decoding error holds the bytes of the secret.
        raise BadBenchmark(path, f"cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    if not token or not (token.isascii() and token.isprintable()):
        raise BadBenchmark(path, "holds no token that a header can carry")
    return {"Authorization": f"Bearer {token}"}
