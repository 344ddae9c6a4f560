"""Readout of one GPU from its series, and counters from changes between pages of an exporter.

A fault counts if its code was absent on the previous page. Codes on the first page are no events, because they may be a
month old. A repeated code counts once: exporters show no more (METRICS trap 16).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from rules.gpu_sources.exporter import Field, GpuExporterPage, Ticks
from rules.telemetry.families import GPU_NAMES
from rules.telemetry.gpu_windows import MOST_CODE, THROTTLED_COVERED, Impossible, check_level, drop_impossible
from rules.telemetry.snapshots import GpuReadout

RATIO_SLACK = 0.01
"""Rounding tolerance of ratios above 1. Such a ratio becomes 1; a larger one is invalid."""

RATIOS = frozenset(name for name, row in GPU_NAMES.items() if row.unit == "ratio")

NAMESPACE_LABELS = ("namespace", "pod_namespace", "exported_namespace")
"""Namespace labels of the pod: dcgm-exporter's new and old spelling, and the one that Prometheus makes of it."""

HOST_LABELS = ("Hostname", "hostname", "node", "instance")
"""Labels of the machine: the exporters' own, and those that Prometheus adds to a page of several machines."""

Blank = Callable[[Field | None, float], str | None]
"""Check of a row's value: the reason why it is blank, in words that follow "is", or None."""


@dataclass(slots=True)
class Device:
    """GPU, MIG instance or partition while its page is read. `part` names the GPU that it is a part of."""

    gpu: str
    index: int | None
    product: str
    blank: Blank
    part: str = ""
    host: str = ""
    values: dict[str, list[tuple[float, bool]]] = field(default_factory=dict)
    """By the exporter's name: each series' value, and whether a pod owns the series."""
    pids: set[int] = field(default_factory=set)
    pods: set[str] = field(default_factory=set)
    """Pods that own the device by the exporter, as namespace/name."""

    def add(self, name: str, value: float, labels: Mapping[str, str], pod_labels: Iterable[str]) -> None:
        """Add a series. The first of `pod_labels` that it has names the pod that owns it."""
        pod, namespace = label(labels, pod_labels), label(labels, NAMESPACE_LABELS)
        self.host = self.host or label(labels, HOST_LABELS)
        self.values.setdefault(name, []).append((value, bool(pod)))
        self.pods |= {f"{namespace}/{pod}"} if pod and namespace else set()

    def value(self, theirs: str, row: Field | None = None) -> float | str:
        """Return the GPU's value of a series in its unit, or the reason for none."""
        series = self.values.get(theirs)
        if series is None:
            text = f"{theirs} is not on the page"
            if row is not None and row.off:
                text += f" ({row.off})"
            return text
        if row is not None and row.merge == "mean":
            known = [value for value, _ in series if self.blank(row, value) is None]
            return math.fsum(known) / len(known) if known else f"{theirs} is {self.blank(row, series[0][0])}"
        # A GPU shared by pods has one series per pod: copies of the whole GPU's value, or each pod's own part.
        distinct = {value for value, of_a_pod in series if not of_a_pod} or {value for value, _ in series}
        if len(distinct) > 1 and not all(math.isnan(value) for value in distinct):
            return f"{theirs} has {len(distinct)} different values for this GPU (one a pod): none is the whole GPU's"
        value = distinct.pop()
        reason = self.blank(row, value)
        return value if reason is None else f"{theirs} is {reason}"

    def convert_row(self, row: Field) -> float | str:
        """Return the value of a row, or the reason for none."""
        if row.whole_gpu and self.part:
            return f"{row.theirs} is measured for the whole GPU, not for {self.part}"
        parts = [self.value(theirs, row) for theirs in row.names]
        missing = next((part for part in parts if isinstance(part, str)), None)
        if missing is not None:
            return missing
        value = math.fsum(part for part in parts if not isinstance(part, str))
        ours = value * row.factor
        if row.ours not in RATIOS:
            return ours
        if not 0.0 <= ours <= 1.0 + RATIO_SLACK:
            return Impossible(f"{row.theirs} is {value:g}, which is no share of time")
        return min(ours, 1.0)


