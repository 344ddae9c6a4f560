from dataclasses import replace

import pytest
from judging_samples import context, each, gauge, minute, minutes

from rules.plan.load_bins import bin_window
from rules.plan.load_bins import build_tier_context as view_of
from rules.telemetry.windows import sum_windows
from rules.telemetry.work import MeanTokens
from rules.verdicts.held_windows import hold


def test_planless_tier_has_no_curve() -> None:
    bare = view_of("t", None)
    assert (bare.plan, bare.curve, bare.basis.ttft_slo_seconds) == (None, None, None)


def test_view_holds_facts_of_the_plan() -> None:
    basis = context(
        cost={"gpu_hour_price": 2.5, "currency": "USD"},
        gpu={"product": "A", "per_replica": 4},
        workload={"prompt_tokens": {"p50": 900}, "generation_tokens": {"p50": 180}},
        slo={"ttft_p99_seconds": 0.2, "tpot_p99_seconds": 0.3},
    ).basis
    assert (basis.gpus_per_replica, basis.gpu_hour_price) == (4, 2.5)
    assert (basis.ttft_slo_seconds, basis.tpot_slo_seconds) == (0.2, 0.3)
    assert basis.capacity.rps == pytest.approx(4.0)
    assert basis.capacity.lengths.prompt_tokens == MeanTokens(low=450, high=None)


def test_load_is_rate_and_system_requests() -> None:
    window = minute(0, rps=3.0, in_system=2.5, waiting=0.5)
    one = bin_window(window, context().curve, "a")
    assert (one.rps, one.in_system, one.bin, one.replica) == (3.0, 2.5, 1, "a")
    half = minute(0, rps=3.0, covered_seconds=30.0)
    assert bin_window(half, context().curve, "a").rps == 6.0


def test_replicas_share_load_and_gauges() -> None:
    two = sum_windows([minute(0, rps=3.0, in_system=2.0), minute(0, rps=5.0, in_system=6.0)])
    one = bin_window(two, context().curve, None)
    assert (one.rps, one.in_system) == (4.0, 4.0)
    one = bin_window(replace(minute(0), gauges={"requests_running": gauge(3)}), context().curve, "a")
    assert (one.in_system, one.bin) == (None, 1)


def test_uncounted_window_has_no_load() -> None:
    one = bin_window(replace(minute(0), counters={}), context().curve, "a")
    assert (one.rps, one.bin, one.beyond) == (None, None, "")


def test_load_above_benchmark_has_no_bin() -> None:
    one = bin_window(minute(0, rps=7.0), context().curve, "a")
    assert one.bin is None
    assert one.outside == one.beyond == "7 completed rps is above 6, the highest load the benchmark vouches for"


@pytest.mark.parametrize(("samples", "crowd", "beyond"), [(4.0, 9.0, True), (1.0, 9.0, False), (1.0, 20.0, True)])
def test_sampled_minute_exceeds_only_beyond_chance(samples: float, crowd: float, beyond: bool) -> None:
    """The curve ends at 8 in the system: 9 may be 9 - 3 by chance, where a minute has one sample of it."""
    crowded = minute(0, rps=5.5, in_system=crowd)
    made = {name: replace(one, samples=samples) for name, one in crowded.gauges.items()}
    assert bool(bin_window(replace(crowded, gauges=made), context().curve, "a").beyond) is beyond


def test_sampled_minutes_use_engine_gauges() -> None:
    """A GPU exporter that refreshes once a minute does not make of 15 s scrapes one a minute."""
    usual = minute(0)
    polled = replace(usual, gauges={**usual.gauges, "gpu_gr_engine_active": replace(gauge(0.5), samples=1)})
    once = replace(usual, gauges={name: replace(one, samples=1) for name, one in usual.gauges.items()})
    assert not hold([bin_window(polled, None, "a")]).is_scraped_by_the_minute
    assert hold([bin_window(once, None, "a")]).is_scraped_by_the_minute
    assert not hold([bin_window(once, None, "a")]).is_seldom_scraped
    assert hold([bin_window(minute(0, seconds=120.0, end=usual.start + 120.0), None, "a")]).is_seldom_scraped


def test_sum_of_one_bin_keeps_it() -> None:
    one = bin_window(minute(0, rps=7.0), context().curve, None, bin=2)
    assert (one.bin, one.beyond, one.rps) == (2, "", 7.0)


def test_bins_add_only_their_slices() -> None:
    made = [minute(0, rps=1.0), minute(1, rps=3.0), minute(2, rps=7.0), minute(3, rps=2.5, in_system=4.0)]
    found = hold(minutes(context(), {"a": made}).binned).by_load_bin(context().curve)
    assert sorted(found) == [0, 1]
    assert [len(found[bin].binned) for bin in (0, 1)] == [1, 2]
    assert found[1].rps == 2.75
    assert found[1].in_system == pytest.approx(3.5)
    assert found[1].counter("requests_finished") == 330
    assert sum(part.n for part in found[1].parts("ttft_seconds")) == 330
    assert found[1].gauge("requests_running") == (60 * (3.0 + 4.0), 120, False)
    assert found[1].gauge("gpu_sm_active") == (0, 0, False)


def test_other_curves_bins_are_left_out() -> None:
    one = bin_window(minute(0), context().curve, None, bin=3)
    assert hold([one]).by_load_bin(context().curve) == {}


def test_polled_slice_marks_the_bin() -> None:
    made = each(2, lambda n: minute(n, sampled=frozenset({"gpu_power_watts"}) if n else frozenset()))
    (one,) = hold(minutes(context(), {"a": made}).binned).by_load_bin(context().curve).values()
    assert one.gauge("gpu_power_watts")[2]
    assert not one.gauge("gpu_busy_seconds")[2]
