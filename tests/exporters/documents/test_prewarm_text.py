"""What pre-warming tells: the sentence, the reasons, the schedule, and what it was worth."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from exporters.documents.forecast import (
    BECAUSE,
    OLD_SECONDS,
    NextStep,
    Prewarm,
    PrewarmValue,
    Recommendation,
    Strategy,
    prewarm_json,
    prewarm_text,
    with_next_step,
    without_old_schedule,
)
from forecast.capacity.drain import DrainTime
from forecast.capacity.prewarm import DecisionBasis, ScheduleStep, merge_steps
from rules.plan.capacity import stated_capacity
from rules.plan.replica_count import Margin, replica_count
from rules.telemetry.signals import Reading

NOON = datetime(2026, 11, 23, 13, 1, 33, tzinfo=UTC).timestamp()
MIDNIGHT = datetime(2026, 11, 22, 23, 0, tzinfo=UTC).timestamp()
HOUR = 3600.0
CAPACITY = replace(stated_capacity(7.5, "the plan"), low=5.0, high=8.0)
WANTED = Recommendation(
    made_at=NOON,
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


PERFECT = strategy("perfect foresight", 0.0, 0.0, 1500.0, 3750.0)
BARE = (
    strategy("static peak", 0.0, 0.0, 4032.0, 10080.0),
    strategy("reactive at 70%", 61.0, 2400.0, 2100.0, 5250.0),
    strategy("sizewatch", 30.24, 600.0, 1950.0, 4875.0),
)
WORTH = PrewarmValue(
    start=MIDNIGHT - 14 * 86400,
    end=MIDNIGHT,
    zone="Europe/Berlin",
    requests=1_200_000.0,
    strategies=(*BARE, strategy("with room", 3.0, 40.0, 2160.0, 5400.0), PERFECT),
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
    seen_until=NOON - 33,
    as_of=NOON,
    worth=WORTH,
    drain=DrainTime(e2e_p99=Reading(value=19.6, low=15.0, high=20.0, n=5000.0)),
)
GOLDEN = """\
As of the end of the trace, 2026-11-23 14:01 (Europe/Berlin): this is not live.

chat: 7 replicas wanted at 14:05 because of the demand expected then (lead 207 s, P99 of demand 41.2
rps at 7.5 rps usable a replica); 4 are ready: start 3 now
  demand       41.2 rps = 36.5 rps expected +4.7 rps margin to P99
  work         18 rps arrive, by their tokens the work of 36 rps
  lead         207 s: P95 of 14 measured cold starts
  usable       7.5 rps (5 to 8 rps) a replica: the plan
  count        41.2 rps at 7.5 rps a replica at up to 0.9 of it, one may be lost: 7; 78% used, 92%
               with one lost; 7 to 10 by the bounds of what one takes; no safety factor: the demand
               is a quantile
  never below  6 for 36 rps now, 2 minimum warm, 4 held
  scale down   99% of requests end within 20 s; terminationGracePeriodSeconds 55
  worth        pre-warming cost 7% less than reacting at 70% (--explain shows the numbers)

Schedule until 00:00 (Europe/Berlin), enough with 99% certainty
  warm from  replicas  for up to  expected
  00:00             2     12 rps     9 rps
  08:00             6   41.2 rps    33 rps
  20:00             3     18 rps         -

