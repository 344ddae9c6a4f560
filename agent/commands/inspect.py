"""`sizewatch inspect FILE-or-URL`: what a page exposes, signal by signal."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

from agent.collect.pages import PageFetcher, TargetOptions
from agent.collect.reader import PageReader
from agent.commands.arguments import add_format
from agent.errors import BadConfig, BadRecording
from exporters.inspect_text import inspect_json, inspect_text
from rules.engines.registry import ENGINES
from rules.engines.table import Engine
from rules.lifetime import since_start
from rules.readings import read_all
from rules.signals import BY_NAME, Gap, Missing, Signal, SignalValue, Unit
from rules.snapshots import Snapshot

FINE = 0
GPU_FAMILIES = frozenset({"tensor_active", "dram_active"})
RATES = frozenset({Unit.PER_SECOND, Unit.TOKENS_PER_HOUR, Unit.MONEY})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("page", metavar="FILE-or-URL", help="a saved page, or the address of a live one")
    parser.add_argument("--engine", metavar="NAME", help="instead of recognising it from the page")
    parser.add_argument("--bearer-token-file", metavar="FILE", help="token for the address")
    parser.add_argument("--ca-file", metavar="FILE", help="CA that signed the address's certificate")
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    """A page that cannot be read raises ScrapeError or BadRecording (exit 2)."""
    _check_engine(options.engine)
    live = "://" in options.page
    reader = PageReader(options.engine)
    page = reader.read(_asked(options) if live else _saved(options.page), time.time())
    engine, why_no_rate = reader.engine, _why_no_rate(page, live)
    readings = {
        name: _named(BY_NAME[name], value, engine, page, why_no_rate)
        for name, value in read_all(since_start(page)).items()
    }
    if options.format == "json":
        print(json.dumps(inspect_json(engine.name, page, readings, reader.uses), indent=2))
    else:
        title = f"{options.page}: {engine.title}, generation {engine.generation.upper()}"
        print(inspect_text(title, page, readings, reader.uses))
    return FINE


def _check_engine(name: str | None) -> None:
    known = sorted({engine.name for engine in ENGINES})
    if name is not None and name not in known:
        raise BadConfig((f"--engine {name}: is none that sizewatch reads; there is {', '.join(known)}",))


def _why_no_rate(page: Snapshot, live: bool) -> str:
    """Why the page tells no rates, empty where it does: they need the time from the start of its process to its own."""
    if not live:
        return "a saved page does not tell when it was saved"
    return "" if page.started_at is not None else "the page does not tell when its process started"


def _named(signal: Signal, value: SignalValue, engine: Engine, page: Snapshot, why_no_rate: str) -> SignalValue:
    """Where there is no value: by what it is not exposed, and why where the table knows."""
    if not isinstance(value, Missing):
        needs_time = why_no_rate and signal.unit in RATES
        return Missing(gap=Gap.NOT_EXPOSED, text=why_no_rate) if needs_time else value
    if value.gap is not Gap.NOT_EXPOSED or value.text:
        return value
    if any(family.startswith("gpu_") or family in GPU_FAMILIES for family in signal.families):
        return replace(value, text="read from the GPU, not from an engine's page")
    if "in_system_change" in signal.families:
        return replace(value, text="one page tells no change")
    told = dict(engine.not_exposed)
    why = next((told[family] for family in signal.families if family in told), "")
    title = f"{engine.title} {page.facts.get('engine_versions', '')}".strip()
    return replace(value, text=why or f"{title} does not have it, or it is not switched on")


def _asked(options: argparse.Namespace) -> bytes:
    fetcher = PageFetcher(
        TargetOptions(url=options.page, bearer_token_file=options.bearer_token_file, ca_file=options.ca_file)
    )
    try:
        return fetcher.fetch()
    finally:
        fetcher.close()


def _saved(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except (OSError, ValueError) as error:
        raise BadRecording(name, f"cannot be read: {getattr(error, 'strerror', error)}") from error
