"""Commands `sizewatch inspect FILE-or-URL` and `sizewatch signals`: what a page exposes, and what each engine can give.

Each signal has a value or the reason for its absence.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import click

from agent.cli.arguments import FINE, FORMAT, connection_options, target_options
from agent.errors import ConfigError, RecordingError, ScrapeError
from agent.gpu.collector import samples
from agent.http_client.errors import place_of
from agent.http_client.options import DEFAULT_MAX_BYTES
from agent.http_client.page import fetch_page, wrong_content
from agent.scrape.exposition import SeriesReader
from agent.scrape.scrapers import PageReader
from exporters.documents.signal_exposure import (
    engines_json,
    engines_text,
    inspect_gpus_json,
    inspect_gpus_text,
    inspect_json,
    inspect_text,
)
from rules.engines.registry import ENGINES
from rules.engines.table import EngineTable
from rules.gpu_sources.exporter import explain_families
from rules.gpu_sources.registry import EXPORTERS, detect_exporter
from rules.telemetry.readings import read_all, window_since_start
from rules.telemetry.signals import BY_NAME, RATES, Gap, Missing, Signal, SignalValue
from rules.telemetry.snapshots import Snapshot

GPU_FAMILIES = frozenset({"tensor_active", "dram_active"})

_OMITTED = re.compile(rb"^[ \t]*(?:\.{3,}|\xe2\x80\xa6)[ \t]*\r?$", re.MULTILINE)
"""Line of dots alone, which marks lines omitted by the publisher of a page."""


def render_engine_page(
    body: bytes, page_name: str, engine: str | None, *, live: bool, as_json: bool, notes: tuple[str, ...]
) -> str:
    """Return the whole output. `notes` are earlier problems. Raise ScrapeError for a page of no known engine."""
    reader = PageReader(engine)
    engines = reader.read_engines(body, time.time())
    documents, texts = {}, [f"{page_name}: {told}, each is a replica"] if (told := reader.describe_engines()) else []
    for name, page in engines.items():
        page = replace(page, problems=(*notes, *page.problems))
        table, why_no_rate = reader.engine_of(name), _why_no_rate(page, live)
        readings = {
            signal: _named(BY_NAME[signal], value, table, page, why_no_rate)
            for signal, value in read_all(window_since_start(page)).items()
        }
        documents[name] = inspect_json(table.name, page, readings, reader.uses)
        title = f"{name or page_name}: {table.title}, generation {table.release_line}"
        texts.append(inspect_text(title, page, readings, reader.uses))
    if as_json:
        several = {"schema": 1, "holds": told, "engines": documents}
        return json.dumps(several if told else documents[""], indent=2)
    return "\n\n".join(texts)


def _why_no_rate(page: Snapshot, live: bool) -> str:
    """Return the reason the page gives no rates, or "". Rates need the process start and the time of the page."""
    if not live:
        return "a saved page does not tell when it was saved"
    return "" if page.started_at is not None else "the page does not tell when its process started"


def _named(signal: Signal, value: SignalValue, engine: EngineTable, page: Snapshot, why_no_rate: str) -> SignalValue:
    """Add to a missing signal the engine release and the reason for its absence."""
    if not isinstance(value, Missing):
        needs_time = why_no_rate and signal.unit in RATES
        return Missing(gap=Gap.NOT_EXPOSED, text=why_no_rate) if needs_time else value
    if value.gap is not Gap.NOT_EXPOSED or value.text:
        return value
    if any(family.startswith("gpu_") or family in GPU_FAMILIES for family in signal.families):
        return replace(value, text="read from the GPU, not from an engine's page")
    if "in_system_change" in signal.families:
        return replace(value, text="one page tells no change")
    reasons = dict(engine.not_exposed)
    why = next((reasons[family] for family in signal.families if family in reasons), "")
    release = page.facts.get("engine_versions", "")
    title = f"{engine.title} {release}".strip()
    if not why:
        return replace(value, text=f"{title} does not have it, or it is not switched on")
    return replace(value, text=f"{title}: {why}" if release or engine.title not in why else why)


def render_gpu_page(body: bytes, page_name: str, *, as_json: bool, notes: tuple[str, ...]) -> str | None:
    """Return the whole output, or None for a page of no GPU exporter. Raise ScrapeError for an invalid page."""
    parsed = SeriesReader(lambda name: any(exporter.wanted(name) for exporter in EXPORTERS)).read(body)
    series = tuple(samples(parsed))
    exporter = detect_exporter((name, labels) for name, labels, _ in series)
    if exporter is None:
        return None
    page = exporter.read(series, time.time())
    page = replace(page, problems=(*notes, *page.problems))
    uses = explain_families(exporter, parsed.families)
    if as_json:
        return json.dumps(inspect_gpus_json(exporter, page, uses), indent=2)
    return inspect_gpus_text(f"{page_name}: {exporter.title}", exporter, page, uses)


def parameters() -> tuple[click.Parameter, ...]:
    page = click.Argument(["page"], metavar="FILE-or-URL", help="a saved page, or the address of a live one")
    engine = click.Option(["--engine"], metavar="NAME", help="instead of recognising it from the page")
    return page, engine, *connection_options(), *FORMAT


def run(options: SimpleNamespace) -> int:
    """Print the page. An unreadable page raises ScrapeError or RecordingError, which name it (exit 2)."""
    known = sorted({engine.name for engine in ENGINES})
    if options.engine not in (None, *known):
        raise ConfigError((f"--engine {options.engine}: is none that sizewatch reads; there is {', '.join(known)}",))
    live = "://" in options.page
    body, notes = read_page_body(options, options.page)
    as_json = options.format == "json"
    # The query of an address may be a secret.
    name = place_of(options.page) if live else options.page
    try:
        text = render_gpu_page(body, name, as_json=as_json, notes=notes) if options.engine is None else None
        print(text or render_engine_page(body, name, options.engine, live=live, as_json=as_json, notes=notes))
    except ScrapeError as error:
        raise ScrapeError(error.kind, f"{name}: {error.text}") from error
    return FINE


def read_page_body(options: SimpleNamespace, page: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a live or saved page with notes on omitted lines. Raise ScrapeError or RecordingError."""
    if "://" in page:
        return fetch_page(target_options(options, page)), ()
    return _without_omissions(_saved(page))


