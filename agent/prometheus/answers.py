"""Parsers of responses of the Prometheus HTTP API by orjson, and the errors of a store.

Format: prometheus.io/docs/prometheus/latest/querying/api, "Format overview" and "Expression query result formats". NaN
samples are dropped: they mean no value (0/0, or a stale marker of VictoriaMetrics). Infinities stay. Two values at one
time raise an error: a sum would count twice. No error quotes the response. Its tables follow the sources of Prometheus 2.42
(web/api/v1/api.go), VictoriaMetrics 1.79, Thanos 0.30 and Mimir 2.9.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

import orjson

from agent.errors import ScrapeError, ScrapeFailure, SizewatchError
from agent.garbage import collector_resting
from exporters.render.safe_text import one_line


class StoreErrorKind(StrEnum):
    """Kind of a store error, as counted and exported."""

    AWAY = "away"
    """Store unreachable, or reported as out of service."""
    SLOW = "slow"
    """No complete response in time, a query timeout of the store, or a store that is too busy."""
    CREDENTIALS = "credentials"
    """Credentials rejected, certificate not trusted, or a credentials file unusable."""
    REFUSED = "refused"
    """Query rejected."""
    TOO_MUCH = "too_much"
    """Query above a limit of the store or of this agent."""
    PARTIAL = "partial"
    """Response without a part of the store. It is not used as data."""
    WRONG_ANSWER = "wrong_answer"
    """Response incomplete or not in the format of the Prometheus API."""


class StoreError(SizewatchError):
    """Failed query; no part of its response is used. `text` contains no secret."""

    def __init__(self, kind: StoreErrorKind, place: str, text: str) -> None:
        super().__init__(f"{place}: {text}")
        self.kind = kind
        self.place = place
        self.text = text


_KIND_BY_STATUS = {
    **dict.fromkeys((401, 403, 407), StoreErrorKind.CREDENTIALS),
    **dict.fromkeys((404, 405), StoreErrorKind.WRONG_ANSWER),
    **dict.fromkeys((408, 429, 499, 504), StoreErrorKind.SLOW),
    413: StoreErrorKind.TOO_MUCH,
}
_HINTS = {
    StoreErrorKind.CREDENTIALS: ", wants credentials: set bearer_token_file, basic_auth or org_id, or renew what is in them",
    StoreErrorKind.WRONG_ANSWER: ": is this the address of a Prometheus server?",
}
FINAL_STATUSES = frozenset(status for status, kind in _KIND_BY_STATUS.items() if kind in _HINTS)
"""Statuses that are an error whatever the body contains."""

_WORDS = {
    **dict.fromkeys(("too many samples", "maximum resolution", "-search.max"), StoreErrorKind.TOO_MUCH),
    **dict.fromkeys(("err-mimir-max-", "exceeded series limit", "exceeded chunks limit"), StoreErrorKind.TOO_MUCH),
    **dict.fromkeys(("query timed out", "query was canceled", "deadline exceeded"), StoreErrorKind.SLOW),
    **dict.fromkeys(("vmstorage nodes", "receive series from", "no store matched"), StoreErrorKind.PARTIAL),
}
"""Lower-case words of an error and its kind. The first match counts."""

_SCRAPES = {
    ScrapeFailure.TIMEOUT: StoreErrorKind.SLOW,
    ScrapeFailure.CONNECT: StoreErrorKind.AWAY,
    ScrapeFailure.CUT_OFF: StoreErrorKind.AWAY,
    ScrapeFailure.AUTH: StoreErrorKind.CREDENTIALS,
    ScrapeFailure.TLS: StoreErrorKind.CREDENTIALS,
    ScrapeFailure.TOO_LARGE: StoreErrorKind.TOO_MUCH,
}


def status_error(place: str, status: int) -> StoreError:
    """Return the error for a status without a readable body."""
    kind = _KIND_BY_STATUS.get(status, StoreErrorKind.AWAY if status >= 500 else StoreErrorKind.REFUSED)
    return StoreError(kind, place, f"answered {status}{_HINTS.get(kind, '')}")


def response_error(place: str, status: int, error: str) -> StoreError:
    """Return the error that a response body reports, in words of our own."""
    words = next((words for words in _WORDS if words in error.lower()), None)
    if words is not None:
        return StoreError(_WORDS[words], place, f"refused the query ({status}): {words}")
    return StoreError(status_error(place, status).kind, place, f"refused the query ({status}); its log has the reason")


def transport_error(place: str, error: ScrapeError) -> StoreError:
    """Return the error for a response that did not arrive, or not completely."""
    kind = _SCRAPES.get(error.kind, StoreErrorKind.WRONG_ANSWER)
    return StoreError(kind, place, error.text.removeprefix(place).lstrip("/: "))


_NUMBERS = frozenset({int, float})
_TEXTS = frozenset({str})
_NOT_A_SERIES = "sent a series that is not written as Prometheus does"


@dataclass(frozen=True, slots=True)
class InstantSample:
    """Series of an instant vector. `labels` includes __name__ if present."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class MatrixSeries:
    """Series of a matrix with at least one sample. `times` are unix seconds in ascending order."""

    labels: Mapping[str, str]
    times: tuple[float, ...]
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """Complete response with status "success" or "error". `partial` is the reason why data is missing, else empty.

    `error` is the store's own text. It decides the kind of an error, and stands in no message. `odd` says that a label
    may contain characters that are not plain text.
    """

    place: str
    data: Any
    partial: str = ""
    error: str | None = None
    odd: bool = False


