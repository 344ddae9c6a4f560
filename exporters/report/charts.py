"""Inline SVG charts of the report: latency against load, arrivals over time, utilisation by hour of the week.

Colours are CSS classes of the page. Each chart has its numbers in a table or sentence as a text alternative. Gaps stay
open. The frame is drawn by `exporters.render.svg_charts`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from html import escape
from zoneinfo import ZoneInfo

from exporters.render.svg_charts import chart_svg, join_points, split_at_gaps
from exporters.report.records import CurvePart, CurvePoint, ReportNumber, TrapPart, WorkloadPart
from exporters.report.wording import DAYS
from rules.telemetry.wording import number

WIDTH, HEIGHT = 640.0, 260.0
LEFT, RIGHT, TOP, BOTTOM = 74.0, 626.0, 22.0, 220.0
HOUR, DAY = 3600.0, 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axes:
    """Mapping of values to chart coordinates. `log` applies to the vertical axis."""

    right: float
    low: float
    high: float
    log: bool = False
    left: float = 0.0

    def x(self, value: float) -> float:
        share = (value - self.left) / (self.right - self.left) if self.right > self.left else 0.0
        return LEFT + max(0.0, min(1.0, share)) * (RIGHT - LEFT)

    def y(self, value: float) -> float:
        if self.log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return BOTTOM - max(0.0, min(1.0, share)) * (BOTTOM - TOP)


def curve_chart(part: CurvePart) -> str:
    """Return TTFT P99 against the load of a replica: plan curve, production points with bounds, SLO and usable rps."""
    planned = [
        (curve_point.rps, v) for curve_point in part.planned if (v := _value(curve_point.ttft_p99_seconds)) is not None
    ]
    seen = [
        (curve_point, v) for curve_point in part.production if (v := _value(curve_point.ttft_p99_seconds)) is not None
    ]
    slo = part.ttft_slo_seconds
    usable = [part.usable_rps] if part.usable_rps else []
    values = [*(v for _, v in planned), *(v for _, v in seen), *([slo] if slo else [])]
    loads = [*(rps for rps, _ in planned), *(curve_point.rps for curve_point, _ in seen), *usable]
    if not values or not loads:
        return ""
    low, high = min(values) / 1.6, max(values) * 1.6
    axes = _Axes(right=max(loads) * 1.08, low=low, high=high, log=True)
    parts = [*_grid_log(axes), *_ticks_x(axes, "requests per second of one replica")]
    if slo:
        parts.append(_across(axes.y(slo), f"SLO {number(slo, 'seconds')}"))
    parts += _usable(axes, part)
    if planned:
        line = join_points((axes.x(rps), axes.y(v)) for rps, v in planned)
        parts.append(f'<polyline class="plan-line" points="{line}"/>')
        parts += [f'<circle class="plan-dot" cx="{axes.x(rps):.1f}" cy="{axes.y(v):.1f}" r="3"/>' for rps, v in planned]
    for point, value in seen:
        parts += _production(axes, point, value)
    spoken = f"TTFT P99 against load: {len(seen)} points of production, {len(planned)} of the benchmark"
    return chart_svg(parts, spoken, WIDTH, HEIGHT)


def _production(axes: _Axes, point: CurvePoint, value: float) -> Iterator[str]:
    x, reading = axes.x(point.rps), point.ttft_p99_seconds
    low, high = axes.y(reading.low or axes.low), TOP if reading.high is None else axes.y(reading.high)
    kind = "bad" if "broken" in point.slo else "weak" if point.slo in ("too_few_requests", "not_known") else "good"
    seen = f"{number(point.rps, 'per_second')}: TTFT P99 {number(value, 'seconds')}"
    text = f"{seen}, {point.requests or 0:,.0f} requests, SLO {point.slo}"
    yield f'<g class="seen {kind}"><title>{escape(text.replace("_", " "))}</title>'
    yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>'
    yield f'<rect x="{x - 4:.1f}" y="{axes.y(value) - 4:.1f}" width="8" height="8"/></g>'


def _usable(axes: _Axes, part: CurvePart) -> Iterator[str]:
    if part.usable_rps is None:
        return
    x = axes.x(part.usable_rps)
    left = axes.x(part.usable_low or 0.0)
    right = RIGHT if part.usable_high is None else axes.x(part.usable_high)
    if right > left:
        yield f'<rect class="usable-band" x="{left:.1f}" y="{TOP:g}" width="{right - left:.1f}" height="{BOTTOM - TOP:g}"/>'
    yield f'<line class="usable" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP:g}" y2="{BOTTOM:g}"/>'
    anchor = "end" if x > (LEFT + RIGHT) / 2 else "start"
    shift = -5 if anchor == "end" else 5
    yield (
        f'<text class="usable-label" x="{x + shift:.1f}" y="{BOTTOM - 8:g}" text-anchor="{anchor}">'
        f"usable {escape(number(part.usable_rps, 'per_second'))}</text>"
    )


def rates_chart(part: WorkloadPart, since: float, until: float, zone: str) -> str:
    """Return hourly arrivals with the plan's peak and average. Unknown hours stay open."""
    points = part.hourly
    limits = [v for v in (part.planned_peak_rps, part.peak_rps) if v]
    if len(points) < 2:
        return ""
    axes = _Axes(left=since, right=until, low=0.0, high=max([*(p.rps for p in points), *limits]) * 1.12 or 1.0)
    parts = [*_grid(axes, "per_second"), *_days(axes, since, until, zone)]
    for run in split_at_gaps(points, 1.5 * HOUR, lambda point: point.t):
        line = join_points((axes.x(p.t + HOUR / 2), axes.y(p.rps)) for p in run)
        left, right = (axes.x(p.t + HOUR / 2) for p in (run[0], run[-1]))
        area = f"{left:.1f},{BOTTOM:g} {line} {right:.1f},{BOTTOM:g}"
        parts += [f'<polygon class="rate-area" points="{area}"/>', f'<polyline class="rate-line" points="{line}"/>']
    if part.planned_peak_rps:
        parts.append(
            _across(axes.y(part.planned_peak_rps), f"planned peak {number(part.planned_peak_rps, 'per_second')}")
        )
    return chart_svg(parts, f"requests per second by hour, {len(points)} hours", WIDTH, HEIGHT)


