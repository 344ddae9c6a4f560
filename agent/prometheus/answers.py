"""Parsers of responses of the Prometheus HTTP API by orjson, and the errors of a store.

Format: prometheus.io/docs/prometheus/latest/querying/api, "Format overview" and "Expression query result formats". NaN
samples are dropped: they mean no value (0/0, or a stale marker of VictoriaMetrics). Infinities stay. Duplicate labels,
or two values at one time, raise an error because their sum would count twice. No error quotes the response.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NoReturn

import orjson

from agent.garbage import collector_resting
from agent.prometheus.errors import StoreError, StoreErrorKind
from exporters.render.text import one_line
from rules.light_dataclass import light_dataclass

_NUMBERS = frozenset({int, float})
_TEXTS = frozenset({str})
_NOT_A_SERIES = "sent a series that is not written as Prometheus does"
ALWAYS = (-math.inf, math.inf)


@light_dataclass(frozen=True, slots=True)
class InstantSample:
    """Series of an instant vector. `labels` includes __name__ if present."""

    labels: Mapping[str, str]
    value: float


@light_dataclass(frozen=True, slots=True)
class MatrixSeries:
    """Series of a matrix with at least one sample. `times` are unix seconds in ascending order."""

    labels: Mapping[str, str]
    times: tuple[float, ...]
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """Complete response with status "success" or "error". `partial` is the reason why data is missing, else empty.

    `error` is the store's own text. It decides the kind of an error, and stands in no message.
    """

    place: str
    data: Any
    partial: str = ""
    error_type: str = ""
    error: str | None = None
    odd: bool = False
    """True if a label may contain characters that are not plain text."""


@collector_resting()
def parse_answer(place: str, body: bytes) -> ApiResponse:
    """Parse a response body. Raise StoreError if it is not a response of the API."""
    try:
        found = orjson.loads(body)
    except ValueError:
        _wrong(place, "answered something else than JSON: is this the address of a Prometheus server?")
    if not isinstance(found, dict) or found.get("status") not in ("success", "error"):
        _wrong(place, "answered JSON that is not Prometheus'")
    if found["status"] == "error":
        return ApiResponse(place, None, error_type=str(found.get("errorType", "")), error=str(found.get("error", "")))
    # Without escapes, DEL and non-ASCII letters, no label can contain a control character.
    return ApiResponse(
        place, found.get("data"), _partial(found), odd=b"\\" in body or b"\x7f" in body or not body.isascii()
    )


@collector_resting()
def vector(given: ApiResponse, most_samples: int) -> tuple[InstantSample, ...]:
    """Parse an instant vector. A scalar becomes a sample without labels. Raise StoreError."""
    kind, result = _result(given)
    if kind == "scalar":
        result = [{"metric": {}, "value": result}]
    elif kind != "vector" or not isinstance(result, list):
        _wrong(given.place, "did not answer as Prometheus does: no vector of samples")
    if len(result) > most_samples:
        raise too_many(given.place, most_samples)
    labels = _labels(given, result)
    values = _values(given.place, result)
    return tuple(InstantSample(of, value) for of, value in zip(labels, values, strict=True) if value == value)


@collector_resting()
def matrix(given: ApiResponse, most_samples: int, span: tuple[float, float] = ALWAYS) -> tuple[MatrixSeries, ...]:
    """Parse a matrix and keep the samples in `span` (start excluded, end included). Raise StoreError."""
    kind, result = _result(given)
    if kind != "matrix" or not isinstance(result, list):
        _wrong(given.place, "did not answer as Prometheus does: no matrix of samples")
    left, several = most_samples, []
    for labels, entry in zip(_labels(given, result), result, strict=True):
        times, values = _samples(given.place, entry)
        left -= len(times)
        if left < 0:
            raise too_many(given.place, most_samples)
        several.append((labels, *_useful(given.place, times, values, span)))
    return tuple(MatrixSeries(*one) for one in several if one[1])


def too_many(place: str, most_samples: int) -> StoreError:
    """Return the error for a response above the sample limit of one query."""
    return StoreError(StoreErrorKind.TOO_MUCH, place, f"answers with more than {most_samples} samples")


def _wrong(place: str, text: str) -> NoReturn:
    # Drop the cause, which may contain a part of the response.
    raise StoreError(StoreErrorKind.WRONG_ANSWER, place, text) from None


def _partial(found: Mapping[str, Any]) -> str:
    """Return the reason why a response is partial, else empty. `infos` of Prometheus concern only the query."""
    if found.get("warnings"):
        # Of Thanos, Mimir and Prometheus.
        return "answered with a warning, so not with all it should hold"
    return "answered without some of its parts (isPartial)" if found.get("isPartial") else ""


def _result(given: ApiResponse) -> tuple[object, Any]:
    data = given.data
    return (data.get("resultType"), data.get("result")) if isinstance(data, dict) else (None, None)


def _labels(given: ApiResponse, result: Sequence[Any]) -> list[dict[str, str]]:
    """Return the labels of all series. Raise StoreError for others than texts, or a series that comes twice."""
    try:
        metrics: list[dict[str, str]] = [entry["metric"] for entry in result]
        texts = chain.from_iterable(map(dict.values, metrics))
        if not _TEXTS.issuperset(map(type, texts)):
            raise ValueError("other kinds of value")
    except (IndexError, KeyError, TypeError, ValueError):
        _wrong(given.place, _NOT_A_SERIES)
    if given.odd:
        metrics = [{one_line(name): one_line(text) for name, text in metric.items()} for metric in metrics]
    if not _are_distinct(metrics):
        _wrong(given.place, "sent the same series twice")
    return metrics


def _are_distinct(metrics: Sequence[dict[str, str]]) -> bool:
    """Return whether no two series have the same labels. A store writes names in one order, so values alone tell most."""
    orders = set(map(tuple, metrics))
    in_one_order = len(set(map(frozenset, orders))) == len(orders)
    if in_one_order and len(set(map(tuple, map(dict.values, metrics)))) == len(metrics):
        return True
    return len(set(map(frozenset, map(dict.items, metrics)))) == len(metrics)


def _values(place: str, result: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the values of an instant vector."""
    found = []
    for entry in result:
        try:
            t, text = entry["value"]
            if type(t) not in _NUMBERS or type(text) is not str:
                raise ValueError("other kinds of value")
            found.append(float(text))
        except (KeyError, TypeError, ValueError):
            _no_histogram(place, entry)
            _wrong(place, _NOT_A_SERIES)
    return found


