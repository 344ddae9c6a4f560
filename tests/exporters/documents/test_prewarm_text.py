"""What pre-warming tells: the sentence, the reasons, the schedule, and what it was worth."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from exporters.documents.prewarm import (
    BECAUSE,
    OLD_SECONDS,
    NextStep,
    Prewarm,
    Recommendation,
    prewarm_json,
    prewarm_text,
    with_next_step,
    without_old_schedule,
)
from exporters.documents.prewarm_value import Counted, Highest, PrewarmValue, Strategy, worth_json, worth_lines
from forecast.capacity.drain import DrainTime
from forecast.capacity.prewarm import DecisionBasis, ScheduleStep, merge_steps
from rules.telemetry.signals import Reading

NOON = datetime(2026, 11, 23, 13, 1, 33, tzinfo=UTC).timestamp()
MIDNIGHT = datetime(2026, 11, 22, 23, 0, tzinfo=UTC).timestamp()
ONE = Recommendation(
    tier="chat",
    made_at=NOON,
    zone="Europe/Berlin",
    replicas=6,
    decided_by=DecisionBasis.FORECAST,
    lead_seconds=207.0,
    lead_source="P95 of 14 measured cold starts",
    certainty=0.99,
    quantile_rps=41.2,
    expected_rps=36.5,
    for_forecast=6,
    held=4,
    now_rps=36.0,
    usable_rps=7.5,
    usable_source="the plan",
    count=Counted(
        target_utilization=0.9,
        survives_loss_from=4,
        demand_rps=41.2,
        fewest=6,
        most=8,
        utilization=41.2 / 45,
        utilization_one_lost=41.2 / 37.5,
    ),
    needed_now=5,
    minimum_warm=2,
    method="sizewatch",
    ready=4,
    coverage=0.953,
    error_ratio=0.61,
    naive="same as now",
)
STEPS = (
    ScheduleStep(start=MIDNIGHT, replicas=2, demand_rps=9.1),
    ScheduleStep(start=MIDNIGHT + 4 * 3600, replicas=2, demand_rps=12.0, peak=MIDNIGHT + 5 * 3600, expected_rps=9.0),
    ScheduleStep(start=MIDNIGHT + 8 * 3600, replicas=6, demand_rps=41.2, peak=MIDNIGHT + 12 * 3600, expected_rps=33.0),
    ScheduleStep(start=MIDNIGHT + 20 * 3600, replicas=3, demand_rps=18.0),
)
WORTH = PrewarmValue(
    start=MIDNIGHT - 14 * 86400,
    end=MIDNIGHT,
    zone="Europe/Berlin",
    requests=1_200_000.0,
    strategies=(
        Strategy(name="static peak", violation_minutes=0.0, late_requests=0.0, replica_hours=4032.0, money=10080.0),
        Strategy(
            name="reactive at 70%", violation_minutes=61.0, late_requests=2400.0, replica_hours=2100.0, money=5250.0
        ),
        Strategy(name="sizewatch", violation_minutes=30.24, late_requests=600.0, replica_hours=1950.0, money=4875.0),
        Strategy(
            name="perfect foresight", violation_minutes=0.0, late_requests=0.0, replica_hours=1500.0, money=3750.0
        ),
    ),
    ours="sizewatch",
    perfect="perfect foresight",
    reacting="reactive at 70%",
    recommended="sizewatch",
    short_reason="pre-warming cost 7% less than reacting at 70%",
    covered_ratio=0.991,
    reason="Fewer violations than reacting, for less.",
    currency="USD",
)
REPORT = Prewarm(
    tier="chat",
    zone="Europe/Berlin",
    recommendation=ONE,
    schedule=STEPS,
    schedule_certainty=0.99,
    until=MIDNIGHT + 86400,
    seen_until=NOON - 33,
    highest=Highest(rps=42.0, at=MIDNIGHT - 10 * 3600),
    worth=WORTH,
)


def test_it_says_what_scaling_down_takes() -> None:
    drain = DrainTime(e2e_p99=Reading(value=19.6, low=15.0, high=20.0, n=5000.0))
    text = " ".join(prewarm_text(replace(REPORT, drain=drain)).split())
    assert "scale down 99% of requests end within 20 s; terminationGracePeriodSeconds 55 (15 s preStop" in text
    assert prewarm_json(replace(REPORT, drain=drain))["drain"]["grace_seconds"] == 55
    assert prewarm_json(REPORT)["drain_gap"] == "a trace has no durations of requests"


def test_the_whole_text() -> None:
    assert (
        prewarm_text(REPORT, explain=True)
        == """\
