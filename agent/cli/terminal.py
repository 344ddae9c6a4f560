"""Standard output and error of every command: text without control characters, colours on a terminal, progress."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import click

from exporters.render.safe_text import strip_control_characters

COLOURS = {"red": "critical fail mistake error", "yellow": "warning warn", "green": "ok over"}
"""Words by colour. A word counts at the start of a line or of a column only."""

_COLOUR_OF = {word: colour for colour, words in COLOURS.items() for word in words.split()}
_SEVERITY = re.compile(rf"(?:(?<=  )|^)({'|'.join(_COLOUR_OF)})(?=[\s:,]|$)", re.MULTILINE | re.IGNORECASE)
ERASE_LINE, ERASE_SCREEN = "\r\x1b[K", "\x1b[H\x1b[2J"


def highlight(text: str) -> str:
    return _SEVERITY.sub(lambda word: click.style(word[0], fg=_COLOUR_OF[word[0].lower()], bold=True), text)


class UnwritableOutputError(OSError):
    """Standard output cannot be written, such as on a full disk."""


class SafeStream:
    """Standard output or error of a command.

    A reader that goes away (head, less) ends the output, and the exit code stays; `ends_with_reader` ends the command too.
    Another error of standard output raises UnwritableOutputError. Errors of standard error are ignored.
    """

    shows_progress = False
    """Whether the terminal's last line is a progress, which is erased before something else is written."""

    def __init__(self, stream: TextIO, *, is_error: bool = False, ends_with_reader: bool = False) -> None:
        self._stream, self._is_error, self._ends_with_reader = stream, is_error, ends_with_reader
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self._coloured = stream.isatty() and not plain

    def write(self, text: str) -> int:
        if SafeStream.shows_progress:
            SafeStream.shows_progress = False
            print(ERASE_LINE, end="", file=sys.__stderr__)
        safe = strip_control_characters(text)
        # click finds out with an empty text whether this is a stream of text.
        if safe:
            self._try(lambda: self._stream.write(highlight(safe) if self._coloured else safe))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except OSError as error:
            if self._is_error:
                return
            # What is still buffered would fail again at process exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if error.errno != errno.EPIPE or self._ends_with_reader:
                raise UnwritableOutputError(error.errno, error.strerror) from error

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()


@contextmanager
def safe_streams(*, ends_with_reader: bool = False) -> Iterator[None]:
    stdout, stderr = sys.stdout, sys.stderr
    safe: tuple[Any, Any] = SafeStream(stdout, ends_with_reader=ends_with_reader), SafeStream(stderr, is_error=True)
    sys.stdout, sys.stderr = safe
    try:
        yield
    finally:
        sys.stdout, sys.stderr = stdout, stderr


def tell_progress(share: float, note: str = "") -> None:
    """Show the present command's progress on a terminal: a share of 0 to 1, and what is done now."""
    if sys.stderr.isatty():
        print(f"{note} {share:.0%}", end="", file=sys.stderr, flush=True)
        SafeStream.shows_progress = True
