"""Rows of an instant vector: its series by the value of one label, for responses of thousands of equal replicas.

Their series differ in that label and in the value. So the text of the other labels is parsed once and then looked up,
which takes a third of the CPU of JSON objects. The label must be the last of a series: stores sort labels by name.
A response of any other form is parsed by `agent.prometheus.answers`, which also has the errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from agent.errors import SizewatchError
from agent.prometheus.answers import ApiResponse, InstantSample, collector_resting, parse_answer, too_many, vector
from rules.light_dataclass import light_dataclass

MOST_KINDS = 4096
"""Number of cached label sets above which the cache is emptied before a response."""

_HEAD, _VALUE, _END = b'{"metric":{', b'"},"value":[', b'"]}]'
_BEGIN, _NEXT = b'"result":[' + _HEAD, b'"]},' + _HEAD


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


class RowParser:
    """Parser of instant vectors to rows of one label, for one thread at a time."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._kinds: dict[frozenset[tuple[str, str]], SeriesKind] = {}
        self._of_text: dict[bytes, SeriesKind] = {}
        self._before_name = b',"%s":"' % label.encode()

    @collector_resting()
    def parse(self, place: str, body: bytes) -> ApiResponse:
        """Parse a response body. Its data are Rows if all of its series have the usual form. Raise StoreError."""
        if max(len(self._of_text), len(self._kinds)) > MOST_KINDS:
            self._kinds.clear()
            self._of_text.clear()
        try:
            return self._cut(place, body)
        except (SizewatchError, ValueError):
            return parse_answer(place, body)

    def rows(self, given: ApiResponse, most_samples: int) -> Rows:
        """Return the rows of a parsed response. Raise StoreError."""
        found = given.data if isinstance(given.data, Rows) else self._of_samples(vector(given, most_samples))
        if found.count > most_samples:
            raise too_many(given.place, most_samples)
        return found

    def _cut(self, place: str, body: bytes) -> ApiResponse:
        """Cut the series out of a body, and parse the rest. Raise StoreError or ValueError for another form."""
        begin, end = body.index(_BEGIN) + len(_BEGIN), body.rindex(_END)
        if b"\\" in body or b"\n" in body or b"\x7f" in body or not body.isascii():
            raise ValueError("text that needs care")
        given = parse_answer(place, body[: begin - len(_HEAD)] + body[end + len(_END) - 1 :])
        if given.data != {"resultType": "vector", "result": []}:
            raise ValueError("no vector")
        series = body[begin:end]
        # An instant vector has one time. Without a backslash a quote begins or ends a text, so these are not in one.
        at = series.index(_VALUE) + len(_VALUE)
        time = series[at : series.index(b",", at)]
        for mark in (self._before_name, b'%s%s,"' % (_VALUE, time), _NEXT):
            series = series.replace(mark, b"\n")
        found = series.split(b"\n")
        if len(found) % 3:
            raise ValueError("series of another form")
        kinds, names, values = list(map(self._kind, found[::3])), found[1::3], list(map(float, found[2::3]))
        if len(set(zip(kinds, names, strict=True))) < len(kinds):
            raise ValueError("a series that comes twice")
        by_name: dict[bytes, list[tuple[SeriesKind, float]]] = {name: [] for name in names}
        for kind, name, value in zip(kinds, names, values, strict=True):
            if value == value:
                by_name[name].append((kind, value))
        all_names = b"".join(by_name).decode()
        if '"' in all_names or not all_names.isprintable() or not float(time):
            raise ValueError("other kinds of text or time")
        rows = {name.decode(): several for name, several in by_name.items()}
        return replace(given, data=Rows(rows, frozenset(kinds), len(kinds)))

    def _kind(self, text: bytes) -> SeriesKind:
        kind = self._of_text.get(text)
        if kind is None:
            labels = json.loads(b"{%s}" % text)
            if not all(type(value) is str for value in labels.values()) or self._label in labels:
                raise ValueError("other kinds of label")
            kind = self._of_text[text] = self._same(labels)
        return kind

    def _same(self, labels: Mapping[str, str]) -> SeriesKind:
        return self._kinds.setdefault(frozenset(labels.items()), SeriesKind(labels))

    def _of_samples(self, several: Iterable[InstantSample]) -> Rows:
        by_name: dict[str, list[tuple[SeriesKind, float]]] = {}
        for one in several:
            kind = self._same({label: text for label, text in one.labels.items() if label != self._label})
            by_name.setdefault(one.labels.get(self._label, ""), []).append((kind, one.value))
        kinds = [kind for row in by_name.values() for kind, _ in row]
        return Rows(by_name, frozenset(kinds), len(kinds))
