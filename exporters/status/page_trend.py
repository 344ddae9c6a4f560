"""Last hour of a tier as four small charts: requests per second, TTFT P99, requests in the system, KV cache.

Each row of CHARTS has signals, a scale and the plan's number to draw. Drawing is in `exporters.render.svg_charts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from exporters.render.svg_charts import ChartGap, ChartLine, ChartMarker, ChartPoint, SvgChart, holes_between
from exporters.render.text import format_local
from exporters.status.active_findings import list_active_findings
from exporters.status.records import TierStatus, TrendPoint
from rules.catalogue.registry import BY_NAME
from rules.plan.curve import operating_point
from rules.telemetry.signals import BY_NAME as SIGNALS
from rules.telemetry.signals import Missing, Reading, SignalKind
from rules.telemetry.wording import number, quantity

HOUR = 3600.0
MINUTE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Panel with its title, the newest value in words, and a key for several lines."""

    title: str
    newest: str
    panel: SvgChart
    key: tuple[tuple[str, str], ...] = ()


def charts(tier: TierStatus, now: float) -> tuple[Chart, ...]:
    """Return the charts of a tier for the hour that ends at `now` (unix seconds)."""
    return tuple(chart(tier, now) for chart in CHARTS)


def _throughput(tier: TierStatus, now: float) -> Chart:
    capacity, ready = tier.context.capacity, _ready(tier)
    limit = None
    if capacity is not None and ready:
        most = capacity.rps * ready
        limit = (most, f"usable {number(most, 'per_second')}, {ready} up")
    line = _line(tier, "completed_rps", now, "rps")
    return _chart(
        tier, now, "Completed requests", "per_second", (line,), limit, _newest(tier, "completed_rps", "per_second")
    )


def _ttft(tier: TierStatus, now: float) -> Chart:
    slo = tier.context.basis.ttft_slo_seconds
    limit = (slo, f"SLO {number(slo, 'seconds')}") if slo is not None else None
    line = _line(tier, "ttft_p99_seconds", now, "ttft")
    return _chart(tier, now, "TTFT P99", "seconds", (line,), limit, _newest(tier, "ttft_p99_seconds", "seconds"))


_IN_SYSTEM = ("requests_running", "requests_waiting")


def _in_system(tier: TierStatus, now: float) -> Chart:
    point, ready = operating_point(tier.context.plan) if tier.context.plan else None, _ready(tier)
    limit = None
    if point is not None and point.c_max is not None and ready:
        limit = (point.c_max * ready, f"C_max {point.c_max * ready:.4g}")
    lines = (
        _line(tier, _IN_SYSTEM[0], now, "running", band=False),
        _line(tier, _IN_SYSTEM[1], now, "waiting", band=False, stacked=True),
    )
    key = tuple(
        (line.name, f"{_newest(tier, signal, '')} {line.name}") for line, signal in zip(lines, _IN_SYSTEM, strict=True)
    )
    newest = ", ".join(text for _, text in key)
    return _chart(tier, now, "Requests", "", lines, limit, newest, key)


def _kv(tier: TierStatus, now: float) -> Chart:
    full = BY_NAME["KvCacheCascade"].limit("full_level", tier.context.limits)
    line = _line(tier, "kv_utilization", now, "kv")
    newest = _newest(tier, "kv_utilization", "ratio")
    return _chart(tier, now, "KV cache in use", "ratio", (line,), (full, f"full from {full:.0%}"), newest, top=1.0)


CHARTS: tuple[Callable[[TierStatus, float], Chart], ...] = (_throughput, _ttft, _in_system, _kv)


def _ready(tier: TierStatus) -> int:
    return sum(replica.up for replica in tier.replicas)


def _newest(tier: TierStatus, signal: str, unit: str) -> str:
    """Return the value of the last minute in words: best estimate, else the known bounds."""
    found = tier.trend[-1].readings.get(signal) if tier.trend else None
    if found is None:
        return "no data yet"
    if isinstance(found, Reading) and not _is_quantile(signal):
        estimate, least = found.value, found.low or 0.0
        return f"≥ {number(least, unit)}" if estimate is None else number(estimate, unit)
    return quantity(found, unit)


