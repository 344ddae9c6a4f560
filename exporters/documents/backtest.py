"""Backtest as text, JSON and picture: method by horizon, compared with naive methods.

Scores come from `forecast/`. WAPE is the sum of absolute errors by the sum of actual values. The pinball loss is that
of the 95 % quantile. Both are compared with the naive method of the horizon.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from exporters.render.svg_charts import Picture, Seen, picture_svg
from exporters.render.text import format_duration, text_table
from rules.verdicts.projection import ForecastPoint

OURS = "sizewatch"
"""Method that pre-warming uses."""

TARGET = 0.95
"""Quantile whose coverage is reported (0-1)."""


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
class BacktestTrace:
    """Forecasts of a horizon and the actual values, in requests per second, for the picture."""

    horizon_minutes: float
    seen: tuple[Seen, ...]
    forecast: tuple[ForecastPoint, ...]


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
    traced: tuple[BacktestTrace, ...] = ()
    notes: tuple[str, ...] = ()


def backtest_text(backtest: Backtest) -> str:
    """Return a table per horizon with our method marked. Notes follow if it did not beat the naive method."""
    head = f"{backtest.name}: rolling origin, {_time(backtest, backtest.start)} to {_time(backtest, backtest.end)}"
    lines = [f"{head}, bins of {format_duration(backtest.bin_seconds)}", *(f"  {note}" for note in backtest.notes)]
    for horizon in _horizons(backtest.scores):
        lines += ["", *_horizon(backtest, horizon)]
    return "\n".join(lines)


HEAD = ("method", "WAPE", "P95 pinball", "WAPE by naive", "pinball by naive", "coverage of 95%", "targets")


def _horizon(backtest: Backtest, horizon: float) -> list[str]:
    scores = [score for score in backtest.scores if score.horizon_minutes == horizon]
    naive = dict(backtest.naive).get(horizon, "")
    rows = [_row(score, naive) for score in scores]
    beside = f" (naive: {naive})" if naive else ""
    lines = [f"{format_duration(horizon * 60)} ahead{beside}", *(f"  {line}" for line in text_table(HEAD, rows))]
    return [*lines, *(f"  {said}" for score in scores if score.method == OURS for said in verdicts(score, naive))]


def _row(score: MethodScore, naive: str) -> tuple[str, ...]:
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
    said = []
    for what, ratio in (("WAPE", score.wape_ratio), ("P95 pinball loss", score.pinball_ratio)):
        if ratio is not None and ratio >= 1:
            said.append(f"{OURS} did not beat {naive or 'the naive method'}: {what} {ratio:.3f} of it")
    high, low = score.coverage_high, score.coverage_low
    if high is not None and high < TARGET:
        said.append(f"its {TARGET:.0%} quantile was too low: at most {high:.1%} were covered")
    if low is not None and low > TARGET:
        said.append(f"its {TARGET:.0%} quantile was too high: at least {low:.1%} were covered")
    return said


def _horizons(scores: Iterable[MethodScore]) -> list[float]:
    return sorted({score.horizon_minutes for score in scores})


def _time(backtest: Backtest, t: float) -> str:
    return datetime.fromtimestamp(t, ZoneInfo(backtest.zone)).strftime("%Y-%m-%d %H:%M")


def backtest_json(backtest: Backtest) -> dict[str, Any]:
    """Return the backtest as JSON. Times are unix seconds, uncounted values are null."""
    return {
        "schema": 1,
        "name": backtest.name,
        "zone": backtest.zone,
        "bin_seconds": backtest.bin_seconds,
        "start": backtest.start,
        "end": backtest.end,
        "naive": [{"horizon_minutes": horizon, "method": method} for horizon, method in backtest.naive],
        "scores": [asdict(score) for score in backtest.scores],
        "notes": list(backtest.notes),
    }


def backtest_svg(backtest: Backtest, horizon_minutes: float) -> str:
    """Return forecasts at this horizon over the actual values. Raise ValueError if the horizon was not traced."""
    traced = next((one for one in backtest.traced if one.horizon_minutes == horizon_minutes), None)
    if traced is None:
        known = ", ".join(f"{one.horizon_minutes:g}" for one in backtest.traced) or "none"
        raise ValueError(f"{horizon_minutes:g} minutes ahead were not traced; there are: {known}")
    return picture_svg(
        Picture(
            title=f"{backtest.name}: requests per second, and what was expected {format_duration(horizon_minutes * 60)} before",
            zone=backtest.zone,
            bin_seconds=backtest.bin_seconds,
            seen=traced.seen,
            ahead=traced.forecast,
        )
    )
