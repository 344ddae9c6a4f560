"""Reader of the exposition pages of one target: prometheus_client parses each line once, and later pages look it up.

The caller checks values (falling buckets, counts that disagree). No engine is special here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from agent.errors import ScrapeError, ScrapeFailure
from exporters.render.safe_text import one_line, quote_external_text

MOST_LINES = 20_000
"""Lines of any kind of a page."""

MOST_SERIES = 10_000
"""Samples of a page. The largest page that we know, of TGI, has 1,900; each new one costs about 2.7 kB."""

MOST_LABEL = 256
"""Characters of a label that is kept. Names in Kubernetes have at most 253."""

MOST_MODELS = 64
"""Models of a page: each is exported again with its own series."""

MODEL_LABELS = frozenset({"model_name", "model", "model_id"})
NAME_LISTS = frozenset({"running_lora_adapters", "waiting_lora_adapters"})
"""Labels that list names, which are split before they are kept."""

UNTYPED = "untyped"
SUFFIXES = ("", "_total", "_bucket", "_count", "_sum", "_created", "_info")
"""Endings of the samples of a family. A family with the sample's full name comes first."""

NUMBER = re.compile(rb" ([+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|NaN|[+-]Inf)$", re.MULTILINE)
"""Plain number at the end of a line. float() and the library agree on it. For other texts the library decides."""

# Exceptions of the library on invalid lines; not all are ValueError.
_NOT_UNDERSTOOD = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)


class ExpositionSeries(NamedTuple):
    """Sample name as printed, and labels sorted by name, without control characters."""

    name: str
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ParsedPage:
    """Selected series of one page in page order, with their values in parallel.

    `families` maps every family of the page to the type of its TYPE line. `series` is another object only when it
    differs from that of the previous page.
    """

    series: tuple[ExpositionSeries, ...]
    values: tuple[float, ...]
    families: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Line:
    """Line without its number: a sample by name (with its series if that is wanted), or a family with its type."""

    name: str = ""
    type: str = ""
    is_sample: bool = False
    series: ExpositionSeries | None = None


