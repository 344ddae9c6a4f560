"""The parts of a what-if by numbers worked out by hand: pools around a load, the benchmark, the load that meets a limit."""

from __future__ import annotations

import math

import pytest
from judging_samples import gauge, seen
from report_samples import EDGES, USABLE, tier_view

from rules.plan.benchmark_reading import find_benchmark_crossing, read_benchmark
from rules.plan.load_bins import BinnedWindow, TierContext, bin_window, build_tier_context
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.windows import Window
from rules.what_if.limits import find_crossing
from rules.what_if.prediction import PredictionInputs, PredictionSource
from rules.what_if.production import ProductionLoads, collect_loads

PLANNED = tier_view()


def slice_at(
    rps: float, ttft: float, kv: float = 0.3, running: float = 2.0, tier: TierContext = PLANNED
) -> BinnedWindow:
    """A replica's 1000 seconds at a load, all requests as fast."""
    n = rps * 1000
    window = Window(
        start=0.0,
        end=1000.0,
        expected_seconds=1000.0,
        covered_seconds=1000.0,
        counters={"requests_finished": n, "in_system_change": 0.0},
        histograms={"ttft_seconds": seen({ttft: n}, EDGES)},
        gauges={
            "kv_utilization": gauge(kv, seconds=1000.0),
            "requests_running": gauge(running, seconds=1000.0),
            "requests_waiting": gauge(0.5, seconds=1000.0),
        },
    )
    return bin_window(window, tier.curve, "r")


def rising(tier: TierContext = PLANNED) -> ProductionLoads:
    """3000 and more requests at 3, 4 and 5 rps, in the buckets (0.1, 0.2], (0.2, 0.5] and (0.5, 1]."""
    return collect_loads([slice_at(5, 0.8, 0.5), slice_at(3, 0.15, 0.2), slice_at(4, 0.3, 0.3)], tier)


def test_a_load_between_two_is_bounded_by_both() -> None:
    value = rising().read_at("ttft_p99_seconds", 3.5)
    assert isinstance(value, Reading)
    assert (value.low, value.high, value.n) == (0.1, 0.5, 7000)


def test_a_load_that_was_served_itself_is_bounded_by_what_was_seen_there() -> None:
    value = rising().read_at("ttft_p99_seconds", 4.0)
    assert isinstance(value, Reading)
    assert (value.low, value.high) == (0.2, 0.5)


def test_above_the_highest_load_nothing_is_drawn_on_but_for_the_tolerance() -> None:
    known = rising()
    assert known.top_rps == 5.0
    assert isinstance(known.read_at("ttft_p99_seconds", 5.09), Reading)
    beyond = known.read_at("ttft_p99_seconds", 5.2)
    assert isinstance(beyond, Missing)
    assert (beyond.gap, beyond.text) == (
        Gap.LOAD_NOT_REACHED,
        "production ran at 5 rps a replica at most (with 300 requests there)",
    )


def test_below_the_lowest_load_it_is_no_slower_and_nobody_knows_how_much_quicker() -> None:
    value = rising().read_at("ttft_p99_seconds", 1.0)
    assert value == Reading(value=None, low=0.0, high=0.2, n=3000)


def test_latency_that_fell_with_load_widens_the_bounds_to_both() -> None:
    known = collect_loads([slice_at(3, 0.8), slice_at(4, 0.15)], PLANNED)
    value = known.read_at("ttft_p99_seconds", 3.5)
    assert isinstance(value, Reading)
    assert (value.low, value.high) == (0.1, 1.0)


def test_levels_are_means_with_those_below_and_above_as_bounds() -> None:
    kv, in_system = (rising().read_at(name, 3.5) for name in ("kv_utilization", "requests_in_system"))
    assert isinstance(kv, Reading)
    assert (kv.low, kv.high) == (pytest.approx(0.2), pytest.approx(0.3))
    assert kv.value == pytest.approx(math.sqrt(0.2 * 0.3))
    assert isinstance(in_system, Reading)
    assert in_system.value == pytest.approx(2.5)


def test_few_requests_leave_the_upper_end_open_and_too_few_are_none() -> None:
    tight = collect_loads([slice_at(0.4, 0.15), slice_at(0.5, 0.3)], PLANNED).read_at("ttft_p99_seconds", 0.45)
    assert isinstance(tight, Reading)
    assert tight.high is None
    few = collect_loads([slice_at(0.2, 0.15)], PLANNED).read_at("ttft_p99_seconds", 0.1)
    assert isinstance(few, Missing)
    assert few.text == "production served 200 requests; 300 are needed"


def test_what_was_served_in_overload_tells_no_load_and_is_counted() -> None:
    # 40 requests in the system are more than the benchmark's 30, at 4 completed rps of its 8.
    known = collect_loads([slice_at(4, 0.15), slice_at(4, 3.0, running=40.0)], PLANNED)
    assert known.overloaded == 4000
    value = known.read_at("ttft_p99_seconds", 4.0)
    assert isinstance(value, Reading)
    assert value.high == 0.2
    assert collect_loads([slice_at(4, 3.0, running=40.0)], build_tier_context("t", None)).overloaded == 0


def test_blocks_cover_the_range_with_enough_requests_each() -> None:
    known = rising()
    assert [one.rps for one in known.blocks] == [pytest.approx(3.0), pytest.approx(4.0), pytest.approx(5.0)]
    assert all(one.requests >= 3000 for one in known.blocks)


def test_the_benchmark_is_a_reading_between_its_points() -> None:
    value = read_benchmark(PLANNED, "requests_in_system", 5.0)
    assert value == Reading(value=6.0, low=4, high=8, n=3000.0)
    below = read_benchmark(PLANNED, "ttft_p99_seconds", 1.0)
    assert below == Reading(value=0.1, low=0.0, high=0.1, n=3000)
    beyond, lacking = read_benchmark(PLANNED, "ttft_p99_seconds", 8.2), read_benchmark(PLANNED, "kv_utilization", 5.0)
    assert isinstance(beyond, Missing)
    assert isinstance(lacking, Missing)
    assert (beyond.gap, lacking.gap) == (Gap.OUTSIDE_BENCHMARK, Gap.NOT_IN_PLAN)
    with pytest.raises(KeyError, match="nothing that is predicted"):
        read_benchmark(PLANNED, "gpu_power_watts", 1.0)


def test_where_the_benchmark_crosses_a_limit() -> None:
    assert find_benchmark_crossing(PLANNED, "ttft_p99_seconds", 2.0) == (pytest.approx(USABLE), True)
    assert find_benchmark_crossing(PLANNED, "ttft_p99_seconds", 0.05) == (0.0, True)
    assert find_benchmark_crossing(PLANNED, "tpot_p99_seconds", 0.08) == (8.0, False)
    assert isinstance(find_benchmark_crossing(PLANNED, "kv_utilization", 0.9), Missing)


def test_a_load_that_broke_a_limit_below_one_that_kept_it_was_broken_by_something_else() -> None:
    # 3 rps at 3 s, in a cascade; 4 rps kept 2 s. The benchmark crosses 2 s at 7.333.
    known = collect_loads([slice_at(3, 3.0), slice_at(4, 0.3)], PLANNED)
    found = find_crossing(PredictionInputs(context=PLANNED, served=known), "ttft_p99_seconds", 2.0)
    assert found.source is PredictionSource.BENCHMARK
    assert found.earliest == pytest.approx(USABLE)
