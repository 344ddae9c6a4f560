from dataclasses import replace
from typing import Any

import pytest
from days_samples import PROMPT_TOKENS, context, hour, hours, unknown, verdict
from judging_samples import tier
from prose import explain

from rules.confidence import Certainty
from rules.evaluator import long_rules
from rules.plan import load_bins
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Status, Verdict

WEEK = 168


def trap(count: int = WEEK, **each: Any) -> list[Window]:
    return hours(count, lambda n: hour(n, **{"used": 0.2, "replicas": 4, **each}))


def test_idle_week_is_the_trap() -> None:
    found = verdict("UtilizationTrap", context(), trap())
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert found.sentence == "Fleet utilisation is 20.0% over 7.0 days; 3.0 of 4.0 replicas are surplus, 180 USD a day"
    assert [action.split()[0] for action in found.actions] == ["Share", "Fill", "Scale", "Trim", "Route"]


def test_shorter_week_is_no_trap() -> None:
    found = unknown("UtilizationTrap", context(), trap(156))
    assert (found.reason, found.text) == (
        Gap.TOO_FEW_REQUESTS,
        "156 of 168 hours seen: the history did not reach back so far",
    )
    assert unknown("UtilizationTrap", context(), trap(167)).reason is Gap.TOO_FEW_REQUESTS


def test_forty_percent_or_configured_limit() -> None:
    assert verdict("UtilizationTrap", context(), trap(used=0.41)).status is Status.OK
    assert verdict("UtilizationTrap", context(), trap(used=0.39)).status is Status.WARNING
    lower = replace(context(), limits={"UtilizationTrap": {"below": 0.1}})
    assert verdict("UtilizationTrap", lower, trap()).status is Status.OK


@pytest.mark.parametrize(
    ("longer", "status", "certainty"),
    [
        (1.5, Status.WARNING, Certainty.CERTAIN),
        (2.5, Status.WARNING, Certainty.LIKELY),
        (4.0, Status.OK, Certainty.LIKELY),
    ],
)
def test_upper_bound_makes_trap_certain(longer: float, status: Status, certainty: Certainty) -> None:
    """20 % by outputs, so much more by prompts."""
    made = trap(counters={"prompt_tokens": 0.2 * 6 * 4 * 3600 * longer * PROMPT_TOKENS})
    found = verdict("UtilizationTrap", context(), made)
    assert (found.status, found.certainty) == (status, certainty)


def test_planless_lengths_make_none_certain() -> None:
    found = verdict("UtilizationTrap", context(workload={}), trap())
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.LIKELY)
    assert found.sentence == "Fleet utilisation is 20.0% over 7.0 days; 3.0 of 4.0 replicas are surplus, 180 USD a day"


def test_full_cache_sets_the_size() -> None:
    def full(number: int, of: int) -> Window:
        return hour(number, used=0.2, replicas=4, kv=0.8 if number % 20 < of else 0.1)

    found = verdict("UtilizationTrap", context(), hours(WEEK, lambda n: full(n, of=2)))
    assert found.status is Status.OK
    assert found.sentence.endswith("memory sets the size of this fleet, not load")
    assert verdict("UtilizationTrap", context(), trap(kv=0.74)).status is Status.WARNING
    assert verdict("UtilizationTrap", context(), trap(kv=0.75)).status is Status.OK
    assert verdict("UtilizationTrap", context(), trap(kv=0.3, kv_most=0.95)).status is Status.WARNING, (
        "means, not instants"
    )
    few = hours(WEEK, lambda n: hour(n, used=0.2, replicas=4, kv=0.8 if n < 8 else 0.1))
    assert verdict("UtilizationTrap", context(), few).status is Status.WARNING, "one hour of twenty says nothing"


