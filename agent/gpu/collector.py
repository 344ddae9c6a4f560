"""The GPUs of this node, turn by turn: readouts in, windows by GPU out.

Owns the last readout of each GPU and what is told of those that are not read. How a GPU is read is `nvml`'s or the
exporter page's business, which replica owns it `gpu_owners`'s, what a readout means `rules.telemetry.snapshots`'s.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from agent.errors import ScrapeError
from agent.gpu.owners import GpuAssignment
from agent.http_client.connection import Backoff
from agent.scrape.exposition import ParsedPage, SeriesReader
from agent.scrape.scrapers import Fetcher
from rules.gpu_sources.devices import PageChanges, same_refresh
from rules.gpu_sources.exporter import GpuExporter, GpuExporterPage, Sample
from rules.telemetry import gpu_windows
from rules.telemetry.snapshots import GpuReadout
from rules.telemetry.windows import Window

Turn = tuple[tuple[GpuReadout, ...], tuple[str, ...]]

UNREAD_SECONDS = 120.0
"""A GPU that is not read for so long is stale (four refreshes of dcgm-exporter's default)."""

_log = logging.getLogger(__name__)


class GpuReader(Protocol):
    """What reads GPUs: `agent.gpu.nvml_reader.NvmlReader`, `ExporterPage`, or a stand-in."""

    def read(self, now: float) -> Turn: ...

    def close(self) -> None: ...


class ExporterPage:
    """A GPU exporter's page as a source. Values that it has not refreshed since the last turn are not told again.

    A page that fails is left alone for a few turns, as a target's is; what was wrong is told meanwhile.
    """

    def __init__(self, fetcher: Fetcher, exporter: GpuExporter) -> None:
        self._fetcher = fetcher
        self._exporter = exporter
        self._series = SeriesReader(exporter.wanted)
        self._changes = PageChanges()
        self._last: GpuExporterPage | None = None
        self._backoff = Backoff()
        self._turns = 0
        self._trouble = ""

    def read(self, now: float) -> Turn:
        """Readouts refreshed since the last call; `now` is unix seconds."""
        self._turns += 1
        if not self._backoff.is_due(self._turns):
            return (), (self._trouble,)
        try:
            parsed = self._series.read(self._fetcher.fetch())
        except ScrapeError as error:
            self._backoff = self._backoff.record_failure(self._turns, 1.0)
            self._trouble = f"{self._exporter.title}: {error}"
            return (), (self._trouble,)
        self._backoff = self._backoff.record_success()
        page = self._exporter.read(samples(parsed), now)
        if self._exporter.keeps_values and self._last is not None and same_refresh(self._last, page):
            return (), page.problems
        self._last = page
        return self._changes.apply_page(page), page.problems

    def close(self) -> None:
        self._fetcher.close()


def samples(parsed: ParsedPage) -> Iterator[Sample]:
    """Name, labels and value of each series."""
    return ((s.name, dict(s.labels), value) for s, value in zip(parsed.series, parsed.values, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReadings:
    """One turn: windows by GPU (UUID) since its last readout, and problems in words."""

    windows: Mapping[str, Window]
    problems: tuple[str, ...]


class GpuCollector:
    """The GPUs of a node. `latest` holds the last readout of each, by UUID."""

    def __init__(self, source: GpuReader | None) -> None:
        self._source = source
        self._missing: dict[tuple[str, str], float] = {}
        self.latest: dict[str, GpuReadout] = {}

    def turn(self, now: float) -> GpuReadings:
        """Reads every GPU at `now` (unix seconds). A defect in the source costs the GPUs of this turn and is told."""
        if self._source is None:
            return GpuReadings(windows={}, problems=())
        try:
            readouts, problems = self._source.read(now)
        except Exception as error:  # noqa: BLE001 - what reads GPUs must not cost the targets their turn
            _log.exception("unexpected error reading GPUs")
            return GpuReadings(
                windows={}, problems=(f"defect in sizewatch while reading GPUs: {type(error).__name__}",)
            )
        found: dict[str, Window] = {}
        for readout in readouts:
            before = self.latest.get(readout.gpu)
            window = gpu_windows.diff_readouts(before, readout) if before is not None else None
            if window is not None:
                found[readout.gpu] = window
            self.latest[readout.gpu] = readout
        return GpuReadings(windows=found, problems=problems)

    def trouble(self, replica: tuple[str, str], owned: GpuAssignment, now: float) -> str:
        """In words which of a replica's GPUs have not been read, or not been found, for too long; empty where all have."""
        if self._source is None:
            return ""
        since = self._missing.setdefault(replica, now) if owned.missing else self._missing.pop(replica, now)
        told = [owned.missing] if now - since > UNREAD_SECONDS else []
        late = [g for g in owned.gpus if g in self.latest and now - self.latest[g].t > UNREAD_SECONDS]
        if late:
            seconds = now - min(self.latest[g].t for g in late)
            told.append(f"GPU {', '.join(late)} has not been read for {seconds:.0f} s")
        return "; ".join(told)

    def keep(self, replicas: Container[tuple[str, str]]) -> None:
        """Forgets replicas that are not watched any more."""
        self._missing = {key: since for key, since in self._missing.items() if key in replicas}

    def close(self) -> None:
        if self._source is not None:
            self._source.close()


def list_local_gpus() -> tuple[GpuReadout, ...]:
    """The GPUs of this machine by NVML; none where there is no driver."""
    # NVML takes memory: only who reads it loads it.
    from agent.gpu.nvml_reader import NvmlReader

    reader = NvmlReader()
    try:
        return reader.read(time.time())[0]
    finally:
        reader.close()
