"""How long a gauge holds between two scrapes, and what GPUs add to their replica's window."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from judging_samples import context
from making import START, bare_page, cumulative, snapshot

from rules.plan.load_bins import bin_window
from rules.telemetry import gpu_windows, windows
from rules.telemetry.gauges import IN_SYSTEM_BY_LITTLE, GaugeSum, interpolate
from rules.telemetry.histograms import Cumulative
from rules.telemetry.readings import read_all
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.snapshots import GpuReadout, Snapshot
from rules.telemetry.windows import Window

EDGES = (1.0, 10.0, 100.0, float("inf"))
IDLE = {"requests_running": 0.0, "requests_waiting": 0.0, "kv_utilization": 0.0, "kv_utilization_max": 0.0}


def page(t: float, steps: float, seconds: list[float], gauges: Mapping[str, float] | None = None) -> Snapshot:
    """A page `t` seconds after the first whose finished requests took these seconds."""
    e2e: Cumulative = cumulative(seconds, EDGES)
    counters = {"engine_steps": steps, "requests_finished": float(len(seconds))}
    return snapshot(START + t, counters=counters, histograms={"e2e_seconds": e2e}, gauges=gauges or {})


def between(dt: float, seconds: list[float], *ends: Mapping[str, float]) -> Window:
    before, after = ends or (IDLE, IDLE)
    return windows.diff_snapshots(page(0, 0, [], before), page(dt, 9, seconds, after))


@pytest.mark.parametrize("dt", [15.0, 60.0, 75.0])
def test_gauge_holds_between_usual_scrapes(dt: float) -> None:
    window = between(dt, [1.0], {**IDLE, "kv_utilization": 0.2}, {**IDLE, "kv_utilization": 0.4})
    assert window.gauges["kv_utilization"].integral == pytest.approx(0.3 * dt)
    assert IN_SYSTEM_BY_LITTLE not in window.gauges


IN_USE, ONE, FOUR = ({**IDLE, "requests_running": n} for n in (40.0, 1.0, 4.0))
KV_HALF = {**FOUR, "kv_utilization": 0.5}


@pytest.mark.parametrize(
    ("dt", "seconds", "ends", "family", "gap"),
    [
        (76.0, [1.0], IDLE, "kv_utilization", Gap.NOT_SCRAPED),
        (76.0, [1.0], {**IDLE, "engine_startup_seconds": 40.0}, "engine_startup_seconds", None),
        # A gauge holds as long as requests last, of which few long ones tell nothing.
        (100.0, [150.0, 150.0], KV_HALF, "kv_utilization", None),
        (120.0, [1.0] * 10 + [1000.0] * 2, FOUR, "kv_utilization", Gap.NOT_SCRAPED),
        # Whole times refute a gauge, but a burst between two scrapes does not.
        (30.0, [9.0] * 400, ONE, "requests_running", None),
        (60.0, [9.0] * 400, ONE, "requests_running", Gap.CONTRADICTORY),
        # 75 are there on average by whole times, 40 by the gauges; the front end may hold a fifth.
        (60.0, [9.0] * 500, IN_USE, "requests_running", None),
        (60.0, [9.0] * 1500, IN_USE, "requests_running", Gap.CONTRADICTORY),
    ],
)
def test_gauge_holds_while_requests_allow(
    dt: float, seconds: list[float], ends: Mapping[str, float], family: str, gap: Gap | None
) -> None:
    window = between(dt, seconds, ends, ends)
    assert (window.gaps.get(family), family in window.gauges) == (gap, gap is None)


def test_little_counts_load_after_gaps() -> None:
    window = between(100.0, [20.0] * 50)
    assert window.gauges.keys() == {IN_SYSTEM_BY_LITTLE}
    assert {window.gaps[family] for family in IDLE} == {Gap.NOT_SCRAPED}
    told = window.gauges[IN_SYSTEM_BY_LITTLE]
    assert told.integral / told.seconds == told.minimum == told.maximum == 10.0
    assert bin_window(window, None, "r").in_system == 10.0
    beyond = between(400.0, [200.0]).gauges[IN_SYSTEM_BY_LITTLE]
    assert beyond.minimum == beyond.maximum == 0.5, "beyond the edges the mean of an idle engine is exact"
    full = {**IDLE, "requests_running": 50.0}
    assert "requests_running" in between(60.0, [1.0], full, IDLE).gauges, "aborts refute no gauge"


def test_bounds_open_by_standing_requests() -> None:
    """Four were there and may have spent all of their time before; three are there and may have come at once."""
    told = between(100.0, [20.0] * 50, {"requests_running": 4.0}, {"requests_running": 2.0, "requests_waiting": 1.0})
    little = told.gauges[IN_SYSTEM_BY_LITTLE]
    assert (little.minimum, little.integral / 100, little.maximum) == (10.0 - 4 * 100 / 100, 10.0, 13.0)


@pytest.mark.parametrize("dt", [15.0, 60.0])
def test_idle_gauges_of_busy_time_are_refuted(dt: float) -> None:
    window = between(dt, [9.0] * 400)
    assert {window.gaps[family] for family in IDLE} == {Gap.CONTRADICTORY}
    assert window.gauges[IN_SYSTEM_BY_LITTLE].minimum == 9.0 * 400 / dt


def test_stepless_engine_is_believed_empty() -> None:
    idle = windows.diff_snapshots(page(0, 5, [], IDLE), page(250, 5, [], IDLE))
    assert idle.gauges["requests_running"].seconds == 250.0
    stale = windows.diff_snapshots(page(0, 5, []), page(250, 5, []))
    assert stale.gaps["requests_running"] is Gap.STALE


def test_countless_stepless_engine_keeps_gauges() -> None:
    """SGLang before it counted its passes: 1 running and a KV cache in use after the last request."""

    def sglang(t: float, tokens: int) -> Snapshot:
        gauges = {"requests_running": 1.0, "requests_waiting": 0.0, "kv_utilization": 0.2}
        itl = {"itl_seconds": cumulative([0.01] * tokens)}
        counters = {"requests_finished": 3.0}
        return bare_page(START + t, engine="sglang", generation="", counters=counters, histograms=itl, gauges=gauges)

    assert windows.diff_snapshots(sglang(0, 50), sglang(15, 60)).gauges["requests_running"].maximum == 1.0
    still = windows.diff_snapshots(sglang(0, 60), sglang(15, 60))
    assert (still.gaps["requests_running"], still.gaps["kv_utilization"]) == (Gap.STALE, Gap.STALE)
    assert still.gauges["requests_waiting"].maximum == 0.0


def test_briefly_known_gauge_is_no_mean() -> None:
    busy = between(100.0, [20.0] * 50)
    idle = windows.diff_snapshots(page(100, 9, [20.0] * 50, IDLE), page(102, 9, [20.0] * 50, IDLE))
    both = windows.sum_windows((busy, idle))
    assert (idle.gauge("kv_utilization") is None, both.gauge("kv_utilization")) == (False, None)
    assert bin_window(both, None, "r").in_system == pytest.approx(1000 / 102)
    untimed = [snapshot(START + t, counters={"engine_steps": t}, gauges=IDLE) for t in (0.0, 100.0, 102.0)]
    unknown = windows.sum_windows(windows.diff_snapshots(*pair) for pair in pairwise(untimed))
    assert bin_window(unknown, None, "r").in_system is None
    # A poorer window makes no gauge known.
    stepped = windows.diff_snapshots(page(100, 9, []), page(102, 19, []))
    stale = windows.diff_snapshots(page(102, 9, []), page(117, 9, []))
    assert stale.gaps["kv_utilization"] is Gap.STALE
    for several in ((busy, stepped), (busy, stepped, stale)):
        assert windows.sum_windows(several).gauge("kv_utilization") is None


def test_open_bounds_place_no_load() -> None:
    """200 are there at both pages, and five short ones finished: between none and 200 on average."""
    crowd = {**IDLE, "requests_running": 200.0}
    open_ended = bin_window(between(80.0, [10.0] * 5, crowd, crowd), context().curve, "r")
    assert (open_ended.in_system, open_ended.bin, open_ended.beyond) == (50 / 80, None, "")
    assert bin_window(between(80.0, [10.0] * 5), context().curve, "r").bin == 0


@pytest.mark.parametrize(
    ("before", "value", "seconds", "expected"),
    [
        *((0.643, 0.643, t, (0.643, 0.643, 0.643)) for t in (1713149715.4445245, 1764128001.7331, 49.000000001, 14.13)),
        (2.0, 6.0, 15.0, (4.0, 2.0, 6.0)),
        (6.0, 2.0, 15.0, (4.0, 2.0, 6.0)),
    ],
)
def test_mean_lies_within_its_ends(
    before: float, value: float, seconds: float, expected: tuple[float, float, float]
) -> None:
    one = interpolate(before, value, seconds)
    assert (one.mean, one.minimum, one.maximum) == expected


XID_79, AFID_23 = "gpu_fault_events_by_code/xid-79", "gpu_fault_events_by_code/afid-23"
ENERGY_SECONDS = "gpu_energy_covered_seconds"


def readout(seconds: float, **overrides: Any) -> GpuReadout:
    """What a GPU said so long after START: 400 W and busy half of the time since then."""
    whole = GpuReadout(
        t=START + seconds,
        gpu="GPU-0",
        index=0,
        product="NVIDIA H100 80GB HBM3",
        counters={
            "gpu_energy_joules": 1e6 + 400 * seconds,
            "gpu_energy_covered_seconds": seconds,
            "gpu_busy_seconds": seconds / 2,
            "gpu_busy_covered_seconds": seconds,
        },
        gauges={"gpu_temperature_celsius": 50.0},
        gaps={},
        sampled=frozenset(),
        pids=(),
    )
    return replace(whole, **overrides)


def since(earlier: GpuReadout, later: GpuReadout) -> Window:
    return gpu_windows.diff_readouts(earlier, later)


def test_gpu_counters_differ_and_gauges_hold() -> None:
    found = since(
        readout(0), readout(15, gauges={"gpu_temperature_celsius": 60.0}, sampled=frozenset({"gpu_busy_seconds"}))
    )
    assert found.counters == {
        "gpu_energy_joules": 6000,
        "gpu_energy_covered_seconds": 15,
        "gpu_busy_seconds": 7.5,
        "gpu_busy_covered_seconds": 15,
    }
    heat = GaugeSum(integral=900, seconds=15, minimum=60, maximum=60, samples=1)
    assert found.gauges == {"gpu_temperature_celsius": heat}
    zeros = dict.fromkeys(gpu_windows.COVERED[gpu_windows.THROTTLED_COVERED], 0.0)
    fell = since(readout(0, counters={**zeros, "gpu_throttled_thermal_seconds": 9.0}), readout(15, counters=zeros))
    assert gpu_windows.THROTTLED_COVERED not in fell.counters
    assert (found.start, found.end, found.gaps) == (START, START + 15, {})
    assert found.sampled == {"gpu_busy_seconds"}
    for seconds in (0.0, -5.0):
        assert gpu_windows.diff_readouts(readout(0), readout(seconds)) is None
    unsaid = since(readout(0), readout(15, gauges={}, gaps={"gpu_temperature_celsius": "not supported"}))
    assert read_all(unsaid)["gpu_temperature_celsius"] == Missing(gap=Gap.NOT_EXPOSED)


def test_gpu_window_covers_no_replica() -> None:
    found = since(readout(0), readout(15))
    assert (found.expected_seconds, found.covered_seconds) == (0, 0)
    engine = windows.diff_snapshots(snapshot(START), snapshot(START + 15))
    joined = replace(engine, counters={**found.counters, **engine.counters}, gauges={**found.gauges, **engine.gauges})
    assert windows.sum_windows([joined, joined]).coverage == 1.0
    assert read_all(joined)["gpu_power_watts"] == Reading(value=400.0, low=400.0, high=400.0, n=15)
    assert read_all(joined)["completed_rps"] == read_all(engine)["completed_rps"]


def test_covered_seconds_are_refreshes_or_given() -> None:
    """dcgm-exporter: refreshed every 30 s, and told once however often it is scraped."""
    pages = [readout(t, counters={"gpu_energy_joules": 1e6 + 400 * t}) for t in (0.0, 30.0, 60.0)]
    found = windows.sum_windows(since(*pair) for pair in pairwise(pages))
    assert found.counters["gpu_energy_covered_seconds"] == 60
    assert read_all(found)["gpu_power_watts"] == Reading(value=400.0, low=400.0, high=400.0, n=60)
    # The reader started its sums anew in between; energy without its seconds is no power.
    again = since(readout(0), readout(15, counters={"gpu_energy_joules": 1e6 + 6000, ENERGY_SECONDS: -1.0}))
    assert (again.counters, again.gaps[ENERGY_SECONDS]) == ({"gpu_energy_joules": 6000}, Gap.RESTARTED)
    assert isinstance(read_all(again)["gpu_power_watts"], Missing)


HEAT, COVERED, RATIO = "gpu_throttled_thermal_seconds", "gpu_throttled_covered_seconds", "gpu_throttled_ratio"


@pytest.mark.parametrize(
    ("before", "after", "counters"),
    [
        # Throttling is covered by refreshes, unless its seconds are given.
        ({HEAT: 0.0}, {HEAT: 7.5}, {HEAT: 7.5, COVERED: 30.0}),
        ({HEAT: 0.0, COVERED: 100.0}, {HEAT: 3.0, COVERED: 115.0}, {HEAT: 3.0, COVERED: 15.0}),
        # A counter that stands still increased by 0; one that fell or is new tells nothing.
        ({"gpu_energy_joules": 1e6}, {"gpu_energy_joules": 1e6}, {"gpu_energy_joules": 0.0, ENERGY_SECONDS: 30.0}),
        ({"gpu_energy_joules": 1e6}, {"gpu_energy_joules": 10.0}, {}),
        ({}, {"gpu_energy_joules": 1e6}, {}),
        # The first fault of a kind increases from zero, new counts of faults are no increase.
        (
            {"gpu_fault_events": 1, AFID_23: 1},
            {"gpu_fault_events": 4, AFID_23: 2, XID_79: 2},
            {"gpu_fault_events": 3, AFID_23: 1, XID_79: 2},
        ),
        ({}, {"gpu_fault_events": 4, XID_79: 4}, {}),
        ({"gpu_fault_events": 9, XID_79: 9}, {"gpu_fault_events": 2, AFID_23: 2}, {}),
    ],
)
def test_gpu_counters_increase(before: dict[str, float], after: dict[str, float], counters: dict[str, float]) -> None:
    found = since(readout(0, counters=before), readout(30, counters=after))
    assert found.counters == counters
    fallen = {
        name for name in ("gpu_energy_joules", "gpu_fault_events") if before.get(name, 0.0) > after.get(name, 0.0)
    }
    assert found.gaps == dict.fromkeys(fallen, Gap.RESTARTED)
    if HEAT in counters:
        assert read_all(found)[RATIO].value == counters[HEAT] / counters[COVERED]


@pytest.mark.parametrize(
    ("seconds", "gauges"),
    [
        (75, {"gpu_power_watts", "gpu_memory_used_bytes", "gpu_temperature_celsius"}),
        (76, {"gpu_memory_used_bytes", "gpu_temperature_celsius"}),
        (300, {"gpu_memory_used_bytes", "gpu_temperature_celsius"}),
        (3600, set()),
    ],
)
def test_silence_hides_levels_not_sums(seconds: float, gauges: set[str]) -> None:
    levels = {"gpu_power_watts": 300.0, "gpu_memory_used_bytes": 1e9, "gpu_temperature_celsius": 50.0}
    found = since(readout(0), readout(seconds, gauges=levels))
    assert found.gauges.keys() == gauges
    assert {found.explain_missing(name) for name in levels.keys() - gauges} <= {Gap.NOT_SCRAPED}
    assert {gauge.seconds for gauge in found.gauges.values()} <= {seconds}
    assert found.counters["gpu_energy_joules"] == 400 * seconds


def test_gpus_sum_to_replica_means() -> None:
    counters = {"gpu_energy_joules": 1e6 + 600 * 15, ENERGY_SECONDS: 15, HEAT: 6, COVERED: 15}
    levels = {"gpu_temperature_celsius": 80.0, "gpu_memory_used_bytes": 99e9, "gpu_memory_total_bytes": 100e9}
    hot = readout(15, gpu="GPU-1", counters=counters, gauges=levels, gaps={"gpu_busy_seconds": "-"})
    cool = replace(readout(0), counters=readout(0).counters | {HEAT: 0, COVERED: 0})
    roomy = {**readout(15).gauges, "gpu_memory_used_bytes": 50e9, "gpu_memory_total_bytes": 100e9}
    later = replace(readout(15), counters=readout(15).counters | {HEAT: 0, COVERED: 15}, gauges=roomy)
    both = gpu_windows.sum_gpus([since(cool, later), since(replace(cool, gpu="GPU-1"), hot)])
    assert (both.expected_seconds, both.covered_seconds) == (0, 0)
    readings = read_all(both)
    assert readings["gpu_power_watts"] == Reading(value=500.0, low=500.0, high=500.0, n=30)
    assert readings["gpu_temperature_celsius"] == Reading(value=65.0, low=50.0, high=80.0, n=2)
    assert readings["gpu_utilization"] == Reading(value=0.5, low=0.5, high=0.5, n=15)
    # One slow GPU holds up the other, a full one fails its requests.
    assert readings[RATIO] == Reading(value=0.4, low=0.4, high=0.4, n=30)
    assert readings["gpu_memory_utilization"].value == 0.99
    assert gpu_windows.sum_gpus([]) is None
