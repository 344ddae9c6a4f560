"""A forecast as text and JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from exporters.documents.forecast import MOST_ROWS, ForecastResult, forecast_json, forecast_text
from rules.verdicts.projection import ForecastPoint, Projection

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
    weights=(("profile", 0.25), ("same as last week", 0.75)),
    notes=("Needs 2 days, has 5 hours: same as now, with its own error.",),
)


def test_the_whole_text() -> None:
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


def test_of_many_bins_each_row_is_the_highest_of_a_block() -> None:
    day = replace(FORECAST, projection=replace(PROJECTION, points=points(288)))
    text = forecast_text(day)
    rows = [line for line in text.splitlines() if re.match("  (Mon|Tue) ", line)]
    assert len(rows) == MOST_ROWS
    assert rows[0].split()[4:] == ["15", "rps", "19", "rps", "27", "rps"]
    assert "each row is the highest of 6 bins of 5 min" in text
    assert len(forecast_json(day)["points"]) == 288


def test_what_has_not_been_seen_to_hold_is_said() -> None:
    fresh = replace(PROJECTION, covered=0, forecasts=0, error_ratio=None)
    text = forecast_text(replace(FORECAST, projection=fresh, weights=()))
    assert "coverage  not known yet: no target has passed" in text
    assert "error     not compared yet" in text
    assert "methods" not in text
    assert forecast_json(replace(FORECAST, projection=fresh))["coverage"]["ratio"] is None


@pytest.mark.parametrize("ratio", [1.0, 1.4])
def test_that_the_naive_method_was_as_good_is_said(ratio: float) -> None:
    text = forecast_text(replace(FORECAST, projection=replace(PROJECTION, error_ratio=ratio)))
    assert "; the naive method was as good" in text
    assert "as good" not in forecast_text(FORECAST)


def test_no_points_are_no_table() -> None:
    assert "there is no forecast yet" in forecast_text(replace(FORECAST, projection=replace(PROJECTION, points=())))


def test_the_json_holds_every_bin() -> None:
    told = json.loads(json.dumps(forecast_json(FORECAST), allow_nan=False))
    assert told["points"][1] == {"t": NOON + BIN, "q50": 11.0, "q95": 15.0, "q99": 19.0}
    assert (told["schema"], told["lead_seconds"], told["bin_seconds"], told["zone"]) == (
        1,
        207.0,
        300.0,
        "Europe/Berlin",
    )
    assert told["coverage"] == {"covered": 953, "targets": 1000, "ratio": 0.953}
    assert told["error"] == {"ratio": 0.61, "naive": "same as now", "targets": 1000}
    assert told["weights"] == {"profile": 0.25, "same as last week": 0.75}
