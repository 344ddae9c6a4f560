"""Inline SVG pictures of the report: latency against load, arrivals over time, utilisation by hour of the week.

Colours are CSS classes of the page. The numbers of each picture stand in a table or sentence, too. Gaps stay open.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from zoneinfo import ZoneInfo

from exporters.report.records import CurvePart, WeekHour
from rules.resize.production_summary import ProductionPoint, SloStatus
from rules.resize.workload import WorkloadNow
from rules.telemetry.signals import Missing, Reading, SignalValue
from rules.telemetry.windows import DAY_SECONDS, HOUR_SECONDS
from rules.telemetry.wording import number

WIDTH, HEIGHT = 640.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 74.0, 626.0, 12.0, 210.0
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axes:
    """Chart coordinates of values from `left` to `right`, and from `low` to `high`: by logarithms if `low` is not 0."""

    left: float = 0.0
    right: float
    low: float = 0.0
    high: float

    def x(self, value: float) -> float:
        return LEFT + _share(value, self.left, self.right) * (RIGHT - LEFT)

    def y(self, value: float) -> float:
        share = _share(value, 0.0, self.high)
        if self.low:
            share = _share(math.log(max(value, self.low)), math.log(self.low), math.log(self.high))
        return BOTTOM - share * (BOTTOM - TOP)


def _share(value: float, low: float, high: float) -> float:
    return max(0.0, min(1.0, (value - low) / (high - low)))


def curve_chart(part: CurvePart) -> str:
    """Return TTFT P99 against the load of a replica: plan curve, production points with bounds, SLO and usable rps."""
    planned = [(point.completed_rps, point.ttft_p99_seconds) for point in part.planned if point.ttft_p99_seconds]
    seen = [(point, value) for point in part.production if (value := _value(point.ttft_p99))]
    values = [*(value for _, value in (*planned, *seen)), *filter(None, (part.ttft_slo_seconds,))]
    loads = [*(rps for rps, _ in planned), *(point.rps for point, _ in seen)]
    if not values or not any(loads):
        return ""
    loads += [part.usable.rps] if part.usable else []
    axes = _Axes(right=max(loads) * 1.08, low=min(values) / 1.6, high=max(values) * 1.6)
    parts = [*_grid(axes, _log_steps(axes), "seconds"), *_ticks(axes)]
    if part.usable is not None:
        high = RIGHT if part.usable.high is None else axes.x(part.usable.high)
        low, at = axes.x(part.usable.low), axes.x(part.usable.rps)
        parts.append(_box("band", low, TOP, high - low, BOTTOM - TOP))
        parts.append(_line("usable", at, TOP, at, BOTTOM))
        parts.append(_text(at - 5, BOTTOM - 8, f"usable {number(part.usable.rps, 'per_second')}", "end"))
    parts += _limit(axes, "SLO", part.ttft_slo_seconds, "seconds")
    parts.append(_path("plan", ((axes.x(rps), axes.y(value)) for rps, value in planned)))
    parts += [line for point, value in seen for line in _production(axes, point, value)]
    return _svg(parts, f"TTFT P99 against load: {len(seen)} points of production, {len(planned)} of the benchmark")


def _value(reading: SignalValue) -> float | None:
    if isinstance(reading, Missing):
        return None
    return reading.low if reading.value is None else reading.value


def _production(axes: _Axes, point: ProductionPoint, value: float) -> Iterator[str]:
    x, low, high = axes.x(point.rps), BOTTOM, TOP
    if isinstance(point.ttft_p99, Reading):
        low = axes.y(point.ttft_p99.low or axes.low)
        high = TOP if point.ttft_p99.high is None else axes.y(point.ttft_p99.high)
    yield _line("seen", x, low, x, high)
    kind = "broken" if "broken" in point.kept.value else "kept"
    if point.kept in (SloStatus.TOO_FEW, SloStatus.NOT_KNOWN):
        kind = "weak"
    text = f"{number(point.rps, 'per_second')}: TTFT P99 {number(value, 'seconds')}, SLO {point.kept.value}"
    yield _box(f"seen {kind}", x - 4, axes.y(value) - 4, 8, 8, text.replace("_", " "))


def rates_chart(part: WorkloadNow, hourly: Sequence[tuple[float, float]], since: float, until: float, zone: str) -> str:
    """Return hourly arrivals with the plan's peak. Unknown hours stay open."""
    if len(hourly) < 2:
        return ""
    limits = [rate for rate in (part.planned_peak_rps, part.peak_rps) if rate]
    axes = _Axes(left=since, right=until, high=max([*(rps for _, rps in hourly), *limits]) * 1.12 or 1.0)
    parts = [*_grid(axes, _round_steps(axes.high), "per_second"), *_days(axes, since, until, zone)]
    runs: list[list[tuple[float, float]]] = []
    for t, rps in hourly:
        if not runs or t - runs[-1][-1][0] > 1.5 * HOUR_SECONDS:
            runs.append([])
        runs[-1].append((t, rps))
    parts += [_path("rate", ((axes.x(t + HOUR_SECONDS / 2), axes.y(rps)) for t, rps in run)) for run in runs]
    parts += _limit(axes, "planned peak", part.planned_peak_rps, "per_second")
    return _svg(parts, f"requests per second by hour, {len(hourly)} hours")


