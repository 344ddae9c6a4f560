from __future__ import annotations

from dataclasses import replace
from typing import Any

import recorded
from judging_samples import START, context, each, minute, minutes, unknown, verdict
from prose import explain

from agent.config.files import load_plan
from agent.replay.replay import replay
from agent.sources.recording import load
from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator import tier_rules
from rules.evaluator.tier_rules import evaluate_rule
from rules.plan.load_bins import TierContext
from rules.plan.load_bins import build_tier_context as bare
from rules.replicas.starts import ReplicaStart
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import Window
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict

RULE = "ColdStartLate"
PLANNED = context(cold_start_seconds=40)


def started(number: int, *seconds: float, **more: Any) -> Window:
    """A minute in which the replica started so often."""
    counters = {"cold_starts": float(len(seconds)), "cold_start_seconds": sum(seconds), "restarts": float(len(seconds))}
    return minute(number, counters=counters, **more)


def hour(starts: dict[int, tuple[float, ...]]) -> list[Window]:
    return each(6, lambda n: started(n, *starts[n]) if n in starts else minute(n))


def said(found: Verdict) -> tuple[Status, Certainty]:
    return found.status, found.certainty


def test_a_start_within_the_planned_lead_is_fine() -> None:
    found = verdict(RULE, PLANNED, hour({1: (40.0,)}))
    assert said(found) == (Status.OK, Certainty.LIKELY), "only a part was timed"
    assert explain(found) == (
        "1 start took 40 s; 40 s are planned; "
        "timed from process start to ready; "
        "the plan is for the whole start, which was not timed"
    )


def test_one_start_beyond_the_planned_lead_is_late_for_it_was_measured() -> None:
    found = verdict(RULE, PLANNED, hour({1: (40.1,)}))
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(found) == (
        "1 of 1 start took longer than the planned 40 s; a 40.1 s; "
        "timed from process start to ready; "
        "the plan is for the whole start"
    )
    assert found.observed == Reading(value=40.1, low=40.1, high=None, n=1.0)
    assert found.actions[0].startswith("Raise cold_start_seconds")


def test_a_quick_start_hides_no_late_one() -> None:
    found = verdict(RULE, PLANNED, hour({1: (50.0,), 4: (20.0,)}))
    assert found.status is Status.WARNING
    assert found.sentence.startswith("1 of 2 starts took longer")
    assert explain(found) == (
        "1 of 2 starts took longer than the planned 40 s; a 50 s; "
        "timed from process start to ready; "
        "the plan is for the whole start"
    )
    fine = verdict(RULE, PLANNED, hour({1: (30.0,), 4: (20.0,)}))
    assert explain(fine) == (
        "2 starts took at most 30 s; 40 s are planned; "
        "timed from process start to ready; "
        "the plan is for the whole start, which was not timed"
    )


def test_the_late_replica_is_named() -> None:
    replicas = {"a": hour({1: (30.0,)}), "b": hour({2: (60.0,)})}
    assert explain(verdict(RULE, PLANNED, replicas)) == (
        "1 of 2 starts took longer than the planned 40 s; b 60 s; "
        "timed from process start to ready; "
        "the plan is for the whole start"
    )


def test_a_late_start_is_forgotten_after_an_hour() -> None:
    late = [started(0, 60.0), *each(61, lambda n: minute(n + 1))]
    assert unknown(RULE, PLANNED, late).reason is Gap.NO_TRAFFIC
    assert verdict(RULE, PLANNED, late[:59]).status is Status.WARNING


def test_no_restart_and_a_restart_that_nobody_timed_are_told_apart() -> None:
    none = unknown(RULE, PLANNED, each(6, minute))
    assert (none.reason, none.text) == (Gap.NO_TRAFFIC, "no start was seen")
    untimed = each(6, lambda n: minute(n, counters={"restarts": 1.0} if n in (1, 2) else {}))
    found = unknown(RULE, PLANNED, untimed)
    assert found.reason is Gap.NOT_EXPOSED
    assert found.text == "2 restarts were seen, the page does not expose when the engine was ready"


def test_without_a_planned_lead_what_was_measured_is_told() -> None:
    assert unknown(RULE, bare("t", None), hour({})).text == "the plan has no cold_start_seconds"
    found = unknown(RULE, context(), hour({1: (50.0,)}))
    assert found.reason is Gap.NOT_IN_PLAN
    assert found.text == "the plan has no cold_start_seconds; 50 s were measured from process start to ready"


