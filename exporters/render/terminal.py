"""Terminal text by rich: paragraphs, tables and Markdown of at most so many columns, without colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table

WIDTH = 100
"""Columns of a terminal text."""

WIDEST = 1000
"""Columns that no line reaches: each entry stays a line, which can be searched."""


def terminal_text(*parts: RenderableType, width: int = WIDTH) -> str:
    """Return the parts below each other. Text is no markup, and no line ends in spaces."""
    console = Console(width=width, file=StringIO(), color_system=None, markup=False, emoji=False, highlight=False)
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def text_grid(rows: Iterable[Sequence[str]], head: Sequence[str] = (), *, indent: int = 2, words: int = 9) -> Padding:
    """Return aligned rows. Cells wrap within their column; columns after the first `words` are right-aligned."""
    grid = Table(*head, box=None, show_header=bool(head), padding=(0, 2, 0, 0), pad_edge=False)
    for row in rows:
        while len(grid.columns) < len(row):
            grid.add_column()
        grid.add_row(*row)
    for place, column in enumerate(grid.columns):
        column.overflow = "fold"
        if place >= words:
            column.justify = "right"
    return Padding(grid, (0, 0, 0, indent))
