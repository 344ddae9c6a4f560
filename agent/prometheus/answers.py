"""From the bytes of an answer of Prometheus' HTTP API to samples, or why they are none.

Owns what an answer must look like (prometheus.io/docs/prometheus/latest/querying/api, "Format overview" and "Expression
query result formats"), and what is dropped: samples that are NaN, which say that there is no value (0/0; VictoriaMetrics
gives stale markers so). Infinities stay. The same labels twice are refused, and so are two values at one time: adding
either would count twice. It does no I/O. Another type of result is a function beside `vector` and `matrix`.

Cheap, because answers are large: per series a few calls that run over its samples in C. CPU of one answer (Python 3.11, best of
3, decoding and checks): 2,000 series of 300 samples, 15.5 MB: 0.28 s; 40,000 of 15, 20 MB: 0.57 s; an instant of 100,000
series, 14.5 MB: 0.35 s.

Why a store gave no answer that may be used: the kinds, and the one exception.

Owns the words of `TroubleKind`, which are counted and exported. A new kind is a row here, and what leads to it a row of
`agent.prometheus.query`.
"""

from __future__ import annotations

import gc
import json
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

from agent.errors import SizewatchError
from exporters.render import text as plain_text


class StoreErrorKind(StrEnum):
    """One word, counted and exported."""

    AWAY = "away"
    """Nothing answers, or what answers says that the store does not work at the moment."""
    SLOW = "slow"
    """No whole answer in time, or the store gave up on the query or is too busy for it."""
    CREDENTIALS = "credentials"
    """It does not let us in, it is not trusted, or a file for it cannot be used."""
    REFUSED = "refused"
    """It does not take this query."""
    TOO_MUCH = "too_much"
    """The query reads or gives more than may be read at once, by the store's limits or by ours."""
    PARTIAL = "partial"
    """A part of the store did not answer: what came is too little, and no data."""
    WRONG_ANSWER = "wrong_answer"
    """What came is not what Prometheus' API gives, or is not whole."""


class StoreError(SizewatchError):
    """No answer that may be used; nothing of it was used. `text` holds no secret."""

    def __init__(self, kind: StoreErrorKind, place: str, text: str) -> None:
        super().__init__(f"{place}: {text}")
        self.kind = kind
        self.place = place
        self.text = text


_NUMBERS = frozenset({int, float})
_TEXTS = frozenset({str})
_MOST_QUOTED = 300


