"""What an overload shows of a replica, and the workload that production shows, beside plan and benchmark."""

import math
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, quantiles
from typing import Any

import pytest
import recorded
from hypothesis import given
from hypothesis import strategies as st
from judging_samples import gauge
from recorded import read_recorded
from report_samples import HOUR, POINTS, USABLE, hour, hours, seen_of, tier_view

from rules.plan.guardrails import Guardrail
from rules.plan.load_bins import BinnedWindow, TierContext, bin_window
from rules.plan.replica_count import Margin, count_replicas
from rules.resize.measured_capacity import capacity_now
from rules.resize.overload import bound_by_lengths, bound_by_overload, is_saturated, lift_to_carried
from rules.resize.production_summary import ProductionSummary
from rules.resize.workload import APART, BenchmarkWorkload, derive_benchmark, list_guardrails, measure_workload
from rules.telemetry.histograms import Histogram, draw
from rules.telemetry.windows import Window
from rules.telemetry.work import Capacity, work_per_request

PLANNED = tier_view()
MARGIN = Margin(target_utilization=0.9, survives_loss_from=4)


def overloaded(
    rps: float, replica: str = "r0", seconds: float = 900.0, waiting: float = 20.0, **lengths: float
) -> BinnedWindow:
    """Some minutes of one replica that completes `rps` while requests wait."""
    window = cut(hour(0, rps, 1, ttft={9.0: 1.0}, **{"prompts": 800.0, "outputs": 80.0, **lengths}), seconds, waiting)
    placed = bin_window(window, PLANNED.curve, replica)
    return replace(placed, bin=None, beyond="its queue grew to 40")


def cut(window: Window, seconds: float, waiting: float = 0.0) -> Window:
    """The first seconds of an hour, with so many waiting requests and without TTFT."""
    levels = {"requests_waiting": gauge(waiting, seconds=seconds), "requests_running": gauge(30.0, seconds=seconds)}
    counters = {name: value * seconds / HOUR for name, value in window.counters.items()}
    span = {"end": window.start + seconds, "expected_seconds": seconds, "covered_seconds": seconds}
    parts = {**window.histograms, "ttft_seconds": ()}
    return replace(window, counters=counters, histograms=parts, gauges={**window.gauges, **levels}, **span)


def served(rps: float, replica: str = "r0", seconds: float = 900.0) -> BinnedWindow:
    """Some minutes without a queue."""
    return bin_window(cut(hour(0, rps, 1), seconds), PLANNED.curve, replica)


PLAN = PLANNED.capacity


def bound(quarters: list[BinnedWindow], **more: Any) -> Capacity:
    """The plan's capacity as these quarters bound it."""
    return bound_by_overload(PLAN, PLANNED, quarters, **more) or PLAN


@pytest.mark.parametrize(
    ("rps", "lowered", "text"),
    [
        (USABLE / 2, USABLE / 2, "while requests waited a replica finished the work of 3.67 rps and no more"),
        (0.02, USABLE / 5, "is the least that is taken"),
    ],
)
def test_overload_lowers_capacity(rps: float, lowered: float, text: str) -> None:
    found = bound([overloaded(rps)])
    assert found.rps == pytest.approx(lowered)
    assert found.low <= found.rps <= found.high < USABLE
    assert text in found.reason


@pytest.mark.parametrize(("prompts", "outputs"), [(3200.0, 320.0), (3200.0, 80.0), (800.0, 320.0), (800.0, 80.0)])
def test_longer_requests_keep_capacity(prompts: float, outputs: float) -> None:
    """A quarter of the rate, of requests of four times the work."""
    factor = max(prompts / 800.0, outputs / 80.0)
    found = bound([overloaded(USABLE / factor, prompts=prompts, outputs=outputs)])
    assert (found.rps, found.low, found.high) == (PLAN.rps, PLAN.low, PLAN.high)


def test_one_slow_replica_keeps_most_capacity() -> None:
    others = [served(5.0, f"r{place}") for place in range(1, 10)]
    found = bound([overloaded(USABLE / 2), *others])
    assert found.rps == pytest.approx(USABLE * 0.95)
    assert "10% of the replicas finished" in found.reason


