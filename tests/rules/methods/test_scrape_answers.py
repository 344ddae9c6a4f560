"""What scrapes of a replica and of a whole tier say: cascades, outages, silenced rules, a benchmark of another release."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import recorded
import yaml
from evaluation_steps import EvaluationSteps
from judging_samples import START, context, minute, minutes, seen
from making import bare_page as page_of_facts
from making import snapshot
from outcomes import FAIRLY, FINE, GUESSED, HIDDEN, PAGE_GUESSED, PAGED, UNPLANNED, WARNED, Wanted
from recorded import replayed
from rule_cases import check_result, outcome
from test_step import TIER, at, rule_state, watched

from agent.replay.replay import replay
from agent.sources.recording import load
from rules.confidence import Certainty
from rules.evaluator import tier_minutes
from rules.evaluator.rule_evaluation import (
    cascade_limits,
    evaluate_replica_rules,
    evaluate_tier_availability,
    evaluate_unknowns,
)
from rules.methods.configuration import is_excluded
from rules.plan.load_bins import TierContext, build_tier_context
from rules.plan.schema import Plan, parse_plan
from rules.replicas.cascade import CascadeSample, CascadeState
from rules.replicas.starts import ReplicaStart
from rules.replicas.state import ReplicaState, ScrapeTrack, apply_failed_scrape, apply_snapshot
from rules.telemetry.signals import Gap
from rules.telemetry.snapshots import Snapshot, is_same_release
from rules.verdicts.verdict import Finding, RuleResult, RuleState, Status, Subject, Unknown, UnknownSpan, Verdict

VIEW = context()


def scraped(one: ReplicaState, *times: float, **page: Any) -> ReplicaState:
    """The replica after good pages so many seconds after START."""
    for t in times:
        one, _, _ = apply_snapshot(one, snapshot(START + t, **page), cascade_limits(VIEW))
    return one


def failed(one: ReplicaState, *times: float) -> ReplicaState:
    for t in times:
        one, _, _ = apply_failed_scrape(one, START + t, error="timeout: 5 s")
    return one


def replica(pages: int = 2, misses: int = 0, **changes: Any) -> ReplicaState:
    """A replica after good pages 15 s apart, and then so many failed scrapes."""
    one = ReplicaState(tier="t", name="a")
    for t in range(0, 15 * pages, 15):
        one = scraped(one, t, counters={"requests_finished": 100.0 + t, "engine_steps": START + t})
    return replace(failed(one, *(15 * (pages + number) for number in range(misses))), **changes)


def said(rule: str, one: ReplicaState, now: float = START + 15, view: TierContext = VIEW, **more: Any) -> RuleResult:
    """What a rule says of a replica; `recent`, `others_answer` and `starts` by keyword."""
    whole = {"recent": (), "others_answer": False, **more}
    results = evaluate_replica_rules(one, view, now, whole.pop("recent"), whole.pop("others_answer"), **whole)
    return next(result for result in results if result.rule == rule)


def test_answer_is_of_replica_and_time() -> None:
    found = evaluate_replica_rules(replica(), VIEW, 77.0)
    assert [a.rule for a in found] == ["KvCacheCascade", "TargetDown", "EngineStalled", "TelemetryStale"]
    assert {(a.t, a.subject) for a in found} == {(77.0, Subject(tier="t", replica="a"))}


PROCESS = ReplicaStart(replica="b", seen_at=100.0, started_at=0.0, ready_at=100.0, silent_since=0.0)
MEASURED = ReplicaStart(replica="b", seen_at=240.0, asked_at=0.0, pod_ready_at=240.0, silent_since=0.0)


@pytest.mark.parametrize(
    ("planned", "start", "seconds"),
    [
        (None, None, 300.0),
        (600.0, None, 600.0),
        (60.0, None, 60.0),
        (600.0, MEASURED, 240.0),
        (None, MEASURED, 240.0),
        # Of its process alone.
        (None, PROCESS, 300.0),
        (600.0, PROCESS, 600.0),
        (60.0, PROCESS, 100.0),
        (None, ReplicaStart(replica="b", seen_at=9.0, alive_at=0.0, silent_since=1.0), 300.0),
    ],
)
def test_starting_target_has_time(planned: float | None, start: ReplicaStart | None, seconds: float) -> None:
    new = replica(pages=0, misses=3)
    end = (new.track.silent_since or 0.0) + seconds
    view = replace(VIEW, plan=VIEW.plan.model_copy(update={"cold_start_seconds": planned}))
    more = {"view": view, "others_answer": True, "starts": (start,) if start else ()}
    starting, never = (said("TargetDown", new, now=now, **more) for now in (end - 1, end))
    check_result(starting, Gap.SCRAPE_FAILED, "3 scrapes without a usable page, and none before")
    check_result(never, WARNED, "No usable metrics page ever; 3 scrapes in a row failed: timeout")


def bare_page(one: ReplicaState) -> ReplicaState:
    page = replace(snapshot(START + 30), gauges={"requests_running": 1.0}, counters={"requests_finished": 200.0})
    return apply_snapshot(one, page, cascade_limits(VIEW))[0]


def at_stage(stage: int, confirmed: bool = False, onset: float = START, **more: Any) -> ReplicaState:
    known = replica()
    told = {"stage": stage, "confirmed": confirmed, "onset": onset, "since": START, "evidence": "why", **more}
    return replace(known, cascade=replace(known.cascade, **told))


CASCADE, DOWN, STALLED, STALE = "KvCacheCascade", "TargetDown", "EngineStalled", "TelemetryStale"
NEW = ReplicaState(tier="t", name="a")
EMPTY = {"requests_running": 0.0, "kv_utilization": 0.0, "kv_utilization_max": 0.0}
SILENT = scraped(scraped(NEW, 0.0, counters={"engine_steps": 0.0}), 400.0, counters={"engine_steps": 400.0})
GPU_PROBLEM = "GPU-1 has not been read for 150 s"
NO_PAGE, FAILED = "no page from the replica", Gap.SCRAPE_FAILED
NO_TOKEN = "bearer_token_file t: No such file or directory"
OWN_FAULT = "for 1 h; 3 scrapes in a row failed: sizewatch's own credentials cannot be used"
NONE_BEFORE = (f"{misses} without a usable page, and none before" for misses in ("1 scrape", "2 scrapes"))

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
    (DOWN, replica(misses=3), 60, WARNED, "No usable metrics page for 45 s; 3 scrapes in a row failed: timeout"),
    (DOWN, replica(pages=0, misses=3), 60, WARNED, ""),
    (DOWN, replica(misses=3, error=f"auth: {NO_TOKEN}"), 3630, WARNED, OWN_FAULT),
    *((DOWN, replica(pages=0, misses=n), 0, FAILED, text) for n, text in enumerate(NONE_BEFORE, 1)),
    (DOWN, scraped(replica(misses=5), 105), 15, FINE, "The metrics page answers"),
    (DOWN, SILENT, 400, Gap.NOT_SCRAPED, "the page answers now, but was not scraped for 6 min before"),
    (DOWN, failed(SILENT, 415, 430, 445), 445, WARNED, ""),
    # One scrape in five minutes failed: the two more that make it down are still to come.
    (DOWN, failed(replica(), 315), 315, FAILED, "1 scrape without a usable page, and none for 5 min"),
    *((CASCADE, replica(slope_gap=gap, cascade=CascadeState()), 15, gap, "") for gap in SLOPE_GAPS),
    (CASCADE, replica(pages=1), 15, Gap.RESTARTED, "no two pages give a slope of the KV cache yet"),
    (CASCADE, scraped(replica(misses=1), 45), 15, FAILED, ""),
    (STALE, scraped(NEW, *range(0, 180, 15), gauges=EMPTY), 15, FINE, ""),
    *((STALE, replica(misses=n, gpu_problem=GPU_PROBLEM), 15, WARNED, GPU_PROBLEM) for n in (0, 4)),
    (CASCADE, at_stage(1), 15, GUESSED, "KV cache cascade, stage 1 ("),
    (CASCADE, at_stage(2), 15, GUESSED, "KV cache cascade, stage 2 ("),
    (CASCADE, at_stage(2, confirmed=True), 15, WARNED, ": why"),
    (CASCADE, at_stage(3), 15, PAGE_GUESSED, "KV cache cascade, stage 3 ("),
    (CASCADE, at_stage(4, confirmed=True), 15, PAGED, "KV cache cascade, stage 4 ("),
]


@pytest.mark.parametrize(("rule", "one", "now", "wanted", "text"), ROWS)
def test_single_scrapes_of_a_replica(rule: str, one: ReplicaState, now: float, wanted: Wanted, text: str) -> None:
    check_result(said(rule, one, START + now), wanted, text)


def test_unread_gpu_asks_for_its_driver() -> None:
    (action,) = said(STALE, replica(gpu_problem=GPU_PROBLEM)).actions
    assert "driver" in action


def test_tier_may_allow_more_misses() -> None:
    assert said(DOWN, replica(misses=3), view=context(limits={DOWN: {"misses": 4}})).status is Status.OK


LEVELS = {"level": 0.97, "running": 9.0, "waiting": 0.0, "preemptions": 4.0}
COUNTS = {"finished": 9.0, "first_tokens": 9.0, "slow_first_tokens": 0.0, "request_seconds": None}


@pytest.mark.parametrize(("stage", "says_it"), [(1, False), (2, True), (3, False), (4, False)])
def test_second_stage_asks_to_act(stage: int, says_it: bool) -> None:
    sample = CascadeSample(t=START, dt=15.0, **LEVELS, **COUNTS)
    full = scraped(NEW, 0.0, gauges={"kv_utilization_max": 0.97})
    state = CascadeState(stage=stage, recent=(sample,), evidence="4 preemptions")
    found = said(CASCADE, replace(full, cascade=state))
    assert found.sentence.endswith("4 preemptions; act now, before users feel it") is says_it
    assert (found.stage, len(found.actions)) == (stage, 4)


def test_unmoving_page_is_stale() -> None:
    one = replica(pages=1)
    for number in range(1, 9):
        one = scraped(one, 15 * number, counters={"engine_steps": START})
        found = said(STALE, one)
        assert found.status is (Status.WARNING if number == 8 else Status.OK)
    assert found.sentence == "The engine has not stepped for 2 min; its page claims 4 running and 0 waiting requests"
    assert said(STALE, scraped(one, 135, counters={"engine_steps": START + 1})).status is Status.OK


def test_sentence_tells_the_lead() -> None:
    early = said(CASCADE, at_stage(4, onset=START - 20, breach_at=START))
    assert "first seen 20 s before users felt it" in early.details
    assert said(CASCADE, at_stage(4, breach_at=START)).details == ()


def test_cascade_uses_last_minutes() -> None:
    lengths = {"prompt_tokens_per_request": seen({300.0: 60}, (50.0, 100.0, 200.0, 500.0, float("inf")))}
    planned = context(workload={"prompt_tokens": {"p95": 100}})
    booked = minutes(planned, {"a": [minute(n, histograms=lengths) for n in range(6)], "b": [minute(5.2)]})
    one = at_stage(3)
    recent = tier_minutes.recent_windows(booked, one, planned, START + 360)
    assert [s.window.start for s in recent] == [START + 180, START + 240, START + 300, START]
    found = said(CASCADE, one, now=START + 360, recent=recent, view=planned)
    assert found.causes[0].evidence == ("prompts are longer than planned: P95 200 to 500 tokens, 100 planned",)
    assert said(CASCADE, one).causes == ()


NOW = START + 7200.0
PAGE: Snapshot = at(0)


def lost_replica(name: str, misses: int, page: bool = True, trouble: str = "", silent: float = 120.0) -> ReplicaState:
    last = replace(PAGE, t=NOW - silent) if page else None
    track = ScrapeTrack(last=last, seen=NOW, misses=misses, silent_since=NOW - silent if misses else None)
    return ReplicaState(tier="t", name=name, track=track, error=trouble)


def stand(rule: str, reason: Gap, judged_at: float | None, name: str | None = None, text: str = "refused") -> RuleState:
    result = Unknown(t=NOW, rule=rule, subject=Subject(tier="t", replica=name), reason=reason, text=text)
    return RuleState(result=result, evaluated_at=judged_at)


def too_long(*rule_states: RuleState) -> Verdict:
    return evaluate_unknowns(rule_states, context(), NOW)


def late_page(name: str) -> ReplicaState:
    after = lost_replica(name, 0)
    return replace(after, track=replace(after.track, unscraped_seconds=400.0))


ALL_DOWN = "None of the tier's 2 replicas answered for 2 min; 3 scrapes in a row failed"
LAST_FAILED = "no replica answered the last scrape; the last page is 5 min old"
TOO_FEW = "1 of 2 replicas have not been scraped often enough yet"

ENDED, DOWN_FOR_GOOD = lost_replica("a", 9, silent=500.0), lost_replica("a", 9)


@pytest.mark.parametrize(
    ("replicas", "tier", "wanted", "text"),
    [
        ([lost_replica("a", 3, trouble="connection refused"), lost_replica("b", 7)], VIEW, PAGED, ALL_DOWN),
        # A restart may have taken so long.
        ([ENDED, lost_replica("b", 9, silent=45.0)], VIEW, PAGED, ""),
        ([ENDED, lost_replica("b", 9, silent=44.0)], VIEW, WARNED, ""),
        *(([DOWN_FOR_GOOD, lost_replica("b", n)], VIEW, FINE, "1 of 2 replicas answer") for n in (0, 2)),
        ([late_page("a")], VIEW, Gap.NOT_SCRAPED, ""),
        ([late_page("a"), lost_replica("a", 0)], VIEW, FINE, ""),
        ([lost_replica("a", 1, silent=300.0)], VIEW, Gap.SCRAPE_FAILED, LAST_FAILED),
        ([lost_replica("a", 3, page=False)], VIEW, PAGED, "answered for 2 min, and never before; 3 scrapes"),
        ([lost_replica("a", 2, page=False), lost_replica("b", 5)], VIEW, Gap.SCRAPE_FAILED, TOO_FEW),
        ([NEW, lost_replica("b", 5)], VIEW, Gap.SCRAPE_FAILED, TOO_FEW),
        ([lost_replica("a", 4)], context(limits={"TierDown": {"misses": 5}}), FINE, ""),
        ([lost_replica("a", 9, trouble=f"auth: {NO_TOKEN}"), lost_replica("b", 9)], VIEW, Gap.SCRAPE_FAILED, NO_TOKEN),
    ],
)
def test_tier_without_an_answer(replicas: list[ReplicaState], tier: TierContext, wanted: Wanted, text: str) -> None:
    found = evaluate_tier_availability(replicas, (), tier, NOW)[0]
    assert found.subject == TIER
    check_result(found, wanted, text)


def test_watcher_tells_and_ends_outage() -> None:
    watcher = EvaluationSteps({"t": context()})
    watched(watcher, end=120, names="ab")
    for seconds in range(135, 180, 15):
        watcher.apply_snapshot("t", "b", at(seconds))
        watcher.apply_failed_scrape("t", "a", START + seconds, error="refused")
        watcher.step(START + seconds)
    assert rule_state(watcher, "TierDown").status is Status.OK
    for seconds in range(180, 225, 15):
        assert rule_state(watcher, "TierDown").status is Status.OK
        for name in "ab":
            watcher.apply_failed_scrape("t", name, START + seconds, error="refused")
        watcher.step(START + seconds)
    assert rule_state(watcher, "TierDown").status is Status.CRITICAL
    watcher.apply_snapshot("t", "b", at(315))
    (ended,) = (e for e in watcher.step(START + 315)[0] if e.rule == "TierDown")
    assert not isinstance(ended, UnknownSpan)
    assert ended.started_at == START + 210


def test_only_replica_outage_pages() -> None:
    """The recording's outages last 63 and 34 s: a page within 90 s of a death cannot wait for the end of the first."""
    found = [e for e in replayed("restart").ended if e.rule == "TierDown" and isinstance(e, Finding)]
    outages = [(one.worst.status, (one.ended_at or 0) - one.started_at < 63) for one in found]
    assert outages == [(Status.CRITICAL, True), (Status.WARNING, True)]


