"""Runs for the tests of telemetry, and a server in memory that has the samples of recordings and of real sweeps."""

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import recorded
from paths import TESTS
from prometheus_client.parser import text_string_to_metric_families
from result_files import read_results
from stored_recordings import MemoryStore, Sample

from agent.benchmarks import telemetry
from agent.benchmarks.formats import VllmRun
from agent.benchmarks.run_model import BenchmarkRun
from agent.benchmarks.telemetry import RunTelemetry, TelemetrySource, open_source, read_run
from agent.config.load import LoadedConfig, parse_config
from agent.sources.recording import load, scrapes
from rules.plan.schema import Point

BENCH = TESTS / "bench"
ADDRESS = "http://memory.example"
SCRAPES = 20
"""Scrapes of a run that is made of the page before it and the page after it."""


def run(
    source: str | Path = "bench.json",
    requests: int | None = None,
    started_at: float | None = None,
    ended_at: float | None = None,
) -> BenchmarkRun:
    """A run of which the file tells this much."""
    point = Point(completed_rps=1.0, requests=requests)  # type: ignore[call-arg]
    return VllmRun.model_construct(
        source=str(source), location=str(source), loop=None, point=point, started_at=started_at, ended_at=ended_at
    )


def pages_of(name: str, file: str = "metrics.jsonl.gz") -> list[tuple[float, str]]:
    """The pages of a recording with their times."""
    with gzip.open(recorded.folder(name) / file, "rt") as lines:
        told = [json.loads(line) for line in lines]
    return [(line["t"], line["text"]) for line in told if "text" in line]


def value(page: str, name: str) -> float:
    """A sum over the series of a name, read from the page by hand."""
    return sum(float(n) for n in re.findall(rf"^{re.escape(name)}\{{[^}}]*\}} (\S+)$", page, re.M))


def ratio(first: str, last: str, part: str, whole: str) -> float:
    """The share of one counter's increase in another's, read from two pages by hand."""
    return (value(last, part) - value(first, part)) / (value(last, whole) - value(first, whole))


class _Server(MemoryStore):
    def close(self) -> None:
        pass


def store_source(url: str, **series: object) -> TelemetrySource:
    """The engines' own series in the store at an address; `series` are further keys of the tier."""
    tiers = {"t": {"from": "engines", "selector": 'instance=~".+"', **series}}
    config = parse_config({"role": "fleet", "store": {"url": url, "timeout": "5s"}, "tiers": tiers})
    return open_source(LoadedConfig(path=Path("test"), config=config, plan=None, warnings=()), "t")


def found_in(samples: Iterable[Sample], measured: BenchmarkRun) -> RunTelemetry:
    """What a store with these samples gives for a run."""
    with stored(samples) as address:
        return read_run(measured, store_source(address))


@contextmanager
def stored(samples: Iterable[Sample]) -> Iterator[str]:
    """The address of a server that has these samples."""
    server = _Server.of(samples)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(telemetry, "StoreApi", lambda options: server)
        yield ADDRESS


def page_samples(
    pages: Iterable[tuple[float, str]], labels: Mapping[str, str], without: Sequence[str] = ()
) -> Iterator[Sample]:
    """The samples of pages, without the families of these names; of buckets, those of the TTFT alone."""
    for t, page in pages:
        kept = (line for line in page.splitlines() if "_bucket{" not in line or "time_to_first_token" in line)
        for family in text_string_to_metric_families("\n".join(kept) + "\n"):
            if family.name not in without:
                for sample in family.samples:
                    yield sample.name, {**sample.labels, **labels}, t, float(sample.value)


def recorded_samples(name: str, labels: Mapping[str, Mapping[str, str]], prefix: str = "vllm:") -> Iterator[Sample]:
    """The samples of a recording with the labels that a server adds to each replica's, under another prefix."""
    recording, problems = load(recorded.folder(name))
    assert problems == ()
    for scrape in scrapes(recording, []):
        added = labels.get(recording.targets[scrape.target].replica)
        if scrape.body is not None and added is not None:
            yield from page_samples([(scrape.t, scrape.body.decode().replace("vllm:", prefix))], added)


def sweep_samples(folder: Path) -> Iterator[Sample]:
    """What a server has that scraped the engine of a real sweep, of which the pages between the runs were kept.

    All requests of a run come between two scrapes in its middle. The level of the KV cache is not known.
    """
    pages = {path.stem: path.read_text() for path in folder.glob("metrics_*.prom")}
    runs = [(path.stem.removeprefix("bench_"), read_results(path)[0]) for path in folder.glob("bench_*.json")]
    before = pages["metrics_before"]
    for tag, measured in sorted(runs, key=lambda entry: entry[1].started_at or 0.0):
        after = pages.get(f"metrics_after_{tag}")
        if after is None:
            continue
        assert measured.started_at is not None
        step = (measured.ended_at - measured.started_at) / SCRAPES
        if _process(before) != _process(after):
            before = _FINAL.sub(r"\1 0", after)
        times = [measured.started_at + step * place for place in range(SCRAPES + 1)]
        several = [(t, before if place < SCRAPES // 2 else after) for place, t in enumerate(times)]
        yield from page_samples(several, {"instance": "10.0.0.5:8000"}, without=("vllm:kv_cache_usage_perc",))
        before = after


_FINAL = re.compile(r"^(\S+(?:_total|_count|_sum|_bucket)\{[^}]*\}) \S+$", re.MULTILINE)


def _process(page: str) -> str:
    """When the process of a page started."""
    return re.findall(r"^process_start_time_seconds (\S+)$", page, re.MULTILINE)[0]
