"""Sealing: rows of an hour or a day that is over go into one chunk, a quarter of their size.

Owns which rows belong together, when their time is over, and the exchange of rows for a chunk; whoever calls holds the
transaction, so that a reader sees either and a kill leaves either. Rows that come after their chunk (booked late) lie beside
it until the next sealing; `together` adds them up, for a reader as for the next chunk. How a chunk is written is
`agent.history.chunks`'s.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from agent.history.chunks import ChunkRow, decode_chunk, encode_chunk
from agent.history.codec import decode_window
from agent.history.schema import SumTable
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