def test_own_silence_is_not_counted() -> None:
    """After a night in which nobody asked, the first page is unknown, and that since now."""
    judged, reason = stand("TargetDown", Gap.NOT_SCRAPED, NOW - 9e5, "a"), Gap.NOT_SCRAPED
    span = UnknownSpan(rule="TargetDown", subject=judged.result.subject, reason=reason, text="", started_at=NOW)
    assert too_long(replace(judged, unknown=span)).status is Status.OK
    assert too_long(replace(judged, unknown=replace(span, started_at=NOW - 9e5))).status is Status.WARNING


FAULTS = (Gap.SCRAPE_FAILED, Gap.NOT_SCRAPED, Gap.STALE, Gap.RESTARTED, Gap.IMPOSSIBLE)


@pytest.mark.parametrize("reason", FAULTS)
@pytest.mark.parametrize(("ago", "status"), [(3600.0, Status.WARNING), (3599.0, Status.OK)])
def test_silenced_rule_is_told(reason: Gap, ago: float, status: Status) -> None:
    found = too_long(stand("KvCacheCascade", reason, NOW - ago, "a"))
    assert (found.status, found.certainty, found.subject) == (status, Certainty.CERTAIN, TIER)
    if status is Status.WARNING:
        words = reason.value.replace("_", " ")
        assert found.sentence == "1 rule without a result for up to 1.0 h; KvCacheCascade of t/a for longest"
        assert found.details == (f"KvCacheCascade of t/a: {words} (refused)",)


