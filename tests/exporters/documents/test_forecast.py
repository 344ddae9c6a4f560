"""Forecast, backtest and pre-warming as text and JSON: golden files, reasons, the sentence and its next step."""

from dataclasses import replace
from datetime import UTC, datetime
from difflib import ndiff

import numpy as np
import pytest
from golden_text import check_golden, print_fields

from exporters.documents.forecast import (
    MOST_ROWS,
    OLD_SECONDS,
    Backtest,
    ForecastResult,
    NextStep,
    Prewarm,
    PrewarmValue,
    Recommendation,
    Strategy,
    backtest_json,
    backtest_text,
    forecast_json,
    forecast_text,
    prewarm_json,
    prewarm_text,
    with_next_step,
    without_old_schedule,
)
from forecast.backtest.scores import Scored
from forecast.capacity.drain import DrainTime
from forecast.capacity.prewarm import DecisionBasis, ScheduleStep, merge_steps
from rules.plan.capacity import stated_capacity
from rules.plan.replica_count import Margin, replica_count
from rules.telemetry.signals import Reading
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


def test_rows_hold_highest_of_many_bins() -> None:
    day = replace(FORECAST, projection=replace(PROJECTION, points=points(288)))
    rows = [line for line in forecast_text(day).splitlines() if line.startswith(("  Mon ", "  Tue "))]
    assert len(rows) == MOST_ROWS
    assert rows[0].split()[4:] == ["15", "rps", "19", "rps", "27", "rps"]
    assert "each row is the highest of 6 bins of 5 min" in forecast_text(day)
    assert len(forecast_json(day)["points"]) == 288


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

MADE_AT = datetime(2026, 11, 23, 13, 1, 33, tzinfo=UTC).timestamp()
MIDNIGHT = datetime(2026, 11, 22, 23, 0, tzinfo=UTC).timestamp()
HOUR = 3600.0
CAPACITY = replace(stated_capacity(7.5, "the plan"), low=5.0, high=8.0)
WANTED = Recommendation(
    made_at=MADE_AT,
    zone="Europe/Berlin",
    replicas=7,
    decided_by=DecisionBasis.FORECAST,
    lead_seconds=207.0,
    lead_source="P95 of 14 measured cold starts",
    certainty=0.99,
    quantile_rps=41.2,
    expected_rps=36.5,
    for_forecast=7,
    held=4,
    now_rps=36.0,
    count=replica_count(41.2, CAPACITY, Margin(target_utilization=0.9, survives_loss_from=4)),
    needed_now=6,
    minimum_warm=2,
    ready=4,
    weighing="18 rps arrive, by their tokens the work of 36 rps",
)
STEPS = (
    ScheduleStep(start=MIDNIGHT, replicas=2, demand_rps=12.0, peak=MIDNIGHT + 5 * HOUR, expected_rps=9.0),
    ScheduleStep(start=MIDNIGHT + 8 * HOUR, replicas=6, demand_rps=41.2, peak=MIDNIGHT + 12 * HOUR, expected_rps=33.0),
    ScheduleStep(start=MIDNIGHT + 20 * HOUR, replicas=3, demand_rps=18.0),
)


def strategy(name: str, *numbers: float) -> Strategy:
    minutes, late, hours, money = numbers
    return Strategy(name=name, violation_minutes=minutes, late_requests=late, replica_hours=hours, money=money)


