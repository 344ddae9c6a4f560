"""Reader of the exposition pages of one target, with a cache of known lines.

Only the first page is slow. If a page repeats the last page's lines with other numbers, its layout reads it without
looking at single lines. If it repeats those of another target, that layout is taken over. Otherwise `_read_lines` looks
up every line, and keeps what it learned if the page is good. `agent.scrape.exposition_lines` parses each new line once
and finds the type of a sample. The caller checks values (falling buckets, counts that disagree). No engine is special
here. A new page format starts in `_is_openmetrics`.
"""

import threading
from collections.abc import Mapping
from itertools import compress
from types import MappingProxyType
from typing import Any

from agent.errors import ScrapeError, ScrapeFailure
from agent.scrape.exposition_lines import (
    UNTYPED,
    ExpositionLine,
    FamilyLookup,
    Metadata,
    Sample,
    declared_families,
    parse_line,
    split_number,
)
from agent.scrape.page_layout import ExpositionSeries, KnownLines, LayoutPool, PageLayout, Wanted, prefixes_of
from exporters.render.text import quote_external_text
from rules.light_dataclass import light_dataclass

_END = b"# EOF"
# A line is forgotten after an absence of one to two times this many pages (30-60 min at a page every 15 s).
_PAGES_KEPT = 120

MOST_LINES = 20_000
"""Lines of any kind of a page."""

MOST_LINE_BYTES = 16_384
"""The longest line that we know, of vLLM's configuration, has 1,153 bytes."""

MOST_SERIES = 10_000
"""Samples of a page. The largest page that we know, of TGI, has 1,900; each new one costs about 2.7 kB."""

USUAL_SERIES = 2_500
"""A page of so many series is always read."""

MOST_ALL_SERIES = 30_000
"""Series of all pages that differ, above which no page of more than USUAL_SERIES is read. Each costs about 1 kB."""

MOST_NEW_SERIES = 2_500
"""New lines of a page after the first: above what a restart under another name brings."""

MOST_LABEL = 256
"""Characters of a label that is kept. Names in Kubernetes have at most 253."""

MOST_MODELS = 64
"""Models of a page: each is exported again with its own series."""

MODEL_LABELS = frozenset({"model_name", "model", "model_id"})
NAME_LISTS = frozenset({"running_lora_adapters", "waiting_lora_adapters"})
"""Labels that list names, which are split before they are kept."""

_POOL = LayoutPool()
_UNKNOWN_PAGES = threading.Lock()
"""Held while a page of an unknown layout is read: a hundred first pages at once must not take the memory of a hundred."""


@light_dataclass(frozen=True, slots=True)
class ParsedPage:
    """Selected series of one page in page order, with their values in parallel.

    `families` maps every family of the page to its type. `series` is another object only when it differs from that of
    the previous page. `derived` holds what readers worked out from these series, of this target or of another.
    """

    series: tuple[ExpositionSeries, ...]
    values: tuple[float, ...]
    families: Mapping[str, str]
    derived: dict[object, Any]


