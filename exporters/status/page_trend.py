"""Last hour of a tier as four small charts, and its forecast: demand a cold start ahead, replicas, recent accuracy.

Each row of CHARTS has signals, a scale and the plan's number to draw. Drawing is in `exporters.render.svg_charts`.
Outdated forecasts are not shown. Their numbers come from `exporters.status.records.ForecastStatus`, longer texts from
`exporters.documents.prewarm`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape

from exporters.documents.forecast import comparison_text, coverage_text
from exporters.documents.prewarm import Prewarm, PrewarmValue
from exporters.render.svg_charts import ChartGap, ChartLine, ChartMarker, ChartPoint, SvgChart, holes_between
from exporters.render.text import format_duration, format_local, sign
from exporters.status.active_findings import list_active_findings, list_findings
from exporters.status.plan_comparison import OVERLOAD
from exporters.status.records import ForecastStatus, TierStatus, TrendPoint
from forecast.capacity.cold_start import LeadSource
from forecast.capacity.prewarm import merge_steps
from rules.catalogue.registry import BY_NAME
from rules.plan.curve import operating_point
from rules.telemetry.gauges import IN_SYSTEM
from rules.telemetry.signals import BY_NAME as SIGNALS
from rules.telemetry.signals import Missing, Reading, SignalKind
from rules.telemetry.windows import HOUR_SECONDS, MINUTE_SECONDS
from rules.telemetry.wording import format_count, number, quantity
from rules.verdicts.projection import Projection
from rules.verdicts.verdict import RuleResult, Status, Unknown


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
    capacity, ready = tier.context.capacity, tier.replicas_up
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


def _in_system(tier: TierStatus, now: float) -> Chart:
    point, ready = operating_point(tier.context.plan) if tier.context.plan else None, tier.replicas_up
    limit = None
    if point is not None and point.c_max is not None and ready:
        limit = (point.c_max * ready, f"C_max {point.c_max * ready:.4g}")
    lines = (
        _line(tier, IN_SYSTEM[0], now, "running", band=False),
        _line(tier, IN_SYSTEM[1], now, "waiting", band=False, stacked=True),
    )
    key = tuple(
        (line.name, _named(_newest(tier, signal, ""), line.name)) for line, signal in zip(lines, IN_SYSTEM, strict=True)
    )
    newest = ", ".join(text for _, text in key)
    return _chart(tier, now, "Requests", "", lines, limit, newest, key)


def _kv(tier: TierStatus, now: float) -> Chart:
    full = BY_NAME["KvCacheCascade"].limit("full_level", tier.context.limits)
    line = _line(tier, "kv_utilization", now, "kv")
    newest = _newest(tier, "kv_utilization", "ratio")
    return _chart(tier, now, "KV cache in use", "ratio", (line,), (full, f"full from {full:.0%}"), newest, top=1.0)


CHARTS: tuple[Callable[[TierStatus, float], Chart], ...] = (_throughput, _ttft, _in_system, _kv)


def _newest(tier: TierStatus, signal: str, unit: str) -> str:
    """Return the value of the last minute in words: best estimate, else the known bounds."""
    reading = tier.trend[-1].readings.get(signal) if tier.trend else None
    if reading is None:
        return "no data yet"
    # Quantiles are shown with bucket bounds, levels with their extremes.
    if isinstance(reading, Reading) and SIGNALS[signal].how is not SignalKind.QUANTILE:
        estimate, least = reading.value, reading.low or 0.0
        return f"≥ {number(least, unit)}" if estimate is None else number(estimate, unit)
    return quantity(reading, unit)


def _named(text: str, name: str) -> str:
    """Return a number with its name, or the name with the reason why there is none."""
    return f"{text} {name}" if any(sign.isdigit() for sign in text) else f"{name}: {text}"


def _line(tier: TierStatus, signal: str, now: float, name: str, band: bool = True, stacked: bool = False) -> ChartLine:
    marks, holes = [], []
    for point in tier.trend:
        if point.t <= now - HOUR_SECONDS:
            continue
        value = _mark(point, signal)
        if isinstance(value, ChartPoint):
            marks.append(value)
        else:
            holes.append(value)
    gaps = holes_between(tuple(marks), tuple(holes), "no minute was closed")
    return ChartLine(name=name, marks=tuple(marks), holes=gaps, band=band, stacked=stacked)


def _mark(point: TrendPoint, signal: str) -> ChartPoint | ChartGap:
    """Return a mark at the best estimate, or at the lower bound if only that is known."""
    reading = point.readings.get(signal)
    if isinstance(reading, Reading):
        value = reading.low if reading.value is None else reading.value
        if value is not None:
            return ChartPoint(
                t=point.t, low=value if reading.low is None else reading.low, value=value, high=reading.high
            )
    reason = "not read" if not isinstance(reading, Missing) else reading.text or reading.gap.value.replace("_", " ")
    return ChartGap(start=point.t - MINUTE_SECONDS, end=point.t, reason=reason)


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
        start=now - HOUR_SECONDS,
        end=now,
        lines=lines,
        top=scale,
        top_text=f"{scale:.0%}" if unit == "ratio" else number(scale, unit),
        ticks=(*((t, _clock(t)) for t in (now - HOUR_SECONDS, now - HOUR_SECONDS / 2)), (now, "now")),
        limit=limit,
        moments=_moments(tier),
        spoken=_spoken(title, unit, lines, newest, limit),
    )
    return Chart(title=title, newest=newest, panel=panel, key=key)


def _moments(tier: TierStatus) -> tuple[ChartMarker, ...]:
    """Return the begin of each active finding, worst last, so that it is drawn on top."""
    begun = [(finding, finding.since) for finding in reversed(list_active_findings(tier)) if finding.since is not None]
    return tuple(
        ChartMarker(t=since, text=f"{finding.title}: since {_clock(since)} UTC", name=finding.tone)
        for finding, since in begun
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


Tile = tuple[str, str, str, str]
"""Title, number, context of the number, and markup of a rule's verdict."""

