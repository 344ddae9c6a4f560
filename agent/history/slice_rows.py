"""Slices from the rows of a sum and from its chunks: the statements that ask for both at once, and the way to slices.

Owns the reading of the three sums. Rows and chunks are one statement, so that what is sealed meanwhile is neither missed nor
seen twice. A file of a format without chunks is asked for its rows alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agent.history.chunks import ChunkRow, decode_chunk
from agent.history.codec import decode_window, slice_of
from agent.history.compaction import merge_rows
from agent.history.schema import HOURS, SumTable
from rules.plan.load_bins import BinnedWindow

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
    for number, replica, start, bin, beyond, body, chunk in sorted(found, key=_chunks_first):
        rows = series.setdefault((replica, number), [])
        if chunk:
            rows += (row for row in decode_chunk(start, body) if since <= row.start < until)
        else:
            rows.append(ChunkRow(start, bin, beyond, decode_window(body)))
    ordered = [(row.start, replica, row.bin, row) for (replica, _), rows in series.items() for row in merge_rows(rows)]
    ordered.sort(key=_place)
    return tuple(slice_of(replica, row.bin, row.beyond, row.window) for _, replica, _, row in ordered)


def starts_of(begin: int, body: bytes, since: float, until: float) -> list[int]:
    """When the rows of a chunk begin, those in [since, until)."""
    return [row.start for row in decode_chunk(begin, body) if since <= row.start < until]


def _chunks_first(one: Stored) -> int:
    return -one[-1]


def _place(one: tuple[Any, ...]) -> tuple[Any, ...]:
    return one[:3]
