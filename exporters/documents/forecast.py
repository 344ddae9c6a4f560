"""Forecast as text, JSON and picture: time, median, 95 % and 99 %, method and recent accuracy.

The module serves `sizewatch forecast`. The input is a `rules.verdicts.projection.Projection`. Amounts are requests per
second of the whole tier.
"""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from exporters.render.svg_charts import Picture, Seen, picture_svg
from exporters.render.text import format_duration, text_table
from rules.telemetry.wording import number
from rules.verdicts.projection import ForecastPoint, Projection

WIDTH = 100

MOST_ROWS = 48
"""Maximum table rows: a day in half hours. The JSON has all bins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastResult:
    """Projection with its newest bins `seen`, the shares of combined methods, and `notes` for the reader. A note:
    "needs 2 days, has 5 hours: same as now, with its own error".
    """

    projection: Projection
    zone: str
    bin_seconds: float
    seen: tuple[Seen, ...] = ()
    weights: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()


def forecast_text(forecast: ForecastResult) -> str:
    """Return head, table and recent accuracy. With many bins, show the highest of every block."""
    one = forecast.projection
    made = f"made {_time(one.made_at, forecast.zone)} ({forecast.zone}) by {one.method}"
    lines = [f"{one.tier}: expected requests per second, {made}"]
    for note in forecast.notes:
        lines += textwrap.wrap(note, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    lines += [
        "",
        *_table(forecast),
        "",
        f"  lead      {format_duration(one.horizon_seconds)}",
        f"  coverage  {coverage_text(one)}",
    ]
    lines.append(f"  error     {comparison_text(one)}")
    if forecast.weights:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in sorted(forecast.weights, key=lambda row: -row[1]))
        lines += textwrap.wrap(shares, WIDTH, initial_indent="  methods   ", subsequent_indent=" " * 12)
    return "\n".join(lines)


def _table(forecast: ForecastResult) -> list[str]:
    points = forecast.projection.points
    if not points:
        return ["  nothing is expected: there is no forecast yet"]
    block = -(-len(points) // MOST_ROWS)
    rows = [_row(highest_quantiles(points[at : at + block]), forecast.zone) for at in range(0, len(points), block)]
    table = text_table(("from", "median", "95%", "99%"), rows)
    several = f"  each row is the highest of {block} bins of {format_duration(forecast.bin_seconds)}"
    return [*(f"  {line}" for line in table), *([several] if block > 1 else [])]


def highest_quantiles(points: tuple[ForecastPoint, ...]) -> ForecastPoint:
    """Return the highest quantiles of the bins, at the time of the first bin."""
    quantiles = {name: max(getattr(point, name) for point in points) for name in ("q50", "q95", "q99")}
    return ForecastPoint(t=points[0].t, **quantiles)


def _row(point: ForecastPoint, zone: str) -> tuple[str, ...]:
    return (_time(point.t, zone), *(number(q, "per_second") for q in (point.q50, point.q95, point.q99)))


def coverage_text(one: Projection) -> str:
    """Return in words how often the 95 % quantile was sufficient."""
    if not one.forecasts:
        return "not known yet: no target has passed"
    return f"{one.covered / one.forecasts:.1%} of {one.forecasts} past targets at or below their 95% quantile"


def comparison_text(one: Projection) -> str:
    """Return the error relative to the naive method in words, also if it is worse."""
    if one.error_ratio is None:
        return "not compared yet: no target has passed"
    worse = "" if one.error_ratio < 1 else "; the naive method was as good"
    return f"{one.error_ratio:.2f} of {one.naive or 'the naive method'} over {one.compared} targets{worse}"


def _time(t: float, zone: str) -> str:
    return datetime.fromtimestamp(t, ZoneInfo(zone)).strftime("%a %d %b %H:%M")


def forecast_json(forecast: ForecastResult) -> dict[str, Any]:
    """Return every bin of the forecast as JSON. Times are unix seconds."""
    one = forecast.projection
    return {
        "schema": 1,
        "tier": one.tier,
        "made_at": one.made_at,
        "lead_seconds": one.horizon_seconds,
        "bin_seconds": forecast.bin_seconds,
        "zone": forecast.zone,
        "method": one.method,
        "weights": dict(forecast.weights),
        "coverage": {
            "covered": one.covered,
            "targets": one.forecasts,
            "ratio": one.covered / one.forecasts if one.forecasts else None,
        },
        "error": {"ratio": one.error_ratio, "naive": one.naive, "targets": one.compared},
        "points": [asdict(point) for point in one.points],
        "notes": list(forecast.notes),
    }


def forecast_svg(forecast: ForecastResult) -> str:
    """Return the picture. Raise ValueError if nothing was seen and nothing is expected."""
    one = forecast.projection
    title = f"{one.tier}: requests per second, the median expected and the bands up to 95 % and 99 %"
    return picture_svg(
        Picture(
            title=title,
            zone=forecast.zone,
            bin_seconds=forecast.bin_seconds,
            seen=forecast.seen,
            ahead=one.points,
            made_at=one.made_at,
        )
    )
