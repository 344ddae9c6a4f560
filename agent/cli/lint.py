"""`sizewatch lint --url URL RULES...`: rule files and dashboards against what live pages print.

Owns where the pages come from; what is wrong is found in `agent.lint`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from agent.cli.arguments import add_format, add_ways_in, target_options
from agent.errors import ConfigError, RecordingError, ScrapeError
from agent.http_client.connection import PageFetcher
from agent.http_client.error_text import place_of, wrong_content
from agent.http_client.transport import TargetOptions
from agent.lint.catalogue import Page, catalogue, read_page
from agent.lint.linting import lint
from agent.lint.report import json_of, text_of

FINE, FINDING, BAD_INPUT = 0, 1, 2

PROMETHEUS_2 = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
"""What Prometheus before 3 asks for. Some servers then print `sglang_x` for `sglang:x` (METRICS trap 1): both are right."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "rules", nargs="+", metavar="RULES", help="rule files, PrometheusRule objects, dashboards (.json)"
    )
    parser.add_argument("--url", action="append", default=[], metavar="URL", help="a live page; may be given again")
    parser.add_argument("--page", action="append", default=[], metavar="FILE", help="a saved page; may be given again")
    parser.add_argument(
        "--target-label",
        action="append",
        default=[],
        metavar="NAME",
        help="a label that Prometheus puts on targets here; may be given again",
    )
    add_ways_in(parser, "the addresses")
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    """A page that cannot be read raises ScrapeError or BadRecording (exit 2)."""
    if not (options.url or options.page):
        raise ConfigError(("--url: give the address of a page, or a saved page with --page",))
    pages = [page for url in options.url for page in _live(url, options)]
    pages += [_saved(name) for name in options.page]
    found = lint(map(Path, options.rules), catalogue(pages), options.target_label)
    print(json.dumps(json_of(found), indent=2) if options.format == "json" else text_of(found))
    return BAD_INPUT if found.broken else FINDING if found.findings else FINE


def _live(url: str, options: argparse.Namespace) -> Iterator[Page]:
    """The page as sizewatch and Prometheus 3 get it, and as Prometheus 2 does where names differ there."""
    target = target_options(options, url)
    page = read_page(place_of(url), _asked(target))
    yield page
    names = {series.name for series in page.series}
    if not any(":" in name for name in names):
        return
    try:
        other = read_page(place_of(url), _asked(target, PROMETHEUS_2))
    except ScrapeError as error:
        print(f"sizewatch lint: {place_of(url)}: cannot be read as Prometheus 2 asks for it ({error})", file=sys.stderr)
        return
    if {series.name for series in other.series} != names:
        yield other


def _asked(target: TargetOptions, accept: str | None = None) -> bytes:
    fetcher = PageFetcher(target) if accept is None else PageFetcher(target, accept)
    try:
        return fetcher.fetch()
    finally:
        fetcher.close()


def _saved(name: str) -> Page:
    try:
        body = Path(name).read_bytes()
    except (OSError, ValueError) as error:
        raise RecordingError(name, f"cannot be read: {getattr(error, 'strerror', error)}") from error
    if wrong := wrong_content(name, "", body[:100]):
        raise wrong
    try:
        return read_page(name, body)
    except ScrapeError as error:
        raise RecordingError(name, f"is no metrics page: {error}") from error