def _days(axes: _Axes, since: float, until: float, zone: str) -> Iterator[str]:
    """Yield the midnights of the zone, with the day of every second or later one in a long time."""
    clock = ZoneInfo(zone)
    hours = (since + HOUR_SECONDS * step for step in range(math.ceil((until - since) / HOUR_SECONDS)))
    midnights = [t for t in hours if datetime.fromtimestamp(t, clock).hour == 0]
    for t in midnights[:: max(1, round((until - since) / DAY_SECONDS / 8))]:
        yield _line("grid", axes.x(t), TOP, axes.x(t), BOTTOM)
        yield _text(axes.x(t) + 4, BOTTOM + 16, f"{datetime.fromtimestamp(t, clock):%a %d}")


def week_chart(week: Sequence[WeekHour]) -> str:
    """Return seven rows of 24 cells: mean fleet utilisation by hour of the week in local time."""
    if not any(hour.utilization is not None for hour in week):
        return ""
    parts = [_text(50, 20 * day + 17, name, "end") for day, name in enumerate(DAYS)]
    parts += [_text(24 * hour + 56, 160, f"{hour}:00") for hour in range(0, 24, 3)]
    for hour in week:
        kind, text = "none", "not seen"
        if hour.utilization is not None:
            kind, text = f"u{min(4, int(hour.utilization * 5))}", f"{hour.utilization:.0%} used"
        when = f"{DAYS[hour.weekday]} {hour.hour}:00"
        parts.append(_box(f"cell {kind}", 24 * hour.hour + 56, 20 * hour.weekday + 4, 22, 18, f"{when}: {text}"))
    return _svg(parts, "fleet utilisation by hour of the week", 166)


def _log_steps(axes: _Axes) -> list[float]:
    values = [step * 10.0**power for power in range(-4, 5) for step in (1, 2, 5)]
    return [value for value in values if axes.low < value < axes.high]


def _round_steps(top: float) -> list[float]:
    power = 10.0 ** math.floor(math.log10(top))
    step = next(s * power / 10 for s in (1, 2, 2.5, 5, 10, 20) if top / (s * power / 10) <= 6)
    return [step * place for place in range(1, int(top / step) + 1)]


def _grid(axes: _Axes, values: Iterable[float], unit: str) -> Iterator[str]:
    yield _line("base", LEFT, BOTTOM, RIGHT, BOTTOM)
    for value in values:
        yield _line("grid", LEFT, axes.y(value), RIGHT, axes.y(value))
        yield _text(LEFT - 6, axes.y(value) + 4, number(value, unit), "end")


def _ticks(axes: _Axes) -> Iterator[str]:
    for value in (0.0, *_round_steps(axes.right)):
        yield _text(axes.x(value), BOTTOM + 16, f"{value:.3g}", "middle")
    yield _text(RIGHT, BOTTOM + 33, "requests per second of a replica", "end")


def _limit(axes: _Axes, name: str, value: float | None, unit: str) -> Iterator[str]:
    if value:
        yield _line("limit", LEFT, axes.y(value), RIGHT, axes.y(value))
        yield _text(LEFT + 6, axes.y(value) - 5, f"{name} {number(value, unit)}")


def _line(name: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{name}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _path(name: str, points: Iterable[tuple[float, float]]) -> str:
    return f'<polyline class="{name}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def _box(name: str, x: float, y: float, width: float, height: float, title: str = "") -> str:
    inside = f"<title>{escape(title)}</title>" if title else ""
    return f'<rect class="{name}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}">{inside}</rect>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(parts: Iterable[str], spoken: str, height: float = HEIGHT) -> str:
    head = f'<svg class="chart" role="img" aria-label="{escape(spoken)}" viewBox="0 0 {WIDTH:g} {height:g}">'
    return f"{head}{''.join(parts)}</svg>"
