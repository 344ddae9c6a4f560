"""From page to page of an exporter: faults by change, throttling in ticks, refreshes."""

from collections.abc import Mapping
from itertools import pairwise

import pytest
from gpu_samples import T, readout

from rules.gpu_sources.amd import AMD
from rules.gpu_sources.dcgm import DCGM
from rules.gpu_sources.devices import PageChanges
from rules.gpu_sources.exporter import GpuExporterPage, Ticks
from rules.telemetry import gpu_windows
from rules.telemetry.snapshots import GpuReadout

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


XID_79, XID_48, BOTH, NONE = (
    frozenset({"xid-79"}),
    frozenset({"xid-48"}),
    frozenset({"xid-79", "xid-48"}),
    frozenset[str](),
)


@pytest.mark.parametrize(
    ("codes", "events"),
    [
        ((XID_79, XID_79, XID_79), [0, 0, 0]),
        ((NONE, XID_79, XID_79, NONE, XID_79), [0, 1, 1, 1, 2]),
        ((XID_79, XID_48, BOTH), [0, 1, 2]),
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
    assert windows[1] is not None
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