def test_unknown_cache_leaves_trap_open() -> None:
    found = unknown("UtilizationTrap", context(), trap(kv=None))
    assert found.reason is Gap.NOT_EXPOSED
    assert found.text == "fleet utilisation is 20.0% over 7.0 days; the KV cache level is not known"
    assert verdict("UtilizationTrap", context(), trap(kv=None, used=0.5)).status is Status.OK


def test_minimum_warm_hides_no_trap() -> None:
    """10 ready at 30 % with a minimum of 5: 5 are surplus. At a minimum of 10 none is."""
    for warm, status, said in (
        (5, Status.WARNING, "5.0 of 10.0 replicas are surplus, 300 USD a day"),
        (10, Status.OK, "its busiest hour or the minimum warm count needs every replica"),
    ):
        fleet = {"instances": 10, "minimum_warm": warm}
        found = verdict("UtilizationTrap", context(fleet=fleet), trap(replicas=10, used=0.3))
        assert (found.status, found.certainty) == (status, Certainty.CERTAIN)
        assert found.sentence == f"Fleet utilisation is 30.0% over 7.0 days; {said}"
        need = f"the busiest hour needs 4 replicas at up to 90.0% of capacity; the minimum warm count is {warm}"
        assert need in found.details


@pytest.mark.parametrize("fleet", [{"instances": 10}, {"instances": 10, "minimum_warm": 1}])
def test_peak_fleet_has_no_surplus(fleet: dict[str, int]) -> None:
    peaks = hours(WEEK, lambda n: hour(n, used=0.85 if n % 24 == 9 else 0.2, replicas=10))
    found = verdict("UtilizationTrap", context(fleet=fleet), peaks)
    assert found.sentence == "Fleet utilisation is 22.7% over 7.0 days; no replica is surplus"
    assert found.status is Status.WARNING


@pytest.mark.parametrize(
    ("warm", "status"),
    [(None, Status.WARNING), (1, Status.WARNING), (5, Status.WARNING), (8, Status.WARNING), (10, Status.OK)],
)
def test_lower_minimum_hides_no_trap(warm: int | None, status: Status) -> None:
    """The busiest hour needs all ten, so none is surplus. Only a floor under all of them keeps them on purpose."""
    peaks = hours(WEEK, lambda n: hour(n, used=0.88 if n % 24 == 12 else 0.3, replicas=10))
    found = verdict("UtilizationTrap", context(fleet={"instances": 10, "minimum_warm": warm}), peaks)
    assert found.status is status
    assert (found.sentence == "Fleet utilisation is 32.4% over 7.0 days; no replica is surplus") is (warm != 10)


def test_varying_replica_is_no_trap() -> None:
    scaled = hours(WEEK, lambda n: hour(n, used=0.2, replicas=5 if n % 24 == 12 else 4))
    found = verdict("UtilizationTrap", context(fleet={"instances": 5, "minimum_warm": 4}), scaled)
    assert (found.status, found.idle and round(found.idle.replicas, 2)) == (Status.WARNING, 0.04)
    one = hours(WEEK, lambda n: hour(n, used=0.9 if n % 24 == 12 else 0.2, replicas=5 if n % 24 == 12 else 4))
    assert verdict("UtilizationTrap", context(fleet={"instances": 5, "minimum_warm": 4}), one).status is Status.OK


def test_unpriced_trap_tells_gpu_hours() -> None:
    unpriced = load_bins.build_tier_context("t", tier(fleet={"instances": 4}))
    found = verdict("UtilizationTrap", unpriced, trap())
    assert found.sentence.endswith("3.0 of 4.0 replicas are surplus, 72 GPU-hours a day")


def test_past_trap_is_likely() -> None:
    ended = hours(WEEK, lambda n: hour(n, used=0.2 if n < 130 else 0.5, replicas=4))
    assert verdict("UtilizationTrap", context(), ended).certainty is Certainty.LIKELY
    assert verdict("UtilizationTrap", context(), trap()).certainty is Certainty.CERTAIN
    thin = hours(WEEK, lambda n: hour(n, used=0.2, replicas=4, covered=0.5 if n % 9 == 0 else 0.9))
    assert unknown("UtilizationTrap", context(), thin).reason is Gap.TOO_FEW_REQUESTS