def readout(device: Device, t: float, rows: Iterable[Field], more: Mapping[str, float | str]) -> GpuReadout:
    """Return the readout of a GPU at `t` (unix seconds) from the rows of the table and `more` (our names). `more` comes
    from the exporter and takes precedence, also with a reason for no value."""
    counters: dict[str, float] = {}
    gauges: dict[str, float] = {}
    gaps: dict[str, str] = {}
    sampled: set[str] = set()
    absent: set[str] = set()
    for row in rows:
        if row.ours in counters or row.ours in gauges:
            continue
        value = device.convert_row(row)
        if isinstance(value, str):
            # An unusable value on the page says more than an absent one.
            on_page = row.theirs in device.values
            if row.ours not in gaps or (on_page and row.ours in absent):
                gaps[row.ours] = value
                absent = absent - {row.ours} if on_page else absent | {row.ours}
            continue
        values = counters if GPU_NAMES[row.ours].kind == "counter" else gauges
        if (odd := _impossible(value, values is counters) or check_level(row.ours, value)) is not None:
            gaps[row.ours] = Impossible(f"{row.theirs} gives {odd}")
            continue
        gaps.pop(row.ours, None)
        values[row.ours] = value
        if row.sampled:
            sampled.add(row.ours)
    for name, text in more.items():
        values = counters if GPU_NAMES[name].kind == "counter" else gauges
        reason = text if isinstance(text, str) else _impossible(text, values is counters)
        if reason is not None:
            values.pop(name, None)
            gaps[name] = reason
        elif not isinstance(text, str):
            values[name] = text
    whole = GpuReadout(
        t=t,
        gpu=device.gpu,
        host=device.host,
        index=device.index,
        product=device.product,
        counters=counters,
        gauges=gauges,
        gaps=gaps,
        sampled=frozenset(sampled & (counters.keys() | gauges.keys())),
        pids=tuple(sorted(device.pids)),
        pods=tuple(sorted(device.pods)),
    )
    return drop_impossible(whole)


def _impossible(value: float, counts: bool) -> Impossible | None:
    """Return why a value in our unit is impossible: not finite, or a negative count."""
    if not math.isfinite(value):
        return Impossible("a number larger than any")
    return Impossible(f"{value:g}, which no count can be") if counts and value < 0 else None


def sort_by_index(devices: Iterable[Device]) -> list[Device]:
    """Return devices by index, with missing indexes last."""
    return sorted(devices, key=lambda device: (device.index is None, device.index, device.gpu))


def label(labels: Mapping[str, str], names: Iterable[str]) -> str:
    """Return the first of these labels that is not empty, or ""."""
    return next((labels[name] for name in names if labels.get(name)), "")


def whole_number(text: str) -> int | None:
    """Return an index from a label, None for thousands of digits, which Python would refuse."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else None


def no_codes(values: Iterable[float]) -> Impossible | None:
    """Return why these cannot be codes of faults, or None."""
    odd = next((value for value in values if not (0 <= value <= MOST_CODE and value == int(value))), None)
    return None if odd is None else Impossible(f"{odd:.3g} is no code of a fault")


MOST_CODES, OTHER_CODES = 64, "other"
"""Distinct codes that are counted for a GPU: each is a series of its own for good."""

FAULTS, BY_CODE = "gpu_fault_events", "gpu_fault_events_by_code"


def same_refresh(a: GpuExporterPage, b: GpuExporterPage) -> bool:
    """Return whether two pages show the same refresh of the exporter: they differ only in ``t``.

    Only the energy counter grows with every refresh: without it (MIG) equal pages may be two of a steady GPU.
    """
    if not b.readouts or not any("gpu_energy_joules" in readout.counters for readout in a.readouts):
        return False
    stamped = tuple(replace(readout, t=b.readouts[0].t) for readout in a.readouts)
    return replace(a, readouts=stamped, problems=b.problems) == b


@dataclass(slots=True)
class _Gpu:
    codes: frozenset[str] | None = None
    events: dict[str, float] = field(default_factory=dict)
    ticks: Ticks | None = None
    ticks_t: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    covered: float = 0.0


class PageChanges:
    """State of one exporter's pages."""

    def __init__(self) -> None:
        self._gpus: dict[str, _Gpu] = {}

    def apply_page(self, page: GpuExporterPage) -> tuple[GpuReadout, ...]:
        """Return the page's readouts with counters from its changes. Pages must come in time order."""
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
    """Count new codes. None keeps the present codes: a query of the exporter may fail once."""
    if codes is None:
        codes = gpu.codes or frozenset()
    for code in sorted(codes - (codes if gpu.codes is None else gpu.codes)):
        if code not in gpu.events and len(gpu.events) >= MOST_CODES:
            code = OTHER_CODES
        gpu.events[code] = gpu.events.get(code, 0.0) + 1.0
    gpu.codes = codes


def _count_ticks(gpu: _Gpu, now: Ticks, t: float) -> dict[str, float]:
    """Return throttled seconds: share of the ticks x time since their last change. A reset leaves that time unknown."""
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
    return {THROTTLED_COVERED: gpu.covered} | {name: gpu.seconds.get(name, 0.0) for name in now.of}
