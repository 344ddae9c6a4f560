"""Terminal habits of every command: safe text, colours, pager, progress and `--quiet`.

Control characters in names and responses are removed from the output. Severity words are coloured in one place, here.
Standard output is kept until the command ends, so that a reader that goes away never hides its exit code. Longer than
the screen, it goes to $PAGER. Commands that print while they run are not kept.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Callable
from typing import Any, Literal, TextIO

import click

from exporters.render.text import strip_control_characters

COLOURS = {"red": "critical fail mistake error", "yellow": "warning warn", "green": "ok over"}
"""Words by colour. A word counts at the start of a line or of a column only."""

_COLOUR_OF = {word: colour for colour, words in COLOURS.items() for word in words.split()}
_SEVERITY = re.compile(rf"(?:(?<=  )|^)({'|'.join(_COLOUR_OF)})(?=[\s:,]|$)", re.MULTILINE | re.IGNORECASE)

Output = Literal["kept", "streamed", "log"]
"""What a command prints: kept for the pager, at once, or a log, which `--quiet` leaves alone."""


def highlight(text: str) -> str:
    """Return the text with its severity words in colour."""
    return _SEVERITY.sub(lambda word: click.style(word[0], fg=_COLOUR_OF[word[0].lower()], bold=True), text)


class UnwritableOutput(OSError):
    """Standard output cannot be written, because of a full disk or a reader that went away."""

    def __init__(self, error: OSError, stream: TextIO) -> None:
        super().__init__(error.errno, error.strerror)
        # What is still buffered would fail again at process exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class _Stream:
    """Standard output or error of a command, which removes control characters and colours what is written.

    An error of output raises UnwritableOutput. Remarks that cannot be written are lost: a log's disk may have room again.
    """

    def __init__(self, terminal: Terminal, stream: TextIO, *, remarks: bool = False) -> None:
        self._terminal, self._stream, self._remarks = terminal, stream, remarks

    def write(self, text: str) -> int:
        if self._remarks and self._terminal.quiet:
            self._terminal.remarks.append(text)
        else:
            self._terminal.end_progress()
            self._try(lambda: self._stream.write(self._terminal.shown(text, self._stream)))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except OSError as error:
            if not self._remarks:
                raise UnwritableOutput(error, self._stream) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Terminal:
    """Standard output and error of one command, in their place during the block."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.color, self.quiet = "auto", False
        self.remarks: list[str] = []
        self._stdout, self._stderr = sys.stdout, sys.stderr
        self._kept = io.StringIO()
        self._bar: Any = None

    def __enter__(self) -> Terminal:
        remarks: Any = _Stream(self, self._stderr, remarks=True)
        sys.stdout, sys.stderr = self._kept, remarks
        return self

    def __exit__(self, *error: object) -> None:
        sys.stderr.flush()
        sys.stdout, sys.stderr = self._stdout, self._stderr

    def begin(self, output: Output) -> None:
        """Print at once from here on, unless the output is kept."""
        self.quiet = self.quiet and output != "log"
        if output != "kept":
            stream: Any = _Stream(self, self._stdout)
            sys.stdout = stream

    def is_coloured(self, stream: TextIO) -> bool:
        if self.color != "auto":
            return self.color == "always"
        return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def shown(self, text: str, stream: TextIO) -> str:
        """Return the text as this stream gets it."""
        plain = strip_control_characters(text)
        return highlight(plain) if self.is_coloured(stream) else plain

    def end(self, *, failed: bool, paged: bool) -> None:
        """Print what was kept: `paged` if it is longer than the screen. A command that `failed` says why, also if
        `--quiet` was given. Raise UnwritableOutput."""
        self.end_progress()
        self.quiet = False
        if failed:
            sys.stderr.write("".join(self.remarks))
        text = self._kept.getvalue()
        if not (paged and self._is_long(text) and self._page(text)):
            stream = _Stream(self, self._stdout)
            stream.write(text)
            # Flushed here, because nobody handles an error at process exit.
            stream.flush()

    def _is_long(self, text: str) -> bool:
        size = shutil.get_terminal_size()
        lines = sum(1 + len(line) // size.columns for line in text.splitlines())
        return self._stdout.isatty() and lines >= size.lines

    def _page(self, text: str) -> bool:
        os.environ.setdefault("LESS", "-FRX")
        # click looks for the terminal here.
        sys.stdout = self._stdout
        try:
            click.echo_via_pager(self.shown(text.removesuffix("\n"), self._stdout), color=True)
        except ValueError:
            return False  # $PAGER has an open quote.
        return True

    def tell(self, share: float, note: str) -> None:
        """Draw the progress on a terminal."""
        if self.quiet or not self._stderr.isatty():
            return
        if self._bar is None:
            path = click.get_current_context().command_path
            self._bar = click.progressbar(length=100, label=path, item_show_func=lambda text: text, file=self._stderr)
        self._bar.update(max(0, int(100 * share) - self._bar.pos), strip_control_characters(note))
        self._bar.render_progress()
        if self._bar.finished:
            self.end_progress()

    def end_progress(self) -> None:
        """Leave the line of the progress, before something else is written."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.render_finish()


def tell_progress(share: float, note: str = "") -> None:
    """Tell the present command's progress: a share of 0 to 1, and what is done now."""
    context = click.get_current_context(silent=True)
    if context is not None and isinstance(context.obj, Terminal):
        context.obj.tell(share, note)
