"""History file: tables, format version, connection settings, and the copy that is made before a format change.

`application_id` and `user_version` mark the file as ours. A change of the format is a new VERSION and a row in STEPS.
The copy is complete or absent; the caller holds the file's write lock.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from agent.files import NO_LINK, OWNER_ONLY
from agent.history.errors import MOST_QUOTED, HistoryErrorKind, HistoryOpenError, translate_sqlite_errors, trouble
from exporters.render.text import quote_external_text

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
    """Copies the file, which is of this format; an earlier copy of that name is replaced. Raises HistoryError where there is
    no room, HistoryOpenError where the folder does not take it."""
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


APPLICATION_ID = 0x535A5748
"""The letters SZWH in the file's header: `file history.db` names it."""

VERSION = 4

DAY = 86_400.0

RETRY_SECONDS = 0.02

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

WAL_BYTES = 16 * 1024 * 1024
"""What is left of the write-ahead log after a checkpoint; a slow reader can make it grow beyond for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumTable:
    """One of the three sums: a row holds `seconds` of one load bin, of one replica or (hours) of the whole tier. Rows of
    `sealed_seconds` that are over are put into one chunk."""

    table: str
    seconds: int
    per_replica: bool
    keep_seconds: float
    sealed_seconds: int


MINUTES = SumTable(table="minutes", seconds=60, per_replica=True, keep_seconds=3 * DAY, sealed_seconds=3_600)
QUARTERS = SumTable(table="quarters", seconds=900, per_replica=True, keep_seconds=91 * DAY, sealed_seconds=86_400)
HOURS = SumTable(table="hours", seconds=3600, per_replica=False, keep_seconds=91 * DAY, sealed_seconds=86_400)

SUMS = (MINUTES, QUARTERS, HOURS)
"""DESIGN 3.5: 3 days of minutes, 13 weeks of the others."""

KEEP_SECONDS = 91 * DAY
"""How long demand, ended episodes, ended unknown spans and events are kept."""

# `start` first: the newest rows go to the end of the tree, and the oldest go in one stretch.
_SUM_TABLE = """CREATE TABLE {table} (
    start INTEGER NOT NULL, series INTEGER NOT NULL, bin INTEGER NOT NULL, beyond TEXT NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (start, series, bin))"""

TABLES = {
    "series": """CREATE TABLE series (
        id INTEGER PRIMARY KEY, tier TEXT NOT NULL, plan TEXT NOT NULL, replica TEXT NOT NULL, last INTEGER NOT NULL,
        UNIQUE (tier, plan, replica))""",
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
        waiting REAL NOT NULL, waiting_seconds REAL NOT NULL, computed_tokens REAL NOT NULL DEFAULT 0,
        computed_seconds REAL NOT NULL DEFAULT 0, PRIMARY KEY (start, series))""",
    "chunks": """CREATE TABLE chunks (
        sum TEXT NOT NULL, start INTEGER NOT NULL, series INTEGER NOT NULL, oldest INTEGER NOT NULL, newest INTEGER NOT NULL,
        rows INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (sum, start, series))""",
}
"""What each table is made with. `series.last` is the hour of its newest row; an empty replica stands for the tier, an empty
plan for all. `chunks.start` is when its hour or day begins, `oldest` and `newest` when those of its rows do."""

STEPS: Mapping[int, tuple[str, ...]] = {1: ("demand",), 2: ("chunks",), 3: ()}
"""By format: the tables that the next one added. A writer makes them in an older file, and it is of the newest format."""

WITHOUT_COMPUTED = 3
"""The last format whose demand has none of COMPUTED_COLUMNS: zero seconds of them are known there."""

COMPUTED_COLUMNS = ("computed_tokens", "computed_seconds")


def open_writer(path: Path, busy_timeout_seconds: float) -> sqlite3.Connection:
    """A connection that writes, to a file that is made (mode 0600) where there is none. Raises HistoryOpenError."""
    _make(path)
    return _open(path, "rw", busy_timeout_seconds, partial(_set_up, busy_timeout_seconds))


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


