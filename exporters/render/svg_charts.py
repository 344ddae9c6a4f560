"""Small inline SVG charts, and bars with planned marks.

The markup needs no script, style attribute or other file. Colours are classes of the page. Callers decide the content
(`exporters.status.page_trend`). A gap stays open and hatched, never bridged or zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import TypeVar

Mark = TypeVar("Mark")

WIDTH, HEIGHT = 320.0, 136.0
TOP, BOTTOM = 18.0, 114.0

LONGEST_STEP_SECONDS = 90.0
"""Maximum distance in seconds of neighbouring minutes. A larger distance is a gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPoint:
    """Value of the minute that ended at `t`, certainly within low and high (`high` None: open)."""

    t: float
    low: float
    value: float
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartGap:
    """Span without a value, and its reason."""

    start: float
    end: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    """Line of a quantity over time. `name` is its CSS class. A `stacked` line lies on the line before it."""

    name: str
    marks: tuple[ChartPoint, ...]
    holes: tuple[ChartGap, ...] = ()
    band: bool = True
    stacked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartMarker:
    """Marked instant with its sentence. `name` is its CSS class."""

    t: float
    text: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgChart:
    """Chart from `start` to `end` (unix seconds). `limit` is a value with a label, drawn across. `moments` are marked
    instants. `top_text` labels the upper end of the scale. `spoken` is the text alternative.
    """

    start: float
    end: float
    lines: tuple[ChartLine, ...]
    top: float
    top_text: str
    ticks: tuple[tuple[float, str], ...]
    limit: tuple[float, str] | None
    moments: tuple[ChartMarker, ...]
    spoken: str


def draw_panel(panel: SvgChart) -> str:
    """Return the chart as an `<svg>` that fills its parent's width."""
    parts = [*_holes(panel), *_axis(panel), *_lines(panel), *_limit(panel), *_moments(panel)]
    return chart_svg(parts, panel.spoken, WIDTH, HEIGHT)


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


def draw_spans(spans: Iterable[tuple[float, float, str]]) -> str:
    """Return a strip of time with a bar for each span: its begin and end, shares (0-1) of the strip, and its CSS class."""
    parts = ['<rect class="track" x="0" y="3" width="100" height="2"/>']
    for begin, end, name in spans:
        left = max(0.0, min(begin, 0.99)) * 100
        width = max(1.0, min(end, 1.0) * 100 - left)
        parts.append(f'<rect class="{name}" x="{left:.1f}" y="0" width="{width:.1f}" height="8"/>')
    return f'<svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">{"".join(parts)}</svg>'


def _x(panel: SvgChart, t: float) -> float:
    share = (t - panel.start) / (panel.end - panel.start)
    return max(0.0, min(1.0, share)) * WIDTH


def _y(panel: SvgChart, value: float | None) -> float:
    share = 1.0 if value is None else value / panel.top
    return BOTTOM - max(0.0, min(1.0, share)) * (BOTTOM - TOP)


def _holes(panel: SvgChart) -> Iterator[str]:
    for hole in panel.lines[0].holes if panel.lines else ():
        left, right = _x(panel, hole.start), _x(panel, hole.end)
        if right > left:
            yield (
                f'<rect class="hole" x="{left:.1f}" y="{TOP:g}" width="{right - left:.1f}" '
                f'height="{BOTTOM - TOP:g}"><title>{escape(hole.reason)}</title></rect>'
            )


def _axis(panel: SvgChart) -> Iterator[str]:
    yield f'<line class="base" x1="0" x2="{WIDTH:g}" y1="{BOTTOM:g}" y2="{BOTTOM:g}"/>'
    yield f'<text class="label" x="{WIDTH:g}" y="{TOP - 6:g}" text-anchor="end">{escape(panel.top_text)}</text>'
    for t, text in panel.ticks:
        x = _x(panel, t)
        anchor = "start" if x < 20 else "end" if x > WIDTH - 20 else "middle"
        yield f'<line class="base" x1="{x:.1f}" x2="{x:.1f}" y1="{BOTTOM:g}" y2="{BOTTOM + 4:g}"/>'
        yield f'<text class="label" x="{x:.1f}" y="{HEIGHT - 5:g}" text-anchor="{anchor}">{escape(text)}</text>'


