"""Numbers that no GPU reaches: a gap named `impossible`, never a reading, from every exporter and from NVML."""

import math
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from gpu_page import DCGM_PAGE
from gpu_pages import page_text, read_page
from gpu_samples import T, readout

from agent.gpu.collector import GpuCollector
from rules.gpu_sources.amd import AMD
from rules.gpu_sources.dcgm import DCGM
from rules.gpu_sources.devices import MOST_CODES, PageChanges
from rules.gpu_sources.exporter import GpuExporter, GpuExporterPage
from rules.telemetry import gpu_windows
from rules.telemetry.families import GPU_NAMES
from rules.telemetry.gpu_limits import drop_impossible
from rules.telemetry.signals import Gap, Missing
from rules.telemetry.snapshots import GpuReadout
from rules.telemetry.windows import Window

AMD_PAGE = page_text("made-amd-1.5-mi300x.prom")


def changed(text: str, name: str, value: str) -> str:
    """The page with another value of every series of this name."""
    found, count = re.subn(rf"(?m)^({name}(?:\{{.*\}})?) \S+$", rf"\1 {value}", text)
    assert count, f"{name} is not on the page"
    return found


def window_of(exporter: GpuExporter, text: str) -> tuple[GpuReadout, Window]:
    """The page's first readout, and its window after a page without the change."""
    before = {DCGM.name: DCGM_PAGE, AMD.name: AMD_PAGE}
    (earlier, *_), (later, *_) = (
        read_page(text_, exporter, t).readouts for text_, t in ((before[exporter.name], T), (text, T + 30))
    )
    found = gpu_windows.diff_readouts(earlier, later)
    assert found is not None
    return later, found


@pytest.mark.parametrize(
    ("exporter", "page", "series", "ours"),
    [
        (DCGM, DCGM_PAGE, "DCGM_FI_DEV_GPU_UTIL", "gpu_utilization_sampled"),
        (DCGM, DCGM_PAGE, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "tensor_active"),
        (DCGM, DCGM_PAGE, "DCGM_FI_DEV_FB_RESERVED", "gpu_memory_reserved_bytes"),
        (DCGM, DCGM_PAGE, "DCGM_FI_DEV_FB_USED", "gpu_memory_used_bytes"),
        (DCGM, DCGM_PAGE, "DCGM_FI_DEV_GPU_TEMP", "gpu_temperature_celsius"),
        (DCGM, DCGM_PAGE, "DCGM_FI_DEV_POWER_USAGE", "gpu_power_watts"),
        (AMD, AMD_PAGE, "amd_gpu_junction_temperature", "gpu_temperature_celsius"),
        (AMD, AMD_PAGE, "amd_gpu_used_vram", "gpu_memory_used_bytes"),
    ],
)
def test_impossible_level_is_a_gap(exporter: GpuExporter, page: str, series: str, ours: str) -> None:
    # A negative number stands for a blank in AMD's pages: it is not exposed, and no lie.
    for value in ("1e13", "-1e13") if exporter is DCGM else ("1e13",):
        later, window = window_of(exporter, changed(page, series, value))
        assert ours not in later.gauges
        assert ours not in window.gauges
        assert window.gaps[ours] is Gap.IMPOSSIBLE


@pytest.mark.parametrize(
    ("series", "value", "ours"),
    [
        ("DCGM_FI_DEV_GPU_UTIL", "102", "gpu_utilization_sampled"),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "1.02", "tensor_active"),
        ("DCGM_FI_DEV_GPU_TEMP", "151", "gpu_temperature_celsius"),
        ("DCGM_FI_DEV_GPU_TEMP", "-56", "gpu_temperature_celsius"),
        ("DCGM_FI_DEV_POWER_USAGE", "5001", "gpu_power_watts"),
        ("DCGM_FI_DEV_FB_RESERVED", "4194305", "gpu_memory_reserved_bytes"),
    ],
)
def test_limit_is_possible_beyond_is_not(series: str, value: str, ours: str) -> None:
    _, window = window_of(DCGM, changed(DCGM_PAGE, series, value))
    assert window.gaps[ours] is Gap.IMPOSSIBLE
    near = float(value) - (0.02 if "." in value else 2) * (1 if float(value) > 0 else -1)
    later, window = window_of(DCGM, changed(DCGM_PAGE, series, f"{near}"))
    assert ours in later.gauges
    assert ours in window.gauges