def test_other_replicas_hide_no_overload() -> None:
    """New ones have little load. A renamed one has few seconds, or is of an hour before."""
    new = [served(0.5, f"n{place}") for place in range(4)]
    before = served(5.0, "r9")
    earlier = replace(before, window=replace(before.window, start=before.window.start - HOUR))
    for others in (new, [served(3.0, "r0-before", seconds=60.0), earlier]):
        assert bound([overloaded(USABLE / 2), *others]).rps == pytest.approx(USABLE / 2)


def test_what_production_carries_later_lifts_the_bound() -> None:
    half = bound([overloaded(USABLE / 2)])
    more = lift_to_carried(half, PLAN, [served(5.0), served(6.0)])
    assert more.rps == pytest.approx(6.0)
    assert "later a replica carried 6 rps without a queue" in more.reason
    assert lift_to_carried(half, PLAN, [served(30.0)]).rps == PLAN.rps
    assert lift_to_carried(half, PLAN, [served(2.0)]) is half


def test_limiting_tokens_count_while_overloaded() -> None:
    binned = [overloaded(USABLE / 4, prompts=3200.0)]
    assert bound(binned, is_present=True).lengths.only == "prompt_tokens"
    assert bound(binned).lengths == PLAN.lengths


NO_OVERLOAD = {
    "two minutes": overloaded(3.0, seconds=120.0),
    "no queue": overloaded(3.0, waiting=0.4),
    "a queue that is worked off": replace(overloaded(3.0), beyond="", backlog="worked off"),
    "no overload": served(3.0),
    "nothing finished": overloaded(0.0),
    "a wait within the objective": overloaded(5.0, waiting=9.0),
    "a sum of replicas": replace(overloaded(3.0), replica=None),
}


@pytest.mark.parametrize("name", NO_OVERLOAD)
def test_no_overload_bounds_nothing(name: str) -> None:
    assert bound([NO_OVERLOAD[name]]) is PLAN


def test_queue_makes_a_ceiling() -> None:
    assert is_saturated(overloaded(3.0), PLANNED)
    assert not is_saturated(served(3.0), PLANNED)


def test_overload_latencies_compare_no_load() -> None:
    """A week at 3 rps as planned, and a day in which 3 rps finished of 6 that arrived, with nine seconds to wait."""
    week = [bin_window(hour(number, 30.0), PLANNED.curve, "all") for number in range(160)]
    half, below = overloaded(5.0, "all"), overloaded(2.0, "all")
    found = [capacity_now(PLANNED, [binned]) for binned in ([*week, half], week, [*week, below], [half])]
    assert [one.rps for one in found] == pytest.approx([5.0, USABLE, USABLE, 5.0])
    assert "times as slow" not in found[0].reason
    assert "no load of production kept the SLO" not in found[-1].reason


RATES, LENGTHS = st.floats(0.5, 12.0), {"prompts": st.floats(100.0, 6400.0), "outputs": st.floats(10.0, 640.0)}


@given(RATES, st.floats(1.0, 8.0), st.fixed_dictionaries(LENGTHS))
def test_count_covers_what_arrives(completed: float, more: float, lengths: dict[str, float]) -> None:
    binned = overloaded(completed, waiting=2.5 * completed, **lengths)
    capacity = bound([binned], is_present=True)
    assert capacity.low <= capacity.rps <= PLAN.rps
    assert capacity.high is None or capacity.rps <= capacity.high
    each = work_per_request(binned.window, capacity.lengths)[1]
    counts = [count_replicas(completed * factor * each, capacity.rps, MARGIN) for factor in (1.0, more, 2 * more)]
    assert counts == sorted(counts)
    # What one replica does not finish needs another. Chance may hide a part of it, and a fifth of the plan is the floor.
    chance = 1 + 3.09 / math.sqrt(completed * 900)
    hidden = max(chance, capacity.rps / (completed * each))
    assert counts[1] >= math.floor(more / hidden)


def test_unmeasured_lengths_widen_bounds() -> None:
    near, far = hour(0, 3.0, 1, prompts=960.0), hour(0, 3.0, 1, prompts=3200.0, outputs=320.0)
    known = replace(PLAN, low=6.0)
    assert bound_by_lengths(known, PLANNED, near) is known
    wide = bound_by_lengths(known, PLANNED, far)
    assert wide.rps == known.rps
    assert wide.low == pytest.approx(USABLE / 4)
    assert "requests are 4 times the work of those that it was measured with" in wide.reason
    shorter = bound_by_lengths(known, PLANNED, hour(0, 3.0, 1, prompts=200.0, outputs=20.0))
    assert (shorter.low, shorter.high) == (6.0, pytest.approx(4 * USABLE))