chat: 6 replicas wanted at 14:05 because of the demand expected then (lead 207 s, P99 of demand 41.2
  rps at 7.5 rps usable a replica); 4 are ready: start 2 now
  demand       41.2 rps = 36.5 rps expected + 4.7 rps margin to P99: 6 replicas; highest minute of
               the last week: 42 rps (Sun 14:00)
  lead         207 s: P95 of 14 measured cold starts
  usable       7.5 rps a replica: the plan
  count        92% used, 110% with one lost at 41.2 rps; up to 90% may be used, and from 4 replicas
               on one may be lost; 6 to 8 by the bounds of what a replica takes; no safety factor:
               the demand is a quantile
  never below  5 for 36 rps now, 2 minimum warm, 4 held
  forecast     sizewatch; 95.3% at or below the 95% quantile, error 0.61 of same as now
  worth        the last 14 days: pre-warming cost 7% less than reacting at 70% (--explain shows the
               numbers)

Schedule (Europe/Berlin), enough with 99% certainty
  warm from  to     replicas  for up to  expected
  00:00      08:00         2     12 rps     9 rps
  08:00      20:00         6   41.2 rps    33 rps
  20:00      00:00         3     18 rps         -
  most at 12:00: 41.2 rps = 33 rps expected + 8.2 rps margin to P99; highest minute of the last
    week: 42 rps (Sun 14:00)

