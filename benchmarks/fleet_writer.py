"""What node agents of many replicas export, written into a real VictoriaMetrics a minute at a time.

The real cycle of role `node` reads recorded pages of an engine and stand-in GPUs and renders its own page. Its series are
multiplied by the thousand. A replica's text is made once for all that behave alike, and its names are put in place.
"""

from __future__ import annotations

import math
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import md5

import common  # noqa: F401 - finds the project
import recorded
from loops import scrape_loop
from prometheus_client.parser import text_string_to_metric_families

from agent.config.peer import Peer
from agent.gpu.collector import GpuCollector
from agent.scrape.scrapers import PageReader, ScrapeResult, Scrapers, Target
from agent.sources.recording import load, scrapes
from exporters.metrics import exposition
from rules.evaluator.observation import ReplicaKey
from rules.plan.load_bins import TierContext
from rules.telemetry.snapshots import GpuReadout

Page = tuple[float, bytes]
"""Unix seconds, and a page."""

ACTIVE = 0.4
"""Share of a GPU's second in which it works."""

GPU_COUNTERS = {
    **dict.fromkeys(("gpu_energy_covered_seconds", "gpu_throttled_covered_seconds"), 1.0),
    "gpu_energy_joules": 450.0,
    "gpu_busy_seconds": ACTIVE,
    "gpu_throttled_power_seconds": 0.01,
    "gpu_busy_covered_seconds": 1.0,
    **dict.fromkeys(("gpu_throttled_thermal_seconds", "gpu_throttled_hardware_seconds"), 0.0),
    **dict.fromkeys(("gpu_ecc_uncorrectable_errors", "gpu_ecc_correctable_errors", "gpu_fault_events"), 0.0),
}
"""What NVML says of an H100, by second."""

GPU_GAUGES = {
    "gpu_memory_used_bytes": 7.4e10,
    "gpu_memory_total_bytes": 8.55e10,
    "gpu_memory_reserved_bytes": 5e8,
    "gpu_temperature_celsius": 61.0,
    "gpu_power_limit_watts": 700.0,
    **dict.fromkeys(("gpu_gr_engine_active", "gpu_sm_active", "tensor_active", "dram_active"), ACTIVE),
    **dict.fromkeys((f"gpu_{link}_{way}_bytes_per_second" for link in ("pcie", "nvlink") for way in ("tx", "rx")), 2e9),
}

REPLICA, NODE, CARD = "@REPLICA@", "@NODE", "R" * 27
"""Placeholders of what is a replica's own."""

ADDED_LABELS = {
    "instance": f"10.42.{NODE}:19095",
    "job": "sizewatch/sizewatch-node",
    "namespace": "sizewatch",
    "pod": f"sizewatch-node-{NODE}",
    "container": "sizewatch",
    "endpoint": "http",
}
"""Labels that Prometheus' operator adds to what it scrapes."""

BEHAVIOURS = 16
"""Ways of replicas to behave: each has its load."""

SEEN = "sizewatch_target_last_success_timestamp_seconds"
OF_LOAD = ("_running", "_waiting", "kv_utilization_ratio", "kv_utilization_max_ratio", "_active_ratio")
WHOLE = ("_bucket", "_count", "requests_finished_total", "tokens_total")
POST_BYTES = 16_000_000


class StandInGpus:
    """So many H100s."""

    def __init__(self, count: int, begin: float) -> None:
        self._names = tuple(f"GPU-{number:08x}-{CARD}" for number in range(count))
        self._begin = begin

    def read(self, now: float) -> tuple[tuple[GpuReadout, ...], tuple[str, ...]]:
        counters = {name: rate * (now - self._begin) for name, rate in GPU_COUNTERS.items()}
        readouts = []
        for index, name in enumerate(self._names):
            readout = GpuReadout(
                t=now,
                gpu=name,
                index=index,
                product="NVIDIA H100 80GB HBM3",
                counters=counters,
                gauges=GPU_GAUGES,
                gaps={},
                sampled=frozenset(),
                pids=(),
            )
            readouts.append(readout)
        return tuple(readouts), ()

    def close(self) -> None:
        """Nothing is open."""


class _Pages(Scrapers):
    """Scrapers that answer with one page after the other."""

    def __init__(self, pages: Iterable[Page], key: ReplicaKey) -> None:
        super().__init__(())
        self._pages, self._key = iter(pages), key
        self._reader = PageReader(None)
        self.now = 0.0

    def turn_page(self) -> bool:
        self._page = next(self._pages, None)
        if self._page is not None:
            self.now = self._page[0]
        return self._page is not None

    def start_scrapes(self) -> dict[ReplicaKey, object]:  # type: ignore[override]
        return {}

    def collect_results(self, asked: object) -> dict[ReplicaKey, ScrapeResult]:
        assert self._page is not None
        snapshot = self._reader.read(self._page[1], self.now)
        return {self._key: ScrapeResult(t=self.now, seconds=0.1, snapshot=snapshot, error=None)}


