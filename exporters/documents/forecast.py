"""Forecast and backtest as text and JSON.

A forecast has median, 95 % and 99 % by time, in requests per second of the whole tier. A backtest has scores by method
and horizon, compared with the naive method: WAPE (sum of absolute errors by sum of actual values), and the pinball loss
of the 95 % quantile.
"""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any

from exporters.render.text import copy_fields, format_duration, format_local, text_table, wrap
from rules.telemetry.wording import number
from rules.verdicts.projection import ForecastPoint, Projection

MOST_ROWS = 48
"""Maximum table rows: a day in half hours. The JSON has all bins."""


OURS = "sizewatch"
"""Method that pre-warming uses."""

TARGET = 0.95
"""Quantile whose coverage is reported (0-1)."""

HEAD = ("method", "WAPE", "P95 pinball", "WAPE by naive", "pinball by naive", "coverage of 95%", "targets")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastResult:
    """Projection with the shares of combined methods, and `notes` for the reader. A note:
    "needs 2 days, has 5 hours: same as now, with its own error".
    """

    projection: Projection
    zone: str
    bin_seconds: float
    weights: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()


def forecast_text(forecast: ForecastResult) -> str:
    """Return head, table and recent accuracy. With many bins, show the highest of every block."""
    projection = forecast.projection
    made = f"made {_time(projection.made_at, forecast.zone)} ({forecast.zone}) by {projection.method}"
    lines = [f"{projection.tier}: expected requests per second, {made}"]
    for note in forecast.notes:
        lines += wrap(note, "  ", "    ")
    lines += ["", *_table(forecast), "", f"  lead      {format_duration(projection.horizon_seconds)}"]
    lines += [f"  coverage  {coverage_text(projection)}", f"  error     {comparison_text(projection)}"]
    if forecast.weights:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in sorted(forecast.weights, key=lambda row: -row[1]))
        lines += textwrap.wrap(shares, 100, initial_indent="  methods   ", subsequent_indent=" " * 12)
    return "\n".join(lines)