@pytest.mark.parametrize("reason", [gap for gap in Gap if gap not in FAULTS])
def test_lacking_input_is_no_fault(reason: Gap) -> None:
    assert too_long(stand("TtftDivergence", reason, NOW - 9e5)).status is Status.OK


def test_silent_rules_are_ranked() -> None:
    assert too_long(stand("TtftDivergence", Gap.SCRAPE_FAILED, None)).status is Status.OK
    rules = ("TtftDivergence", "TpotDivergence", "KvEviction", "ItlDivergence", "LoadBeyondBenchmark")
    found = too_long(*(stand(r, Gap.SCRAPE_FAILED, NOW - 3600 * (n + 1), text="") for n, r in enumerate(rules)))
    assert found.sentence == "5 rules without a result for up to 5.0 h; LoadBeyondBenchmark of t for longest"
    assert found.details[2:] == ("KvEviction of t: scrape failed", "and 2 more")


def test_silence_is_told_after_an_hour() -> None:
    watcher = EvaluationSteps({"t": context()})
    watched(watcher, end=120)
    told = {}
    for seconds in range(180, 3841, 60):
        if seconds == 1800:
            watcher.apply_snapshot("t", "a", at(seconds, started_at=START + 1790))
        else:
            watcher.apply_failed_scrape("t", "a", START + seconds)
        watcher.step(START + seconds)
        told[seconds] = rule_state(watcher, "UnknownTooLong").status
    assert next(seconds for seconds, status in told.items() if status is Status.WARNING) in (3720, 3780)
    assert "KvCacheCascade of t/a: scrape failed" in rule_state(watcher, "UnknownTooLong").details[0]
    assert watcher.rules["UnknownTooLong", TIER].finding is not None


