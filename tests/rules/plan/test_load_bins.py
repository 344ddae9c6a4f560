"""Load bins of minutes: where a minute is placed, and what a queue leaves outside."""

from dataclasses import replace

import pytest
from judging_samples import context, each, gauge, minute, minutes, seen

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


CALM, OVER = queue(0, 0.2, 1, 0), queue(1, 4, 7, 20)
LEFT = "{} requests that an overload had left waiting were worked off"
HELD = replace(OVER, gauges={**OVER.gauges, "requests_waiting_capacity": gauge(0)})
BEYOND = minute(0, rps=7.0, gauges={"requests_waiting": gauge(2.0, high=5)}, in_system=3)
WORKED_OFF = [CALM, OVER, queue(2, 3, 7, -5, begun=4), queue(3, 1, 3, -3)]
# It stays at three to five, as many begin as arrive: after the overload's leftover the minutes count again.
STEADY = [CALM, queue(1, 4, 5, 5), *(queue(n, 4, 5, 0) for n in range(2, 8))]


@pytest.mark.parametrize(
    ("windows", "bins", "outside"),
    [
        ([minute(0), minute(1, change=30)], [1, 1], ""),
        ([CALM, queue(1, 3, 6, 9)], [0, None], "69 requests arrived, 60 finished, and the queue grew to 6"),
        ([CALM, queue(1, 3, 6, 2.9)], [0, 0], ""),
        ([CALM, queue(1, 3, 6, 3.0)], [0, None], "63 requests arrived, 60 finished, and the queue grew to 6"),
        ([queue(0, 0.0, 0, 0), queue(1, 0.9, 6, 9)], [0], ""),
        ([queue(0, 3.0, 6, 0), queue(1, 3.0, 6, 9)], [0], ""),
        (
            [CALM, queue(1, 3, 6, 20), queue(2, 5, 6, -1)],
            [0, None, None],
            "139 requests arrived, 120 finished, and the queue grew to 6",
        ),
        (WORKED_OFF[:3], [0, None, None], LEFT.format(7)),
        (WORKED_OFF, [0, None, None, None], LEFT.format(3)),
        ([*WORKED_OFF, minute(4)], [0, None, None, None, 1], ""),
        ([CALM, OVER, queue(2, 0, 0, -7, begun=1)], [0], ""),
        (STEADY, [0, None, None, 0, 0, 0, 0, 0], ""),
        ([BEYOND, queue(1, 2, 5, -4)], [None], LEFT.format(5)),
        # After a gap the old queue is forgotten; requests that are held back are no queue, nor is an untold one.
        ([CALM, OVER, queue(3.6, 3, 7, -5)], [0], ""),
        ([CALM, HELD], [0, 0], ""),
        ([CALM, replace(OVER, gauges={})], [0, 0], ""),
    ],
)
def test_queue_decides_the_bin(windows: list[Window], bins: list[int | None], outside: str) -> None:
    binned = placed(*windows)
    assert [one.bin for one in binned][-len(bins) :] == bins
    assert binned[-1].outside == outside


def test_queue_leaves_its_longest_behind() -> None:
    assert placed(CALM, queue(1, 3, 6, 9))[-1].leftover == 6
    assert [one.leftover for one in placed(*WORKED_OFF)][2:] == [3, 0]
    both = minutes(context(), {"a": [CALM, OVER], "b": [minute(0), queue(1.5, 2, 3, 0)]})
    assert {s.replica: s.bin for s in both.binned[-2:]} == {"a": None, "b": 0}, "each replica has its own backlog"


def test_briefly_known_queue_is_no_mean() -> None:
    known = queue(0, mean=3.0, most=5, change=0.0)
    unseen = replace(known, gauges={})
    assert load_bins.mean_waiting(placed(known, queue(1, mean=5.0, most=5, change=0.0))) == 4.0
    assert load_bins.mean_waiting((*placed(known), *placed(unseen))) == 3.0
    assert load_bins.mean_waiting((*placed(known), *placed(unseen), *placed(unseen))) is None


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


TWO = sum_windows([minute(0, rps=3.0, in_system=2.0), minute(0, rps=5.0, in_system=6.0)])


@pytest.mark.parametrize(
    ("window", "load", "beyond"),
    [
        (minute(0, rps=3.0, in_system=2.5, waiting=0.5), (3.0, 2.5, 1), ""),
        (minute(0, rps=3.0, covered_seconds=30.0), (6.0, 3.0, 2), ""),
        (TWO, (4.0, 4.0, 1), ""),
        (replace(minute(0), gauges={"requests_running": gauge(3)}), (3.0, None, 1), ""),
        (replace(minute(0), counters={}), (None, 3.0, None), ""),
        (
            minute(0, rps=7.0),
            (7.0, 7.0, None),
            "7 completed rps is above 6, the highest load the benchmark vouches for",
        ),
    ],
)
def test_load_is_rate_and_system_requests(
    window: Window, load: tuple[float | None, float | None, int | None], beyond: str
) -> None:
    one = bin_window(window, context().curve, "a")
    assert (one.rps, one.in_system, one.bin) == load
    assert one.outside == one.beyond == beyond


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


def test_bin_is_kept_or_needs_its_curve() -> None:
    one = bin_window(minute(0, rps=7.0), context().curve, None, bin=2)
    assert (one.bin, one.beyond, one.rps) == (2, "", 7.0)
    assert hold([bin_window(minute(0), context().curve, None, bin=3)]).by_load_bin(context().curve) == {}
    bare = view_of("t", None)
    assert (bare.plan, bare.curve, bare.basis.ttft_slo_seconds) == (None, None, None)
    backlog = minutes(bare, {"a": [CALM, OVER]}).binned[-1]
    assert (backlog.bin, backlog.outside) == (None, "")


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


def test_polled_slice_marks_the_bin() -> None:
    made = each(2, lambda n: minute(n, sampled=frozenset({"gpu_power_watts"}) if n else frozenset()))
    (one,) = hold(minutes(context(), {"a": made}).binned).by_load_bin(context().curve).values()
    assert one.gauge("gpu_power_watts")[2]
    assert not one.gauge("gpu_busy_seconds")[2]
