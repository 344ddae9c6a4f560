"""Signals and families of engine pages and GPU exporter pages, as text and JSON of `sizewatch inspect`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import RenderableType

from exporters.documents.replay import reading_json
from exporters.render.terminal import WIDEST, terminal_text, text_grid
from exporters.render.text import copy_fields
from rules.engines.coverage import FamilyUse
from rules.engines.registry import EngineTable
from rules.gpu_sources.devices import BY_CODE
from rules.gpu_sources.exporter import GpuExporter, GpuExporterPage
from rules.telemetry.families import GPU_NAMES
from rules.telemetry.signals import BY_NAME, Gap, Missing, Signal, SignalValue
from rules.telemetry.snapshots import GpuReadout, Snapshot
from rules.telemetry.wording import format_count, number, quantity


def explain_gap(
    signal: Signal, value: SignalValue, engine: EngineTable, page: Snapshot, why_no_rate: str
) -> SignalValue:
    """Add to a missing signal the engine release and the reason for its absence."""
    if not isinstance(value, Missing):
        needs_time = why_no_rate and signal.unit.endswith(("per_second", "per_hour", "money"))
        return Missing(gap=Gap.NOT_EXPOSED, text=why_no_rate) if needs_time else value
    if value.gap is not Gap.NOT_EXPOSED or value.text:
        return value
    if any(family in GPU_NAMES for family in signal.families):
        return replace(value, text="read from the GPU, not from an engine's page")
    if "in_system_change" in signal.families:
        return replace(value, text=NO_CHANGE)
    why = engine.explain_missing(signal.families)
    release = page.facts.get("engine_versions", "")
    title = f"{engine.title} {release}".strip()
    if not why:
        return replace(value, text=f"{title} does not have it, or it is not switched on")
    return replace(value, text=f"{title}: {why}" if release or engine.title not in why else why)


FACTS = (
    *("model", "engine_versions", "num_gpu_blocks", "num_pages", "block_size", "page_size", "kv_tokens"),
    *("max_model_len", "cache_dtype", "enable_prefix_caching"),
)
"""Facts shown in this order if a page has them."""

LISTED = tuple(name for name in GPU_NAMES if name != BY_CODE)
"""GPU families listed on their own. Faults by code are listed with the faults."""

NO_CHANGE = "one page tells no change"
NOT_TOLD = "not on the page, or the change between two pages"
_UNITS = {"degrees Celsius": "celsius"}
_GIB = 1024.0**3


def inspect_text(title: str, page: Snapshot, readings: Mapping[str, SignalValue], uses: Sequence[FamilyUse]) -> str:
    """Return the whole text. Values are since process start, as a single page shows no change."""
    facts = ", ".join(f"{name} {page.facts[name]}" for name in FACTS if page.facts.get(name))
    rows = [(name, _signal_text(value, BY_NAME[name].unit)) for name, value in readings.items()]
    heads = (title, f"  facts     {facts or 'none'}", "", f"Signals (since the process started; {NO_CHANGE})")
    return _page_text([*heads, text_grid(rows)], uses, page.problems)


def _signal_text(value: SignalValue, unit: str) -> str:
    if isinstance(value, Missing):
        return ": ".join(filter(None, (value.gap.value, value.text)))
    if value.value is None or value.low == value.high:
        return quantity(value, unit)
    return f"{quantity(value, unit)} (about {number(value.value, unit)})"


def _page_text(parts: list[RenderableType], uses: Sequence[FamilyUse], problems: Sequence[str]) -> str:
    """Return the parts with the use of every family and the problems of a page. A line an entry, for searches."""
    for title, is_read in (("Families that are read", True), ("Families that are not read", False)):
        rows = [(use.name, use.text) for use in uses if use.is_read == is_read]
        if rows:
            parts += ["", title, text_grid(rows)]
    if problems:
        parts += ["", "Problems", *(f"  {problem}" for problem in problems)]
    return terminal_text(*parts, width=WIDEST)


def inspect_json(
    engine: str, page: Snapshot, readings: Mapping[str, SignalValue], uses: Sequence[FamilyUse]
) -> dict[str, Any]:
    """Return the facts, signals, families and problems of an engine's page."""
    signals = {name: reading_json(value) for name, value in readings.items()}
    head = {"engine": engine, "generation": page.generation, "facts": dict(page.facts), "signals": signals}
    return _page_json(head, uses, page.problems)


def _page_json(head: Mapping[str, Any], uses: Sequence[FamilyUse], problems: Sequence[str]) -> dict[str, Any]:
    families = []
    for use in uses:
        families.append({"name": use.name, "use": "mapped" if use.is_read else "unread", "text": use.text})
    return {"schema": 1, **head, "families": families, "problems": list(problems)}


def inspect_gpus_text(title: str, exporter: GpuExporter, page: GpuExporterPage, uses: Sequence[FamilyUse]) -> str:
    """Return the whole text. Counters are totals, as a single page shows no change."""
    head = f"  {format_count(len(page.readouts), 'GPU')}; counters so far, for {NO_CHANGE}"
    parts: list[RenderableType] = [title, head]
    for gpu in page.readouts:
        place = "" if gpu.index is None else f" {gpu.index}"
        rows = [(name, _quantity_text(_quantity(name, gpu, exporter))) for name in LISTED]
        parts += ["", f"GPU{place}: {gpu.product or 'product not told'}, {gpu.gpu}", text_grid(rows)]
    return _page_text(parts, uses, page.problems)


def inspect_gpus_json(exporter: GpuExporter, page: GpuExporterPage, uses: Sequence[FamilyUse]) -> dict[str, Any]:
    """Return the quantities of each GPU, the families and problems of a page of a GPU exporter."""
    gpus = []
    for gpu in page.readouts:
        quantities = {name: _quantity(name, gpu, exporter) for name in LISTED}
        fields = copy_fields(gpu, "gpu", "index", "product")
        gpus.append({**fields, "processes": list(gpu.pids), "quantities": quantities})
    return _page_json({"exporter": exporter.name, "gpus": gpus}, uses, page.problems)


def _quantity(name: str, gpu: GpuReadout, exporter: GpuExporter) -> dict[str, Any]:
    value = gpu.gauges.get(name, gpu.counters.get(name))
    if value is None:
        reason = gpu.gaps.get(name) or exporter.not_exposed.get(name, NOT_TOLD)
        return {"gap": Gap.NOT_EXPOSED.value, "text": reason}
    return {"value": value, "unit": GPU_NAMES[name].unit, "polled": name in gpu.sampled}


def _quantity_text(quantity: Mapping[str, Any]) -> str:
    if "gap" in quantity:
        return f"{quantity['gap']}: {quantity['text']}"
    value, unit = quantity["value"], quantity["unit"]
    text = f"{value / _GIB:.2f} GiB" if unit == "bytes" else number(value, _UNITS.get(unit, unit))
    if unit in ("joules", "errors", "events"):
        text = f"{text} {unit}"
    return f"{text} (a poll)" if quantity["polled"] else text