def test_missing_curve_has_no_use() -> None:
    bare = unknown("UtilizationTrap", load_bins.build_tier_context("t", None), trap())
    assert (bare.reason, bare.text) == (Gap.NOT_IN_PLAN, "the plan has no curve to derive usable rps from")
    apart = unknown("UtilizationTrap", context(pools=["prefill", "decode"]), trap())
    assert apart.reason is Gap.NOT_IN_PLAN
    assert "tokens a second of each pool" in apart.text


def test_unserving_fleet_is_trapped() -> None:
    assert verdict("UtilizationTrap", context(), trap(used=0.0)).status is Status.WARNING


def quiet(count: int = 24, **each: Any) -> list[Window]:
    return hours(count, lambda n: hour(n, **{"used": 0.2, "replicas": 4, **each}))


def test_idle_day_is_oversized() -> None:
    found = verdict("QueueAlwaysEmpty", context(), quiet())
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert found.sentence == (
        "No request waits while GPUs are 30.0% busy in the busiest hours; "
        "3.0 of 4.0 replicas are surplus, 180 USD a day"
    )


@pytest.mark.parametrize(
    ("each", "status"),
    [
        ({"waiting": 0.05}, Status.WARNING),
        ({"waiting": 0.06}, Status.OK),
        ({"gpu": 0.39}, Status.WARNING),
        ({"gpu": 0.41}, Status.OK),
    ],
)
def test_busy_fleet_is_not_oversized(each: dict[str, Any], status: Status) -> None:
    assert verdict("QueueAlwaysEmpty", context(), quiet(**each)).status is status


def test_insurance_is_not_oversized() -> None:
    found = verdict("QueueAlwaysEmpty", context(fleet={"instances": 4, "minimum_warm": 4}), quiet())
    assert found.status is Status.OK
    assert explain(found) == (
        "No queue; GPUs are 30.0% busy in the busiest hours; no replica is surplus; "
        "the busiest hour needs 1 replica at up to 90.0% of capacity; the minimum warm count is 4"
    )
    half = verdict("QueueAlwaysEmpty", context(fleet={"instances": 4, "minimum_warm": 2}), quiet())
    assert half.sentence.endswith("2.0 of 4.0 replicas are surplus, 120 USD a day")


@pytest.mark.parametrize(("kv", "status"), [(0.74, Status.WARNING), (0.75, Status.OK), (None, Status.WARNING)])
def test_memory_bound_is_not_oversized(kv: float | None, status: Status) -> None:
    """As the trap and the report's proposal say of the same fleet."""
    found = verdict("QueueAlwaysEmpty", context(), quiet(kv=kv))
    assert (found.status, "memory sets the size of this fleet" in found.sentence) == (status, status is Status.OK)
    higher = replace(context(), limits={"UtilizationTrap": {"kv_below": 0.8}})
    assert verdict("QueueAlwaysEmpty", higher, quiet(kv=0.75)).status is Status.WARNING


def test_two_busy_hours_justify_it() -> None:
    busy = hours(24, lambda n: hour(n, used=0.2, gpu=0.9 if n in (9, 15) else 0.05))
    assert verdict("QueueAlwaysEmpty", context(), busy).status is Status.OK
    queued = hours(24, lambda n: hour(n, used=0.2, waiting=3.0 if n in (9, 15) else 0.0))
    assert verdict("QueueAlwaysEmpty", context(), queued).status is Status.OK


