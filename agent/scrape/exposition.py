"""Reader of the exposition pages of one target, with a cache of known lines.

Only the first page is slow: prometheus_client parses each line once. A page that repeats the last page's lines with
other numbers is read without looking at single lines. Otherwise every line is looked up by its text without the number.
The caller checks values (falling buckets, counts that disagree). No engine is special here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import compress
from types import MappingProxyType
from typing import Any

from agent.errors import ScrapeError, ScrapeFailure
from agent.scrape.exposition_lines import (
    NUMBER_BYTES,
    UNTYPED,
    ExpositionLine,
    FamilyLookup,
    Metadata,
    Sample,
    declared_families,
    parse_line,
    split_number,
)
from exporters.render.text import quote_external_text
from rules.light_dataclass import light_dataclass

_END = b"# EOF"

MOST_LINES = 20_000
"""Lines of any kind of a page."""

MOST_LINE_BYTES = 16_384
"""The longest line that we know, of vLLM's configuration, has 1,153 bytes."""

MOST_SERIES = 10_000
"""Samples of a page. The largest page that we know, of TGI, has 1,900; each new one costs about 2.7 kB."""

MOST_NEW_SERIES = 2_500
"""New lines of a page after the first: above what a restart under another name brings."""

MOST_LABEL = 256
"""Characters of a label that is kept. Names in Kubernetes have at most 253."""

MOST_MODELS = 64
"""Models of a page: each is exported again with its own series."""

MODEL_LABELS = frozenset({"model_name", "model", "model_id"})
NAME_LISTS = frozenset({"running_lora_adapters", "waiting_lora_adapters"})
"""Labels that list names, which are split before they are kept."""

KnownLines = Mapping[bytes, Sample | Metadata]
"""Parsed lines by their text without the number."""


@light_dataclass(frozen=True, slots=True)
class ExpositionSeries:
    """Series: the sample name as printed, labels sorted by name, and the type from its TYPE line."""

    name: str
    labels: tuple[tuple[str, str], ...]
    type: str


