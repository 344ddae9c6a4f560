"""Forecast and backtest as text and JSON.

A forecast has median, 95 % and 99 % by time, in requests per second of the whole tier. A backtest has scores by method
and horizon, compared with the naive method: WAPE (sum of absolute errors by sum of actual values), and the pinball loss
of the 95 % quantile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from exporters.render.terminal import WIDEST, terminal_text, text_grid
from exporters.render.text import copy_fields, format_duration, format_local, json_fields
from rules.telemetry.wording import number
from rules.verdicts.context import Projection

if TYPE_CHECKING:
    from forecast.backtest.scores import Scored

MOST_ROWS = 48
"""Maximum table rows: a day in half hours. The JSON has all bins."""

OURS = "sizewatch"
"""Method that pre-warming uses."""

HEAD = ("method", "WAPE", "P95 pinball", "WAPE by naive", "pinball by naive", "coverage of 95%", "targets")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastResult:
    """Projection with the shares of combined methods, highest first, and `notes` for the reader. A note:
    "needs 2 days, has 5 hours: same as now, with its own error".
    """

    projection: Projection
    zone: str
    bin_seconds: float
    weights: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()


def forecast_text(forecast: ForecastResult) -> str:
    """Return head, table and recent accuracy. With many bins, show the highest of every block."""
    projection, points, zone = forecast.projection, forecast.projection.points, forecast.zone
    made = format_local(projection.made_at, zone, "%a %d %b %H:%M")
    parts: list[RenderableType] = [
        f"{projection.tier}: expected requests per second, made {made} ({zone}) by {projection.method}",
        *(f"  {note}" for note in forecast.notes),
        "",
    ]
    block, rows = -(-len(points) // MOST_ROWS), []
    for first in range(0, len(points), block or 1):
        bins, row = points[first : first + block], [format_local(points[first].t, zone, "%a %d %b %H:%M")]
        for name in ("q50", "q95", "q99"):
            row.append(number(max(getattr(point, name) for point in bins), "per_second"))
        rows.append(row)
    if rows:
        parts.append(text_grid(rows, ("from", "median", "95%", "99%"), words=1))
    else:
        parts.append("  nothing is expected: no forecast yet")
    if block > 1:
        parts.append(f"  each row is the highest of {block} bins of {format_duration(forecast.bin_seconds)}")
    return terminal_text(*parts, "", text_grid(describe_accuracy(forecast)))


def describe_accuracy(forecast: ForecastResult) -> Iterator[tuple[str, str]]:
    """Yield name and words of lead, coverage of the 95 % quantile, error relative to the naive method, and methods."""
    record = forecast.projection
    coverage = error = "not known yet: no target has passed"
    if record.forecasts:
        coverage = f"{record.covered / record.forecasts:.1%} of {record.forecasts} past targets"
        coverage += " at or below their 95% quantile"
    if record.error_ratio is not None:
        error = f"{record.error_ratio:.2f} of {record.naive or 'the naive method'} over {record.compared} targets"
        error += "" if record.error_ratio < 1 else "; the naive method was as good"
    yield "lead", format_duration(record.horizon_seconds)
    yield "coverage", coverage
    yield "error", error
    if forecast.weights:
        yield "methods", ", ".join(f"{name} {share:.0%}" for name, share in forecast.weights if share >= 0.005)


def forecast_json(forecast: ForecastResult) -> dict[str, Any]:
    """Return the projection with every bin as JSON. Times are unix seconds."""
    more = copy_fields(forecast, "zone", "bin_seconds", "notes")
    return {"schema": 2, **json_fields(forecast.projection), **more, "weights": dict(forecast.weights)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest:
    """Scores of a series, tested over [start, end) in unix seconds, horizon by horizon."""

    name: str
    zone: str
    bin_seconds: float
    start: float
    end: float
    scores: tuple[Scored, ...]
    notes: tuple[str, ...] = ()


def backtest_text(backtest: Backtest) -> str:
    """Return a table for each horizon with our method and the naive one marked."""
    start, end = (format_local(t, backtest.zone, "%Y-%m-%d %H:%M") for t in (backtest.start, backtest.end))
    head = f"{backtest.name}: rolling origin, {start} to {end}, bins of {format_duration(backtest.bin_seconds)}"
    parts: list[RenderableType] = [head, *(f"  {note}" for note in backtest.notes)]
    by_horizon = sorted(backtest.scores, key=lambda score: score.horizon_seconds)
    for (seconds, naive), scores in groupby(by_horizon, lambda score: (score.horizon_seconds, score.naive)):
        table = text_grid([_score_row(score) for score in scores], HEAD, words=1)
        parts += ["", f"{format_duration(seconds)} ahead (naive: {naive})", table]
    return terminal_text(*parts, width=WIDEST)


def _score_row(score: Scored) -> list[str]:
    mark = {OURS: " *", score.naive: " (naive)"}.get(score.method, "")
    row = [f"{score.method}{mark}"]
    for name in ("wape", "pinball", "wape_ratio", "pinball_ratio"):
        value = score.values[name]
        row.append("-" if value is None else f"{value:,.3f}")
    coverage, bounds = score.values["coverage"], score.interval("coverage")
    text = "-" if coverage is None else f"{coverage:.1%}"
    if bounds is not None:
        text += f" ({bounds[0]:.1%} to {bounds[1]:.1%})"
    return [*row, text, str(score.targets)]


def backtest_json(backtest: Backtest) -> dict[str, Any]:
    """Return the backtest as JSON. Times are unix seconds, uncounted values are null."""
    scores = []
    for score in backtest.scores:
        known = copy_fields(score, "method", "horizon_seconds", "naive", "targets")
        scores.append({**known, **score.values, "coverage_bounds": score.interval("coverage")})
    return {
        "schema": 2,
        **copy_fields(backtest, "name", "zone", "bin_seconds", "start", "end", "notes"),
        "scores": scores,
    }