def _lines(panel: SvgChart) -> Iterator[str]:
    floor: dict[float, float] = {}
    for line in panel.lines:
        for run in split_at_gaps(line.marks, LONGEST_STEP_SECONDS, lambda mark: mark.t):
            yield from _run(panel, line, run, floor if line.stacked else {})
        floor = {mark.t: floor.get(mark.t, 0.0) * line.stacked + mark.value for mark in line.marks}


def split_at_gaps(marks: Iterable[Mark], longest: float, time_of: Callable[[Mark], float]) -> list[list[Mark]]:
    """Return runs of marks in which no step is longer than `longest` seconds."""
    runs: list[list[Mark]] = []
    for mark in marks:
        if runs and time_of(mark) - time_of(runs[-1][-1]) <= longest:
            runs[-1].append(mark)
        else:
            runs.append([mark])
    return runs


def _run(panel: SvgChart, line: ChartLine, run: list[ChartPoint], floor: dict[float, float]) -> Iterator[str]:
    base = [floor.get(mark.t, 0.0) for mark in run]
    over = [(_x(panel, mark.t), _y(panel, mark.value + below)) for mark, below in zip(run, base, strict=True)]
    if len(run) == 1:
        yield f'<circle class="{line.name} dot" cx="{over[0][0]:.1f}" cy="{over[0][1]:.1f}" r="2.2"/>'
        return
    if line.band:
        upper = [(x, _y(panel, mark.high)) for (x, _), mark in zip(over, run, strict=True)]
        lower = [(x, _y(panel, mark.low)) for (x, _), mark in zip(over, run, strict=True)]
    else:
        upper = over
        lower = [(x, _y(panel, below)) for (x, _), below in zip(over, base, strict=True)]
    yield f'<polygon class="{line.name} area" points="{join_points([*upper, *reversed(lower)])}"/>'
    yield f'<polyline class="{line.name} line" points="{join_points(over)}"/>'


def join_points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _limit(panel: SvgChart) -> Iterator[str]:
    if panel.limit is None:
        return
    value, text = panel.limit
    y = _y(panel, value)
    yield f'<line class="limit" x1="0" x2="{WIDTH:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
    below = _early(panel) >= value and y + 14 < BOTTOM
    beside = y + 12 if below else y - 4
    yield f'<text class="limit-label" x="2" y="{beside:.1f}">{escape(text)}</text>'


def _early(panel: SvgChart) -> float:
    """Return the mean height near the limit's label, so that the label can go on the other side."""
    until = panel.start + 0.4 * (panel.end - panel.start)
    values = [mark.value for mark in panel.lines[0].marks if mark.t <= until] if panel.lines else []
    return sum(values) / len(values) if values else 0.0


def _moments(panel: SvgChart) -> Iterator[str]:
    for moment in panel.moments:
        if panel.start <= moment.t <= panel.end:
            x = _x(panel, moment.t)
            yield (
                f'<g class="moment {moment.name}"><title>{escape(moment.text)}</title><line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP:g}" '
                f'y2="{BOTTOM:g}"/><path d="M{x - 4:.1f} {TOP - 3:g}h8l-4 6z"/></g>'
            )


def holes_between(marks: tuple[ChartPoint, ...], holes: tuple[ChartGap, ...], reason: str) -> tuple[ChartGap, ...]:
    """Return the given gaps, and a gap for each unexplained span between marks."""
    times = sorted((*(mark.t for mark in marks), *(hole.end for hole in holes)))
    steps = [(start, end) for start, end in pairwise(times) if end - start > LONGEST_STEP_SECONDS]
    return (*holes, *(ChartGap(start=start, end=end, reason=reason) for start, end in steps))
