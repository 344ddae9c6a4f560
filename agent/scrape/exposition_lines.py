"""Parser of single exposition lines with prometheus_client, and the match of samples to families.

It tests whether a parsed line is valid for every number in the same place. Then `agent.scrape.exposition` may reuse it.
A sample gets its family and type from the TYPE lines of its page, never from its suffix alone. It has no cache and no
series selection. Add a new suffix of samples to `_SUFFIX_TYPES`.
"""

import math
import re
import sys
from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from agent.errors import ScrapeError, ScrapeFailure
from exporters.render.text import one_line
from rules.light_dataclass import light_dataclass

# float() and the library agree on texts of these bytes. For others (`1_000`, blanks, digits of other scripts) the
# library decides.
NUMBER_BYTES = b"0123456789.+-eEINFTYinfaty"
# NaN as printed by Microsoft's C++ library, and so by llama.cpp on Windows.
_NAN_OF_WINDOWS = re.compile(rb" -?nan\((?:ind|snan)\)$")
# Exceptions of the library on invalid lines; not all are ValueError.
_NOT_UNDERSTOOD = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)

UNTYPED = "untyped"
# Type of a sample by its suffix and the type of its family. A family with the sample's full name comes first: vLLM has
# a histogram whose name ends in `_total`. OpenMetrics puts `_created` in its family; the text format makes it a gauge.
_SUFFIX_TYPES: dict[str, dict[str, str]] = {
    "_total": {"counter": "counter"},
    "_bucket": {"histogram": "histogram", "gaugehistogram": "gaugehistogram"},
    "_count": {"histogram": "histogram", "summary": "summary"},
    "_sum": {"histogram": "histogram", "summary": "summary"},
    "_gcount": {"gaugehistogram": "gaugehistogram"},
    "_gsum": {"gaugehistogram": "gaugehistogram"},
    "_created": {"counter": "gauge", "histogram": "gauge", "summary": "gauge"},
    "_info": {"info": "info"},
}


@light_dataclass(frozen=True, slots=True)
class Sample:
    """Parsed series text without control characters. Labels are sorted by name."""

    name: str
    labels: tuple[tuple[str, str], ...]


@light_dataclass(frozen=True, slots=True)
class Metadata:
    """Metadata line: TYPE; HELP without a type; a comment or blank line without a family."""

    family: str = ""
    type: str = ""


@light_dataclass(frozen=True, slots=True)
class ExpositionLine:
    """Parsed line and its number (0.0 if it has none).

    `prefix` is the text before the number with its blank, or the whole line without a number. `reusable`: any other
    plain number after this prefix changes only the value.
    """

    prefix: bytes
    parsed: Sample | Metadata
    value: float
    reusable: bool


def split_number(line: bytes) -> tuple[bytes, float | None]:
    """Split a line after its last blank. The second item is the plain number, or None for any other text."""
    head, blank, tail = line.rpartition(b" ")
    if not blank or not tail or tail.translate(None, NUMBER_BYTES):
        return head + blank, None
    try:
        return head + blank, float(tail)
    except ValueError:
        return head + blank, None


def parse_line(line: bytes, number: int, *, openmetrics: bool) -> ExpositionLine:
    """Parse a line with prometheus_client. Raise ScrapeError(syntax) with the line number.

    Not reusable: samples with a timestamp or exemplar, and samples whose number is not the text after the last blank.
    Also not reusable: samples without text before that blank, where the library takes the name from the number itself.
    """
    try:
        family = _family_of_line(_NAN_OF_WINDOWS.sub(b" NaN", line).decode(), openmetrics=openmetrics)
        if family is None:
            return ExpositionLine(line, Metadata(), 0.0, True)
        if not family.samples:
            return ExpositionLine(line, _metadata(line.decode()), 0.0, True)
        sample = family.samples[0]
        value = _to_float(sample.value)
    except _NOT_UNDERSTOOD as error:
        # The line itself may repeat a secret.
        raise ScrapeError(ScrapeFailure.SYNTAX, f"line {number} is not a line of an exposition page") from error
    # Clean the names here, once: a control character from a page must not break a line of output.
    labels = tuple(
        sorted((sys.intern(one_line(key)), sys.intern(one_line(text))) for key, text in sample.labels.items())
    )
    prefix, plain = split_number(line)
    same = plain is not None and (plain == value or (math.isnan(plain) and math.isnan(value)))
    alone = sample.timestamp is None and sample.exemplar is None and bool(prefix.strip())
    return ExpositionLine(prefix, Sample(sys.intern(one_line(sample.name)), labels), value, same and alone)


def _family_of_line(text: str, *, openmetrics: bool) -> Metric | None:
    families: Iterable[Metric] = text_families(text)
    # The text format parses metadata, because OpenMetrics rules apply to whole pages. It also parses lines with an
    # exemplar, which OpenMetrics allows only in some family types; the text format skips it.
    if openmetrics and not text.startswith("#") and " # {" not in text:
        families = openmetrics_families(f"{text}\n# EOF\n")  # type: ignore[no-untyped-call]
    return next(iter(tuple(families)), None)


def _metadata(text: str) -> Metadata:
    """Parse a HELP or TYPE line. The library strips `_total` from the name in TYPE lines, but not in HELP lines."""
    _, keyword, rest = text.split(None, 2)
    family = next(iter(text_families(f"# HELP {rest}")))
    name = one_line(family.name)
    return Metadata(name) if keyword == "HELP" else Metadata(name, sys.intern(family.documentation))


def _to_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        # The library parses a long row of digits as int; float() of the same text is infinite.
        return math.inf if value > 0 else -math.inf


def declared_families(page: Iterable[Sample | Metadata]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the type of each family with metadata, and the two types of each contradictory family."""
    types: dict[str, str] = {}
    contradicted: dict[str, str] = {}
    for parsed in page:
        if not isinstance(parsed, Metadata) or not parsed.family:
            continue
        family = parsed.family
        type_ = UNTYPED if parsed.type in ("", "unknown") else parsed.type
        before = types.setdefault(family, type_)
        if before == UNTYPED:
            types[family] = type_
        elif type_ not in (before, UNTYPED):
            contradicted[family] = f"{before} and {type_}"
    return types, contradicted


class FamilyLookup:
    """Lookup of families and types by sample name. `vllm_x` is also found under `vllm:x`."""

    def __init__(self, families: Mapping[str, str]) -> None:
        self._families = families
        self._printed = {name.replace(":", "_"): name for name in families}
        self._known: dict[str, tuple[str, str]] = {}
        self.unplaced: list[str] = []

    def lookup(self, name: str) -> tuple[str, str]:
        """Return family and type of a sample. An undeclared sample is its own family with type `untyped`."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._search(name)
        return found

    def _search(self, name: str) -> tuple[str, str]:
        family = self._family(name)
        if family is not None:
            return family, self._families[family]
        for suffix, types in _SUFFIX_TYPES.items():
            family = self._family(name.removesuffix(suffix)) if name.endswith(suffix) else None
            if family is not None and self._families[family] in types:
                return family, types[self._families[family]]
        self.unplaced.append(name)
        return name, UNTYPED

    def _family(self, name: str) -> str | None:
        return name if name in self._families else self._printed.get(name.replace(":", "_"))
