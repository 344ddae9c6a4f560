"""What one replica's node agent exports, from recorded or saved pages of its engine and from stand-in GPUs.

The real turn of role `node` reads the pages and renders its own: what `docs/scaling.md` counts, and what
`benchmarks/fleet.py` multiplies by the thousand, is what an agent would say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from agent.config.config import Config
from agent.config.load import LoadedConfig
from agent.config.peer import Peer
from agent.daemon.assembly import Assembly
from agent.daemon.status_builder import status
from agent.gpu.collector import GpuCollector
from agent.pipeline.change_log import ChangeLog
from agent.pipeline.loop import EvaluationLoop
from agent.pipeline.runtime_state import RuntimeState
from agent.scrape.scrapers import PageReader, ScrapeResult, Scrapers, Target
from agent.sources.scrape import ScrapeSource
from exporters.metrics import exposition
from exporters.status.records import AgentHealth
from rules.evaluator.observation import ReplicaKey
from rules.plan.load_bins import TierContext
from rules.telemetry.snapshots import GpuReadout

Page = tuple[float, bytes]
"""Unix seconds, and the engine's page."""

PART = 0.4
"""Of a GPU's second in which it does what is summed up."""

GPU_COUNTERS = {
    **dict.fromkeys(("gpu_energy_covered_seconds", "gpu_throttled_covered_seconds"), 1.0),
    "gpu_energy_joules": 450.0,
    "gpu_busy_seconds": PART,
    "gpu_throttled_power_seconds": 0.01,
    "gpu_busy_covered_seconds": 1.0,
    **dict.fromkeys(("gpu_throttled_thermal_seconds", "gpu_throttled_hardware_seconds"), 0.0),
    **dict.fromkeys(("gpu_ecc_uncorrectable_errors", "gpu_ecc_correctable_errors", "gpu_fault_events"), 0.0),
}
"""What NVML tells of an H100, by second."""

GPU_GAUGES = {
    "gpu_memory_used_bytes": 7.4e10,
    "gpu_memory_total_bytes": 8.55e10,
    "gpu_memory_reserved_bytes": 5e8,
    "gpu_temperature_celsius": 61.0,
    "gpu_power_limit_watts": 700.0,
    **dict.fromkeys(("gpu_gr_engine_active", "gpu_sm_active", "tensor_active", "dram_active"), PART),
    **dict.fromkeys((f"gpu_{link}_{way}_bytes_per_second" for link in ("pcie", "nvlink") for way in ("tx", "rx")), 2e9),
}


class StandInGpus:
    """So many H100s as NVML tells of them."""

    def __init__(self, count: int, begin: float) -> None:
        self._names = tuple(f"GPU-{number:08x}-{'R' * 27}" for number in range(count))
        self._begin = begin

    def read(self, now: float) -> tuple[tuple[GpuReadout, ...], tuple[str, ...]]:
        seconds = now - self._begin
        counters = {name: rate * seconds for name, rate in GPU_COUNTERS.items()}
        return tuple(_readout(now, place, name, counters) for place, name in enumerate(self._names)), ()

    def close(self) -> None:
        """Nothing is open."""


def _readout(now: float, index: int, name: str, counters: dict[str, float]) -> GpuReadout:
    return GpuReadout(
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


class _Pages(Scrapers):
    """Scrapers that answer with one page after the other."""

    def __init__(self, pages: Iterable[Page], key: ReplicaKey, engine: str | None) -> None:
        super().__init__(())
        self._pages = iter(pages)
        self._key = key
        self._reader = PageReader(engine)
        self.now = 0.0

    def turn_page(self) -> bool:
        self._page = next(self._pages, None)
        self.now = self._page[0] if self._page is not None else self.now
        return self._page is not None

    def start_scrapes(self) -> dict[ReplicaKey, object]:  # type: ignore[override]
        return {}

    def collect_results(self, asked: object) -> dict[ReplicaKey, ScrapeResult]:
        assert self._page is not None
        page = self._reader.read(self._page[1], self.now)
        return {self._key: ScrapeResult(t=self.now, seconds=0.1, snapshot=page, error=None)}


def exported(
    pages: Iterable[Page],
    context: TierContext,
    replica: str,
    gpus: GpuCollector | None = None,
    engine: str | None = None,
) -> Iterator[tuple[float, bytes]]:
    """The agent's own page after each of the engine's, with its time; `gpus` all belong to the replica."""
    key = (context.name, replica)
    scrapers = _Pages(pages, key, engine)
    target = Target(
        tier=context.name,
        replica=replica,
        pool="mixed",
        peer=Peer(url="http://127.0.0.1:1"),
        gpus=("auto",),
    )
    source = ScrapeSource([target], scrapers, gpus or GpuCollector(None), clock=lambda: scrapers.now)
    runtime = RuntimeState()
    loop = EvaluationLoop(source=source, tiers={context.name: context}, sinks=(runtime,), clock=lambda: scrapers.now)
    parts = bare_assembly(loop, runtime, "node")
    while scrapers.turn_page():
        loop.run_cycle()
        yield scrapers.now, exposition.render(status(parts, scrapers.now, AgentHealth()), "")[0]


def bare_assembly(loop: EvaluationLoop, runtime: RuntimeState, role: str) -> Assembly:
    """Return the parts of a daemon that has only a loop, for its status."""
    loaded = LoadedConfig(path=Path("sizewatch.yaml"), config=Config.model_construct(role=role), plan=None, warnings=())
    return Assembly(loaded=loaded, loop=loop, runtime=runtime, log=ChangeLog(), versions={})


Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series of a replica: its labels in order, with `__name__`; its value at the beginning and what is added a minute;
    `level` of a gauge, which goes to and fro instead."""

    labels: Labels
    first: float
    a_minute: float
    level: bool

    @property
    def name(self) -> str:
        return dict(self.labels)["__name__"]


def samples(page: bytes) -> dict[Labels, tuple[float, str]]:
    """The values of a page by labels, with the type of their family."""
    return {
        tuple(sorted({**one.labels, "__name__": one.name}.items())): (one.value, family.type)
        for family in text_string_to_metric_families(page.decode())
        for one in family.samples
    }


def replica_series(pages: Sequence[Page], context: TierContext, replica: str, gpus: int) -> tuple[Series, ...]:
    """Everything that the agent of one replica exports about it, as it begins and what a minute adds."""
    begin = pages[0][0]
    told = list(exported(pages, context, replica, GpuCollector(StandInGpus(gpus, begin - 15.0)) if gpus else None))
    return tuple(one for one in page_series(told[2], told[-1]) if dict(one.labels).get("replica") == replica)


def page_series(early: Page, late: Page) -> Iterator[Series]:
    """Yield the series of the later of two pages, as the earlier begins and what a minute adds."""
    (start, first_body), (end, last_body) = early, late
    first, last = samples(first_body), samples(last_body)
    for labels, (value, kind) in last.items():
        before = first.get(labels, (0.0, kind))[0]
        level = kind not in ("counter", "histogram")
        rate = 0.0 if level else (value - before) / (end - start) * 60.0
        yield Series(labels=labels, first=value if level else before, a_minute=rate, level=level)


def renamed(one: Series, changes: dict[str, str]) -> Series:
    """The same with some of its labels changed or added."""
    return replace(one, labels=tuple(sorted({**dict(one.labels), **changes}.items())))
