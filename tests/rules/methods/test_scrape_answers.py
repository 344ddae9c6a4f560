from dataclasses import replace
from typing import Any

import pytest
from judging_samples import START, context, minute, minutes, seen
from making import snapshot

from rules.confidence import Certainty
from rules.evaluator import tier_minutes
from rules.evaluator.scrape_rules import cascade_limits, evaluate_replica_rules
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.replicas.cascade import CascadeSample, CascadeState
from rules.replicas.starts import ReplicaStart
from rules.replicas.state import ReplicaState, apply_failed_scrape, apply_snapshot
from rules.telemetry.signals import Gap
from rules.verdicts.verdict import RuleResult, Status, Subject, Unknown, Verdict

VIEW = context()


def replica(pages: int = 2, misses: int = 0, **changes: Any) -> ReplicaState:
    """A replica after good pages 15 s apart, and then so many failed scrapes."""
    one = ReplicaState(tier="t", name="a")
    for number in range(pages):
        t = START + 15 * number
        one, _, _ = apply_snapshot(
            one, snapshot(t, counters={"requests_finished": 100.0 + t - START, "engine_steps": t}), cascade_limits(VIEW)
        )
    for number in range(misses):
        one, _, _ = apply_failed_scrape(one, START + 15 * (pages + number), error="timeout: 5 s")
    return replace(one, **changes)


def full(cascade: CascadeState) -> ReplicaState:
    """A replica in a cascade, whose page tells how full its cache is."""
    page = snapshot(START, gauges={"kv_utilization_max": 0.97})
    one, _, _ = apply_snapshot(ReplicaState(tier="t", name="a"), page, cascade_limits(VIEW))
    return replace(one, cascade=cascade)


def said(
    rule: str,
    one: ReplicaState,
    now: float = START + 15,
    recent: tuple[BinnedWindow, ...] = (),
    view: TierContext = VIEW,
    others_answer: bool = False,
    starts: tuple[ReplicaStart, ...] = (),
) -> RuleResult:
    return next(
        a for a in evaluate_replica_rules(one, view, now, recent, others_answer, starts=starts) if a.rule == rule
    )


def verdict(rule: str, one: ReplicaState, **more: Any) -> Verdict:
    found = said(rule, one, **more)
    assert isinstance(found, Verdict)
    return found


def test_answer_is_of_replica_and_time() -> None:
    found = evaluate_replica_rules(replica(), VIEW, 77.0)
    assert [a.rule for a in found] == ["KvCacheCascade", "TargetDown", "EngineStalled", "TelemetryStale"]
    assert {(a.t, a.subject) for a in found} == {(77.0, Subject(tier="t", replica="a"))}


def test_moving_replica_is_fine() -> None:
    found = [verdict(a.rule, replica()) for a in evaluate_replica_rules(replica(), VIEW, START)]
    assert {v.status for v in found} == {Status.OK}
    assert [v.sentence for v in found] == [
        "KV cache 30% full",
        "The metrics page answers",
        "The engine works, or has no requests",
        "The page moves with the engine",
    ]
    assert {v.actions for v in found} == {()}


