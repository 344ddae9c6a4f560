"""History file: tables and their rows, format version, retention, connection settings and errors.

`application_id` and `user_version` mark the file as ours. The writer renames a file of another format and begins a new one.
Windows are rows of compressed JSON, spans of JSON. A new field of either needs a default, or a new format version.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter
from pydantic_core import to_json

from agent.errors import PathError
from exporters.render.safe_text import quote_external_text
from rules.evaluator.external_alerts import ExternalAlert
from rules.evaluator.observation import ClosedMinute
from rules.plan import load_bins
from rules.plan.capacity import POOL_TOKENS
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import arrivals, windows
from rules.telemetry.arrivals import ADDED, MinuteSums
from rules.telemetry.windows import Window
from rules.verdicts.verdict import ClosedSpan, Finding, UnknownSpan

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
        is_lost = f"CREATE TABLE {str(error).removeprefix('no such table: ')} " in "".join(TABLES)
        if code == sqlite3.SQLITE_ERROR and not is_lost:
            raise
        text = quote_external_text(str(error), MOST_QUOTED)
        if code == sqlite3.SQLITE_NOTADB:
            raise HistoryOpenError(path, f"is no history ({text}); move it away, or give another path") from error
        # Python gives no code for a text that is not UTF-8. The cause is left out because it holds the row.
        name = getattr(error, "sqlite_errorname", "SQLITE_CORRUPT")
        advice = "; put a backup in its place, or move it away" if is_lost or name.startswith("SQLITE_CORRUPT") else ""
        raise HistoryError(path, f"{text} ({name}){advice}") from None


APPLICATION_ID = 0x535A5748
"""The letters SZWH in the file's header: `file history.db` names it."""

VERSION = 6

DAY = 86_400.0
BUSY_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SumTable:
    """Table of sums: a row holds `seconds` of one load bin, of one replica or (hours) of the whole tier."""

    table: str
    seconds: int
    per_replica: bool
    keep_seconds: float


MINUTES = SumTable(table="minutes", seconds=60, per_replica=True, keep_seconds=2 * DAY)
QUARTERS = SumTable(table="quarters", seconds=900, per_replica=True, keep_seconds=8 * DAY)
HOURS = SumTable(table="hours", seconds=3600, per_replica=False, keep_seconds=91 * DAY)

SUMS = (MINUTES, QUARTERS, HOURS)
"""Tables of sums. Budgets and short checks read minutes, the capacity after overload quarters."""

KEEP_SECONDS = 91 * DAY
"""Retention of demand, ended findings, ended unknown spans and events in seconds."""

DEMAND_COLUMNS = ("first", "last", *ADDED)
"""Columns of `demand`: the fields of `MinuteSums`. A field that comes or goes is a new format."""

# `start` first: the newest rows go to the end of the tree, and the oldest go in one stretch.
_SUM_TABLE = """CREATE TABLE {table} (
    start INTEGER NOT NULL, series INTEGER NOT NULL, bin INTEGER NOT NULL, beyond TEXT NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (start, series, bin))"""

TABLES = (
    """CREATE TABLE series (
        id INTEGER PRIMARY KEY, tier TEXT NOT NULL, plan TEXT NOT NULL, replica TEXT NOT NULL, release TEXT NOT NULL,
        precision TEXT NOT NULL, last INTEGER NOT NULL, UNIQUE (tier, plan, replica, release, precision))""",
    *(_SUM_TABLE.format(table=kind.table) for kind in SUMS),
    """CREATE TABLE spans (
        kind TEXT NOT NULL, rule TEXT NOT NULL, tier TEXT NOT NULL, replica TEXT NOT NULL, started_at REAL NOT NULL,
        ended_at REAL, body TEXT NOT NULL, PRIMARY KEY (kind, rule, tier, replica, started_at))""",
    """CREATE TABLE events (
        id INTEGER PRIMARY KEY, t REAL NOT NULL, kind TEXT NOT NULL, tier TEXT, replica TEXT, text TEXT NOT NULL)""",
    "CREATE TABLE kept (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    # A row is a minute of a tier, whatever the plan: numbers, so that it is added to without being read.
    f"""CREATE TABLE demand (
        start INTEGER NOT NULL, series INTEGER NOT NULL, {" REAL NOT NULL, ".join(DEMAND_COLUMNS)} REAL NOT NULL,
        PRIMARY KEY (start, series))""",
)
"""Statements that create the tables. `series.last` is the hour of its newest row."""


