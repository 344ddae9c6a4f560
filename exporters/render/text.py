"""Text that came from outside, made fit to be shown: no control characters, nothing that turns the direction of reading.

Owns what is taken out and what stands in its place. Escape sequences move a terminal's cursor, a carriage return or a line of one's
own forges what we said, and U+202E shows a name backwards; none belongs to a name. It escapes no markup: whoever writes HTML does.
"""

from __future__ import annotations

import re

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
