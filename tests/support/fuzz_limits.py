"""Fuzz targets of pages that cost more than they tell, and of pages whose numbers cannot be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from fuzz_pages import NOW, WORDS, check_snapshot, check_window, gpu_pages, thin_pages
from fuzz_target import Target

from agent.errors import ScrapeError, ScrapeFailure
from agent.gpu.collector import samples
from agent.http_client.line_limits import MOST_LINE_BYTES, MOST_LINES, LineLimits
from agent.scrape.exposition import MODEL_LABELS, MOST_LABEL, MOST_MODELS, MOST_SERIES, NAME_LISTS, SeriesReader
from agent.scrape.scrapers import PageReader
from rules.gpu_sources.exporter import GpuExporterPage
from rules.gpu_sources.registry import EXPORTERS
from rules.telemetry import gpu_windows, windows
from rules.telemetry.families import MOST_OF_GAUGE, MOST_PER_SECOND, stem
from rules.telemetry.gpu_limits import LEVELS, PER_SECOND, REFRESH_SECONDS
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window

SECONDS = 15.0
NUMBERS = (
    *(b"5e18", b"1e13", b"1e300", b"-1e13", b"-1", b"0", b"1", b"1.06", b"101", b"151", b"4999", b"5001"),
    *(b"1e7", b"1.1e7", b"9999", b"10000", b"2147483632", b"140737488355328", b"NaN", b"+Inf"),
)


def everything(name: str) -> bool:
    return True


def _in_parts(page: bytes, size: int) -> bool:
    limits = LineLimits()
    try:
        for place in range(0, len(page), size):
            limits.check(page[place : place + size])
    except ScrapeError:
        return False
    return True


def _refusal(page: bytes) -> ScrapeFailure | None:
    try:
        SeriesReader(everything).read(page)
    except ScrapeError as error:
        return error.kind
    return None


def run_page_limits(data: bytes) -> None:
    """The first two bytes are how large the parts are in which the page arrives."""
    size, page = 1 + int.from_bytes(data[:2], "big"), data[2:]
    lines = page.split(b"\n")
    bounded = len(lines) - 1 <= MOST_LINES and max(map(len, lines)) <= MOST_LINE_BYTES
    if len(page) // size < 4_096:
        assert _in_parts(page, size) == bounded, "the parts decide otherwise than the page"
    if not bounded and page.endswith(b"\n"):
        assert _refusal(page) is ScrapeFailure.TOO_LARGE, "lines without end are refused for something else, or read"
    parsed = SeriesReader(everything).read(page)
    assert len(parsed.series) <= MOST_SERIES
    labels = [label for series in parsed.series for label in series.labels]
    assert all(len(text) <= MOST_LABEL or name in NAME_LISTS for name, text in labels), "a label without end"
    assert len({text for name, text in labels if name in MODEL_LABELS}) <= MOST_MODELS, "models without end"


def _costly() -> Iterator[bytes]:
    page = min(thin_pages(), key=len)
    for size in (b"\x00\x00", b"\x00\x3f", b"\x40\x00", b"\xff\xff"):
        yield size + page
    whole = b"\xff\xff" + page
    yield whole + b"\n" * (MOST_LINES - page.count(b"\n"))
    yield whole + b"\n" * MOST_LINES
    yield whole + b"#" * MOST_LINE_BYTES + b"\n"
    yield whole + b"#" * (MOST_LINE_BYTES + 1) + b"\n"
    yield b"\xff\xff" + b"".join(b'x{model_name="m%d"} 1\n' % n for n in range(MOST_MODELS + 1))
    yield b"\xff\xff" + b'x{model_name="' + b"m" * (MOST_LABEL + 1) + b'"} 1\n'


def _renumbered(page: bytes, data: bytes) -> bytes:
    """The page with other numbers: three bytes name a line and its number."""
    lines = page.splitlines()
    places = [place for place, line in enumerate(lines) if line and not line.startswith(b"#")]
    for at in range(0, len(data) - 2, 3):
        place = places[int.from_bytes(data[at : at + 2], "big") % len(places)]
        lines[place] = lines[place].rpartition(b" ")[0] + b" " + NUMBERS[data[at + 2] % len(NUMBERS)]
    return b"\n".join(lines) + b"\n"


def run_impossible(data: bytes) -> None:
    """The first byte chooses an engine's page, the rest its numbers."""
    page = thin_pages()[(data[:1] or b"\0")[0] % len(thin_pages())]
    reader = PageReader()
    before = reader.read(page, NOW)
    for later in (_renumbered(page, data[1:]), page):
        after = reader.read(later, before.t + SECONDS)
        check_snapshot(after)
        assert all(value <= MOST_OF_GAUGE.get(name, value) for name, value in after.gauges.items()), "beyond its limit"
        window = windows.diff_snapshots(before, after)
        check_window(window)
        _check_rates(window, MOST_PER_SECOND, SECONDS)
        before = after