def _open(
    path: Path, mode: str, busy_timeout_seconds: float, prepare: Callable[[sqlite3.Connection, Path], None]
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
    found = _asked_version(connection, path)
    if found == 0:
        # Before the first page is written, and that before WAL: afterwards neither can be changed.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    if found != VERSION:
        with _transaction(connection, "BEGIN IMMEDIATE"):
            # Another process may have come first.
            before = _version(connection, path)
            if 0 < before < VERSION:
                copy = back_up(path, before)
                _log.warning("migrating history file=%s from=%d to=%d", path, before, VERSION)
                _log.warning("kept copy of the former history file=%s", copy)
            for table in _lacking(before):
                connection.execute(TABLES[table])
            for column in sorted(set(COMPUTED_COLUMNS) - _columns(connection, "demand")):
                connection.execute(f"ALTER TABLE demand ADD COLUMN {column} REAL NOT NULL DEFAULT 0")
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


def _lacking(version: int) -> tuple[str, ...]:
    """The tables that a file of this format (0: empty) does not have yet."""
    if version == 0:
        return tuple(TABLES)
    return tuple(table for step in range(version, VERSION) for table in STEPS[step])


def _require_set_up(connection: sqlite3.Connection, path: Path) -> None:
    if _asked_version(connection, path) == 0:
        raise HistoryOpenError(path, "is empty; `sizewatch run` fills it")


def has(connection: sqlite3.Connection, table: str) -> bool:
    """Return whether the file has the table now: one of an older format gets it when a writer opens it."""
    return table not in _lacking(format_of(connection))


def format_of(connection: sqlite3.Connection) -> int:
    """The number of the file's format now."""
    return _number(connection, "PRAGMA user_version")


def _asked_version(connection: sqlite3.Connection, path: Path) -> int:
    with _transaction(connection, "BEGIN"):
        return _version(connection, path)


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    """Several statements on one state of the file. The connection is closed by whoever catches an error."""
    connection.execute(begin)
    yield
    connection.execute("COMMIT")


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """The file's format, 0 of an empty file. Raises HistoryOpenError where it is not ours or of a newer format."""
    try:
        found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
            # Of this statement nothing can be wrong: the file says that it is of a format which SQLite does not know.
            raise HistoryOpenError(path, _damaged(quote_external_text(str(error), MOST_QUOTED))) from error
        if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
            raise
        raise HistoryOpenError(path, "is no history (not a SQLite file); move it away, or give another path") from error
    except UnicodeDecodeError as error:
        raise HistoryOpenError(path, _damaged("a table's name is no text")) from error
    application, version = (_number(connection, f"PRAGMA {name}") for name in ("application_id", "user_version"))
    if application == 0 and version == 0 and not found:
        return 0
    if application != APPLICATION_ID:
        raise HistoryOpenError(path, "is a SQLite file of another program; give another path")
    if not 1 <= version <= VERSION:
        raise HistoryOpenError(path, _of_another(path, version))
    if lost := sorted(TABLES.keys() - found - set(_lacking(version))):
        raise HistoryOpenError(path, _damaged(f"no table {', '.join(lost)}"))
    later = COMPUTED_COLUMNS if version <= WITHOUT_COMPUTED else ()
    odd = [
        table
        for table in TABLES.keys() & found
        if not _columns_of(TABLES)[table] <= _columns(connection, table).union(later)
    ]
    if odd:
        raise HistoryOpenError(path, _damaged(f"the columns of {', '.join(sorted(odd))}"))
    return version


def _damaged(what: str) -> str:
    return f"is damaged ({what}); move it away, a new history then begins"


@cache
def _declared(statements: tuple[str, ...]) -> Mapping[str, frozenset[str]]:
    with closing(sqlite3.connect(":memory:")) as empty:
        for statement in statements:
            empty.execute(statement)
        return {table: _columns(empty, table) for (table,) in empty.execute("SELECT name FROM sqlite_master")}


def _columns_of(tables: Mapping[str, str]) -> Mapping[str, frozenset[str]]:
    """The columns that each table has where it is whole."""
    return _declared(tuple(tables.values()))


def _columns(connection: sqlite3.Connection, table: str) -> frozenset[str]:
    return frozenset(str(name) for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,)))


def _of_another(path: Path, version: int) -> str:
    """In words that the file is of a format that is not known here, and what to do."""
    written = "a newer" if version > VERSION else "another"
    copy = name_of(path, VERSION)
    away = "stop the daemon, move it away with its -wal and -shm, and"
    back = f"{away} put {copy} in its place" if copy.exists() else f"{away} a new history begins"
    return (
        f"was written by {written} sizewatch (format {version}, this one knows {VERSION}); run that version, or {back}"
    )


def _number(connection: sqlite3.Connection, statement: str) -> int:
    return int(connection.execute(statement).fetchone()[0])
