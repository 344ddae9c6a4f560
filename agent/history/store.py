"""Writing the history: the three sums, demand, episodes, events, kept values, and what is thrown away.

Owns every change of the file after it was made; each method is one transaction, committed to the disk before it
returns, or nothing. What is asked of the file is `agent.history.reader`'s, what a row holds `agent.history.write_buffer`'s.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from agent.history import codec, compaction, schema
from agent.history.codec import Span, decode_window, encode_window, slice_of
from agent.history.errors import HistoryErrorKind, translate_sqlite_errors, trouble
from agent.history.reader import Reader
from agent.history.schema import DAY, HOURS, KEEP_SECONDS, SUMS, SumTable
from agent.history.write_buffer import (
    DEMAND_UPSERT,
    MinuteRecord,
    RowKey,
    demand_values,
    group_by_row,
    group_by_tier_minute,
    sum_row,
)
from rules.evaluator.timeline import TimelineEvent
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import arrivals
from rules.telemetry.arrivals import MinuteSums

BUSY_TIMEOUT_SECONDS = 5.0

ROWS_AT_A_TIME = 5_000
"""Pruning lets go of the file after so many rows, so that a backlog does not hold up a booking."""

CHUNKS_AT_A_TIME = 100

PAGES_AT_A_TIME = 8_192
"""Pages of 4 KiB that one pruning gives back at most: 32 MiB."""

SEALING_SECONDS = 20.0
"""Sealing takes at most so long an hour. What an hour of 200 replicas leaves takes some seconds, the end of a day ten; what an
older sizewatch left may take a day of hours."""

PAUSE_SECONDS = 0.005
"""Between two pieces, so that a booking that waits comes first."""

FREE_SHARE = 0.1
"""Free pages up to this share of the file are left for the next rows; what is above goes back to the disk."""


class HistoryStore(Reader):
    """The one writer of a history file, in SQLite's WAL mode with every commit synced; reads as well.

    Safe to call from several threads; each call waits for the one before it. Readers in other processes (and threads
    that read much) use `open_reader` and never wait. Raises HistoryOpenError where the file cannot be ours; every method
    may raise HistoryError and has then changed nothing, so that it may be called again.
    """

    def __init__(self, path: Path | str, busy_timeout_seconds: float = BUSY_TIMEOUT_SECONDS) -> None:
        path = Path(path)
        super().__init__(path, schema.open_writer(path, busy_timeout_seconds))
        self._identity, self._size = _place(path)

    @staticmethod
    def open_reader(
        path: Path | str, busy_timeout_seconds: float = BUSY_TIMEOUT_SECONDS, *, alone: bool = False
    ) -> Reader:
        """The history of a daemon that may be running, read only; `alone` where it surely is not. Raises HistoryOpenError."""
        path = Path(path)
        return Reader(path, schema.open_reader(path, busy_timeout_seconds, alone=alone))

    def book(self, minutes: Iterable[MinuteRecord]) -> None:
        """Adds closed minutes to all three sums and to the tiers' demand: all of them or, when it raises, none.

        Nothing marks a minute as booked: what is booked twice counts twice. A window of a minute that already has a row
        (one that came late, or the rest of a minute in which the agent restarted) adds to that row.
        """
        bookings = tuple(minutes)
        if not bookings:
            return
        with self._transaction():
            for kind in SUMS:
                for key, group in group_by_row(kind, bookings).items():
                    self._add(kind, key, group)
            for tier_key, parts in group_by_tier_minute(bookings).items():
                self._add_demand(tier_key, parts)

    def _add(self, kind: SumTable, key: RowKey, group: list[BinnedWindow]) -> None:
        series = self._series(key)
        found = self._connection.execute(
            f"SELECT beyond, body FROM {kind.table} WHERE start = ? AND series = ? AND bin = ?",
            (key.start, series, key.bin),
        ).fetchall()
        before = self._read([(key.replica, key.bin, *row) for row in found], _slice_in, kind.table)
        window, beyond = sum_row((*before, *group))
        self._connection.execute(
            f"INSERT INTO {kind.table} (start, series, bin, beyond, body) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET beyond = excluded.beyond, body = excluded.body",
            (key.start, series, key.bin, beyond, encode_window(window)),
        )

    def _add_demand(self, key: RowKey, parts: list[MinuteSums]) -> None:
        one = arrivals.add(parts)
        self._connection.execute(DEMAND_UPSERT, (key.start, self._series(key), *demand_values(one)))

    def _series(self, key: RowKey) -> int:
        names = (key.tier, key.plan_version, key.replica)
        # By the hour, so that the row is written once an hour and not every minute.
        hour = key.start // HOURS.seconds * HOURS.seconds
        self._connection.execute(
            "INSERT INTO series (tier, plan, replica, last) VALUES (?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET last = excluded.last WHERE excluded.last > last",
            (*names, hour),
        )
        found = self._connection.execute(
            "SELECT id FROM series WHERE tier = ? AND plan = ? AND replica = ?", names
        ).fetchone()
        return int(found[0])

    def save_episode(self, *several: Span) -> None:
        """Episodes, unknown spans and alerts of others, open or ended, each in the place of what was saved of it before.

        They are known by rule (an alert by its name and labels), subject and start. Open ones are kept until they are
        saved as ended, whatever their age.
        """
        rows = [codec.row(span) for span in several]
        with self._transaction():
            self._connection.executemany(
                "INSERT INTO spans (kind, rule, tier, replica, started_at, ended_at, body) VALUES (?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET ended_at = excluded.ended_at, body = excluded.body",
                rows,
            )

    def add_event(self, *several: TimelineEvent) -> None:
        """Events, in the order given."""
        with self._transaction():
            self._connection.executemany(
                "INSERT INTO events (t, kind, tier, replica, text) VALUES (?, ?, ?, ?, ?)",
                [(e.t, e.kind, e.tier, e.replica, e.text) for e in several],
            )

    def keep(self, name: str, value_json: str) -> None:
        """A small JSON text under a name, in the place of what was there. Raises ValueError where it is no JSON."""
        json.loads(value_json)
        with self._transaction():
            self._connection.execute(
                "INSERT INTO kept (name, value) VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
                (name, value_json),
            )

    def seal(
        self, now: float, most_seconds: float = SEALING_SECONDS, stopping: Callable[[], bool] = lambda: False
    ) -> int:
        """Puts rows whose hour or day is over at `now` (unix seconds) into chunks; the number of them. Each chunk is a
        transaction of some ten milliseconds; what does not fit into `most_seconds`, or comes after `stopping`, waits for the
        next call."""
        sealed, until = 0, time.monotonic() + most_seconds
        for kind in SUMS:
            with self._lock, translate_sqlite_errors(self._path):
                pieces = compaction.find_due_units(self._connection, kind, now)
            for piece in pieces:
                if time.monotonic() >= until or stopping():
                    return sealed
                sealed += self._exchange(piece)
                time.sleep(PAUSE_SECONDS)
        return sealed

    def _exchange(self, piece: compaction.CompactionUnit) -> int:
        with self._transaction():
            try:
                return compaction.replace_rows_by_chunk(self._connection, piece)
            except ValueError as error:
                raise trouble(HistoryErrorKind.CORRUPT, self._path, f"{piece.sum.table} holds {error}") from error

    def prune(self, now: float, at_once: float = math.inf) -> int:
        """Throws away what is older than it is kept at `now` (unix seconds); the number of rows that went.

        Of the oldest at most `at_once` times what one chunk holds goes (an hour of minutes, a day of the others): a clock that
        is far ahead for an hour must not cost all that is kept. Kept values stay, and so do open episodes and unknown spans. A
        chunk goes when its newest row is too old, up to an hour (of minutes) or a day after its oldest.
        """
        old = {kind: min(now - kind.keep_seconds, self._oldest(kind) + at_once * kind.sealed_seconds) for kind in SUMS}
        gone = sum(self._delete(f"{kind.table} WHERE start < ?", old[kind]) for kind in SUMS)
        gone += sum(self._delete_chunks(kind, old[kind]) for kind in SUMS)
        for table, time_of in (("demand", "start"), ("spans", "ended_at"), ("events", "t")):
            limit = min(now - KEEP_SECONDS, self._least(time_of, table) + at_once * DAY)
            gone += self._delete(f"{table} WHERE {time_of} < ?", limit)
        # A series goes after its last row: its rows begin before the hour after `last` is over.
        self._delete("series WHERE last < ?", min(now - KEEP_SECONDS, *old.values()) - HOURS.seconds)
        self._shrink()
        return gone

    def _oldest(self, kind: SumTable) -> float:
        return min(self._least("start", kind.table), self._least("start", "chunks", f"WHERE sum = '{kind.table}'"))

    def _least(self, time_of: str, table: str, where: str = "") -> float:
        """Unix seconds; where there is no row, later than any time."""
        with self._lock, translate_sqlite_errors(self._path):
            (found,) = self._connection.execute(f"SELECT min({time_of}) FROM {table} {where}").fetchone()
        return math.inf if found is None else float(found)

    def _delete(self, which: str, older_than: float) -> int:
        table = which.partition(" ")[0]
        statement = f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {which} LIMIT {ROWS_AT_A_TIME})"
        gone, last = 0, ROWS_AT_A_TIME
        while last == ROWS_AT_A_TIME:
            with self._transaction():
                last = self._connection.execute(statement, (older_than,)).rowcount
            gone += last
        return gone

    def _delete_chunks(self, kind: SumTable, older_than: float) -> int:
        """A few at a time: each is many pages."""
        some = f"SELECT rowid FROM chunks WHERE sum = :sum AND start < :old AND newest < :old LIMIT {CHUNKS_AT_A_TIME}"
        values = {"sum": kind.table, "old": older_than}
        gone, last = 0, CHUNKS_AT_A_TIME
        while last == CHUNKS_AT_A_TIME:
            with self._transaction():
                held = f"SELECT coalesce(sum(rows), 0) FROM chunks WHERE rowid IN ({some})"
                gone += int(self._connection.execute(held, values).fetchone()[0])
                last = self._connection.execute(f"DELETE FROM chunks WHERE rowid IN ({some})", values).rowcount
        return gone

    def _shrink(self) -> None:
        with self._lock, translate_sqlite_errors(self._path):
            pages, free = (
                self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count")
            )
            surplus = math.floor(free - FREE_SHARE * pages)
            if surplus <= 0:
                return
            # Each step frees one page, and of a statement without columns `execute` takes only the first step.
            self._connection.executescript(f"PRAGMA incremental_vacuum({min(surplus, PAGES_AT_A_TIME)})")
            # The file itself becomes shorter at a checkpoint; this one waits for nobody.
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self._size = _place(self._path)[1]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, translate_sqlite_errors(self._path):
            self._check_place()
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
                self._size = _place(self._path)[1]
            except BaseException:
                # SQLite rolls back by itself on some failures, a full disk among them.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _check_place(self) -> None:
        """SQLite goes on writing to a file that was deleted or replaced, and with the pages that it remembers to one that was
        cut short: all of that would be lost unseen. Nobody but this connection makes the file shorter, or hardly anybody."""
        identity, size = _place(self._path)
        if identity != self._identity:
            raise trouble(HistoryErrorKind.MISSING, self._path, "was removed or replaced while it was open")
        if size < self._size and not (size and self._whole()):
            raise trouble(HistoryErrorKind.CORRUPT, self._path, "was cut short while it was open")
        self._size = size

    def _whole(self) -> bool:
        """By a connection that remembers no page. An empty file would be a whole one to it."""
        with closing(sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)) as fresh:
            told: list[tuple[str]] = fresh.execute("PRAGMA quick_check(1)").fetchall()
        return told == [("ok",)]


def _slice_in(replica: str, bin: int, beyond: str, body: bytes) -> BinnedWindow:
    return slice_of(replica, bin, beyond, decode_window(body))


def _place(path: Path) -> tuple[tuple[int, int] | None, int]:
    """Which file stands there, and how long it is."""
    try:
        found = os.stat(path)
    except OSError:
        return None, 0
    return (found.st_dev, found.st_ino), found.st_size