def test_before_its_minimum_and_without_any_replica_it_says_so() -> None:
    assert unknown(RULE, PLANNED, [started(0, 60.0, seconds=59.0)]).text == "59 s seen, 60 s are needed"
    never = evaluate_rule(BY_NAME[RULE], PLANNED, (), now=0.0)
    assert isinstance(never, Unknown)
    assert never.reason is Gap.SCRAPE_FAILED


def test_a_new_replica_whose_target_was_waited_for_has_its_start_measured() -> None:
    """A stopwatch beside the recording said 15.9 s; nineteen scrapes failed before."""
    recording, _ = load(recorded.folder("scale_up_cold_cache"))
    done = replay(recording, load_plan(recorded.PLANS / "cpu-small-open.yaml"))
    (found,) = [one.result for one in done.rule_states if one.result.rule == RULE]
    assert isinstance(found, Verdict)
    assert explain(found) == (
        "1 start took 15.6 s; 40 s are planned; "
        "timed from process start to ready; "
        "the plan is for the whole start, which was not timed"
    )


def known(*seconds: float) -> tuple[ReplicaStart, ...]:
    """Starts of long ago whose pages told how long they took."""
    return tuple(
        ReplicaStart(
            replica=f"r{n}", seen_at=START - 86_400 + n, started_at=START - 86_400 + n - s, ready_at=START - 86_400 + n
        )
        for n, s in enumerate(seconds)
    )


def with_starts(
    starts: tuple[ReplicaStart, ...], tier: TierContext = PLANNED, windows: list[Window] | None = None
) -> RuleResult:
    """What the rule says when these are known beside the minutes."""
    booked = replace(minutes(tier, {"a": windows if windows is not None else hour({})}), starts=starts)
    now = booked.binned[-1].window.end
    return next(result for result in tier_rules.evaluate_tier_rules(booked, tier, now) if result.rule == RULE)


def test_a_lead_below_the_p95_of_all_known_starts_is_a_verdict_also_days_after_them() -> None:
    found = with_starts(known(30.0, 50.6, 35.0))
    assert isinstance(found, Verdict)
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(found) == (
        "The slowest of 3 cold starts took 50.6 s; 40 s are planned; "
        "timed from process start to ready; "
        "the plan is for the whole start"
    )
    assert isinstance(found.observed, Reading)
    assert (round(found.observed.value or 0.0, 3), found.observed.n) == (50.6, 3.0)
    assert found.actions[0].startswith("Raise cold_start_seconds")
    fine = with_starts(known(30.0, 40.0))
    assert isinstance(fine, Verdict)
    assert said(fine) == (Status.OK, Certainty.LIKELY)
    assert explain(fine) == (
        "The slowest of 2 cold starts took 40 s; 40 s are planned; "
        "timed from process start to ready; "
        "the plan is for the whole start, which was not timed"
    )


def test_one_slow_start_in_twenty_is_within_the_p95_and_two_in_thirty_are_not() -> None:
    quick = (20.0,) * 19
    one = with_starts(known(*quick, 90.0))
    assert isinstance(one, Verdict)
    assert one.status is Status.OK
    assert explain(one) == (
        "Cold start P95 is 20 s over 20 starts; 40 s are planned; "
        "timed from process start to ready; "
        "the plan is for the whole start, which was not timed"
    )
    two = with_starts(known(*(20.0,) * 28, 90.0, 95.0))
    assert isinstance(two, Verdict)
    assert two.status is Status.WARNING
    assert explain(two) == (
        "Cold start P95 is 90 s over 30 starts; 40 s are planned; "
        "timed from process start to ready; "
        "the plan is for the whole start"
    )
    alone = with_starts(known(90.0))
    assert isinstance(alone, Verdict)
    assert explain(alone) == (
        "The only known cold start took 90 s; 40 s are planned; "
        "timed from process start to ready; "
        "the plan is for the whole start"
    )


def test_a_late_start_of_the_last_hour_is_told_before_all_known_ones_and_a_quick_one_hides_none() -> None:
    late = with_starts(known(90.0, 50.0), windows=hour({1: (50.0,)}))
    assert isinstance(late, Verdict)
    assert explain(late) == (
        "1 of 1 start took longer than the planned 40 s; a 50 s; "
        "timed from process start to ready; "
        "the plan is for the whole start"
    )
    quick = with_starts(known(90.0, 20.0), windows=hour({1: (20.0,)}))
    assert isinstance(quick, Verdict)
    assert explain(quick) == (
        "The slowest of 2 cold starts took 90 s; 40 s are planned; "
        "timed from process start to ready; "
        "the plan is for the whole start"
    )
    both_fine = with_starts(known(20.0), windows=hour({1: (20.0,)}))
    assert isinstance(both_fine, Verdict)
    assert explain(both_fine) == (
        "1 start took 20 s; 40 s are planned; "
        "timed from process start to ready; "
        "the plan is for the whole start, which was not timed"
    )


