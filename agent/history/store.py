"""Writing the history: the three sums, demand, episodes, events, kept values, and what is thrown away.

Owns every change of the file after it was made; each method is one transaction, committed to the disk before it
returns, or nothing. What is asked of the file is `agent.history.reader`'s, what a row holds `agent.history.write_buffer`'s.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.history import codec, schema
from agent.history.codec import NO_BIN, Span, encode_window
from agent.history.errors import HistoryErrorKind, translate_sqlite_errors, trouble
from agent.history.reader import Reader
from agent.history.schema import DAY, HOURS, KEEP_SECONDS, SUMS, SumTable
from agent.history.write_buffer import (
    DEMAND_FILL,
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

PAGES_AT_A_TIME = 8_192
"""Pages of 4 KiB that one pruning gives back at most: 32 MiB."""

FREE_SHARE = 0.1
"""Free pages up to this share of the file are left for the next rows; what is above goes back to the disk."""


class HistoryStore(Reader):
    """The one writer of a history file, in SQLite's WAL mode with every commit synced; reads as well.

    Safe to call from several threads; each call waits for the one before it. Readers in other processes (and threads
    that read much) use `open_reader` and never wait. Raises HistoryOpenError where the file cannot be ours; every method
    may raise HistoryError and has then changed nothing, so that it may be called again. `renamed` is the new name of a file of
    another format that stood in its place.
    """

    def __init__(self, path: Path | str, busy_timeout_seconds: float = BUSY_TIMEOUT_SECONDS) -> None:
        path = Path(path)
        connection, self.renamed = schema.open_writer(path, busy_timeout_seconds)
        super().__init__(path, connection)
        self._identity = _identify(path)

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

    def fill_demand(self, tier: str, minutes: Iterable[MinuteSums]) -> int:
        """Add the demand of those minutes of which nothing is booked. Return their number."""
        with self._transaction():
            filled = 0
            for one in minutes:
                key = RowKey(start=int(one.start), tier=tier, plan_version="", replica="", bin=NO_BIN)
                row = (key.start, self._series(key), *demand_values(one))
                filled += self._connection.execute(DEMAND_FILL, row).rowcount
            return filled

    def _add(self, kind: SumTable, key: RowKey, group: list[BinnedWindow]) -> None:
        series = self._series(key)
        found = self._connection.execute(
            f"SELECT beyond, body FROM {kind.table} WHERE start = ? AND series = ? AND bin = ?",
            (key.start, series, key.bin),
        ).fetchall()
        before = self._read([(key.replica, key.bin, *row) for row in found], codec.decode_slice, kind.table)
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
        # By the hour, so that the row is written once an hour and not every minute.
        hour = key.start // HOURS.seconds * HOURS.seconds
        names = (key.tier, key.plan_version, key.replica, key.release, key.precision)
        columns = "tier, plan, replica, release, precision"
        self._connection.execute(
            f"INSERT INTO series ({columns}, last) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET last = excluded.last WHERE excluded.last > last",
            (*names, hour),
        )
        (number,) = self._connection.execute(
            f"SELECT id FROM series WHERE ({columns}) = (?, ?, ?, ?, ?)", names
        ).fetchone()
        return int(number)

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

    def prune(self, now: float, *, gradually: bool = False) -> int:
        """Throws away what is older than it is kept at `now` (unix seconds); the number of rows that went.

        `gradually`: of the oldest at most `SumTable.at_once_seconds`, so that a clock that is far ahead for an hour does not
        cost all that is kept. Kept values stay, and so do open episodes and unknown spans.
        """
        limits = [(kind.table, "start", kind.keep_seconds, kind.at_once_seconds) for kind in SUMS]
        limits += [
            (table, t, KEEP_SECONDS, 2 * DAY)
            for table, t in (("demand", "start"), ("spans", "ended_at"), ("events", "t"))
        ]
        gone, last = 0, now - KEEP_SECONDS
        for table, time_column, keep_seconds, at_once_seconds in limits:
            older_than = now - keep_seconds
            if gradually:
                older_than = min(older_than, self._oldest(table, time_column) + at_once_seconds)
            gone += self._delete(f"{table} WHERE {time_column} < ?", older_than)
            last = min(last, older_than)
        # A series goes after its last row: its rows begin before the hour after `last` is over.
        self._delete("series WHERE last < ?", last - HOURS.seconds)
        self._shrink()
        return gone

    def _oldest(self, table: str, time_column: str) -> float:
        """Unix seconds; where there is no row, later than any time."""
        with self._lock, translate_sqlite_errors(self._path):
            (oldest,) = self._connection.execute(f"SELECT min({time_column}) FROM {table}").fetchone()
        return math.inf if oldest is None else float(oldest)

    def _delete(self, which: str, older_than: float) -> int:
        table = which.partition(" ")[0]
        statement = f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {which} LIMIT {ROWS_AT_A_TIME})"
        gone, last = 0, ROWS_AT_A_TIME
        while last == ROWS_AT_A_TIME:
            with self._transaction():
                last = self._connection.execute(statement, (older_than,)).rowcount
            gone += last
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

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, translate_sqlite_errors(self._path):
            if _identify(self._path) != self._identity:
                # SQLite would go on writing to a file that was deleted or replaced, and all of it would be lost unseen.
                raise trouble(HistoryErrorKind.MISSING, self._path, "was removed or replaced while it was open")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                # SQLite rolls back by itself on some failures, a full disk among them.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


def _identify(path: Path) -> tuple[int, int] | None:
    """Return device and inode of the file that stands there, None without one."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
