"""Registry of GPU exporters. A new one also has a key in `agent.config.targets` (`gpus`) and a name in
`agent.config.store.GpuSource` (role fleet)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rules.gpu_sources.amd import AMD
from rules.gpu_sources.dcgm import DCGM
from rules.gpu_sources.exporter import GpuExporter

EXPORTERS: tuple[GpuExporter, ...] = (DCGM, AMD)

BY_NAME: Mapping[str, GpuExporter] = {exporter.name: exporter for exporter in EXPORTERS}


def detect_exporter(series: Iterable[tuple[str, Mapping[str, str]]]) -> GpuExporter | None:
    """Return the exporter with a signature among the (name, labels) of a page, or None."""
    page = tuple(series)
    return next((e for e in EXPORTERS if any(e.signature(name, labels) for name, labels in page)), None)
