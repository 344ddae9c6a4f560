"""`sizewatch inspect` of an engine's page: every signal with its value or why there is none, every family.

Owns what is said of such a page beyond what `agent.scrape.reader` reads from it.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace

from agent.scrape.reader import PageReader
from exporters.documents.signal_exposure import inspect_json, inspect_text
from rules.engines.table import EngineTable
from rules.telemetry.lifetime import window_since_start
from rules.telemetry.readings import read_all
from rules.telemetry.signals import BY_NAME, RATES, Gap, Missing, Signal, SignalValue
from rules.telemetry.snapshots import Snapshot

GPU_FAMILIES = frozenset({"tensor_active", "dram_active"})


def render_engine_page(
    body: bytes, page_name: str, engine: str | None, *, live: bool, as_json: bool, notes: tuple[str, ...]
) -> str:
    """The whole output. `notes` are problems found before. Raises ScrapeError where it is no engine's page."""
    reader = PageReader(engine)
    page = reader.read(body, time.time())
    page = replace(page, problems=(*notes, *page.problems))
    why_no_rate = _why_no_rate(page, live)
    readings = {
        name: _named(BY_NAME[name], value, reader.engine, page, why_no_rate)
        for name, value in read_all(window_since_start(page)).items()
    }
    if as_json:
        return json.dumps(inspect_json(reader.engine.name, page, readings, reader.uses), indent=2)
    title = f"{page_name}: {reader.engine.title}, generation {reader.engine.release_line}"
    return inspect_text(title, page, readings, reader.uses)


def _why_no_rate(page: Snapshot, live: bool) -> str:
    """Why the page tells no rates, empty where it does: they need the time from the start of its process to its own."""
    if not live:
        return "a saved page does not tell when it was saved"
    return "" if page.started_at is not None else "the page does not tell when its process started"


def _named(signal: Signal, value: SignalValue, engine: EngineTable, page: Snapshot, why_no_rate: str) -> SignalValue:
    """Where there is no value: which release of the engine does not expose it, and why where the table knows."""
    if not isinstance(value, Missing):
        needs_time = why_no_rate and signal.unit in RATES
        return Missing(gap=Gap.NOT_EXPOSED, text=why_no_rate) if needs_time else value
    if value.gap is not Gap.NOT_EXPOSED or value.text:
        return value
    if any(family.startswith("gpu_") or family in GPU_FAMILIES for family in signal.families):
        return replace(value, text="read from the GPU, not from an engine's page")
    if "in_system_change" in signal.families:
        return replace(value, text="one page tells no change")
    told_why = dict(engine.not_exposed)
    why = next((told_why[family] for family in signal.families if family in told_why), "")
    release = page.facts.get("engine_versions", "")
    title = f"{engine.title} {release}".strip()
    if not why:
        return replace(value, text=f"{title} does not have it, or it is not switched on")
    return replace(value, text=f"{title}: {why}" if release or engine.title not in why else why)
