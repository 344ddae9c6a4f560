"""Parts of inline SVG charts, and bars with planned marks. The markup needs no script, style attribute or other file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from typing import TypeVar

Mark = TypeVar("Mark")


def chart_svg(parts: Iterable[str], spoken: str, width: float, height: float) -> str:
    """Return an `<svg>` of these parts with a text alternative."""
    context = f'viewBox="0 0 {width:g} {height:g}"'
    return f'<svg class="chart" {context} role="img" aria-label="{escape(spoken)}">{"".join(parts)}</svg>'


def draw_scale(value: tuple[float, float | None] | None, planned: tuple[float, ...], top: float) -> str:
    """Return a bar from 0 to `top`: the measured span (`high` None: open), and a tick per planned number."""
    width, parts = 120.0, ['<rect class="track" x="0" y="3" width="120" height="4" rx="2"/>']

    def x(number: float) -> float:
        return max(0.0, min(1.0, number / top)) * width if top > 0 else 0.0

    if value is not None:
        low, high = x(value[0]), width if value[1] is None else x(value[1])
        left = max(0.0, min(low, high - 3))
        parts.append(f'<rect class="span" x="{left:.1f}" y="2" width="{max(3.0, high - left):.1f}" height="6" rx="2"/>')
    parts += [f'<rect class="tick" x="{min(x(p), width - 2):.1f}" y="0" width="2" height="10"/>' for p in planned]
    return f'<svg class="scale" viewBox="0 0 {width:g} 10" preserveAspectRatio="none" aria-hidden="true">{"".join(parts)}</svg>'


def split_at_gaps(marks: Iterable[Mark], longest: float, time_of: Callable[[Mark], float]) -> list[list[Mark]]:
    """Return runs of marks in which no step is longer than `longest` seconds."""
    runs: list[list[Mark]] = []
    for mark in marks:
        if runs and time_of(mark) - time_of(runs[-1][-1]) <= longest:
            runs[-1].append(mark)
        else:
            runs.append([mark])
    return runs


def join_points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
