"""From page to page of an exporter: faults, throttling, refreshes, and numbers that no GPU reaches."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from unittest.mock import Mock

import pytest
from gpu_pages import DCGM_PAGE, T, page_text, read_page, readout

from agent.gpu.collector import GpuCollector
from rules.gpu_sources.amd import AMD
from rules.gpu_sources.dcgm import DCGM
from rules.gpu_sources.devices import MOST_CODES, PageChanges
from rules.gpu_sources.exporter import GpuExporter, GpuExporterPage, Ticks
from rules.telemetry import gpu_windows
from rules.telemetry.families import GPU_NAMES
from rules.telemetry.gpu_windows import drop_impossible
from rules.telemetry.signals import Gap, Missing
from rules.telemetry.snapshots import GpuReadout
from rules.telemetry.windows import Window

POWER, HEAT, SECONDS = "gpu_throttled_power_seconds", "gpu_throttled_thermal_seconds", "gpu_throttled_covered_seconds"


def page(t: float, codes: frozenset[str] | str | None = "", ticks: Ticks | None = None) -> GpuExporterPage:
    return GpuExporterPage(
        readouts=(readout("GPU-a", 0, t=t),),
        problems=(),
        faults={} if isinstance(codes, str) else {"GPU-a": codes},
        ticks={} if ticks is None else {"GPU-a": ticks},
    )


def counted(changes: PageChanges, shown: GpuExporterPage) -> Mapping[str, float]:
    (gpu,) = changes.apply_page(shown)
    return {name: value for name, value in gpu.counters.items() if name != "gpu_busy_seconds"}


def faults(changes: PageChanges, *pages: frozenset[str] | None) -> list[Mapping[str, float]]:
    return [counted(changes, page(T + 30 * n, codes)) for n, codes in enumerate(pages)]


XID_79, XID_48, NONE = frozenset({"xid-79"}), frozenset({"xid-48"}), frozenset[str]()


@pytest.mark.parametrize(
    ("codes", "events"),
    [
        ((XID_79, XID_79, XID_79), [0, 0, 0]),
        ((NONE, XID_79, XID_79, NONE, XID_79), [0, 1, 1, 1, 2]),
        ((XID_79, XID_48, XID_79 | XID_48), [0, 1, 2]),
        ((None, XID_79, None, XID_79, XID_48), [0, 1, 1, 1, 2]),
    ],
)
def test_new_and_repeated_codes_are_events(codes: tuple[frozenset[str] | None, ...], events: list[int]) -> None:
    found = faults(PageChanges(), *codes)
    assert [one["gpu_fault_events"] for one in found] == events
    assert sum(found[-1].values()) == 2 * events[-1], "each event has its code"


def test_untold_faults_are_remembered() -> None:
    changes = PageChanges()
    faults(changes, XID_79)
    assert counted(changes, page(T + 60)) == {}
    assert faults(changes, XID_79)[0]["gpu_fault_events"] == 0


def test_dcgm_code_becomes_a_window_event() -> None:
    def shown(t: float, xid: float) -> GpuExporterPage:
        return DCGM.read([("DCGM_FI_DEV_XID_ERRORS", {"UUID": "GPU-a", "gpu": "0"}, xid)], t)

    changes = PageChanges()
    told = [changes.apply_page(shown(T + 30 * n, xid))[0] for n, xid in enumerate((0, 0, 79, 79, 31))]
    windows = [gpu_windows.diff_readouts(a, b) for a, b in pairwise(told)]
    assert [w and w.counters["gpu_fault_events"] for w in windows] == [0, 1, 0, 1]
    assert windows[1].counters["gpu_fault_events_by_code/xid-79"] == 1


def ticks(total: float, power: float, heat: float = 0.0) -> Ticks:
    return Ticks(total=total, of={POWER: power, HEAT: heat})


def throttled(*shown: Ticks, every: float = 15.0) -> list[Mapping[str, float]]:
    changes = PageChanges()
    return [counted(changes, page(T + every * n, ticks=one)) for n, one in enumerate(shown)]


def test_ticks_become_seconds_by_share() -> None:
    found = throttled(ticks(1000, 100), ticks(2000, 350, 10), ticks(3000, 350, 1010))
    assert found[0] == {POWER: 0.0, HEAT: 0.0, SECONDS: 0.0}
    assert found[1] == {POWER: pytest.approx(15 * 0.25), HEAT: pytest.approx(15 * 0.01), SECONDS: 15.0}
    assert found[2] == {POWER: pytest.approx(15 * 0.25), HEAT: pytest.approx(15 * 1.01), SECONDS: 30.0}


@pytest.mark.parametrize(
    ("shown", "seconds", "power", "heat"),
    [
        # Throttling never exceeds its time.
        ([ticks(1000, 0), ticks(2000, 0, 2500)], [0, 15], 0.0, 15.0),
        # The exporter may answer twice from one reading of the GPU.
        ([ticks(1000, 0), ticks(1000, 0), ticks(3000, 1000)], [0, 0, 30], 15.0, 0.0),
        # Fallen ticks begin anew.
        ([ticks(1000, 100), ticks(2000, 600), ticks(50, 10), ticks(1050, 510)], [0, 15, 15, 30], 15.0, 0.0),
        ([ticks(1000, 100), ticks(2000, 50), ticks(3000, 1050)], [0, 0, 15], 15.0, 0.0),
    ],
)
def test_odd_ticks_add_no_time(shown: list[Ticks], seconds: list[float], power: float, heat: float) -> None:
    found = throttled(*shown)
    assert [one[SECONDS] for one in found] == seconds
    assert (found[-1][POWER], found[-1][HEAT]) == (pytest.approx(power), heat)


def test_amd_ticks_become_throttled_seconds() -> None:
    def shown(t: float, total: float, ppt: float) -> GpuReadout:
        labels = {"gpu_id": "0", "serial_number": "S1"}
        samples = [
            ("gpu_violation_current_accumulated_counter", labels, total),
            ("gpu_violation_ppt_residency_accumulated", labels, ppt),
        ]
        return changes.apply_page(AMD.read(samples, t))[0]

    changes = PageChanges()
    first, second = shown(T, 1e6, 5e4), shown(T + 60, 1.06e6, 8e4)
    window = gpu_windows.diff_readouts(first, second)
    assert window.counters[POWER] / window.counters[SECONDS] == pytest.approx(0.5)
    assert window.counters[SECONDS] == 60.0


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
    return later, gpu_windows.diff_readouts(earlier, later)


@pytest.mark.parametrize(
    ("series", "ours", "values", "near"),
    [
        ("DCGM_FI_DEV_GPU_UTIL", "gpu_utilization_sampled", ("102", "1e13", "-1e13"), 100),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "tensor_active", ("1.02", "1e13", "-1e13"), 1.0),
        ("DCGM_FI_DEV_FB_RESERVED", "gpu_memory_reserved_bytes", ("4194305", "1e13", "-1e13"), 4194303),
        ("DCGM_FI_DEV_FB_USED", "gpu_memory_used_bytes", ("1e13", "-1e13"), None),
        ("DCGM_FI_DEV_GPU_TEMP", "gpu_temperature_celsius", ("151", "1e13"), 149),
        ("DCGM_FI_DEV_GPU_TEMP", "gpu_temperature_celsius", ("-56", "-1e13"), -54),
        ("DCGM_FI_DEV_POWER_USAGE", "gpu_power_watts", ("5001", "1e13", "-1e13"), 4999),
        # A negative number stands for a blank in AMD's pages: it is not exposed, and no lie.
        ("amd_gpu_junction_temperature", "gpu_temperature_celsius", ("1e13",), None),
        ("amd_gpu_used_vram", "gpu_memory_used_bytes", ("1e13",), None),
    ],
)
def test_impossible_level_is_a_gap(series: str, ours: str, values: tuple[str, ...], near: float | None) -> None:
    exporter, page = (DCGM, DCGM_PAGE) if series.startswith("DCGM") else (AMD, AMD_PAGE)
    for value in values:
        later, window = window_of(exporter, changed(page, series, value))
        assert ours not in {**later.gauges, **window.gauges}
        assert window.gaps[ours] is Gap.IMPOSSIBLE
    if near is not None:
        later, window = window_of(exporter, changed(page, series, f"{near}"))
        assert ours in later.gauges
        assert ours in window.gauges


def test_impossible_memory_costs_both_gauges() -> None:
    used, total = "gpu_memory_used_bytes", "gpu_memory_total_bytes"
    gpu = replace(readout("GPU-0"), gauges={used: 81e9, total: 80e9})
    found = gpu_windows.diff_readouts(readout("GPU-0"), replace(drop_impossible(gpu), t=T + 15))
    assert found.gaps == dict.fromkeys(gpu.gauges, Gap.IMPOSSIBLE)
    assert gpu_windows.level_ratio(found, used, total) == Missing(gap=Gap.IMPOSSIBLE)
    whole = replace(readout("GPU-0"), gauges={used: 80e9, total: 80e9})
    assert drop_impossible(whole) is whole
    assert all(math.isfinite(row.most) for row in GPU_NAMES.values()), "every quantity has a limit"


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
    assert (gpu_windows.power(leap), gpu_windows.power(after).value) == (Missing(gap=Gap.NOT_EXPOSED), 400.0)
    assert "gpu_energy_covered_seconds" not in leap.counters
    assert leap.gaps["gpu_energy_joules"] is Gap.IMPOSSIBLE


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
        (gpu,) = changes.apply_page(page(T + 30 * n, frozenset({f"xid-{n}"})))
    assert len(gpu.counters) <= MOST_CODES + 3
    assert gpu.counters["gpu_fault_events"] == 3 * MOST_CODES - 1
    assert gpu.counters["gpu_fault_events_by_code/other"] == 3 * MOST_CODES - 1 - MOST_CODES


def test_collector_bounds_any_reader() -> None:
    liar = Mock(read=lambda now: ((replace(readout("GPU-0", t=now), gauges={"gpu_power_watts": 1e9}),), ()))
    collector = GpuCollector(liar)
    collector.read_gpus(T)
    found = collector.read_gpus(T + 15).windows["GPU-0"]
    assert collector.latest["GPU-0"].gauges == {}
    assert found.gaps["gpu_power_watts"] is Gap.IMPOSSIBLE
    assert gpu_windows.power(found) == Missing(gap=Gap.IMPOSSIBLE)
