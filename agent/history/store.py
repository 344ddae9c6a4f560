"""Writer of the history: the three sums, demand, spans, events, kept values and retention.

Each method is one transaction, committed to the disk before it returns, or nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.history import schema
from agent.history.reader import Reader
from agent.history.schema import (
    DEMAND_COLUMNS,
    HOURS,
    KEEP_SECONDS,
    SUMS,
    SeriesKey,
    Span,
    SumTable,
    translate_sqlite_errors,
)
from rules.evaluator.observation import ClosedMinute
from rules.evaluator.timeline import TimelineEvent
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import arrivals, windows
from rules.telemetry.arrivals import ADDED, MinuteSums

PRUNED_SHARE = 1 / 24
"""Share (0-1) of a table's retention that one pruning deletes at most. It runs each hour."""

DEMAND_INSERT = (
    f"INSERT INTO demand (start, series, {', '.join(DEMAND_COLUMNS)}) VALUES (?, ?{', ?' * len(DEMAND_COLUMNS)})"
)
DEMAND_ADD = (
    "ON CONFLICT DO UPDATE SET first = min(first, excluded.first), last = max(last, excluded.last), "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in ADDED)
)


class HistoryStore(Reader):
    """Only writer of a history file, in SQLite's WAL mode with every commit synced. It reads as well.

    Safe to call from several threads; each call waits for the one before it. Readers in other processes (and threads
    that read much) use `open_reader` and never wait. Raises HistoryOpenError if the file cannot be ours. Every method may
    raise HistoryError and has then changed nothing.
    """

    def __init__(self, path: Path | str, busy_timeout_seconds: float = schema.BUSY_TIMEOUT_SECONDS) -> None:
        path = Path(path)
        super().__init__(path, schema.open_writer(path, busy_timeout_seconds))
        self._opened = os.stat(path)

    def is_in_place(self) -> bool:
        """Return whether the open file is at its path, not removed. A failing file system removed nothing."""
        try:
            return os.path.samestat(self._opened, os.stat(self._path))
        except OSError as error:
            return not isinstance(error, FileNotFoundError | NotADirectoryError)

    def book(
        self,
        minutes: Iterable[ClosedMinute] = (),
        spans: Iterable[Span] = (),
        events: Iterable[TimelineEvent] = (),
    ) -> None:
        """Add closed minutes to all three sums and to the tiers' demand, spans and events: all or, if it raises, none.

        A minute that is booked twice counts twice. A window of a minute that already has a row (it came late, or it is the
        rest of a minute in which the agent restarted) adds to that row. A span takes the place of what was saved of it
        before: it is known by rule (an alert by its name and labels), subject and start.
        """
        records = tuple(minutes)
        with self._transaction():
            for table in SUMS:
                rows: dict[tuple[int, SeriesKey, int], list[BinnedWindow]] = {}
                for record in records:
                    rows.setdefault(schema.sum_key(table, record), []).append(record.slice)
                for (start, series, bin), slices in rows.items():
                    self._add_slices(table, start, self._series_id(series, start), bin, slices)
            for (tier, _), parts in schema.group_demand(records).items():
                self._insert_demand(tier, arrivals.add(parts), DEMAND_ADD)
            self._connection.executemany(
                "INSERT OR REPLACE INTO spans (kind, rule, tier, replica, started_at, ended_at, body)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                [schema.span_row(span) for span in spans],
            )
            self._connection.executemany(
                "INSERT INTO events (t, kind, tier, replica, text) VALUES (?, ?, ?, ?, ?)",
                [(event.t, event.kind, event.tier, event.replica, event.text) for event in events],
            )

    def fill_demand(self, tier: str, minutes: Iterable[MinuteSums]) -> int:
        """Add the demand of the minutes that have none. Return their number."""
        with self._transaction():
            return sum(self._insert_demand(tier, minute, "ON CONFLICT DO NOTHING") for minute in minutes)

    def _add_slices(self, table: SumTable, start: int, series: int, bin: int, slices: list[BinnedWindow]) -> None:
        row = self._connection.execute(
            f"SELECT beyond, body FROM {table.table} WHERE start = ? AND series = ? AND bin = ?", (start, series, bin)
        ).fetchone()
        beyond, parts = "", [part.window for part in slices]
        if row is not None:
            with self._decoding(table.table):
                beyond, parts = row[0], [schema.decode_window(row[1]), *parts]
        # The newest reason stays.
        for part in slices:
            beyond = part.beyond or beyond
        self._connection.execute(
            f"INSERT OR REPLACE INTO {table.table} (start, series, bin, beyond, body) VALUES (?, ?, ?, ?, ?)",
            (start, series, bin, beyond, schema.encode_window(windows.sum_windows(parts))),
        )

    def _insert_demand(self, tier: str, minute: MinuteSums, on_conflict: str) -> int:
        start = int(minute.start)
        values = (getattr(minute, name) for name in DEMAND_COLUMNS)
        row = (start, self._series_id(SeriesKey(tier, ""), start), *values)
        return self._connection.execute(f"{DEMAND_INSERT} {on_conflict}", row).rowcount

    def _series_id(self, key: SeriesKey, start: int) -> int:
        """Return the id of a series with a row at `start`. Insert the series if it is new."""
        # By the hour, so that the row is written once an hour and not every minute.
        hour = start // HOURS.seconds * HOURS.seconds
        columns = "tier, plan, replica, release, precision"
        self._connection.execute(
            f"INSERT INTO series ({columns}, last) VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET last = excluded.last WHERE excluded.last > last",
            (*key, hour),
        )
        row = self._connection.execute(f"SELECT id FROM series WHERE ({columns}) = (?, ?, ?, ?, ?)", key).fetchone()
        return int(row[0])

    def keep(self, name: str, value_json: str) -> None:
        """Keep a small JSON text under a name, in place of the former one."""
        with self._transaction():
            self._connection.execute("INSERT OR REPLACE INTO kept (name, value) VALUES (?, ?)", (name, value_json))

    def prune(self, now: float) -> None:
        """Delete rows whose retention is over at `now` (unix seconds), the oldest first, and series without rows.

        One call deletes at most PRUNED_SHARE of the retention, so that a clock far ahead for an hour does not empty
        the history. Kept values stay, and so do open findings and unknown spans.
        """
        limits = [
            *((table.table, "start", table.keep_seconds) for table in SUMS),
            ("demand", "start", KEEP_SECONDS),
            ("spans", "ended_at", KEEP_SECONDS),
            ("events", "t", KEEP_SECONDS),
        ]
        last = now - KEEP_SECONDS
        with self._transaction():
            for table, time_column, keep_seconds in limits:
                (oldest,) = self._query(f"SELECT min({time_column}) FROM {table}", ())[0]
                if oldest is not None:
                    with self._decoding(table):
                        older_than = min(now - keep_seconds, oldest + keep_seconds * PRUNED_SHARE)
                    self._connection.execute(f"DELETE FROM {table} WHERE {time_column} < ?", (older_than,))
                    last = min(last, older_than)
            # A series goes after its last row: its rows begin before the hour after `last` is over.
            self._connection.execute("DELETE FROM series WHERE last < ?", (last - HOURS.seconds,))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit what the block wrote, or nothing of it after an error."""
        with self._lock, translate_sqlite_errors(self._path), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield
