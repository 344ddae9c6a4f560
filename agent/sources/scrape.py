"""Source of roles node and sidecar: scrape every target and read the GPUs of this machine, once per cycle."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.config.config import Config
from agent.errors import ScrapeError, ScrapeFailure
from agent.gpu.collector import ExporterPage, GpuCollector, GpuReader
from agent.gpu.owners import GpuAssignment, assign_gpus
from agent.http_client.client import PageFetcher
from agent.pipeline.interfaces import Closable, Source
from agent.scrape.scrapers import PageEngines, ScrapeResult, Scrapers, Target
from exporters.status.records import ExportScope
from rules.evaluator.observation import Observation, ReplicaGpus, ReplicaKey, ReplicaScrape
from rules.telemetry import gpu_windows
from rules.telemetry.wording import format_count

if TYPE_CHECKING:
    # A node without discovery must not load the Kubernetes client.
    from agent.kubernetes.node_pods import PodSource


class ScrapeSource(Source):
    """Targets and GPUs of one configuration.

    `whole_tiers` says whether results of whole tiers are exported and alerted on. It is false where a node has only some
    of a tier's replicas; role fleet then exports the tier. `engines` are those that the previous configuration knew.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        scrapers: Scrapers,
        gpus: GpuCollector,
        pods: PodSource | None = None,
        clock: Callable[[], float] = time.time,
        whole_tiers: bool = True,
        engines: PageEngines | None = None,
    ) -> None:
        self._configured = tuple(targets)
        self.engines = engines or PageEngines()
        self.gpus = gpus
        self.pods = pods
        self._scrapers = scrapers
        self._clock = clock
        self._whole_tiers = whole_tiers
        self._errors: dict[ReplicaKey, ScrapeError] = {}

    @property
    def targets(self) -> tuple[Target, ...]:
        """Return the targets, with the engines of a page that holds several in its place."""
        return tuple(candidate for target in self._configured for candidate in self.engines.targets(target))

    @property
    def tiers(self) -> frozenset[str]:
        return frozenset(target.tier for target in self._configured)

    def observe(self, now: float) -> Iterator[Observation]:
        """Yield one observation, dated after the last scrape. A failed target or GPU loses only its own part."""
        running = self._scrapers.start_scrapes()
        # Read the GPUs during the scrapes: the waits for a hung driver and a hung target then overlap.
        readings = self.gpus.read_gpus(self._clock())
        before = {target.key for target in self.targets}
        observations = self._scrapers.collect_results(running)
        results = self.engines.split(self._configured, observations)
        owners = self.assign_gpus()
        self.gpus.note_owners(owners, now)
        gpus = {}
        for key, owned in owners.items():
            windows = {gpu: readings.windows[gpu] for gpu in owned.gpus if gpu in readings.windows}
            readouts = tuple(map(self.gpus.latest.__getitem__, owned.gpus))
            gpus[key] = ReplicaGpus(readouts=readouts, windows=windows, missing=owned.missing)
        pools: dict[str, dict[str, str]] = {}
        for target in self.targets:
            pools.setdefault(target.tier, {})[target.replica] = target.pool
        yield Observation(
            now=self._clock(),
            scrapes=tuple(
                self._scrape(target.key, results[target.key], owners[target.key], gpus[target.key])
                for target in self.targets
            ),
            gpus=gpus,
            gpu_problems=readings.problems,
            removed=frozenset(before - results.keys()),
            # The engines of a shared page are replicas that the configuration does not name.
            pools=pools if results.keys() != observations.keys() else {},
        )

    def assign_gpus(self) -> dict[ReplicaKey, GpuAssignment]:
        assign = assign_gpus if self.pods is None else self.pods.assign_gpus
        return assign(self.targets, self.gpus.latest)

    def _scrape(self, key: ReplicaKey, result: ScrapeResult, owned: GpuAssignment, gpus: ReplicaGpus) -> ReplicaScrape:
        snapshot, error = result.snapshot, result.error
        if snapshot is not None:
            self._errors.pop(key, None)
        elif error is not None:
            self._errors[key] = error
        last = self._errors.get(key)
        pod = self.pods.times(key) if self.pods is not None else None
        if snapshot is not None and self.pods is not None:
            snapshot = replace(snapshot, pod=pod)
        return ReplicaScrape(
            tier=key[0],
            replica=key[1],
            t=result.t,
            snapshot=snapshot,
            error=str(last) if last is not None else "",
            failure=error.kind.value if error is not None else "",
            no_engine=last is not None and last.kind is ScrapeFailure.NOT_ONE_ENGINE,
            seconds=result.seconds,
            starting=self.pods is not None and self.pods.starting(key),
            pod_created=pod.asked_at if pod is not None else None,
            gpu_window=gpu_windows.sum_gpus(gpus.windows.values()),
            gpu_problem=self.gpus.trouble(key, owned, result.t),
        )

    def describe(self) -> str:
        return format_count(len(self.targets), "target")

    def export_scope(self, tier: str) -> ExportScope:
        return ExportScope.ALL if self._whole_tiers else ExportScope.REPLICAS

    def parts(self) -> Iterator[Closable]:
        yield self._scrapers
        yield self.gpus

    def interrupt(self) -> None:
        self._scrapers.interrupt()


def make_gpu_reader(config: Config) -> GpuReader | None:
    """Return the reader of the configured source, or None without one."""
    if config.gpus.source == "nvml":
        # An agent without GPUs of its own loads no library for them.
        from agent.gpu.nvml_reader import NvmlReader

        return NvmlReader()
    if config.gpu_exporter is not None:
        exporter, peer = config.gpu_exporter
        return ExporterPage(PageFetcher(peer), exporter)
    return None
