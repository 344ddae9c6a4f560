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
    """Raise errors of the disk, the file or another process as HistoryError, HistoryOpenError if it is no database.

    An error of our own SQL is a defect. A forecast may still read a history that a reload has closed: that is none.
    """
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.IntegrityError) as error:
        if "closed database" in str(error):
            raise HistoryError(path, "is closed") from None
        raise
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_ERROR:
            raise
        text = quote_external_text(str(error), MOST_QUOTED)
        if code == sqlite3.SQLITE_NOTADB:
            raise HistoryOpenError(path, f"is no history ({text}); move it away, or give another path") from error
        # Python gives no code for a text that is not UTF-8. The cause is left out because it holds the row.
        name = getattr(error, "sqlite_errorname", "the file is damaged")
        raise HistoryError(path, f"{text} ({name})") from None
