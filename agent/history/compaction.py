"""Compaction of past hours and days into chunks, a quarter of their size, and the statements that read both.

Rows and chunks are read in one statement, so none is missed or counted twice during compaction. Late rows stay beside
their chunk until the next compaction. The caller holds the transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from agent.history.chunks import ChunkRow, decode_chunk, encode_chunk
from agent.history.codec import decode_window, slice_of
from agent.history.schema import HOURS, SumTable
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import windows

SETTLED_SECONDS = 3_600.0
"""So long after its end a time is sealed: by then hardly anything is booked into it any more."""


class CompactionUnit(NamedTuple):
    """What becomes one chunk: the rows of one series from `start` (unix seconds) on, `sum.sealed_seconds` long."""

    sum: SumTable
    start: int
    series: int


def find_due_units(connection: sqlite3.Connection, kind: SumTable, now: float) -> list[CompactionUnit]:
    """The pieces whose time is over at `now` and of which there are rows, oldest first."""
    length = kind.sealed_seconds
    found = connection.execute(
        f"SELECT DISTINCT start / :length * :length AS begin, series FROM {kind.table} WHERE start < :until ORDER BY begin, series",
        {"length": length, "until": (now - SETTLED_SECONDS) // length * length},
    )
    return [CompactionUnit(kind, start, series) for start, series in found]


def replace_rows_by_chunk(connection: sqlite3.Connection, piece: CompactionUnit) -> int:
    """Puts a piece's rows into its chunk and away; the number of them. Raises ValueError where one does not unpack."""
    table, begin, end = piece.sum.table, piece.start, piece.start + piece.sum.sealed_seconds
    where = f"FROM {table} WHERE start >= ? AND start < ? AND series = ?"
    found = connection.execute(f"SELECT start, bin, beyond, body {where}", (begin, end, piece.series)).fetchall()
    if not found:
        return 0
    key = (table, begin, piece.series)
    before = connection.execute("SELECT body FROM chunks WHERE sum = ? AND start = ? AND series = ?", key).fetchone()
    loose = [ChunkRow(start, bin, beyond, decode_window(body)) for start, bin, beyond, body in found]
    rows = merge_rows([*(decode_chunk(begin, before[0]) if before else ()), *loose])
    connection.execute(
        "INSERT OR REPLACE INTO chunks (sum, start, series, oldest, newest, rows, body) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (*key, rows[0].start, rows[-1].start, len(rows), encode_chunk(begin, rows)),
    )
    connection.execute(f"DELETE {where}", (begin, end, piece.series))
    return len(found)


def merge_rows(rows: Iterable[ChunkRow]) -> list[ChunkRow]:
    """The rows of one series by start and bin, each once: what comes later of the same one (a chunk's come first) is added."""
    ordered = sorted(rows, key=_key)
    return [_one(tuple(group)) for _, group in groupby(ordered, key=_key)]


def _key(row: ChunkRow) -> tuple[int, int]:
    return row.start, row.bin


def _one(group: tuple[ChunkRow, ...]) -> ChunkRow:
    if len(group) == 1:
        return group[0]
    return group[0]._replace(
        window=windows.sum_windows(row.window for row in group),
        beyond=next((row.beyond for row in reversed(group) if row.beyond), ""),
    )


Stored = tuple[int, str, int, int, str, bytes, int]
"""Series, replica, when it begins, load bin, why beyond, body, and 1 for a chunk (of which the two before say nothing)."""

# CROSS JOIN: by time first, as the tables are ordered; SQLite without statistics may begin with the series.
_ROWS = (
    "SELECT series.id, replica, start, bin, beyond, body, 0 FROM {table} AS row CROSS JOIN series ON series.id = row.series"
    " WHERE start >= :since AND start < :until AND tier = :tier AND (:plan IS NULL OR plan = :plan)"
)
_CHUNKS = (
    "SELECT series.id, replica, start, 0, '', body, 1 FROM chunks CROSS JOIN series ON series.id = chunks.series"
    " WHERE sum = '{table}' AND start > :since - {length} AND start < :until AND oldest < :until AND newest >= :since"
    " AND tier = :tier AND (:plan IS NULL OR plan = :plan)"
)

PLANS_OF_ROWS = (
    f"SELECT plan, max(start), 0, NULL FROM {HOURS.table} AS row CROSS JOIN series ON series.id = row.series"
    " WHERE tier = :tier AND start >= :since AND start < :until GROUP BY plan"
)
PLANS = (
    f"{PLANS_OF_ROWS} UNION ALL SELECT plan, newest, start, CASE WHEN oldest < :since OR newest >= :until THEN body END"
    f" FROM chunks CROSS JOIN series ON series.id = chunks.series WHERE sum = '{HOURS.table}' AND tier = :tier"
    f" AND start > :since - {HOURS.sealed_seconds} AND start < :until AND oldest < :until AND newest >= :since"
)
"""Plan version, newest hour, and the chunk where only a part of it lies in the time, so that it must be looked into."""


def statement(kind: SumTable, chunks: bool) -> str:
    """Asks for what is kept of a tier (`tier`, `since`, `until`, `plan` or None for all), chunks first."""
    names = {"table": kind.table, "length": kind.sealed_seconds}
    several = [_CHUNKS.format(**names), _ROWS.format(**names)] if chunks else [_ROWS.format(**names)]
    return " UNION ALL ".join(several)


def exists_since_sql(kind: SumTable, chunks: bool) -> str:
    """Asks whether a tier (`tier`) has anything that began at `since` or later."""
    joined = "CROSS JOIN series ON series.id = {0}.series WHERE {0}.{1} >= :since AND tier = :tier"
    several = [f"SELECT 1 FROM {kind.table} {joined.format(kind.table, 'start')}"]
    if chunks:
        of_kind = f"sum = '{kind.table}' AND start > :since - {kind.sealed_seconds}"
        several.append(f"SELECT 1 FROM chunks {joined.format('chunks', 'newest')} AND {of_kind}")
    return f"SELECT EXISTS ({' UNION ALL '.join(several)})"


def slices_of(found: Iterable[Stored], since: float, until: float) -> tuple[BinnedWindow, ...]:
    """The slices of [since, until) by start, replica and bin. Raises ValueError where a body does not unpack."""
    series: dict[tuple[str, int], list[ChunkRow]] = {}
    for number, replica, start, bin, beyond, body, chunk in sorted(found, key=lambda one: -one[-1]):
        rows = series.setdefault((replica, number), [])
        if chunk:
            rows += (row for row in decode_chunk(start, body) if since <= row.start < until)
        else:
            rows.append(ChunkRow(start, bin, beyond, decode_window(body)))
    ordered = [(row.start, replica, row.bin, row) for (replica, _), rows in series.items() for row in merge_rows(rows)]
    ordered.sort(key=lambda one: one[:3])
    return tuple(slice_of(replica, row.bin, row.beyond, row.window) for _, replica, _, row in ordered)


def starts_of(begin: int, body: bytes, since: float, until: float) -> list[int]:
    """When the rows of a chunk begin, those in [since, until)."""
    return [row.start for row in decode_chunk(begin, body) if since <= row.start < until]
