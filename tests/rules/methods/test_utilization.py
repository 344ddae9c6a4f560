"""Use over days: one table of cases a rule (fires, just within, too early, over, not measured)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from days_samples import PROMPT_TOKENS, answered, context, hour, hours, verdict
from judging_samples import tier
from rule_cases import EARLY, FAIRLY, FINE, GUESSED, HIDDEN, UNPLANNED, UNSEEN, WARNED, Case, check_result

from rules.confidence import Certainty
from rules.evaluator import long_rules
from rules.plan import load_bins
from rules.plan.load_bins import TierContext
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Status

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
    return hours(
        WEEK, lambda n: hour(n, **({"used": used, "replicas": 5} if n % 24 == 12 else {"used": 0.2, "replicas": 4}))
    )


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
UNPRICED = load_bins.build_tier_context("t", tier(fleet={"instances": 4}))
ENDED = hours(WEEK, lambda n: hour(n, used=0.2 if n < 130 else 0.5, replicas=4))
HALF_SEEN = hours(WEEK, lambda n: hour(n, used=0.2, replicas=4, covered=0.5 if n % 9 == 0 else 0.9))
MEMORY = "memory sets the size of this fleet, not load"
SURPLUS = "Fleet utilisation is 20.0% over 7.0 days; 3.0 of 4.0 replicas are surplus, 180 USD a day"

FLOOR = "the busiest hour needs 4 replicas at up to 90.0% of capacity; the minimum warm count is"
ALL_NEEDED = "its busiest hour or the minimum warm count needs every replica"
NO_REPLICA_SURPLUS = "over 7.0 days; no replica is surplus"
NO_QUEUE = "No queue; GPUs are 30.0% busy in the busiest hours; no replica is surplus"
INSURED = "the busiest hour needs 1 replica at up to 90.0% of capacity; the minimum warm count is 4"
NO_WAIT = "No request waits while GPUs are 30.0% busy in the busiest hours;"
SEEN = "156 of 168 hours seen: the history did not reach back so far"
HIDDEN_CACHE = "the engine does not show how full its KV cache is"
PREFIXES = "30.0% of prompt tokens are found in it; blocks that hold them count as free"

TRAP_CASES: list[tuple[Any, ...]] = [
    ("a week", TIER, trap(), WARNED, SURPLUS),
    ("six and a half days", TIER, trap(156), EARLY, SEEN),
    ("an hour less than a week", TIER, trap(167), EARLY),
    ("41 %", TIER, trap(used=0.41), FINE),
    ("39 %", TIER, trap(used=0.39), WARNED),
    ("another limit", looked_at(TRAP, below=0.1), trap(), FINE),
    ("longer prompts", TIER, longer(1.5), WARNED),
    ("much longer prompts", TIER, longer(2.5), GUESSED),
    ("prompts as work", TIER, longer(4.0), FAIRLY),
    ("no planned lengths", context(workload={}), trap(), GUESSED, SURPLUS),
    ("a full cache in the fullest hours", TIER, filled(lambda n: n % 20 < 2), FINE, MEMORY),
    ("one hour of twenty", TIER, filled(lambda n: n < 8), WARNED),
    ("74 % of the cache", TIER, trap(kv=0.74), WARNED),
    ("75 % of the cache", TIER, trap(kv=0.75), FINE),
    ("means, not instants", TIER, trap(kv=0.3, kv_most=0.95), WARNED),
    ("no level", TIER, trap(kv=None), HIDDEN, "is 20.0% over 7.0 days; the KV cache level is not known"),
    ("no level needed", TIER, trap(kv=None, used=0.5), FINE),
    ("a minimum below", warm(5), trap(replicas=10, used=0.3), WARNED, "5.0 of 10.0 replicas are surplus, 300 USD"),
    ("is told", warm(5), trap(replicas=10, used=0.3), WARNED, f"{FLOOR} 5"),
    ("a minimum of all", warm(10), trap(replicas=10, used=0.3), FINE, ALL_NEEDED),
    (
        "peaks that need all",
        context(fleet={"instances": 10}),
        week(0.2, used=0.85),
        WARNED,
        f"22.7% {NO_REPLICA_SURPLUS}",
    ),
    *(
        (f"peaks, minimum {n}", warm(n), week(0.3, used=0.88), WARNED, f"32.4% {NO_REPLICA_SURPLUS}")
        for n in (None, 1, 5, 8)
    ),
    ("peaks, minimum of all", warm(10), week(0.3, used=0.88), FINE),
    ("sometimes one more", warm(4, 5), scaled(0.2), WARNED),
    ("which is needed", warm(4, 5), scaled(0.9), FINE),
    ("no price", UNPRICED, trap(), GUESSED, "3.0 of 4.0 replicas are surplus, 72 GPU-hours a day"),
    ("ended", TIER, ENDED, GUESSED),
    ("half seen", TIER, HALF_SEEN, EARLY),
    ("no plan", BARE, trap(), UNPLANNED, "the plan has no curve to derive usable rps from"),
    ("pools without rates", context(pools=["prefill", "decode"]), trap(), UNPLANNED, "tokens a second of each pool"),
    ("nothing served", TIER, trap(used=0.0), WARNED),
]
EMPTY_CASES: list[tuple[Any, ...]] = [
    ("a day", TIER, quiet(), WARNED, f"{NO_WAIT} 3.0 of 4.0 replicas are surplus, 180 USD a day"),
    ("hardly a queue", TIER, quiet(waiting=0.05), WARNED),
    ("a queue", TIER, quiet(waiting=0.06), FINE),
    ("39 % busy", TIER, quiet(gpu=0.39), WARNED),
    ("41 % busy", TIER, quiet(gpu=0.41), FINE),
    ("insurance", warm(4, 4), quiet(), FINE, f"{NO_QUEUE}; {INSURED}"),
    ("half of it", warm(2, 4), quiet(), WARNED, "2.0 of 4.0 replicas are surplus, 120 USD a day"),
    # As the trap and the report's proposal say of the same fleet.
    ("74 % of the cache", TIER, quiet(kv=0.74), WARNED),
    ("75 % of the cache", TIER, quiet(kv=0.75), FINE, "memory sets the size of this fleet"),
    ("another level", looked_at(TRAP, kv_below=0.8), quiet(kv=0.75), WARNED),
    ("no level", TIER, quiet(kv=None), WARNED),
    ("two busy hours", TIER, two_hours({"gpu": 0.9}, {"gpu": 0.05}), FINE),
    ("two hours with a queue", TIER, two_hours({"waiting": 3.0}, {"waiting": 0.0}), FINE),
    ("23 hours", TIER, quiet(23), EARLY),
    ("nothing served", TIER, quiet(used=0.0), UNSEEN),
    ("no queue measured", TIER, quiet(waiting=None), HIDDEN),
    ("no GPUs measured", TIER, quiet(gpu=None), HIDDEN, "GPU utilisation: not measured here"),
    ("polled", TIER, hours(24, polled), GUESSED),
    ("no plan", BARE, quiet(), WARNED, f"{NO_WAIT} 2.0 of 4.0 replicas are surplus"),
]
CACHE_CASES: list[tuple[Any, ...]] = [
    ("74 %", TIER, trap(kv_most=0.74), WARNED, "In 95% of 168 hours the KV cache is at most 74.0% full; 75%"),
    ("75 %", TIER, trap(kv_most=0.75), FINE, "highest instant of an hour, hourly mean at most 30.0%"),
    ("95 %", TIER, trap(kv_most=0.95), FINE),
    ("each eighth hour", TIER, spiky(8), FINE),
    ("single hours", TIER, spiky(40), WARNED),
    ("prefixes in free blocks", TIER, cached(30.0), GUESSED, PREFIXES),
    ("few prefixes", TIER, cached(9.0), WARNED),
    ("too early", TIER, trap(167), EARLY),
    ("not measured", TIER, trap(kv=None), HIDDEN, HIDDEN_CACHE),
    ("nothing served", TIER, trap(used=0.0), UNSEEN),
]
CASES = [
    (rule, Case(*row))
    for rule, rows in ((TRAP, TRAP_CASES), (EMPTY, EMPTY_CASES), (CACHE, CACHE_CASES))
    for row in rows
]


@pytest.mark.parametrize(("rule", "case"), CASES, ids=str)
def test_use_over_days(rule: str, case: Case) -> None:
    assert isinstance(case.replicas, list)
    check_result(answered(rule, case.tier, case.replicas), case.wanted, case.text)


def test_trap_has_actions_and_idle_replicas() -> None:
    found = verdict(TRAP, TIER, trap())
    assert [action.split()[0] for action in found.actions] == ["Share", "Fill", "Scale", "Trim", "Route"]
    idle = verdict(TRAP, warm(4, 5), scaled(0.2)).idle
    assert round(idle.replicas, 2) == 0.04


def test_pools_may_be_trapped_apart() -> None:
    # 3 rps a replica are 1,200 of 4,000 prompt tokens and 300 of 500 output tokens a second.
    rates = {"prefill_tokens_per_second": 4000, "decode_tokens_per_second": 500}
    seen = context(pools=["prefill", "decode"], disaggregation=rates, fleet=None)
    booked = [
        load_bins.BinnedWindow(replica=pool, window=hour(n, used=used), rps=None, in_system=None)
        for n in range(WEEK)
        for pool, used in (("prefill", 0.5), ("decode", 0.5))
    ]
    at = max(one.window.end for one in booked)
    found = next(a for a in long_rules.evaluate_long_rules(seen, booked, at) if a.rule == "UtilizationTrap")
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert found.sentence.startswith("Prefill pool: fleet utilisation is 30.0% over 7.0 days; 1.0 of 2.0 replicas")
    assert (found.idle.replicas, found.idle.cost_per_day) == pytest.approx((1.0, 60.0))
    assert any(text.startswith("decode pool: Fleet utilisation is 60.0%") for text in found.details)
