"""Forecast of a tier on the status page: demand now and a cold start ahead, replicas, and recent accuracy.

Outdated values are not shown. Numbers come from `exporters.status.records.ForecastStatus`, longer texts from
`exporters.documents.prewarm`.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from exporters.documents.forecast import comparison_text, coverage_text
from exporters.documents.prewarm import BECAUSE, Prewarm, Recommendation, merge_steps
from exporters.documents.prewarm_value import PrewarmValue
from exporters.render.text import format_duration, format_local, sign
from exporters.status.records import ForecastStatus, TierStatus
from forecast.capacity.cold_start import LeadSource
from rules.telemetry.wording import format_count, number
from rules.verdicts.verdict import RuleResult, Status, Unknown

Tile = tuple[str, str, str, str]
"""Title, number, context of the number, and markup of a rule's verdict."""

_FROM = {
    LeadSource.MEASURED: "from the request to Ready",
    LeadSource.ADDED: "measured in part, the rest by pods",
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
        return f'<p class="none">Forecast: {escape(one.gap)}{_cold_start_words(one)}</p>'
    tiles = "".join(_tile(tile) for tile in _tiles(tier, one, now))
    said = "".join(f"<p>{escape(text)}</p>" for text in _sentences(one, now))
    prewarm = _schedule(one.prewarm) + _worth(one.prewarm.worth) if one.prewarm is not None else ""
    return f'<section class="forecast"><h3>Forecast</h3><dl class="numbers">{tiles}</dl>{said}{prewarm}</section>'


def _cold_start_words(one: ForecastStatus) -> str:
    return f". Cold start: {escape(one.cold_start.sentence)}" if one.cold_start is not None else ""


def _tile(tile: Tile) -> str:
    title, now, around, judged = tile
    missing = " missing" if now in _MISSING else ""
    return (
        f'<div class="tile{missing}"><dt>{escape(title)}</dt><dd class="now">{escape(now)}</dd>'
        f'<dd class="bounds">{escape(around)}</dd><dd class="judged">{judged}</dd></div>'
    )


def _tiles(tier: TierStatus, one: ForecastStatus, now: float) -> Iterator[Tile]:
    yield "Demand now", _rps(one.now_rps), _said_before(one), _judged(tier, "DemandExceedsCapacity", "within capacity")
    yield _ahead(one)
    yield _replicas(one)
    yield _cold_start(one)
    yield from _quality(tier, one)


def _rps(value: float | None) -> str:
    return NOT_KNOWN if value is None else number(value, "per_second")


def _said_before(one: ForecastStatus) -> str:
    said = one.for_now
    return "" if said is None else f"a lead ago {_rps(said.q50)} were expected, 95 % up to {_rps(said.q95)}"


def _ahead(one: ForecastStatus) -> Tile:
    projection = one.forecast.projection if one.forecast is not None else None
    title = f"Forecast in {number(projection.horizon_seconds, 'seconds')}" if projection is not None else "Forecast"
    if one.at_lead is None:
        return title, NONE, one.gap, ""
    return title, _rps(one.at_lead.q50), f"95 % up to {_rps(one.at_lead.q95)}, 99 % up to {_rps(one.at_lead.q99)}", ""


def _replicas(one: ForecastStatus) -> Tile:
    title = "Replicas recommended"
    if one.recommended is None:
        why = one.prewarm.reason if one.prewarm is not None and one.prewarm.reason else one.gap
        return title, NONE, f"{why}; {one.ready} ready" if why else f"{one.ready} ready", ""
    warm = f"{one.minimum_warm} minimum warm" if one.minimum_warm is not None else ""
    missing = one.recommended - one.ready
    todo = f"start {missing} now" if missing > 0 else f"{-missing} may go" if missing else "nothing to do"
    return title, str(one.recommended), ", ".join(filter(None, (f"{one.ready} ready", warm, todo))), ""


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
    yield "Within the 95 % quantile", share, within, _judged(tier, "ForecastDegraded", "holds")
    error = NOT_YET if made.error_ratio is None else f"{made.error_ratio:.2f}"
    yield "Error by the naive one's", error, comparison_text(made), ""


def _judged(tier: TierStatus, rule: str, fine: str) -> str:
    result: RuleResult | None = next((one for one in tier.results if one.rule == rule), None)
    if result is None:
        return ""
    if isinstance(result, Unknown):
        return sign(Status.UNKNOWN, "not judged")
    if result.status is Status.OK:
        return sign(Status.OK, fine)
    return sign(result.status, f"{result.status.value}, {result.certainty.value}")


def _sentences(one: ForecastStatus, now: float) -> Iterator[str]:
    found: Recommendation | None = one.prewarm.recommendation if one.prewarm is not None else None
    if found is not None:
        yield f"{format_count(found.replicas, 'replica')} because of {BECAUSE[found.decided_by]}. Lead: {found.lead_source}."
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
    days = (found.end - found.start) / 86_400.0
    kept = found.ours if found.recommended == found.ours else f"{found.recommended}, not {found.ours}"
    return f'<p class="label">Recommended by the last {days:.0f} days: {escape(kept)}. {escape(found.reason)}</p>'
