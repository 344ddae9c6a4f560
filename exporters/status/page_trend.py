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
from exporters.documents.prewarm import Prewarm
from exporters.documents.prewarm_value import PrewarmValue
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
    found = tier.trend[-1].readings.get(signal) if tier.trend else None
    if found is None:
        return "no data yet"
    # Quantiles are shown with bucket bounds, levels with their extremes.
    if isinstance(found, Reading) and SIGNALS[signal].how is not SignalKind.QUANTILE:
        estimate, least = found.value, found.low or 0.0
        return f"≥ {number(least, unit)}" if estimate is None else number(estimate, unit)
    return quantity(found, unit)


def _named(text: str, name: str) -> str:
    """Return a number with its name, or the name with the reason why there is none."""
    return f"{text} {name}" if any(sign.isdigit() for sign in text) else f"{name}: {text}"


def _line(tier: TierStatus, signal: str, now: float, name: str, band: bool = True, stacked: bool = False) -> ChartLine:
    marks, holes = [], []
    for point in tier.trend:
        if point.t <= now - HOUR_SECONDS:
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
    begun = [(found, found.since) for found in reversed(list_active_findings(tier)) if found.since is not None]
    return tuple(
        ChartMarker(t=since, text=f"{found.title}: since {_clock(since)} UTC", name=found.tone)
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
    one = tier.forecast
    if one is None:
        return ""
    if one.forecast is None and one.prewarm is None:
        start = f". Cold start: {escape(one.cold_start.sentence)}" if one.cold_start is not None else ""
        return f'<p class="none">Forecast: {escape(one.gap)}{start}</p>'
    tiles = "".join(_tile(tile) for tile in _tiles(tier, one, now))
    said = "".join(f"<p>{escape(text)}</p>" for text in _sentences(one, now))
    prewarm = _schedule(one.prewarm) + _worth(one.prewarm.worth) if one.prewarm is not None else ""
    return f'<section class="forecast"><h3>Forecast</h3><dl class="numbers">{tiles}</dl>{said}{prewarm}</section>'


def _tile(tile: Tile) -> str:
    title, now, around, judged = tile
    missing = " missing" if now in _MISSING else ""
    return (
        f'<div class="tile{missing}"><dt>{escape(title)}</dt><dd class="now">{escape(now)}</dd>'
        f'<dd class="bounds">{escape(around)}</dd><dd class="judged">{judged}</dd></div>'
    )


def _tiles(tier: TierStatus, one: ForecastStatus, now: float) -> Iterator[Tile]:
    fine = "no finding" if list_findings(tier, OVERLOAD) else "within capacity"
    yield "Demand now", _rps(one.now_rps), _said_now(one), _judged(tier, "DemandExceedsCapacity", fine)
    yield _ahead(one)
    yield _replicas(one)
    yield _cold_start(one)
    yield from _quality(tier, one)


def _rps(value: float | None) -> str:
    return NOT_KNOWN if value is None else number(value, "per_second")


def _said_now(one: ForecastStatus) -> str:
    """Return the requests whose work this is, and what was forecast."""
    weighed = one.now_requests is not None and _rps(one.now_requests) != _rps(one.now_rps)
    parts = [f"work of {_rps(one.now_requests)}"] if weighed else []
    said = one.for_now
    if said is not None:
        parts.append(f"forecast one lead ago {_rps(said.q50)}, 95 % up to {_rps(said.q95)}")
    return "; ".join(parts)


def _ahead(one: ForecastStatus) -> Tile:
    projection = one.forecast.projection if one.forecast is not None else None
    title = f"Forecast in {number(projection.horizon_seconds, 'seconds')}" if projection is not None else "Forecast"
    if one.at_lead is None:
        return title, NONE, one.gap, ""
    return title, _rps(one.at_lead.q50), f"95 % up to {_rps(one.at_lead.q95)}, 99 % up to {_rps(one.at_lead.q99)}", ""


def _replicas(one: ForecastStatus) -> Tile:
    title = "Replicas recommended"
    found = one.decision
    if found is None:
        why = one.prewarm.reason if one.prewarm is not None and one.prewarm.reason else one.gap
        return title, NONE, f"{why}; {one.ready} ready" if why else f"{one.ready} ready", ""
    warm = f"{one.minimum_warm} minimum warm" if one.minimum_warm is not None else ""
    return title, str(found.replicas), ", ".join(filter(None, (f"{one.ready} ready", warm, found.action))), ""


def _cold_start(one: ForecastStatus) -> Tile:
    found = one.cold_start
    if found is None:
        return "Cold start P95", NOT_KNOWN, "no start was seen, and the plan has no cold_start_seconds", ""
    leading = found.leading
    known = found.count if leading is None else leading.count
    count = f"{format_count(known, 'start')} known" if known else "no start seen"
    label = "Cold start, planned" if leading is None else f"Cold start {'P95' if leading.has_p95 else 'slowest'}"
    return label, number(found.p95_seconds, "seconds"), f"{_FROM[found.source]}, {count}", ""


def _quality(tier: TierStatus, one: ForecastStatus) -> Iterator[Tile]:
    if one.forecast is None:
        return
    made = one.forecast.projection
    share = f"{made.covered / made.forecasts:.1%}" if made.forecasts else NOT_YET
    within = coverage_text(made) if made.forecasts else "no target has passed"
    judged, (error_high, quantile_low) = _judged(tier, "ForecastDegraded", "holds"), _misses(tier, made)
    held = error_high and not quantile_low
    yield "Within the 95 % quantile", share, within, sign(Status.OK, "holds") if held else judged
    error = NOT_YET if made.error_ratio is None else f"{made.error_ratio:.2f}"
    yield "Error / naive error", error, comparison_text(made), judged if error_high else ""


def _misses(tier: TierStatus, made: Projection) -> tuple[bool, bool]:
    """Return which limits of `ForecastDegraded` are missed while it fires: that of the error, that of the quantile."""
    result = next((one for one in tier.results if one.rule == "ForecastDegraded"), None)
    if result is None or isinstance(result, Unknown) or result.status is Status.OK:
        return False, False
    rule, limits = BY_NAME["ForecastDegraded"], tier.context.limits
    error_high = made.error_ratio is not None and made.error_ratio >= rule.limit("error_ratio", limits)
    return error_high, bool(made.forecasts) and made.covered / made.forecasts < rule.limit("coverage", limits)


def _judged(tier: TierStatus, rule: str, fine: str) -> str:
    found = list_findings(tier, (rule,))
    if found:
        return sign(found[0].tone, found[0].named)
    result: RuleResult | None = next((one for one in tier.results if one.rule == rule), None)
    if result is None:
        return ""
    return sign(Status.UNKNOWN, "not judged") if isinstance(result, Unknown) else sign(Status.OK, fine)


def _sentences(one: ForecastStatus, now: float) -> Iterator[str]:
    found = one.decision
    if found is not None:
        yield f"{found.sentence}. Lead: {found.lead_source}."
    if one.forecast is not None:
        made = one.forecast.projection
        weights = ", ".join(f"{name} {share:.0%}" for name, share in one.forecast.weights if share >= LEAST_SHOWN)
        shares = f" ({weights})" if len(one.forecast.weights) > 1 else ""
        yield f"Made {format_duration(now - made.made_at)} ago by {made.method}{shares}."
        yield from (f"{note[0].upper()}{note[1:]}." for note in one.forecast.notes if note)
    if one.trouble:
        yield f"No newer forecast: {one.trouble}."


def _schedule(prewarm: Prewarm) -> str:
    """Return the steps of the day in a line for readers. Programs use the JSON."""
    if not prewarm.schedule:
        return ""
    zone = prewarm.zone
    steps = merge_steps(prewarm.schedule)
    said = "".join(
        f"<li><time>{format_local(step.start, zone, '%H:%M')}</time> <b>{step.replicas}</b></li>" for step in steps
    )
    until = "" if prewarm.until is None else f", until {format_local(prewarm.until, zone, '%H:%M')} tomorrow"
    sure = "" if prewarm.schedule_certainty is None else f", enough with {prewarm.schedule_certainty:.0%} certainty"
    return f'<p class="label">Warm from (replicas), {escape(prewarm.zone)}{until}{sure}:</p><ol class="schedule">{said}</ol>'


def _worth(found: PrewarmValue | None) -> str:
    if found is None:
        return ""
    return f'<p class="label">{escape(found.sentence)}</p>'
