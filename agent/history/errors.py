"""Errors of the history file. A result code of SQLite that is not in `FAULTS` is a defect and is raised unchanged."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.errors import PathError
from exporters.render.text import quote_external_text

FAULTS = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_IOERR,
    }
)
"""Primary result codes that the disk, the file or another process causes (sqlite.org/rescode.html)."""

MOST_QUOTED = 300


class HistoryError(PathError):
    """The history could not be read or written, and nothing of it was half done. The agent tries again."""


class HistoryOpenError(HistoryError):
    """File that cannot be this program's history. A person must choose another file or move it."""


class HistoryFormatError(HistoryOpenError):
    """History of another format, older or newer."""

    def __init__(self, path: Path, version: int, known: int) -> None:
        text = f"is of format {version}, this sizewatch knows {known}; `sizewatch run` renames it and begins a new one"
        super().__init__(path, text)
        self.version = version


@contextmanager
def translate_sqlite_errors(path: Path) -> Iterator[None]:
    """Raise SQLite's faults as HistoryError. An error of our own SQL is a defect and stays as it is."""
    try:
        yield
    except sqlite3.Error as error:
        text, code = quote_external_text(str(error), MOST_QUOTED), getattr(error, "sqlite_errorcode", None)
        if code is None and isinstance(error, sqlite3.OperationalError):
            # Python gives no code for a text that is not UTF-8. The cause is left out because it holds the row.
            raise HistoryError(path, f"is damaged: {text}") from None
        # Extended codes have the primary code in their low byte.
        if code is None or code & 0xFF not in FAULTS:
            raise
        raise HistoryError(path, f"{text} ({error.sqlite_errorname})") from error
