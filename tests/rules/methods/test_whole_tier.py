from collections.abc import Sequence
from dataclasses import replace

import pytest
import recorded
from evaluation_steps import EvaluationSteps
from judging_samples import START, context
from test_step import TIER, at, rule_state, watched

from agent.replay.replay import replay
from agent.sources.recording import load
from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator.scrape_rules import evaluate_tier_availability, evaluate_unknowns
from rules.plan.load_bins import TierContext
from rules.replicas.state import ReplicaState, ScrapeTrack
from rules.telemetry.signals import Gap
from rules.telemetry.snapshots import Snapshot
from rules.verdicts.finding import Finding, RuleState, UnknownSpan
from rules.verdicts.verdict import RuleResult, Status, Subject, Unknown, Verdict

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


# --- TierDown


def tier_down(replicas: Sequence[ReplicaState], context: TierContext, now: float) -> RuleResult:
    return evaluate_tier_availability(replicas, (), context, now)[0]


def test_silent_tier_is_down() -> None:
    found = tier_down([replica("a", 3, trouble="connection refused"), replica("b", 7)], context(), NOW)
    assert (found.status, found.certainty, found.subject) == (Status.CRITICAL, Certainty.CERTAIN, TIER)
    assert found.sentence == ("None of the tier's 2 replicas answered for 120 s; 3 scrapes in a row failed")
    assert found.actions


@pytest.mark.parametrize(("silent", "status"), [(45.0, Status.CRITICAL), (44.0, Status.WARNING)])
def test_possible_restart_pages_nobody(silent: float, status: Status) -> None:
    found = tier_down([replica("a", 9, silent=500.0), replica("b", 9, silent=silent)], context(), NOW)
    assert found.status is status


@pytest.mark.parametrize("other", [replica("b", 0), replica("b", 2)])
def test_answering_replica_keeps_tier_up(other: ReplicaState) -> None:
    found = tier_down([replica("a", 9), other], context(), NOW)
    assert (found.status, found.sentence) == (Status.OK, "1 of 2 replicas answer")


def test_late_page_is_not_judged() -> None:
    after = replica("a", 0)
    asked_late = replace(after, track=replace(after.track, unscraped_seconds=400.0))
    found = tier_down([asked_late], context(), NOW)
    assert found.reason is Gap.NOT_SCRAPED
    assert isinstance(tier_down([asked_late, after], context(), NOW), Verdict)


def test_single_failure_is_no_answer() -> None:
    found = tier_down([replica("a", 1, silent=300.0)], context(), NOW)
    assert (found.reason, found.text) == (
        Gap.SCRAPE_FAILED,
        "no replica answered the last scrape; the last page is 300 s old",
    )


def test_never_answering_tier_is_down() -> None:
    found = tier_down([replica("a", 3, page=False)], context(), NOW)
    assert found.status is Status.CRITICAL
    assert "answered for 120 s, and never before; 3 scrapes" in found.sentence


@pytest.mark.parametrize("first", [replica("a", 2, page=False), ReplicaState(tier="t", name="a")])
def test_nothing_before_three_scrapes(first: ReplicaState) -> None:
    found = tier_down([first, replica("b", 5)], context(), NOW)
    assert (found.reason, found.text) == (Gap.SCRAPE_FAILED, "1 of 2 replicas have not been scraped often enough yet")


def test_tier_sets_its_misses() -> None:
    patient = context(limits={"TierDown": {"misses": 5}})
    found = tier_down([replica("a", 4)], patient, NOW)
    assert found.status is Status.OK
    assert BY_NAME["TierDown"].limit("misses", {}) == 3


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
    recording, _ = load(recorded.folder("restart"))
    ended = [e for e in replay(recording, None).ended if e.rule == "TierDown"]
    assert [(e.worst.status, (e.ended_at or 0) - e.started_at < 63) for e in ended if isinstance(e, Finding)] == [
        (Status.CRITICAL, True),
        (Status.WARNING, True),
    ]


# --- UnknownTooLong


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