def _table(forecast: ForecastResult) -> list[str]:
    points = forecast.projection.points
    if not points:
        return ["  nothing is expected: there is no forecast yet"]
    block = -(-len(points) // MOST_ROWS)
    rows = [_row(highest_quantiles(points[at : at + block]), forecast.zone) for at in range(0, len(points), block)]
    table = text_table(("from", "median", "95%", "99%"), rows)
    text = f"  each row is the highest of {block} bins of {format_duration(forecast.bin_seconds)}"
    return [*(f"  {line}" for line in table), *([text] if block > 1 else [])]


def highest_quantiles(points: tuple[ForecastPoint, ...]) -> ForecastPoint:
    """Return the highest quantiles of the bins, at the time of the first bin."""
    quantiles = {name: max(getattr(point, name) for point in points) for name in ("q50", "q95", "q99")}
    return ForecastPoint(t=points[0].t, **quantiles)


def _row(point: ForecastPoint, zone: str) -> tuple[str, ...]:
    return (_time(point.t, zone), *(number(q, "per_second") for q in (point.q50, point.q95, point.q99)))


def coverage_text(projection: Projection) -> str:
    """Return in words how often the 95 % quantile was sufficient."""
    if not projection.forecasts:
        return "not known yet: no target has passed"
    return f"{projection.covered / projection.forecasts:.1%} of {projection.forecasts} past targets at or below their 95% quantile"


def comparison_text(projection: Projection) -> str:
    """Return the error relative to the naive method in words, also if it is worse."""
    if projection.error_ratio is None:
        return "not compared yet: no target has passed"
    worse = "" if projection.error_ratio < 1 else "; the naive method was as good"
    return f"{projection.error_ratio:.2f} of {projection.naive or 'the naive method'} over {projection.compared} targets{worse}"


def _time(t: float, zone: str) -> str:
    return format_local(t, zone, "%a %d %b %H:%M")


def forecast_json(forecast: ForecastResult) -> dict[str, Any]:
    """Return every bin of the forecast as JSON. Times are unix seconds."""
    projection = forecast.projection
    return {
        "schema": 1,
        **copy_fields(projection, "tier", "made_at"),
        "lead_seconds": projection.horizon_seconds,
        **copy_fields(forecast, "bin_seconds", "zone"),
        "method": projection.method,
        "weights": dict(forecast.weights),
        "coverage": {
            "covered": projection.covered,
            "targets": projection.forecasts,
            "ratio": projection.covered / projection.forecasts if projection.forecasts else None,
        },
        "error": {"ratio": projection.error_ratio, "naive": projection.naive, "targets": projection.compared},
        "points": [asdict(point) for point in projection.points],
        "notes": list(forecast.notes),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodScore:
    """Scores of a method at a horizon over `targets` forecasts. Ratios are to the naive method of the horizon.

    `coverage` is the share of targets at or below their 95 % quantile, within [coverage_low, coverage_high] by a block
    bootstrap. None means that it could not be counted.
    """

    method: str
    horizon_minutes: float
    targets: int
    wape: float | None
    pinball: float | None
    wape_ratio: float | None
    pinball_ratio: float | None
    coverage: float | None
    coverage_low: float | None = None
    coverage_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest:
    """Scores of a series, tested over [start, end) in unix seconds. `naive` names the naive method by horizon."""

    name: str
    zone: str
    bin_seconds: float
    start: float
    end: float
    scores: tuple[MethodScore, ...]
    naive: tuple[tuple[float, str], ...]
    notes: tuple[str, ...] = ()


def backtest_text(backtest: Backtest) -> str:
    """Return a table per horizon with our method marked. Notes follow if it did not beat the naive method."""
    start, end = (format_local(t, backtest.zone, "%Y-%m-%d %H:%M") for t in (backtest.start, backtest.end))
    head = f"{backtest.name}: rolling origin, {start} to {end}"
    lines = [f"{head}, bins of {format_duration(backtest.bin_seconds)}", *(f"  {note}" for note in backtest.notes)]
    for horizon in sorted({score.horizon_minutes for score in backtest.scores}):
        lines += ["", *_horizon(backtest, horizon)]
    return "\n".join(lines)


def _horizon(backtest: Backtest, horizon: float) -> list[str]:
    scores = [score for score in backtest.scores if score.horizon_minutes == horizon]
    naive = dict(backtest.naive).get(horizon, "")
    rows = [_score_row(score, naive) for score in scores]
    beside = f" (naive: {naive})" if naive else ""
    lines = [f"{format_duration(horizon * 60)} ahead{beside}", *(f"  {line}" for line in text_table(HEAD, rows))]
    return [*lines, *(f"  {verdict}" for score in scores if score.method == OURS for verdict in verdicts(score, naive))]


def _score_row(score: MethodScore, naive: str) -> tuple[str, ...]:
    mark = " *" if score.method == OURS else " (naive)" if score.method == naive else ""
    numbers = (score.wape, score.pinball, score.wape_ratio, score.pinball_ratio)
    return (f"{score.method}{mark}", *(_three(value) for value in numbers), _coverage(score), str(score.targets))


def _three(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if value < 1000 else f"{value:,.0f}"


def _coverage(score: MethodScore) -> str:
    if score.coverage is None:
        return "-"
    if score.coverage_low is None or score.coverage_high is None:
        return f"{score.coverage:.1%}"
    return f"{score.coverage:.1%} ({score.coverage_low:.1%} to {score.coverage_high:.1%})"


def verdicts(score: MethodScore, naive: str) -> list[str]:
    """Return warnings about our own row, empty if there are none."""
    rows = []
    for what, ratio in (("WAPE", score.wape_ratio), ("P95 pinball loss", score.pinball_ratio)):
        if ratio is not None and ratio >= 1:
            rows.append(f"{OURS} did not beat {naive or 'the naive method'}: {what} {ratio:.3f} of it")
    high, low = score.coverage_high, score.coverage_low
    if high is not None and high < TARGET:
        rows.append(f"its {TARGET:.0%} quantile was too low: at most {high:.1%} were covered")
    if low is not None and low > TARGET:
        rows.append(f"its {TARGET:.0%} quantile was too high: at least {low:.1%} were covered")
    return rows


def backtest_json(backtest: Backtest) -> dict[str, Any]:
    """Return the backtest as JSON. Times are unix seconds, uncounted values are null."""
    return {
        "schema": 1,
        **copy_fields(backtest, "name", "zone", "bin_seconds", "start", "end"),
        "naive": [{"horizon_minutes": horizon, "method": method} for horizon, method in backtest.naive],
        "scores": [asdict(score) for score in backtest.scores],
        "notes": list(backtest.notes),
    }
