"""Fuzz targets that read exposition pages: an engine's, a GPU exporter's, a recording's.

A page is read by a reader that already knows another one, and by a fresh one: what the fresh one refuses, no cache may let
through, and what both read must be the same.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from fuzz_target import Target, bounded_words, sound
from gpu_page import DCGM_PAGE
from paths import TESTS

from agent.errors import ScrapeError
from agent.gpu.collector import samples
from agent.replay.replay import replay
from agent.scrape.exposition import SeriesReader
from agent.scrape.scrapers import PageReader
from agent.sources.recording import load, scrapes
from exporters.render.text import one_line
from rules.gpu_sources.registry import EXPORTERS
from rules.telemetry import gpu_windows, windows
from rules.telemetry.histograms import check_cumulative
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window

HERE = TESTS
NOW = 1_800_000_000.0
SHARED = HERE.parent.parent / "shared" / "pages"

WORDS = (
    *(b"NaN", b"+Inf", b"-Inf", b"-1", b"1e308", b"1e999", b"9" * 400, b"1_0", b"# EOF\n", b"# TYPE ", b"# HELP "),
    *(b'le="+Inf"', b'le="-Inf"', b'le="nan"', b'{a="b"} ', b" 1\n", b"\\", b"\xff", b"\r", b"\x1c", b"\xc2\x85"),
    *(b'model_name="' + b"A" * 10_000 + b'"', b" # {", b"vllm:", b"_total", b"_bucket", b"_created", b"\n"),
)

SIGNED = {"in_system_change"}
"""Of a window's counters those that may fall."""


@cache
def engine_pages() -> tuple[bytes, ...]:
    """Our own pages of engines, the smallest first."""
    return tuple(sorted((path.read_bytes() for path in sorted((HERE / "pages").iterdir())), key=len))


_SAMPLE = re.compile(rb"[^{ ]+")
_EDGE = re.compile(rb',?le="([^"]*)",?')
_EVERY_BUCKET = 8


def thinned(page: bytes) -> bytes:
    """The first series of each family, of a histogram every eighth bucket and the last: as varied, and a tenth as long, so
    that ten times as many cases are tried in the same time."""
    series: dict[bytes, tuple[bytes, int]] = {}
    kept = []
    for line in page.splitlines(keepends=True):
        found = _SAMPLE.match(line)
        if line.startswith(b"#") or found is None:
            kept += [line] if not line.startswith(b"# HELP") else []
            continue
        labels, edge = _EDGE.sub(b"", line.rpartition(b" ")[0]), _EDGE.search(line)
        first, seen = series.setdefault(found[0], (labels, 0))
        if labels == first:
            series[found[0]] = first, seen + 1
            if edge is None or seen % _EVERY_BUCKET == 0 or edge[1] == b"+Inf":
                kept.append(line)
    return b"".join(kept)


@cache
def thin_pages() -> tuple[bytes, ...]:
    """The same pages, thinned."""
    return tuple(map(thinned, engine_pages()))


def _all_engine_pages() -> Iterator[bytes]:
    yield from thin_pages()
    yield from engine_pages()[:4]
    yield from (thinned(path.read_bytes()) for path in sorted(SHARED.glob("**/*.prom")))


def gpu_pages() -> Iterator[bytes]:
    yield from (path.read_bytes() for path in sorted((HERE / "gpu_exporter_pages").glob("*.prom")))
    yield DCGM_PAGE.encode()
    for name in ("*gpu_exporter*.prom", "dcgm*.prom", "amd*.prom"):
        yield from (path.read_bytes() for path in sorted(SHARED.glob(name)))


def check_snapshot(page: Snapshot) -> None:
    """What normalisation promises of every page it lets through."""
    sound(page.counters, "counter")
    sound(page.gauges, "gauge")
    for family, one in page.histograms.items():
        assert check_cumulative(one.edges, one.counts, one.counts[-1]) is None, f"histogram {family}"
        assert one.total is None or math.isfinite(one.total), f"sum of {family}"
    assert page.broken.isdisjoint({*page.counters, *page.gauges, *page.histograms}), "a broken family is used"
    bounded_words(page.problems)