@light_dataclass(frozen=True, slots=True)
class ParsedPage:
    """Selected series of one page in page order, with their values in parallel.

    `families` maps every family of the page to its type. `series` is another object only when it differs from that of
    the previous page.
    """

    series: tuple[ExpositionSeries, ...]
    values: tuple[float, ...]
    families: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Content of a page without its numbers. Tuples have an item per line, `is_wanted` an item per sample line."""

    prefixes: tuple[bytes, ...]
    is_sample: tuple[bool, ...]
    is_wanted: tuple[bool, ...]
    repeatable: bool
    openmetrics: bool
    series: tuple[ExpositionSeries, ...]
    families: Mapping[str, str]

    def read_values(self, body: bytes, lines: list[bytes]) -> tuple[float, ...] | None:
        """Return the selected values if the page differs from this layout only in plain numbers, else None.

        Every line loses its known prefix. Fixed lines must then be empty, and the other lines must be numbers. Together
        they must have the bytes of the page minus the fixed bytes. A line with another prefix stays whole and breaks
        that sum.
        """
        if not self.repeatable or len(lines) != len(self.prefixes):
            return None
        rests = list(map(bytes.removeprefix, lines, self.prefixes))
        texts = list(compress(rests, self.is_sample))
        if sum(map(bool, rests)) != len(texts):
            return None
        numbers = b"".join(texts)
        fixed_bytes = sum(map(len, self.prefixes)) + len(lines)
        if len(numbers) != len(body) - fixed_bytes or numbers.translate(None, NUMBER_BYTES):
            return None
        try:
            return tuple(compress(map(float, texts), self.is_wanted))
        except ValueError:
            return None


class SeriesReader:
    """Parser of exposition pages of ONE target. The library parses each series once; later pages use a cache.

    A series is kept if `wanted` accepts its sample name or its family name. A sample `vllm_x` finds its type under `#
    TYPE vllm:x`: prometheus_client 0.23 to 0.26 prints OpenMetrics pages that way.

    A page above `max_series` samples or above the limits of this module is rejected. They hold a replica's memory well
    below what deploy/ allows role `node` (128 MiB). When the cache would exceed `max_series`, only lines of the current
    page stay.
    """

    def __init__(self, wanted: Callable[[str], bool], max_series: int = MOST_SERIES) -> None:
        self._wanted = wanted
        self._max_series = max_series
        self._known: KnownLines = {}
        self._layout: _Layout | None = None

    @property
    def known_lines(self) -> int:
        """Return the number of cached lines, including unselected lines."""
        return len(self._known)

    @property
    def state(self) -> object:
        """Return the cache state, to restore it if the caller rejects the page."""
        return self._known, self._layout

    @state.setter
    def state(self, before: Any) -> None:
        self._known, self._layout = before

    def read(self, body: bytes) -> ParsedPage:
        """Parse a page. Raise ScrapeError (syntax, duplicate, cut_off, too_large) and keep nothing of the page."""
        if not body.endswith(b"\n"):
            text = "the page ends inside a line" if body else "the page is empty"
            raise ScrapeError(ScrapeFailure.CUT_OFF, text)
        lines = body.split(b"\n", MOST_LINES + 1)
        if len(lines) > MOST_LINES + 1:
            raise _too_large(f"has more than {MOST_LINES} lines")
        lines.pop()
        layout = self._layout
        values = layout.read_values(body, lines) if layout is not None else None
        if layout is None or values is None:
            layout, values = self._read_lines(body, lines)
        return ParsedPage(layout.series, values, layout.families)

    def _read_lines(self, body: bytes, lines: list[bytes]) -> tuple[_Layout, tuple[float, ...]]:
        if max(map(len, lines), default=0) > MOST_LINE_BYTES:
            raise _too_large(f"has a line of more than {MOST_LINE_BYTES} bytes")
        _check_utf8(body)
        openmetrics = self._is_openmetrics(lines)
        heads = [line.rpartition(b" ")[0] + b" " for line in lines if not line.startswith(b"#")]
        if len(heads) > self._max_series:
            raise _too_large(f"has {len(heads)} samples, more than {self._max_series}")
        new = sum(head not in self._known for head in heads)
        if self._layout is not None and new > MOST_NEW_SERIES:
            raise _too_large(f"has {new} new series since the last page, more than {MOST_NEW_SERIES}")
        learned: dict[bytes, Sample | Metadata] = {}
        page = [self._line(line, number, openmetrics, learned) for number, line in enumerate(lines, 1)]
        layout = self._build_layout(page, openmetrics)
        both = {**self._known, **learned}
        self._known, self._layout = (both if len(both) <= self._max_series else learned), layout
        numbers = (line.value for line in page if isinstance(line.parsed, Sample))
        return layout, tuple(compress(numbers, layout.is_wanted))

    def _is_openmetrics(self, lines: list[bytes]) -> bool:
        if _END in lines[:-1]:
            raise ScrapeError(ScrapeFailure.SYNTAX, f"line {lines.index(_END) + 2} stands after # EOF")
        openmetrics = bool(lines) and lines[-1] == _END
        if self._layout is not None and self._layout.openmetrics != openmetrics:
            # Formats may parse the same line differently, and another server may respond now.
            self._known, self._layout = {}, None
            if not openmetrics:
                raise ScrapeError(ScrapeFailure.CUT_OFF, "the page does not end in # EOF as the last one did")
        return openmetrics

    def _line(
        self, line: bytes, number: int, openmetrics: bool, learned: dict[bytes, Sample | Metadata]
    ) -> ExpositionLine:
        fixed = not line or line.startswith(b"#")
        key, value = (line, 0.0) if fixed else split_number(line)
        parsed = learned.get(key) or self._known.get(key) if value is not None else None
        if parsed is None or value is None:
            read = parse_line(line, number, openmetrics=openmetrics)
            if read.reusable and fixed == isinstance(read.parsed, Metadata):
                learned[read.prefix] = read.parsed
            return read
        learned[key] = parsed
        return ExpositionLine(key, parsed, value, True)

    def _build_layout(self, page: list[ExpositionLine], openmetrics: bool) -> _Layout:
        families, contradicted = declared_families(line.parsed for line in page)
        is_wanted, series = self._select_samples(page, families, contradicted)
        same = self._layout is not None and self._layout.series == series
        return _Layout(
            prefixes=tuple(line.prefix for line in page),
            is_sample=tuple(isinstance(line.parsed, Sample) for line in page),
            is_wanted=is_wanted,
            repeatable=all(line.reusable for line in page),
            openmetrics=openmetrics,
            series=self._layout.series if self._layout is not None and same else series,
            families=MappingProxyType(families),
        )

    def _select_samples(
        self, page: list[ExpositionLine], families: dict[str, str], contradicted: Mapping[str, str]
    ) -> tuple[tuple[bool, ...], tuple[ExpositionSeries, ...]]:
        """Return which samples are selected, and their series. Add families without metadata to `families`."""
        placing = FamilyLookup(families)
        choices: dict[str, bool] = {}
        first_lines: dict[ExpositionSeries, int] = {}
        models: set[str] = set()
        is_wanted = []
        for number, line in enumerate(page, 1):
            if not isinstance(line.parsed, Sample):
                continue
            name = line.parsed.name
            family, type_ = placing.lookup(name)
            wanted = choices.get(name)
            if wanted is None:
                wanted = choices[name] = self._wanted(name) or self._wanted(family)
            is_wanted.append(wanted)
            if not wanted:
                continue
            _check_labels(line.parsed, number, models)
            if family in contradicted:
                raise ScrapeError(
                    ScrapeFailure.SYNTAX,
                    f"family {quote_external_text(family, 80)} has two types: {contradicted[family]}",
                )
            first = first_lines.setdefault(ExpositionSeries(name, line.parsed.labels, type_), number)
            if first != number:
                repeated = quote_external_text(line.prefix[:320].decode(errors="replace"), 80)
                text = f"line {number} repeats the series of line {first}: {repeated}"
                raise ScrapeError(ScrapeFailure.DUPLICATE, text)
        families.update((name, UNTYPED) for name in placing.unplaced)
        return tuple(is_wanted), tuple(first_lines)


def _check_labels(sample: Sample, number: int, models: set[str]) -> None:
    """Raise ScrapeError for a label that is too long, or one model too many. Add its model to `models`."""
    for name, text in sample.labels:
        if len(text) > MOST_LABEL and name not in NAME_LISTS:
            named = quote_external_text(name, 80)
            raise _too_large(f"has a label {named} of {len(text)} characters in line {number}, more than {MOST_LABEL}")
        if name in MODEL_LABELS:
            models.add(text)
            if len(models) > MOST_MODELS:
                raise _too_large(f"names more than {MOST_MODELS} models")


def _too_large(text: str) -> ScrapeError:
    return ScrapeError(ScrapeFailure.TOO_LARGE, f"the page {text}")


def _check_utf8(body: bytes) -> None:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        number = body.count(b"\n", 0, error.start) + 1
        raise ScrapeError(ScrapeFailure.SYNTAX, f"line {number} is not UTF-8") from error
