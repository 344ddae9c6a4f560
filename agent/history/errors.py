"""Errors of the history file, with the next step for a person.

`HistoryOpenError`: a person must choose or move a file. `HistoryError`: the agent continues and tries again. An SQLite
result code that is not in `KINDS` is a defect and is raised unchanged.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from agent.errors import PathError, SizewatchError
from exporters.render.text import quote_external_text


class HistoryErrorKind(StrEnum):
    """Why the history did not take or give something: one word, counted and exported."""

    FULL = "full"
    LOCKED = "locked"
    READ_ONLY = "read_only"
    CORRUPT = "corrupt"
    MISSING = "missing"
    IO = "io"


class HistoryOpenError(PathError):
    """The file cannot be this program's history."""


class HistoryFormatError(HistoryOpenError):
    """The file is a history of another format, older or newer."""

    def __init__(self, path: Path, version: int, known: int) -> None:
        super().__init__(
            path,
            f"is of format {version}, this sizewatch knows {known}; `sizewatch run` renames it and begins a new one",
        )
        self.version = version


class HistoryError(SizewatchError):
    """The history did not take or give something; nothing of it was half done."""

    def __init__(self, kind: HistoryErrorKind, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


KINDS = {
    sqlite3.SQLITE_FULL: HistoryErrorKind.FULL,
    sqlite3.SQLITE_IOERR_SHMSIZE: HistoryErrorKind.FULL,
    sqlite3.SQLITE_BUSY: HistoryErrorKind.LOCKED,
    sqlite3.SQLITE_LOCKED: HistoryErrorKind.LOCKED,
    sqlite3.SQLITE_PROTOCOL: HistoryErrorKind.LOCKED,
    sqlite3.SQLITE_READONLY: HistoryErrorKind.READ_ONLY,
    sqlite3.SQLITE_PERM: HistoryErrorKind.READ_ONLY,
    sqlite3.SQLITE_CORRUPT: HistoryErrorKind.CORRUPT,
    sqlite3.SQLITE_NOTADB: HistoryErrorKind.CORRUPT,
    sqlite3.SQLITE_CANTOPEN: HistoryErrorKind.MISSING,
    sqlite3.SQLITE_IOERR: HistoryErrorKind.IO,
}
"""By result code of SQLite (sqlite.org/rescode.html), the primary one where the extended is not here."""

MOST_QUOTED = 300

UNDECODED = "Could not decode to UTF-8"
"""How Python's sqlite3 begins what it says, without a code, of a text that is not UTF-8."""

WHAT_TO_DO = {
    HistoryErrorKind.FULL: "free space on its disk",
    HistoryErrorKind.LOCKED: "another process holds it; see which has it open (fuser)",
    HistoryErrorKind.READ_ONLY: "give this user write access to the file and its directory",
    HistoryErrorKind.CORRUPT: "move the file with its -wal and -shm away and restart: a new history begins",
    HistoryErrorKind.MISSING: "restart, once its directory is there and may be entered",
    HistoryErrorKind.IO: "check the disk and the kernel's log",
}


def trouble(kind: HistoryErrorKind, path: Path, what: str) -> HistoryError:
    """A trouble whose text names the file and what to do."""
    return HistoryError(kind, f"{path}: {what}: {WHAT_TO_DO[kind]}")


@contextmanager
def translate_sqlite_errors(path: Path) -> Iterator[None]:
    """Turns SQLite's own failures into HistoryError. Misuse of the library (no code, or none of ours) is a defect."""
    try:
        yield
    except sqlite3.Error as error:
        # Extended codes keep the primary one in their low byte.
        code = getattr(error, "sqlite_errorcode", -1)
        kind = KINDS.get(code, KINDS.get(code & 0xFF))
        if kind is None and str(error).startswith(UNDECODED):
            # Without its cause, which holds the row; a text that is none stands where we wrote none.
            raise trouble(HistoryErrorKind.CORRUPT, path, "holds a text that is none") from None
        if kind is None:
            raise
        # Of a damaged file it quotes what it stumbled over.
        raise trouble(
            kind, path, f"{quote_external_text(str(error), MOST_QUOTED)} ({error.sqlite_errorname})"
        ) from error
