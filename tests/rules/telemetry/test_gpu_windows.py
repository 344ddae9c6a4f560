"""What GPUs add to their replica's window: sums with their own seconds, levels counted once."""

from dataclasses import replace
from typing import Any

import pytest
from making import START, snapshot

from rules.telemetry import gpu_windows, windows
from rules.telemetry.gauges import GaugeSum
from rules.telemetry.readings import read_all
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.snapshots import GpuReadout
from rules.telemetry.windows import Window


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
    found = gpu_windows.diff_readouts(earlier, later)
    assert found is not None
    return found


def test_gpu_counters_differ_and_gauges_hold() -> None:
    found = since(readout(0), readout(15, gauges={"gpu_temperature_celsius": 60.0}))
    assert found.counters == {
        "gpu_energy_joules": 6000,
        "gpu_energy_covered_seconds": 15,
        "gpu_busy_seconds": 7.5,
        "gpu_busy_covered_seconds": 15,
    }
    assert found.gauges == {
        "gpu_temperature_celsius": GaugeSum(integral=900, seconds=15, minimum=60, maximum=60, samples=1)
    }
    assert (found.start, found.end, found.gaps) == (START, START + 15, {})


@pytest.mark.parametrize("seconds", [0.0, -5.0])
def test_readouts_need_time_between(seconds: float) -> None:
    assert gpu_windows.diff_readouts(readout(0), readout(seconds)) is None


def test_gpu_window_covers_no_replica() -> None:
    found = since(readout(0), readout(15))
    assert (found.expected_seconds, found.covered_seconds) == (0, 0)
    engine = windows.diff_snapshots(snapshot(START), snapshot(START + 15))
    joined = replace(engine, counters={**found.counters, **engine.counters}, gauges={**found.gauges, **engine.gauges})
    assert windows.sum_windows([joined, joined]).coverage == 1.0
    assert read_all(joined)["gpu_power_watts"] == Reading(value=400.0, low=400.0, high=400.0, n=15)
    assert read_all(joined)["completed_rps"] == read_all(engine)["completed_rps"]


def test_refreshes_cover_without_seconds() -> None:
    """dcgm-exporter: refreshed every 30 s, and told once however often it is scraped."""
    pages = [readout(t, counters={"gpu_energy_joules": 1e6 + 400 * t}) for t in (0.0, 30.0, 60.0)]
    found = windows.sum_windows([since(pages[0], pages[1]), since(pages[1], pages[2])])
    assert found.counters["gpu_energy_covered_seconds"] == 60
    assert read_all(found)["gpu_power_watts"] == Reading(value=400.0, low=400.0, high=400.0, n=60)


def test_given_covered_seconds_are_kept() -> None:
    """The reader started its sums anew in between; energy without its seconds is no power."""
    again = readout(15, counters={"gpu_energy_joules": 1e6 + 6000, "gpu_energy_covered_seconds": -1.0})
    found = since(readout(0), again)
    assert found.counters == {"gpu_energy_joules": 6000}
    assert found.gaps["gpu_energy_covered_seconds"] is Gap.RESTARTED
    assert isinstance(read_all(found)["gpu_power_watts"], Missing)


def test_throttling_is_covered_by_refreshes() -> None:
    pages = [readout(t, counters={"gpu_throttled_power_seconds": t / 4}) for t in (0.0, 30.0)]
    found = since(*pages)
    assert found.counters == {"gpu_throttled_power_seconds": 7.5, "gpu_throttled_covered_seconds": 30.0}
    thermal = [readout(t, counters={"gpu_throttled_thermal_seconds": t / 4}) for t in (0.0, 30.0)]
    assert read_all(since(*thermal))["gpu_throttled_ratio"] == Reading(value=0.25, low=0.25, high=0.25, n=30)


def test_throttling_keeps_given_seconds() -> None:
    def at(t: float, covered: float) -> GpuReadout:
        counters = {"gpu_throttled_thermal_seconds": t / 10, "gpu_throttled_covered_seconds": covered}
        return readout(t, counters=counters)

    found = since(at(0, 100), at(30, 115))
    assert found.counters == {"gpu_throttled_thermal_seconds": 3.0, "gpu_throttled_covered_seconds": 15.0}


