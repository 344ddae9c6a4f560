"""What one line of an exposition page says. prometheus_client decides; this module only asks it.

Owns the question to the library and the test whether its answer holds for every number in the same place, so that
exposition.py may reuse it. It must not know about pages, caches or types of families.
"""

import math
import re
import sys
from collections.abc import Iterable
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
