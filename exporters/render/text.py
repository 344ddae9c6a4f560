"""Text that came from outside, made fit to be shown: no control characters, nothing that turns the direction of reading.

Owns what is taken out and what stands in its place. Escape sequences move a terminal's cursor, a carriage return or a line of one's
own forges what we said, and U+202E shows a name backwards; none belongs to a name. It escapes no markup: whoever writes HTML does.

Markdown as every generated page writes it.

Owns the spelling of a table alone.

Tables for a terminal: columns as wide as what stands in them, numbers to the right.

Owns this layout alone; what stands in a cell is decided by its callers.

How instants and spans are written for people: UTC, and no finer than a reader needs.

Owns formatting only; whoever calls brings both the instant and now.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

STAND_IN = "\ufffd"
"""U+FFFD, the replacement character."""

_DIRECTION = "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_HALVES = "\ud800-\udfff"
"""Of characters: bytes of a file's name that are no text, and what JSON alone can spell; no stream takes them."""

_IN_TEXT = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_DIRECTION}{_HALVES}]")
_IN_LINE = re.compile(f"[\x00-\x1f\x7f-\x9f{_DIRECTION}{_HALVES}]")


def strip_control_characters(text: str) -> str:
    """The same, of as many lines, without control characters; tabs and ends of lines are none."""
    return _IN_TEXT.sub(STAND_IN, text)


def one_line(text: str) -> str:
    """The same on one line, without control characters."""
    return text if text.isascii() and text.isprintable() else _IN_LINE.sub(STAND_IN, text)


def quote_external_text(text: str, most: int) -> str:
    """What somebody else says, as a part of a message: on one line, of at most so many signs, each of which can be written."""
    signs = (sign if sign.isprintable() else " " if sign.isspace() else STAND_IN for sign in text[: 4 * most])
    found = " ".join("".join(signs).split())
    return found if len(found) <= most else f"{found[: most - 1]}…"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar inside a cell does not end it."""
    cells = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows)
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {line} |" for line in cells)])


def text_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> list[str]:
    """Lines of a table. The first `words` columns are words and stand left, all others right; nothing is cut."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if place < words else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


def format_clock(t: float, now: float) -> str:
    """Unix seconds as "14:27 UTC", with the day where it is not today's."""
    instant, today = datetime.fromtimestamp(t, UTC), datetime.fromtimestamp(now, UTC)
    return instant.strftime("%H:%M UTC" if instant.date() == today.date() else "%d %b %H:%M UTC")


def format_rfc3339(t: float) -> str:
    """Unix seconds as RFC 3339, to the second."""
    return datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_duration(seconds: float) -> str:
    """A length of time by its two largest units: "7 s", "12 min", "2 h 5 min", "3 d 4 h"."""
    whole = max(0.0, seconds)
    if whole < _MINUTE:
        return f"{whole:.0f} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE:.0f} min"
    large, small, names = (_HOUR, _MINUTE, ("h", "min")) if whole < _DAY else (_DAY, _HOUR, ("d", "h"))
    rest = whole % large // small
    return f"{whole // large:.0f} {names[0]}" + (f" {rest:.0f} {names[1]}" if rest else "")
