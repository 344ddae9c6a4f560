"""Small charts as inline SVG: an hour of a quantity, and one number on a scale beside its plan.

Owns the drawing only: it takes numbers and gives markup that needs no script, no style attribute and no other file;
colours are classes of the page. What is drawn and what it means is decided by its callers (`exporters.status.page_trend`).
A gap is left open and hatched, never bridged. Another kind of mark belongs here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 320.0, 136.0
TOP, BOTTOM = 18.0, 114.0

LONGEST_STEP_SECONDS = 90.0
"""Neighbouring minutes further apart than this have a gap between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPoint:
    """A quantity in the minute that ended at `t`: surely within low and high, where `high` None is open."""

    t: float
    low: float
    value: float
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartGap:
    """A span without a value, and why."""

    start: float
    end: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    """A quantity over time. `name` is its class on the page; with `stacked` it stands on the line before it."""

    name: str
    marks: tuple[ChartPoint, ...]
    holes: tuple[ChartGap, ...] = ()
    band: bool = True
    stacked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartMarker:
    """An instant to mark, in a sentence; `name` is its class on the page."""

    t: float
    text: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgChart:
    """One chart from `start` to `end` (unix seconds). `limit` is a value with its label, drawn across; `moments` are
    instants to mark; `top_text` says the scale's upper end; `spoken` is the chart in a sentence, for who cannot see it.
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
    """The chart as an `<svg>` that fills its parent's width."""
    parts = [*_holes(panel), *_axis(panel), *_lines(panel), *_limit(panel), *_moments(panel)]
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{escape(panel.spoken)}">'
        f"{''.join(parts)}</svg>"
    )


def draw_scale(value: tuple[float, float | None] | None, planned: tuple[float, ...], top: float) -> str:
    """A bar from 0 to `top`: the span of what is measured (`high` None is open), and a tick for each planned number."""
    width, parts = 120.0, ['<rect class="track" x="0" y="3" width="120" height="4" rx="2"/>']

    def x(number: float) -> float:
        return max(0.0, min(1.0, number / top)) * width if top > 0 else 0.0

    if value is not None:
        low, high = x(value[0]), width if value[1] is None else x(value[1])
        left = max(0.0, min(low, high - 3))
        parts.append(f'<rect class="span" x="{left:.1f}" y="2" width="{max(3.0, high - left):.1f}" height="6" rx="2"/>')
    parts += [f'<rect class="tick" x="{min(x(p), width - 2):.1f}" y="0" width="2" height="10"/>' for p in planned]
    return f'<svg class="scale" viewBox="0 0 {width:g} 10" preserveAspectRatio="none" aria-hidden="true">{"".join(parts)}</svg>'


def _x(panel: SvgChart, t: float) -> float:
    share = (t - panel.start) / (panel.end - panel.start)
    return max(0.0, min(1.0, share)) * WIDTH


def _y(panel: SvgChart, value: float | None) -> float:
    share = 1.0 if value is None else value / panel.top
    return BOTTOM - max(0.0, min(1.0, share)) * (BOTTOM - TOP)


def _holes(panel: SvgChart) -> Iterator[str]:
    for line in panel.lines[:1]:
        for hole in line.holes:
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
        for run in _runs(line.marks):
            yield from _run(panel, line, run, floor if line.stacked else {})
        floor = {mark.t: floor.get(mark.t, 0.0) * line.stacked + mark.value for mark in line.marks}


def _runs(marks: Iterable[ChartPoint]) -> list[list[ChartPoint]]:
    """Marks without a gap between them."""
    runs: list[list[ChartPoint]] = []
    for mark in marks:
        if runs and mark.t - runs[-1][-1].t <= LONGEST_STEP_SECONDS:
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
    yield f'<polygon class="{line.name} area" points="{_points([*upper, *reversed(lower)])}"/>'
    yield f'<polyline class="{line.name} line" points="{_points(over)}"/>'


def _points(points: Iterable[tuple[float, float]]) -> str:
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
    """The mean of what is drawn where the limit's label stands, so that it can stand on the other side."""
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
    """Holes for the spans between marks that nobody explained, put to those that were."""
    told = [*marks, *(ChartPoint(t=hole.end, low=0, value=0, high=0) for hole in holes)]
    told.sort(key=lambda mark: mark.t)
    silent = [(a.t, b.t) for a, b in pairwise(told) if b.t - a.t > LONGEST_STEP_SECONDS]
    return (*holes, *(ChartGap(start=start, end=end, reason=reason) for start, end in silent))
