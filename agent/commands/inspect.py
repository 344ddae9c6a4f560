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
from agent.errors import BadRecording
from exporters.inspect_text import inspect_json, inspect_text
from rules.engines.table import Engine
from rules.lifetime import since_start
from rules.readings import read_all
from rules.signals import BY_NAME, Gap, Missing, Signal, SignalValue
from rules.snapshots import Snapshot

FINE = 0
GPU_FAMILIES = frozenset({"tensor_active", "dram_active"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("page", metavar="FILE-or-URL", help="a saved page, or the address of a live one")
    parser.add_argument("--engine", metavar="NAME", help="instead of recognising it from the page")
    parser.add_argument("--bearer-token-file", metavar="FILE", help="token for the address")
    parser.add_argument("--ca-file", metavar="FILE", help="CA that signed the address's certificate")
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    """A page that cannot be read raises ScrapeError or BadRecording (exit 2)."""
    body = _body(options)
    reader = PageReader(options.engine)
    page = reader.read(body, time.time())
    engine = reader.engine
    readings = {name: _named(BY_NAME[name], value, engine, page) for name, value in read_all(since_start(page)).items()}
    if options.format == "json":
        print(json.dumps(inspect_json(engine.name, page, readings, reader.uses), indent=2))
    else:
        title = f"{options.page}: {engine.title}, generation {engine.generation.upper()}"
        print(inspect_text(title, page, readings, reader.uses))
    return FINE


def _named(signal: Signal, value: SignalValue, engine: Engine, page: Snapshot) -> SignalValue:
    """A gap `not_exposed` says by what, and why where the table knows."""
    if not isinstance(value, Missing) or value.gap is not Gap.NOT_EXPOSED or value.text:
        return value
    if any(family.startswith("gpu_") or family in GPU_FAMILIES for family in signal.families):
        return replace(value, text="read from the GPU, not from an engine's page")
    if "in_system_change" in signal.families:
        return replace(value, text="one page tells no change")
    told = dict(engine.not_exposed)
    why = next((told[family] for family in signal.families if family in told), "")
    title = f"{engine.title} {page.facts.get('engine_versions', '')}".strip()
    return replace(value, text=why or f"not exposed by {title}, or not switched on")


def _body(options: argparse.Namespace) -> bytes:
    if "://" in options.page:
        fetcher = PageFetcher(
            TargetOptions(url=options.page, bearer_token_file=options.bearer_token_file, ca_file=options.ca_file)
        )
        try:
            return fetcher.fetch()
        finally:
            fetcher.close()
    try:
        return Path(options.page).read_bytes()
    except OSError as error:
        raise BadRecording(options.page, f"cannot be read: {error.strerror}") from error
