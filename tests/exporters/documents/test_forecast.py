"""A forecast as text, JSON and picture."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from exporters.documents.forecast import MOST_ROWS, ForecastResult, forecast_json, forecast_svg, forecast_text
from exporters.render.svg_charts import Picture, picture_svg
from rules.verdicts.projection import ForecastPoint, Projection

NOON = datetime(2026, 11, 23, 12, 0, tzinfo=UTC).timestamp()
BIN = 300.0
SVG = "{http://www.w3.org/2000/svg}"


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
SEEN = ((NOON - 4 * BIN, 9.0), (NOON - 3 * BIN, None), (NOON - 2 * BIN, 8.0), (NOON - BIN, 10.0))
FORECAST = ForecastResult(
    projection=PROJECTION,
    zone="Europe/Berlin",
    bin_seconds=BIN,
    seen=SEEN,
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


def drawn(svg: str, kind: str, name: str) -> list[list[tuple[float, float]]]:
    """The points of every line or area of one class."""
    found = [one for one in ET.fromstring(svg).iter(f"{SVG}{kind}") if one.get("class") == name]
    shapes = [[pair.split(",") for pair in (one.get("points") or "").split()] for one in found]
    return [[(float(x), float(y)) for x, y in shape] for shape in shapes]


def test_the_picture_has_the_past_the_median_and_both_bands() -> None:
    svg = forecast_svg(FORECAST)
    assert ET.fromstring(svg).tag == f"{SVG}svg"
    (past,) = drawn(svg, "polyline", "seen line")
    (median,) = drawn(svg, "polyline", "near line")
    assert len(past) == 2, "the bin that is not known parts the line; what stands alone is a dot"
    assert len(median) == 3
    assert past[-1][0] < median[0][0]
    assert all(later[1] < earlier[1] for earlier, later in pairwise(median)), "more is higher up"
    near, far = drawn(svg, "polygon", "near area")[0], drawn(svg, "polygon", "far area")[0]
    assert min(y for _, y in far) < min(y for _, y in near) < min(y for _, y in median)
    assert svg.count('class="hole"') == 1
    assert "orange: expected median" in svg
    assert svg.count('class="seen dot"') == 1
    assert "the forecast was made" in svg


def test_a_missing_bin_is_a_gap_and_not_a_zero() -> None:
    (past,) = drawn(forecast_svg(FORECAST), "polyline", "seen line")
    zeroed = replace(FORECAST, seen=tuple((t, 0.0 if value is None else value) for t, value in SEEN))
    (joined,) = drawn(forecast_svg(zeroed), "polyline", "seen line")
    assert (len(past), len(joined)) == (2, 4)


def test_bins_in_a_row_that_are_not_known_are_one_hole() -> None:
    seen = tuple((NOON - BIN * i, None if i in (2, 3, 4, 7) else 5.0) for i in range(9, 0, -1))
    assert forecast_svg(replace(FORECAST, seen=seen)).count('class="hole"') == 2


def test_a_hostile_tier_stays_text_in_the_picture() -> None:
    hostile = replace(PROJECTION, tier='"><script>alert(1)</script>')
    root = ET.fromstring(forecast_svg(replace(FORECAST, projection=hostile)))
    assert not list(root.iter(f"{SVG}script"))
    labels = [one.get("aria-label") for one in root.iter(f"{SVG}svg")]
    assert any(label and label.startswith('"><script>') for label in labels)


@pytest.mark.parametrize(
    ("bins", "texts"), [(12, {"13:00"}), (288, {"15:00", "Tue 24"}), (288 * 28, {"Mon 30", "Mon 07"})]
)
def test_the_hours_marked_are_local_and_few(bins: int, texts: set[str]) -> None:
    picture = Picture(title="t", zone="Europe/Berlin", bin_seconds=BIN, seen=(), ahead=points(bins))
    marks = {one.text or "" for one in ET.fromstring(picture_svg(picture)).iter(f"{SVG}text")}
    assert texts <= marks
    assert len(marks) <= 12


def test_traffic_of_none_is_drawn_and_no_traffic_known_is_refused() -> None:
    nothing = Picture(title="t", zone="UTC", bin_seconds=BIN, seen=((NOON, 0.0), (NOON + BIN, 0.0)), ahead=())
    assert len(drawn(picture_svg(nothing), "polyline", "seen line")[0]) == 2
    with pytest.raises(ValueError, match="there is no picture of that"):
        picture_svg(replace(nothing, seen=()))
