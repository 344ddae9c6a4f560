"""A forecast and a backtest as text and JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from exporters.documents.forecast import (
    MOST_ROWS,
    Backtest,
    ForecastResult,
    backtest_json,
    backtest_text,
    forecast_json,
    forecast_text,
)
from forecast.backtest.scores import Scored
from rules.verdicts.context import ForecastPoint, Projection

NOON = datetime(2026, 11, 23, 12, 0, tzinfo=UTC).timestamp()
BIN = 300.0


def points(count: int) -> tuple[ForecastPoint, ...]:
    return tuple(ForecastPoint(t=NOON + BIN * i, q50=10.0 + i, q95=14.0 + i, q99=17.0 + 2 * i) for i in range(count))


PROJECTION = Projection(
    tier="chat",
    made_at=NOON,
    horizon_seconds=207.0,
    points=points(3),
    method="sizewatch",
    covered=953,
    forecasts=1000,
    error_ratio=0.61,
    naive="same as now",
    compared=1000,
)
FORECAST = ForecastResult(
    projection=PROJECTION,
    zone="Europe/Berlin",
    bin_seconds=BIN,
    weights=(("same as last week", 0.75), ("profile", 0.25), ("same as now", 0.001)),
    notes=("Needs 2 days, has 5 hours: same as now, with its own error.",),
)


def test_forecast_prints_the_whole_text() -> None:
    assert (
        forecast_text(FORECAST)
        == """\
chat: expected requests per second, made Mon 23 Nov 13:00 (Europe/Berlin) by sizewatch
  Needs 2 days, has 5 hours: same as now, with its own error.

  from              median     95%     99%
  Mon 23 Nov 13:00  10 rps  14 rps  17 rps
  Mon 23 Nov 13:05  11 rps  15 rps  19 rps
  Mon 23 Nov 13:10  12 rps  16 rps  21 rps

  lead      3 min
  coverage  95.3% of 1000 past targets at or below their 95% quantile
  error     0.61 of same as now over 1000 targets
  methods   same as last week 75%, profile 25%"""
    )


def test_rows_hold_highest_of_many_bins() -> None:
    day = replace(FORECAST, projection=replace(PROJECTION, points=points(288)))
    rows = [line for line in forecast_text(day).splitlines() if line.startswith(("  Mon ", "  Tue "))]
    assert len(rows) == MOST_ROWS
    assert rows[0].split()[4:] == ["15", "rps", "19", "rps", "27", "rps"]
    assert "each row is the highest of 6 bins of 5 min" in forecast_text(day)
    assert len(forecast_json(day)["points"]) == 288


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"covered": 0, "forecasts": 0}, "coverage  not known yet: no target has passed"),
        ({"error_ratio": None, "compared": 0}, "error     not known yet: no target has passed"),
        ({"error_ratio": None}, "error     not known: 1000 targets are too few, or same as now has no error"),
        ({"error_ratio": 1.0}, "1.00 of same as now over 1000 targets; the naive method was as good"),
        ({"points": ()}, "nothing is expected: no forecast yet"),
    ],
)
def test_a_weak_forecast_says_so(change: dict[str, Any], words: str) -> None:
    assert words in forecast_text(replace(FORECAST, projection=replace(PROJECTION, **change)))
    assert words not in forecast_text(FORECAST)


def test_the_forecast_json_holds_every_bin() -> None:
    told = json.loads(json.dumps(forecast_json(FORECAST), allow_nan=False))
    assert told["points"][1] == {"t": NOON + BIN, "q50": 11.0, "q95": 15.0, "q99": 19.0}
    assert (told["schema"], told["tier"], told["horizon_seconds"]) == (2, "chat", 207.0)
    known = [told[name] for name in ("bin_seconds", "zone", "covered", "error_ratio")]
    assert known == [300.0, FORECAST.zone, 953, 0.61]
    assert told["weights"] == dict(FORECAST.weights)


def scored(method: str, naive: str, horizon: float, wape: float | None, *draws: float) -> Scored:
    values = {"wape": wape, "pinball": 2.142, "wape_ratio": 0.67, "pinball_ratio": 0.63, "coverage": 0.948}
    known = {"targets": 1152, "values": values} if wape else {"targets": 0, "values": dict.fromkeys(values)}
    return Scored(method=method, horizon_seconds=horizon, naive=naive, draws={"coverage": np.array(draws)}, **known)


BACKTEST = Backtest(
    name="chat.csv",
    zone="UTC",
    bin_seconds=BIN,
    start=NOON,
    end=NOON + 4 * 86400,
    scores=(
        scored("sizewatch", "same as now", 900.0, 0.1415, 0.931, 0.962),
        scored("sizewatch", "same as yesterday", 86400.0, 12345.6),
        scored("same as now", "same as now", 900.0, 0.2112),
        scored("arima", "same as now", 900.0, None),
    ),
    notes=("12 bins are not known and were not scored.",),
)


def test_backtest_prints_the_whole_text() -> None:
    assert (
        backtest_text(BACKTEST)
        == """\
chat.csv: rolling origin, 2026-11-23 12:00 to 2026-11-27 12:00, bins of 5 min
  12 bins are not known and were not scored.

15 min ahead (naive: same as now)
  method                WAPE  P95 pinball  WAPE by naive  pinball by naive         coverage of 95%  targets
  sizewatch *          0.141        2.142          0.670             0.630  94.8% (93.2% to 96.1%)     1152
  same as now (naive)  0.211        2.142          0.670             0.630                   94.8%     1152
  arima                    -            -              -                 -                       -        0

1 d ahead (naive: same as yesterday)
  method             WAPE  P95 pinball  WAPE by naive  pinball by naive  coverage of 95%  targets
  sizewatch *  12,345.600        2.142          0.670             0.630            94.8%     1152"""
    )


def test_the_backtest_json_holds_every_score() -> None:
    told = json.loads(json.dumps(backtest_json(BACKTEST), allow_nan=False))
    assert (told["schema"], told["start"], told["notes"]) == (2, NOON, list(BACKTEST.notes))
    assert [score["wape"] for score in told["scores"]] == [0.1415, 12345.6, 0.2112, None]
    assert told["scores"][0]["coverage_bounds"] == pytest.approx([0.9318, 0.9612], abs=1e-4)
    assert (told["scores"][1]["naive"], told["scores"][1]["horizon_seconds"]) == ("same as yesterday", 86400.0)