def test_a_target_is_down_after_three_misses() -> None:
    fine = verdict("TargetDown", replica(misses=2))
    assert (fine.status, fine.sentence) == (Status.OK, "2 scrapes without a usable page")
    down = verdict("TargetDown", replica(misses=3), now=START + 60)
    assert (down.status, down.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert down.sentence == "No usable metrics page for 45 s; 3 scrapes in a row failed: timeout"
    assert len(down.actions) >= 2


def started(seconds: float, *, asked: bool) -> ReplicaStart:
    """A start that took so long: from the request for its pod, or of its process alone."""
    if not asked:
        return ReplicaStart(replica="b", seen_at=seconds, started_at=0.0, ready_at=seconds, silent_since=0.0)
    return ReplicaStart(replica="b", seen_at=seconds, asked_at=0.0, pod_ready_at=seconds, silent_since=0.0)


MEASURED, IN_PART = started(240.0, asked=True), started(100.0, asked=False)


@pytest.mark.parametrize(
    ("planned", "starts", "seconds"),
    [
        (None, (), 300.0),
        (600.0, (), 600.0),
        (60.0, (), 60.0),
        (600.0, (MEASURED,), 240.0),
        (None, (MEASURED,), 240.0),
        (None, (IN_PART,), 300.0),
        (600.0, (IN_PART,), 600.0),
        (60.0, (IN_PART,), 100.0),
        (None, (ReplicaStart(replica="b", seen_at=9.0, alive_at=0.0, silent_since=1.0),), 300.0),
    ],
)
def test_starting_target_has_time(planned: float | None, starts: tuple[ReplicaStart, ...], seconds: float) -> None:
    new = replica(pages=0, misses=3)
    began = new.track.silent_since or 0.0
    more = {
        "view": replace(VIEW, plan=VIEW.plan.model_copy(update={"cold_start_seconds": planned})),
        "others_answer": True,
        "starts": starts,
    }
    starting = said("TargetDown", new, now=began + seconds - 1, **more)
    assert (starting.reason, starting.text) == (Gap.SCRAPE_FAILED, "3 scrapes without a usable page, and none before")
    never = verdict("TargetDown", new, now=began + seconds, **more)
    assert never.sentence == "No usable metrics page ever; 3 scrapes in a row failed: timeout"


def test_only_replica_is_down_at_once() -> None:
    assert verdict("TargetDown", replica(pages=0, misses=3), now=START + 60).status is Status.WARNING


@pytest.mark.parametrize(("stage", "says_it"), [(1, False), (2, True), (3, False), (4, False)])
def test_second_stage_asks_to_act(stage: int, says_it: bool) -> None:
    sample = CascadeSample(
        t=START,
        dt=15.0,
        level=0.97,
        running=9.0,
        waiting=0.0,
        preemptions=4.0,
        finished=9.0,
        first_tokens=9.0,
        slow_first_tokens=0.0,
        request_seconds=None,
    )
    found = verdict("KvCacheCascade", full(CascadeState(stage=stage, recent=(sample,), evidence="4 preemptions")))
    assert found.sentence.endswith("4 preemptions; act now, before users feel it") is says_it


def test_silence_then_failure_is_down() -> None:
    one = ReplicaState(tier="t", name="a")
    for t in (0.0, 400.0):
        one, _, _ = apply_snapshot(one, snapshot(START + t, counters={"engine_steps": t}), cascade_limits(VIEW))
    alone = said("TargetDown", one, now=START + 400)
    assert (alone.reason, alone.text) == (Gap.NOT_SCRAPED, "the page answers now, but was not scraped for 400 s before")
    for t in (415.0, 430.0, 445.0):
        one, _, _ = apply_failed_scrape(one, START + t, error="timeout: 5 s")
    assert verdict("TargetDown", one, now=START + 445).status is Status.WARNING


def test_few_misses_are_not_fine() -> None:
    """One scrape in five minutes failed: the two more that make it down are still to come."""
    one = replica()
    one, _, _ = apply_failed_scrape(one, START + 315)
    found = said("TargetDown", one, now=START + 315)
    assert (found.reason, found.text) == (Gap.SCRAPE_FAILED, "1 scrapes without a usable page, and none for 300 s")


def test_far_pages_make_no_slope() -> None:
    for gap in (Gap.NOT_SCRAPED, Gap.CONTRADICTORY):
        found = said("KvCacheCascade", replica(slope_gap=gap, cascade=CascadeState()))
        assert found.reason is gap


def test_before_the_first_scrape_nothing_is_known() -> None:
    results = evaluate_replica_rules(ReplicaState(tier="t", name="a"), VIEW, START)
    assert [(a.reason, a.text) for a in results if isinstance(a, Unknown)] == [
        (Gap.SCRAPE_FAILED, "no page from the replica"),
        (Gap.SCRAPE_FAILED, "not scraped yet"),
        (Gap.SCRAPE_FAILED, "no page from the replica"),
        (Gap.SCRAPE_FAILED, "no page from the replica"),
    ]


@pytest.mark.parametrize("misses", [1, 2])
def test_young_target_is_not_fine(misses: int) -> None:
    found = [a for a in evaluate_replica_rules(replica(pages=0, misses=misses), VIEW, START) if a.rule == "TargetDown"]
    assert isinstance(found[0], Unknown)
    assert found[0].text == f"{misses} scrapes without a usable page, and none before"


def test_the_configuration_can_ask_for_more_misses() -> None:
    patient = context(limits={"TargetDown": {"misses": 4}})
    found = [a for a in evaluate_replica_rules(replica(misses=3), patient, START) if a.rule == "TargetDown"]
    assert isinstance(found[0], Verdict)
    assert found[0].status is Status.OK


def test_a_page_that_answers_again_ends_it() -> None:
    back, _, _ = apply_snapshot(replica(misses=5), snapshot(START + 105), cascade_limits(VIEW))
    assert verdict("TargetDown", back).sentence == "The metrics page answers"
    assert back.error == ""


@pytest.mark.parametrize("rule", ["KvCacheCascade", "EngineStalled", "TelemetryStale"])
@pytest.mark.parametrize("one", [replica(misses=1), replica(pages=0, misses=1)])
def test_pageless_rules_do_not_know(rule: str, one: ReplicaState) -> None:
    found = said(rule, one)
    assert (found.reason, found.text) == (Gap.SCRAPE_FAILED, "no page from the replica")


def test_one_page_is_no_slope() -> None:
    first = said("KvCacheCascade", replica(pages=1))
    assert (first.reason, first.text) == (Gap.RESTARTED, "no two pages give a slope of the KV cache yet")
    after_a_miss, _, _ = apply_snapshot(replica(misses=1), snapshot(START + 45), cascade_limits(VIEW))
    again = said("KvCacheCascade", after_a_miss)
    assert again.reason is Gap.SCRAPE_FAILED


def test_missing_gauges_say_so() -> None:
    bare = snapshot(START + 30)
    without = replace(bare, gauges={"requests_running": 1.0}, counters={"requests_finished": 200.0})
    one, _, _ = apply_snapshot(replica(), without, cascade_limits(VIEW))
    assert [(a.reason, a.text) for a in evaluate_replica_rules(one, VIEW, START) if isinstance(a, Unknown)] == [
        (Gap.NOT_EXPOSED, "the page has no KV cache utilisation"),
        (Gap.NOT_EXPOSED, "the page does not count the engine's steps"),
    ]


def test_unmoving_page_is_stale() -> None:
    one = replica(pages=1)
    for number in range(1, 9):
        one, _, _ = apply_snapshot(
            one, snapshot(START + 15 * number, counters={"engine_steps": START}), cascade_limits(VIEW)
        )
        found = verdict("TelemetryStale", one)
        assert found.status is (Status.WARNING if number == 8 else Status.OK)
    assert found.sentence == "The engine has not stepped for 120 s; its page claims 4 running and 0 waiting requests"
    moved, _, _ = apply_snapshot(one, snapshot(START + 135, counters={"engine_steps": START + 1}), cascade_limits(VIEW))
    assert verdict("TelemetryStale", moved).status is Status.OK


def test_an_idle_engine_is_not_stale() -> None:
    idle = {"requests_running": 0.0, "kv_utilization": 0.0, "kv_utilization_max": 0.0}
    one = ReplicaState(tier="t", name="a")
    for number in range(12):
        one, _, _ = apply_snapshot(one, snapshot(START + 15 * number, gauges=idle), cascade_limits(VIEW))
    assert verdict("TelemetryStale", one).status is Status.OK


def test_unread_gpu_is_stale() -> None:
    trouble = {"gpu_problem": "GPU-1 has not been read for 150 s"}
    for one in (replica(**trouble), replica(misses=4, **trouble)):
        found = verdict("TelemetryStale", one)
        assert (found.status, found.sentence) == (Status.WARNING, "GPU-1 has not been read for 150 s")


@pytest.mark.parametrize(
    ("stage", "confirmed", "status", "certainty"),
    [
        (1, False, Status.WARNING, Certainty.LIKELY),
        (2, False, Status.WARNING, Certainty.LIKELY),
        (2, True, Status.WARNING, Certainty.CERTAIN),
        (3, False, Status.CRITICAL, Certainty.LIKELY),
        (4, True, Status.CRITICAL, Certainty.CERTAIN),
    ],
)
def test_cascade_is_critical_from_three(stage: int, confirmed: bool, status: Status, certainty: Certainty) -> None:
    state = replace(replica().cascade, stage=stage, confirmed=confirmed, onset=START, since=START, evidence="why")
    found = verdict("KvCacheCascade", replica(cascade=state))
    assert (found.status, found.certainty, found.stage) == (status, certainty, stage)
    assert found.sentence.startswith(f"KV cache cascade, stage {stage} (")
    assert ": why" in found.sentence
    assert len(found.actions) == 4


def test_sentence_tells_the_lead() -> None:
    state = replace(replica().cascade, stage=4, onset=START - 20, since=START, breach_at=START, evidence="why")
    assert "first seen 20 s before users felt it" in verdict("KvCacheCascade", replica(cascade=state)).details
    at_once = replace(state, onset=START)
    assert verdict("KvCacheCascade", replica(cascade=at_once)).details == ()


def test_cascade_uses_last_minutes() -> None:
    lengths = {"prompt_tokens_per_request": seen({300.0: 60}, (50.0, 100.0, 200.0, 500.0, float("inf")))}
    planned = context(workload={"prompt_tokens": {"p95": 100}})
    booked = minutes(planned, {"a": [minute(n, histograms=lengths) for n in range(6)], "b": [minute(5.2)]})
    state = replace(replica().cascade, stage=3, onset=START, since=START, evidence="why")
    one = replica(cascade=state)
    recent = tier_minutes.recent_windows(booked, one, planned, START + 360)
    assert [s.window.start for s in recent] == [START + 180, START + 240, START + 300, START]
    found = next(a for a in evaluate_replica_rules(one, planned, START + 360, recent) if a.rule == "KvCacheCascade")
    assert found.causes[0].evidence == ("prompts are longer than planned: P95 200 to 500 tokens, 100 planned",)


def test_young_cascade_has_no_causes() -> None:
    state = CascadeState(stage=3, onset=START, since=START, evidence="why", recent=replica().cascade.recent)
    assert verdict("KvCacheCascade", replica(cascade=state)).causes == ()