def run_impossible_gpu(data: bytes) -> None:
    """The first byte chooses a GPU exporter's page, the rest its numbers."""
    choice, page = _gpu_pages()[(data[:1] or b"\0")[0] % len(_gpu_pages())]
    exporter = EXPORTERS[choice]

    def read(body: bytes, t: float) -> GpuExporterPage:
        return exporter.read(samples(SeriesReader(exporter.wanted).read(body)), t)

    earlier = {one.gpu: one for one in read(page, NOW).readouts}
    for later in read(_renumbered(page, data[1:]), NOW + SECONDS).readouts:
        for name, value in later.gauges.items():
            least, most = LEVELS[name]
            assert least <= value <= most, f"{name} is {value}"
        used, total = (later.gauges.get(f"gpu_memory_{part}_bytes") for part in ("used", "total"))
        assert used is None or total is None or used <= total, "more memory is used than there is"
        window = gpu_windows.diff_readouts(earlier[later.gpu], later) if later.gpu in earlier else None
        if window is not None:
            _check_rates(window, PER_SECOND, SECONDS + REFRESH_SECONDS)


def _check_rates(window: Window, most: Mapping[str, float], seconds: float) -> None:
    for name, value in window.counters.items():
        assert value <= most.get(stem(name), math.inf) * seconds, f"{name} grew by {value}"
    impossible = {name for name, gap in window.gaps.items() if gap is Gap.IMPOSSIBLE}
    assert impossible.isdisjoint({*window.counters, *window.gauges, *window.histograms}), "a gap that is a reading"


@cache
def _gpu_pages() -> tuple[tuple[int, bytes], ...]:
    """Every page with the place of its exporter."""
    found = []
    # A page of a manual has "..." for what it leaves out: nothing reads that.
    for page in (one for one in gpu_pages() if b"\n..." not in one):
        for place, exporter in enumerate(EXPORTERS):
            if exporter.read(samples(SeriesReader(exporter.wanted).read(page)), NOW).readouts:
                found.append((place, page))
    return tuple(found)


def _chosen(pages: int) -> Iterable[bytes]:
    for place in range(pages):
        yield bytes([place]) + b"".join(
            bytes([line >> 8, line & 255, line % len(NUMBERS)]) for line in range(0, 300, 7)
        )


TARGETS = (
    Target(
        name="page_limits",
        run=run_page_limits,
        seeds=_costly,
        words=(*WORDS, b"\n" * 1_000, b"# \n" * 500, b"m" * 257),
        reads=("agent.scrape.exposition", "agent.scrape.page_layout", "agent.http_client.line_limits"),
    ),
    Target(
        name="impossible",
        run=run_impossible,
        seeds=lambda: _chosen(len(thin_pages())),
        reads=("rules.engines.normalize", "rules.telemetry.windows"),
    ),
    Target(
        name="impossible_gpu",
        run=run_impossible_gpu,
        seeds=lambda: _chosen(len(_gpu_pages())),
        reads=("rules.telemetry.gpu_limits", "rules.telemetry.gpu_windows", "rules.gpu_sources.devices"),
    ),
)