def test_a_start_that_only_the_scrapes_bound_proves_nothing() -> None:
    bounded = ReplicaStart(
        replica="r", seen_at=START + 95, alive_at=START, silent_since=START + 15, started_at=START + 20
    )
    found = with_starts((bounded,))
    assert isinstance(found, Verdict)
    assert said(found) == (Status.WARNING, Certainty.LIKELY)
    untimed = with_starts((replace(bounded, started_at=None),))
    assert isinstance(untimed, Unknown)
    assert untimed.text == "no start was seen"


def test_a_threshold_of_its_own_allows_a_tier_longer_starts() -> None:
    patient = context(cold_start_seconds=40, limits={RULE: {"factor": 1.5}})
    for seconds, status in ((59.0, Status.OK), (61.0, Status.WARNING)):
        found = with_starts(known(seconds), patient)
        assert isinstance(found, Verdict)
        assert found.status is status
    recent = with_starts(known(90.0), patient, hour({1: (50.0,)}))
    assert isinstance(recent, Verdict)
    assert explain(recent) == (
        "The only known cold start took 90 s; 40 s are planned; "
        "timed from process start to ready; "
        "the plan is for the whole start"
    )


def test_without_a_planned_lead_the_p95_of_all_known_starts_is_told() -> None:
    found = with_starts(known(30.0, 55.0), context())
    assert isinstance(found, Unknown)
    assert found.text == "the plan has no cold_start_seconds; 55 s were measured from process start to ready"
    whole = with_starts((*known(30.0, 55.0), *asked_for(45.0)), context())
    assert isinstance(whole, Unknown)
    assert whole.text.endswith("; 45 s were measured from the request for the pod to Ready")


def asked_for(*seconds: float, ago: float = 86_400.0) -> tuple[ReplicaStart, ...]:
    """Starts whose pods took so long from their making to Ready, of 10 s before the process ran."""
    return tuple(
        ReplicaStart(
            replica=f"p{n}",
            seen_at=START - ago + n,
            asked_at=START - ago + n - s,
            started_at=START - ago + n - s + 10,
            ready_at=START - ago + n,
            pod_ready_at=START - ago + n,
        )
        for n, s in enumerate(seconds)
    )


def test_kinds_of_timing_are_judged_apart() -> None:
    """Of all together 95 % would be within the plan, and one in twenty-one would not count."""
    found = with_starts((*known(*(20.0,) * 38), *asked_for(90.0)))
    assert isinstance(found, Verdict)
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(found) == (
        "The only known cold start took 90 s; 40 s are planned; timed from the request for the pod to Ready"
    )


def test_only_starts_timed_from_the_request_show_that_the_plan_holds() -> None:
    found = with_starts((*known(20.0), *asked_for(35.0, 38.0)), windows=hour({1: (20.0,)}))
    assert isinstance(found, Verdict)
    assert said(found) == (Status.OK, Certainty.CERTAIN)
    assert explain(found) == (
        "The slowest of 2 cold starts took 38 s; 40 s are planned; timed from the request for the pod to Ready"
    )


def test_a_late_start_of_the_last_hour_is_judged_from_the_request_where_its_pod_tells_it() -> None:
    """Its process took 40 of the 50 s: by its page alone it would be in time."""
    late = with_starts((*asked_for(*(20.0,) * 40), *asked_for(50.0, ago=30.0)), windows=hour({1: (40.0,)}))
    assert isinstance(late, Verdict)
    assert said(late) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(late) == (
        "1 of 1 start took longer than the planned 40 s; p0 50 s; timed from the request for the pod to Ready"
    )
    fine = with_starts(asked_for(38.0, ago=30.0), windows=hour({1: (28.0,)}))
    assert isinstance(fine, Verdict)
    assert said(fine) == (Status.OK, Certainty.CERTAIN)
    assert explain(fine) == ("1 start took 38 s; 40 s are planned; timed from the request for the pod to Ready")
