"""What a GPU exporter's page exposes, for a person and for a program: exporter, every GPU with every quantity, every family.

Owns the words and the JSON of `sizewatch inspect` for such a page. Engines' pages are `exporters.documents.signal_exposure`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from exporters.documents.signal_exposure import families_text
from rules.engines.coverage import FamilyUse
from rules.gpu_sources.changes import BY_CODE, FAULTS
from rules.gpu_sources.exporter import GpuExporter, GpuExporterPage
from rules.telemetry.gpu_readout import GPU_NAMES, GpuReadout
from rules.telemetry.gpu_windows import COVERED
from rules.telemetry.signals import Gap
from rules.telemetry.wording import number

LISTED = tuple(name for name in GPU_NAMES if name != BY_CODE)
"""Faults by code are told with the faults."""

NO_CHANGE = "one page tells no change"
_UNITS = {"degrees Celsius": "celsius"}
_GIB = 1024.0**3


def inspect_gpus_text(title: str, exporter: GpuExporter, page: GpuExporterPage, uses: Iterable[FamilyUse]) -> str:
    """The whole text. Counters are what has been counted so far: one page holds no change."""
    many = f"{len(page.readouts)} GPU{'' if len(page.readouts) == 1 else 's'}"
    lines = [title, f"  {many}; counters so far, for {NO_CHANGE}"]
    for gpu in page.readouts:
        place = "" if gpu.index is None else f" {gpu.index}"
        lines += ["", f"GPU{place}: {gpu.product or 'product not told'}, {gpu.gpu}"]
        lines.extend(f"  {name:42} {_format_gpu_value(name, gpu, exporter, page)}" for name in LISTED)
    lines += families_text(uses)
    if page.problems:
        lines += ["", "Problems", *(f"  {problem}" for problem in page.problems)]
    return "\n".join(lines)


def inspect_gpus_json(exporter: GpuExporter, page: GpuExporterPage, uses: Iterable[FamilyUse]) -> dict[str, Any]:
    """The same for a program."""
    return {
        "schema": 1,
        "exporter": exporter.name,
        "gpus": [
            {
                "gpu": gpu.gpu,
                "index": gpu.index,
                "product": gpu.product,
                "processes": list(gpu.pids),
                "quantities": {name: _json(name, gpu, exporter, page) for name in LISTED},
            }
            for gpu in page.readouts
        ],
        "families": [{"name": u.name, "use": u.use, "text": u.text} for u in uses],
        "problems": list(page.problems),
    }


def _value(name: str, gpu: GpuReadout) -> float | None:
    return gpu.gauges.get(name, gpu.counters.get(name))


def _json(name: str, gpu: GpuReadout, exporter: GpuExporter, page: GpuExporterPage) -> dict[str, Any]:
    value = _value(name, gpu)
    if value is None:
        return {"gap": Gap.NOT_EXPOSED.value, "text": _why_not(name, gpu, exporter, page)}
    return {"value": value, "unit": GPU_NAMES[name].unit, "polled": name in gpu.sampled}


def _format_gpu_value(name: str, gpu: GpuReadout, exporter: GpuExporter, page: GpuExporterPage) -> str:
    value = _value(name, gpu)
    if value is None:
        return f"{Gap.NOT_EXPOSED.value}: {_why_not(name, gpu, exporter, page)}"
    unit = GPU_NAMES[name].unit
    told = f"{value / _GIB:.2f} GiB" if unit == "bytes" else number(value, _UNITS.get(unit, unit))
    if unit in ("joules", "errors", "events"):
        told = f"{told} {unit}"
    return f"{told} (a poll)" if name in gpu.sampled else told


def _why_not(name: str, gpu: GpuReadout, exporter: GpuExporter, page: GpuExporterPage) -> str:
    if name in gpu.gaps:
        return gpu.gaps[name]
    if name in exporter.not_exposed:
        return exporter.not_exposed[name]
    if name == FAULTS and gpu.gpu in page.faults:
        standing = ", ".join(sorted(page.faults[gpu.gpu] or ())) or "none"
        return f"{NO_CHANGE}; standing on it: {standing}"
    ticks = page.ticks.get(gpu.gpu)
    if ticks is not None and name in ticks.of:
        return f"{NO_CHANGE}; {ticks.of[name]:.0f} of {ticks.total:.0f} ticks of the firmware so far"
    if not any(one in gpu.counters or (ticks is not None and one in ticks.of) for one in COVERED.get(name, ())):
        return f"{' and '.join(COVERED.get(name, (name,)))}: not told"
    return "one page tells no time; it is the time between two"