def _days(axes: _Axes, since: float, until: float, zone: str) -> Iterator[str]:
    step = max(1, round((until - since) / DAY / 8))
    clock, t, count = ZoneInfo(zone), since, 0
    yield f'<line class="base" x1="{LEFT:g}" x2="{RIGHT:g}" y1="{BOTTOM:g}" y2="{BOTTOM:g}"/>'
    while t < until:
        local = datetime.fromtimestamp(t, clock)
        if local.hour == 0:
            if count % step == 0:
                x = axes.x(t)
                yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP:g}" y2="{BOTTOM:g}"/>'
                if x < RIGHT - 30:
                    yield f'<text class="label" x="{x + 4:.1f}" y="{BOTTOM + 16:g}">{local.strftime("%a %d")}</text>'
            count += 1
        t += HOUR


def week_chart(part: TrapPart) -> str:
    """Return seven rows of 24 cells: mean fleet utilisation by hour of the week in local time."""
    if not any(hour.utilization is not None for hour in part.week):
        return ""
    cell, row, left, top = 24.0, 20.0, 56.0, 4.0
    parts = []
    for week_hour in part.week:
        x, y = left + week_hour.hour * cell, top + week_hour.weekday * row
        when = f"{DAYS[week_hour.weekday]} {week_hour.hour}:00"
        if week_hour.utilization is None:
            text, kind = f"{when}: not seen", "none"
        else:
            text, kind = (
                f"{when}: {week_hour.utilization:.0%} used, {week_hour.idle_replicas or 0:.1f} replicas idle",
                f"u{min(4, int(week_hour.utilization * 5))}",
            )
        parts.append(
            f'<rect class="cell {kind}" x="{x:g}" y="{y:g}" width="{cell - 2:g}" height="{row - 2:g}" rx="2">'
            f"<title>{escape(text)}</title></rect>"
        )
    parts += [
        f'<text class="label" x="{left - 6:g}" y="{top + day * row + 13:g}" text-anchor="end">{name[:3]}</text>'
        for day, name in enumerate(DAYS)
    ]
    parts += [
        f'<text class="label" x="{left + hour * cell:g}" y="{top + 7 * row + 14:g}">{hour}:00</text>'
        for hour in range(0, 24, 3)
    ]
    return chart_svg(parts, "fleet utilisation by hour of the week", WIDTH, top + 7 * row + 20)


def _value(reading: ReportNumber) -> float | None:
    value = reading.low if reading.value is None else reading.value
    return value if value else None


def _grid_log(axes: _Axes) -> Iterator[str]:
    for power in range(-4, 5):
        for step in (1, 2, 5):
            value = step * 10.0**power
            if axes.low < value < axes.high:
                yield from _rule(axes.y(value), number(value, "seconds"))


def _grid(axes: _Axes, unit: str) -> Iterator[str]:
    for value in _round_steps(axes.high):
        yield from _rule(axes.y(value), number(value, unit))


def _rule(y: float, text: str) -> Iterator[str]:
    yield f'<line class="grid" x1="{LEFT:g}" x2="{RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
    yield f'<text class="label" x="{LEFT - 6:g}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'


def _round_steps(top: float) -> list[float]:
    power = 10.0 ** math.floor(math.log10(top)) if top > 0 else 1.0
    step = next(s * power / 10 for s in (1, 2, 2.5, 5, 10, 20) if top / (s * power / 10) <= 6)
    return [step * place for place in range(1, int(top / step) + 1)]


def _ticks_x(axes: _Axes, text: str) -> Iterator[str]:
    yield f'<line class="base" x1="{LEFT:g}" x2="{RIGHT:g}" y1="{BOTTOM:g}" y2="{BOTTOM:g}"/>'
    for value in (0.0, *_round_steps(axes.right)):
        yield f'<text class="label" x="{axes.x(value):.1f}" y="{BOTTOM + 16:g}" text-anchor="middle">{value:.3g}</text>'
    yield f'<text class="label" x="{RIGHT:g}" y="{BOTTOM + 33:g}" text-anchor="end">{escape(text)}</text>'


def _across(y: float, text: str) -> str:
    return (
        f'<line class="limit" x1="{LEFT:g}" x2="{RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="limit-label" x="{LEFT + 6:g}" y="{y - 5:.1f}">{escape(text)}</text>'
    )
