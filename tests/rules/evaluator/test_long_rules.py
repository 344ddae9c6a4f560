"""Rules over days, a week against its benchmark (step 13), and queues that stand still and miss the TTFT objective."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from days_samples import answered, binned, context, hour, hours
from evaluation_steps import EvaluationSteps
from judging_samples import START, minute, seen, tier
from judging_samples import context as tier_context
from making import cumulative, snapshot
from outcomes import FINE, PAGED, WARNED, Wanted
from paths import TESTS
from recorded import replayed
from rule_cases import outcome
from test_incidents import finding as make_finding

from agent.config.files import load_plan
from agent.replay.replay import replay
from agent.sources.recording import load
from exporters.documents.replay import check_json, check_text
from rules.catalogue.registry import RULES
from rules.confidence import Certainty
from rules.evaluator import rule_evaluation, tier_minutes
from rules.evaluator.benchmark_check import Step13, check_benchmark
from rules.evaluator.incidents import group_incidents
from rules.evaluator.observation import Observation, ReplicaScrape
from rules.evaluator.state import EvaluatorState
from rules.evaluator.step import Evaluator
from rules.plan.load_bins import BinnedWindow, bin_window
from rules.plan.load_bins import build_tier_context as view_of
from rules.plan.schema import parse_plan
from rules.telemetry.signals import Gap
from rules.verdicts.verdict import Finding, RuleResult, Status, Subject, Unknown, Verdict

DAY, WEEK = 24, 168
TIER = Subject(tier="t")


def test_slice_rules_read_minutes_or_hours() -> None:
    live, long = {rule.name for rule in tier_minutes.LIVE}, {rule.name for rule in rule_evaluation.LONG}
    assert live | long == {rule.name for rule in RULES if not rule.per_scrape}
    assert not live & long
    assert rule_evaluation.WEEKLY.name in live
    assert tier_minutes.LONGEST <= tier_minutes.LIVE_SECONDS


def test_long_rules_answer_without_data() -> None:
    results = rule_evaluation.evaluate_long_rules(context(), (), START)
    assert [a.rule for a in results] == [rule.name for rule in rule_evaluation.ASKED]
    assert all(isinstance(a, Unknown) and a.reason is Gap.TOO_FEW_REQUESTS and a.wait_seconds is None for a in results)
    assert "0 of 168 hours seen, 152 are needed" in {a.text for a in results if isinstance(a, Unknown)}


def test_most_hours_of_week_suffice() -> None:
    half = hours(WEEK, lambda n: hour(n, covered=0.5 if n < 40 else 1.0))
    assert answered("UtilizationTrap", context(), half).text == "148 of 168 hours seen, 152 are needed"
    gaps = [one for number, one in enumerate(hours(WEEK)) if number not in (30, 31, 90, 150)]
    several = hours(WEEK + 3)
    for missed in (gaps, [*several[:2], *several[4:]]):
        assert answered("UtilizationTrap", context(), missed).status is Status.OK
    assert isinstance(answered("UtilizationTrap", context(), several[4:]), Unknown)


def test_the_hour_under_way_does_not_count() -> None:
    several = hours(WEEK + 1)
    under_way = several[-1].end - 60
    assert answered("UtilizationTrap", context(), several[:-1]).t == several[-2].end
    found = answered("UtilizationTrap", context(), [*several[:-1], replace(several[-1], counters={})], under_way)
    assert (found.t, found.status) == (under_way, Status.OK)
    assert answered("UtilizationTrap", context(), several[1:], under_way).text.startswith("167 of 168")


def test_hour_of_bins_counts_once() -> None:
    several = hours(WEEK)
    parts = [replace(bin_window(one, None, None), bin=bin) for one in several for bin in (0, 2)]
    whole = rule_evaluation.sum_slim_hours(parts)
    assert len(whole) == WEEK
    assert whole[0].window.counters["requests_finished"] == 2 * several[0].counters["requests_finished"]
    assert rule_evaluation.sum_slim_hours(whole) == whole
    one = bin_window(hour(0, histograms={"ttft_seconds": seen({0.1: 5.0})}), None, None)
    (slim,) = rule_evaluation.sum_slim_hours([one])
    assert (slim.window.histograms, slim.window.counters) == ({}, one.window.counters), "nobody reads histograms"


def test_plan_change_drops_older_hours() -> None:
    every = binned(hours(WEEK))
    results = {a.rule: a for a in rule_evaluation.evaluate_long_rules(context(), every, hour(WEEK).start, every[100:])}
    trap = results["UtilizationTrap"]
    assert trap.text == "68 of 168 hours seen, 152 are needed"
    assert isinstance(results["KvCacheUnderused"], Verdict)


def trap() -> list[BinnedWindow]:
    return binned(hours(WEEK, lambda n: hour(n, used=0.1)))


NOW = hour(WEEK).start


def test_history_answers_stand_between_hours() -> None:
    watcher = EvaluationSteps({"t": context()})
    watcher.set_long_term_results(rule_evaluation.evaluate_long_rules(context(), trap(), NOW))
    assert not watcher.rules
    for seconds in (0, 15, 30):
        watcher.step(NOW + seconds)
        rule_state = watcher.rules["UtilizationTrap", TIER]
        assert rule_state.finding.started_at == NOW
        open_rules = {rule for (rule, _), state in watcher.rules.items() if state.finding is not None}
        assert open_rules == {"KvCacheUnderused", "UtilizationTrap", "QueueAlwaysEmpty"}
    watcher.set_long_term_results(rule_evaluation.evaluate_long_rules(context(), binned(hours(WEEK)), NOW))
    (ended, _) = watcher.step(NOW + 3600)
    assert "UtilizationTrap" in {one.rule for one in ended}


def test_plan_change_ends_nothing_early() -> None:
    watcher = EvaluationSteps({"t": context()})
    watcher.set_long_term_results(rule_evaluation.evaluate_long_rules(context(), trap(), NOW))
    watcher.step(NOW)
    watcher.set_long_term_results(rule_evaluation.evaluate_long_rules(context(), trap(), NOW, ()))
    assert not [one for one in watcher.step(NOW + 15)[0] if one.rule == "UtilizationTrap"]
    rule_state = watcher.rules["UtilizationTrap", TIER]
    assert rule_state.finding is not None
    assert isinstance(rule_state.result, Unknown)


def test_next_configuration_takes_results_over() -> None:
    before, after = EvaluationSteps({"t": context()}), EvaluationSteps({"t": context()})
    for name in ("t", "gone"):
        before.apply_failed_scrape(name, "a", NOW)
        before.apply_failed_scrape(name, "a", NOW + 15)
    before.set_long_term_results(rule_evaluation.evaluate_long_rules(context(), trap(), NOW))
    before.set_long_term_results(rule_evaluation.evaluate_long_rules(replace(context(), name="gone"), trap(), NOW))
    after.take_state(before, {("t", "a")})
    after.step(NOW + 30)
    assert ("UtilizationTrap", TIER) in after.rules
    assert ("UtilizationTrap", Subject(tier="gone")) not in after.rules
    last = EvaluationSteps({"t": context()})
    last.take_state(after, {("t", "a")})
    assert last.rules["UtilizationTrap", TIER].finding is not None
    assert ("NoHeadroom", TIER) in last.long_term


def test_missing_history_is_unknown_everywhere() -> None:
    results = rule_evaluation.unknown_results(context(), NOW, Gap.NOT_EXPOSED, "this agent keeps no history")
    assert [a.rule for a in results] == [rule.name for rule in rule_evaluation.LONG]
    told = {(a.reason, a.text) for a in results if isinstance(a, Unknown)}
    assert told == {(Gap.NOT_EXPOSED, "this agent keeps no history")}
    spans = [s.unknown for s in replayed("steady").rule_states if s.result.rule in {a.rule for a in results}]
    assert (len(spans), len({one.text for one in spans if one})) == (len(rule_evaluation.LONG), 1)


PLANNED = tier_context()


def hour_of_bin(number: int, rps: float = 3.0, slow: float = 0.0, bin: int | None = 1, **more: Any) -> BinnedWindow:
    """The sum of one load bin in one hour, as the history keeps it; `slow` is a share."""
    beyond = more.pop("beyond", "")
    window = minute(60 * number, rps=rps, slow=slow * rps * 3600, seconds=3600.0, **more)
    placed = bin_window(window, PLANNED.curve, None, bin)
    return replace(placed, replica=None, bin=bin, beyond=beyond, backlog="", leftover=0.0)


def checked(binned: list[BinnedWindow]) -> Step13:
    return check_benchmark(PLANNED, binned, START + WEEK * 3600)


def result(found: Step13, rule: str) -> Verdict | Unknown:
    return next(a for a in found.results if a.rule == rule)


def test_a_week_like_the_benchmark_confirms_it() -> None:
    found = checked([hour_of_bin(n, slow=0.002) for n in range(WEEK)])
    assert found.status is Status.OK
    assert found.requests == WEEK * 3600 * 3
    assert (found.highest_rps, found.usable_rps) == (3.0, 6.0)
    assert found.highest_share == 0.5


def test_slow_week_refutes_the_benchmark() -> None:
    found = checked([hour_of_bin(n, slow=0.05) for n in range(WEEK)])
    assert found.status is Status.WARNING
    ttft = result(found, "TtftDivergence")
    assert (ttft.status, ttft.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert ttft.causes
    assert "1,814,400 requests, at least 5.0%" in ttft.details[0]


@pytest.mark.parametrize(
    ("slow", "status"),
    [
        (lambda n: 0.9 if n > 165 else 0.0, Status.OK),
        (lambda n: 0.9 if n > 164 else 0.0, Status.WARNING),
        (lambda n: 0.2 if n < 120 else 0.0, Status.OK),
        (lambda n: 0.2 if n < 140 else 0.0, Status.WARNING),
    ],
    ids=["two bad hours", "three bad hours", "over", "not over"],
)
def test_bad_hours_refute_the_benchmark(slow: Callable[[int], float], status: Status) -> None:
    assert checked([hour_of_bin(n, slow=slow(n)) for n in range(WEEK)]).status is status


def test_two_bins_are_one_hour() -> None:
    late = [hour_of_bin(n, rps=1.0, bin=0, slow=0.9) for n in (166, 167)]
    assert checked([*late, *(hour_of_bin(n, slow=0.9 if n > 165 else 0.0) for n in range(WEEK))]).status is Status.OK
    silent = {"ttft_seconds": (), "tpot_seconds": ()}
    assert checked([hour_of_bin(n, histograms=silent) for n in range(WEEK)]).status is Status.UNKNOWN


def test_bins_that_were_never_visited_are_named() -> None:
    found = checked([hour_of_bin(0), hour_of_bin(1, rps=3.8)])
    assert (found.unvisited, found.highest_rps) == (("0 to 2 rps", "4 to 6 rps"), 3.8)
    # Nothing was requested there.
    assert checked([hour_of_bin(0, rps=0.0, bin=0), hour_of_bin(1)]).unvisited == found.unvisited


def test_load_beyond_is_counted_apart() -> None:
    beyond = [hour_of_bin(n, rps=7.0, bin=None, beyond="7 completed rps is above 6") for n in range(WEEK)]
    found = checked([one for n in range(WEEK) for one in (hour_of_bin(n), beyond[n])])
    assert found.highest_share == pytest.approx(7 / 6)
    load = result(found, "LoadBeyondBenchmark")
    assert load.certainty is Certainty.CERTAIN
    assert load.sentence.startswith("The tier is beyond the benchmarked load; ")
    assert load.details[0].startswith("in 168 hours: 7 completed rps is above 6")


@pytest.mark.parametrize(("preemptions", "status"), [({}, Status.UNKNOWN), ({"preemptions": 5000.0}, Status.CRITICAL)])
def test_without_benchmark_only_evictions_count(preemptions: dict[str, float], status: Status) -> None:
    hours = [minute(60 * n, seconds=3600.0, counters=preemptions) for n in range(WEEK)]
    binned = [bin_window(one, None, None) for one in hours]
    found = check_benchmark(view_of("t", None), binned, START + WEEK * 3600)
    assert isinstance(result(found, "KvEviction"), Verdict)
    assert (found.status, found.unvisited, found.highest_share) == (status, None, None)


def test_nothing_seen_is_unknown() -> None:
    found = checked([])
    assert (found.status, found.requests, found.highest_rps, found.highest_share) == (Status.UNKNOWN, 0, None, None)
    assert len(found.unvisited) == 3


def test_short_spans_use_minutes() -> None:
    binned = [bin_window(minute(n, slow=20 if n >= 50 else 0), PLANNED.curve, "a") for n in range(60)]
    now = START + 3600
    # Of one hour nobody can tell whether it lasts.
    assert check_benchmark(PLANNED, binned, now).status is Status.UNKNOWN
    assert check_benchmark(PLANNED, binned, now, period_seconds=60.0).status is Status.WARNING


def test_usable_rps_is_the_plans() -> None:
    tight = view_of("t", tier(slo={"ttft_p99_seconds": 0.2}))
    found = check_benchmark(tight, [hour_of_bin(n) for n in range(WEEK)], START + WEEK * 3600)
    assert found.usable_rps == pytest.approx(4.0)
    assert found.highest_share == pytest.approx(0.75)


def test_divergence_names_its_newest_incident() -> None:
    found = checked([hour_of_bin(n, slow=0.05) for n in range(WEEK)])
    drift, slow = make_finding("WorkloadDrift", 0.0), make_finding("TtftDivergence", 60.0)
    elsewhere = replace(slow, subject=Subject(tier="elsewhere"))
    mine = [replace(one, subject=Subject(tier=found.tier)) for one in (drift, slow)]
    incidents = group_incidents([*mine, elsewhere], now=90.0)
    text = check_text([found], "the last 7d", 0.0, incidents)
    assert text.count("incident: WorkloadDrift is seen since 00:00") == 1
    (tier,) = check_json([found], incidents)["tiers"]
    assert [one["root"] for one in tier["incidents"]] == ["WorkloadDrift"]
    assert "incident:" not in check_text([found], "the last 7d", 0.0)


CASES = TESTS / "cases"
CPU_SMALL = TESTS / "plans" / "cpu-small.yaml"
PARTS = {"model": "m", "engine": "vllm", "gpu": {"product": "A", "per_replica": 1}, "slo": {"ttft_p99_seconds": 2.0}}
PLAN = parse_plan({"schema": 1, "tiers": {"t": PARTS}})


def findings(folder: Path, rule: str) -> list[Finding]:
    recording, _ = load(folder)
    done = replay(recording, load_plan(CPU_SMALL))
    every = [*done.ended, *(state.finding for state in done.rule_states)]
    return [one for one in every if isinstance(one, Finding) and one.rule == rule]


@pytest.mark.parametrize(("name", "worst"), [("one-crawls", PAGED), ("long-generations", PAGED), ("one-waits", WARNED)])
def test_half_hour_wait_missed_the_objective(name: str, worst: Wanted) -> None:
    (burn,) = findings(CASES / f"25-{name}", "TtftSloBurn")
    assert burn.ended_at is None
    assert outcome(burn.worst) == worst
    assert "wait" in burn.worst.sentence


def test_requests_whose_clients_all_leave_have_arrived() -> None:
    assert findings(CASES / "26-all-abort", "TtftSloBurn") == [], "each got its first token in time"
    recording, _ = load(CASES / "26-all-abort")
    states = replay(recording, load_plan(CPU_SMALL)).rule_states
    said = {one.result.rule: one.result.sentence for one in states if isinstance(one.result, Verdict)}
    assert said["LoadBeyondBenchmark"].startswith("2 rps arrive at a replica, none is finished; the benchmark goes to ")
    # Of 602 prompt tokens each: NoHeadroom has the same work, 64.7 % of 7.34 rps.
    assert said["DemandExceedsCapacity"].startswith("4.75 rps of work arrive")
    assert said["AvailabilityBurn"].startswith("0.0% of 4,1")


class Fleet:
    """Two replicas whose queues and first tokens the test sets, scraped every 10 s."""

    def __init__(self) -> None:
        self.evaluator = Evaluator({"t": view_of("t", PLAN.tiers["t"])})
        self.state = EvaluatorState()
        self.t = START
        self.tokens = {"a": 0.0, "b": 0.0}
        self.slow = {"a": 0.0, "b": 0.0}

    def run(self, seconds: int, queues: dict[str, float], rps: dict[str, float], slow: float = 0.0) -> RuleResult:
        """The result of TtftSloBurn after so many seconds; `slow` is the share of slow first tokens."""
        for _ in range(seconds // 10):
            self.t += 10
            scrapes = []
            for name in ("a", "b"):
                self.tokens[name] += rps[name] * 10
                self.slow[name] += rps[name] * 10 * slow
                fast, late = round(self.tokens[name] - self.slow[name]), round(self.slow[name])
                page = snapshot(
                    self.t,
                    counters={"requests_finished": self.tokens[name], "engine_steps": self.t},
                    gauges={"requests_waiting": queues[name], "requests_running": 1.0},
                    histograms={"ttft_seconds": cumulative([0.2] * fast + [9.0] * late, (0.5, 2.0, float("inf")))},
                )
                scrapes.append(ReplicaScrape(tier="t", replica=name, t=self.t, snapshot=page))
            self.evaluator.step(self.state, Observation(now=self.t, scrapes=tuple(scrapes))).raise_defects()
        return self.state.rules["TtftSloBurn", TIER].result


SERVED = {"a": 3.0, "b": 3.0}
NONE = {"a": 0.0, "b": 0.0}


def test_standing_queue_of_one_replica_shows() -> None:
    fleet = Fleet()
    assert outcome(fleet.run(900, NONE, SERVED)) == FINE
    result = fleet.run(900, {"a": 120.0, "b": 0.0}, {"a": 0.0, "b": 3.0})
    assert outcome(result) in (WARNED, PAGED)
    assert result.missed.share.value == pytest.approx(120 / (2700 + 120), rel=0.1)


def test_single_hang_and_deep_queue_pass() -> None:
    fleet = Fleet()
    fleet.run(900, NONE, SERVED)
    result = fleet.run(1800, {"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 6.0})
    assert outcome(result) == FINE
    assert result.observed.value == pytest.approx(1 / 15_781, rel=0.01), "it is counted"
    assert outcome(Fleet().run(1800, {"a": 25.0, "b": 25.0}, SERVED)) == FINE


def test_served_queue_ends_finding() -> None:
    fleet = Fleet()
    fleet.run(900, NONE, SERVED)
    fleet.run(600, {"a": 60.0, "b": 0.0}, {"a": 0.0, "b": 3.0})
    late = fleet.run(60, NONE, {"a": 9.0, "b": 3.0}, slow=60 / 720)
    assert late.status is not Status.OK
    assert fleet.run(3600, NONE, SERVED).status is Status.OK


def test_leavers_of_queue_stay_missed() -> None:
    fleet = Fleet()
    fleet.run(600, NONE, SERVED)
    fleet.run(300, {"a": 90.0, "b": 90.0}, NONE)
    missed = fleet.run(240, NONE, SERVED).observed.value
    assert missed == pytest.approx((180 - 60) / (840 * 6), rel=0.1), "60 may have got the first tokens of 10 s"