def test_memory_bounds_longer_requests() -> None:
    """The benchmark had 4 requests at once at 4 rps and 8 at 6; 9,000 tokens hold 5 of 1,600 + 200: 4.5 rps of outputs.

    Outputs are five times as long as measured, prompts twice: 3.5 times the work, 0.7 with each unit of output."""
    lengths = [{**point, "prompt_tokens_mean": 800} for point in POINTS]
    context = tier_view(curve={"points": lengths, "measured": {"kv_tokens": 9000}})
    capacity = context.capacity
    found = bound_by_lengths(capacity, context, hour(0, 2.0, 1, prompts=1600.0, outputs=400.0))
    assert found.rps == pytest.approx(4.5 * 0.7)
    assert "5 requests of 1,800 tokens fit into its KV cache" in found.reason
    as_measured = hour(0, 2.0, 1)
    assert bound_by_lengths(capacity, context, as_measured) is capacity, "the benchmark itself had this room"
    kept = bound_by_lengths(replace(capacity, kept_rps=6.0), context, hour(0, 2.0, 1, prompts=1600.0, outputs=400.0))
    assert kept.rps == 6.0
    prompts_alone = bound_by_lengths(capacity, context, hour(0, 2.0, 1, prompts=2400.0))
    assert prompts_alone.rps == capacity.rps, "prompts leave quickly what they take"
    roomy = tier_view(curve={"points": lengths, "measured": {"kv_tokens": 900_000}})
    assert bound_by_lengths(roomy.capacity, roomy, hour(0, 2.0, 1, prompts=900.0)).rps == capacity.rps


def test_shared_prefix_counts_once_in_cache() -> None:
    """Half of the prompts is cached: 5,000 tokens hold 5 requests of 800 + 200."""
    points = [{**point, "prompt_tokens_mean": 800} for point in POINTS]
    context = tier_view(curve={"points": points, "measured": {"kv_tokens": 5000}})
    window = hour(0, 2.0, 1, prompts=1600.0, outputs=400.0)
    window.counters["prompt_tokens_computed"] = window.counters["prompt_tokens"] / 2
    found = bound_by_lengths(context.capacity, context, window)
    assert "5 requests of 1,000 tokens fit into its KV cache" in found.reason


def test_a_few_requests_tell_no_lengths() -> None:
    few = cut(hour(0, 0.02, 1, prompts=9000.0, outputs=900.0), 900.0)
    assert bound_by_lengths(PLAN, PLANNED, few) is PLAN
    found = capacity_now(PLANNED, [[bin_window(few, PLANNED.curve, "all")]])
    assert found.rps == pytest.approx(USABLE)


def fitting(context: TierContext, **more: object) -> dict[str, Guardrail]:
    seen = seen_of(context, hours(24, **more))
    return {guardrail.key: guardrail for guardrail in list_guardrails(seen, measure_workload(seen))}


def test_limits_follow_observed_quantiles() -> None:
    found = fitting(tier_view())
    # All prompts lie in 500 to 1000 and all outputs in 50 to 100, falling by a constant factor to half of one of them.
    n = 24 * 3600 * 20.0
    p95, p99 = 500 * (1 + math.log(20) / math.log(2 * n)), 50 * (1 + math.log(100) / math.log(2 * n))
    for key, best in (("max_prompt_tokens", p95), ("max_generation_tokens", p99)):
        assert (found[key].low, found[key].high) == (pytest.approx(2 * best, abs=1), pytest.approx(3 * best, abs=1))
        assert found[key].proposed == pytest.approx(2.5 * best, abs=1)
    larger = fitting(tier_view(), rps=lambda number: 100.0)
    assert [one["queue_breaker"].proposed for one in (found, larger)] == [85, 170], "by the larger peak"
    few = fitting(tier_view(), rps=lambda number: 0.001)
    assert few["max_prompt_tokens"].sentence.endswith("2 to 3 x the planned P95, 1,900 tokens")


def test_what_the_plan_has_stands_beside_it() -> None:
    found = fitting(tier_view(guardrails={"max_prompt_tokens": 2500, "queue_breaker": 300}))
    states = [(one.planned, one.state) for one in found.values()]
    assert states == [(2500, "too_high"), (None, "missing"), (300, "ineffective")]


def benchmark(seen: ProductionSummary, requests: int = 300, top: float | None = None) -> BenchmarkWorkload:
    return derive_benchmark(seen, requests, top)


