from dataclasses import replace
from typing import Any

import pytest
from judging_samples import START, context, minute, minutes, seen
from making import snapshot
from rule_cases import FINE, GUESSED, HIDDEN, PAGE_GUESSED, PAGED, WARNED, Wanted, check_result

from rules.evaluator import tier_minutes
from rules.evaluator.scrape_rules import cascade_limits, evaluate_replica_rules
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.replicas.cascade import CascadeSample, CascadeState
from rules.replicas.starts import ReplicaStart
from rules.replicas.state import ReplicaState, apply_failed_scrape, apply_snapshot
from rules.telemetry.signals import Gap
from rules.verdicts.verdict import RuleResult, Status, Subject, Verdict

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


def scraped(one: ReplicaState, *times: float, **page: Any) -> ReplicaState:
    """The replica after good pages so many seconds after START."""
    for t in times:
        one, _, _ = apply_snapshot(one, snapshot(START + t, **page), cascade_limits(VIEW))
    return one


def failed(one: ReplicaState, *times: float) -> ReplicaState:
    for t in times:
        one, _, _ = apply_failed_scrape(one, START + t, error="timeout: 5 s")
    return one


def bare_page(one: ReplicaState) -> ReplicaState:
    page = replace(snapshot(START + 30), gauges={"requests_running": 1.0}, counters={"requests_finished": 200.0})
    return apply_snapshot(one, page, cascade_limits(VIEW))[0]


def at_stage(stage: int, confirmed: bool = False) -> ReplicaState:
    known = replica()
    state = replace(known.cascade, stage=stage, confirmed=confirmed, onset=START, since=START, evidence="why")
    return replace(known, cascade=state)


CASCADE, DOWN, STALLED, STALE = "KvCacheCascade", "TargetDown", "EngineStalled", "TelemetryStale"
NEW = ReplicaState(tier="t", name="a")
PATIENT = context(limits={DOWN: {"misses": 4}})
EMPTY = {"requests_running": 0.0, "kv_utilization": 0.0, "kv_utilization_max": 0.0}
IDLE = scraped(NEW, *range(0, 180, 15), gauges=EMPTY)
SILENT = scraped(scraped(NEW, 0.0, counters={"engine_steps": 0.0}), 400.0, counters={"engine_steps": 400.0})
GPU_PROBLEM = {"gpu_problem": "GPU-1 has not been read for 150 s"}
NO_PAGE, FAILED = "no page from the replica", Gap.SCRAPE_FAILED
THREE_MISSES = "No usable metrics page for 45 s; 3 scrapes in a row failed: timeout"
NONE_BEFORE = " scrapes without a usable page, and none before"

ONE_MISS, NEVER = replica(misses=1), replica(pages=0, misses=1)
SLOPE_GAPS = (Gap.NOT_SCRAPED, Gap.CONTRADICTORY)

ROWS = [
    (CASCADE, replica(), 15, FINE, "KV cache 30% full"),
    (DOWN, replica(), 15, FINE, "The metrics page answers"),
    (STALLED, replica(), 15, FINE, "The engine works, or has no requests"),
    (STALE, replica(), 15, FINE, "The page moves with the engine"),
    (DOWN, NEW, 0, FAILED, "not scraped yet"),
    *((rule, one, 15, FAILED, NO_PAGE) for rule in (CASCADE, STALLED, STALE) for one in (NEW, ONE_MISS, NEVER)),
    (CASCADE, bare_page(replica()), 0, HIDDEN, "the page has no KV cache utilisation"),
    (STALE, bare_page(replica()), 0, HIDDEN, "the page does not count the engine's steps"),
    (DOWN, replica(misses=2), 15, FINE, "2 scrapes without a usable page"),
    (DOWN, replica(misses=3), 60, WARNED, THREE_MISSES),
    (DOWN, replica(pages=0, misses=3), 60, WARNED, ""),
    *((DOWN, replica(pages=0, misses=n), 0, FAILED, f"{n}{NONE_BEFORE}") for n in (1, 2)),
    (DOWN, scraped(replica(misses=5), 105), 15, FINE, "The metrics page answers"),
    (DOWN, SILENT, 400, Gap.NOT_SCRAPED, "the page answers now, but was not scraped for 400 s before"),
    (DOWN, failed(SILENT, 415, 430, 445), 445, WARNED, ""),
    # One scrape in five minutes failed: the two more that make it down are still to come.
    (DOWN, failed(replica(), 315), 315, FAILED, "1 scrapes without a usable page, and none for 300 s"),
    *((CASCADE, replica(slope_gap=gap, cascade=CascadeState()), 15, gap, "") for gap in SLOPE_GAPS),
    (CASCADE, replica(pages=1), 15, Gap.RESTARTED, "no two pages give a slope of the KV cache yet"),
    (CASCADE, scraped(replica(misses=1), 45), 15, FAILED, ""),
    (STALE, IDLE, 15, FINE, ""),
    *((STALE, replica(misses=n, **GPU_PROBLEM), 15, WARNED, GPU_PROBLEM["gpu_problem"]) for n in (0, 4)),
    (CASCADE, at_stage(1), 15, GUESSED, "KV cache cascade, stage 1 ("),
    (CASCADE, at_stage(2), 15, GUESSED, "KV cache cascade, stage 2 ("),
    (CASCADE, at_stage(2, confirmed=True), 15, WARNED, ": why"),
    (CASCADE, at_stage(3), 15, PAGE_GUESSED, "KV cache cascade, stage 3 ("),
    (CASCADE, at_stage(4, confirmed=True), 15, PAGED, "KV cache cascade, stage 4 ("),
]


@pytest.mark.parametrize(("rule", "one", "now", "wanted", "text"), ROWS)
def test_single_scrapes_of_a_replica(rule: str, one: ReplicaState, now: float, wanted: Wanted, text: str) -> None:
    check_result(said(rule, one, START + now), wanted, text)


def test_the_configuration_can_ask_for_more_misses() -> None:
    assert said(DOWN, replica(misses=3), view=PATIENT).status is Status.OK


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
    found = verdict(CASCADE, full(CascadeState(stage=stage, recent=(sample,), evidence="4 preemptions")))
    assert found.sentence.endswith("4 preemptions; act now, before users feel it") is says_it
    assert (found.stage, len(found.actions)) == (stage, 4)


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
