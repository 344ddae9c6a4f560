"""Pages of GPU exporters for tests: our own beside this file, those of others in ../shared where it is there."""

from pathlib import Path

import pytest
from paths import SHARED, TESTS

from agent.gpu.collector import samples
from agent.scrape.exposition import SeriesReader
from rules.gpu_sources.exporter import GpuExporter, GpuExporterPage, Sample
from rules.telemetry.snapshots import GpuReadout

MADE = TESTS / "gpu_exporter_pages"
SHARED_PAGES_FOLDER = SHARED / "pages"

MADE_PAGES = {
    "made-amd-1.5-mi300x.prom": "amd",
    "made-amd-1.5-dpx.prom": "amd",
    "made-amd-old-mi210.prom": "amd",
    "made-dcgm-mig.prom": "dcgm",
}
SHARED_PAGES = {
    "amd-device-metrics-exporter-1.5-doc-lines.prom": "amd",
    "amd-device-metrics-exporter-old-mini.prom": "amd",
    "dcgm-exporter-readme-blank-value.prom": "dcgm",
    "dcgm-exporter-t4-datadog.prom": "dcgm",
}
"""Name of every page -> the exporter that it is of."""


def page_path(name: str) -> Path:
    """Where a page is; skips the test where ../shared is not there."""
    if name in MADE_PAGES:
        return MADE / name
    path = SHARED_PAGES_FOLDER / name
    if not path.exists():
        pytest.skip(f"../shared/pages/{name} is not here")
    return path


def page_text(name: str) -> str:
    """A page without the lines of dots of an excerpt."""
    lines = page_path(name).read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join("#\n" if line.strip() == "..." else line for line in lines)


def series(text: str, exporter: GpuExporter) -> list[Sample]:
    """What the product's own parser makes of a page."""
    return list(samples(SeriesReader(exporter.wanted).read(text.encode())))


def families(text: str) -> dict[str, str]:
    """Name and type of every family."""
    return dict(SeriesReader(lambda name: False).read(text.encode()).families)


def read_page(text: str, exporter: GpuExporter, t: float = 0.0) -> GpuExporterPage:
    return exporter.read(series(text, exporter), t)


def by_gpu(page: GpuExporterPage) -> dict[str, GpuReadout]:
    return {gpu.gpu: gpu for gpu in page.readouts}


_GPU = 'gpu="{0}",UUID="GPU-{0}",device="nvidia{0}",modelName="NVIDIA H200",Hostname="node-1"'
_FIELDS = (
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", 97),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", 41),
    ("DCGM_FI_DEV_FB_USED", "gauge", 120_000),
    ("DCGM_FI_DEV_FB_FREE", "gauge", 23_000),
    ("DCGM_FI_DEV_FB_RESERVED", "gauge", 771),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", 61),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", 512.5),
    ("DCGM_FI_DEV_XID_ERRORS", "gauge", 0),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", 123_456_789),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", 0),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", 0.31),
)
DCGM_PAGE = "".join(
    f"# TYPE {name} {kind}\n" + "".join(f"{name}{{{_GPU.format(gpu)}}} {value}\n" for gpu in (0, 1))
    for name, kind, value in _FIELDS
)
"""Two GPUs as dcgm-exporter prints them by default, in part."""

T = 1_800_000_000.0


def readout(gpu: str, index: int | None = None, pids: tuple[int, ...] = (), t: float = T) -> GpuReadout:
    """A GPU that says little."""
    return GpuReadout(
        t=t,
        gpu=gpu,
        index=index,
        product="H",
        counters={"gpu_busy_seconds": 1.0},
        gauges={"gpu_temperature_celsius": 50.0},
        gaps={},
        sampled=frozenset(),
        pids=pids,
    )


def by_uuid(*several: GpuReadout) -> dict[str, GpuReadout]:
    """As `Gpus.latest` holds them."""
    return {r.gpu: r for r in several}
