"""Signals and families of engine pages and GPU exporter pages, as text and JSON of `sizewatch inspect`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from exporters.documents.replay import reading_json
from exporters.render.text import copy_fields
from rules.engines.coverage import FamilyUse
from rules.engines.table import EngineTable
from rules.gpu_sources.devices import BY_CODE, FAULTS
from rules.gpu_sources.exporter import GpuExporter, GpuExporterPage
from rules.telemetry.families import GPU_NAMES
from rules.telemetry.gpu_windows import COVERED
from rules.telemetry.signals import BY_NAME, Gap, Missing, Signal, SignalValue
from rules.telemetry.snapshots import GpuReadout, Snapshot
from rules.telemetry.wording import format_count, number, quantity

CREATED = "_created"

GPU_FAMILIES = frozenset({"tensor_active", "dram_active"})
"""Families of a GPU without `gpu_` in front."""


def explain_gap(
    signal: Signal, value: SignalValue, engine: EngineTable, page: Snapshot, why_no_rate: str
) -> SignalValue:
    """Add to a missing signal the engine release and the reason for its absence."""
    if not isinstance(value, Missing):
        needs_time = why_no_rate and signal.unit.endswith(("per_second", "per_hour", "money"))
        return Missing(gap=Gap.NOT_EXPOSED, text=why_no_rate) if needs_time else value
    if value.gap is not Gap.NOT_EXPOSED or value.text:
        return value
    if any(family.startswith("gpu_") or family in GPU_FAMILIES for family in signal.families):
        return replace(value, text="read from the GPU, not from an engine's page")
    if "in_system_change" in signal.families:
        return replace(value, text="one page tells no change")
    why = engine.explain_missing(signal.families)
    release = page.facts.get("engine_versions", "")
    title = f"{engine.title} {release}".strip()
    if not why:
        return replace(value, text=f"{title} does not have it, or it is not switched on")
    return replace(value, text=f"{title}: {why}" if release or engine.title not in why else why)


def inspect_text(title: str, page: Snapshot, readings: Mapping[str, SignalValue], uses: Iterable[FamilyUse]) -> str:
    """Return the whole text. Values are since process start, as a single page shows no change."""
    facts = ", ".join(f"{name} {page.facts[name]}" for name in FACTS if page.facts.get(name))
    lines = [title, f"  facts     {facts or 'none'}", ""]
    lines.append("Signals (since the process started; one page tells no change)")
    lines.extend(f"  {name:42} {_shown(name, value)}" for name, value in readings.items())
    return "\n".join([*lines, *_page_lines(uses, page.problems)])


def _page_lines(uses: Iterable[FamilyUse], problems: Sequence[str]) -> list[str]:
    """Return the use of every family and the problems of a page, in lines."""
    uses = tuple(uses)
    lines = _families("Families that are read", [use for use in uses if use.is_read])
    lines += _families("Families that are not read", [use for use in uses if not use.is_read])
    return [*lines, "", "Problems", *(f"  {problem}" for problem in problems)] if problems else lines


FACTS = (
    *("model", "engine_versions", "num_gpu_blocks", "num_pages", "block_size", "page_size", "kv_tokens"),
    *("max_model_len", "cache_dtype", "enable_prefix_caching"),
)
"""Facts shown in this order if a page has them."""


def _families(head: str, uses: list[FamilyUse]) -> list[str]:
    """Return a line per family. Families that only hold the start time of another share a line."""
    if not uses:
        return []
    births = [use for use in uses if not use.is_read and use.name.endswith(CREATED)]
    lines = ["", f"{head} ({len(uses)})"]
    lines += [f"  {use.name:58} {use.text}".rstrip() for use in uses if use not in births]
    return lines + ([f"  {len(births)} that end in {CREATED}"] if births else [])


def _shown(name: str, value: SignalValue) -> str:
    unit = BY_NAME[name].unit
    if isinstance(value, Missing):
        return value.gap.value + (f": {value.text}" if value.text else "")
    best = "" if value.value is None or value.low == value.high else f" (about {number(value.value, unit)})"
    return f"{quantity(value, unit)}{best}"


def inspect_json(
    engine: str, page: Snapshot, readings: Mapping[str, SignalValue], uses: Iterable[FamilyUse]
) -> dict[str, Any]:
    return {
        "schema": 1,
        "engine": engine,
        "generation": page.generation,
        "facts": dict(page.facts),
        "signals": {name: reading_json(value) for name, value in readings.items()},
        "families": [{"name": u.name, "use": "mapped" if u.is_read else "unread", "text": u.text} for u in uses],
        "problems": list(page.problems),
    }


LISTED = tuple(name for name in GPU_NAMES if name != BY_CODE)
"""GPU families listed on their own. Faults by code are listed with the faults."""

NO_CHANGE = "one page tells no change"
_UNITS = {"degrees Celsius": "celsius"}
_GIB = 1024.0**3


def inspect_gpus_text(title: str, exporter: GpuExporter, page: GpuExporterPage, uses: Iterable[FamilyUse]) -> str:
    """Return the whole text. Counters are totals, as a single page shows no change."""
    lines = [title, f"  {format_count(len(page.readouts), 'GPU')}; counters so far, for {NO_CHANGE}"]
    for gpu in page.readouts:
        place = "" if gpu.index is None else f" {gpu.index}"
        lines += ["", f"GPU{place}: {gpu.product or 'product not told'}, {gpu.gpu}"]
        lines.extend(f"  {name:42} {_format_gpu_value(name, gpu, exporter, page)}" for name in LISTED)
    return "\n".join([*lines, *_page_lines(uses, page.problems)])


def inspect_gpus_json(exporter: GpuExporter, page: GpuExporterPage, uses: Iterable[FamilyUse]) -> dict[str, Any]:
    return {
        "schema": 1,
        "exporter": exporter.name,
        "gpus": [
            {
                **copy_fields(gpu, "gpu", "index", "product"),
                "processes": list(gpu.pids),
                "quantities": {name: _json(name, gpu, exporter, page) for name in LISTED},
            }
            for gpu in page.readouts
        ],
        "families": [{"name": u.name, "use": "mapped" if u.is_read else "unread", "text": u.text} for u in uses],
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
    text = f"{value / _GIB:.2f} GiB" if unit == "bytes" else number(value, _UNITS.get(unit, unit))
    if unit in ("joules", "errors", "events"):
        text = f"{text} {unit}"
    return f"{text} (a poll)" if name in gpu.sampled else text


def _why_not(name: str, gpu: GpuReadout, exporter: GpuExporter, page: GpuExporterPage) -> str:
    if name in gpu.gaps:
        return gpu.gaps[name]
    if name in exporter.not_exposed:
        return exporter.not_exposed[name]
    if name == FAULTS and gpu.gpu in page.faults:
        rule_state = ", ".join(sorted(page.faults[gpu.gpu] or ())) or "none"
        return f"{NO_CHANGE}; standing on it: {rule_state}"
    ticks = page.ticks.get(gpu.gpu)
    if ticks is not None and name in ticks.of:
        return f"{NO_CHANGE}; {ticks.of[name]:.0f} of {ticks.total:.0f} ticks of the firmware so far"
    if not any(text in gpu.counters or (ticks is not None and text in ticks.of) for text in COVERED.get(name, ())):
        return f"{' and '.join(COVERED.get(name, (name,)))}: not told"
    return "one page tells no time; it is the time between two"
