"""Command `sizewatch inspect FILE-or-URL`: what a page exposes, signal by signal, or why it does not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from agent.cli.arguments import FORMAT, Exit, Parameters, argument, connection_options, print_result, ways_in
from agent.config.peer import DEFAULT_MAX_BYTES, Peer
from agent.errors import PathError, ScrapeError, ScrapeFailure
from agent.gpu.collector import samples
from agent.http_client.client import fetch_page, place_of, wrong_content
from agent.scrape.exposition import SeriesReader
from agent.scrape.scrapers import PageReader
from exporters.documents.diagnosis import (
    explain_gap,
    inspect_gpus_json,
    inspect_gpus_text,
    inspect_json,
    inspect_text,
)
from rules.engines import coverage
from rules.gpu_sources.exporter import explain_families
from rules.gpu_sources.registry import EXPORTERS, detect_exporter
from rules.telemetry.readings import read_all, window_since_start
from rules.telemetry.signals import BY_NAME


def _print_engine_page(options: SimpleNamespace, body: bytes, page_name: str) -> None:
    """Print every engine of a page. Raise ScrapeError for a page of no known engine."""
    reader = PageReader()
    engines = reader.read_engines(body, time.time())
    documents, texts = {}, []
    holds = reader.describe_engines()
    if holds:
        texts.append(f"{page_name}: {holds}, each is a replica")
    for name, page in engines.items():
        why_no_rate = ""
        if "://" not in options.page:
            why_no_rate = "a saved page does not tell when it was saved"
        elif page.started_at is None:
            why_no_rate = "the page does not tell when its process started"
        table = reader.engine_of(name)
        readings = {
            signal: explain_gap(BY_NAME[signal], value, table, page, why_no_rate)
            for signal, value in read_all(window_since_start(page)).items()
        }
        uses = coverage.explain_families(table, reader.families)
        documents[name] = inspect_json(table.name, page, readings, uses)
        title = f"{name or page_name}: {table.title}, generation {table.generation}"
        texts.append(inspect_text(title, page, readings, uses))
    document = {"schema": 1, "holds": holds, "engines": documents} if holds else documents[""]
    print_result(options, document, "\n\n".join(texts))


def _print_gpu_page(options: SimpleNamespace, body: bytes, page_name: str) -> bool:
    """Print a page of a GPU exporter. Return whether it is one. Raise ScrapeError for an invalid page."""
    parsed = SeriesReader(lambda name: any(exporter.wanted(name) for exporter in EXPORTERS)).read(body)
    series = tuple(samples(parsed))
    exporter = detect_exporter((name, labels) for name, labels, _ in series)
    if exporter is None:
        return False
    page = exporter.read(series, time.time())
    uses = explain_families(exporter, parsed.families)
    text = inspect_gpus_text(f"{page_name}: {exporter.title}", exporter, page, uses)
    print_result(options, inspect_gpus_json(exporter, page, uses), text)
    return True


def parameters() -> Parameters:
    page = argument("page", "FILE-or-URL", "a saved page, or the address of a live one", str)
    return page, *connection_options(), *FORMAT


def run(options: SimpleNamespace) -> int:
    """Print the page. An unreadable page raises ScrapeError or PathError, which name it (exit 2)."""
    body = read_page_body(options, options.page)
    with naming(options.page) as name:
        try:
            _print_engine_page(options, body, name)
        except ScrapeError as error:
            if error.kind is not ScrapeFailure.INCONSISTENT or not _print_gpu_page(options, body, name):
                raise
    return Exit.FINE


@contextmanager
def naming(page: str) -> Iterator[str]:
    """Yield the page's name without a query, which may be a secret. A ScrapeError gets it."""
    name = place_of(page) if "://" in page else page
    try:
        yield name
    except ScrapeError as error:
        if error.text.startswith(name):
            raise
        raise ScrapeError(error.kind, f"{name}: {error.text}") from error


def read_page_body(options: SimpleNamespace, page: str) -> bytes:
    """Return a live page, or a saved one without its byte order mark. Raise ScrapeError or PathError."""
    if "://" in page:
        return fetch_page(Peer.read(dict(url=page, **ways_in(options))))
    try:
        with Path(page).open("rb") as file:
            body = file.read(DEFAULT_MAX_BYTES + 1).removeprefix(b"\xef\xbb\xbf")
    except (OSError, ValueError) as error:
        text = f"cannot be read: {getattr(error, 'strerror', error)}"
        text += "; an address begins with http://" if isinstance(error, FileNotFoundError) else ""
        raise PathError(page, text) from error
    if len(body) > DEFAULT_MAX_BYTES:
        raise PathError(page, f"is larger than {DEFAULT_MAX_BYTES >> 20} MiB: is this a saved page?")
    if wrong := wrong_content(page, "", body[:100]):
        raise wrong
    return body