@collector_resting()
def parse_answer(place: str, body: bytes) -> ApiResponse:
    """Parse a response body. Raise StoreError if it is not a response of the API."""
    try:
        answer = orjson.loads(body)
    except ValueError:
        _wrong(place, "answered something else than JSON: is this the address of a Prometheus server?")
    if not isinstance(answer, dict) or answer.get("status") not in ("success", "error"):
        _wrong(place, "answered JSON that is not Prometheus'")
    if answer["status"] == "error":
        return ApiResponse(place, None, error=str(answer.get("error", "")))
    # Without escapes, DEL and non-ASCII letters, no label can contain a control character.
    return ApiResponse(
        place, answer.get("data"), _partial(answer), odd=b"\\" in body or b"\x7f" in body or not body.isascii()
    )


@collector_resting()
def vector(given: ApiResponse, most_samples: int) -> tuple[InstantSample, ...]:
    """Parse an instant vector. Raise StoreError."""
    result = _result(given, "vector")
    if len(result) > most_samples:
        raise _too_many(given.place, most_samples)
    instant_samples = []
    for entry in result:
        labels, (times, values) = _labels(given, entry), _numbers(given.place, entry, "value")
        if times and values[0] == values[0]:
            instant_samples.append(InstantSample(labels, values[0]))
    return tuple(instant_samples)


@collector_resting()
def matrix(
    given: ApiResponse, most_samples: int, span: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[MatrixSeries, ...]:
    """Parse a matrix and keep the samples in `span` (start excluded, end included). Raise StoreError."""
    result = _result(given, "matrix")
    left, matrix_series = most_samples, []
    for entry in result:
        labels, (times, values) = _labels(given, entry), _numbers(given.place, entry, "values")
        left -= len(times)
        if left < 0:
            raise _too_many(given.place, most_samples)
        times, values = _select(given.place, times, values, span)
        if times:
            matrix_series.append(MatrixSeries(labels, times, values))
    if len({tuple(series.labels.items()) for series in matrix_series}) < len(matrix_series):
        _wrong(given.place, "sent a series twice")
    return tuple(matrix_series)


def _too_many(place: str, most_samples: int) -> StoreError:
    return StoreError(StoreErrorKind.TOO_MUCH, place, f"answers with more than {most_samples} samples")


def _wrong(place: str, text: str) -> NoReturn:
    # Drop the cause, which may contain a part of the response.
    raise StoreError(StoreErrorKind.WRONG_ANSWER, place, text) from None


def _partial(mapping: Mapping[str, Any]) -> str:
    """Return the reason why a response is partial, else empty. `infos` of Prometheus concern only the query."""
    if mapping.get("warnings"):
        # Of Thanos, Mimir and Prometheus.
        return "answered with a warning, so not with all it should hold"
    return "answered without some of its parts (isPartial)" if mapping.get("isPartial") else ""


def _result(given: ApiResponse, kind: str) -> list[Any]:
    data = given.data
    if not isinstance(data, dict) or data.get("resultType") != kind or not isinstance(data.get("result"), list):
        _wrong(given.place, f"did not answer as Prometheus does: no {kind} of samples")
    result: list[Any] = data["result"]
    return result


def _labels(given: ApiResponse, entry: Any) -> dict[str, str]:
    """Return the labels of a series, each a plain line. Raise StoreError for others than texts."""
    labels = entry.get("metric") if isinstance(entry, dict) else None
    if not isinstance(labels, dict) or not _TEXTS.issuperset(map(type, labels.values())):
        _wrong(given.place, _NOT_A_SERIES)
    return {one_line(name): one_line(text) for name, text in labels.items()} if given.odd else labels


def _numbers(place: str, entry: Mapping[str, Any], key: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the times and values under `key`: a pair of time and text for "value", a list of pairs for "values"."""
    if "histogram" in entry or "histograms" in entry:
        _wrong(place, "sent native histograms, which are not read: ask for the series that end in _bucket")
    pairs = [entry.get(key)] if key == "value" else entry.get(key)
    try:
        if not isinstance(pairs, list):
            raise ValueError("no list")
        if not pairs:
            return (), ()
        stamps, texts = zip(*pairs, strict=True)
        if not (_NUMBERS.issuperset(map(type, stamps)) and _TEXTS.issuperset(map(type, texts))):
            raise ValueError("other kinds of value")
        return tuple(map(float, stamps)), tuple(map(float, texts))
    except (TypeError, ValueError):
        _wrong(place, _NOT_A_SERIES)


def _select(
    place: str, times: tuple[float, ...], values: tuple[float, ...], span: tuple[float, float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the samples in the span without NaN, those once that two writers stored. The usual series stays as it is."""
    start, end = span
    ordered = all(map(operator.lt, times, times[1:]))
    if ordered and times and start < times[0] and times[-1] <= end and not any(map(math.isnan, values)):
        return times, values
    rows: dict[float, float] = {}
    for t, value in sorted(zip(times, values, strict=True)):
        if start < t <= end and value == value and rows.setdefault(t, value) != value:
            text = "holds two values of one series at one time: several write it; tell their series apart or deduplicate them"
            _wrong(place, text)
    return tuple(rows), tuple(rows.values())
