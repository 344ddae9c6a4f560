"""Standard output and standard error that move no cursor, whatever a name or an answer of somebody else holds.

Owns the way between `print` and the stream. What we mean ourselves passes: the demo's colours, and a carriage return that begins
what is written, as progress bars have it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from exporters.render.text import strip_control_characters

_OURS = re.compile(r"(\x1b\[(?:0|1;\d\d)m)")
"""What `agent.demo.narrator` marks a word with."""


def escape_text(text: str) -> str:
    """What is written of this text."""
    start = "\r" if text.startswith("\r") else ""
    if "\x1b" not in text:
        return start + strip_control_characters(text[len(start) :])
    parts = _OURS.split(text[len(start) :])
    return start + "".join(part if number % 2 else strip_control_characters(part) for number, part in enumerate(parts))


class _Plain:
    """A stream whose text is shown so; for the rest the stream itself."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(escape_text(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def plain_output() -> Iterator[None]:
    """Until its end `sys.stdout` and `sys.stderr` are such streams; one that is closed stays so."""
    before: tuple[TextIO | None, TextIO | None] = sys.stdout, sys.stderr
    made: list[Any] = [None if stream is None else _Plain(stream) for stream in before]
    sys.stdout, sys.stderr = made
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
