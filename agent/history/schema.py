"""History file: tables, format version, retention, connection settings.

`application_id` and `user_version` mark the file as ours. A file of another format is renamed, and a new one begins.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from agent.history.errors import (
    MOST_QUOTED,
    HistoryErrorKind,
    HistoryFormatError,
    HistoryOpenError,
    translate_sqlite_errors,
    trouble,
)
from exporters.render.text import quote_external_text

_log = logging.getLogger(__name__)

APPLICATION_ID = 0x535A5748
"""The letters SZWH in the file's header: `file history.db` names it."""

VERSION = 5

HOUR = 3_600.0
DAY = 86_400.0

RETRY_SECONDS = 0.02

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

WAL_BYTES = 16 * 1024 * 1024
"""What is left of the write-ahead log after a checkpoint; a slow reader can make it grow beyond for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumTable:
    """One of the three sums: a row holds `seconds` of one load bin, of one replica or (hours) of the whole tier.

    `at_once_seconds` is what one pruning takes of the oldest: a clock that is years ahead for an hour must not empty the table.
    """

    table: str
    seconds: int
    per_replica: bool
    keep_seconds: float
    at_once_seconds: float


MINUTES = SumTable(table="minutes", seconds=60, per_replica=True, keep_seconds=2 * DAY, at_once_seconds=2 * HOUR)
QUARTERS = SumTable(table="quarters", seconds=900, per_replica=True, keep_seconds=8 * DAY, at_once_seconds=8 * HOUR)
HOURS = SumTable(table="hours", seconds=3600, per_replica=False, keep_seconds=91 * DAY, at_once_seconds=2 * DAY)

SUMS = (MINUTES, QUARTERS, HOURS)
"""Budgets and checks below half a day read minutes, the capacity after an overload quarters, all else hours."""

KEEP_SECONDS = 91 * DAY
"""How long demand, ended episodes, ended unknown spans and events are kept."""

# `start` first: the newest rows go to the end of the tree, and the oldest go in one stretch.
_SUM_TABLE = """CREATE TABLE {table} (
    start INTEGER NOT NULL, series INTEGER NOT NULL, bin INTEGER NOT NULL, beyond TEXT NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (start, series, bin))"""

TABLES = {
    "series": """CREATE TABLE series (
        id INTEGER PRIMARY KEY, tier TEXT NOT NULL, plan TEXT NOT NULL, replica TEXT NOT NULL, release TEXT NOT NULL,
        precision TEXT NOT NULL, last INTEGER NOT NULL, UNIQUE (tier, plan, replica, release, precision))""",
    **{kind.table: _SUM_TABLE.format(table=kind.table) for kind in SUMS},
    "spans": """CREATE TABLE spans (
        kind TEXT NOT NULL, rule TEXT NOT NULL, tier TEXT NOT NULL, replica TEXT NOT NULL, started_at REAL NOT NULL,
        ended_at REAL, body TEXT NOT NULL, PRIMARY KEY (kind, rule, tier, replica, started_at))""",
    "events": """CREATE TABLE events (
        id INTEGER PRIMARY KEY, t REAL NOT NULL, kind TEXT NOT NULL, tier TEXT, replica TEXT, text TEXT NOT NULL)""",
    "kept": "CREATE TABLE kept (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    # A row is a minute of a tier, whatever the plan: numbers, so that it is added to without being read.
    "demand": """CREATE TABLE demand (
        start INTEGER NOT NULL, series INTEGER NOT NULL, first REAL NOT NULL, last REAL NOT NULL,
        expected_seconds REAL NOT NULL, covered_seconds REAL NOT NULL, requests REAL NOT NULL,
        requests_seconds REAL NOT NULL, completed REAL NOT NULL, prompt_tokens REAL NOT NULL,
        prompt_seconds REAL NOT NULL, generation_tokens REAL NOT NULL, generation_seconds REAL NOT NULL,
        waiting REAL NOT NULL, waiting_seconds REAL NOT NULL, computed_tokens REAL NOT NULL,
        computed_seconds REAL NOT NULL, PRIMARY KEY (start, series))""",
}
"""What each table is made with. `series.last` is the hour of its newest row; an empty replica stands for the tier, an empty
plan for all. Only series of hours have a release and a precision."""


def open_writer(path: Path, busy_timeout_seconds: float) -> tuple[sqlite3.Connection, Path | None]:
    """Open a connection that writes, to a file that is made (mode 0600) where there is none.

    A file of another format is renamed first; its new name is returned too. Raise HistoryOpenError, HistoryError.
    """
    _make(path)
    renamed = _rename_other_format(path, busy_timeout_seconds)
    if renamed is not None:
        _make(path)
    return _open(path, "rw", busy_timeout_seconds, partial(_set_up, busy_timeout_seconds)), renamed


def open_reader(path: Path, busy_timeout_seconds: float, *, alone: bool = False) -> sqlite3.Connection:
    """Open a connection that only reads, beside a writing process or without one. Raise HistoryOpenError.

    `alone`: nobody writes, so no file is made beside the history, where there may be no room or no permission.
    """
    if not path.exists():
        raise HistoryOpenError(path, "does not exist; `sizewatch run` makes it, or give the path that it uses")
    if path.is_dir():
        raise HistoryOpenError(path, "is a directory; give the path of a file")
    if not os.access(path, os.R_OK):
        raise HistoryOpenError(path, "may not be read by this user; run as the user that `sizewatch run` runs as")
    return _open(path, "ro&immutable=1" if alone else "ro", busy_timeout_seconds, _require_set_up)


def _make(path: Path) -> None:
    """An empty file only its owner may read. One that exists is not touched, not even opened: closing it again would
    drop the locks that SQLite holds on it elsewhere in this process (sqlite.org/howtocorrupt.html, 2.2)."""
    if path.is_symlink():
        # Who else may write in this folder would choose what is changed with our rights.
        raise HistoryOpenError(
            path, "is a link; put the file itself there, or name the folder that it is in as data_dir"
        )
    if path.is_dir():
        raise HistoryOpenError(path, "is a directory; give the path of a file")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        if error.errno in NO_ROOM:
            # It will be made when there is room: nobody has to choose another place.
            raise trouble(HistoryErrorKind.FULL, path, f"cannot be made ({error.strerror})") from error
        raise HistoryOpenError(
            path, f"cannot be made ({error.strerror}); make its directory writable for this user, or give another path"
        ) from error


def _rename_other_format(path: Path, busy_timeout_seconds: float) -> Path | None:
    """Rename a history of another format, older or newer, to `NAME.format-N`. Return its new name, None of any other file.

    Its write-ahead log is put into it first, so that it is one file and whole. Raise HistoryOpenError, HistoryError.
    """
    try:
        _open(path, "rw", busy_timeout_seconds, _check_format).close()
        return None
    except HistoryFormatError as error:
        version = error.version
    with translate_sqlite_errors(path):
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=busy_timeout_seconds)
        with closing(connection):
            # Refused while another process has it open, which would go on writing to the renamed file.
            if connection.execute("PRAGMA journal_mode = DELETE").fetchone()[0] != "delete":
                raise trouble(HistoryErrorKind.LOCKED, path, "is of another format and cannot be renamed")
            names = (path.with_name(f"{path.name}.format-{version}{end}") for end in _endings())
            renamed = next(name for name in names if not os.path.lexists(name))
            try:
                path.rename(renamed)
            except OSError as error:
                raise HistoryOpenError(
                    path,
                    f"is of format {version} and cannot be renamed ({error.strerror}); make its directory writable",
                ) from error
    _log.warning("renamed history of another format file=%s format=%d to=%s", path, version, renamed)
    return renamed


def _endings() -> Iterator[str]:
    """Endings of names that may be taken: none, .1, .2 ..."""
    yield ""
    yield from (f".{number}" for number in count(1))


def _open(
    path: Path, mode: str, busy_timeout_seconds: float, prepare: Callable[[sqlite3.Connection, Path], object]
) -> sqlite3.Connection:
    with translate_sqlite_errors(path):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=busy_timeout_seconds,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            prepare(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def _set_up(busy_timeout_seconds: float, connection: sqlite3.Connection, path: Path) -> None:
    if _check_format(connection, path) == 0:
        # Before the first page is written, and that before WAL: afterwards neither can be changed.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        with _transaction(connection, "BEGIN IMMEDIATE"):
            # Another process may have come first.
            if _read_format(connection, path) == 0:
                for statement in TABLES.values():
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
    if _to_wal(connection, time.monotonic() + busy_timeout_seconds) != "wal":
        raise HistoryOpenError(path, "lies on a file system without shared memory (a network one?); use a local disk")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")


def _to_wal(connection: sqlite3.Connection, until: float) -> str:
    """The journal mode after asking for WAL. SQLite does not wait by itself here while another opens the same new file."""
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise
            time.sleep(RETRY_SECONDS)


def _require_set_up(connection: sqlite3.Connection, path: Path) -> None:
    if _check_format(connection, path) == 0:
        raise HistoryOpenError(path, "is empty; `sizewatch run` fills it")


def _check_format(connection: sqlite3.Connection, path: Path) -> int:
    with _transaction(connection, "BEGIN"):
        return _read_format(connection, path)


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    """Several statements on one state of the file. The connection is closed by whoever catches an error."""
    connection.execute(begin)
    yield
    connection.execute("COMMIT")


def _read_format(connection: sqlite3.Connection, path: Path) -> int:
    """The file's format, 0 of an empty file. Raises HistoryOpenError where it is not ours or is damaged, HistoryFormatError where
    it is of another format."""
    try:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
            # Of this statement nothing can be wrong: the file says that it is of a format which SQLite does not know.
            raise HistoryOpenError(path, _damaged(quote_external_text(str(error), MOST_QUOTED))) from error
        if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
            raise
        raise HistoryOpenError(path, "is no history (not a SQLite file); move it away, or give another path") from error
    except UnicodeDecodeError as error:
        raise HistoryOpenError(path, _damaged("a table's name is no text")) from error
    application, version = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("application_id", "user_version")
    )
    if application == 0 and version == 0 and not tables:
        return 0
    if application != APPLICATION_ID:
        raise HistoryOpenError(path, "is a SQLite file of another program; give another path")
    if version != VERSION:
        raise HistoryFormatError(path, version, VERSION)
    if missing := sorted(TABLES.keys() - tables):
        raise HistoryOpenError(path, _damaged(f"no table {', '.join(missing)}"))
    return version


def _damaged(what: str) -> str:
    return f"is damaged ({what}); move it away, a new history then begins"
