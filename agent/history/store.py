"""Reader and writer of the history file: the three sums, demand, spans, events, kept values and retention.

Each query is one statement: its result is of one instant. Each method that writes is one transaction, committed to the
disk before it returns, or nothing.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from agent.config.files import is_absent
from agent.history import schema
from agent.history.schema import (
    DEMAND_COLUMNS,
    HOURS,
    KEEP_SECONDS,
    MINUTES,
    QUARTERS,
    SUMS,
    SeriesKey,
    Span,
    SumTable,
    T,
    translate_sqlite_errors,
)
from exporters.render.safe_text import quote_external_text
from rules.evaluator.observation import ClosedMinute
from rules.evaluator.timeline import TimelineEvent
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import arrivals, windows
from rules.telemetry.arrivals import ADDED, MinuteDemand, MinuteSums

NOTE = "SIMULATED: made-up traffic, engines, GPUs and prices (sizewatch demo --history). None of it was ever measured."


class Reader:
    """Queries of one history file. Safe to call from several threads; each call waits for the one before it.

    Every method may raise HistoryError. Times are unix seconds; a span is [since, until).
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._lock = threading.RLock()

    @staticmethod
    def open_reader(path: Path | str, *, alone: bool = False) -> Reader:
        """Open a history, beside a writing process or without one. Raise HistoryOpenError, HistoryError.

        `alone`: no process writes, and no file is made beside the history.
        """
        path = Path(path)
        if is_absent(path):
            text = "does not exist; `sizewatch run` makes it, or give the path that it uses"
            raise schema.HistoryOpenError(path, text)
        if not os.access(path, os.R_OK):
            text = "may not be read by this user; run as the user that `sizewatch run` runs as"
            raise schema.HistoryOpenError(path, text)
        with schema.connect(path, "ro&immutable=1" if alone else "ro") as connection:
            version = schema.read_format(connection, path)
            if version == 0:
                raise schema.HistoryOpenError(path, "is empty; `sizewatch run` fills it")
            if version != schema.VERSION:
                text = f"is of format {version}, this sizewatch reads {schema.VERSION}"
                raise schema.HistoryFormatError(path, f"{text}; `sizewatch run` renames it and begins a new one")
            return Reader(path, connection)

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        with self._lock, translate_sqlite_errors(self._path):
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def minutes(self, tier: str, since: float, until: float, plan: str | None = None) -> tuple[BinnedWindow, ...]:
        """Return the minutes of each replica that begin in the span, oldest first.

        Bins are of the curve at the time of booking. A minute at two loads (of a restarted agent) is two slices.
        """
        return self._slices(MINUTES, tier, since, until, plan)

    def replica_bins(self, tier: str, since: float, until: float, plan: str | None = None) -> tuple[BinnedWindow, ...]:
        """Return the quarters of an hour of each replica and load bin, oldest first."""
        return self._slices(QUARTERS, tier, since, until, plan)

    def bins(self, tier: str, since: float, until: float, plan: str | None = None) -> tuple[BinnedWindow, ...]:
        """Return the hours of each load bin of the whole tier that begin in the span, oldest first.

        Without `plan` all versions: compare bins only within one (`plan_versions`), for each has its own curve.
        """
        return self._slices(HOURS, tier, since, until, plan)

    def bins_by_release(
        self, tier: str, since: float, until: float, plan: str
    ) -> Mapping[tuple[str, str], tuple[BinnedWindow, ...]]:
        """Return the same hours by release ("vllm 0.33.0") and precision ("fp8 weights")."""
        grouped: dict[tuple[str, str], list[BinnedWindow]] = {}
        for release, precision, row in self._rows(HOURS, tier, since, until, plan):
            grouped.setdefault((release, precision), []).append(row)
        return {key: tuple(rows) for key, rows in grouped.items()}

    def _slices(
        self, sums: SumTable, tier: str, since: float, until: float, plan: str | None
    ) -> tuple[BinnedWindow, ...]:
        return tuple(row for _, _, row in self._rows(sums, tier, since, until, plan))

    def _rows(
        self, sums: SumTable, tier: str, since: float, until: float, plan: str | None
    ) -> list[tuple[str, str, BinnedWindow]]:
        # CROSS JOIN: by time first, as the tables are ordered; SQLite without statistics may begin with the series.
        statement = (
            f"SELECT release, precision, replica, bin, beyond, body FROM {sums.table} AS row"
            " CROSS JOIN series ON series.id = row.series"
            " WHERE start >= :since AND start < :until AND tier = :tier AND (:plan IS NULL OR plan = :plan)"
            " ORDER BY start, replica, bin, series.id"
        )
        rows = self._query(statement, {"tier": tier, "since": since, "until": until, "plan": plan})
        with self._decoding(sums.table):
            return [(release, precision, schema.decode_slice(*row)) for release, precision, *row in rows]

    def plan_versions(self, tier: str, since: float, until: float) -> tuple[str, ...]:
        """Return the plan versions of the hours of the span, that of the newest last."""
        statement = (
            f"SELECT plan FROM {HOURS.table} AS row CROSS JOIN series ON series.id = row.series"
            " WHERE start >= ? AND start < ? AND tier = ? GROUP BY plan ORDER BY max(start), plan"
        )
        return tuple(plan for (plan,) in self._query(statement, (since, until, tier)))

    @property
    def newest_minute_end(self) -> float | None:
        """Return the end of the newest minute, None if there is none."""
        (start,) = self._query("SELECT max(start) FROM minutes", ())[0]
        return None if start is None else float(start + MINUTES.seconds)

    def demand(self, tier: str, since: float, until: float) -> tuple[MinuteDemand, ...]:
        """Return the arrivals of each booked minute that begins in the span, oldest first.

        The newest minutes still grow: a minute is whole two scrape intervals after its end.
        """
        sums = self._minute_sums(tier, since - arrivals.REQUEST_MINUTES * MINUTES.seconds, until)
        with self._decoding("demand"):
            return tuple(minute for minute in arrivals.list_demand(sums) if minute.start >= since)

    def requests(self, tier: str, since: float, until: float) -> tuple[MinuteDemand, ...]:
        """Return the same without tokens and waiting requests."""
        sums = self._minute_sums(tier, since, until)
        with self._decoding("demand"):
            return tuple(map(arrivals.demand_from_requests, sums))

    def _minute_sums(self, tier: str, since: float, until: float) -> list[MinuteSums]:
        columns = ", ".join(f"demand.{name}" for name in DEMAND_COLUMNS)
        statement = (
            f"SELECT start, {columns} FROM demand CROSS JOIN series ON series.id = demand.series"
            " WHERE start >= ? AND start < ? AND tier = ? ORDER BY start"
        )
        return [
            MinuteSums(start=float(start), **dict(zip(DEMAND_COLUMNS, values, strict=True)))
            for start, *values in self._query(statement, (since, until, tier))
        ]

    def list_booked_seconds(self, tier: str, since: float) -> dict[float, float]:
        """Return the booked seconds of a tier by minute after `since` (unix seconds)."""
        statement = (
            "SELECT start, max(demand.last) - min(demand.first) FROM demand"
            " CROSS JOIN series ON series.id = demand.series WHERE start > ? AND tier = ? GROUP BY start"
        )
        return dict(self._query(statement, (since, tier)))

    def spans(self, kind: type[T], since: float, tier: str | None = None) -> tuple[T, ...]:
        """Return the findings, unknown spans or external alerts (`kind`) that lasted into [since, ...), oldest first."""
        rows = self._query(
            "SELECT body FROM spans WHERE kind = :kind AND (ended_at IS NULL OR ended_at >= :since)"
            " AND (:tier IS NULL OR tier = :tier) ORDER BY started_at, tier, replica, rule",
            {"kind": schema.KINDS[kind], "since": since, "tier": tier},
        )
        with self._decoding("spans"):
            return tuple(schema.decode_span(kind, body) for (body,) in rows)

    def events(self, since: float) -> tuple[TimelineEvent, ...]:
        """Return the events of [since, ...), oldest first. A time that no calendar has would end a page."""
        rows = self._query("SELECT t, kind, tier, replica, text FROM events WHERE t >= ? ORDER BY t, id", (since,))
        with self._decoding("events"):
            for t, *_ in rows:
                datetime.fromtimestamp(t, UTC)
            return tuple(
                TimelineEvent(t=t, kind=kind, tier=tier, replica=name, text=text) for t, kind, tier, name, text in rows
            )

    def read_value(self, name: str, kind: Callable[[Any], T]) -> T | None:
        """Return the value of this kind that is kept under a name, None if there is none."""
        rows = self._query("SELECT value FROM kept WHERE name = ?", (name,))
        with self._decoding("kept"):
            return kind(json.loads(rows[0][0])) if rows else None

    def simulated_notice(self) -> str:
        """Return the notice of a simulated history (`sizewatch demo --history`), "" of a real one."""
        return "" if self.read_value("simulated", bool) is None else NOTE

    def _query(self, statement: str, values: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with self._lock, translate_sqlite_errors(self._path):
            return self._connection.execute(statement, values).fetchall()

    @contextmanager
    def _decoding(self, table: str) -> Iterator[None]:
        """Raise HistoryError for damaged rows. SQLite returns what a damaged file holds, of whatever type."""
        try:
            yield
        except (ValueError, TypeError, OverflowError, zlib.error) as error:
            text = quote_external_text(str(error), schema.MOST_QUOTED)
            raise schema.HistoryError(self._path, f"is damaged: {table} holds {text}") from error


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

    Readers in other processes (and threads that read much) use `open_reader` and never wait. Raises HistoryOpenError if
    the file cannot be ours. A method that raises HistoryError has changed nothing.
    Threads may share a store: each call waits for the last.
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

        A minute that is booked twice counts twice. A late window, or the rest of a minute after a restart, adds to its row.
        A span replaces what was saved of it before: it is known by rule (an alert by its name and labels), subject and
        start.
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
                list(map(schema.span_row, spans)),
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

        One call deletes at most PRUNED_SHARE of the retention: a clock far ahead for an hour does not empty the
        history. Kept values stay, and so do open findings and unknown spans.
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