def check_window(window: Window) -> None:
    """What a window of two such pages may hold."""
    sound({name: value for name, value in window.counters.items() if name not in SIGNED}, "increase of")
    for family, parts in window.histograms.items():
        for part in parts:
            assert all(0 <= count < math.inf for count in part.counts), f"increase of {family}"
    for family, gauge in window.gauges.items():
        sound({family: gauge.integral}, "integral of")
        sound({family: gauge.seconds}, "seconds of")


def _tried(reader: PageReader, data: bytes, t: float) -> Snapshot | ScrapeError:
    try:
        return reader.read(data, t)
    except ScrapeError as error:
        return error


@cache
def _as_read(place: int) -> str:
    """What a fresh reader makes of a known page."""
    return repr(PageReader().read(thin_pages()[place], NOW + 30))


def run_page(data: bytes) -> None:
    """The first byte chooses the page that the reader knows before."""
    place = (data[:1] or b"\0")[0] % len(thin_pages())
    known, body = thin_pages()[place], data[1:]
    warm, cold = PageReader(), PageReader()
    before = warm.read(known, NOW)
    found, fresh = _tried(warm, body, NOW + 15), _tried(cold, body, NOW + 15)
    if isinstance(found, Snapshot):
        assert not isinstance(fresh, ScrapeError), f"only a reader that knows another page reads it ({fresh})"
        assert repr(found) == repr(fresh), "two readers read two things"
        check_snapshot(found)
        if found.engine == before.engine:
            check_window(windows.diff_snapshots(before, found))
        check_cuts(cold, body, found)
        assert warm.uses, "a page without families"
    if isinstance(found, Snapshot) and body.endswith(b"# EOF\n") and not known.endswith(b"# EOF\n"):
        # After a page that says where it ends one that does not is cut off, once: another server may answer there now.
        assert isinstance(_tried(warm, known, NOW + 30), ScrapeError), "a page without its end is read"
    assert repr(_tried(warm, known, NOW + 30)) == _as_read(place), "it left a trace"
    if isinstance(fresh, ScrapeError):
        raise fresh


def check_cuts(reader: PageReader, body: bytes, whole: Snapshot) -> None:
    """A page that is not whole, to a reader of the whole one: cut inside a line it is refused, and so is one whose format says
    where it ends. Where nothing says it, what is read of histograms is as it was, or broken."""
    place = 1 + zlib.crc32(body) % len(body)
    ended = body.rstrip(b"\n").endswith(b"# EOF")
    for cut in (body[:place], body[: body.rfind(b"\n", 0, place) + 1]):
        if cut in (b"", body):
            continue
        reader.read(body, NOW)
        found = _tried(reader, cut, NOW + 15)
        allowed = cut.endswith(b"\n") and not ended
        assert isinstance(found, ScrapeError) or allowed, f"{len(cut)} of {len(body)} bytes are read"
        if isinstance(found, Snapshot):
            check_snapshot(found)
            for family, one in found.histograms.items():
                known = whole.histograms.get(family)
                fewer = known is not None and set(one.edges) < set(known.edges)
                assert one.edges == (math.inf,) or not fewer, f"a smaller histogram {family}"


def run_gpu_page(data: bytes) -> None:
    exporter, body = EXPORTERS[data[0] % len(EXPORTERS) if data else 0], data[1:]
    page = exporter.read(samples(SeriesReader(exporter.wanted).read(body)), NOW)
    # Labels may hold any sign; what is logged or shown of them is made plain there (exporters.render.text).
    bounded_words(map(one_line, page.problems))
    names = [readout.gpu for readout in page.readouts]
    assert len(names) == len(set(names)), "two GPUs of one name"
    for readout in page.readouts:
        sound(readout.counters, "counter")
        assert all(map(math.isfinite, readout.gauges.values())), f"gauges {dict(readout.gauges)}"
        bounded_words(readout.gaps.values())
        window = gpu_windows.diff_readouts(readout, readout)
        assert window is None or window.covered_seconds >= 0