PLAN = yaml.safe_load((recorded.PLANS / "cpu-small-open.yaml").read_text())
OTHERS = frozenset({"failing", "llamacpp", "sglang", "mixed_tier", "pools_real"})
"""Recordings of other engines and tiers."""


def plan_of(measured: dict[str, Any] | None) -> Plan:
    tier = PLAN["tiers"]["cpu-small"]
    return parse_plan({"schema": 1, "tiers": {"cpu-small": {**tier, "curve": {**tier["curve"], "measured": measured}}}})


def judge(measured: dict[str, Any] | None, *pages: Mapping[str, str] | None, limits: Any = None) -> RuleResult:
    tier = build_tier_context("t", plan_of(measured).tiers["cpu-small"], limits=limits)
    replicas = []
    for number, facts in enumerate(pages):
        track = ScrapeTrack(last=None if facts is None else page_of_facts(facts=facts))
        replicas.append(ReplicaState(tier="t", name=f"r{number}", track=track))
    return next(one for one in evaluate_tier_availability(replicas, [], tier, 2.0) if one.rule == "BenchmarkStale")


def runs(*releases: str) -> list[dict[str, str]]:
    return [{"engine_version": release} for release in releases]


BENCHMARKED = {"engine_version": "0.32.0"}
RANGE = {"engine_versions": "after 0.29.0 and before 0.33.0"}
CANARY = {"BenchmarkStale": {"replicas": 2}}
TWO_OF_THREE = "2 of 3 replicas run release 0.33.0; release 0.32.0 was benchmarked; benchmarked on 2026-11-20"
ALL = (
    "All 2 replicas run release 0.33.0 (1) and release 0.34.0 (1); "
    "release 0.32.0, tensor parallel degree 1 was benchmarked"
)
OUTSIDE = "The replica runs a release after 0.29.0 and before 0.33.0; release 0.29.0 was benchmarked"