def test_queue_needs_a_day() -> None:
    assert unknown("QueueAlwaysEmpty", context(), quiet(23)).reason is Gap.TOO_FEW_REQUESTS
    assert unknown("QueueAlwaysEmpty", context(), quiet(used=0.0)).reason is Gap.NO_TRAFFIC
    assert unknown("QueueAlwaysEmpty", context(), quiet(waiting=None)).reason is Gap.NOT_EXPOSED
    none_read = unknown("QueueAlwaysEmpty", context(), quiet(gpu=None))
    assert (none_read.reason, none_read.text) == (Gap.NOT_EXPOSED, "GPU utilisation: not measured here")


def test_polled_gpus_limit_certainty() -> None:
    def polled(number: int) -> Window:
        one = hour(number, used=0.2, gpu=None, replicas=4)
        running = one.gauges["requests_running"]
        level = replace(running, integral=0.3 * one.covered_seconds, minimum=0.3, maximum=0.3)
        return replace(
            one, gauges={**one.gauges, "gpu_utilization_sampled": level}, sampled=frozenset({"gpu_utilization_sampled"})
        )

    found = verdict("QueueAlwaysEmpty", context(), hours(24, polled))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.LIKELY)


def test_planless_queue_has_no_price() -> None:
    found = verdict("QueueAlwaysEmpty", load_bins.build_tier_context("t", None), quiet())
    assert found.sentence == (
        "No request waits while GPUs are 30.0% busy in the busiest hours; 2.0 of 4.0 replicas are surplus"
    )


@pytest.mark.parametrize(("most", "status"), [(0.74, Status.WARNING), (0.75, Status.OK), (0.95, Status.OK)])
def test_unfilled_cache_is_underused(most: float, status: Status) -> None:
    found = verdict("KvCacheUnderused", context(), trap(kv_most=most))
    assert (found.status, found.certainty) == (status, Certainty.CERTAIN)
    assert found.sentence == f"In 95% of 168 hours the KV cache is at most {most:.1%} full; 75% or more is healthy"
    assert "highest instant of an hour, hourly mean at most 30.0%" in found.details


def test_fullest_hours_count() -> None:
    def spiky(number: int, every: int) -> Window:
        return hour(number, kv_most=0.9 if number % every == 0 else 0.2)

    assert verdict("KvCacheUnderused", context(), hours(WEEK, lambda n: spiky(n, 8))).status is Status.OK
    assert verdict("KvCacheUnderused", context(), hours(WEEK, lambda n: spiky(n, 40))).status is Status.WARNING


def test_prefix_blocks_make_it_likely() -> None:
    cached = trap(counters={"prefix_queried_tokens": 100.0, "prefix_hit_tokens": 30.0})
    found = verdict("KvCacheUnderused", context(), cached)
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.LIKELY)
    assert explain(found) == (
        "In 95% of 168 hours the KV cache is at most 50.0% full; 75% or more is healthy; "
        "highest instant of an hour, hourly mean at most 30.0%; "
        "30.0% of prompt tokens are found in it; blocks that hold them count as free"
    )
    few = trap(counters={"prefix_queried_tokens": 100.0, "prefix_hit_tokens": 9.0})
    assert verdict("KvCacheUnderused", context(), few).certainty is Certainty.CERTAIN


def test_cache_needs_a_week() -> None:
    assert unknown("KvCacheUnderused", context(), trap(167)).reason is Gap.TOO_FEW_REQUESTS
    hidden = unknown("KvCacheUnderused", context(), trap(kv=None))
    assert (hidden.reason, hidden.text) == (Gap.NOT_EXPOSED, "the engine does not show how full its KV cache is")
    assert unknown("KvCacheUnderused", context(), trap(used=0.0)).reason is Gap.NO_TRAFFIC


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
    assert isinstance(found, Verdict)
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert found.sentence.startswith("Prefill pool: fleet utilisation is 30.0% over 7.0 days; 1.0 of 2.0 replicas")
    assert found.idle is not None
    assert (found.idle.replicas, found.idle.cost_per_day) == pytest.approx((1.0, 60.0))
    assert any(text.startswith("decode pool: Fleet utilisation is 60.0%") for text in found.details)