def test_impossible_memory_costs_both_gauges() -> None:
    gpu = replace(readout("GPU-0"), gauges={"gpu_memory_used_bytes": 81e9, "gpu_memory_total_bytes": 80e9})
    found = gpu_windows.diff_readouts(readout("GPU-0"), replace(drop_impossible(gpu), t=T + 15))
    assert found.gaps == dict.fromkeys(gpu.gauges, Gap.IMPOSSIBLE)
    assert gpu_windows.level_ratio(found, "gpu_memory_used_bytes", "gpu_memory_total_bytes") == Missing(
        gap=Gap.IMPOSSIBLE
    )
    whole = replace(readout("GPU-0"), gauges={"gpu_memory_used_bytes": 80e9, "gpu_memory_total_bytes": 80e9})
    assert drop_impossible(whole) is whole


@pytest.mark.parametrize("name", [name for name, row in GPU_NAMES.items() if row.kind == "counter"])
def test_impossible_gpu_increase_is_not_booked(name: str) -> None:
    label = f"{name}/xid-1" if name.endswith("by_code") else name
    earlier = replace(readout("GPU-0"), counters={label: 0.0})
    most = GPU_NAMES[name].most * (15 + 60)
    for increase, booked in ((most, True), (most * 1.01, False)):
        found = gpu_windows.diff_readouts(earlier, replace(earlier, t=T + 15, counters={label: increase}))
        assert (label in found.counters) == booked
        assert (found.gaps.get(label) is Gap.IMPOSSIBLE) == (not booked)


def test_leaping_energy_gives_no_power() -> None:
    joules = [1e6, 1e6 + 9e9, 1e6 + 9e9 + 30 * 400]
    gpus = [replace(readout("GPU-0"), t=T + 30 * n, counters={"gpu_energy_joules": j}) for n, j in enumerate(joules)]
    leap, after = (gpu_windows.diff_readouts(*pair) for pair in pairwise(gpus))
    assert after is not None
    assert gpu_windows.power(leap) == Missing(gap=Gap.NOT_EXPOSED)
    assert "gpu_energy_covered_seconds" not in leap.counters
    assert leap.gaps["gpu_energy_joules"] is Gap.IMPOSSIBLE
    assert gpu_windows.power(after).value == 400.0  # type: ignore[union-attr]


@pytest.mark.parametrize("code", ["1e13", "10000", "79.5", "-3"])
def test_wrong_code_is_no_fault(code: str) -> None:
    page = read_page(changed(DCGM_PAGE, "DCGM_FI_DEV_XID_ERRORS", code), DCGM)
    assert page.faults == {}
    later, window = window_of(DCGM, changed(DCGM_PAGE, "DCGM_FI_DEV_XID_ERRORS", code))
    assert "is no code of a fault" in later.gaps["gpu_fault_events"]
    assert window.gaps["gpu_fault_events"] is Gap.IMPOSSIBLE


def test_endless_codes_are_bounded() -> None:
    changes = PageChanges()
    for n in range(3 * MOST_CODES):
        page = GpuExporterPage(
            readouts=(readout("GPU-a", t=T + 30 * n),), problems=(), faults={"GPU-a": frozenset({f"xid-{n}"})}, ticks={}
        )
        (gpu,) = changes.apply_page(page)
    assert len(gpu.counters) <= MOST_CODES + 3
    assert gpu.counters["gpu_fault_events"] == 3 * MOST_CODES - 1
    assert gpu.counters["gpu_fault_events_by_code/other"] == 3 * MOST_CODES - 1 - MOST_CODES


def test_collector_bounds_any_reader() -> None:
    class Liar:
        def read(self, now: float) -> tuple[tuple[GpuReadout, ...], tuple[str, ...]]:
            return (replace(readout("GPU-0", t=now), gauges={"gpu_power_watts": 1e9}),), ()

        def close(self) -> None:
            """Holds nothing."""

    collector = GpuCollector(Liar())
    collector.read_gpus(T)
    found = collector.read_gpus(T + 15).windows["GPU-0"]
    assert collector.latest["GPU-0"].gauges == {}
    assert found.gaps["gpu_power_watts"] is Gap.IMPOSSIBLE
    assert gpu_windows.power(found) == Missing(gap=Gap.IMPOSSIBLE)


def test_every_gpu_quantity_has_a_limit() -> None:
    assert all(math.isfinite(row.most) for row in GPU_NAMES.values())