@pytest.mark.parametrize(
    ("measured", "pages", "limits", "wanted", "text"),
    [
        ({**BENCHMARKED, "measured_on": "2026-11-20"}, runs("0.33.0", "0.32.0", "0.33.0"), None, WARNED, TWO_OF_THREE),
        ({**BENCHMARKED, "tensor_parallel": 1}, runs("0.33.0", "0.34.0"), None, WARNED, ALL),
        (BENCHMARKED, runs("0.32.0+cpu"), None, FINE, "The replica runs what was benchmarked: release 0.32.0"),
        (BENCHMARKED, [*runs("0.32.0"), {"engine_versions": "after 0.29.0"}], None, FAIRLY, ""),
        # Names of metrics only exclude releases.
        (BENCHMARKED, [RANGE], None, HIDDEN, ""),
        ({"engine_version": "0.29.0"}, [RANGE], None, WARNED, OUTSIDE),
        ({"engine_version": "0.29.0"}, [{**RANGE, "engine_version": "0.29.0"}], None, FINE, ""),
        ({"max_num_seqs": 256}, [{"max_num_seqs": "128"}], None, WARNED, "max-num-seqs 128; max-num-seqs 256 was"),
        ({"tensor_parallel": 2}, [{"tensor_parallel_size": "4"}], None, WARNED, "degree 4; tensor parallel degree 2"),
        (None, runs("0.33.0"), None, UNPLANNED, ""),
        ({"measured_on": "2026-11-20"}, runs("0.33.0"), None, UNPLANNED, ""),
        (BENCHMARKED, [{}], None, HIDDEN, ""),
        (BENCHMARKED, [None], None, Gap.SCRAPE_FAILED, ""),
        (BENCHMARKED, runs("0.33.0", "0.32.0"), CANARY, FINE, "1 of 2 replicas "),
        (BENCHMARKED, runs("0.33.0", "0.33.0"), CANARY, WARNED, ""),
    ],
)
def test_release_against_the_benchmarked(measured: Any, pages: Any, limits: Any, wanted: Wanted, text: str) -> None:
    check_result(judge(measured, *pages, limits=limits), wanted, text)


