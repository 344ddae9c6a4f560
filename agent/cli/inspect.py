"""`sizewatch inspect FILE-or-URL`: what a page exposes, signal by signal.

Owns where the page comes from and whose it is; what is said of it is `inspect_engine`'s or `inspect_gpus`'s.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from agent.cli import inspect_engine, inspect_gpus
from agent.cli.arguments import add_format
from agent.cli.connecting import add_ways_in, target_options
from agent.errors import ConfigError, RecordingError
from agent.http_client.error_text import place_of, wrong_content
from agent.http_client.pages import PageFetcher
from rules.engines.registry import ENGINES

FINE = 0

_OMITTED = re.compile(rb"^[ \t]*(?:\.{3,}|\xe2\x80\xa6)[ \t]*\r?$", re.MULTILINE)
"""A line of dots alone, which stands for lines that whoever published a page left out."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("page", metavar="FILE-or-URL", help="a saved page, or the address of a live one")
    parser.add_argument("--engine", metavar="NAME", help="instead of recognising it from the page")
    add_ways_in(parser)
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    """A page that cannot be read raises ScrapeError or BadRecording (exit 2)."""
    _check_engine(options.engine)
    live = "://" in options.page
    body, notes = (_asked(options), ()) if live else _without_omissions(_saved(options.page))
    as_json = options.format == "json"
    # The query of an address may be a secret.
    name = place_of(options.page) if live else options.page
    gpus = inspect_gpus.detect_gpu_page(body) if options.engine is None else None
    if gpus is not None:
        print(inspect_gpus.render_gpu_page(gpus, name, as_json=as_json, notes=notes))
    else:
        print(inspect_engine.render_engine_page(body, name, options.engine, live=live, as_json=as_json, notes=notes))
    return FINE


def _check_engine(name: str | None) -> None:
    known = sorted({engine.name for engine in ENGINES})
    if name is not None and name not in known:
        raise ConfigError((f"--engine {name}: is none that sizewatch reads; there is {', '.join(known)}",))


def _without_omissions(body: bytes) -> tuple[bytes, tuple[str, ...]]:
    """A saved page whose lines of dots say nothing, and which they were. A live page with such a line stays refused."""
    found = [body.count(b"\n", 0, match.start()) + 1 for match in _OMITTED.finditer(body)]
    notes = tuple(f"line {number} is dots alone: the page is an excerpt, and lines were left out" for number in found)
    return _OMITTED.sub(b"#", body), notes


def _asked(options: argparse.Namespace) -> bytes:
    fetcher = PageFetcher(target_options(options, options.page))
    try:
        return fetcher.fetch()
    finally:
        fetcher.close()


def _saved(name: str) -> bytes:
    try:
        body = Path(name).read_bytes()
    except (OSError, ValueError) as error:
        raise RecordingError(name, f"cannot be read: {getattr(error, 'strerror', error)}") from error
    if wrong := wrong_content(name, "", body[:100]):
        raise wrong
    return body