_FROM = {
    LeadSource.MEASURED: "from the request to Ready",
    LeadSource.PARTLY: "at least, measured in part",
    LeadSource.PLAN: "the plan's",
}

LEAST_SHOWN = 0.01
"""Minimum share of a method that is shown (0-1)."""

NONE, NOT_KNOWN, NOT_YET = "none", "not known", "not known yet"
_MISSING = (NONE, NOT_KNOWN, NOT_YET)


def forecast(tier: TierStatus, now: float) -> str:
    """Return the section, or a line with the reason if there is no forecast."""
    state = tier.forecast
    if state is None:
        return ""
    if state.forecast is None and state.prewarm is None:
        start = f". Cold start: {escape(state.cold_start.sentence)}" if state.cold_start is not None else ""
        return f'<p class="none">Forecast: {escape(state.gap)}{start}</p>'
    tiles = "".join(_tile(tile) for tile in _tiles(tier, state, now))
    words = "".join(f"<p>{escape(text)}</p>" for text in _sentences(state, now))
    prewarm = _schedule(state.prewarm) + _worth(state.prewarm.worth) if state.prewarm is not None else ""
    return f'<section class="forecast"><h3>Forecast</h3><dl class="numbers">{tiles}</dl>{words}{prewarm}</section>'


def _tile(tile: Tile) -> str:
    title, now, around, judged = tile
    missing = " missing" if now in _MISSING else ""
    return (
        f'<div class="tile{missing}"><dt>{escape(title)}</dt><dd class="now">{escape(now)}</dd>'
        f'<dd class="bounds">{escape(around)}</dd><dd class="judged">{judged}</dd></div>'
    )


def _tiles(tier: TierStatus, state: ForecastStatus, now: float) -> Iterator[Tile]:
    fine = "no finding" if list_findings(tier, OVERLOAD) else "within capacity"
    yield (
        "Demand now",
        _rps(state.now_rps),
        _said_now(state),
        _judged(tier, "DemandExceedsCapacity", fine),
    )
    yield _ahead(state)
    yield _replicas(state)
    yield _cold_start(state)
    yield from _quality(tier, state)


def _rps(value: float | None) -> str:
    return NOT_KNOWN if value is None else number(value, "per_second")


def _said_now(state: ForecastStatus) -> str:
    """Return the requests whose work this is, and what was forecast."""
    weighed = state.now_requests is not None and _rps(state.now_requests) != _rps(state.now_rps)
    parts = [f"work of {_rps(state.now_requests)}"] if weighed else []
    point = state.for_now
    if point is not None:
        parts.append(f"forecast one lead ago {_rps(point.q50)}, 95 % up to {_rps(point.q95)}")
    return "; ".join(parts)


def _ahead(state: ForecastStatus) -> Tile:
    projection = state.forecast.projection if state.forecast is not None else None
    title = f"Forecast in {number(projection.horizon_seconds, 'seconds')}" if projection is not None else "Forecast"
    if state.at_lead is None:
        return title, NONE, state.gap, ""
    return (
        title,
        _rps(state.at_lead.q50),
        f"95 % up to {_rps(state.at_lead.q95)}, 99 % up to {_rps(state.at_lead.q99)}",
        "",
    )


