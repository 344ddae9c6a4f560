"""Braille curves for a terminal: logarithmic latency axis over a linear load axis, at most WIDTH columns.

Callers decide the content (`exporters.documents.plan_show`). A new kind of axis or mark belongs here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

WIDTH = 78
_LABELS = 13
MARGIN = _LABELS + 1
"""Columns left of the plot, for its numbers and its axis."""
_COLUMNS = WIDTH - MARGIN

Dot = tuple[float, float]
Cells = dict[tuple[int, int], str]

# Bits of a braille cell (Unicode 2800) by dot row and dot column.
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalChart:
    """Latency over load: a `line` through (load, seconds), marks on and off it, and a `limit` in seconds.

    `chosen` is the main mark and is drawn over the others.
    """

    title: str
    rows: int
    line: tuple[Dot, ...]
    measured: tuple[Dot, ...]
    censored: tuple[Dot, ...]
    chosen: tuple[Dot, ...]
    limit: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """Vertical position of a latency on a panel, in dots from the top, four per row."""

    top: float
    bottom: float
    rows: int

    @classmethod
    def position_of(cls, panel: TerminalChart) -> _Scale:
        values = [y for _, y in (*panel.line, *panel.measured, *panel.censored, *panel.chosen)]
        values += [panel.limit] if panel.limit else []
        return cls(top=max(values) * 1.3, bottom=min(values) / 1.3, rows=panel.rows)

    def dot(self, seconds: float) -> int:
        share = math.log(self.top / seconds) / math.log(self.top / self.bottom)
        return round(share * (self.rows * 4 - 1))

    def row(self, seconds: float) -> int:
        return self.dot(seconds) // 4


def seconds_text(seconds: float) -> str:
    """Return a latency in words: 2 s, 80 ms."""
    return f"{seconds:.4g} s" if seconds >= 1 else f"{seconds * 1000:.4g} ms"


def load_end(loads: Iterable[float]) -> float:
    """Return the right end of a load axis that keeps the highest load off the edge."""
    return max(loads) * 1.04


def draw_panel(panel: TerminalChart, end: float, mark: float | None) -> list[str]:
    """Return the panel's title and rows. `end` is the right end of the load axis, `mark` a marked load."""
    scale = _Scale.position_of(panel)
    limit_row = scale.row(panel.limit) if panel.limit else None
    cells = {(limit_row, column): "╌" for column in range(_COLUMNS)} if limit_row is not None else {}
    if mark is not None:
        column = _column(mark, end)
        cells |= {(row, column): "┼" if row == limit_row else "┊" for row in range(panel.rows)}
    cells |= _line_cells(panel.line, scale, end)
    for dots, sign in ((panel.censored, "○"), (panel.measured, "●"), (panel.chosen, "◆")):
        cells |= {(scale.row(y), _column(x, end)): sign for x, y in dots}
    labels = dict(_ticks(scale, limit_row))
    if panel.limit and limit_row is not None:
        label = f"SLO {seconds_text(panel.limit)}"
        labels[limit_row] = label if len(label) < _LABELS else label.removeprefix("SLO ")
    return [panel.title, *(_row_text(row, labels, cells) for row in range(panel.rows))]


def draw_load_axis(end: float, title: str, mark: float | None, mark_text: str) -> list[str]:
    """Return the axis under the last panel with its numbers, and below it the marked load with its text."""
    step = _round_step(end / 6)
    ticks = [step * n for n in range(int(end / step) + 1)]
    axis, numbers = ["─"] * _COLUMNS, [" "] * (_COLUMNS + 6)
    for tick in ticks:
        column, text = _column(tick, end), f"{tick:g}"
        axis[column] = "┬"
        numbers[column : column + len(text)] = text
    if mark is not None:
        axis[_column(mark, end)] = "┴" if axis[_column(mark, end)] == "─" else "┼"
    lines = [f"{'':{_LABELS}}└{''.join(axis)}", f"{'':{MARGIN}}{''.join(numbers)}"[:WIDTH]]
    if mark is not None:
        lines.append(_under(_column(mark, end), mark_text))
    return [line.rstrip() for line in (*lines, f"{'':{MARGIN}}{title}")]


def _under(column: int, text: str) -> str:
    """Return a mark with its text on the side with room."""
    left = MARGIN + column
    if left + 2 + len(text) <= WIDTH:
        return f"{'':{left}}▲ {text}"
    return f"{f'{text} ▲':>{left + 1}}"[-WIDTH:]


def _column(load: float, end: float) -> int:
    return round(load / end * (_COLUMNS - 1))


def _line_cells(line: tuple[Dot, ...], scale: _Scale, end: float) -> Cells:
    """Return straight segments between the dots, which interpolate by logarithms on this axis."""
    bits: dict[tuple[int, int], int] = {}
    dots = [(load / end * (_COLUMNS * 2 - 1), scale.dot(seconds)) for load, seconds in line]
    for (x0, y0), (x1, y1) in pairwise(dots):
        steps = max(1, math.ceil(max(abs(x1 - x0), abs(y1 - y0))))
        for n in range(steps + 1):
            x, y = round(x0 + (x1 - x0) * n / steps), round(y0 + (y1 - y0) * n / steps)
            bits[y // 4, x // 2] = bits.get((y // 4, x // 2), 0) | _BITS[y % 4][x % 2]
    return {cell: chr(0x2800 + mask) for cell, mask in bits.items()}


def _ticks(scale: _Scale, taken: int | None) -> Iterator[tuple[int, str]]:
    """Yield labels at 1, 5 and 2 of every decade that have room. The row `taken` has another label."""
    used = {taken} if taken is not None else set()
    decades = range(math.floor(math.log10(scale.bottom)), math.ceil(math.log10(scale.top)) + 1)
    for digit in (1, 5, 2):
        for value in (digit * 10.0**decade for decade in decades):
            row = scale.row(value) if scale.bottom <= value <= scale.top else None
            if row is not None and not used & {row - 1, row, row + 1}:
                used.add(row)
                yield row, seconds_text(value)


def _row_text(row: int, labels: dict[int, str], cells: Cells) -> str:
    body = "".join(cells.get((row, column), " ") for column in range(_COLUMNS))
    return f"{labels.get(row, ''):>{_LABELS - 1}} {'┤' if row in labels else '│'}{body}".rstrip()


def _round_step(about: float) -> float:
    size = 10.0 ** math.floor(math.log10(about))
    return next(size * digit for digit in (1, 2, 5, 10) if size * digit >= about)
