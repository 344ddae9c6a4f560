"""Checks of the history file: format, clock, renamed files, damage. It only reads, and takes no lock of the daemon."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from agent.config.load import LoadedConfig
from agent.doctor.check_result import CheckResult, fail, ok, warn
from agent.files import holder
from agent.history.errors import HistoryError, HistoryFormatError, HistoryOpenError
from agent.history.schema import list_renamed
from agent.history.store import HistoryStore

AHEAD_SECONDS = 120.0
"""Limit in seconds. A history further ahead of the clock was written before the clock was set back."""

CHECK = "history"

LOOK_SECONDS = 5.0
"""Time limit in seconds of the integrity check. A file is reported whole if the part that was read is."""

STEPS_BETWEEN = 10_000
"""SQLite instructions between two checks of the time limit."""

DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryProbe:
    """History file. `trouble` is why it cannot be read."""

    path: str
    exists: bool
    trouble: str = ""
    other_format: int | None = None
    """Format of the file where it is another than this sizewatch writes."""
    ahead_seconds: float = 0.0
    """Seconds from now to the end of the newest minute."""
    renamed: tuple[tuple[str, int], ...] = ()
    """Name and size in bytes of each file of another format that was renamed."""


def probe_history(path: Path, now: float) -> HistoryProbe:
    """Return whether the history can be opened and read, as `sizewatch check` does beside a running daemon."""
    renamed = tuple((beside.name, beside.lstat().st_size) for beside in list_renamed(path))
    try:
        path.lstat()
    except FileNotFoundError:
        return HistoryProbe(path=str(path), exists=False, renamed=renamed)
    except OSError as error:
        # The check of the folder reports a folder that is not accessible, or is a file.
        return HistoryProbe(path=str(path), exists=False, trouble=f"{path}: {error.strerror}", renamed=renamed)
    try:
        with HistoryStore.open_reader(path, alone=is_idle_file(path)) as reader:
            ahead = (reader.newest_minute_end or now) - now
            return HistoryProbe(path=str(path), exists=True, ahead_seconds=ahead, renamed=renamed)
    except HistoryFormatError as error:
        return HistoryProbe(path=str(path), exists=True, other_format=error.version, renamed=renamed)
    except (HistoryOpenError, HistoryError) as error:
        return HistoryProbe(path=str(path), exists=True, trouble=str(error), renamed=renamed)


def is_idle_file(path: Path) -> bool:
    """Return whether no daemon has the file open and no write-ahead log is left. Reading it then leaves no files."""
    log = path.with_name(f"{path.name}-wal")
    try:
        return not holder(path.parent) and not (log.exists() and log.stat().st_size)
    except OSError:
        return False


def check_history(seen: HistoryProbe | None, _: LoadedConfig) -> Iterator[CheckResult]:
    if seen is None:
        return
    if seen.trouble:
        yield fail(
            "history", seen.trouble, "until then nothing is remembered, and `sizewatch check` has nothing to read"
        )
    elif seen.other_format is not None:
        name = f"{Path(seen.path).name}.format-{seen.other_format}"
        yield warn(
            "history",
            f"{seen.path}: is of another format, which no command reads",
            f"`sizewatch run` renames it to {name} and begins a new one",
        )
    else:
        yield ok("history", f"{seen.path}: {'can be read' if seen.exists else 'begins with the first run'}")
    if seen.ahead_seconds > AHEAD_SECONDS:
        text = f"{seen.path}: its newest minute is {seen.ahead_seconds:.0f} s ahead of this machine's clock"
        advice = (
            "correct the clock if it is wrong now; if it was, do nothing: minutes of a time that is booked already"
            " are judged and not kept, all others are kept"
        )
        yield warn("history", text, advice)
    if seen.renamed:
        size = sum(each for _, each in seen.renamed) / 1024**2
        names = ", ".join(name for name, _ in seen.renamed)
        yield warn(
            "history",
            f"renamed, of other formats: {names} ({size:.1f} MiB)",
            "delete them once nobody goes back to the sizewatch that wrote them; nothing else ever does",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFileProbe:
    """State of the file. `damage` is SQLite's first complaint."""

    path: str
    damage: str = ""


def probe_history_file(path: Path | None, seen: HistoryProbe | None) -> HistoryFileProbe | None:
    """Check a readable file for damage. Return None if there is no file."""
    if path is None or seen is None or not os.path.isfile(path):
        return None
    return HistoryFileProbe(path=str(path), damage="" if seen.trouble else _damage(path))


def check_history_file(seen: HistoryFileProbe | None) -> Iterator[CheckResult]:
    """Report damage."""
    if seen is None:
        return
    if seen.damage:
        text = f"{seen.path} is damaged ({seen.damage})"
        advice = "stop the daemon, move it away with its -wal and -shm, and put a backup in its place, or begin anew"
        yield fail(CHECK, text, advice)


def _damage(path: Path) -> str:
    until = time.monotonic() + LOOK_SECONDS
    mode = "ro&immutable=1" if is_idle_file(path) else "ro"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True)) as connection:
            connection.set_progress_handler(lambda: time.monotonic() > until, STEPS_BETWEEN)
            told = [str(row[0]) for row in connection.execute("PRAGMA quick_check(1)")]
    except sqlite3.DatabaseError as error:
        # Interrupted by the time limit, or busy: nothing is reported.
        return str(error) if getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGE else ""
    return "" if told == ["ok"] else " ".join(" ".join(told).split())[:200]
