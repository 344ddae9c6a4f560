"""Terminal habits of every command: safe text, colours, pager, progress and `--quiet`.

Control characters in names and responses are removed from the output. Severity words are coloured in one place, here.
Output for a terminal is kept until the command ends: longer than the screen, it goes to $PAGER. Commands that print
while they run are not kept.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from exporters.render.text import format_duration, strip_control_characters

COLOURS = {
    "31": "critical fail mistake error",
    "33": "warning warn",
    "32": "ok over",
}
"""Words by colour (SGR code). A word counts at the start of a line or of a column only."""

_CODES = {word: code for code, words in COLOURS.items() for word in words.split()}
_SEVERITY = re.compile(rf"(?:(?<=  )|^)({'|'.join(_CODES)})(?=[\s:,]|$)", re.MULTILINE | re.IGNORECASE)

SILENT_SECONDS = 2.0
"""Seconds of work before its progress is shown."""

REDRAWN_SECONDS, LINE_SECONDS = 0.25, 30.0
"""Seconds between two states of the line of a terminal, and at most between two lines elsewhere."""

LINES = 10
"""Number of progress lines of a piece of work where stderr is no terminal: one each tenth."""

BAR = 20
"""Width of the bar in columns."""


def highlight(text: str) -> str:
    """Return the text with its severity words in colour."""
    return _SEVERITY.sub(lambda found: f"\x1b[1;{_CODES[found[0].lower()]}m{found[0]}\x1b[0m", text)


class Progress:
    """Progress of a command. A terminal has a line that is redrawn; elsewhere a line each tenth is printed.

    `tell` only stores, so that loops may call it often. Without a share, only a terminal shows the seconds.
    """

    def __init__(self, title: str, console: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._console, self._clock = title, console, clock
        self._began = self._told_at = clock()
        self._share: float | None = None
        self._shared_at = self._began
        self._tenths = 0
        self._note = ""
        self._drawn = False
        self._lock = threading.Lock()
        self.is_terminal = console.isatty()

    def tell(self, share: float | None, note: str) -> None:
        self._share, self._note, self._shared_at = share, note, self._clock()

    def text(self, now: float) -> str:
        spent, share = now - self._began, self._share
        words = [f"{self._title}:" if self._note or share is not None else self._title, self._note]
        if share is None:
            return " ".join((*filter(None, words), format_duration(spent)))
        words.append(f"[{'#' * round(BAR * share):.<{BAR}}]" if self.is_terminal else "")
        left = (self._shared_at - self._began) / share - spent if 0 < share < 1 else 0.0
        words.append(f"{share:.0%}, {format_duration(left)} left" if left >= 1 else f"{share:.0%}")
        return " ".join(filter(None, words))

    def draw(self) -> None:
        """Show the present state, if it is due."""
        now, share = self._clock(), self._share
        if now - self._began < SILENT_SECONDS or (share == 1 and self._tenths in (0, LINES)):
            self.clear()
            return
        line = strip_control_characters(self.text(now))
        with self._lock:
            if self.is_terminal:
                self._console.write(f"\r{line[: shutil.get_terminal_size().columns - 1]}\x1b[K")
                self._drawn = True
            elif (share is not None or self._note) and self._is_line_due(now):
                self._console.write(f"{line}\n")
            self._console.flush()

    def _is_line_due(self, now: float) -> bool:
        tenths = math.floor((self._share or 0.0) * LINES)
        if tenths <= self._tenths and now - self._told_at < LINE_SECONDS:
            return False
        self._tenths, self._told_at = tenths, now
        return True

    def clear(self) -> None:
        """Remove the line from the terminal, before something else is written."""
        with self._lock:
            if self._drawn:
                self._console.write("\r\x1b[K")
                self._console.flush()
                self._drawn = False


class _Stream:
    """Wrapper of a stream: escapes and colours written text, or keeps it for the end of the command."""

    def __init__(self, stream: TextIO, session: Session) -> None:
        self._stream, self._session = stream, session

    def write(self, text: str) -> int:
        self._session.write(self, text)
        return len(text)

    def put(self, text: str) -> None:
        self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Session:
    """Standard output and error of a command. See `terminal_session`."""

    def __init__(self, stdout: TextIO | None, stderr: TextIO | None) -> None:
        self._console = stderr
        self.stdout, self.stderr = ((s if s is None else _Stream(s, self)) for s in (stdout, stderr))
        self._kept: list[tuple[_Stream, str]] | None = [] if stdout is not None and stdout.isatty() else None
        self._remarks: list[str] | None = None
        self._color = "auto"
        self._progress: Progress | None = None
        self._ended = threading.Event()

    def configure(self, *, color: str, quiet: bool, streams: bool) -> None:
        """Set the options of the command. `streams`: it prints while it runs, so nothing is kept for a pager."""
        self._color, self._remarks = color, [] if quiet else None
        if streams:
            self._put_kept()

    def write(self, stream: _Stream, text: str) -> None:
        if self._remarks is not None and stream is self.stderr:
            self._remarks.append(text)
        elif self._kept is not None and (stream is self.stdout or stream.isatty()):
            self._kept.append((stream, text))
        else:
            self._put(stream, text)

    def _put(self, stream: _Stream, text: str) -> None:
        if self._progress is not None:
            self._progress.clear()
        stream.put(self._shown(stream, text))

    def _shown(self, stream: _Stream, text: str) -> str:
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty()
        coloured = self._color == "always" or (self._color == "auto" and not plain)
        return highlight(strip_control_characters(text)) if coloured else strip_control_characters(text)

    def end_quiet(self, *, failed: bool) -> None:
        """End the silence of `--quiet`. A command that failed prints why."""
        remarks, self._remarks = self._remarks, None
        if failed and remarks and self.stderr is not None:
            self.stderr.write("".join(remarks))

    @contextmanager
    def progress(self, title: str) -> Iterator[None]:
        """Show the progress of the block on stderr, unless `--quiet` was given."""
        if self._console is None or self._remarks is not None:
            yield
            return
        self._progress = Progress(title, self._console)
        thread = threading.Thread(target=self._draw, args=(self._progress,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()
            self._progress.clear()
            self._progress = None

    def _draw(self, progress: Progress) -> None:
        while not self._ended.wait(REDRAWN_SECONDS):
            try:
                progress.draw()
            except (OSError, ValueError):
                return  # Nobody reads it.

    def tell(self, share: float | None, note: str) -> None:
        if self._progress is not None:
            self._progress.tell(share, note)

    def end(self, *, paged: bool) -> None:
        """Print what was kept: through the pager if it is longer than the screen."""
        kept, size = self._kept or [], shutil.get_terminal_size()
        lines = "".join(text for _, text in kept).split("\n")
        used = sum(max(1, math.ceil(len(line) / size.columns)) for line in lines)
        if paged and used > size.lines and show_paged("".join(self._shown(*one) for one in kept)):
            kept.clear()
        self._put_kept()

    def _put_kept(self) -> None:
        kept, self._kept = self._kept or [], None
        for stream, text in kept:
            self._put(stream, text)


def show_paged(text: str) -> bool:
    """Show the text in $PAGER, by default less. Return False if there is none."""
    try:
        words = shlex.split(os.environ.get("PAGER", "less"))
    except ValueError:
        return False
    if not words or words == ["cat"] or shutil.which(words[0]) is None:
        return False
    # The pager handles Ctrl-C itself.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        environment = {"LESS": "FRX", **os.environ}
        subprocess.run(words, input=text.encode("utf-8", "replace"), env=environment, check=False)
    finally:
        signal.signal(signal.SIGINT, before)
    return True


_sessions: list[Session] = []


@contextmanager
def terminal_session() -> Iterator[Session]:
    """Wrap `sys.stdout` and `sys.stderr` during the block. A closed stream stays closed."""
    before: tuple[TextIO | None, TextIO | None] = sys.stdout, sys.stderr
    session = Session(*before)
    made: list[Any] = [session.stdout, session.stderr]
    sys.stdout, sys.stderr = made
    _sessions.append(session)
    try:
        yield session
    finally:
        _sessions.remove(session)
        sys.stdout, sys.stderr = before


def tell_progress(share: float | None, note: str = "") -> None:
    """Tell the present command's progress: a share of 0 to 1, or None if it is unknown, and what is done now."""
    if _sessions:
        _sessions[-1].tell(share, note)