XID_79, AFID_23 = "gpu_fault_events_by_code/xid-79", "gpu_fault_events_by_code/afid-23"


def test_first_fault_increases_from_zero() -> None:
    found = since(
        readout(0, counters={"gpu_fault_events": 1, AFID_23: 1}),
        readout(15, counters={"gpu_fault_events": 4, AFID_23: 2, XID_79: 2}),
    )
    assert found.counters == {"gpu_fault_events": 3, AFID_23: 1, XID_79: 2}
    assert found.gaps == {}


def test_new_fault_counts_are_no_increase() -> None:
    found = since(readout(0, counters={}), readout(15, counters={"gpu_fault_events": 4, XID_79: 4}))
    assert found.counters == {}
    found = since(
        readout(0, counters={"gpu_fault_events": 9, XID_79: 9}),
        readout(15, counters={"gpu_fault_events": 2, AFID_23: 2}),
    )
    assert found.counters == {}
    assert found.gaps == {"gpu_fault_events": Gap.RESTARTED}


def test_fallen_still_and_new_gpu_counters() -> None:
    found = since(readout(0), readout(15, counters={"gpu_energy_joules": 10.0}))
    assert found.counters == {}
    assert found.gaps == {"gpu_energy_joules": Gap.RESTARTED}
    found = since(readout(0), readout(15, counters=readout(0).counters))
    assert found.counters["gpu_energy_joules"] == 0
    found = since(readout(0, counters={}), readout(15))
    assert found.counters == {}


def test_unsaid_gpu_value_is_a_gap() -> None:
    found = since(readout(0), readout(15, gauges={}, gaps={"gpu_temperature_celsius": "not supported"}))
    assert found.explain_missing("gpu_temperature_celsius") is Gap.NOT_EXPOSED
    assert read_all(found)["gpu_temperature_celsius"] == Missing(gap=Gap.NOT_EXPOSED)


def test_silence_hides_levels_not_sums() -> None:
    assert since(readout(0), readout(300)).gauges["gpu_temperature_celsius"].seconds == 300
    found = since(readout(0), readout(3600))
    assert found.gauges == {}
    assert found.explain_missing("gpu_temperature_celsius") is Gap.NOT_SCRAPED
    assert found.counters["gpu_energy_joules"] == 400 * 3600


def test_load_gauges_hold_75_seconds() -> None:
    levels = {"gpu_power_watts": 300.0, "gpu_memory_used_bytes": 1e9}
    assert since(readout(0), readout(75, gauges=levels)).gauges.keys() == levels.keys()
    found = since(readout(0), readout(76, gauges=levels))
    assert found.gauges.keys() == {"gpu_memory_used_bytes"}
    assert found.explain_missing("gpu_power_watts") is Gap.NOT_SCRAPED


def test_what_was_only_polled_stays_marked() -> None:
    found = since(readout(0), readout(15, sampled=frozenset({"gpu_busy_seconds"})))
    assert found.sampled == {"gpu_busy_seconds"}


def test_gpus_sum_to_replica_means() -> None:
    cool = since(readout(0), readout(15))
    hot = since(
        readout(0, gpu="GPU-1"),
        readout(
            15,
            gpu="GPU-1",
            counters={"gpu_energy_joules": 1e6 + 600 * 15, "gpu_energy_covered_seconds": 15},
            gauges={"gpu_temperature_celsius": 80.0},
            gaps={"gpu_busy_seconds": "function not found"},
        ),
    )
    both = gpu_windows.sum_gpus([cool, hot])
    assert (both.expected_seconds, both.covered_seconds) == (0, 0)
    readings = read_all(both)
    assert readings["gpu_power_watts"] == Reading(value=500.0, low=500.0, high=500.0, n=30)
    assert readings["gpu_temperature_celsius"] == Reading(value=65.0, low=50.0, high=80.0, n=2)
    assert readings["gpu_utilization"] == Reading(value=0.5, low=0.5, high=0.5, n=15)
    assert gpu_windows.sum_gpus([]) is None