def recording_of(data: bytes, folder: Path) -> None:
    """A recording's two files out of one input: its index, a line of ---, then its scrapes."""
    index, _, lines = data.partition(b"\n---\n")
    (folder / "recording.yaml").write_bytes(index)
    packed = lines if lines.startswith(b"\x1f\x8b") else gzip.compress(lines, compresslevel=1)
    (folder / "scrapes.jsonl.gz").write_bytes(packed)


def run_recording(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        recording_of(data, Path(name))
        recording, problems = load(Path(name))
        found = replay(recording, None, problems=problems)
        bounded_words(problem.replace("\n", " ") for problem in found.problems)
        for shown in found.windows:
            check_window(shown.window)
        assert [scrape.t for scrape in scrapes(recording, [])] == sorted(s.t for s in scrapes(recording, []))


INDEX = b"name: n\ntargets:\n  - {file: scrapes.jsonl.gz, tier: t, replica: r, engine: vllm}"


def _recordings() -> Iterator[bytes]:
    small = thin_pages()[:3]
    lines = [json.dumps({"t": NOW + 15 * place, "text": page.decode()}) for place, page in enumerate(small)]
    lines.append(json.dumps({"t": NOW + 60, "error": "timeout"}))
    yield INDEX + b"\n---\n" + "\n".join(lines).encode()
    yield INDEX + b'\n---\n{"t": 1, "error": "x"}\n{"t": 2, "text": ""}\n'
    yield INDEX + b"\n---\n" + gzip.compress(b'{"t": 1, "error": "x"}\n{"t": 2, "text": "a 1"}\n', mtime=0)
    # What unpacks to a thousand times as much: blank lines, and one line without end.
    for bomb in (b"\n" * 2_000_000, b"a" * 20_000_000):
        yield INDEX + b"\n---\n" + gzip.compress(bomb, mtime=0)
    several = b"".join(
        b"  - {file: scrapes.jsonl.gz, tier: t, replica: r%d, pool: decode}\n" % place for place in range(3)
    )
    yield b"name: n\ntargets:\n" + several + b"---\n" + "\n".join(lines).encode()


def _chosen(pages: Iterable[bytes], choices: int) -> Iterator[bytes]:
    for place, page in enumerate(pages):
        yield bytes([place % choices]) + page


def _of_their_exporter() -> Iterator[bytes]:
    for place in range(len(EXPORTERS)):
        yield from (bytes([place]) + page for page in gpu_pages())


_PAGE = (
    *(
        "agent.scrape.exposition",
        "agent.scrape.exposition_lines",
        "agent.scrape.scrapers",
        "agent.scrape.exposition_lines",
    ),
    *("rules.engines.layout", "rules.engines.normalize", "rules.engines.coverage", "rules.engines.registry"),
)
_GPU_PAGE = (*(f"rules.gpu_sources.{one}" for one in ("amd", "dcgm", "devices", "exporter", "nvidia_smi")),)

TARGETS = (
    Target(
        name="page",
        run=run_page,
        seeds=lambda: _chosen(_all_engine_pages(), len(engine_pages())),
        words=WORDS,
        reads=_PAGE,
    ),
    Target(name="gpu_page", run=run_gpu_page, seeds=_of_their_exporter, words=WORDS, reads=_GPU_PAGE),
    Target(
        name="recording",
        run=run_recording,
        seeds=_recordings,
        reads=("agent.sources.recording", "agent.replay.replay"),
        words=(*WORDS, b'{"t": ', b"\\ud800", b"2026-13-45", b"[" * 2000, b"\\u0000", b"A" * 5000, b"1" + b"0" * 400),
    ),
)