@dataclass(frozen=True, slots=True)
class InstantSample:
    """One series of an instant vector; `labels` with __name__, if it has one."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class MatrixSeries:
    """One series of a matrix: its samples in order of time, which is unix seconds; never without a sample."""

    labels: Mapping[str, str]
    times: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """A whole answer, of a store that says "success" or "error"; `partial` says why it is too little, empty where it is not."""

    place: str
    data: Any
    partial: str = ""
    error_type: str = ""
    error: str | None = None
    odd: bool = False
    """Whether a label may hold what is no plain text."""


@contextmanager
def collector_resting() -> Iterator[None]:
    """Without looking for cycles, of which an answer has none, among its million new objects: half of the CPU."""
    working = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if working:
            gc.enable()


@collector_resting()
def answer(place: str, body: bytes) -> ApiResponse:
    """Raises StoreTrouble where the body is no answer of the API."""
    try:
        found = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError):
        _wrong(place, "answered something else than JSON: is this the address of a Prometheus server?")
    if not isinstance(found, dict) or found.get("status") not in ("success", "error"):
        _wrong(place, "answered JSON that is not Prometheus'")
    if found["status"] == "error":
        said = one_line(found.get("error", ""))
        return ApiResponse(place, None, error_type=str(found.get("errorType", ""))[:40], error=said)
    if b"\\ud" in body or b"\\uD" in body:
        _checked_text(place, found)
    # Without an escape, DEL and letters beyond ASCII no label can hold a control character.
    return ApiResponse(
        place, found.get("data"), _partial(found), odd=b"\\" in body or b"\x7f" in body or not body.isascii()
    )


@collector_resting()
def vector(given: ApiResponse, most_samples: int) -> tuple[InstantSample, ...]:
    """An instant vector; a scalar is one without labels. Raises StoreTrouble."""
    kind, result = _result(given)
    if kind == "scalar":
        result = [{"metric": {}, "value": result}]
    elif kind != "vector" or not isinstance(result, list):
        _wrong(given.place, "did not answer as Prometheus does: no vector of samples")
    if len(result) > most_samples:
        raise too_many(given.place, most_samples)
    read = [InstantSample(_labels(given, entry), _value(given.place, entry)) for entry in result]
    _distinct(given.place, [one.labels for one in read])
    return tuple(one for one in read if one.value == one.value)


ALWAYS = (-math.inf, math.inf)


@collector_resting()
def matrix(given: ApiResponse, most_samples: int, span: tuple[float, float] = ALWAYS) -> tuple[MatrixSeries, ...]:
    """A matrix; of its samples those in the span: after its start, not after its end. Raises StoreTrouble."""
    kind, result = _result(given)
    if kind != "matrix" or not isinstance(result, list):
        _wrong(given.place, "did not answer as Prometheus does: no matrix of samples")
    left, several = most_samples, []
    for entry in result:
        labels, times, values = _labels(given, entry), *_samples(given.place, entry)
        left -= len(times)
        if left < 0:
            raise too_many(given.place, most_samples)
        several.append((labels, *_useful(given.place, times, values, span)))
    _distinct(given.place, [labels for labels, _, _ in several])
    return tuple(MatrixSeries(*one) for one in several if one[1])


def key(labels: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """What tells one series from another."""
    return frozenset(labels.items())


def too_many(place: str, most_samples: int) -> StoreError:
    """More than the budget of one query."""
    return StoreError(StoreErrorKind.TOO_MUCH, place, f"answers with more than {most_samples} samples")


def one_line(said: object) -> str:
    """What a store says, bounded: its end, for VictoriaMetrics repeats the query before it says what is wrong with it."""
    text = " ".join(str(said)[-4 * _MOST_QUOTED :].split())
    return "".join(sign if sign.isprintable() else "?" for sign in text)[-_MOST_QUOTED:]


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _wrong(place: str, text: str) -> NoReturn:
    # Without its cause, which may hold a part of the answer.
    raise StoreError(StoreErrorKind.WRONG_ANSWER, place, text) from None


def _partial(found: Mapping[str, Any]) -> str:
    """Thanos, Mimir and Prometheus warn; VictoriaMetrics' cluster says isPartial. `infos` are about the query alone."""
    warnings = found.get("warnings")
    if warnings:
        first = warnings[0] if isinstance(warnings, list) else warnings
        return f"answered with a warning, so not with all it should hold: {one_line(first)}"
    if found.get("isPartial"):
        return "answered without some of its parts (isPartial)"
    return ""


def _result(given: ApiResponse) -> tuple[object, Any]:
    data = given.data
    return (data.get("resultType"), data.get("result")) if isinstance(data, dict) else (None, None)


def _labels(given: ApiResponse, entry: Any) -> Mapping[str, str]:
    metric = entry.get("metric") if isinstance(entry, dict) else None
    if not isinstance(metric, dict) or not _TEXTS.issuperset(map(type, metric.values())):
        _wrong(given.place, "sent a series that is not written as Prometheus does")
    if given.odd:
        return {plain_text.one_line(name): plain_text.one_line(text) for name, text in metric.items()}
    return metric


def _value(place: str, entry: Mapping[str, Any]) -> float:
    try:
        t, text = entry["value"]
        if type(t) in _NUMBERS and type(text) is str:
            return float(text)
    except (KeyError, TypeError, ValueError):
        _no_histogram(place, entry)
    _wrong(place, "sent a series that is not written as Prometheus does")


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
        _wrong(place, "sent a series that is not written as Prometheus does")


def _useful(
    place: str, times: tuple[float, ...], values: tuple[float, ...], span: tuple[float, float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Without NaN and what is out of the span; the usual series, which has neither, as it is."""
    start, end = span
    if times and not (math.isfinite(times[0]) and math.isfinite(times[-1])):
        _wrong(place, "sent a series that is not written as Prometheus does")
    if not all(map(operator.lt, times, times[1:])):
        times, values = _once(place, times, values)
    if times and (times[0] <= start or times[-1] > end or any(map(math.isnan, values))):
        pairs = [(t, value) for t, value in zip(times, values, strict=True) if start < t <= end and value == value]
        return tuple(t for t, _ in pairs), tuple(value for _, value in pairs)
    return times, values


def _once(
    place: str, times: tuple[float, ...], values: tuple[float, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The same sample written twice (by a second writer) is one."""
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


def _distinct(place: str, several: Sequence[Mapping[str, str]]) -> None:
    if len(set(map(key, several))) < len(several):
        _wrong(place, "sent the same series twice")


def _checked_text(place: str, found: Any) -> None:
    """Halves of characters, which JSON can spell and nothing else can be written with."""
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        _wrong(place, "sent text that is no text: half of a character")