def open_writer(path: Path, busy_timeout_seconds: float) -> sqlite3.Connection:
    """Open a connection that writes. Create the file (mode 0600) if there is none. Raise HistoryOpenError, HistoryError.

    A file of another format gets the time (UTC) at the end of its name; an event of the new one says so.
    """
    _create_file(path)
    with connect(path, "rw", busy_timeout_seconds) as connection:
        version = read_format(connection, path)
        if version not in (0, VERSION):
            # The log goes into the file. SQLite refuses that while another process has it open.
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.close()
            kept = path.with_name(f"{path.name}.{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
            try:
                path.rename(kept)
            except OSError as error:
                raise HistoryOpenError(path, f"is of format {version}, cannot be renamed ({error.strerror})") from error
            connection = open_writer(path, busy_timeout_seconds)
            text = f"the history was of format {version}: it is named {kept.name} now, and a new one began"
            connection.execute("INSERT INTO events (t, kind, text) VALUES (?, 'start', ?)", (time.time(), text))
            return connection
        if version == 0:
            # Before the first page is written, and that before WAL: afterwards neither can be changed.
            connection.execute("PRAGMA auto_vacuum = FULL")
            connection.execute("BEGIN IMMEDIATE")
            for statement in TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute("COMMIT")
        if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise HistoryOpenError(path, "lies on a file system without shared memory; use a local disk")
        connection.execute("PRAGMA synchronous = FULL")
        # Bytes of the write-ahead log after a checkpoint. A slow reader makes it grow.
        connection.execute("PRAGMA journal_size_limit = 16777216")
        return connection


def _create_file(path: Path) -> None:
    """Create an empty file that only its owner may read. Leave an existing file closed.

    Closing it again would drop the locks that SQLite holds on it elsewhere in this process
    (sqlite.org/howtocorrupt.html, 2.2).
    """
    try:
        if path.is_symlink():
            # Another user of this folder could choose the file that we change.
            raise HistoryOpenError(path, "is a link; put the file itself there, or give its folder as data_dir")
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        text = f"cannot be made ({error.strerror})"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise HistoryError(path, text) from error
        raise HistoryOpenError(path, f"{text}; make its directory writable for this user, or give another") from error


@contextmanager
def connect(path: Path, mode: str, busy_timeout_seconds: float = BUSY_TIMEOUT_SECONDS) -> Iterator[sqlite3.Connection]:
    """Open a connection that outlives the block. Close it on an error in the block."""
    with translate_sqlite_errors(path):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=busy_timeout_seconds,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            yield connection
        except BaseException:
            connection.close()
            raise


def read_format(connection: sqlite3.Connection, path: Path) -> int:
    """Return the format of our file, 0 of an empty one. Raise HistoryOpenError for any other file."""
    application, version, tables = connection.execute(
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)"
        " FROM pragma_application_id, pragma_user_version"
    ).fetchone()
    if application != APPLICATION_ID and (application or version or tables):
        raise HistoryOpenError(path, "is a SQLite file of another program; give another path")
    return int(version)


T = TypeVar("T")


class SeriesKey(NamedTuple):
    """Series of rows. Only hours have a release and a precision; their replica is a pool."""

    tier: str
    plan_version: str
    replica: str = ""
    release: str = ""
    precision: str = ""


def sum_key(table: SumTable, record: ClosedMinute) -> tuple[int, SeriesKey, int]:
    """Return start (unix seconds), series and bin of a minute's row. The middle of its window decides on it."""
    start = int(windows.minute_of(record.slice.window) // table.seconds * table.seconds)
    if table.per_replica:
        series = SeriesKey(record.tier, record.plan_version, record.slice.replica or "")
    else:
        pool = record.pool if record.pool in POOL_TOKENS else ""
        series = SeriesKey(record.tier, record.plan_version, pool, record.release, record.precision)
    load_bin = record.slice.bin
    if load_bin is None:
        # Unknown, or beyond the benchmark.
        load_bin = -2 if record.slice.beyond else -1
    return start, series, load_bin


def group_demand(records: Iterable[ClosedMinute]) -> dict[tuple[str, int], list[MinuteSums]]:
    """Return the parts of each minute of a tier, by tier and start (unix seconds).

    A prefill pool has none: each of its requests goes on to the decode pool, which counts it, and its prompt, again.
    """
    parts: dict[tuple[str, int], list[MinuteSums]] = {}
    for record in records:
        if record.pool == "prefill":
            continue
        for part in arrivals.split_by_minute(record.slice.window):
            parts.setdefault((record.tier, int(part.start)), []).append(part)
    return parts


_WINDOW = TypeAdapter(Window)


def encode_window(window: Window) -> bytes:
    """Return the body of a row. An infinite edge is written as Infinity."""
    fields = _WINDOW.dump_python(window, exclude_defaults=True)
    return zlib.compress(to_json(fields, inf_nan_mode="constants"))


def decode_window(body: bytes) -> Window:
    """Return the window in the body of a row. Raise ValueError or zlib.error for a damaged body."""
    window: Window = _WINDOW.validate_json(zlib.decompress(body))
    return window


def decode_slice(replica: str, bin: int, beyond: str, body: bytes) -> BinnedWindow:
    """Return the slice of a row. Raise ValueError or zlib.error for a damaged body."""
    placed = load_bins.bin_window(decode_window(body), None, replica or None, bin if bin >= 0 else None)
    return replace(placed, beyond=beyond)


Span = ClosedSpan | ExternalAlert
"""Finding, unknown span or external alert: it has a start and, some time, an end."""

KINDS: dict[type, str] = {Finding: "episode", UnknownSpan: "unknown", ExternalAlert: "foreign"}
"""Kinds of spans in the file."""

_ADAPTERS: dict[type, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in KINDS}


def span_row(span: Span) -> tuple[str, str, str, str, float, float | None, str]:
    """Return kind, rule, tier, replica, start, end and JSON of a span. Only the last two change."""
    if isinstance(span, ExternalAlert):
        # Two alerts of one name may begin at the same instant.
        rule, tier, replica = f"{span.name}/{span.identity}", span.tier, span.replica
    else:
        rule, tier, replica = span.rule, span.subject.tier, span.subject.replica
    # A bound of a reading may be infinite, which Python's JSON writes and reads as Infinity.
    body = json.dumps(asdict(span), separators=(",", ":"))
    return KINDS[type(span)], rule, tier or "", replica or "", span.started_at, span.ended_at, body


def decode_span(kind: type[T], text: str) -> T:
    """Return the span of a JSON text. Raise ValueError for anything else."""
    span: T = _ADAPTERS[kind].validate_python(json.loads(text))
    return span
