"""Chunk: the windows of one series over an hour or a day, by column in one compressed body, without loss.

Rows of one shape (the same families and bucket grids) stand together. Empty buckets are omitted. A new field of
`Window` is a line in `_shape`, `_numbers` and `_windows`, and a new FORMAT.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import count, islice, repeat
from typing import NamedTuple

from agent.history.codec import Column, decode_columns, decompress_body, encode_columns
from rules.telemetry.gauges import GaugeSum
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window

FORMAT = 1

LEVEL = 9

MOST_ROWS = 1_000_000
"""Of one shape: an hour or a day has some thousand; before more are made room for, the body is not believed."""


class ChunkRow(NamedTuple):
    """A row of a sum: when it begins (unix seconds), its load bin as rows hold it, why it is beyond, and its window."""

    start: int
    bin: int
    beyond: str
    window: Window


class WindowSchema(NamedTuple):
    """What a window consists of, apart from its numbers. Of a histogram each part's grid, whether it has a sum, and the
    buckets (by place) that hold something in any row."""

    counters: tuple[str, ...]
    histograms: tuple[tuple[str, tuple[int, ...], tuple[bool, ...]], ...]
    gauges: tuple[str, ...]
    short: tuple[str, ...]
    gaps: tuple[tuple[str, str], ...]
    sampled: tuple[str, ...]


def encode_chunk(base: int, rows: Sequence[ChunkRow]) -> bytes:
    """The body of these rows; times in it are told from `base` (unix seconds), so that they are short."""
    grids: dict[tuple[float, ...], int] = {}
    groups: dict[WindowSchema, list[ChunkRow]] = {}
    for row in rows:
        groups.setdefault(_shape(row.window, grids), []).append(row)
    beyond = {text: place for place, text in enumerate(sorted({row.beyond for row in rows}))}
    shapes, bodies = [], []
    for shape, group in groups.items():
        used = _used(shape, group)
        data = encode_columns(_numbers(base, group, shape, used, beyond))
        shapes.append([len(group), len(data), shape, used])
        bodies.append(data)
    head = json.dumps([FORMAT, [list(map(str, grid)) for grid in grids], list(beyond), shapes], separators=(",", ":"))
    text = head.encode()
    return zlib.compress(b"%d\n%b%b" % (len(text), text, b"".join(bodies)), LEVEL)


def decode_chunk(base: int, body: bytes) -> tuple[ChunkRow, ...]:
    """The rows in a body, by start and bin. Raises ValueError, saying what is wrong, where it holds none."""
    try:
        data = decompress_body(body)
        length, _, rest = data.partition(b"\n")
        form, grids, beyond, shapes = json.loads(rest[: int(length)])
        if form != FORMAT:
            raise ValueError(f"format {form} of a chunk, this sizewatch knows {FORMAT}")
        edges = [_grid(tuple(grid)) for grid in grids]
        at, rows = int(length), list[ChunkRow]()
        for number, size, shape, used in shapes:
            if not 0 < number <= MOST_ROWS:
                raise ValueError(f"{number!r:.40} rows")
            rows += _windows(base, rest[at : at + size], number, WindowSchema(*shape), used, edges, beyond)
            at += size
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError, zlib.error) as error:
        raise ValueError(f"a chunk that does not unpack ({str(error)[:200]})") from error
    return tuple(sorted(rows, key=lambda row: row[:2]))


def _shape(window: Window, grids: dict[tuple[float, ...], int]) -> WindowSchema:
    return WindowSchema(
        counters=tuple(window.counters),
        histograms=tuple(
            (
                family,
                tuple(grids.setdefault(part.edges, len(grids)) for part in parts),
                tuple(part.total is not None for part in parts),
            )
            for family, parts in window.histograms.items()
        ),
        gauges=tuple(window.gauges),
        short=tuple(window.short_seconds),
        gaps=tuple((family, str(reason)) for family, reason in window.gaps.items()),
        sampled=tuple(sorted(window.sampled)),
    )


def _used(shape: WindowSchema, group: Sequence[ChunkRow]) -> list[list[int]]:
    """Of each part of each histogram the buckets in which any row has something."""
    found = []
    for family, parts, _ in shape.histograms:
        for place in range(len(parts)):
            counts = zip(*(row.window.histograms[family][place].counts for row in group), strict=True)
            found.append([bucket for bucket, column in enumerate(counts) if any(column)])
    return found


def _numbers(
    base: int, group: Sequence[ChunkRow], shape: WindowSchema, used: Sequence[Sequence[int]], beyond: dict[str, int]
) -> Iterator[Column]:
    windows = [row.window for row in group]
    yield [row.start - base for row in group]
    yield [row.bin for row in group]
    yield [beyond[row.beyond] for row in group]
    # Exact, and so is the way back: both are instants of the same days.
    yield [window.start - base for window in windows]
    yield [window.end - base for window in windows]
    yield [window.covered_seconds for window in windows]
    yield [window.expected_seconds for window in windows]
    for family in shape.counters:
        yield [window.counters[family] for window in windows]
    for family in shape.short:
        yield [window.short_seconds[family] for window in windows]
    for family in shape.gauges:
        gauges = [window.gauges[family] for window in windows]
        yield [gauge.integral for gauge in gauges]
        yield [gauge.seconds for gauge in gauges]
        yield [gauge.minimum for gauge in gauges]
        yield [gauge.maximum for gauge in gauges]
        yield [gauge.samples for gauge in gauges]
    buckets = iter(used)
    for family, _, totals in shape.histograms:
        for place, has_total in enumerate(totals):
            parts = [window.histograms[family][place] for window in windows]
            if has_total:
                yield [part.total or 0.0 for part in parts]
            for bucket in next(buckets):
                yield [part.counts[bucket] for part in parts]


def _columns_of(shape: WindowSchema, used: Sequence[Sequence[int]]) -> int:
    totals = sum(sum(has) for _, _, has in shape.histograms)
    return 7 + len(shape.counters) + len(shape.short) + 5 * len(shape.gauges) + totals + sum(map(len, used))


def _windows(
    base: int,
    data: bytes,
    rows: int,
    shape: WindowSchema,
    used: Sequence[Sequence[int]],
    edges: Sequence[tuple[float, ...]],
    beyond: Sequence[str],
) -> list[ChunkRow]:
    columns = iter(decode_columns(data, rows, _columns_of(shape, used)))
    starts, bins, places, begins, ends, covered, expected = islice(columns, 7)
    counters = _mappings(shape.counters, columns, rows)
    short = _mappings(shape.short, columns, rows)
    gauges = _gauges(shape.gauges, columns, rows)
    histograms = _histograms(shape, columns, rows, used, edges)
    gaps = {sys.intern(family): Gap(reason) for family, reason in shape.gaps}
    sampled = frozenset(map(sys.intern, shape.sampled))
    return [
        ChunkRow(
            start=base + int(starts[row]),
            bin=int(bins[row]),
            beyond=beyond[int(places[row])],
            window=Window(
                start=base + begins[row],
                end=base + ends[row],
                expected_seconds=expected[row],
                covered_seconds=covered[row],
                counters=counters[row],
                histograms=histograms[row],
                gauges=gauges[row],
                short_seconds=short[row],
                gaps=gaps,
                sampled=sampled,
            ),
        )
        for row in range(rows)
    ]


def _mappings(names: Iterable[str], columns: Iterator[Column], rows: int) -> list[dict[str, float]]:
    interned = tuple(map(sys.intern, names))
    values = list(islice(columns, len(interned)))
    if not interned:
        return [{} for _ in range(rows)]
    return [dict(zip(interned, row, strict=True)) for row in zip(*values, strict=True)]


def _gauges(names: Iterable[str], columns: Iterator[Column], rows: int) -> list[dict[str, GaugeSum]]:
    found: list[dict[str, GaugeSum]] = [{} for _ in range(rows)]
    for name in map(sys.intern, names):
        for into, numbers in zip(found, zip(*islice(columns, 5), strict=True), strict=True):
            integral, seconds, minimum, maximum, samples = numbers
            into[name] = GaugeSum(integral=integral, seconds=seconds, minimum=minimum, maximum=maximum, samples=samples)
    return found


def _histograms(
    shape: WindowSchema,
    columns: Iterator[Column],
    rows: int,
    used: Sequence[Sequence[int]],
    edges: Sequence[tuple[float, ...]],
) -> list[dict[str, tuple[Histogram, ...]]]:
    found: list[dict[str, tuple[Histogram, ...]]] = [{} for _ in range(rows)]
    part_number = count()
    for family, parts, totals in shape.histograms:
        several = [
            _part(edges[grid], has_total, used[next(part_number)], columns, rows)
            for grid, has_total in zip(parts, totals, strict=True)
        ]
        name = sys.intern(family)
        for into, group in zip(found, zip(*several, strict=True), strict=True):
            into[name] = group
    return found


def _part(
    edges: tuple[float, ...], has_total: bool, used: Sequence[int], columns: Iterator[Column], rows: int
) -> list[Histogram]:
    totals: Iterable[float | None] = next(columns) if has_total else repeat(None, rows)
    by_bucket: list[Column] = [(0.0,) * rows] * len(edges)
    for bucket in used:
        by_bucket[bucket] = next(columns)
    counts = zip(*by_bucket, strict=True)
    return [Histogram(edges=edges, counts=held, total=total) for held, total in zip(counts, totals, strict=True)]


@lru_cache(maxsize=256)
def _grid(edges: tuple[str, ...]) -> tuple[float, ...]:
    """The same tuple for the same edges, so that each is held once."""
    found = tuple(map(float, edges))
    if not found or found[-1] != math.inf:
        raise ValueError("a bucket grid without an open end")
    return found
