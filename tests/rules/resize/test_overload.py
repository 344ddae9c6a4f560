"""What an overload shows of a replica: a ceiling from above, in work of the capacity's own lengths."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judging_samples import gauge
from report_samples import HOUR, POINTS, USABLE, hour, tier_view

from rules.plan.load_bins import BinnedWindow, TierContext, bin_window
from rules.plan.replica_count import Margin, count_replicas
from rules.resize.measured_capacity import capacity_now
from rules.resize.overload import bound_by_lengths, bound_by_overload, is_saturated, lift_to_carried
from rules.telemetry.windows import Window
from rules.telemetry.work import Capacity, work_per_request

PLANNED = tier_view()
MARGIN = Margin(target_utilization=0.9, survives_loss_from=4)


def overloaded(
    rps: float,
    replica: str = "r0",
    prompts: float = 800.0,
    outputs: float = 80.0,
    waiting: float = 20.0,
    seconds: float = 900.0,
) -> BinnedWindow:
    """Some minutes of one replica that completes `rps` while requests wait."""
    window = cut(hour(0, rps, 1, ttft={9.0: 1.0}, prompts=prompts, outputs=outputs), seconds, waiting)
    placed = bin_window(window, PLANNED.curve, replica)
    return replace(placed, bin=None, beyond="its queue grew to 40")


def cut(window: Window, seconds: float, waiting: float = 0.0) -> Window:
    """The first seconds of an hour, with so many waiting requests."""
    share = seconds / HOUR
    levels = {"requests_waiting": gauge(waiting, seconds=seconds), "requests_running": gauge(30.0, seconds=seconds)}
    return replace(
        window,
        end=window.start + seconds,
        expected_seconds=seconds,
        covered_seconds=seconds,
        counters={name: value * share for name, value in window.counters.items()},
        gauges={**window.gauges, **levels},
    )


def served(rps: float, replica: str = "r0", seconds: float = 900.0) -> BinnedWindow:
    """Some minutes without a queue."""
    return bin_window(cut(hour(0, rps, 1), seconds), PLANNED.curve, replica)


def capacity_of(context: TierContext) -> Capacity:
    assert context.capacity is not None
    return context.capacity


PLAN = capacity_of(PLANNED)


def bound(quarters: list[BinnedWindow], **more: Any) -> Capacity:
    """The plan's capacity as these quarters bound it."""
    return bound_by_overload(PLAN, PLANNED, quarters, **more) or PLAN


def test_half_speed_lowers_capacity() -> None:
    found = bound([overloaded(USABLE / 2)])
    assert found.rps == pytest.approx(USABLE / 2)
    assert found.high is not None
    assert found.rps <= found.high < USABLE
    assert found.low <= found.rps
    assert "while requests waited a replica finished the work of 3.67 rps and no more" in found.reason


@pytest.mark.parametrize(
    ("prompts", "outputs", "rps"),
    [(3200.0, 320.0, USABLE / 4), (3200.0, 80.0, USABLE / 4), (800.0, 320.0, USABLE / 4), (800.0, 80.0, USABLE)],
)
def test_longer_requests_keep_capacity(prompts: float, outputs: float, rps: float) -> None:
    found = bound([overloaded(rps, prompts=prompts, outputs=outputs)])
    assert (found.rps, found.low, found.high) == (PLAN.rps, PLAN.low, PLAN.high)


def test_one_slow_replica_keeps_most_capacity() -> None:
    others = [served(5.0, f"r{place}") for place in range(1, 10)]
    found = bound([overloaded(USABLE / 2), *others])
    assert found.rps == pytest.approx(USABLE * 0.95)
    assert "10% of the replicas finished" in found.reason


def test_new_replicas_without_load_hide_no_overload() -> None:
    new = [served(0.5, f"n{place}") for place in range(4)]
    assert bound([overloaded(USABLE / 2), *new]).rps == pytest.approx(USABLE / 2)


def test_stalled_engine_is_floored() -> None:
    found = bound([overloaded(0.02)])
    assert found.rps == pytest.approx(USABLE / 5)
    assert "is the least that is taken" in found.reason


def test_what_production_carries_later_lifts_the_bound() -> None:
    half = bound([overloaded(USABLE / 2)])
    more = lift_to_carried(half, PLAN, [served(5.0), served(6.0)])
    assert more.rps == pytest.approx(6.0)
    assert "later a replica carried 6 rps without a queue" in more.reason
    assert lift_to_carried(half, PLAN, [served(30.0)]).rps == PLAN.rps
    assert lift_to_carried(half, PLAN, [served(2.0)]) is half


