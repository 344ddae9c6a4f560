"""From page to page of an exporter: what shows only by a change becomes counters.

Owns the memory of an exporter's last page: fault codes that stand, and counts of throttling that have no unit. A fault
counts when its code was not there on the page before; what stands on the first page is no event, for it may be a month
old. The same code twice in a row looks like one: exporters show no more (METRICS trap 16).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rules.gpu_sources.exporter import GpuExporterPage, Ticks
from rules.telemetry.gpu_readout import GpuReadout

FAULTS, BY_CODE = "gpu_fault_events", "gpu_fault_events_by_code"
COVERED = "gpu_throttled_covered_seconds"


def same_refresh(a: GpuExporterPage, b: GpuExporterPage) -> bool:
    """Whether two pages show one and the same refresh of the exporter: nothing differs but ``t``.

    On a GPU that is powered the energy counter moves with every refresh, so equal pages mean an equal refresh. Where it
    is not exported an idle GPU may look unrefreshed: that under-counts coverage and invents nothing.
    """
    if len(a.readouts) != len(b.readouts) or a.faults != b.faults or a.ticks != b.ticks:
        return False
    return all(replace(one, t=other.t) == other for one, other in zip(a.readouts, b.readouts, strict=True))


@dataclass(slots=True)
class _Gpu:
    """What is remembered of one GPU."""

    codes: frozenset[str] | None = None
    events: dict[str, float] = field(default_factory=dict)
    ticks: Ticks | None = None
    ticks_t: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    covered: float = 0.0


class PageChanges:
    """The memory of one exporter's pages."""

    def __init__(self) -> None:
        self._gpus: dict[str, _Gpu] = {}

    def apply_page(self, page: GpuExporterPage) -> tuple[GpuReadout, ...]:
        """The page's readouts with the counters that its changes gave. Pages come in the order of time."""
        return tuple(self._readout(readout, page) for readout in page.readouts)

    def _readout(self, readout: GpuReadout, page: GpuExporterPage) -> GpuReadout:
        gpu = self._gpus.setdefault(readout.gpu, _Gpu())
        more: dict[str, float] = {}
        if readout.gpu in page.faults:
            _count_faults(gpu, page.faults[readout.gpu])
            more[FAULTS] = sum(gpu.events.values())
            more |= {f"{BY_CODE}/{code}": count for code, count in gpu.events.items()}
        if readout.gpu in page.ticks:
            more |= _count_ticks(gpu, page.ticks[readout.gpu], readout.t)
        return replace(readout, counters={**readout.counters, **more})


def _count_faults(gpu: _Gpu, codes: frozenset[str] | None) -> None:
    """None says that nothing is printed, which takes nothing back: an exporter may fail to ask once."""
    if codes is None:
        codes = gpu.codes or frozenset()
    for code in sorted(codes - (codes if gpu.codes is None else gpu.codes)):
        gpu.events[code] = gpu.events.get(code, 0.0) + 1.0
    gpu.codes = codes


def _count_ticks(gpu: _Gpu, now: Ticks, t: float) -> dict[str, float]:
    """Share of the ticks x time since the last that moved. Counts that fell began anew: that time is not known."""
    before = gpu.ticks
    if before is None or now.total < before.total or now.of.keys() != before.of.keys():
        gpu.ticks, gpu.ticks_t = now, t
    elif now.total > before.total:
        grown = {name: count - before.of[name] for name, count in now.of.items()}
        if all(count >= 0 for count in grown.values()):
            share = {name: min(1.0, count / (now.total - before.total)) for name, count in grown.items()}
            for name, part in share.items():
                gpu.seconds[name] = gpu.seconds.get(name, 0.0) + part * (t - gpu.ticks_t)
            gpu.covered += t - gpu.ticks_t
        gpu.ticks, gpu.ticks_t = now, t
    return {COVERED: gpu.covered} | {name: gpu.seconds.get(name, 0.0) for name in now.of}