class SeriesReader:
    """Parser of exposition pages of ONE target. The library parses each series once; later pages use a cache.

    A series is kept if `wanted` accepts its sample name or its family name. A sample `vllm_x` finds its type under `#
    TYPE vllm:x`: prometheus_client 0.23 to 0.26 prints OpenMetrics pages that way.

    A page above `max_series` samples or above the limits of this module is rejected. They hold a replica's memory well
    below what deploy/ allows role `node` (128 MiB). When the cache exceeds `max_series`, only lines of the current
    page stay.
    """

    def __init__(self, wanted: Wanted, max_series: int = MOST_SERIES) -> None:
        self._wanted = wanted
        self._max_series = max_series
        # Lines that are not on the present page, by the time of their last absence.
        self._recent: KnownLines = {}
        self._older: KnownLines = {}
        self._pages = 0
        self._layout: PageLayout | None = None

    @property
    def known_lines(self) -> int:
        """Return the number of cached lines, including unselected lines."""
        present = self._layout.lines if self._layout is not None else {}
        return len(present.keys() | self._recent.keys() | self._older.keys())

    @property
    def state(self) -> object:
        """Return the cache state, to restore it if the caller rejects the page."""
        return self._recent, self._older, self._layout

    @state.setter
    def state(self, before: Any) -> None:
        self._recent, self._older, self._layout = before

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
        values = None if layout is None else layout.read_values(body, lines)
        if layout is None or values is None:
            with _UNKNOWN_PAGES:
                layout, values = self._read_unknown(body, lines)
        self._forget(layout)
        return ParsedPage(layout.series, values, layout.families, layout.derived)

    def _read_unknown(self, body: bytes, lines: list[bytes]) -> tuple[PageLayout, tuple[float, ...]]:
        if max(map(len, lines), default=0) > MOST_LINE_BYTES:
            raise _too_large(f"has a line of more than {MOST_LINE_BYTES} bytes")
        _check_utf8(body)
        openmetrics = self._is_openmetrics(lines)
        prefixes = prefixes_of(lines)
        layout = _POOL.find(self._wanted, prefixes)
        values = None
        if layout is not None and len(layout.is_wanted) <= self._max_series:
            values = layout.read_values(body, lines)
        if layout is None or values is None:
            layout, values = self._read_lines(lines, prefixes, openmetrics)
            _POOL.add(self._wanted, layout)
        self._replace_layout(layout)
        return layout, values

    def _read_lines(
        self, lines: list[bytes], prefixes: tuple[bytes, ...], openmetrics: bool
    ) -> tuple[PageLayout, tuple[float, ...]]:
        samples = sum(not line.startswith(b"#") for line in lines)
        if samples > self._max_series:
            raise _too_large(f"has {samples} samples, more than {self._max_series}")
        if samples > USUAL_SERIES and samples + _POOL.count_series() > MOST_ALL_SERIES:
            raise _too_large(f"has {samples} samples, and all pages together would have more than {MOST_ALL_SERIES}")
        known = (*self._known(), _POOL.known_lines(self._wanted, openmetrics))
        self._check_new(prefixes)
        learned: dict[bytes, Sample | Metadata] = {}
        page = [self._line(line, number, openmetrics, known, learned) for number, line in enumerate(lines, 1)]
        layout = self._build_layout(page, openmetrics, learned)
        numbers = (line.value for line in compress(page, layout.is_sample))
        return layout, tuple(compress(numbers, layout.is_wanted))

    def _known(self) -> tuple[KnownLines, ...]:
        return (self._layout.lines if self._layout is not None else {}, self._recent, self._older)

    def _check_new(self, prefixes: tuple[bytes, ...]) -> None:
        """Raise ScrapeError if a page after the first has too many new series."""
        if self._layout is None:
            return
        present, recent, older = self._known()
        heads = (prefix for prefix in prefixes if prefix and not prefix.startswith(b"#"))
        new = sum(head not in present and head not in recent and head not in older for head in heads)
        if new > MOST_NEW_SERIES:
            raise _too_large(f"has {new} new series since the last page, more than {MOST_NEW_SERIES}")

    def _is_openmetrics(self, lines: list[bytes]) -> bool:
        if _END in lines[:-1]:
            raise ScrapeError(ScrapeFailure.SYNTAX, f"line {lines.index(_END) + 2} stands after # EOF")
        openmetrics = bool(lines) and lines[-1] == _END
        last = self._layout
        if last is not None and last.openmetrics != openmetrics:
            # Formats may parse the same line differently, and another server may respond now.
            self._recent, self._older, self._layout = {}, {}, None
            if not openmetrics:
                raise ScrapeError(ScrapeFailure.CUT_OFF, "the page does not end in # EOF as the last one did")
        return openmetrics

    def _line(
        self,
        line: bytes,
        number: int,
        openmetrics: bool,
        known: tuple[KnownLines, ...],
        learned: dict[bytes, Sample | Metadata],
    ) -> ExpositionLine:
        fixed = not line or line.startswith(b"#")
        key, value = (line, 0.0) if fixed else split_number(line)
        parsed = learned.get(key) if value is not None else None
        if value is not None and parsed is None:
            parsed = next((parsed for lines in known if (parsed := lines.get(key)) is not None), None)
        if parsed is None or value is None:
            read = parse_line(line, number, openmetrics=openmetrics)
            if read.reusable and fixed == isinstance(read.parsed, Metadata):
                learned[read.prefix] = read.parsed
            return read
        learned[key] = parsed
        return ExpositionLine(key, parsed, value, True)

    def _build_layout(self, page: list[ExpositionLine], openmetrics: bool, lines: KnownLines) -> PageLayout:
        families, contradicted = declared_families(line.parsed for line in page)
        is_wanted, series = self._select_samples(page, families, contradicted)
        last = self._layout
        same = last is not None and last.series == series
        is_sample = tuple(isinstance(line.parsed, Sample) for line in page)
        return PageLayout(
            prefixes=tuple(line.prefix for line in page),
            lines=lines,
            is_sample=is_sample,
            is_other=tuple(not sample for sample in is_sample),
            is_wanted=is_wanted,
            fixed_bytes=sum(len(line.prefix) + 1 for line in page),
            repeatable=all(line.reusable for line in page),
            openmetrics=openmetrics,
            series=last.series if last is not None and same else series,
            families=MappingProxyType(families),
            derived=last.derived if last is not None and same and last.families == families else {},
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

    def _replace_layout(self, layout: PageLayout) -> None:
        """Use another layout. Remember the lines of the one before: series come and go."""
        if self._layout is not None:
            gone = {prefix: parsed for prefix, parsed in self._layout.lines.items() if prefix not in layout.lines}
            self._recent = {**self._recent, **gone}
        self._layout = layout

    def _forget(self, layout: PageLayout) -> None:
        self._pages += 1
        if len(layout.lines) + len(self._recent) + len(self._older) > self._max_series:
            self._recent, self._older, self._pages = {}, {}, 0
        elif self._pages >= _PAGES_KEPT:
            self._recent, self._older, self._pages = {}, self._recent, 0


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