WORTH = PrewarmValue(
    start=MIDNIGHT - 14 * 86400,
    end=MIDNIGHT,
    zone="Europe/Berlin",
    requests=1_200_000.0,
    strategies=(
        strategy("static peak", 0.0, 0.0, 4032.0, 10080.0),
        strategy("reactive at 70%", 61.0, 2400.0, 2100.0, 5250.0),
        strategy("sizewatch", 30.24, 600.0, 1950.0, 4875.0),
        strategy("with room", 3.0, 40.0, 2160.0, 5400.0),
        strategy("perfect foresight", 0.0, 0.0, 1500.0, 3750.0),
    ),
    ours="sizewatch",
    perfect="perfect foresight",
    reacting="reactive at 70%",
    recommended="sizewatch",
    with_margin="with room",
    short_reason="pre-warming cost 7% less than reacting at 70%",
    covered_ratio=0.991,
    reason="Fewer violations than reacting, for less.",
    currency="USD",
)
REPORT = Prewarm(
    tier="chat",
    zone="Europe/Berlin",
    recommendation=WANTED,
    schedule=STEPS,
    schedule_certainty=0.99,
    until=MIDNIGHT + 86400,
    seen_until=MADE_AT - 33,
    as_of=MADE_AT,
    worth=WORTH,
    drain=DrainTime(e2e_p99=Reading(value=19.6, low=15.0, high=20.0, n=5000.0)),
)

BARE_REASON = "needs 2 days, has 5 hours"
UNKNOWN = Prewarm(tier="chat", zone="UTC", recommendation=None, reason=BARE_REASON)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("forecast.txt", forecast_text(FORECAST)),
        ("forecast_fields.txt", print_fields(forecast_json(FORECAST))),
        ("backtest.txt", backtest_text(BACKTEST)),
        ("backtest_fields.txt", print_fields(backtest_json(BACKTEST))),
        ("prewarm.txt", prewarm_text(REPORT, explain=True)),
        ("prewarm_fields.txt", print_fields(prewarm_json(REPORT))),
        ("prewarm_unknown_fields.txt", print_fields(prewarm_json(UNKNOWN))),
    ],
)
def test_document_is_its_golden_file(name: str, text: str) -> None:
    check_golden(__file__, name, text)


def test_worth_stands_only_where_explained() -> None:
    assert prewarm_text(REPORT) == prewarm_text(REPORT, explain=True).partition("\n\nWhat it was worth")[0]


WEAK = (
    {"covered": 0, "forecasts": 0},
    {"error_ratio": None, "compared": 0},
    {"error_ratio": None},
    {"error_ratio": 1.0},
    {"points": ()},
)
CHANGES = (
    {"ready": None},
    {"ready": 7},
    {"ready": 9},
    {"ready": 1},
    {"certainty": 0.998},
    {"quantile_rps": None},
    {"event_factor": 2.0},
    {"expected_rps": 41.3},
    *({"decided_by": basis} for basis in DecisionBasis),
)


def list_changes(change: object, before: str, after: str) -> str:
    """Return the lines that a change adds and takes away."""
    lines = [line.rstrip() for line in ndiff(before.splitlines(), after.splitlines()) if line.startswith(("+", "-"))]
    return "\n".join([f"# {change}", *lines, ""])


def test_reasons_and_gaps_have_golden_words() -> None:
    texts = []
    for change in WEAK:
        weak = replace(FORECAST, projection=replace(PROJECTION, **change))
        texts.append(list_changes(change, forecast_text(FORECAST), forecast_text(weak)))
    for change in CHANGES:
        other = replace(REPORT, recommendation=replace(WANTED, **change))
        texts.append(list_changes(change, prewarm_text(REPORT), prewarm_text(other)))
    texts.append(list_changes("no end", prewarm_text(REPORT), prewarm_text(replace(REPORT, until=None))))
    free = replace(WORTH, strategies=tuple(replace(strategy, money=None) for strategy in WORTH.strategies))
    explained = prewarm_text(REPORT, explain=True)
    texts.append(list_changes("no price", explained, prewarm_text(replace(REPORT, worth=free), explain=True)))
    lost = replace(REPORT, worth=None, reason=BARE_REASON)
    texts.append(list_changes("no worth", prewarm_text(REPORT), prewarm_text(lost, explain=True)))
    texts.extend(prewarm_text(report, explain=True) for report in (replace(UNKNOWN, reason=""), UNKNOWN))
    check_golden(__file__, "words.txt", "\n".join(texts))


