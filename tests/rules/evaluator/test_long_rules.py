from dataclasses import replace

from days_samples import answered, binned, context, hour, hours, unknown, verdict
from evaluation_steps import EvaluationSteps
from judging_samples import START, seen
from recorded import replayed

from rules.catalogue.registry import RULES
from rules.evaluator import long_rules, tier_minutes
from rules.plan.load_bins import BinnedWindow, bin_window
from rules.telemetry.signals import Gap
from rules.verdicts.verdict import Status, Subject, Unknown, Verdict

DAY, WEEK = 24, 168
TIER = Subject(tier="t")


def test_slice_rules_read_minutes_or_hours() -> None:
    live, long = {rule.name for rule in tier_minutes.LIVE}, {rule.name for rule in long_rules.LONG}
    assert live | long == {rule.name for rule in RULES if not rule.per_scrape}
    assert not live & long
    assert long_rules.WEEKLY.name in live
    assert tier_minutes.LONGEST <= tier_minutes.LIVE_SECONDS


def test_long_rules_answer_without_data() -> None:
    results = long_rules.evaluate_long_rules(context(), (), START)
    assert [a.rule for a in results] == [rule.name for rule in long_rules.ASKED]
    assert all(isinstance(a, Unknown) and a.reason is Gap.TOO_FEW_REQUESTS and a.wait_seconds is None for a in results)
    assert "0 of 168 hours seen, 152 are needed" in {a.text for a in results if isinstance(a, Unknown)}


def test_hour_counts_as_seen() -> None:
    half = hours(WEEK, lambda n: hour(n, covered=0.5 if n < 40 else 1.0))
    assert unknown("UtilizationTrap", context(), half).text == "148 of 168 hours seen, 152 are needed"


def test_missed_hours_keep_the_week() -> None:
    gaps = [one for number, one in enumerate(hours(WEEK)) if number not in (30, 31, 90, 150)]
    assert verdict("UtilizationTrap", context(), gaps).status is Status.OK


def test_the_hour_under_way_does_not_count() -> None:
    several = hours(WEEK + 1)
    under_way = several[-1].end - 60
    assert verdict("UtilizationTrap", context(), several[:-1]).t == several[-2].end
    found = verdict("UtilizationTrap", context(), [*several[:-1], replace(several[-1], counters={})], under_way)
    assert (found.t, found.status) == (under_way, Status.OK)
    assert unknown("UtilizationTrap", context(), several[1:], under_way).text.startswith("167 of 168")


def test_late_start_judges_from_there() -> None:
    several = hours(WEEK + 3)
    missed = [*several[:2], *several[4:]]
    assert verdict("UtilizationTrap", context(), missed).status is Status.OK
    assert isinstance(answered("UtilizationTrap", context(), several[4:]), Unknown)


def test_hour_of_bins_counts_once() -> None:
    several = hours(WEEK)
    parts = [replace(bin_window(one, None, None), bin=bin) for one in several for bin in (0, 2)]
    whole = long_rules.sum_slim_hours(parts)
    assert len(whole) == WEEK
    assert whole[0].window.counters["requests_finished"] == 2 * several[0].counters["requests_finished"]
    assert long_rules.sum_slim_hours(whole) == whole


def test_unread_data_is_not_held() -> None:
    one = bin_window(hour(0, histograms={"ttft_seconds": seen({0.1: 5.0})}), None, None)
    (slim,) = long_rules.sum_slim_hours([one])
    assert (slim.window.histograms, slim.window.counters) == ({}, one.window.counters)


def test_plan_change_drops_older_hours() -> None:
    every = binned(hours(WEEK))
    results = {a.rule: a for a in long_rules.evaluate_long_rules(context(), every, hour(WEEK).start, every[100:])}
    trap = results["UtilizationTrap"]
    assert trap.text == "68 of 168 hours seen, 152 are needed"
    assert isinstance(results["KvCacheUnderused"], Verdict)


def trap() -> list[BinnedWindow]:
    return binned(hours(WEEK, lambda n: hour(n, used=0.1)))


NOW = hour(WEEK).start


def test_history_answers_stand_between_hours() -> None:
    watcher = EvaluationSteps({"t": context()})
    watcher.set_long_term_results(long_rules.evaluate_long_rules(context(), trap(), NOW))
    assert not watcher.rules
    for seconds in (0, 15, 30):
        watcher.step(NOW + seconds)
        rule_state = watcher.rules["UtilizationTrap", TIER]
        assert rule_state.finding.started_at == NOW
        open_rules = {rule for (rule, _), state in watcher.rules.items() if state.finding is not None}
        assert open_rules == {"KvCacheUnderused", "UtilizationTrap", "QueueAlwaysEmpty"}
    watcher.set_long_term_results(long_rules.evaluate_long_rules(context(), binned(hours(WEEK)), NOW))
    (ended, _) = watcher.step(NOW + 3600)
    assert "UtilizationTrap" in {one.rule for one in ended}


def test_plan_change_ends_nothing_early() -> None:
    watcher = EvaluationSteps({"t": context()})
    watcher.set_long_term_results(long_rules.evaluate_long_rules(context(), trap(), NOW))
    watcher.step(NOW)
    watcher.set_long_term_results(long_rules.evaluate_long_rules(context(), trap(), NOW, ()))
    assert not [one for one in watcher.step(NOW + 15)[0] if one.rule == "UtilizationTrap"]
    rule_state = watcher.rules["UtilizationTrap", TIER]
    assert rule_state.finding is not None
    assert isinstance(rule_state.result, Unknown)


def test_next_configuration_takes_results_over() -> None:
    before, after = EvaluationSteps({"t": context()}), EvaluationSteps({"t": context()})
    for tier in ("t", "gone"):
        before.apply_failed_scrape(tier, "a", NOW)
        before.apply_failed_scrape(tier, "a", NOW + 15)
    before.set_long_term_results(long_rules.evaluate_long_rules(context(), trap(), NOW))
    before.set_long_term_results(long_rules.evaluate_long_rules(replace(context(), name="gone"), trap(), NOW))
    after.take_state(before, {("t", "a")})
    after.step(NOW + 30)
    assert ("UtilizationTrap", TIER) in after.rules
    assert ("UtilizationTrap", Subject(tier="gone")) not in after.rules
    last = EvaluationSteps({"t": context()})
    last.take_state(after, {("t", "a")})
    assert last.rules["UtilizationTrap", TIER].finding is not None
    assert ("NoHeadroom", TIER) in last.long_term


def test_missing_history_is_unknown_everywhere() -> None:
    results = long_rules.unknown_results(context(), NOW, Gap.NOT_EXPOSED, "this agent keeps no history")
    assert [a.rule for a in results] == [rule.name for rule in long_rules.LONG]
    assert {(a.reason, a.text) for a in results if isinstance(a, Unknown)} == {
        (Gap.NOT_EXPOSED, "this agent keeps no history")
    }


def test_replay_lists_long_rules_unjudged() -> None:
    found = replayed("steady")
    told = [s for s in found.rule_states if s.result.rule in {rule.name for rule in long_rules.LONG}]
    assert len(told) == len(long_rules.LONG)
    assert len({s.unknown.text for s in told if s.unknown}) == 1
