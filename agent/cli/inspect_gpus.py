"""`sizewatch inspect` of a GPU exporter's page: every GPU with every quantity or why there is none, every family."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent.gpu.collector import samples
from agent.scrape.exposition import SeriesReader
from exporters.documents.inspect_gpus import inspect_gpus_json, inspect_gpus_text
from rules.gpu_sources.coverage import explain_families
from rules.gpu_sources.exporter import GpuExporter, Sample
from rules.gpu_sources.registry import EXPORTERS, detect_exporter


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPage:
    """A page of a GPU exporter, parsed. `families` has the type of every family of it, read or not."""

    exporter: GpuExporter
    series: tuple[Sample, ...]
    families: Mapping[str, str]


def detect_gpu_page(body: bytes) -> GpuPage | None:
    """The page if it is a GPU exporter's. Raises ScrapeError where it is no page at all."""
    parsed = SeriesReader(lambda name: any(exporter.wanted(name) for exporter in EXPORTERS)).read(body)
    series = tuple(samples(parsed))
    exporter = detect_exporter((name, labels) for name, labels, _ in series)
    return GpuPage(exporter=exporter, series=series, families=parsed.families) if exporter is not None else None


def render_gpu_page(page: GpuPage, page_name: str, *, as_json: bool, notes: tuple[str, ...]) -> str:
    """The whole output. `notes` are problems found before."""
    found = page.exporter.read(page.series, time.time())
    found = replace(found, problems=(*notes, *found.problems))
    uses = explain_families(page.exporter, page.families)
    if as_json:
        return json.dumps(inspect_gpus_json(page.exporter, found, uses), indent=2)
    return inspect_gpus_text(f"{page_name}: {page.exporter.title}", page.exporter, found, uses)
