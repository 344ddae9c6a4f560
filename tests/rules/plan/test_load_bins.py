"""Load bins of minutes: where a minute is placed, and what a queue leaves outside."""

from dataclasses import replace

import pytest
import recorded
from evaluation_steps import EvaluationSteps
from judging_samples import context, each, gauge, minute, minutes, seen

from agent.config.files import load_plan
from agent.scrape.scrapers import PageReader
from agent.sources.recording import load, scrapes
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow, bin_window
from rules.plan.load_bins import build_tier_context as view_of
from rules.telemetry.windows import Window, sum_windows
from rules.telemetry.work import MeanTokens
from rules.verdicts.held_windows import hold


def placed(*windows: Window) -> tuple[BinnedWindow, ...]:
    return minutes(context(), {"a": windows}).binned


def queue(number: float, mean: float, most: float, change: float, rps: float = 1.0, begun: float = 60.0) -> Window:
    """A minute with this queue; fewer in the system than the benchmark's 8, so that the curve itself finds nothing."""
    gauges = {"requests_waiting": gauge(mean, high=most), "requests_running": gauge(0.0)}
    return minute(number, rps=rps, change=change, gauges=gauges, histograms={"ttft_seconds": seen({0.08: begun})})


def test_minute_without_queue_stays_in_place() -> None:
    first, second = placed(minute(0), minute(1, change=30))
    assert (first.bin, second.bin) == (1, 1)
    assert (second.outside, second.leftover) == ("", 0)


def test_growing_queue_is_load_beyond() -> None:
    _, growing = placed(queue(0, 0.2, 1, 0), queue(1, 3, 6, 9))
    assert growing.bin is None
    assert growing.beyond == "69 requests arrived, 60 finished, and the queue grew to 6"
    assert growing.leftover == 6
    assert placed(queue(0, 0.2, 1, 0), queue(1, 3, 6, 2.9))[-1].bin == 0
    assert placed(queue(0, 0.2, 1, 0), queue(1, 3, 6, 3.0))[-1].beyond
    assert placed(queue(0, 0.0, 0, 0), queue(1, 0.9, 6, 9))[-1].bin == 0
    assert placed(queue(0, 3.0, 6, 0), queue(1, 3.0, 6, 9))[-1].bin == 0


def test_levelled_queue_is_still_overload() -> None:
    binned = placed(queue(0, 0.2, 1, 0), queue(1, 3, 6, 20), queue(2, 5, 6, -1))
    assert binned[-1].beyond == "139 requests arrived, 120 finished, and the queue grew to 6"


def test_waiting_requests_are_worked_off_outside() -> None:
    binned = placed(queue(0, 0.2, 1, 0), queue(1, 4, 7, 20), queue(2, 3, 7, -5, begun=4), queue(3, 1, 3, -3), minute(4))
    assert [s.bin for s in binned] == [0, None, None, None, 1]
    assert binned[2].backlog == "7 requests that an overload had left waiting were worked off"
    assert binned[3].backlog == "3 requests that an overload had left waiting were worked off"
    assert [s.beyond for s in binned[2:]] == ["", "", ""]
    assert [s.outside != "" for s in binned] == [False, True, True, True, False]
    assert binned[3].leftover == 0
    assert placed(queue(0, 0.2, 1, 0), queue(1, 4, 7, 20), queue(2, 0, 0, -7, begun=1))[-1].bin == 0


def test_a_steady_queue_is_compared() -> None:
    # It stays at three to five, as many begin as arrive: after the overload's leftover the minutes count again.
    binned = placed(queue(0, 0.2, 1, 0), queue(1, 4, 5, 5), *(queue(n, 4, 5, 0) for n in range(2, 8)))
    assert [s.bin for s in binned] == [0, None, None, 0, 0, 0, 0, 0]


def test_load_beyond_leaves_its_queue_behind() -> None:
    over = minute(0, rps=7.0, gauges={"requests_waiting": gauge(2.0, high=5)}, in_system=3)
    after = placed(over, queue(1, 2, 5, -4))[-1]
    assert after.backlog.startswith("5 requests")


def test_briefly_known_queue_is_no_mean() -> None:
    known = queue(0, mean=3.0, most=5, change=0.0)
    unseen = replace(known, gauges={})
    assert load_bins.mean_waiting(placed(known, queue(1, mean=5.0, most=5, change=0.0))) == 4.0
    assert load_bins.mean_waiting((*placed(known), *placed(unseen))) == 3.0
    assert load_bins.mean_waiting((*placed(known), *placed(unseen), *placed(unseen))) is None


def test_each_replica_has_its_own_backlog() -> None:
    both = minutes(context(), {"a": [queue(0, 0.2, 1, 0), queue(1, 4, 7, 20)], "b": [minute(0), queue(1.5, 2, 3, 0)]})
    assert {s.replica: s.bin for s in both.binned[-2:]} == {"a": None, "b": 0}


def test_gap_forgets_the_old_queue() -> None:
    late = placed(queue(0, 0.2, 1, 0), queue(1, 4, 7, 20), queue(3.6, 3, 7, -5))[-1]
    assert late.bin == 0


def test_held_back_requests_are_no_queue() -> None:
    held = queue(1, 4, 7, 20)
    told = replace(held, gauges={**held.gauges, "requests_waiting_capacity": gauge(0)})
    assert placed(queue(0, 0.2, 1, 0), told)[-1].bin == 0


def test_backlog_needs_curve_and_queue_gauge() -> None:
    bare = minutes(view_of("t", None), {"a": [queue(0, 0.2, 1, 0), queue(1, 4, 7, 20)]}).binned[-1]
    assert (bare.bin, bare.outside) == (None, "")
    blind = replace(queue(1, 4, 7, 20), gauges={})
    assert placed(queue(0, 0.2, 1, 0), blind)[-1].bin == 0


def test_jammed_cascade_is_no_light_load() -> None:
    plan = load_plan(recorded.PLANS / "cpu-small-open.yaml")
    recording, _ = load(recorded.folder("kv_cascade"))
    watcher, reader = EvaluationSteps({"cpu-small": view_of("cpu-small", plan.tiers["cpu-small"])}), PageReader("vllm")
    for scrape in scrapes(recording, []):
        assert scrape.body is not None
        watcher.apply_snapshot("cpu-small", "r", reader.read(scrape.body, scrape.t))
    watcher.flush()
    # Minutes: light, filling, growing, growing with a burst, worked off, light again.
    assert [s.bin for s in watcher.minutes["cpu-small"].binned] == [0, 0, None, None, None, 0]
    assert [bool(s.beyond) for s in watcher.minutes["cpu-small"].binned] == [False, False, True, True, False, False]


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
