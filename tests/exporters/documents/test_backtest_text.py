"""A backtest as text and JSON, and what it says of itself where it did not do well."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from exporters.documents.forecast import (
    Backtest,
    MethodScore,
    backtest_json,
    backtest_text,
    verdicts,
)

START = datetime(2026, 11, 20, tzinfo=UTC).timestamp()
NAIVE = MethodScore(
    method="same as now",
    horizon_minutes=15.0,
    targets=1152,
    wape=0.2112,
    pinball=3.4,
    wape_ratio=1.0,
    pinball_ratio=1.0,
    coverage=0.951,
)
OURS = replace(
    NAIVE,
    method="sizewatch",
    wape=0.1415,
    pinball=2.142,
    wape_ratio=0.67,
    pinball_ratio=0.63,
    coverage=0.948,
    coverage_low=0.931,
    coverage_high=0.962,
)
FAILED = replace(
    NAIVE, method="arima", wape=None, pinball=None, wape_ratio=None, pinball_ratio=None, coverage=None, targets=0
)
DAY = tuple(replace(one, horizon_minutes=1440.0, wape=12345.6) for one in (NAIVE, OURS))
TEST = Backtest(
    name="chat.csv",
    zone="UTC",
    bin_seconds=300.0,
    start=START,
    end=START + 4 * 86400,
    scores=(*DAY, NAIVE, OURS, FAILED),
    naive=((15.0, "same as now"), (1440.0, "same as yesterday")),
    notes=("12 bins are not known and were not scored.",),
)


def test_the_whole_text() -> None:
    assert (
        backtest_text(TEST)
        == """\
chat.csv: rolling origin, 2026-11-20 00:00 to 2026-11-24 00:00, bins of 5 min
  12 bins are not known and were not scored.

15 min ahead (naive: same as now)
  method                WAPE  P95 pinball  WAPE by naive  pinball by naive         coverage of 95%  targets
  same as now (naive)  0.211        3.400          1.000             1.000                   95.1%     1152
  sizewatch *          0.141        2.142          0.670             0.630  94.8% (93.1% to 96.2%)     1152
  arima                    -            -              -                 -                       -        0

1 d ahead (naive: same as yesterday)
  method         WAPE  P95 pinball  WAPE by naive  pinball by naive         coverage of 95%  targets
  same as now  12,346        3.400          1.000             1.000                   95.1%     1152
  sizewatch *  12,346        2.142          0.670             0.630  94.8% (93.1% to 96.2%)     1152"""
    )


def test_that_it_did_not_beat_the_naive_method_is_said_below_its_table() -> None:
    worse = replace(OURS, wape_ratio=1.0, pinball_ratio=1.2)
    text = backtest_text(replace(TEST, scores=(NAIVE, worse)))
    assert "sizewatch did not beat same as now: WAPE 1.000 of it" in text
    assert "sizewatch did not beat same as now: P95 pinball loss 1.200 of it" in text
    assert verdicts(OURS, "same as now") == []
    assert "did not beat" not in backtest_text(replace(TEST, scores=(OURS, replace(worse, method="arima"))))


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.90, 0.949, "too low: at most 94.9%"),
        (0.951, 0.99, "too high: at least 95.1%"),
        (0.95, 0.95, ""),
        (None, None, ""),
    ],
)
def test_a_quantile_that_does_not_hold_is_told(low: float | None, high: float | None, words: str) -> None:
    said = verdicts(replace(OURS, coverage_low=low, coverage_high=high), "")
    assert [words in one for one in said] == ([True] if words else [])


def test_the_json_holds_every_score_and_null_where_nothing_was_counted() -> None:
    told = json.loads(json.dumps(backtest_json(TEST), allow_nan=False))
    assert len(told["scores"]) == 5
    assert told["scores"][3]["pinball_ratio"] == 0.63
    assert told["scores"][4]["wape"] is None
    assert told["naive"][1] == {"horizon_minutes": 1440.0, "method": "same as yesterday"}
    assert (told["schema"], told["start"], told["end"]) == (1, START, START + 4 * 86400)
