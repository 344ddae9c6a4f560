"""A benchmark curve as the YAML that stands in a plan, with comments for whoever reads it.

Owns layout, quoting and the spelling of numbers: YAML 1.1, as people's parsers read it (`1e-05` would be text). What
the comments say is decided by its callers. A new part of a plan that is written for people is a function here.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from rules.plan.schema import BenchmarkCurve, Point

WIDTH = 116

WRITTEN = "Written by `sizewatch plan import`, which replaces all of it, comments too, when a curve is imported again."
"""The first comment of an imported curve; in a curve that does not hold it, comments are people's."""

LOAD = ("concurrency", "requested_rps", "completed_rps", "requests")
"""What a reader looks for first in a point."""

_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./+@-]*")
_NOT_TEXT = re.compile(r"(?i)[-+.0-9_:eox]*|\.?(inf|nan)|y|n|yes|no|on|off|true|false|null|0x[0-9a-f_]+|[0-9-]+(t.*)?")
"""What a YAML 1.1 parser may take for a number, a date or a truth value if it is not quoted; and a little more."""


_ESCAPES = {'"': '\\"', "\\": "\\\\"}


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlIndentation:
    """How the file around it is written: columns before the key, columns a level, and whether lists are indented."""

    margin: int = 0
    step: int = 2
    lists_indented: bool = True


def curve_lines(
    curve: BenchmarkCurve,
    layout: YamlIndentation,
    *,
    head: Sequence[str] = (),
    notes: Sequence[Sequence[str]] = (),
) -> list[str]:
    """`curve:` and what belongs to it, a line each, without line ends and without the margin of the first line.

    `head` are comments on the whole, `notes` those above each point. What was not measured is left out. The first line
    begins at the key, wherever the caller puts it; all others carry the margin.
    """
    inner = " " * (layout.margin + layout.step)
    item = inner + " " * (layout.step if layout.lists_indented else 0)
    lines = ["curve:", *_comments(head, inner)]
    for key in ("loop", "gpu_utilization_kind"):
        if value := getattr(curve, key):
            lines.append(f"{inner}{key}: {value}")
    if curve.source:
        lines += [f"{inner}source:", *(f"{item}- {scalar(name)}" for name in curve.source)]
    lines.append(f"{inner}points:")
    for place, point in enumerate(curve.points):
        lines += _comments(notes[place] if place < len(notes) else (), item)
        lines += _point(point, item)
    return lines


def scalar(text: str) -> str:
    """A text as YAML reads it back: plain where that is safe, else in double quotes."""
    # A name that is no text at all (undecodable bytes of a file name) is written with a mark in their place.
    readable = text.encode("utf-8", "replace").decode("utf-8")
    if _PLAIN.fullmatch(readable) and not _NOT_TEXT.fullmatch(readable):
        return readable
    escaped = (_ESCAPES.get(sign) or (sign if sign.isprintable() else f"\\U{ord(sign):08x}") for sign in readable)
    return f'"{"".join(escaped)}"'


def yaml_number(value: float) -> str:
    """A number without exponent and without a fraction that says nothing."""
    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _point(point: Point, margin: str) -> list[str]:
    loads = [name for name in LOAD if getattr(point, name) is not None]
    others = [name for name in Point.model_fields if name not in (*LOAD, "censored")]
    parts = [f"{name}: {yaml_number(getattr(point, name))}" for name in loads]
    parts += ["censored: true"] if point.censored else []
    parts += [f"{name}: {yaml_number(value)}" for name in others if (value := getattr(point, name)) is not None]
    # A key stays on the line of its value.
    text = ", ".join(parts).replace(": ", ":\0")
    wrapped = textwrap.wrap(text, WIDTH - len(margin) - 4, break_long_words=False, break_on_hyphens=False)
    lines = [line.replace("\0", " ") for line in wrapped]
    lines[-1] += "}"
    return [f"{margin}{'   ' if place else '- {'}{line}" for place, line in enumerate(lines)]


def _comments(texts: Iterable[str], margin: str) -> list[str]:
    lines = []
    for text in texts:
        # A line end or a control character in a file's name must not end the comment.
        clean = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
        wrapped = textwrap.wrap(clean, max(WIDTH - len(margin) - 2, 40), break_on_hyphens=False, break_long_words=False)
        lines += [f"{margin}# {line}" for line in wrapped]
    return lines
