"""What one line of an exposition page says. prometheus_client decides; this module only asks it.

Owns the question to the library and the test whether its answer holds for every number in the same place, so that
exposition.py may reuse it. It must not know about pages, caches or types of families.

Which family a sample belongs to, and so its type: by the TYPE lines of its page, never by its ending alone.

Owns the matching of sample names to family names. It must not know about lines, caches or wanted series. A new suffix
under which the samples of a family appear is a row of `_SUFFIX_TYPES`.
"""

import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from agent.errors import ScrapeError, ScrapeFailure
from exporters.render.text import one_line

# A text of these bytes means the same to float() and to the library. Of any other (`1_000`, blanks, digits of other
# scripts) only the library decides.
NUMBER_BYTES = b"0123456789.+-eEINFTYinfaty"
# How Microsoft's C++ library prints numbers that are none, and so llama.cpp on Windows.
_NAN_OF_WINDOWS = re.compile(rb" -?nan\((?:ind|snan)\)$")
# What the library raises on lines it does not understand; not all of it is ValueError.
_NOT_UNDERSTOOD = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class Sample:
    """What a series text says, without control characters; labels sorted by name."""

    name: str
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Metadata:
    """A TYPE line; or a HELP line, which has no type; or a comment or a blank line, which has no family either."""

    family: str = ""
    type: str = ""


@dataclass(frozen=True, slots=True)
class ExpositionLine:
    """A line split into what it says and its number (0.0 where it has none).

    `prefix` is what comes before the number, its blank included, or the whole line where there is no number.
    `reusable`: a line of the same prefix and any plain number says the same, with that number.
    """

    prefix: bytes
    says: Sample | Metadata
    value: float
    reusable: bool


def split_number(line: bytes) -> tuple[bytes, float | None]:
    """The line up to and with its last blank, and the plain number after it: None where there is anything else."""
    head, blank, tail = line.rpartition(b" ")
    if not blank or not tail or tail.translate(None, NUMBER_BYTES):
        return head + blank, None
    try:
        return head + blank, float(tail)
    except ValueError:
        return head + blank, None


def parse_line(line: bytes, number: int, *, openmetrics: bool) -> ExpositionLine:
    """A line as prometheus_client reads it. Raises ScrapeError(syntax) that names line `number`.

    Not reusable are samples with a timestamp or an exemplar, those whose number is not plainly the text after the last
    blank, and those with nothing before that blank, of which the library cuts the name out of the number itself.
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
        shown = line[:80].decode(errors="replace")
        raise ScrapeError(
            ScrapeFailure.SYNTAX, f"line {number} is not a line of an exposition page: {shown!r}"
        ) from error
    # Here and nowhere later: no name of a page ends a line of ours, wherever it is shown.
    labels = tuple(
        sorted((sys.intern(one_line(key)), sys.intern(one_line(text))) for key, text in sample.labels.items())
    )
    prefix, plain = split_number(line)
    same = plain is not None and (plain == value or (math.isnan(plain) and math.isnan(value)))
    alone = sample.timestamp is None and sample.exemplar is None and bool(prefix.strip())
    return ExpositionLine(prefix, Sample(sys.intern(one_line(sample.name)), labels), value, same and alone)


def _family_of_line(text: str, *, openmetrics: bool) -> Metric | None:
    families: Iterable[Metric] = text_families(text)
    # Metadata is read by the rules of the text format everywhere: the stricter ones are about whole pages. So are lines
    # with an exemplar, which OpenMetrics allows in some types of family only; the text format reads past it.
    if openmetrics and not text.startswith("#") and " # {" not in text:
        families = openmetrics_families(f"{text}\n# EOF\n")  # type: ignore[no-untyped-call]
    return next(iter(tuple(families)), None)


def _metadata(text: str) -> Metadata:
    """A HELP or TYPE line. The library strips `_total` from the name in a TYPE line, but not from that in a HELP line."""
    _, keyword, rest = text.split(None, 2)
    if keyword == "HELP":
        return Metadata(one_line(_named(rest).name))
    stated = _named(rest)
    return Metadata(one_line(stated.name), sys.intern(stated.documentation))


def _named(rest: str) -> Metric:
    return next(iter(text_families(f"# HELP {rest}")))


def _to_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        # The library makes an int of a long row of digits; float() of the same text is infinite.
        return math.inf if value > 0 else -math.inf


UNTYPED = "untyped"
# Type of a sample by its suffix and the type of its family. A family of the sample's full name comes first: vLLM has a
# histogram whose name ends in `_total`. OpenMetrics puts `_created` in its family, the text format calls it a gauge.
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


def declared_families(page: Iterable[Sample | Metadata]) -> tuple[dict[str, str], dict[str, str]]:
    """Type of each family with metadata, and for those of two types the two."""
    types: dict[str, str] = {}
    contradicted: dict[str, str] = {}
    for says in page:
        if not isinstance(says, Metadata) or not says.family:
            continue
        family = says.family
        type_ = UNTYPED if says.type in ("", "unknown") else says.type
        before = types.setdefault(family, type_)
        if before == UNTYPED:
            types[family] = type_
        elif type_ not in (before, UNTYPED):
            contradicted[family] = f"{before} and {type_}"
    return types, contradicted


class FamilyLookup:
    """Finds the family and the type of samples by their names, `vllm_x` also under `vllm:x`."""

    def __init__(self, families: Mapping[str, str]) -> None:
        self._families = families
        self._printed = {name.replace(":", "_"): name for name in families}
        self._known: dict[str, tuple[str, str]] = {}
        self.unplaced: list[str] = []

    def lookup(self, name: str) -> tuple[str, str]:
        """Family and type of a sample; its own name and `untyped` where the page declares no family for it."""
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
