"""The copy of a history that is made before its format changes.

Owns its name, the room it needs, and that it is whole or not there. Whoever calls holds the file's write lock, so that nobody
writes meanwhile. It must not change the history itself.
"""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from agent.files import NO_LINK, OWNER_ONLY
from agent.history.errors import HistoryErrorKind, HistoryOpenError, translate_sqlite_errors, trouble

_log = logging.getLogger(__name__)

ROOM = 1.1
"""So many times the file's size must be free: the copy, and the log of what changes."""


def name_of(path: Path, version: int) -> Path:
    """Return where the copy of a file of this format is put: beside it."""
    return path.with_name(f"{path.name}.format-{version}")


def list_copies(path: Path) -> tuple[Path, ...]:
    """The copies beside a history, by name: whole ones of older formats, and what a copying that was killed left."""
    named = re.compile(rf"{re.escape(path.name)}\.format-\d+(\.\d+(-journal)?)?")
    try:
        return tuple(sorted(one for one in path.parent.iterdir() if named.fullmatch(one.name)))
    except OSError:
        return ()


def missing_bytes(path: Path) -> int:
    """Return how many bytes lack for a copy of the file; 0 where there is room. Raises OSError."""
    return max(0, math.ceil(ROOM * path.stat().st_size) - shutil.disk_usage(path.parent).free)


def back_up(path: Path, version: int) -> Path:
    """Copies the file, which is of this format; an earlier copy of that name is replaced. Raises HistoryTrouble where there is
    no room, HistoryProblem where the folder does not take it."""
    into = name_of(path, version)
    unfinished = into.with_name(f"{into.name}.{os.getpid()}")
    try:
        # Nobody else copies now: the file is locked. What a killed process began may be as big as the history.
        for begun in list_copies(path):
            if begun.name.startswith(f"{into.name}."):
                begun.unlink()
        if missing_bytes(path):
            raise trouble(HistoryErrorKind.FULL, into, "has no room: a new format begins with a copy of the file")
        _log.warning("copying history before migration file=%s format=%d", path, version)
        try:
            os.close(os.open(unfinished, os.O_CREAT | os.O_TRUNC | os.O_RDWR | NO_LINK, OWNER_ONLY))
            _copy(path, unfinished)
            unfinished.replace(into)
        finally:
            unfinished.unlink(missing_ok=True)
        _sync(into.parent)
    except OSError as error:
        raise HistoryOpenError(
            into, f"cannot be made ({error.strerror}); make its directory writable for this user"
        ) from error
    return into


def _copy(path: Path, into: Path) -> None:
    source = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    with closing(source), translate_sqlite_errors(into), closing(sqlite3.connect(into)) as target:
        # One file that is whole by itself; the log's own mode would leave others beside it.
        source.backup(target)
        target.execute("PRAGMA journal_mode = DELETE").fetchall()
    _sync(into)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
