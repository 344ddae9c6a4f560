"""External text made safe to print: no control characters, one line, so many characters. It loads nothing else."""

from __future__ import annotations

import re

STAND_IN = "\ufffd"
"""Replacement character, U+FFFD."""

_DIRECTION = "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_HALVES = "\ud800-\udfff"
"""Surrogates: undecodable bytes of file names, and characters that only JSON can spell. No stream accepts them."""

_IN_TEXT = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_DIRECTION}{_HALVES}]")
_IN_LINE = re.compile(f"[\x00-\x1f\x7f-\x9f{_DIRECTION}{_HALVES}]")


def strip_control_characters(text: str) -> str:
    """Return the text without control characters. Tabs and line ends stay."""
    return _IN_TEXT.sub(STAND_IN, text)


def one_line(text: str) -> str:
    """Return the text on a single line, without control characters."""
    if text.isascii() and text.isprintable():
        return text
    return _IN_LINE.sub(STAND_IN, text)


def quote_external_text(text: str, most: int) -> str:
    """Return external text for a message: printable, on a single line, at most so many characters."""
    signs = (sign if sign.isprintable() else " " if sign.isspace() else STAND_IN for sign in text[: 4 * most])
    words = " ".join("".join(signs).split())
    return shorten(words, most)


def printable_line(text: str) -> str:
    """Return the text on a single printable line, so that it cannot end a comment or start a header."""
    return " ".join(blank_unprintable(text).split())


def blank_unprintable(text: str) -> str:
    """Return the text with a space for each character that would end a line or that XML cannot represent."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def replace_undecodable(text: str) -> str:
    """Return the text with a mark for each byte of a name that is no UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def shorten(text: str, most: int) -> str:
    """Return at most so many characters, with an ellipsis for the rest."""
    if len(text) <= most:
        return text
    return f"{text[: most - 1]}…"