What it was worth, 2026-11-09 00:00 to 2026-11-23 00:00 (1,200,000 requests)
  strategy           violation min  late requests  replica-hours     USD
  static peak                    0              0          4,032  10,080
  reactive at 70%               61          2,400          2,100   5,250
  sizewatch *                 30.2            600          1,950   4,875
  with room                      3             40          2,160   5,400
  perfect foresight              0              0          1,500   3,750
  * cheaper, or as good without a forecast. The last 14 days: fewer violations than reacting, for
  less."""


def test_prewarm_prints_the_whole_text() -> None:
    assert prewarm_text(REPORT, explain=True) == GOLDEN
    assert prewarm_text(REPORT) == GOLDEN.partition("\n\nWhat it was worth")[0]


BARE_REASON = "Needs 2 days, has 5 hours."


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ready": None}, "how many are ready is not known"),
        ({"ready": 7}, "7 are ready: enough for that"),
        ({"ready": 9}, "9 are ready: 2 may go"),
        ({"ready": 1}, "1 is ready: start 6 now"),
        ({"certainty": 0.998}, "P99.8 of demand 41.2 rps"),
        ({"decided_by": DecisionBasis.NOW}, "(lead 207 s, demand now 36 rps at 7.5 rps usable"),
        ({"quantile_rps": None}, "(lead 207 s, no forecast: demand now 36 rps at 7.5 rps usable"),
        ({"event_factor": 2.0}, "41.2 rps = 36.5 rps expected (x 2 for a known event) +4.7 rps margin"),
        ({"expected_rps": 41.3}, "41.2 rps = 41.3 rps expected -0.1 rps margin to P99"),
        *(({"decided_by": basis}, BECAUSE[basis]) for basis in DecisionBasis),
    ],
)
def test_recommendation_is_told_in_words(change: dict[str, Any], words: str) -> None:
    text = " ".join(prewarm_text(replace(REPORT, recommendation=replace(WANTED, **change))).split())
    assert words in text
    assert ("demand 41.2 rps = " in text) == ("quantile_rps" not in change) or "expected_rps" in change


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (Prewarm(tier="chat", zone="UTC", recommendation=None), "no recommendation. The forecast has not run yet."),
        (
            Prewarm(tier="chat", zone="UTC", recommendation=None, reason=BARE_REASON),
            f"chat: no recommendation. {BARE_REASON} What it was worth cannot be told: {BARE_REASON}",
        ),
        (replace(REPORT, worth=None, reason=BARE_REASON), f"What it was worth cannot be told: {BARE_REASON}"),
        (replace(REPORT, until=None), "Schedule (Europe/Berlin), enough"),
    ],
)
def test_missing_part_is_left_out(report: Prewarm, words: str) -> None:
    assert words in " ".join(prewarm_text(report, explain=True).split())


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
        (2, 4, NOON + 600, "2 are ready: enough for that; 4 from 14:11 by the schedule, of 99% certainty"),
        (4, 4, NOON + 600, "4 are ready: keep them; 4 from 14:11 by the schedule, of 99% certainty"),
        (5, 4, NOON + 600, "5 are ready: 1 may go; 4 from 14:11 by the schedule, of 99% certainty"),
        (1, 4, NOON + 600, "1 is ready: start 1 now; 4 from 14:11 by the schedule, of 99% certainty"),
        (2, 4, NOON - 600, "2 are ready: enough for that; 4 now by the schedule, of 99% certainty"),
        (2, 4, NOON + 3600, "2 are ready: enough for that; 4 from 15:01 by the schedule, of 99% certainty"),
        (5, 4, NOON + 3600, "5 are ready: 3 may go; 4 from 15:01 by the schedule, of 99% certainty"),
        (3, 1, NOON + 600, "3 are ready: 1 may go; 1 from 14:11 by the schedule, of 99% certainty"),
        (2, 2, NOON + 600, "2 are ready: enough for that"),
    ],
)
def test_sentence_agrees_with_next_step(ready: int, replicas: int, start: float, words: str) -> None:
    """Two replicas are wanted at 14:05. A bin is 15 minutes long."""
    steps = (
        ScheduleStep(start=NOON - 3600, replicas=2, demand_rps=9.0),
        ScheduleStep(start=start, replicas=replicas, demand_rps=20.0),
    )
    wanted = replace(REPORT, recommendation=replace(WANTED, replicas=2, ready=ready), schedule=merge_steps(steps))
    report = with_next_step(wanted, 900.0)
    assert report.recommendation is not None
    assert report.recommendation.sentence.partition("; ")[2] == words
    assert " ".join(prewarm_text(report).split()).count(words) == 1
    assert prewarm_json(report)["recommendation"]["sentence"] == report.recommendation.sentence


def test_the_highest_soon_step_comes_first() -> None:
    steps = tuple(
        ScheduleStep(start=NOON + after, replicas=count, demand_rps=9.0) for after, count in ((60, 8), (900, 9))
    )
    report = with_next_step(replace(REPORT, schedule=steps), 900.0)
    assert report.recommendation is not None
    assert report.recommendation.next_step == NextStep(start=NOON + 900, replicas=9, certainty=0.99, is_soon=True)
    old = without_old_schedule(report, NOON + 2 * OLD_SECONDS)
    assert old.recommendation == replace(report.recommendation, next_step=None)
    bare = replace(REPORT, schedule=(), schedule_certainty=None)
    assert with_next_step(bare, 900.0) is bare


def test_old_demand_makes_no_schedule() -> None:
    seen = NOON - 33
    assert without_old_schedule(REPORT, seen + OLD_SECONDS) is REPORT
    old = without_old_schedule(REPORT, seen + OLD_SECONDS + 3 * 3600 + 60)
    assert (old.schedule, old.until, old.schedule_certainty) == ((), None, None)
    assert old.reason == "the newest demand of the tier is 4 h 1 min old: no schedule is made of it"
    assert without_old_schedule(replace(REPORT, seen_until=None), NOON).schedule == ()


def test_neighbours_of_one_count_become_one_step() -> None:
    first = ScheduleStep(start=MIDNIGHT - HOUR, replicas=2, demand_rps=9.1)
    merged = merge_steps(reversed((first, *STEPS)))
    assert merged == (replace(STEPS[0], start=first.start), *STEPS[1:])
    assert merge_steps(()) == ()


def test_strategies_without_a_price_have_none() -> None:
    strategies = tuple(replace(strategy, money=None) for strategy in WORTH.strategies)
    text = prewarm_text(replace(REPORT, worth=replace(WORTH, strategies=strategies)), explain=True)
    assert "static peak                    0              0          4,032    -" in text


def test_prewarm_json_holds_all() -> None:
    told = json.loads(json.dumps(prewarm_json(REPORT), allow_nan=False))
    wanted = told["recommendation"]
    assert (told["schema"], wanted["replicas"], wanted["target_time"]) == (3, 7, NOON + 207)
    assert (wanted["decided_by"], wanted["sentence"]) == ("forecast", WANTED.sentence)
    assert (wanted["count"]["capacity"]["rps"], wanted["count"]["utilization"]) == (7.5, pytest.approx(41.2 / 52.5))
    assert [step["replicas"] for step in told["schedule"]] == [2, 6, 3]
    assert (told["schedule_certainty"], told["seen_until"]) == (0.99, NOON - 33)
    assert (told["worth"]["reacting"], told["worth"]["sentence"]) == ("reactive at 70%", WORTH.sentence)
    assert (told["drain"]["seconds"], told["drain"]["grace_seconds"], told["as_of"]) == (20, 55, NOON)
    empty = prewarm_json(Prewarm(tier="chat", zone="UTC", recommendation=None, reason=BARE_REASON))
    parts = [empty[name] for name in ("recommendation", "worth", "schedule", "reason", "drain")]
    assert parts == [None, None, [], BARE_REASON, "a trace has no durations of requests"]


def test_documents_load_no_numpy() -> None:
    modules = "exporters.documents.forecast, exporters.autoscaling.manifests"
    code = f"import {modules}, sys; print(*(name in sys.modules for name in ('numpy', 'pandas', 'statsmodels')))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False"] * 3