def export_pages(pages: Iterable[Page], context: TierContext, gpus: GpuCollector) -> Iterator[Page]:
    """Yield the agent's own page after each of the engine's; all GPUs belong to the replica."""
    scrapers = _Pages(pages, (context.name, REPLICA))
    peer = Peer(url="http://127.0.0.1:1")
    target = Target(tier=context.name, replica=REPLICA, pool="mixed", peer=peer, gpus=("auto",))
    parts = scrape_loop([target], {context.name: context}, scrapers, lambda: scrapers.now, gpus)
    while scrapers.turn_page():
        parts.loop.run_cycle()
        yield scrapers.now, exposition.render(parts.status(scrapers.now), "")[0]


Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series: its name and other labels, its value at the beginning and what a minute adds; `level` of a gauge."""

    name: str
    labels: Labels
    first: float
    a_minute: float
    level: bool


def recorded_pages() -> list[Page]:
    """Return the pages of a vLLM 0.32 under light load."""
    recording, _ = load(recorded.folder("steady"))
    return [(scrape.t, scrape.body) for scrape in scrapes(recording, []) if scrape.body is not None]


def series_of_an_engine() -> list[Series]:
    """Return the series of a recorded vLLM's own page, with `up`."""
    pages = recorded_pages()
    up = Series(name="up", labels=(), first=1.0, a_minute=0.0, level=True)
    return [up, *_series(pages[0], pages[-1])]


def series_of_an_agent(context: TierContext, gpus: int) -> list[Series]:
    """Return what the node agent of a recorded vLLM exports about it and its GPUs."""
    pages = recorded_pages()
    collector = GpuCollector(StandInGpus(gpus, pages[0][0] - 15.0)) if gpus else GpuCollector(None)
    exported = list(export_pages(pages, context, collector))
    return [each for each in _series(exported[2], exported[-1]) if dict(each.labels).get("replica") == REPLICA]


def _series(early: Page, late: Page) -> Iterator[Series]:
    """Yield the series of the later page, as the earlier begins and what a minute adds."""
    first, last = _samples(early[1]), _samples(late[1])
    for (name, labels), (value, kind) in last.items():
        before = first.get((name, labels), (0.0, kind))[0]
        if kind in ("counter", "histogram"):
            rate = (value - before) / (late[0] - early[0]) * 60.0
            yield Series(name=name, labels=labels, first=before, a_minute=rate, level=False)
        else:
            yield Series(name=name, labels=labels, first=value, a_minute=0.0, level=True)


def _samples(page: bytes) -> dict[tuple[str, Labels], tuple[float, str]]:
    """Return the values of a page, with the type of their family."""
    samples = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            samples[sample.name, tuple(sorted(sample.labels.items()))] = (sample.value, family.type)
    return samples


def pod_name(tier: int, number: int) -> str:
    """Return a name as a Deployment gives it to its pods."""
    hashed = md5(f"{tier}/{number}".encode(), usedforsecurity=False).hexdigest()
    return f"vllm-llama-70b-t{tier}-6c9f7d8b5d-{hashed[:7]}"


class Writer:
    """Writes what every replica exports, a minute at a time; `tiers` are the names of their replicas."""

    def __init__(self, url: str, tiers: Sequence[Sequence[str]], series: Sequence[Series], interval: float) -> None:
        self.samples = 0
        self._url, self._tiers, self._series = url, tiers, series
        self._steps = max(1, round(60.0 / interval))
        self._done = [0.0] * BEHAVIOURS

    def write_minute(self, number: int, end: float) -> None:
        """Write the minute that ends at `end` (unix seconds), the `number`th. Minutes must follow each other."""
        texts = [self._behave(behaviour, number, end) for behaviour in range(BEHAVIOURS)]
        body = bytearray()
        for tier, replicas in enumerate(self._tiers):
            for place, name in enumerate(replicas):
                body += _own_names(texts[place % BEHAVIOURS].replace(b"@TIER@", b"tier-%d" % tier), name)
                if len(body) > POST_BYTES:
                    self._post(bytes(body))
                    body.clear()
        self._post(bytes(body))
        self.samples += self._steps * len(self._series) * sum(map(len, self._tiers))

    def _behave(self, behaviour: int, number: int, end: float) -> bytes:
        """Return the lines of a replica of one behaviour. Its load is a share of the recorded load, and swings."""
        load = (0.3 + 0.11 * behaviour) * (1.0 + 0.25 * math.sin(number / 9.0 + behaviour))
        lines = []
        for step in range(1, self._steps + 1):
            part = step / self._steps
            t = end - 60.0 * (1.0 - part) - 14.0 + 0.8 * behaviour
            done = self._done[behaviour] + load * part
            for series in self._series:
                value = self._value(series, load, done, number + part, t)
                labels = {**dict(series.labels), **ADDED_LABELS, "tier": "@TIER@", "replica": REPLICA}
                text = ",".join(f'{name}="{label}"' for name, label in labels.items())
                lines.append(f"{series.name}{{{text}}} {value!r} {round(t * 1000)}\n")
        self._done[behaviour] += load
        return "".join(lines).encode()

    def _value(self, series: Series, load: float, done: float, minutes: float, t: float) -> float:
        if series.name == SEEN:
            return t - 0.25
        if series.level:
            value = series.first * (load if series.name.endswith(OF_LOAD) else 1.0)
        else:
            value = series.first + series.a_minute * (minutes if "_gpu_" in series.name else done)
        return math.floor(value) if series.name.endswith(WHOLE) else value

    def _post(self, body: bytes) -> None:
        for path, data in (("/api/v1/import/prometheus", body), ("/internal/force_flush", b"")):
            with urllib.request.urlopen(urllib.request.Request(self._url + path, data=data), timeout=300):
                pass


def _own_names(text: bytes, name: str) -> bytes:
    card = md5(name.encode(), usedforsecurity=False).hexdigest()[: len(CARD)]
    named = text.replace(REPLICA.encode(), name.encode())
    return named.replace(NODE.encode(), card[:5].encode()).replace(CARD.encode(), card.encode())
