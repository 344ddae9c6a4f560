"""Layout of a page: everything but its numbers. Targets whose pages differ in numbers only share one.

A fleet's replicas print the same lines. Without sharing, a page of 53 kB costs each target 0.28 MiB, and 50 ms of the
library at the first scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import compress
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from agent.scrape.exposition_lines import NUMBER_BYTES, Metadata, Sample
from rules.light_dataclass import light_dataclass

Wanted = Callable[[str], bool]
KnownLines = Mapping[bytes, Sample | Metadata]
"""Parsed lines by their text without the number."""


@light_dataclass(frozen=True, slots=True)
class ExpositionSeries:
    """Series: the sample name as printed, labels sorted by name, and the type from its TYPE line."""

    name: str
    labels: tuple[tuple[str, str], ...]
    type: str


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True, eq=False)
class PageLayout:
    """Content of a page without its numbers. Tuples have an item per line, `is_wanted` an item per sample line.

    `lines` are the lines whose number may change. `derived` holds what readers work out from the layout, by their own
    key, and lives as long as it.
    """

    prefixes: tuple[bytes, ...]
    lines: KnownLines
    is_sample: tuple[bool, ...]
    is_other: tuple[bool, ...]
    is_wanted: tuple[bool, ...]
    fixed_bytes: int
    repeatable: bool
    openmetrics: bool
    series: tuple[ExpositionSeries, ...]
    families: Mapping[str, str]
    derived: dict[object, Any] = field(default_factory=dict)

    def read_values(self, body: bytes, lines: list[bytes]) -> tuple[float, ...] | None:
        """Return the selected values if the page differs from this layout only in plain numbers, else None.

        Every line loses its known prefix. Fixed lines must then be empty, and the other lines must be numbers. Together
        they must have the bytes of the page minus the fixed bytes. A line with another prefix stays whole and breaks
        that sum.
        """
        if not self.repeatable or len(lines) != len(self.prefixes):
            return None
        rests = list(map(bytes.removeprefix, lines, self.prefixes))
        if any(compress(rests, self.is_other)):
            return None
        texts = tuple(compress(rests, self.is_sample))
        numbers = b"".join(texts)
        if len(numbers) != len(body) - self.fixed_bytes or numbers.translate(None, NUMBER_BYTES):
            return None
        try:
            return tuple(compress(tuple(map(float, texts)), self.is_wanted))
        except ValueError:
            return None


def prefixes_of(lines: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return every line without what stands after its last blank; comments and blank lines whole."""
    return tuple(line if not line or line.startswith(b"#") else _head(line) for line in lines)


def _head(line: bytes) -> bytes:
    head, blank, _ = line.rpartition(b" ")
    return head + blank


class LayoutPool:
    """Layouts that some reader uses now. The caller holds a lock."""

    def __init__(self) -> None:
        self._layouts: WeakValueDictionary[object, PageLayout] = WeakValueDictionary()
        self._newest: WeakValueDictionary[object, PageLayout] = WeakValueDictionary()
        self._all: WeakSet[PageLayout] = WeakSet()

    def count_series(self) -> int:
        """Return the series of all layouts in use, each layout counted once."""
        return sum(len(layout.is_wanted) for layout in self._all)

    def find(self, wanted: Wanted, prefixes: tuple[bytes, ...]) -> PageLayout | None:
        """Return the layout of these lines, of which `wanted` selects."""
        return self._layouts.get((wanted, prefixes))

    def known_lines(self, wanted: Wanted, openmetrics: bool) -> KnownLines:
        """Return the lines of the newest layout of a format: other replicas have most of them."""
        newest = self._newest.get((wanted, openmetrics))
        return newest.lines if newest is not None else {}

    def add(self, wanted: Wanted, layout: PageLayout) -> None:
        """Count the layout. Let other readers use it, if it can be read again with other numbers."""
        self._all.add(layout)
        if layout.repeatable:
            self._layouts[wanted, layout.prefixes] = layout
            self._newest[wanted, layout.openmetrics] = layout
