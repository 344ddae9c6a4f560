"""Fast parsers of responses whose series have few sets of labels, or the same ones again and again.

JSON makes an object for each series and its labels. Here the text of labels is parsed once and then looked up, which
takes half of the CPU. `RowParser` is for instant vectors of thousands of equal replicas, whose series differ in one label
and the value; that label must be the last of a series (stores sort labels by name). `RangeParser` is for sums. Both
require the form in which stores write; a response of any other form is parsed by `agent.prometheus.answers`, which also
has the errors.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from agent.errors import SizewatchError
from agent.garbage import collector_resting
from agent.prometheus.answers import (
    ApiResponse,
    InstantSample,
    MatrixSeries,
    matrix,
    parse_answer,
    too_many,
    vector,
)
from rules.light_dataclass import light_dataclass

MOST_KINDS = 8192
"""Number of cached label sets above which a cache is emptied."""

_HEAD = b'{"metric":{'
_RESULT = b'"result"'
_BEGIN = _RESULT + b":[" + _HEAD
_TIME = re.compile(rb"((?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,9})?),")
"""Unix seconds as stores write them, and the comma after them. JSON reads other numbers."""

_CARE = (b"\\", b"\n", b"\r", b"\t", b"\v", b"\f", b"\x7f")
"""Bytes that JSON escapes, forbids in a text (and `float` skips), or allows between texts."""


class SeriesKind:
    """Labels of a series without the label of its row. A parser returns the same object for equal labels."""

    __slots__ = ("labels",)

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.labels = labels


@light_dataclass(frozen=True, slots=True)
class Rows:
    """Kinds and values of the series by the value of the row label, in the order of the response."""

    by_name: Mapping[str, Sequence[tuple[SeriesKind, float]]]
    kinds: frozenset[SeriesKind]
    count: int


class _Kinds:
    """Cache of label sets by their text."""

    def __init__(self) -> None:
        self._by_labels: dict[frozenset[tuple[str, str]], SeriesKind] = {}
        self._by_text: dict[bytes, SeriesKind] = {}

    def of_text(self, text: bytes) -> SeriesKind:
        """Return the kind of series with these labels in JSON, without brackets. Raise ValueError."""
        kind = self._by_text.get(text)
        if kind is None:
            labels = json.loads(b"{%s}" % text)
            if not all(type(value) is str for value in labels.values()):
                raise ValueError("other kinds of label")
            kind = self._by_text[text] = self.of_labels(labels)
        return kind

    def of_labels(self, labels: Mapping[str, str]) -> SeriesKind:
        """Return the kind of series with these labels."""
        return self._by_labels.setdefault(frozenset(labels.items()), SeriesKind(labels))

    def forget_many(self) -> None:
        """Empty the cache if it is large."""
        if max(len(self._by_text), len(self._by_labels)) > MOST_KINDS:
            self._by_labels.clear()
            self._by_text.clear()


def _cut(
    place: str, body: bytes, result_type: str, key: bytes, opening: bytes, close: bytes, before: tuple[bytes, ...] = ()
) -> tuple[ApiResponse, tuple[float, ...], list[list[bytes]]]:
    """Cut the series out of a body. Return the rest of the response, the times of all series, and columns of their texts.

    Columns are the labels, the parts that begin with each of `before`, and the values. `key` stands between labels and
    samples, `opening` before the first time, `close` after the last value. Raise StoreError or ValueError for another form.
    """
    begin, end = body.index(_BEGIN) + len(_BEGIN), body.rindex(close + b"}]")
    rest = body[: begin - len(_HEAD)] + body[end + len(close) + 1 :]
    if any(mark in body for mark in _CARE) or rest.count(_RESULT) != 1 or not body.isascii():
        raise ValueError("text that needs care")
    given = parse_answer(place, rest)
    if given.data != {"resultType": result_type, "result": []}:
        raise ValueError("another result")
    series, following = body[begin:end], close + b"}," + _HEAD
    # Without a backslash a quote begins or ends a text, so no text has these marks in it.
    first = series.partition(following)[0]
    between = first[first.index(key) + len(key) :].split(b'"')[::2]
    times = (_time(between[0], opening), *(_time(text, b"],[") for text in between[1:]))
    if not all(map(operator.lt, times, times[1:])):
        raise ValueError("other kinds of time")
    marks = (*before, key + between[0] + b'"', *(b'"%s"' % text for text in between[1:]), following)
    for mark in marks:
        series = series.replace(mark, b"\n")
    found = series.split(b"\n")
    if len(found) % len(marks):
        raise ValueError("series of another form")
    return given, times, [found[column :: len(marks)] for column in range(len(marks))]


def _time(text: bytes, opening: bytes) -> float:
    """Return the time in the text before a value. Raise ValueError for text of another form."""
    found = _TIME.fullmatch(text, len(opening)) if text.startswith(opening) else None
    if found is None:
        raise ValueError("another form of sample")
    return float(found[1])


class RangeParser:
    """Parser of matrices whose labels come again in each response, for one thread at a time."""

    def __init__(self) -> None:
        self._kinds = _Kinds()

    @collector_resting()
    def parse(self, place: str, body: bytes) -> ApiResponse:
        """Parse a response body. Its data are MatrixSeries if all have the usual form and the same times. Raise StoreError."""
        try:
            given, times, (heads, *columns) = _cut(place, body, "matrix", b'},"values":', b"[[", b'"]]')
            kinds = list(map(self._kinds.of_text, heads))
            values = list(zip(*(map(float, column) for column in columns), strict=True))
            if len(set(kinds)) < len(kinds) or any(map(math.isnan, chain.from_iterable(values))):
                raise ValueError("a series that comes twice, or has no value")
        except (SizewatchError, ValueError, RecursionError):
            return parse_answer(place, body)
        finally:
            self._kinds.forget_many()
        series = tuple(MatrixSeries(kind.labels, times, of) for kind, of in zip(kinds, values, strict=True))
        return replace(given, data=series)

    def series(self, given: ApiResponse, most_samples: int) -> tuple[MatrixSeries, ...]:
        """Return the series of a parsed response. Raise StoreError."""
        if not isinstance(given.data, tuple):
            return matrix(given, most_samples)
        if sum(len(one.times) for one in given.data) > most_samples:
            raise too_many(given.place, most_samples)
        return given.data


class RowParser:
    """Parser of instant vectors to rows of one label, for one thread at a time."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._before_name = b',"%s":"' % label.encode()
        self._kinds = _Kinds()

    @collector_resting()
    def parse(self, place: str, body: bytes) -> ApiResponse:
        """Parse a response body. Its data are Rows if all of its series have the usual form. Raise StoreError."""
        try:
            return self._parse(place, body)
        except (SizewatchError, ValueError, RecursionError):
            return parse_answer(place, body)
        finally:
            self._kinds.forget_many()

    def rows(self, given: ApiResponse, most_samples: int) -> Rows:
        """Return the rows of a parsed response. Raise StoreError."""
        found = given.data if isinstance(given.data, Rows) else self._of_samples(vector(given, most_samples))
        if found.count > most_samples:
            raise too_many(given.place, most_samples)
        return found

    def _parse(self, place: str, body: bytes) -> ApiResponse:
        given, _, columns = _cut(place, body, "vector", b'"},"value":', b"[", b'"]', (self._before_name,))
        heads, names, texts = columns
        kinds, values = list(map(self._kinds.of_text, heads)), list(map(float, texts))
        by_name: defaultdict[bytes, list[tuple[SeriesKind, float]]] = defaultdict(list)
        for name, cell in zip(names, zip(kinds, values, strict=True), strict=True):
            by_name[name].append(cell)
        if any(len(dict(row)) < len(row) for row in by_name.values()):
            raise ValueError("a series that comes twice")
        all_kinds, all_names = frozenset(kinds), b"".join(set(names)).decode()
        if '"' in all_names or not all_names.isprintable() or any(self._label in kind.labels for kind in all_kinds):
            raise ValueError("other kinds of text")
        rows = {name.decode(): several for name, several in by_name.items()}
        if any(map(math.isnan, values)):
            numbers = ((name, [cell for cell in row if not math.isnan(cell[1])]) for name, row in rows.items())
            rows = {name: row for name, row in numbers if row}
        return replace(given, data=Rows(rows, all_kinds, len(kinds)))

    def _of_samples(self, several: Iterable[InstantSample]) -> Rows:
        by_name: dict[str, list[tuple[SeriesKind, float]]] = {}
        for one in several:
            kind = self._kinds.of_labels({label: text for label, text in one.labels.items() if label != self._label})
            by_name.setdefault(one.labels.get(self._label, ""), []).append((kind, one.value))
        kinds = [kind for row in by_name.values() for kind, _ in row]
        return Rows(by_name, frozenset(kinds), len(kinds))
