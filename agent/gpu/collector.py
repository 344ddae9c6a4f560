"""Collector of the GPUs of this node: from the readouts of a cycle to windows by GPU."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from agent.errors import ScrapeError
from agent.gpu.owners import GpuAssignment
from agent.http_client.client import PageFetcher
from agent.scrape.exposition import ParsedPage, SeriesReader
from rules.gpu_sources.devices import PageChanges, same_refresh
from rules.gpu_sources.exporter import GpuExporter, GpuExporterPage, Sample
from rules.telemetry import gpu_windows
from rules.telemetry.gpu_windows import drop_impossible
from rules.telemetry.snapshots import GpuReadout
from rules.telemetry.windows import Window

GpuRead = tuple[tuple[GpuReadout, ...], tuple[str, ...]]
"""Readouts of one cycle, and problems as texts."""

UNREAD_SECONDS = 120.0
"""Age in seconds of a stale GPU: four refreshes of dcgm-exporter's default."""

GONE_SECONDS = 300.0
"""Age in seconds of a MIG instance that no longer exists, as of a replica that is gone (`agent.fleet.stored_pages`)."""

_log = logging.getLogger(__name__)


class GpuReader(Protocol):
    """Reader of GPUs: `agent.gpu.nvml_reader.NvmlReader`, `ExporterPage`, or a fake in tests."""

    def read(self, now: float) -> GpuRead: ...

    def close(self) -> None: ...


class ExporterPage:
    """Reader of a GPU exporter's page. Values that the exporter has not refreshed are not returned again."""

    def __init__(self, fetcher: PageFetcher, exporter: GpuExporter) -> None:
        self._fetcher = fetcher
        self._exporter = exporter
        self._series = SeriesReader(exporter.wanted)
        self._changes = PageChanges()
        self._last: GpuExporterPage | None = None

    @property
    def standing_faults(self) -> Mapping[str, frozenset[str] | None]:
        """Return the codes on the last page by GPU. When they came is not known."""
        return self._last.faults if self._last is not None else {}

    def read(self, now: float) -> GpuRead:
        """Return the readouts refreshed since the last call. `now` is unix seconds."""
        try:
            parsed = self._series.read(self._fetcher.fetch())
        except ScrapeError as error:
            return (), (f"{self._exporter.title}: {error}",)
        page = self._exporter.read(samples(parsed), now)
        if self._last is not None and same_refresh(self._last, page):
            return (), page.problems
        self._last = page
        return self._changes.apply_page(page), page.problems

    def close(self) -> None:
        self._fetcher.close()


def samples(parsed: ParsedPage) -> Iterator[Sample]:
    """Yield name, labels and value of each series."""
    return ((s.name, dict(s.labels), value) for s, value in zip(parsed.series, parsed.values, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReadings:
    """Windows of one cycle by GPU (UUID) since its last readout, and problems as texts."""

    windows: Mapping[str, Window]
    problems: tuple[str, ...] = ()


def diff_latest(latest: dict[str, GpuReadout], readouts: Iterable[GpuReadout]) -> dict[str, Window]:
    """Return the window of each GPU since its latest readout, by UUID, and store the new readouts in `latest`."""
    windows = {}
    for readout in readouts:
        if not (readout.counters or readout.gauges):
            continue  # Blanks alone: a lost GPU.
        before = latest.get(readout.gpu)
        if before is not None and (window := gpu_windows.diff_readouts(before, readout)):
            windows[readout.gpu] = window
        latest[readout.gpu] = readout
    return windows


class GpuCollector:
    """Collector of the GPUs of a node. `latest` holds the last readout of each, by UUID."""

    def __init__(self, source: GpuReader | None) -> None:
        self._source = source
        self._missing: dict[tuple[str, str], float] = {}
        self.latest: dict[str, GpuReadout] = {}

    def read_gpus(self, now: float) -> GpuReadings:
        """Read every GPU at `now` (unix seconds). A defect in the source becomes a problem of this cycle."""
        if self._source is None:
            return GpuReadings(windows={})
        try:
            readouts, problems = self._source.read(now)
        except Exception as error:  # noqa: BLE001 - a defect in a GPU reader must not stop the scrapes
            _log.exception("unexpected error reading GPUs")
            text = f"defect in sizewatch while reading GPUs: {type(error).__name__}"
            return GpuReadings(windows={}, problems=(text,))
        # A new exporter may have another name of the machine.
        renamed = {self.latest[new.gpu].host: new.host for new in readouts if new.gpu in self.latest}
        windows = diff_latest(self.latest, map(drop_impossible, readouts))
        # A lost GPU stays known. Its parts come and go, and stand in its place.
        read, hosts = {readout.gpu for readout in readouts}, {readout.host for readout in readouts}
        wholes = {gpu.rpartition("/")[0] for gpu in read}
        for gpu, last in [*self.latest.items()]:
            if last.host not in hosts:
                last = self.latest[gpu] = replace(last, host=renamed.get(last.host, last.host))
            may_go = last.index is None or "/" in gpu or gpu in wholes
            if may_go and last.host in hosts and gpu not in read and now - last.t > GONE_SECONDS:
                del self.latest[gpu]
        return GpuReadings(windows=windows, problems=problems)

    def note_owners(self, owners: Mapping[tuple[str, str], GpuAssignment], now: float) -> None:
        """Note which replicas miss GPUs at `now` (unix seconds), and forget all others."""
        late = {gpu for gpu, last in self.latest.items() if now - last.t > UNREAD_SECONDS}
        missing = (key for key, owned in owners.items() if owned.missing or late.intersection(owned.gpus))
        self._missing = {key: self._missing.get(key, now) for key in missing}

    def trouble(self, replica: tuple[str, str], owned: GpuAssignment, now: float) -> str:
        """Return which GPUs of a replica have not been read or found for too long, as a text. Empty if none."""
        if self._source is None:
            return ""
        problems = [owned.missing] if now - self._missing.get(replica, now) > UNREAD_SECONDS else []
        late = [g for g in owned.gpus if g in self.latest and now - self.latest[g].t > UNREAD_SECONDS]
        if late:
            seconds = now - min(self.latest[g].t for g in late)
            problems.append(f"GPU {', '.join(late)} has not been read for {seconds:.0f} s")
        return "; ".join(filter(None, problems))

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
