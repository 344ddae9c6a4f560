"""Inline SVG pictures of the report: arrivals over time, and utilisation by hour of the week.

Colours are CSS classes of the page. Unknown hours stay open.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from exporters.render.text import format_local
from exporters.report.records import WeekHour
from rules.resize.workload import WorkloadNow
from rules.telemetry.windows import DAY_SECONDS, HOUR_SECONDS
from rules.telemetry.wording import number

WIDTH, BOTTOM = 620.0, 200.0
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def rates_chart(part: WorkloadNow, hourly: Sequence[tuple[float, float]], since: float, until: float, zone: str) -> str:
    """Return hourly arrivals with the plan's peak. Unknown hours stay open."""
    if len(hourly) < 2:
        return ""
    planned = part.planned_peak_rps or 0.0
    highest = max(rps for _, rps in hourly)
    top = max(planned, highest) * 1.12 or 1.0
    scale = WIDTH / (until - since)
    parts = [_line("grid", 0, BOTTOM, WIDTH, BOTTOM)]
    hours = [since + HOUR_SECONDS * step for step in range(round((until - since) / HOUR_SECONDS))]
    midnights = [t for t in hours if format_local(t, zone, "%H") == "00"]
    # Only some of them in a long time.
    for t in midnights[:: max(1, round((until - since) / DAY_SECONDS / 8))]:
        x = (t - since) * scale
        parts.append(_line("grid", x, 0, x, BOTTOM))
        if x < WIDTH - 40:
            parts.append(_text(x + 4, BOTTOM + 16, format_local(t, zone, "%a %d")))
    last = 0.0
    path = ""
    for t, rps in hourly:
        step = "L" if t - last <= 1.5 * HOUR_SECONDS else "M"
        path += f"{step}{(t + HOUR_SECONDS / 2 - since) * scale:.1f},{BOTTOM * (1 - rps / top):.1f}"
        last = t
    parts.append(f'<path class="rate" d="{path}"/>')
    parts.append(_text(WIDTH - 160, 12, f"highest hour {number(highest, 'per_second')}"))
    if planned:
        y = BOTTOM * (1 - planned / top)
        parts.append(_line("limit", 0, y, WIDTH, y))
        parts.append(_text(6, y - 5, f"planned peak {number(planned, 'per_second')}"))
    return _svg(parts, f"requests per second by hour, {len(hourly)} hours", BOTTOM + 24)


def week_chart(week: Sequence[WeekHour]) -> str:
    """Return seven rows of 24 cells: mean fleet utilisation by hour of the week in local time."""
    if all(hour.utilization is None for hour in week):
        return ""
    parts = [_text(4, 20 * day + 17, name) for day, name in enumerate(DAYS)]
    parts += [_text(24 * hour + 40, 160, f"{hour}:00") for hour in range(0, 24, 3)]
    for hour in week:
        kind, text = "none", "not seen"
        if hour.utilization is not None:
            kind, text = f"u{min(4, int(hour.utilization * 5))}", f"{hour.utilization:.0%} used"
        parts.append(
            f'<rect class="{kind}" x="{24 * hour.hour + 40}" y="{20 * hour.weekday + 4}" width="22" height="18">'
            f"<title>{DAYS[hour.weekday]} {hour.hour}:00: {text}</title></rect>"
        )
    return _svg(parts, "fleet utilisation by hour of the week", 166)


def _line(name: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{name}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _svg(parts: Sequence[str], spoken: str, height: float) -> str:
    head = f'<svg class="chart" role="img" aria-label="{escape(spoken)}" viewBox="0 0 {WIDTH:g} {height:g}">'
    return f"{head}{''.join(parts)}</svg>"