def test_renamed_replica_hides_no_overload() -> None:
    renamed = served(3.0, "r0-before", seconds=60.0)
    hour_before = served(5.0, "r9")
    earlier = replace(hour_before, window=replace(hour_before.window, start=hour_before.window.start - HOUR))
    found = bound([overloaded(USABLE / 2), renamed, earlier])
    assert found.rps == pytest.approx(USABLE / 2)


def test_limiting_tokens_count_while_overloaded() -> None:
    binned = [overloaded(USABLE / 4, prompts=3200.0)]
    assert bound(binned, is_present=True).lengths.only == "prompt_tokens"
    assert bound(binned).lengths == PLAN.lengths


@pytest.mark.parametrize(
    "binned",
    [
        overloaded(3.0, seconds=120.0),
        overloaded(3.0, waiting=0.4),
        replace(overloaded(3.0), beyond="", backlog="worked off"),
        served(3.0),
        overloaded(0.0),
        overloaded(5.0, waiting=9.0),
        replace(overloaded(3.0), replica=None),
    ],
    ids=[
        *("two minutes", "no queue", "a queue that is worked off", "no overload", "nothing finished"),
        *("a wait within the objective", "a sum of replicas"),
    ],
)
def test_no_overload_bounds_nothing(binned: BinnedWindow) -> None:
    assert bound([binned]) is PLAN


def test_overload_latencies_compare_no_load() -> None:
    """A week at 3 rps as planned, and a day in which 3 rps finished of 6 that arrived, with nine seconds to wait."""
    week = [bin_window(hour(number, 30.0), PLANNED.curve, "all") for number in range(160)]
    found = capacity_now(PLANNED, [[*week, overloaded(5.0, "all")]])
    calm = capacity_now(PLANNED, [week])
    assert calm.rps == pytest.approx(USABLE)
    assert found.rps == pytest.approx(5.0)
    assert "times as slow" not in found.reason
    below = capacity_now(PLANNED, [[*week, overloaded(2.0, "all")]])
    assert below.rps == pytest.approx(USABLE)


def test_overload_alone_breaks_no_slo() -> None:
    found = capacity_now(PLANNED, [[overloaded(5.0, "all")]])
    assert found.rps == pytest.approx(5.0)
    assert "no load of production kept the SLO" not in found.reason


@given(
    completed=st.floats(0.5, 12.0),
    more=st.floats(1.0, 8.0),
    prompts=st.floats(100.0, 6400.0),
    outputs=st.floats(10.0, 640.0),
)
def test_count_covers_what_arrives(completed: float, more: float, prompts: float, outputs: float) -> None:
    binned = overloaded(completed, prompts=prompts, outputs=outputs, waiting=2.5 * completed)
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
    capacity = capacity_of(context)
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
    assert bound_by_lengths(capacity_of(roomy), roomy, hour(0, 2.0, 1, prompts=900.0)).rps == capacity.rps


def test_shared_prefix_counts_once_in_cache() -> None:
    """Half of the prompts is cached: 5,000 tokens hold 5 requests of 800 + 200."""
    points = [{**point, "prompt_tokens_mean": 800} for point in POINTS]
    context = tier_view(curve={"points": points, "measured": {"kv_tokens": 5000}})
    window = hour(0, 2.0, 1, prompts=1600.0, outputs=400.0)
    computed = window.counters["prompt_tokens"] / 2
    shared = replace(window, counters={**window.counters, "prompt_tokens_computed": computed})
    found = bound_by_lengths(capacity_of(context), context, shared)
    assert "5 requests of 1,000 tokens fit into its KV cache" in found.reason


def test_a_few_requests_tell_no_lengths() -> None:
    few = cut(hour(0, 0.02, 1, prompts=9000.0, outputs=900.0), 900.0)
    assert bound_by_lengths(PLAN, PLANNED, few) is PLAN
    found = capacity_now(PLANNED, [[bin_window(few, PLANNED.curve, "all")]])
    assert found.rps == pytest.approx(USABLE)


def test_queue_makes_a_ceiling() -> None:
    assert is_saturated(overloaded(3.0), PLANNED)
    assert not is_saturated(served(3.0), PLANNED)