SAME = [("0.32.0", "v0.32"), ("0.32.0+cpu", "0.32.0+cu129"), ("main-a1b2", "main-a1b2")]
OTHER = [("0.33.0rc1", "0.33.0"), ("0.10.0.post2", "0.10.0"), ("0.3.2", "0.32"), ("main-a1b2", "main-c3d4")]


@pytest.mark.parametrize("pair", [*SAME, *OTHER])
def test_releases_are_compared_by_their_numbers(pair: tuple[str, str]) -> None:
    assert is_same_release(*pair) is is_same_release(*reversed(pair)) is (pair in SAME)


EXCLUDED = [("after 0.29.0", "0.29.0"), ("after 0.29.0", "0.9.2"), ("before 0.33.0", "0.33.0")]
EXCLUDED += [("after 0.10.2 and before 0.12.0", "0.12.1")]
INCLUDED = [("after 0.29.0", "0.29.1"), ("before 0.33.0", "0.32.0"), ("", "0.32.0"), ("after 0.29.0", "nightly")]


@pytest.mark.parametrize("pair", [*EXCLUDED, *INCLUDED])
def test_a_range_of_releases_excludes_its_ends(pair: tuple[str, str]) -> None:
    assert is_excluded(*pair) is (pair in EXCLUDED)


@pytest.mark.parametrize("name", sorted(set(recorded.names()) - OTHERS))
@pytest.mark.parametrize("release", ["0.32.0", "0.31.0"])
def test_recordings_fire_on_other_releases(name: str, release: str) -> None:
    recording, _ = load(Path(recorded.folder(name)))
    states = replay(recording, plan_of({"engine_version": release})).rule_states
    (state,) = [one for one in states if one.result.rule == "BenchmarkStale"]
    if release == "0.32.0":
        assert (outcome(state.result), state.finding) == (FINE, None)
    else:
        assert state.finding.worst.sentence.endswith("release 0.32.0; release 0.31.0 was benchmarked")