def test_no_replica_goes_while_the_slo_burns() -> None:
    burning = WANTED.with_present(8, is_burning=True)
    assert (burning.replicas, burning.decided_by) == (8, DecisionBasis.INCIDENT)
    assert burning.count.utilization == pytest.approx(41.2 / (8 * 7.5))
    assert "8 replicas wanted" in burning.sentence
    assert "8 are ready: enough for that" in burning.sentence
    assert WANTED.with_present(8, is_burning=False).replicas == 7
    assert "1 is ready: start 6 now" in WANTED.with_present(1, is_burning=True).sentence


@pytest.mark.parametrize(
    ("ready", "replicas", "start", "words"),
    [
        (2, 4, MADE_AT + 600, "2 are ready: enough for that; 4 from 14:11 by the schedule, of 99% certainty"),
        (4, 4, MADE_AT + 600, "4 are ready: keep them; 4 from 14:11 by the schedule, of 99% certainty"),
        (5, 4, MADE_AT + 600, "5 are ready: 1 may go; 4 from 14:11 by the schedule, of 99% certainty"),
        (1, 4, MADE_AT + 600, "1 is ready: start 1 now; 4 from 14:11 by the schedule, of 99% certainty"),
        (2, 4, MADE_AT - 600, "2 are ready: enough for that; 4 now by the schedule, of 99% certainty"),
        (2, 4, MADE_AT + 3600, "2 are ready: enough for that; 4 from 15:01 by the schedule, of 99% certainty"),
        (5, 4, MADE_AT + 3600, "5 are ready: 3 may go; 4 from 15:01 by the schedule, of 99% certainty"),
        (3, 1, MADE_AT + 600, "3 are ready: 1 may go; 1 from 14:11 by the schedule, of 99% certainty"),
        (2, 2, MADE_AT + 600, "2 are ready: enough for that"),
    ],
)
def test_sentence_agrees_with_next_step(ready: int, replicas: int, start: float, words: str) -> None:
    """Two replicas are wanted at 14:05. A bin is 15 minutes long."""
    steps = (
        ScheduleStep(start=MADE_AT - 3600, replicas=2, demand_rps=9.0),
        ScheduleStep(start=start, replicas=replicas, demand_rps=20.0),
    )
    wanted = replace(REPORT, recommendation=replace(WANTED, replicas=2, ready=ready), schedule=merge_steps(steps))
    report = with_next_step(wanted, 900.0)
    assert report.recommendation.sentence.partition("; ")[2] == words
    assert " ".join(prewarm_text(report).split()).count(words) == 1
    assert prewarm_json(report)["recommendation"]["sentence"] == report.recommendation.sentence


def test_the_highest_soon_step_comes_first() -> None:
    steps = tuple(
        ScheduleStep(start=MADE_AT + after, replicas=count, demand_rps=9.0) for after, count in ((60, 8), (900, 9))
    )
    report = with_next_step(replace(REPORT, schedule=steps), 900.0)
    assert report.recommendation.next_step == NextStep(start=MADE_AT + 900, replicas=9, certainty=0.99, is_soon=True)
    old = without_old_schedule(report, MADE_AT + 2 * OLD_SECONDS)
    assert old.recommendation == replace(report.recommendation, next_step=None)
    bare = replace(REPORT, schedule=(), schedule_certainty=None)
    assert with_next_step(bare, 900.0) is bare


def test_old_demand_makes_no_schedule() -> None:
    seen = MADE_AT - 33
    assert without_old_schedule(REPORT, seen + OLD_SECONDS) is REPORT
    old = without_old_schedule(REPORT, seen + OLD_SECONDS + 3 * 3600 + 60)
    assert (old.schedule, old.until, old.schedule_certainty) == ((), None, None)
    assert old.reason == "the newest demand of the tier is 4 h 1 min old; no schedule is made of it"
    assert without_old_schedule(replace(REPORT, seen_until=None), MADE_AT).schedule == ()
