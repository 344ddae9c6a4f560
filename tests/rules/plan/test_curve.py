"""The measured curve of a replica, its operating point, and load bins: where a minute is placed, what a queue leaves outside."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from judging_samples import context, each, gauge, minute, minutes, seen
from making import plan_document
from paths import TESTS

from rules.plan import load_bins
from rules.plan.curve import IN_SYSTEM, RISING, Curve, interpolate, operating_point
from rules.plan.load_bins import BinnedWindow, bin_window
from rules.plan.load_bins import build_tier_context as view_of
from rules.plan.schema import Slo, TierPlan, parse_plan
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.windows import Window, sum_windows
from rules.telemetry.work import MeanTokens
from rules.verdicts.held_windows import hold

PLANS = TESTS / "plans"
SLO = Slo(ttft_p99_seconds=2.0, tpot_p99_seconds=0.15)


def tier_of(name: str) -> TierPlan:
    (tier,) = parse_plan(yaml.safe_load((PLANS / f"{name}.yaml").read_text(encoding="utf-8"))).tiers.values()
    return tier


def tier_with(points: list[dict[str, Any]], **parts: Any) -> TierPlan:
    return parse_plan(plan_document(**{"curve": {"points": points}, **parts})).tiers["t"]


def curve_of(tier: TierPlan) -> Curve:
    return Curve.from_plan(tier)


def curve_with(*points: dict[str, Any]) -> Curve:
    return curve_of(tier_with(list(points)))


def highest(curve: Curve) -> float | None:
    return curve.concurrencies[-1] if curve.concurrencies else None


CLOSED = curve_of(tier_of("cpu-small"))
OPEN = curve_of(tier_of("cpu-small-open"))
GUIDE = curve_of(tier_of("guide-h100"))

# A saturated stretch from 100 to 103 rps: only the requests in the system tell its three points apart.
SATURATED = curve_with(
    {"concurrency": 16, "completed_rps": 60, "requests": 900, "ttft_p99_seconds": 0.1},
    {"concurrency": 64, "completed_rps": 100, "requests": 800, "ttft_p99_seconds": 0.2},
    {"concurrency": 128, "completed_rps": 102, "requests": 700, "ttft_p99_seconds": 1.0},
    {"concurrency": 256, "completed_rps": 103, "requests": 600, "ttft_p99_seconds": 4.0},
)

MET = curve_with(
    {"concurrency": 48, "completed_rps": 12, "ttft_p99_seconds": 2.0},
    {"concurrency": 64, "completed_rps": 14, "ttft_p99_seconds": 5.0},
)
THREE = {"completed_rps": 3, "ttft_p99_seconds": 1}
WITH_ITL, WITH_TPOT = (
    Slo(ttft_p99_seconds=2.0, **more) for more in ({"itl_p99_seconds": 0.1}, {"tpot_p99_seconds": 0.1})
)


@pytest.mark.parametrize(
    ("curve", "slo", "c_max", "usable_rps", "limited_by", "knee"),
    [
        # TTFT P99 is 0.9666 s at 16 and 2.108 s at 32: ln(2 / 0.9666) / ln(2.108 / 0.9666) = 0.72712 / 0.77973 = 0.93253.
        # C_max 16 + 0.93253 x 16; rps 6.346 + 0.93253 x (7.413 - 6.346). TPOT ends at 0.07935, below 0.15.
        (CLOSED, SLO, 30.921, 7.3410, "ttft_p99_seconds", True),
        # TPOT P99 passes 0.03 s between 8 (enveloped: 0.026) and 16 (0.04228): ln(0.03 / 0.026) / ln(0.04228 / 0.026)
        # = 0.14310 / 0.48621 = 0.29432.
        (CLOSED, Slo(ttft_p99_seconds=2.0, tpot_p99_seconds=0.03), 8 + 0.29432 * 8, ..., "tpot_p99_seconds", True),
        (OPEN, SLO, 5.055, 7.886, None, False),
        # An objective limits where it was measured; no ITL is known, a TPOT must be.
        (CLOSED, WITH_ITL, ..., ..., "itl_p99_seconds", True),
        (curve_with(THREE), WITH_ITL, ..., 3, None, False),
        (curve_with(THREE, {"completed_rps": 5}), Slo(ttft_p99_seconds=2.0), ..., 3, None, False),
        # An objective that is met exactly ends there.
        (MET, Slo(ttft_p99_seconds=2.0), 48, 12, "ttft_p99_seconds", True),
    ],
)
def test_slo_ends_the_curve(
    curve: Curve, slo: Slo, c_max: Any, usable_rps: Any, limited_by: str | None, knee: bool
) -> None:
    point = curve.usable(slo)
    assert c_max is ... or point.c_max == pytest.approx(c_max, abs=0.001)
    assert usable_rps is ... or point.usable_rps == pytest.approx(usable_rps, abs=0.0001)
    assert (point.limited_by, point.knee_reached) == (limited_by, knee)
    assert curve_with(THREE).usable(WITH_TPOT) is None


def test_censored_points_show_the_knee_only() -> None:
    slow = {"completed_rps": 6, "requested_rps": 9, "ttft_p99_seconds": 30, "censored": True}
    curve = curve_with({"completed_rps": 5, "requested_rps": 5, "ttft_p99_seconds": 1}, slow)
    point = curve.usable(Slo(ttft_p99_seconds=2.0))
    assert (point.usable_rps, point.limited_by, point.knee_reached) == (5, "ttft_p99_seconds", True)
    assert curve.top_rps == 5
    assert curve.place(5.9, None)[1]
    assert Curve.from_plan(tier_with([{"completed_rps": 5, "ttft_p99_seconds": 1, "censored": True}])) is None


def test_derived_point_beats_given_one() -> None:
    given = {"c_max": 60, "usable_rps": 20}
    points = [{"completed_rps": 3, "ttft_p99_seconds": 1}, {"completed_rps": 4, "ttft_p99_seconds": 4}]
    derived = operating_point(tier_with(points, operating_point=given))
    assert derived.usable_rps == pytest.approx(3.5)
    alone = operating_point(tier_with(points, operating_point=given, curve=None))
    assert (alone.c_max, alone.usable_rps) == (60, 20)
    assert operating_point(tier_with(points, curve=None)) is None


def test_falling_throughput_keeps_load_order() -> None:
    curve = curve_with(
        {"concurrency": 128, "completed_rps": 60, "ttft_p99_seconds": 9},
        {"concurrency": 64, "completed_rps": 68, "ttft_p99_seconds": 2},
    )
    assert [point.concurrency for point in curve.points] == [64, 128]
    assert [point.completed_rps for point in curve.points] == [68, 68]
    # Measured TTFT P99 of the open sweep falls from 0.2718 to 0.1771 and 0.0965 s at its two highest loads.
    assert [point.ttft_p99_seconds for point in OPEN.points] == [0.1066, 0.1314, 0.2344, 0.2718, 0.2718, 0.2718]


def test_little_stands_for_missing_concurrencies() -> None:
    # An imported curve has completed rps x mean latency, and says so. It is no load that the generator held.
    assert (OPEN.concurrency_given, OPEN.is_littles_law, highest(OPEN)) == (False, True, 5.055)
    # 355.8 / 7.886 = 45.118 tokens; 0.04744 + 0.01262 x 44.118 = 0.60421 s in the system; x 7.886 = 4.7648.
    written = tier_of("cpu-small-open").curve
    bare = [point.model_dump(exclude={"concurrency"}) for point in written.points]
    by_medians = curve_with(*bare)
    assert (by_medians.concurrency_given, by_medians.is_littles_law) == (False, False)
    assert highest(by_medians) == pytest.approx(4.7648, abs=0.0001)
    assert (point := by_medians.usable(SLO)) is not None
    assert point.c_max is None
    assert CLOSED.concurrency_given
    assert highest(CLOSED) == 32


def test_planned_outputs_serve_the_estimate() -> None:
    points = [{"completed_rps": 3, "ttft_p50_seconds": 1, "tpot_p50_seconds": 0.01}]
    curve = curve_of(tier_with(points, workload={"generation_tokens": {"p50": 101}}))
    assert highest(curve) == pytest.approx(3 * (1 + 0.01 * 100))
    assert highest(curve_with(*points)) is None


@pytest.mark.parametrize(
    ("rps", "in_system", "bin"),
    [(0, 0, 0), (1.365, 1, 0), (1.5, 2, 1), (3.0, 2.5, 2), (5.842, 8, 3), (6.3, 14, 4), (7.5, 30, 5)],
)
def test_load_lies_in_its_bin(rps: float, in_system: float, bin: int) -> None:
    assert CLOSED.place(rps, in_system) == (bin, "")


@pytest.mark.parametrize(
    ("rps", "in_system", "bin"),
    [(101.5, 60, 1), (101.5, 100, 2), (101.5, 200, 3), (99, 100, 2), (104, 256, 3), (80, 100, 1), (101.5, None, 2)],
)
def test_saturated_bins_use_requests_in_system(rps: float, in_system: float | None, bin: int) -> None:
    assert SATURATED.place(rps, in_system)[0] == bin
    blind, placed = (SATURATED.expectation(2, "ttft_p99_seconds", 101, in_system=number) for number in (None, 96))
    assert (blind.value, placed.value) == (1.0, pytest.approx(math.sqrt(0.2 * 1.0)))


@pytest.mark.parametrize(
    ("curve", "rps", "in_system", "reason"),
    [
        (CLOSED, 7.6, 10, "7.6 completed rps is above 7.413, the highest load the benchmark vouches for"),
        (CLOSED, 2.0, 33, "33 requests in the system are more than the benchmark's highest, 32"),
        (
            OPEN,
            7.5,
            9,
            "9 requests in the system are more than the benchmark's highest, 5.055 (estimated by Little's law)",
        ),
        # An estimate counts near the top alone.
        (OPEN, 6.0, 9, ""),
        (OPEN, 7.9, 4, ""),
    ],
)
def test_a_load_beyond_the_benchmark_says_why(curve: Curve, rps: float, in_system: float, reason: str) -> None:
    assert curve.place(rps, in_system)[1] == reason
    assert (curve.place(rps, in_system)[0] is None) is bool(reason)


def test_expectation_uses_smaller_evidence() -> None:
    expected = GUIDE.expectation(4, "ttft_p99_seconds", 12)
    assert (expected.low, expected.value, expected.high) == (1.0, pytest.approx(2.0), 4.0)
    assert expected.requests == 6000
    assert GUIDE.expectation(4, "gpu_utilization", 12).value == pytest.approx(0.805)
    # The first point is expected below it, what was not measured nowhere.
    first = CLOSED.expectation(0, "ttft_p99_seconds", 0.1)
    assert (first.low, first.value, first.high) == (0.093, 0.093, 0.093)
    assert CLOSED.expectation(2, "gpu_utilization", 3) is None
    assert curve_with({"completed_rps": 60, "requests": 900, "ttft_p99_seconds": 0.1}).expect_time(0, 60) is None


@pytest.mark.parametrize(
    ("bin", "rps", "seconds"), [(0, 10, 16 / 60), (1, 60, 16 / 60), (1, 80, math.sqrt(16 / 60 * 0.64)), (1, 100, 0.64)]
)
def test_time_follows_from_littles_law(bin: int, rps: float, seconds: float) -> None:
    expected = SATURATED.expect_time(bin, rps)
    assert expected.value == pytest.approx(seconds)
    assert (expected.low, expected.high) == (16 / 60, 0.64 if bin else 16 / 60)
    assert expected.requests == (800 if bin else 900)


def test_curve_value_and_thinnest_evidence() -> None:
    point = GUIDE.usable(tier_of("guide-h100").slo)
    assert GUIDE.value_at("output_tokens_per_second", point) == pytest.approx(2760)
    assert CLOSED.minimum_requests == 16
    assert curve_with({"completed_rps": 3, "ttft_p99_seconds": 1}).minimum_requests == 0


RPS = st.floats(0.1, 200)
SECONDS = st.floats(0.001, 50)
POINTS = st.lists(
    st.fixed_dictionaries(
        {"completed_rps": RPS, "requests": st.integers(1, 5000), "ttft_p99_seconds": SECONDS},
        optional={"gpu_utilization": st.floats(0, 1), "prefix_hit_ratio": st.floats(0, 1)},
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda point: point["completed_rps"],
)
WITH_CONCURRENCY = st.builds(
    lambda points, loads: [{**point, "concurrency": load} for point, load in zip(points, loads, strict=False)],
    POINTS,
    st.lists(st.integers(1, 500), min_size=8, max_size=8, unique=True),
)
ANY_POINTS = POINTS | WITH_CONCURRENCY


@settings(max_examples=100, deadline=None)
@given(points=ANY_POINTS)
def test_envelope_never_promises_more(points: list[dict[str, Any]]) -> None:
    curve = curve_with(*points)
    for before, after in pairwise(curve.points):
        assert before.completed_rps <= after.completed_rps
        for name in RISING:
            low, high = getattr(before, name), getattr(after, name)
            assert low is None or high is None or low <= high
    assert curve.points[-1].ttft_p99_seconds == max(point["ttft_p99_seconds"] for point in points)


@settings(max_examples=150, deadline=None)
@given(points=POINTS, loads=st.tuples(RPS, RPS))
def test_more_load_never_expects_less_latency(points: list[dict[str, Any]], loads: tuple[float, float]) -> None:
    curve = curve_with(*points)
    found = []
    for rps in sorted(loads):
        bin, _ = curve.place(rps, None)
        assume(bin is not None)
        expected = curve.expectation(bin, "ttft_p99_seconds", rps)
        assert expected.low <= expected.value <= expected.high
        found.append(expected)
    assert found[0].value <= found[1].value
    assert found[0].high <= found[1].high


@settings(max_examples=100, deadline=None)
@given(points=ANY_POINTS, rps=st.floats(0, 300), in_system=st.none() | st.floats(0, 600))
def test_every_load_is_placed_once(points: list[dict[str, Any]], rps: float, in_system: float | None) -> None:
    curve = curve_with(*points)
    bin, beyond = curve.place(rps, in_system)
    assert bool(beyond) == (bin is None)
    if bin is not None:
        assert 0 <= bin < len(curve.points)
        assert rps <= curve.top_rps * 1.02


@settings(max_examples=100, deadline=None)
@given(points=ANY_POINTS, limit=SECONDS)
def test_operating_point_is_last_within_slo(points: list[dict[str, Any]], limit: float) -> None:
    curve = curve_with(*points)
    point = curve.usable(Slo(ttft_p99_seconds=limit))
    values = [point.ttft_p99_seconds or 0 for point in curve.points]
    if point is None:
        assert values[0] > limit
        return
    kept = [at.completed_rps for at, value in zip(curve.points, values, strict=True) if value <= limit]
    broken = [at.completed_rps for at, value in zip(curve.points, values, strict=True) if value > limit]
    assert kept[-1] <= point.usable_rps
    assert point.usable_rps <= (broken[0] if broken else kept[-1])
    assert point.knee_reached == bool(broken)


@given(ends=st.tuples(SECONDS, SECONDS), share=st.floats(0, 1), log=st.booleans())
def test_interpolation_stays_between_its_ends(ends: tuple[float, float], share: float, log: bool) -> None:
    assert min(ends) <= interpolate(*ends, share, log=log) <= max(ends)


def test_reading_lies_between_points_or_gaps() -> None:
    curve = curve_with(
        {"concurrency": 4, "completed_rps": 4, "requests": 900, "ttft_p99_seconds": 0.1},
        {"concurrency": 8, "completed_rps": 6, "requests": 800, "ttft_p99_seconds": 0.2},
    )
    assert curve.read(IN_SYSTEM, 5.0) == Reading(value=6.0, low=4, high=8, n=800)
    assert curve.read("ttft_p99_seconds", 1.0) == Reading(value=0.1, low=0.0, high=0.1, n=900)
    gaps = [curve.read(name, rps) for name, rps in (("ttft_p99_seconds", 8.2), ("kv_utilization", 5.0))]
    assert [one.gap for one in gaps if isinstance(one, Missing)] == [Gap.OUTSIDE_BENCHMARK, Gap.NOT_IN_PLAN]


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
