"""Errors of the history file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.errors import PathError
from exporters.render.text import quote_external_text

MOST_QUOTED = 300


class HistoryError(PathError):
    """The history could not be read or written, and nothing of it was half done. The agent tries again."""


class HistoryOpenError(HistoryError):
    """File that cannot be this program's history. A person must choose another file or move it."""


class HistoryFormatError(HistoryOpenError):
    """History of another format, which `sizewatch run` renames."""


@contextmanager
def translate_sqlite_errors(path: Path) -> Iterator[None]:
    """Raise errors of the disk, the file or another process as HistoryError. An error of our own SQL is a defect."""
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
        raise
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
            raise
        # Python gives no code for a text that is not UTF-8. The cause is left out because it holds the row.
        name = getattr(error, "sqlite_errorname", "the file is damaged")
        raise HistoryError(path, f"{quote_external_text(str(error), MOST_QUOTED)} ({name})") from None