@pytest.mark.parametrize("name", ["prefix", "routing", "lora", "steady", "sglang"])
def test_lengths_are_those_that_the_clients_sent(name: str) -> None:
    found = benchmark(read_recorded(name))
    rows = [row for row in recorded.requests(name) if not row["error"] and row["completion_tokens"]]
    sent = [(int(row["prompt_tokens"]), int(row["completion_tokens"])) for row in rows]
    for drawn, truth in ((found.prompts, [p for p, _ in sent]), (found.generations, [g for _, g in sent])):
        assert fmean(drawn) == pytest.approx(fmean(truth), rel=0.05)
        # A bucket is a factor of 2.5 wide at most: the median is in the bucket of the true one, or the next.
        assert 1 / 2.5 < drawn[len(drawn) // 2] / quantiles(truth, n=2)[0] < 2.5


def test_the_mean_is_the_engines() -> None:
    part = Histogram(edges=(50.0, 100.0, 200.0, math.inf), counts=(20.0, 70.0, 10.0, 0.0), total=7300.0)
    drawn, above = draw((part,), 73.0, 1000)
    assert (len(drawn), above, drawn) == (1000, 0, tuple(sorted(drawn)))
    assert fmean(drawn) == pytest.approx(73.0, abs=0.2)
    part = Histogram(edges=(100.0, math.inf), counts=(50.0, 50.0), total=None)
    drawn, above = draw((part,), None, 10)
    assert (above, drawn[-5:]) == (5, (100,) * 5)
    assert draw((), 12.4, 3) == ((12, 12, 12), 0)


def test_shared_prefix_from_hit_ratio() -> None:
    for name in ("prefix", "routing"):
        found = benchmark(read_recorded(name))
        seen = getattr(found.prefix_hit_ratio, "value", 0.0)
        assert found.shared_ratio == pytest.approx(seen, abs=0.02)
    found = benchmark(read_recorded("diurnal_quiet"))
    assert (found.shared_blocks, found.shared_ratio) == (0, 0.0), "nothing was hit"


def test_loads_span_half_to_twice() -> None:
    found = benchmark(seen_of(tier_view(), hours(24, rps=lambda number: 20.0 if number < 20 else 40.0)))
    rates = found.loads
    average, peak = (20 * 20 + 4 * 40) / 24 / 10, 40 / 10
    assert rates[0] == pytest.approx(average / 2, rel=0.01)
    assert rates[-1] == pytest.approx(2 * peak, rel=0.1)
    assert any(rate == pytest.approx(peak, rel=0.1) for rate in rates)
    assert all(later >= APART * earlier * 0.99 for earlier, later in pairwise(rates))
    assert fmean(found.prompts) / found.block_tokens <= 64
    assert found.block_tokens % 16 == 0


def test_unwatched_time_keeps_replicas() -> None:
    seen = read_recorded("prefix")
    gap = replace(seen.hours[0], start=seen.hours[0].start - 600, expected_seconds=seen.hours[0].expected_seconds + 600)
    holed = benchmark(replace(seen, hours=(gap, *seen.hours[1:])))
    assert holed.loads == benchmark(seen).loads


@pytest.mark.parametrize("top", [1.0, 0.1, 1.9, 9.0])
def test_the_highest_load_can_be_given(top: float) -> None:
    assert benchmark(read_recorded("prefix"), 10, top).loads[-1] == top


def test_nothing_is_made_up_where_nothing_arrived() -> None:
    found = (derive_benchmark(seen, 300) for seen in (seen_of(tier_view(), []), read_recorded("llamacpp")))
    assert set(found) == {"no arrivals were seen, or the engine counts no requests"}
    apart = seen_of(tier_view(pools=["prefill", "decode"]), hours(24))
    assert "prefill and decode are served apart" in str(derive_benchmark(apart, 300))


def test_lengths_without_buckets_are_means() -> None:
    seen = read_recorded("prefix")
    found = benchmark(replace(seen, lately=replace(seen.lately, histograms={})), 5)
    assert set(found.prompts) == {found.prompts[0]}
    assert found.prompts[0] == pytest.approx(676, rel=0.05)
    assert "prompts: only their mean is exposed; all have that length" in found.remarks
    nothing = replace(seen, lately=replace(seen.lately, histograms={}, counters={}))
    assert derive_benchmark(nothing, 5) == "the engine exposes no lengths of prompts"