What it was worth, 2026-11-09 00:00 to 2026-11-23 00:00 (1,200,000 requests)
  strategy           violation min  of the time  late requests  of all  replica-hours  of perfect        USD
  static peak                    0           0%              0      0%          4,032        2.69  10,080.00
  reactive at 70%               61        0.30%          2,400   0.20%          2,100        1.40   5,250.00
  sizewatch *                   30        0.15%            600  0.050%          1,950        1.30   4,875.00
  perfect foresight              0           0%              0      0%          1,500        1.00   3,750.00
  * cheaper, or as good without a forecast. The last 14 days: fewer violations than reacting, for
    less."""
    )


def test_a_schedule_of_one_count_ends_on_the_next_day() -> None:
    (step, *_) = STEPS
    text = prewarm_text(replace(REPORT, schedule=(step,)))
    assert " ".join(text.splitlines()[-1].split()) == "00:00 00:00 next day 2 9.1 rps -"


def test_without_explain_the_worth_is_left_out() -> None:
    text = prewarm_text(REPORT)
    assert "What it was worth" not in text
    assert "worth        the last 14 days: pre-warming cost 7% less than reacting at 70%" in text
    assert "worth  " not in prewarm_text(replace(REPORT, worth=None))


@pytest.mark.parametrize(
    ("ready", "words"),
    [
        (None, "how many are ready is not known"),
        (6, "6 are ready: enough for that"),
        (8, "8 are ready: 2 may go"),
        (1, "1 is ready: start 5 now"),
    ],
)
def test_it_says_what_to_do_with_what_is_ready(ready: int | None, words: str) -> None:
    text = prewarm_text(replace(REPORT, recommendation=replace(ONE, ready=ready)))
    assert words in " ".join(text.split())


def test_no_replica_may_go_while_an_slo_incident_is_open() -> None:
    burning = ONE.with_present(8, is_burning=True)
    assert burning.replicas == 8
    assert burning.count.utilization == pytest.approx(ONE.count.demand_rps / (8 * ONE.usable_rps))
    assert "8 replicas wanted" in burning.sentence
    assert "no replica goes while it lasts" in burning.sentence
    assert "8 are ready: enough for that" in burning.sentence
    assert ONE.with_present(8, is_burning=False).replicas == 6
    assert "1 is ready: start 5 now" in ONE.with_present(1, is_burning=True).sentence


@pytest.mark.parametrize(
    ("ready", "replicas", "start", "words"),
    [
        (2, 4, NOON + 600, "2 are ready: enough for that; 4 from 14:11 by the schedule, of 99% certainty"),
        (4, 4, NOON + 600, "4 are ready: keep them; 4 from 14:11 by the schedule, of 99% certainty"),
        (5, 4, NOON + 600, "5 are ready: 1 may go; 4 from 14:11 by the schedule, of 99% certainty"),
        (1, 4, NOON + 600, "1 is ready: start 1 now; 4 from 14:11 by the schedule, of 99% certainty"),
        (2, 4, NOON - 600, "2 are ready: enough for that; 4 now by the schedule, of 99% certainty"),
        (2, 4, NOON + 3600, "2 are ready: enough for that; 4 from 15:01 by the schedule, of 99% certainty"),
        (3, 1, NOON + 600, "3 are ready: 1 may go; 1 from 14:11 by the schedule, of 99% certainty"),
        (2, 2, NOON + 600, "2 are ready: enough for that"),
    ],
)
def test_the_sentence_names_the_next_step_and_never_says_the_opposite(
    ready: int, replicas: int, start: float, words: str
) -> None:
    """Two replicas are wanted at 14:05. A bin is 15 minutes long."""
    steps = (
        ScheduleStep(start=NOON - 3600, replicas=2, demand_rps=9.0),
        ScheduleStep(start=start, replicas=replicas, demand_rps=20.0),
    )
    wanted = replace(REPORT, recommendation=replace(ONE, replicas=2, ready=ready), schedule=merge_steps(steps))
    found = with_next_step(wanted, 900.0)
    assert found.recommendation is not None
    assert found.recommendation.sentence.partition("; ")[2] == words
    assert " ".join(prewarm_text(found).split()).count(words) == 1
    assert prewarm_json(found)["recommendation"]["sentence"] == found.recommendation.sentence


def test_the_highest_step_that_is_soon_comes_first_and_an_old_schedule_has_none() -> None:
    steps = tuple(
        ScheduleStep(start=NOON + after, replicas=count, demand_rps=9.0) for after, count in ((60, 7), (900, 9))
    )
    found = with_next_step(replace(REPORT, schedule=steps), 900.0)
    assert found.recommendation is not None
    assert found.recommendation.next_step == NextStep(start=NOON + 900, replicas=9, certainty=0.99, is_soon=True)
    old = without_old_schedule(found, NOON + 2 * OLD_SECONDS)
    assert old.recommendation == replace(found.recommendation, next_step=None)
    bare = replace(REPORT, schedule=(), schedule_certainty=None)
    assert with_next_step(bare, 900.0) is bare


def test_every_reason_has_words() -> None:
    assert set(BECAUSE) == set(DecisionBasis)
    for decided, words in BECAUSE.items():
        told = prewarm_text(replace(REPORT, recommendation=replace(ONE, decided_by=decided)))
        assert words in " ".join(told.split())


@pytest.mark.parametrize(
    ("quantile", "expected", "event", "words"),
    [
        (
            9.27,
            3.9,
            1.0,
            "9.27 rps = 3.9 rps expected + 5.37 rps margin to P99: 6 replicas; highest minute of the last week: 4.1 rps",
        ),
        (9.27, 3.9, 1.0, "the margin lifts it above: so far off were the worst of the forecast's own past errors, and"),
        (9.27, 3.9, 1.0, "99.10% of the last week's minutes stayed within their own P99"),
        (9.27, 4.5, 1.0, "the trend lifts it above: more is expected even without a margin"),
        (9.27, 7.0, 2.0, "9.27 rps = 7 rps expected (3.5 rps x 2 for a known event) + 2.27 rps margin"),
        (9.27, 7.0, 2.0, "the known event lifts it above: it multiplies demand by 2"),
        (
            3.9,
            4.0,
            1.0,
            "3.9 rps = 4 rps expected - 0.1 rps margin to P99: 6 replicas; highest minute of the last week: 4.1 rps",
        ),
        (0.0, 0.0, 0.0, "0 rps = 0 rps expected (0 rps x 0 for a known event) + 0 rps margin"),
    ],
)
def test_a_demand_is_told_by_its_parts_and_why_it_is_above_what_was_seen(
    quantile: float, expected: float, event: float, words: str
) -> None:
    one = replace(ONE, quantile_rps=quantile, expected_rps=expected, event_factor=event)
    text = " ".join(
        prewarm_text(replace(REPORT, recommendation=one, highest=Highest(rps=4.1, at=NOON), schedule=())).split()
    )
    assert words in text
    assert ("lifts it above" in text) == (quantile > 4.1)


def test_the_highest_demand_of_a_schedule_says_why_too() -> None:
    text = " ".join(prewarm_text(replace(REPORT, highest=Highest(rps=30.0, at=NOON), recommendation=None)).split())
    assert "most at 12:00: 41.2 rps = 33 rps expected + 8.2 rps margin to P99" in text
    assert "the trend lifts it above" in text
    no_parts = replace(REPORT, schedule=tuple(replace(step, expected_rps=None) for step in STEPS))
    assert "most at" not in prewarm_text(no_parts)


def test_no_schedule_is_made_of_demand_that_is_an_hour_old() -> None:
    seen = NOON - 33
    assert without_old_schedule(REPORT, seen + OLD_SECONDS) is REPORT
    old = without_old_schedule(REPORT, seen + OLD_SECONDS + 3 * 3600 + 60)
    assert (old.schedule, old.until, old.schedule_certainty) == ((), None, None)
    assert old.reason == "the newest demand of the tier is 4 h 1 min old: no schedule is made of it"
    assert without_old_schedule(replace(REPORT, seen_until=None), NOON).schedule == ()


def test_what_is_said_of_a_trace_says_that_it_is_not_live() -> None:
    text = prewarm_text(replace(REPORT, as_of=NOON))
    assert text.startswith("As of the end of the trace, 2026-11-23 14:01 (Europe/Berlin): this is not live.\n\nchat: 6")
    assert prewarm_json(replace(REPORT, as_of=NOON))["as_of"] == NOON


def test_what_could_not_be_counted_is_not_told_as_a_number() -> None:
    text = prewarm_text(replace(REPORT, recommendation=replace(ONE, coverage=None, error_ratio=None)))
    assert "coverage not known yet, not compared yet" in text


def test_a_recommendation_without_a_forecast_says_so() -> None:
    text = prewarm_text(replace(REPORT, recommendation=replace(ONE, quantile_rps=None, decided_by=DecisionBasis.NOW)))
    assert "(lead 207 s, no forecast: demand now 36 rps at 7.5 rps usable a replica)" in " ".join(text.split())
    fine = prewarm_text(replace(REPORT, recommendation=replace(ONE, certainty=0.998)))
    assert "P99.8 of demand 41.2 rps" in " ".join(fine.split())


def test_no_recommendation_is_an_answer_with_its_reason() -> None:
    empty = Prewarm(tier="chat", zone="UTC", recommendation=None, reason="Needs 2 days, has 5 hours.")
    assert prewarm_text(empty) == "chat: no recommendation. Needs 2 days, has 5 hours."
    assert prewarm_text(empty, explain=True).endswith("What it was worth cannot be told: Needs 2 days, has 5 hours.")
    told = prewarm_json(empty)
    assert (told["recommendation"], told["worth"], told["schedule"], told["reason"]) == (None, None, [], empty.reason)


def test_neighbours_of_one_count_are_one_step_for_the_highest_demand() -> None:
    assert [(s.start, s.replicas, s.demand_rps) for s in merge_steps(reversed(STEPS))] == [
        (MIDNIGHT, 2, 12.0),
        (MIDNIGHT + 8 * 3600, 6, 41.2),
        (MIDNIGHT + 20 * 3600, 3, 18.0),
    ]
    assert merge_steps(()) == ()
    falling = (
        ScheduleStep(start=0.0, replicas=2, demand_rps=12.0),
        ScheduleStep(start=1.0, replicas=2, demand_rps=9.0),
    )
    assert merge_steps(falling) == (falling[0],)
    assert (merge_steps(STEPS)[0].peak, merge_steps(STEPS)[0].expected_rps) == (MIDNIGHT + 5 * 3600, 9.0)


def test_when_reacting_was_as_good_that_is_a_fact_about_the_past() -> None:
    worth = replace(WORTH, recommended="reactive at 70%", reason="It costs as much and is as late.")
    last = " ".join(" ".join(worth_lines(worth)[-2:]).split()).partition("* ")[2]
    assert last == ("cheaper, or as good without a forecast. The last 14 days: it costs as much and is as late.")
    assert "ecommended" not in "\n".join(worth_lines(worth))
    assert "  reactive at 70% *" in "\n".join(worth_lines(worth))


ROOMY = replace(
    WORTH,
    strategies=(
        *WORTH.strategies[:3],
        Strategy(name="with room", violation_minutes=3.0, late_requests=40.0, replica_hours=2160.0, money=5400.0),
        WORTH.strategies[3],
    ),
    with_margin="with room",
)


def test_the_margin_has_a_line_and_one_sentence_of_its_own() -> None:
    lines = worth_lines(ROOMY)
    assert len(lines) == len(worth_lines(WORTH)) + 3
    assert [line for line in lines if "with room" in line] == [
        "  with room                      3       0.015%             40  0.0033%          2,160        1.44   5,400.00"
    ]
    assert ROOMY.margin_sentence == (
        "The margin of recommended counts costs 210 replica-hours (525 USD); the time short of capacity goes from 30 to 3 min."
    )
    assert " ".join(" ".join(lines[-2:]).split()) == ROOMY.margin_sentence
    assert worth_json(ROOMY)["margin_sentence"] == ROOMY.margin_sentence
    assert (WORTH.margin_sentence, worth_json(WORTH)["margin_sentence"]) == ("", "")


def test_a_margin_that_spares_more_than_it_costs_and_has_no_price_says_so() -> None:
    roomy = replace(ROOMY.strategies[3], violation_minutes=30.4, replica_hours=1900.0, money=None)
    worth = replace(ROOMY, strategies=(*WORTH.strategies, roomy))
    assert worth.margin_sentence == (
        "The margin of recommended counts saves 50 replica-hours; the time short of capacity stays 30 min."
    )


def test_without_a_price_there_is_no_column_of_money() -> None:
    bare = replace(WORTH, strategies=tuple(replace(one, money=None) for one in WORTH.strategies))
    assert "USD" not in "\n".join(worth_lines(bare))
    some = replace(WORTH, strategies=(replace(WORTH.strategies[0], money=None), *WORTH.strategies[1:]))
    assert worth_lines(some)[2].endswith("  -")


def test_shares_that_are_small_are_not_written_as_none() -> None:
    tiny = replace(WORTH.strategies[2], violation_minutes=0.001, late_requests=0.0)
    _, reacting, _, perfect = WORTH.strategies
    row = next(line for line in worth_lines(replace(WORTH, strategies=(tiny, reacting, perfect))) if "*" in line)
    assert "<0.001%" in row
    whole = replace(WORTH.strategies[2], violation_minutes=WORTH.minutes, late_requests=0.0)
    row = next(line for line in worth_lines(replace(WORTH, strategies=(whole, reacting, perfect))) if "*" in line)
    assert " 100% " in row


def test_nothing_is_divided_by_none() -> None:
    idle = replace(WORTH, requests=0.0, strategies=tuple(replace(one, replica_hours=0.0) for one in WORTH.strategies))
    assert worth_lines(idle)[2].split()[-2] == "-"
    strategies = worth_json(idle)["strategies"]
    assert {(one["of_perfect"], one["late_ratio"]) for one in strategies} == {(None, None)}


@pytest.mark.parametrize("field", ["ours", "perfect", "reacting", "recommended", "with_margin"])
def test_a_name_that_is_no_strategy_is_refused(field: str) -> None:
    broken: dict[str, Any] = {field: "x"}
    with pytest.raises(ValueError, match="'x' is none of the strategies: static peak, reactive at 70%, sizewatch"):
        replace(WORTH, **broken)
    with pytest.raises(ValueError, match="must have lasted"):
        replace(WORTH, end=WORTH.start)


def test_the_json_holds_all_of_it() -> None:
    told = json.loads(json.dumps(prewarm_json(REPORT), allow_nan=False))
    assert (told["schema"], told["recommendation"]["replicas"], told["recommendation"]["at"]) == (1, 6, NOON + 207)
    assert told["recommendation"]["decided_by"] == "forecast"
    assert told["recommendation"]["sentence"].startswith("6 replicas wanted at 14:05")
    assert [step["replicas"] for step in told["schedule"]] == [2, 6, 3]
    assert (told["schedule_certainty"], told["seen_until"], told["highest"]["rps"]) == (0.99, NOON - 33, 42.0)
    assert (told["recommendation"]["expected_rps"], told["recommendation"]["event_factor"]) == (36.5, 1.0)
    assert told["worth"]["reacting"] == "reactive at 70%"
    assert told["worth"]["strategies"][2]["of_perfect"] == pytest.approx(1.3)
    assert told["worth"]["strategies"][2]["violation_ratio"] == pytest.approx(0.0015)
    assert told["worth"]["hours"] == 336


def test_none_of_it_loads_numpy() -> None:
    modules = "exporters.documents.prewarm, exporters.documents.forecast"
    code = f"import {modules}, sys; print(*(name in sys.modules for name in ('numpy', 'pandas', 'statsmodels')))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False"] * 3
