"""Rules of a tier as a whole: an outage, silenced rules, a benchmark of another release."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import recorded
import yaml
from evaluation_steps import EvaluationSteps
from judging_samples import START, context
from making import bare_page
from recorded import replayed
from rule_cases import FAIRLY, FINE, HIDDEN, PAGED, UNPLANNED, WARNED, Wanted, check_result
from test_step import TIER, at, rule_state, watched

from agent.replay.replay import replay
from agent.sources.recording import load
from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator.scrape_rules import evaluate_tier_availability, evaluate_unknowns
from rules.methods.configuration import is_excluded
from rules.plan.load_bins import TierContext, build_tier_context
from rules.plan.schema import Plan, parse_plan
from rules.replicas.state import ReplicaState, ScrapeTrack
from rules.telemetry.signals import Gap
from rules.telemetry.snapshots import Snapshot, is_same_release
from rules.verdicts.verdict import Finding, RuleResult, RuleState, Status, Subject, Unknown, UnknownSpan, Verdict

NOW = START + 7200.0
PAGE: Snapshot = at(0)


def replica(name: str, misses: int, page: bool = True, trouble: str = "", silent: float = 120.0) -> ReplicaState:
    last = replace(PAGE, t=NOW - silent) if page else None
    track = ScrapeTrack(last=last, seen=NOW, misses=misses, silent_since=NOW - silent if misses else None)
    return ReplicaState(tier="t", name=name, track=track, error=trouble)


def stand(rule: str, reason: Gap, judged_at: float | None, name: str | None = None, text: str = "refused") -> RuleState:
    result = Unknown(t=NOW, rule=rule, subject=Subject(tier="t", replica=name), reason=reason, text=text)
    return RuleState(result=result, evaluated_at=judged_at)


def too_long(*rule_states: RuleState) -> Verdict:
    found = evaluate_unknowns(rule_states, context(), NOW)
    assert isinstance(found, Verdict)
    return found


def tier_down(replicas: Sequence[ReplicaState], context: TierContext, now: float) -> RuleResult:
    return evaluate_tier_availability(replicas, (), context, now)[0]


def late_page(name: str) -> ReplicaState:
    after = replica(name, 0)
    return replace(after, track=replace(after.track, unscraped_seconds=400.0))


PATIENT = context(limits={"TierDown": {"misses": 5}})
REFUSED = replica("a", 3, trouble="connection refused")
ALL_DOWN = "None of the tier's 2 replicas answered for 120 s; 3 scrapes in a row failed"
LAST_FAILED = "no replica answered the last scrape; the last page is 300 s old"
TOO_FEW = "1 of 2 replicas have not been scraped often enough yet"


@pytest.mark.parametrize(
    ("replicas", "tier", "wanted", "text"),
    [
        ([REFUSED, replica("b", 7)], context(), PAGED, ALL_DOWN),
        # A restart may have taken so long.
        ([replica("a", 9, silent=500.0), replica("b", 9, silent=45.0)], context(), PAGED, ""),
        ([replica("a", 9, silent=500.0), replica("b", 9, silent=44.0)], context(), WARNED, ""),
        *(([replica("a", 9), replica("b", misses)], context(), FINE, "1 of 2 replicas answer") for misses in (0, 2)),
        ([late_page("a")], context(), Gap.NOT_SCRAPED, ""),
        ([late_page("a"), replica("a", 0)], context(), FINE, ""),
        ([replica("a", 1, silent=300.0)], context(), Gap.SCRAPE_FAILED, LAST_FAILED),
        ([replica("a", 3, page=False)], context(), PAGED, "answered for 120 s, and never before; 3 scrapes"),
        ([replica("a", 2, page=False), replica("b", 5)], context(), Gap.SCRAPE_FAILED, TOO_FEW),
        ([ReplicaState(tier="t", name="a"), replica("b", 5)], context(), Gap.SCRAPE_FAILED, TOO_FEW),
        ([replica("a", 4)], PATIENT, FINE, ""),
    ],
)
def test_tier_without_an_answer(replicas: list[ReplicaState], tier: TierContext, wanted: Wanted, text: str) -> None:
    found = tier_down(replicas, tier, NOW)
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
    ended = [e for e in replayed("restart").ended if e.rule == "TierDown"]
    assert [(e.worst.status, (e.ended_at or 0) - e.started_at < 63) for e in ended if isinstance(e, Finding)] == [
        (Status.CRITICAL, True),
        (Status.WARNING, True),
    ]


def test_own_silence_is_not_counted() -> None:
    """After a night in which nobody asked, the first page is unknown, and that since now."""
    judged = stand("TargetDown", Gap.NOT_SCRAPED, NOW - 9e5, "a")
    span = UnknownSpan(
        rule="TargetDown", subject=judged.result.subject, reason=Gap.NOT_SCRAPED, text="", started_at=NOW, ended_at=None
    )
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


@pytest.mark.parametrize("reason", [g for g in Gap if g not in FAULTS])
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

RECORDINGS = sorted(set(recorded.names()) - OTHERS)


def plan_of(measured: dict[str, Any] | None) -> Plan:
    tier = PLAN["tiers"]["cpu-small"]
    return parse_plan({"schema": 1, "tiers": {"cpu-small": {**tier, "curve": {**tier["curve"], "measured": measured}}}})


def replica_with(name: str, facts: Mapping[str, str] | None) -> ReplicaState:
    if facts is None:
        return ReplicaState(tier="t", name=name)
    return ReplicaState(tier="t", name=name, track=replace(ScrapeTrack(), last=bare_page(facts=facts)))


def judge(measured: dict[str, Any] | None, *pages: Mapping[str, str] | None, limits: Any = None) -> RuleResult:
    tier = plan_of(measured).tiers["cpu-small"]
    context = build_tier_context("t", tier, limits=limits)
    replicas = [replica_with(f"r{number}", facts) for number, facts in enumerate(pages)]
    return next(one for one in evaluate_tier_availability(replicas, [], context, 2.0) if one.rule == "BenchmarkStale")


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


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("0.32.0", "v0.32", True),
        ("0.32.0+cpu", "0.32.0+cu129", True),
        ("0.33.0rc1", "0.33.0", False),
        ("0.10.0.post2", "0.10.0", False),
        ("0.3.2", "0.32", False),
        ("main-a1b2", "main-a1b2", True),
        ("main-a1b2", "main-c3d4", False),
    ],
)
def test_releases_are_compared_by_their_numbers(one: str, other: str, same: bool) -> None:
    assert is_same_release(one, other) is same
    assert is_same_release(other, one) is same


@pytest.mark.parametrize(
    ("allowed", "release", "excluded"),
    [
        ("after 0.29.0", "0.29.0", True),
        ("after 0.29.0", "0.9.2", True),
        ("after 0.29.0", "0.29.1", False),
        ("before 0.33.0", "0.33.0", True),
        ("before 0.33.0", "0.32.0", False),
        ("after 0.10.2 and before 0.12.0", "0.12.1", True),
        ("", "0.32.0", False),
        ("after 0.29.0", "nightly", False),
    ],
)
def test_a_range_of_releases_excludes_its_ends(allowed: str, release: str, excluded: bool) -> None:
    assert is_excluded(allowed, release) is excluded


def test_stale_benchmark_explains_nothing() -> None:
    assert BY_NAME["BenchmarkStale"].stage == 0


@pytest.mark.parametrize("name", RECORDINGS)
@pytest.mark.parametrize("release", ["0.32.0", "0.31.0"])
def test_recordings_fire_on_other_releases(name: str, release: str) -> None:
    recording, _ = load(Path(recorded.folder(name)))
    states = replay(recording, plan_of({"engine_version": release})).rule_states
    (state,) = [one for one in states if one.result.rule == "BenchmarkStale"]
    assert isinstance(state.result, Verdict)
    if release == "0.32.0":
        assert (state.result.status, state.finding) == (Status.OK, None)
    else:
        assert state.finding.worst.sentence.endswith("release 0.32.0; release 0.31.0 was benchmarked")
