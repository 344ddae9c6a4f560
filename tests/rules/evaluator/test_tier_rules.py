"""Rules over the minutes of a tier: all of them, in batches, and what is kept."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

import pytest
from judging_samples import START, add_minute, answered, context, each, gauge, minute, minutes, seen, unseen
from rule_cases import outcome

from rules.catalogue.registry import BY_NAME, RULES
from rules.evaluator import rule_evaluation, tier_minutes
from rules.evaluator.rule_evaluation import evaluate_rule
from rules.methods.bands import judge_event_ratio, judge_excess
from rules.methods.configuration import judge_cold_start
from rules.methods.divergence import Tail, compute_tail, judge_mean, judge_tail
from rules.methods.load import judge_beyond
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.plan.load_bins import build_tier_context as bare
from rules.plan.load_bins import build_tier_context as view_of
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.context import BenchmarkComparison, RuleContext, select_comparable
from rules.verdicts.held_windows import HeldWindows
from rules.verdicts.verdict import RuleResult, RuleState, Status, Subject, Unknown

TIER_RULES = [rule.name for rule in tier_minutes.LIVE]


def test_only_needed_minutes_are_kept() -> None:
    booked = minutes(context(), {"a": each(70, minute), "b": each(70, minute)})
    assert max(rule.window_seconds for rule in tier_minutes.LIVE) == tier_minutes.LONGEST == 3600
    assert len(booked.binned) == 2 * 61
    assert booked.binned[0].window.start == START + 9 * 60


def test_rule_says_what_it_waits_for() -> None:
    results = rule_evaluation.evaluate_tier_rules(tier_minutes.TierMinutes(), context(), START)
    lacking = {"TpotSloBurn", "ItlSloBurn", "E2eSloBurn", "PrefixHitLow", "PdRatioOff", "KvResidencyShort"}
    wanted = []
    for rule in map(BY_NAME.__getitem__, TIER_RULES):
        if rule.name in lacking:
            wanted.append((f"the plan has no {rule.needs}", None))
        else:
            wanted.append((f"0 s seen, {rule.minimum_seconds:.0f} s are needed", rule.minimum_seconds))
    assert [(one.text, one.wait_seconds) for one in results if isinstance(one, Unknown)] == wanted
    booked = minutes(context(), {"a": each(2, minute)})
    later = rule_evaluation.evaluate_tier_rules(booked, context(), START + 120)
    waits = {one.rule: one.wait_seconds for one in later if isinstance(one, Unknown)}
    assert (waits["KvCacheNearCeiling"], waits["NoHeadroom"], waits["PdRatioOff"]) == (60.0, 480.0, None)
    holed = minutes(context(), {"a": [minute(0), unseen(1)]})
    texts = {
        one.rule: getattr(one, "text", "") for one in rule_evaluation.evaluate_tier_rules(holed, context(), START + 120)
    }
    assert texts["NoHeadroom"] == "60 s seen, 600 s are needed"


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
    last = replace(answered(rule, tier, {name: each(20, minute) for name in "ab"}), t=START)
    states = {(rule, last.subject): RuleState(result=last)}

    def evaluated(minutes: tier_minutes.TierMinutes, now: float) -> bool:
        return any(
            result.rule == rule for result in rule_evaluation.evaluate_tier_rules(minutes, tier, now, states=states)
        )

    sums = tier_minutes.TierMinutes(each=())
    assert sum(evaluated(sums, START + seconds) for seconds in (0, 60, 120, 180, 240)) < 5
    assert evaluated(sums, START + 300)
    assert evaluated(sums, START - 300), "the clock was set back"
    assert evaluated(tier_minutes.TierMinutes(), START)


COMPARING = frozenset({judge_tail, judge_mean, judge_excess, judge_beyond, judge_event_ratio})
"""The ways of step 13; the others have tests of their own for what they need."""

JUDGED = [rule.name for rule in RULES if rule.method in COMPARING]
COMPARED = [name for name in JUDGED if name != "KvEviction"]
WHOLE = context(
    *({"gpu_utilization": 0.5, "prefix_hit_ratio": 0.5, "eviction_rate": 0.0} for _ in range(3)),
    curve={"gpu_utilization_kind": "nvml_gpu"},
)

GPU_BUSY = {"gpu_busy_seconds": 30.0, "gpu_busy_covered_seconds": 60.0}
HITS = {"prefix_queried_tokens": 1800.0, "prefix_hit_tokens": 900.0}


def healthy(number: int, **more: object) -> Window:
    """A minute in which every rule finds what it judges, and all is well."""
    counters = {**GPU_BUSY, **HITS, "preemptions": 0.0}
    return minute(number, counters=counters, histograms={"itl_seconds": seen({0.01: 1800})}, **more)


@pytest.mark.parametrize("rule", JUDGED)
def test_every_rule_finds_health_fine(rule: str) -> None:
    found = answered(rule, WHOLE, each(5, healthy))
    assert (found.status, found.subject, found.actions) == (Status.OK, Subject(tier="t"), ())
    assert found.t == START + 300
    assert found.unit == BY_NAME[rule].unit


@pytest.mark.parametrize("rule", JUDGED)
def test_unseen_tier_is_not_judged(rule: str) -> None:
    for gap in (Gap.SCRAPE_FAILED, Gap.RESTARTED):
        assert outcome(answered(rule, WHOLE, each(5, lambda n, gap=gap: unseen(n, gap)))) is gap
    empty = evaluate_rule(BY_NAME[rule], WHOLE, (), START)
    assert (empty.reason, empty.text) == (Gap.SCRAPE_FAILED, "no replica of the tier has been seen")


@pytest.mark.parametrize("rule", COMPARED)
def test_without_a_benchmark_nothing_is_compared(rule: str) -> None:
    found = answered(rule, bare("t", None), each(5, healthy))
    assert (found.reason, found.text) == (Gap.NOT_IN_PLAN, "the plan has no benchmark curve for this tier")


@pytest.mark.parametrize("rule", JUDGED)
def test_idle_tier_judges_no_requests(rule: str) -> None:
    counters = {"preemptions": 0.0, **dict.fromkeys((*GPU_BUSY, *HITS), 0.0), "gpu_busy_covered_seconds": 60.0}
    empty = {family: seen({}) for family in ("ttft_seconds", "tpot_seconds", "itl_seconds")}
    idle = {"counters": counters, "histograms": empty, "gauges": {"requests_running": gauge(0.0)}}
    found = answered(rule, WHOLE, each(5, lambda n: minute(n, rps=0.0, **idle)))
    if rule in ("LoadBeyondBenchmark", "GpuUtilizationShortfall"):
        assert found.status is Status.OK
    else:
        assert found.reason in (Gap.NO_TRAFFIC, Gap.TOO_FEW_REQUESTS)


def test_hold_is_the_rules_window() -> None:
    # KvEviction looks back 5 minutes, TtftDivergence 15: what lies before is forgotten.
    storm = each(30, lambda n: minute(n, slow=90 if n < 15 else 0, counters={"preemptions": 90.0 if n < 25 else 0.0}))
    for rule in ("KvEviction", "TtftDivergence"):
        found = answered(rule, WHOLE, storm)
        assert found.status is Status.OK
        assert "0.0%" in found.sentence


NAMES = ("a", "b", "c", "d")
PLAN = context(workload={"prefix_hit_ratio": 0.9, "requests_per_second": {"average": 2.0, "peak": 4.0}})


def asked(number: float, requests: float = 60.0, hits: float = 0.9, **more: float) -> Window:
    """A minute of a replica whose prompts ask the prefix cache."""
    tokens = {"prefix_queried_tokens": 1000.0 * requests, "prefix_hit_tokens": 1000.0 * requests * hits}
    return minute(number, rps=requests / 60.0, counters=tokens, **more)


def new_and_restarted(number: int, name: str) -> Window:
    if name == "b" and number == 8:
        return replace(unseen(number, Gap.RESTARTED), counters={"restarts": 1.0}, covered_seconds=5.0)
    return asked(number, hits=0.1 if name == "d" and number < 14 else 0.9)


def hot_spot(number: int, name: str) -> Window:
    busy = name == "a"
    return minute(number, rps=4.0 if busy else 2.0, waiting=6.0 if busy else 0.0, in_system=20.0 if busy else 3.0)


SCENARIOS: dict[str, Callable[[int, str], Window]] = {
    "steady": lambda n, name: asked(n),
    "slow_tail": lambda n, name: asked(n, slow=9.0 if n < 12 or n % 2 else 1.0),
    "broken_routing": lambda n, name: asked(n, hits=0.9 if n < 17 else 0.3),
    "overload": lambda n, name: minute(n, rps=9.0, slow=50.0, in_system=40.0),
    "growing_queue": lambda n, name: minute(n, rps=4.0, waiting=3.0 * n, in_system=4.0 + 3.0 * n, change=5.0),
    "hot_spot": hot_spot,
    "new_and_restarted": new_and_restarted,
    "holes": lambda n, name: unseen(n) if n % 3 else asked(n),
}


def windows_of(scenario: str) -> HeldWindows:
    """The minutes of four replicas, of which one comes later. They are scraped at different seconds."""
    made: dict[str, list[Window]] = {name: [] for name in NAMES}
    for place, name in enumerate(NAMES):
        first = 9 if scenario == "new_and_restarted" and name == "d" else 0
        for number in range(first, 20):
            one = SCENARIOS[scenario](number, name)
            made[name].append(replace(one, start=one.start + 15.0 * place, end=one.end + 15.0 * place))
    return minutes(PLAN, made).binned


def in_batches(flat: HeldWindows, seconds: float) -> HeldWindows:
    """The same windows, as turns of so many seconds bring them."""
    turns: dict[float, list[BinnedWindow]] = {}
    for one in flat:
        turns.setdefault(one.window.end // seconds, []).append(one)
    held = HeldWindows.of_batches(map(HeldWindows, turns.values()))
    assert held == flat
    assert len(held.batches) == len(turns) > 1
    return held


def results(held: HeldWindows, now: float) -> Iterator[RuleResult]:
    kept = tier_minutes.TierMinutes(binned=held)
    fleet = rule_evaluation.compared_tiers({"t": kept}, {"t": PLAN}, now)
    yield from rule_evaluation.evaluate_tier_rules(kept, PLAN, now, fleet)


@pytest.mark.parametrize("seconds", [60.0, 75.0, 300.0])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_batches_give_every_rule_the_same_result(scenario: str, seconds: float) -> None:
    flat = windows_of(scenario)
    now = max(one.window.end for one in flat)
    assert list(results(in_batches(flat, seconds), now)) == list(results(flat, now))


def test_changed_basis_counts_minutes_anew() -> None:
    flat = windows_of("slow_tail")
    held, now = in_batches(flat, 60.0), flat.ends[1]
    slower = context({"ttft_p99_seconds": 0.15}, requests=100)
    lenient, trusting = {"TtftDivergence": {"factor": 3.0}}, {"TtftDivergence": {"supported_requests": 90}}
    plans = PLAN, slower, replace(PLAN, limits=lenient), replace(slower, limits=trusting), PLAN

    def tails(of: HeldWindows, plan: TierContext, rule: str) -> list[Tail | None]:
        case = RuleContext(rule=BY_NAME[rule], catalogue=BY_NAME, tier=plan, binned=of, now=now)
        found = select_comparable(case)
        assert isinstance(found, BenchmarkComparison)
        return [compute_tail(found, minute) for minute in case.periods(found.binned)]

    asked_of = [(plan, rule) for plan in plans for rule in ("TtftDivergence", "TpotDivergence")]
    found = [tails(held, *one) for one in asked_of]
    assert found == [tails(windows_of("slow_tail"), *one) for one in asked_of]
    assert all(found[0] != other for other in found[2:8:2])


FIRING = {
    "steady": set(),
    "slow_tail": {"TtftDivergence", "TpotDivergence"},
    "broken_routing": {"PrefixRoutingBroken"},
    "overload": {"LoadBeyondBenchmark"},
    "growing_queue": {"QueueGrowing"},
    "hot_spot": {"ReplicaImbalance"},
}


@pytest.mark.parametrize("scenario", FIRING)
def test_scenarios_fire_batch_rules(scenario: str) -> None:
    flat = windows_of(scenario)
    firing = {one.rule for one in results(flat, flat.ends[1]) if getattr(one, "status", Status.OK) is not Status.OK}
    assert FIRING[scenario] <= firing
    assert FIRING[scenario] or not firing


def test_shared_batch_is_asked_once() -> None:
    asked_of: list[int] = []

    def count(batch: HeldWindows) -> int:
        asked_of.append(len(batch))
        return len(batch)

    held = in_batches(windows_of("steady"), 60.0)
    first = [held.by_batch(count), HeldWindows.of_batches(held.batches[1:]).by_batch(count)]
    assert first == [[len(batch) for batch in held.batches], [len(batch) for batch in held.batches[1:]]]
    assert asked_of == first[0]


def test_kept_results_hold_no_windows() -> None:
    held = HeldWindows(windows_of("steady"))
    kept = held.since(0.0, 0.0, 60.0)
    assert kept == held
    assert all(batch is not held for batch in (kept, *kept.batches))


def test_aggregated_batches_age_whole() -> None:
    kept, sizes = tier_minutes.TierMinutes(each=()), []
    for number in range(70):
        newest = [BinnedWindow(replica=name, window=minute(number), rps=3.0, in_system=3.0) for name in NAMES]
        before = kept.each or ()
        kept = tier_minutes.add_minutes(kept, newest[:1], PLAN, each=newest)
        sizes.append(sum(map(len, kept.each)))
        lasting = [batch for batch in kept.each if any(batch is one for one in before)]
        assert len(lasting) >= len(before) - 2, "one is dropped and one is aged at most"
    assert sizes[-1] == sizes[-2] == 4 * 61
    now = kept.each[-1].ends[1]
    for one in chain.from_iterable(kept.each):
        old = one.window.end <= now - tier_minutes.RECENT_SECONDS
        assert bool("ttft_seconds" in one.window.histograms) is not old
