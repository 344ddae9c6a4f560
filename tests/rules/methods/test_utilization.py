"""Use over days, headroom and yield: one table of cases a rule (fires, just within, too early, over, not measured)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import judging_samples
import pytest
from days_samples import OUTPUT_TOKENS, PROMPT_TOKENS, answered, context, hour, hours
from judging_samples import each, minute, tier
from outcomes import EARLY, FAIRLY, FINE, GUESSED, HIDDEN, UNPLANNED, UNSEEN, WARNED, Wanted
from rule_cases import Case, check_case, check_result, check_words, judge_cases, list_cases, outcome

from rules.evaluator import rule_evaluation
from rules.plan import load_bins
from rules.plan.load_bins import TierContext
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.verdict import RuleResult, Status, Unknown

WEEK = 168


def trap(count: int = WEEK, **each: Any) -> list[Window]:
    return hours(count, lambda n: hour(n, **{"used": 0.2, "replicas": 4, **each}))


def quiet(count: int = 24, **each: Any) -> list[Window]:
    return trap(count, **each)


def week(level: float, **of_peak: Any) -> list[Window]:
    """A week of ten replicas, with an hour of each day that is another."""
    return hours(WEEK, lambda n: hour(n, **{"used": level, "replicas": 10, **(of_peak if n % 24 == 12 else {})}))


def filled(numbers: Callable[[int], bool], kv: float = 0.8) -> list[Window]:
    """A week at 20 %, with hours in which the KV cache is as full as this."""
    return hours(WEEK, lambda n: hour(n, used=0.2, replicas=4, kv=kv if numbers(n) else 0.1))


def scaled(used: float) -> list[Window]:
    """A week of four replicas, five in an hour of each day, which is used by so much."""
    usual, busy = {"used": 0.2, "replicas": 4}, {"used": used, "replicas": 5}
    return hours(WEEK, lambda n: hour(n, **(busy if n % 24 == 12 else usual)))


def spiky(every: int) -> list[Window]:
    return hours(WEEK, lambda n: hour(n, kv_most=0.9 if n % every == 0 else 0.2))


def two_hours(other: Mapping[str, float], usual: Mapping[str, float]) -> list[Window]:
    return hours(24, lambda n: hour(n, used=0.2, **(other if n in (9, 15) else usual)))


def polled(number: int) -> Window:
    one = hour(number, used=0.2, gpu=None, replicas=4)
    level = replace(one.gauges["requests_running"], integral=0.3 * one.covered_seconds, minimum=0.3, maximum=0.3)
    gauges = {**one.gauges, "gpu_utilization_sampled": level}
    return replace(one, gauges=gauges, sampled=frozenset({"gpu_utilization_sampled"}))


def warm(minimum: int | None, instances: int = 10) -> TierContext:
    return context(fleet={"instances": instances, "minimum_warm": minimum})


def longer(factor: float) -> list[Window]:
    """20 % by outputs, so much more by prompts."""
    return trap(counters={"prompt_tokens": 0.2 * 6 * 4 * 3600 * factor * PROMPT_TOKENS})


def cached(hits: float) -> list[Window]:
    return trap(counters={"prefix_queried_tokens": 100.0, "prefix_hit_tokens": hits})


def looked_at(name: str, **limits: float) -> TierContext:
    return replace(context(), limits={name: limits})


TRAP, EMPTY, CACHE = "UtilizationTrap", "QueueAlwaysEmpty", "KvCacheUnderused"
TIER, BARE = context(), load_bins.build_tier_context("t", None)
TEN = context(fleet={"instances": 10})
UNPRICED = load_bins.build_tier_context("t", tier(fleet={"instances": 4}))
HALF_SEEN = hours(WEEK, lambda n: hour(n, used=0.2, replicas=4, covered=0.5 if n % 9 == 0 else 0.9))

TRAP_CASES = [
    Case("a week", TIER, trap(), WARNED),
    Case("six and a half days", TIER, trap(156), EARLY),
    Case("an hour less than a week", TIER, trap(167), EARLY),
    Case("41 %", TIER, trap(used=0.41), FINE),
    Case("39 %", TIER, trap(used=0.39), WARNED),
    Case("another limit", looked_at(TRAP, below=0.1), trap(), FINE),
    Case("longer prompts", TIER, longer(1.5), WARNED),
    Case("much longer prompts", TIER, longer(2.5), GUESSED),
    Case("prompts as work", TIER, longer(4.0), FAIRLY),
    Case("no planned lengths", context(workload={}), trap(), GUESSED),
    Case("a full cache in the fullest hours", TIER, filled(lambda n: n % 20 < 2), FINE),
    Case("one hour of twenty", TIER, filled(lambda n: n < 8), WARNED),
    Case("74 % of the cache", TIER, trap(kv=0.74), WARNED),
    Case("75 % of the cache", TIER, trap(kv=0.75), FINE),
    Case("means, not instants", TIER, trap(kv=0.3, kv_most=0.95), WARNED),
    Case("no level", TIER, trap(kv=None), HIDDEN),
    Case("no level needed", TIER, trap(kv=None, used=0.5), FINE),
    Case("a minimum below", warm(5), trap(replicas=10, used=0.3), WARNED),
    Case("a minimum of all", warm(10), trap(replicas=10, used=0.3), FINE),
    Case("peaks that need all", TEN, week(0.2, used=0.85), WARNED),
    *(Case(f"peaks, minimum {n}", warm(n), week(0.3, used=0.88), WARNED) for n in (None, 1, 5, 8)),
    Case("peaks, minimum of all", warm(10), week(0.3, used=0.88), FINE),
    Case("sometimes one more", warm(4, 5), scaled(0.2), WARNED),
    Case("which is needed", warm(4, 5), scaled(0.9), FINE),
    Case("no price", UNPRICED, trap(), GUESSED),
    Case("ended", TIER, hours(WEEK, lambda n: hour(n, used=0.2 if n < 130 else 0.5, replicas=4)), GUESSED),
    Case("half seen", TIER, HALF_SEEN, EARLY),
    Case("no plan", BARE, trap(), UNPLANNED),
    Case("pools without rates", context(pools=["prefill", "decode"]), trap(), UNPLANNED),
    Case("nothing served", TIER, trap(used=0.0), WARNED),
]
EMPTY_CASES = [
    Case("a day", TIER, quiet(), WARNED),
    Case("hardly a queue", TIER, quiet(waiting=0.05), WARNED),
    Case("a queue", TIER, quiet(waiting=0.06), FINE),
    Case("39 % busy", TIER, quiet(gpu=0.39), WARNED),
    Case("41 % busy", TIER, quiet(gpu=0.41), FINE),
    Case("insurance", warm(4, 4), quiet(), FINE),
    Case("half of it", warm(2, 4), quiet(), WARNED),
    # As the trap and the report's proposal say of the same fleet.
    Case("74 % of the cache", TIER, quiet(kv=0.74), WARNED),
    Case("75 % of the cache", TIER, quiet(kv=0.75), FINE),
    Case("another level", looked_at(TRAP, kv_below=0.8), quiet(kv=0.75), WARNED),
    Case("no level", TIER, quiet(kv=None), WARNED),
    Case("two busy hours", TIER, two_hours({"gpu": 0.9}, {"gpu": 0.05}), FINE),
    Case("two hours with a queue", TIER, two_hours({"waiting": 3.0}, {"waiting": 0.0}), FINE),
    Case("23 hours", TIER, quiet(23), EARLY),
    Case("nothing served", TIER, quiet(used=0.0), UNSEEN),
    Case("no queue measured", TIER, quiet(waiting=None), HIDDEN),
    Case("no GPUs measured", TIER, quiet(gpu=None), HIDDEN),
    Case("polled", TIER, hours(24, polled), GUESSED),
    Case("no plan", BARE, quiet(), WARNED),
    Case("pools without rates", context(pools=["prefill", "decode"]), quiet(), UNPLANNED),
]
CACHE_CASES = [
    Case("74 %", TIER, trap(kv_most=0.74), WARNED),
    Case("75 %", TIER, trap(kv_most=0.75), FINE),
    Case("95 %", TIER, trap(kv_most=0.95), FINE),
    Case("each eighth hour", TIER, spiky(8), FINE),
    Case("single hours", TIER, spiky(40), WARNED),
    Case("prefixes in free blocks", TIER, cached(30.0), GUESSED),
    Case("few prefixes", TIER, cached(9.0), WARNED),
    Case("too early", TIER, trap(167), EARLY),
    Case("not measured", TIER, trap(kv=None), HIDDEN),
    Case("nothing served", TIER, trap(used=0.0), UNSEEN),
]
TABLES = {TRAP: TRAP_CASES, EMPTY: EMPTY_CASES, CACHE: CACHE_CASES}


def over_days(rule: str, case: Case) -> RuleResult:
    assert isinstance(case.replicas, list)
    return answered(rule, case.tier, case.replicas)


def test_trap_has_actions_and_idle_replicas() -> None:
    found = answered(TRAP, TIER, trap())
    assert [action.split()[0] for action in found.actions] == ["Share", "Fill", "Scale", "Trim", "Route"]
    idle = answered(TRAP, warm(4, 5), scaled(0.2)).idle
    assert round(idle.replicas, 2) == 0.04


def test_pools_may_be_trapped_apart() -> None:
    # 3 rps a replica are 1,200 of 4,000 prompt tokens and 300 of 500 output tokens a second.
    rates = {"prefill_tokens_per_second": 4000, "decode_tokens_per_second": 500}
    seen = context(pools=["prefill", "decode"], disaggregation=rates, fleet=None)
    week = hours(WEEK)
    booked = []
    for pool in ("prefill", "decode"):
        booked += [load_bins.BinnedWindow(replica=pool, window=one, rps=None, in_system=None) for one in week]
    results = rule_evaluation.evaluate_long_rules(seen, booked, week[-1].end)
    found = next(result for result in results if result.rule == TRAP)
    assert outcome(found) == WARNED
    assert found.sentence.startswith("Prefill pool: fleet utilisation is 30.0% over 7.0 days; 1.0 of 2.0 replicas")
    assert (found.idle.replicas, found.idle.cost_per_day) == pytest.approx((1.0, 60.0))
    assert any(text.startswith("decode pool: Fleet utilisation is 60.0%") for text in found.details)


HEADROOM, YIELD = "NoHeadroom", "TokensPerGpuHourFalling"
TWO_WEEKS = 336


def live(rps: float, count: int = 15, first: float = 0.0, **more: Any) -> list[Window]:
    tokens = {"prompt_tokens": 60 * rps * PROMPT_TOKENS, "generation_tokens": 60 * rps * OUTPUT_TOKENS}
    counters = {**tokens, **more.pop("counters", {})}
    return each(count, lambda n: minute(first + n, rps=rps, counters=counters, **more))


def two(several: list[Window]) -> dict[str, list[Window]]:
    return {"a": several, "b": several}


LONGER = live(4.0, counters={"prompt_tokens": 240 * 2 * PROMPT_TOKENS})
BOTH_LONGER = live(4.0, counters={"prompt_tokens": 480 * PROMPT_TOKENS, "generation_tokens": 480 * OUTPUT_TOKENS})
CALM_END = live(1.0, 15)[11:]
OVER = [*each(11, lambda n: minute(n, rps=7.0)), *(minute(n, rps=4.0) for n in range(11, 15))]
STRADDLING = [*live(4.0, 11, counters={"prompt_tokens": 480 * PROMPT_TOKENS}), *CALM_END]

LIVE_CASES = [
    Case("95 %", TIER, {"a": live(5.7), "b": live(5.7, first=0.4)}, WARNED),
    Case("just within 90 %", TIER, two(live(5.38)), FINE),
    Case("just above 90 %", TIER, two(live(5.42)), WARNED),
    Case("more than one takes", TIER, two(live(7.0)), WARNED),
    Case("insufficient by far", TIER, two(live(18.0)), WARNED),
    Case("longer prompts", TIER, LONGER, GUESSED),
    Case("all longer", TIER, BOTH_LONGER, WARNED),
    Case("nine minutes", TIER, live(5.7, 9), EARLY),
    Case("ten minutes", TIER, live(5.7, 10), WARNED),
    Case("over", TIER, two(OVER), FAIRLY),
    Case("maybe full, and over", TIER, two(STRADDLING), FAIRLY),
    Case("surely full, and over", TIER, two([*live(9.0, 11), *CALM_END]), FINE),
    Case("before the hold", TIER, two(each(15, lambda n: minute(n, rps=5.7 if n > 10 else 3.0))), FAIRLY),
    Case("a burst", TIER, two(each(15, lambda n: minute(n, rps=40.0 if n in (13, 14) else 3.0))), FAIRLY),
    Case("no plan", BARE, live(5.7), UNPLANNED),
    Case("no price", judging_samples.context(), live(5.7), GUESSED),
    Case("pools without rates", context(pools=["prefill", "decode"]), live(5.7), UNPLANNED),
]


@pytest.mark.parametrize("case", LIVE_CASES, ids=str)
def test_headroom_over_minutes(case: Case) -> None:
    check_case(HEADROOM, case)


def test_full_tier_needs_a_replica() -> None:
    found = judging_samples.answered(HEADROOM, TIER, LONGER)
    assert found.actions[0] == "Add a replica of this tier"
    assert (found.observed.low, found.observed.high) == (pytest.approx(2 / 3), pytest.approx(4 / 3))


QUANTILES = {"prompt_tokens": {"p50": 300, "p95": 900}, "generation_tokens": {"p50": 80, "p95": 200}}
GUARDRAILS = {"max_prompt_tokens": 2000, "max_generation_tokens": 400}


@pytest.mark.parametrize(("rps", "wanted"), [(2.0, FINE), (5.0, FAIRLY), (5.7, GUESSED), (12.0, WARNED)])
def test_quantile_plan_gives_bounds(rps: float, wanted: Wanted) -> None:
    """Planned means lie between 180 and 655 tokens of prompts, 46 and 150 of outputs; 400 and 100 come."""
    found = judging_samples.answered(HEADROOM, context(workload=QUANTILES, guardrails=GUARDRAILS), live(rps))
    assert outcome(found) == wanted
    bounds = [rps / 6 * 400 / mean for mean in (655, 180)]
    assert [found.observed.low, found.observed.high] == pytest.approx(bounds, rel=1e-3)


def peaks(until: int = WEEK, high: float = 0.95) -> list[Window]:
    """Two full hours every day, the last day on which they come being that of hour `until`."""
    return hours(WEEK, lambda n: hour(n, used=high if n % 24 in (10, 11) and n < until else 0.3))


def weeks(used: float = 0.36, **later: Any) -> list[Window]:
    """Two weeks; the second with more of the traffic, and what is given by keyword."""
    return hours(TWO_WEEKS, lambda n: hour(n, **({"used": 0.3} if n < WEEK else {"used": used, **later})))


def bad(days: int) -> list[Window]:
    """Two weeks; on the last days with short answers."""
    first = TWO_WEEKS - 24 * days
    return hours(TWO_WEEKS, lambda n: hour(n, used=0.3 if n < WEEK else 0.33, tokens=10.0 if n >= first else 100.0))


def week_ends(day: int) -> list[Window]:
    """Quiet week ends from this day on, and more traffic on fewer replicas on the others."""

    def made(number: int) -> Window:
        quiet = (number // 24 + day) % 7 >= 5
        growth = 1.0 if number < WEEK else 1.1
        return hour(number, used=0.1 * growth if quiet else 0.3 * growth, replicas=6 if quiet else 4)

    return hours(TWO_WEEKS, made)


TWO_HOURS = hours(WEEK, lambda n: hour(n, used=2.0 if n > 165 else 0.3))
SILENT_FIRST = hours(TWO_WEEKS, lambda n: hour(n, used=0.0 if n < WEEK else 0.3))

DAYS_CASES = [
    (HEADROOM, Case("full hours every day", TIER, peaks(), WARNED)),
    (HEADROOM, Case("less full hours", TIER, peaks(high=0.89), FINE)),
    (HEADROOM, Case("full hours that ended", TIER, peaks(until=130), FINE)),
    (HEADROOM, Case("two hours are not three", TIER, TWO_HOURS, FINE)),
    (YIELD, Case("more replicas", TIER, weeks(used=0.24, replicas=3), WARNED)),
    (YIELD, Case("shorter answers", TIER, weeks(tokens=60.0), WARNED)),
    (YIELD, Case("9 % less", TIER, weeks(tokens=76.0), FINE)),
    (YIELD, Case("11 % less", TIER, weeks(tokens=74.0), WARNED)),
    (YIELD, Case("hardly more traffic", TIER, weeks(used=0.314, tokens=80.0), FINE)),
    (YIELD, Case("just more traffic", TIER, weeks(used=0.316, tokens=80.0), WARNED)),
    (YIELD, Case("less traffic", TIER, weeks(used=0.2, tokens=50.0), FINE)),
    (YIELD, Case("two bad days", TIER, bad(2), GUESSED)),
    (YIELD, Case("three bad days", TIER, bad(3), WARNED)),
    # Whatever weekday it is: both weeks hold each of them once.
    *((YIELD, Case(f"week ends from day {day}", TIER, week_ends(day), FINE)) for day in range(7)),
    (YIELD, Case("an hour less than two weeks", TIER, weeks()[1:], EARLY)),
    (YIELD, Case("nothing served before", TIER, SILENT_FIRST, UNSEEN)),
    (YIELD, Case("no plan", BARE, weeks(), UNPLANNED)),
]


@pytest.mark.parametrize(("rule", "case"), [*list_cases(TABLES), *DAYS_CASES], ids=str)
def test_rule_over_days(rule: str, case: Case) -> None:
    check_result(over_days(rule, case), case.wanted)


def test_words_read_as_the_golden() -> None:
    cases = ((f"{rule}, {case}", over_days(rule, case)) for rule, case in (*list_cases(TABLES), *DAYS_CASES))
    check_words(__file__, (*cases, *judge_cases(list_cases({HEADROOM: LIVE_CASES}))))


def test_week_speaks_between_peaks() -> None:
    weekly, healthy = (answered(HEADROOM, TIER, peaks(until=until)) for until in (WEEK, 0))
    calm, full = (judging_samples.answered(HEADROOM, TIER, live(rps)) for rps in (3.0, 5.7))
    silent = Unknown(t=calm.t, rule=HEADROOM, subject=calm.subject, reason=Gap.NO_TRAFFIC)

    def prefer(live: RuleResult, *long: RuleResult) -> RuleResult:
        return rule_evaluation.prefer_firing_result(live, {(one.rule, one.subject): one for one in long})

    assert prefer(calm, weekly) == replace(weekly, t=calm.t)
    assert prefer(full, weekly) is full
    assert [prefer(calm, healthy), prefer(calm)] == [calm, calm]
    assert prefer(silent, healthy) is silent


def test_days_count_from_full_hour() -> None:
    several = weeks(used=0.24, replicas=3)
    for late in (0.0, 600.0, 3599.0):
        now = several[-1].end + late
        found = answered(YIELD, context(), several, now)
        assert (found.status, found.t) == (Status.WARNING, now)