def _is_quantile(signal: str) -> bool:
    """Return whether the signal is a quantile. Quantiles are shown with bucket bounds, levels with their extremes."""
    return SIGNALS[signal].how is SignalKind.QUANTILE


def _line(tier: TierStatus, signal: str, now: float, name: str, band: bool = True, stacked: bool = False) -> ChartLine:
    marks, holes = [], []
    for point in tier.trend:
        if point.t <= now - HOUR:
            continue
        found = _mark(point, signal)
        if isinstance(found, ChartPoint):
            marks.append(found)
        else:
            holes.append(found)
    told = holes_between(tuple(marks), tuple(holes), "no minute was closed")
    return ChartLine(name=name, marks=tuple(marks), holes=told, band=band, stacked=stacked)


def _mark(point: TrendPoint, signal: str) -> ChartPoint | ChartGap:
    """Return a mark at the best estimate, or at the lower bound if only that is known."""
    found = point.readings.get(signal)
    if isinstance(found, Reading):
        value = found.low if found.value is None else found.value
        if value is not None:
            return ChartPoint(t=point.t, low=value if found.low is None else found.low, value=value, high=found.high)
    reason = "not read" if not isinstance(found, Missing) else found.text or found.gap.value.replace("_", " ")
    return ChartGap(start=point.t - MINUTE, end=point.t, reason=reason)


def _chart(
    tier: TierStatus,
    now: float,
    title: str,
    unit: str,
    lines: tuple[ChartLine, ...],
    limit: tuple[float, str] | None,
    newest: str,
    key: tuple[tuple[str, str], ...] = (),
    top: float | None = None,
) -> Chart:
    scale = top or _scale(lines, limit)
    panel = SvgChart(
        start=now - HOUR,
        end=now,
        lines=lines,
        top=scale,
        top_text=f"{scale:.0%}" if unit == "ratio" else number(scale, unit),
        ticks=((now - HOUR, _clock(now - HOUR)), (now - HOUR / 2, _clock(now - HOUR / 2)), (now, "now")),
        limit=limit,
        moments=_moments(tier),
        spoken=_spoken(title, unit, lines, newest, limit),
    )
    return Chart(title=title, newest=newest, panel=panel, key=key)


def _moments(tier: TierStatus) -> tuple[ChartMarker, ...]:
    """Return the begin of each active finding, worst last, so that it is drawn on top."""
    begun = [(found, found.since) for found in reversed(list_active_findings(tier)) if found.since is not None]
    return tuple(
        ChartMarker(t=since, text=f"{found.title}: since {_clock(since)} UTC", name=found.verdict.status.value)
        for found, since in begun
    )


def _scale(lines: tuple[ChartLine, ...], limit: tuple[float, str] | None) -> float:
    """Return a round number above every best estimate and the limit. Wider bounds leave the chart."""
    highest = limit[0] * 1.15 if limit else 0.0
    sums: dict[float, float] = {}
    for line in lines:
        for mark in line.marks:
            sums[mark.t] = (sums.get(mark.t, 0.0) if line.stacked else 0.0) + mark.value
            highest = max(highest, sums[mark.t] * 1.05)
    if highest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest))
    return next(step * power for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * power >= highest)


def _spoken(title: str, unit: str, lines: tuple[ChartLine, ...], newest: str, limit: tuple[float, str] | None) -> str:
    values = [mark.value for mark in lines[0].marks]
    if not values:
        return f"{title}, last hour: no data"
    text = f"{title}, last hour: {number(min(values), unit)} to {number(max(values), unit)}, newest {newest}"
    return text + (f"; {limit[1]}" if limit else "")


def _clock(t: float) -> str:
    return format_local(t, "UTC", "%H:%M")