def _without_omissions(body: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Replace lines of dots in a saved page, and return notes on them. In a live page they remain an error."""
    found = [body.count(b"\n", 0, match.start()) + 1 for match in _OMITTED.finditer(body)]
    notes = tuple(f"line {number} is dots alone: the page is an excerpt, and lines were left out" for number in found)
    return _OMITTED.sub(b"#", body), notes


def _saved(name: str) -> bytes:
    try:
        with Path(name).open("rb") as file:
            body = file.read(DEFAULT_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise RecordingError(name, f"cannot be read: {getattr(error, 'strerror', error)}") from error
    if len(body) > DEFAULT_MAX_BYTES:
        raise RecordingError(name, f"is larger than {DEFAULT_MAX_BYTES >> 20} MiB: is this a saved page?")
    if wrong := wrong_content(name, "", body[:100]):
        raise wrong
    return body


def parameters_signals() -> tuple[click.Parameter, ...]:
    engine = click.Option(
        ["--engine"],
        metavar="NAME",
        help="one engine, or one generation of it (vllm/v0), with the reason for every gap",
    )
    return engine, *FORMAT


def run_signals(options: SimpleNamespace) -> int:
    """Print the table. An unknown engine raises ConfigError (exit 2)."""
    wanted = options.engine
    engines = [e for e in ENGINES if wanted in (None, e.name, f"{e.name}/{e.generation}")]
    if not engines:
        known = ", ".join(f"{engine.name}/{engine.generation}" for engine in ENGINES)
        raise ConfigError((f"--engine {wanted}: is none that sizewatch reads; there is {known}",))
    if options.format == "json":
        print(json.dumps(engines_json(engines), indent=2))
    elif wanted is None:
        print(engines_text(engines))
    else:
        print("\n\n".join(engines_text([engine]) for engine in engines))
    return FINE
