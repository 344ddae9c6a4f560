"""Tables for a terminal: columns as wide as what stands in them, numbers to the right.

Owns this layout alone; what stands in a cell is decided by its callers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def text_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> list[str]:
    """Lines of a table. The first `words` columns are words and stand left, all others right; nothing is cut."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if place < words else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