class SeriesReader:
    """Parser of exposition pages of ONE target. It keeps series whose sample name `wanted` accepts.

    A page above the limits of this module is rejected. They hold a replica's memory well below what deploy/ allows role
    `node` (128 MiB). Only the lines of the last page are known.
    """

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        self._wanted = wanted
        self._known: Mapping[bytes, _Line] = {}
        self._page: list[_Line] = []
        self._texts: list[bytes] = []
        self._is_wanted: list[bool] = []
        self._series: tuple[ExpositionSeries, ...] = ()
        self._families: Mapping[str, str] = {}

    def read(self, body: bytes) -> ParsedPage:
        """Parse a page. Raise ScrapeError (syntax, duplicate, cut_off, too_large) and keep nothing of the page."""
        if not body.endswith(b"\n"):
            text = "the page ends inside a line" if body else "the page is empty"
            raise ScrapeError(ScrapeFailure.CUT_OFF, text)
        pieces = NUMBER.split(body)
        if pieces[::2] == self._texts:
            # The page differs from the last one only in numbers.
            numbers = compress(map(float, pieces[1::2]), self._is_wanted)
            return ParsedPage(self._series, tuple(numbers), self._families)
        lines = body.split(b"\n", MOST_LINES + 1)
        if len(lines) > MOST_LINES + 1:
            raise _too_large(f"has more than {MOST_LINES} lines")
        lines.pop()
        samples = len(lines) - body.count(b"\n#") - body.startswith(b"#")
        if samples > MOST_SERIES:
            raise _too_large(f"has {samples} samples, more than {MOST_SERIES}")
        learned: dict[bytes, _Line] = {}
        page: list[_Line] = []
        values: list[float] = []
        repeatable = True
        for number, line in enumerate(lines, 1):
            fixed = not line or line.startswith(b"#")
            key, value = (line, 0.0) if fixed else _split_number(line)
            parsed, reusable = self._known.get(key), True
            # A number without a name leaves the text of an empty line.
            if parsed is None or value is None or parsed.is_sample is fixed:
                parsed, value, reusable = self._parse(line, number)
            if reusable and fixed != parsed.is_sample:
                learned[key] = parsed
            page.append(parsed)
            if parsed.series is not None:
                values.append(value)
                repeatable = repeatable and reusable
        # Known lines are the same objects, so that this looks at their identity.
        if page != self._page:
            self._learn(page)
        self._known, self._page = learned, page
        self._texts = pieces[::2] if repeatable else []
        self._is_wanted = [
            parsed.series is not None for parsed, line in zip(page, lines, strict=True) if NUMBER.search(line)
        ]
        return ParsedPage(self._series, tuple(values), self._families)

    def _parse(self, line: bytes, number: int) -> tuple[_Line, float, bool]:
        """Parse a line with prometheus_client. Return its value, and whether another number changes only that.

        It changes more in samples with a timestamp or exemplar, and where the number is not the text after the last
        blank. Without text before that blank the library takes the name from the number itself. Raise ScrapeError.
        """
        try:
            # llama.cpp prints the mean of nothing so on Windows.
            text = line.decode().replace(" -nan(ind)", " NaN")
            family: Metric | None = next(iter(tuple(text_string_to_metric_families(text))), None)
            if family is None:
                return _Line(), 0.0, True
            if not family.samples:
                _, keyword, name, *rest = text.split(None, 3)
                declared = one_line(name.strip('"')) if keyword == "TYPE" else ""
                return _Line(declared, one_line(rest[0].strip()) if declared else ""), 0.0, True
            sample = family.samples[0]
            value = float(sample.value)
        except _NOT_UNDERSTOOD as error:
            # The line itself may repeat a secret.
            text = f"line {number} is not a line of an exposition page"
            raise ScrapeError(ScrapeFailure.SYNTAX, text) from error
        name = sys.intern(one_line(sample.name))
        series = ExpositionSeries(name, _labels(sample.labels, number)) if self._wanted(name) else None
        text_before, plain = _split_number(line)
        same = plain is not None and repr(plain + 0.0) == repr(value + 0.0)
        reusable = same and sample.timestamp is None and sample.exemplar is None and bool(text_before.strip())
        return _Line(name, "", True, series), value, reusable

    def _learn(self, page: Sequence[_Line]) -> None:
        first_lines: dict[ExpositionSeries, int] = {}
        for number, line in enumerate(page, 1):
            if line.series is None:
                continue
            first = first_lines.setdefault(line.series, number)
            if first != number:
                repeated = quote_external_text(line.name, 80)
                text = f"line {number} repeats the series of line {first}: {repeated}"
                raise ScrapeError(ScrapeFailure.DUPLICATE, text)
        series, families = tuple(first_lines), _families(page)
        if len({text for sample in series for name, text in sample.labels if name in MODEL_LABELS}) > MOST_MODELS:
            raise _too_large(f"names more than {MOST_MODELS} models")
        if (series, families) != (self._series, self._families):
            self._series, self._families = series, families


def _split_number(line: bytes) -> tuple[bytes, float | None]:
    """Return the text before the number at the end of a line, and the number; the line and None without one."""
    plain = NUMBER.search(line)
    return (line, None) if plain is None else (line[: plain.start()], float(plain[1]))


def _labels(labels: Mapping[str, str], number: int) -> tuple[tuple[str, str], ...]:
    """Return the labels by name, each a plain line: a control character of a page must not break a line of output."""
    for name, text in labels.items():
        if len(text) > MOST_LABEL and name not in NAME_LISTS:
            named = quote_external_text(name, 80)
            raise _too_large(f"has a label {named} of {len(text)} characters in line {number}, more than {MOST_LABEL}")
    return tuple(sorted((sys.intern(one_line(name)), sys.intern(one_line(text))) for name, text in labels.items()))


def _families(page: Sequence[_Line]) -> dict[str, str]:
    """Return the type of each family. A sample without a TYPE line is its own family; `vllm_x` is of `vllm:x`."""
    families = {line.name: line.type for line in page if line.name and not line.is_sample}
    plain = {name.replace(":", "_") for name in families}
    for name in dict.fromkeys(line.name for line in page if line.is_sample):
        if not any(name.replace(":", "_").removesuffix(suffix) in plain for suffix in SUFFIXES):
            families[name] = UNTYPED
    return families


def _too_large(text: str) -> ScrapeError:
    return ScrapeError(ScrapeFailure.TOO_LARGE, f"the page {text}")
