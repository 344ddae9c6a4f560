"""Checks of the history file: format, clock, copies, damage. It only reads, and takes no lock of the daemon."""

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
from agent.history.errors import HistoryError, HistoryOpenError
from agent.history.schema import VERSION, list_copies, missing_bytes, name_of
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
    format: int = 0
    ahead_seconds: float = 0.0
    """Seconds from now to the end of the newest minute."""
    copies: tuple[tuple[str, int], ...] = ()
    """Name and size in bytes of each copy left by a migration."""


def probe_history(path: Path, now: float) -> HistoryProbe:
    """Return whether the history can be opened and read, as `sizewatch check` does beside a running daemon."""
    copies = tuple((one.name, one.lstat().st_size) for one in list_copies(path))
    try:
        path.lstat()
    except FileNotFoundError:
        return HistoryProbe(path=str(path), exists=False, copies=copies)
    except OSError as error:
        # The check of the folder reports a folder that is not accessible, or is a file.
        return HistoryProbe(path=str(path), exists=False, trouble=f"{path}: {error.strerror}", copies=copies)
    try:
        with HistoryStore.open_reader(path, alone=is_idle_file(path)) as reader:
            ahead = (reader.newest_minute_end or now) - now
            return HistoryProbe(path=str(path), exists=True, format=reader.format, ahead_seconds=ahead, copies=copies)
    except (HistoryOpenError, HistoryError) as error:
        return HistoryProbe(path=str(path), exists=True, trouble=str(error), copies=copies)


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
    else:
        yield ok("history", f"{seen.path}: {_history_words(seen)}")
    if seen.ahead_seconds > AHEAD_SECONDS:
        text = f"{seen.path}: its newest minute is {seen.ahead_seconds:.0f} s ahead of this machine's clock"
        advice = (
            "correct the clock if it is wrong now; if it was, do nothing: minutes of a time that is booked already"
            " are judged and not kept, all others are kept"
        )
        yield warn("history", text, advice)
    if seen.copies:
        size = sum(each for _, each in seen.copies) / 1024**2
        names = ", ".join(name for name, _ in seen.copies)
        yield warn(
            "history",
            f"left over from changes of the format: {names} ({size:.1f} MiB)",
            "delete them once nobody goes back to the older sizewatch; nothing else ever does",
        )


def _history_words(seen: HistoryProbe) -> str:
    if not seen.exists:
        return "begins with the first run"
    if seen.format < VERSION:
        copy = name_of(Path(seen.path), seen.format).name
        return f"can be read; of format {seen.format}; `sizewatch run` copies it to {copy} and brings it to {VERSION}"
    return "can be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFileProbe:
    """State of the file. `damage` is SQLite's first complaint."""

    path: str
    damage: str = ""
    missing_bytes: int = 0
    """Bytes that the disk lacks for the copy made by a migration."""


def probe_history_file(path: Path | None, seen: HistoryProbe | None) -> HistoryFileProbe | None:
    """Check a readable file for damage. Return None if there is no file."""
    if path is None or seen is None or not os.path.isfile(path):
        return None
    readable = not seen.trouble
    return HistoryFileProbe(
        path=str(path),
        damage=_damage(path) if readable else "",
        missing_bytes=missing_bytes(path) if readable and seen.format < VERSION else 0,
    )


def check_history_file(seen: HistoryFileProbe | None) -> Iterator[CheckResult]:
    """Report damage and missing space."""
    if seen is None:
        return
    if seen.damage:
        text = f"{seen.path} is damaged ({seen.damage})"
        advice = "stop the daemon, move it away with its -wal and -shm, and put a backup in its place, or begin anew"
        yield fail(CHECK, text, advice)
    if seen.missing_bytes:
        mebibytes = f"{seen.missing_bytes / 1024**2:.0f} MiB"
        text = f"its disk lacks {mebibytes} for the copy of {seen.path}, with which its new format begins"
        yield fail(CHECK, text, "free so much there, or nothing is remembered until there is")


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
