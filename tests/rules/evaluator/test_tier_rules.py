from dataclasses import replace

from judging_samples import START, add_minute, context, each, gauge, minute, minutes, seen, verdict

from rules.catalogue.registry import BY_NAME
from rules.evaluator import tier_minutes, tier_rules
from rules.methods.configuration import judge_cold_start
from rules.plan.load_bins import build_tier_context as view_of
from rules.verdicts.finding import RuleState
from rules.verdicts.verdict import Status, Unknown

TIER_RULES = [rule.name for rule in tier_minutes.LIVE]


def test_closed_minute_comes_last() -> None:
    booked = minutes(context(), {"a": [minute(0), minute(1, rps=5.0)]})
    assert [(s.replica, s.bin, s.window.start) for s in booked.binned] == [("a", 1, START), ("a", 2, START + 60)]


def test_only_needed_minutes_are_kept() -> None:
    booked = minutes(context(), {"a": each(70, minute), "b": each(70, minute)})
    assert max(rule.window_seconds for rule in tier_minutes.LIVE) == tier_minutes.LONGEST == 3600
    assert len(booked.binned) == 2 * 61
    assert booked.binned[0].window.start == START + 9 * 60


def test_every_rule_over_load_bins_answers() -> None:
    booked = minutes(context(), {"a": each(5, minute)})
    assert [a.rule for a in tier_rules.evaluate_tier_rules(booked, context(), START + 300)] == TIER_RULES


def test_nothing_yet_is_unknown_for_every_rule() -> None:
    results = tier_rules.evaluate_tier_rules(tier_minutes.TierMinutes(), context(), START)
    lacking = {"TpotSloBurn", "ItlSloBurn", "E2eSloBurn", "PrefixHitLow", "PdRatioOff", "KvResidencyShort"}
    assert [a.text for a in results if isinstance(a, Unknown)] == [
        f"the plan has no {BY_NAME[rule].needs}"
        if rule in lacking
        else f"0 s seen, {BY_NAME[rule].minimum_seconds:.0f} s are needed"
        for rule in TIER_RULES
    ]


def test_waiting_rule_says_how_long() -> None:
    booked = minutes(context(), {"a": each(2, minute)})
    results = {one.rule: one for one in tier_rules.evaluate_tier_rules(booked, context(), START + 120)}
    waits = {name: one.wait_seconds for name, one in results.items() if isinstance(one, Unknown)}
    assert waits["KvCacheNearCeiling"] == 60.0
    assert waits["NoHeadroom"] == 480.0
    assert waits["PdRatioOff"] is None, "waiting does not change the plan"
    nothing = tier_rules.evaluate_tier_rules(tier_minutes.TierMinutes(), context(), START)
    assert {one.wait_seconds for one in nothing if one.rule == "KvCacheNearCeiling"} == {180.0}  # type: ignore[union-attr]


def test_a_firing_answer_is_explained() -> None:
    booked = minutes(context(), {"a": each(5, lambda n: minute(n, slow=18))})
    found = next(
        a for a in tier_rules.evaluate_tier_rules(booked, context(), START + 300) if a.rule == "TtftDivergence"
    )
    assert found.status is Status.WARNING
    assert found.causes


def test_another_plan_places_the_same_minutes_anew() -> None:
    booked = minutes(context(), {"a": [minute(0, rps=3.0), minute(1, rps=7.0)]})
    assert [s.bin for s in booked.binned] == [1, None]
    higher = context({}, {}, {"completed_rps": 8.0})
    assert [s.bin for s in tier_minutes.rebin_minutes(booked, higher).binned] == [1, 2]
    bare = tier_minutes.rebin_minutes(booked, view_of("t", None))
    assert [(s.bin, s.replica, s.outside) for s in bare.binned] == [(None, "a", ""), (None, "a", "")]


def test_old_minutes_keep_lengths_only() -> None:
    of = context()
    lengths = {"prompt_tokens_per_request": seen({0.08: 180}), "generation_tokens_per_request": seen({0.08: 180})}
    kept = tier_minutes.TierMinutes()
    for number in range(20):
        levels = {"kv_utilization": gauge(0.5)}
        kept = add_minute(kept, minute(number, histograms=lengths, gauges=levels), "a", of)
    old, new = kept.binned[0], kept.binned[-1]
    assert set(old.window.histograms) == tier_minutes.LENGTHS
    assert set(old.window.gauges) == {"requests_running", "requests_waiting"}
    assert {"ttft_seconds", *tier_minutes.LENGTHS} <= set(new.window.histograms)
    assert "kv_utilization" in new.window.gauges
    assert old.window.counters == minute(0).counters
    assert len(kept.binned) == 20


def test_latency_rules_look_back_shortly() -> None:
    for rule in tier_minutes.LIVE:
        if rule.family.endswith("_seconds") or rule.signal.endswith("_seconds"):
            assert rule.window_seconds <= tier_minutes.RECENT_SECONDS or rule.method is judge_cold_start, rule.name


def test_hourly_rule_of_sums_is_seldom() -> None:
    tier, rule = context(), "ReplicaImbalance"
    last = replace(verdict(rule, tier, {name: each(20, minute) for name in "ab"}), t=START)
    states = {(rule, last.subject): RuleState(result=last)}

    def evaluated(minutes: tier_minutes.TierMinutes, now: float) -> bool:
        return any(result.rule == rule for result in tier_rules.evaluate_tier_rules(minutes, tier, now, states=states))

    sums = tier_minutes.TierMinutes(each=())
    assert sum(evaluated(sums, START + seconds) for seconds in (0, 60, 120, 180, 240)) < 5
    assert evaluated(sums, START + 300)
    assert evaluated(sums, START - 300), "the clock was set back"
    assert evaluated(tier_minutes.TierMinutes(), START)