def _no_histogram(place: str, entry: Mapping[str, Any]) -> None:
    if "histogram" in entry or "histograms" in entry:
        _wrong(place, "sent native histograms, which are not read: ask for the series that end in _bucket")


def _samples(place: str, entry: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    _no_histogram(place, entry)
    pairs = entry.get("values")
    try:
        if not isinstance(pairs, list):
            raise ValueError("no list")
        if not pairs:
            return (), ()
        stamps, texts = zip(*pairs, strict=True)
        if not (_NUMBERS.issuperset(map(type, stamps)) and _TEXTS.issuperset(map(type, texts))):
            raise ValueError("other kinds of value")
        return tuple(map(float, stamps)), tuple(map(float, texts))
    except (TypeError, ValueError, OverflowError):
        _wrong(place, _NOT_A_SERIES)


def _useful(
    place: str, times: tuple[float, ...], values: tuple[float, ...], span: tuple[float, float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the samples without NaN, in the span. The usual series has neither problem and stays as it is."""
    start, end = span
    if times and not (math.isfinite(times[0]) and math.isfinite(times[-1])):
        _wrong(place, _NOT_A_SERIES)
    if not all(map(operator.lt, times, times[1:])):
        times, values = _once(place, times, values)
    if times and (times[0] <= start or times[-1] > end or any(map(math.isnan, values))):
        pairs = [(t, value) for t, value in zip(times, values, strict=True) if start < t <= end and value == value]
        return tuple(t for t, _ in pairs), tuple(value for _, value in pairs)
    return times, values


def _once(
    place: str, times: tuple[float, ...], values: tuple[float, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Drop repeated samples that a second writer stored with the same value."""
    found: dict[float, float] = {}
    last = -math.inf
    for t, value in zip(times, values, strict=True):
        if not t >= last:
            _wrong(place, "sent samples that are not in order of time")
        if found.setdefault(t, value) != value and value == value:
            text = "holds two values of one series at one time: several write it; tell their series apart or deduplicate them"
            _wrong(place, text)
        last = t
    return tuple(found), tuple(found.values())