def _replicas(state: ForecastStatus) -> Tile:
    title = "Replicas recommended"
    recommendation = state.decision
    if recommendation is None:
        why = state.prewarm.reason if state.prewarm is not None and state.prewarm.reason else state.gap
        return title, NONE, f"{why}; {state.ready} ready" if why else f"{state.ready} ready", ""
    warm = f"{state.minimum_warm} minimum warm" if state.minimum_warm is not None else ""
    return (
        title,
        str(recommendation.replicas),
        ", ".join(filter(None, (f"{state.ready} ready", warm, recommendation.action))),
        "",
    )


def _cold_start(state: ForecastStatus) -> Tile:
    start = state.cold_start
    if start is None:
        return "Cold start P95", NOT_KNOWN, "no start was seen, and the plan has no cold_start_seconds", ""
    leading = start.leading
    known = start.count if leading is None else leading.count
    count = f"{format_count(known, 'start')} known" if known else "no start seen"
    label = "Cold start, planned" if leading is None else f"Cold start {'P95' if leading.has_p95 else 'slowest'}"
    return label, number(start.p95_seconds, "seconds"), f"{_FROM[start.source]}, {count}", ""


def _quality(tier: TierStatus, state: ForecastStatus) -> Iterator[Tile]:
    if state.forecast is None:
        return
    made = state.forecast.projection
    share = f"{made.covered / made.forecasts:.1%}" if made.forecasts else NOT_YET
    within = coverage_text(made) if made.forecasts else "no target has passed"
    judged, (error_high, quantile_low) = _judged(tier, "ForecastDegraded", "holds"), _misses(tier, made)
    held = error_high and not quantile_low
    yield "Within the 95 % quantile", share, within, sign(Status.OK, "holds") if held else judged
    error = NOT_YET if made.error_ratio is None else f"{made.error_ratio:.2f}"
    yield "Error / naive error", error, comparison_text(made), judged if error_high else ""


def _misses(tier: TierStatus, made: Projection) -> tuple[bool, bool]:
    """Return which limits of `ForecastDegraded` are missed while it fires: that of the error, that of the quantile."""
    result = next((candidate for candidate in tier.results if candidate.rule == "ForecastDegraded"), None)
    if result is None or isinstance(result, Unknown) or result.status is Status.OK:
        return False, False
    rule, limits = BY_NAME["ForecastDegraded"], tier.context.limits
    error_high = made.error_ratio is not None and made.error_ratio >= rule.limit("error_ratio", limits)
    return error_high, bool(made.forecasts) and made.covered / made.forecasts < rule.limit("coverage", limits)


def _judged(tier: TierStatus, rule: str, fine: str) -> str:
    findings = list_findings(tier, (rule,))
    if findings:
        return sign(findings[0].tone, findings[0].named)
    result: RuleResult | None = next((candidate for candidate in tier.results if candidate.rule == rule), None)
    if result is None:
        return ""
    return sign(Status.UNKNOWN, "not judged") if isinstance(result, Unknown) else sign(Status.OK, fine)


def _sentences(state: ForecastStatus, now: float) -> Iterator[str]:
    recommendation = state.decision
    if recommendation is not None:
        yield f"{recommendation.sentence}. Lead: {recommendation.lead_source}."
    if state.forecast is not None:
        made = state.forecast.projection
        weights = ", ".join(f"{name} {share:.0%}" for name, share in state.forecast.weights if share >= LEAST_SHOWN)
        shares = f" ({weights})" if len(state.forecast.weights) > 1 else ""
        yield f"Made {format_duration(now - made.made_at)} ago by {made.method}{shares}."
        yield from (f"{note[0].upper()}{note[1:]}." for note in state.forecast.notes if note)
    if state.trouble:
        yield f"No newer forecast: {state.trouble}."


def _schedule(prewarm: Prewarm) -> str:
    """Return the steps of the day in a line for readers. Programs use the JSON."""
    if not prewarm.schedule:
        return ""
    zone = prewarm.zone
    steps = merge_steps(prewarm.schedule)
    text = "".join(
        f"<li><time>{format_local(step.start, zone, '%H:%M')}</time> <b>{step.replicas}</b></li>" for step in steps
    )
    until = "" if prewarm.until is None else f", until {format_local(prewarm.until, zone, '%H:%M')} tomorrow"
    sure = "" if prewarm.schedule_certainty is None else f", enough with {prewarm.schedule_certainty:.0%} certainty"
    return f'<p class="label">Warm from (replicas), {escape(prewarm.zone)}{until}{sure}:</p><ol class="schedule">{text}</ol>'


def _worth(prewarm_value: PrewarmValue | None) -> str:
    if prewarm_value is None:
        return ""
    return f'<p class="label">{escape(prewarm_value.sentence)}</p>'
