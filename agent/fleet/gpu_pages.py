"""GPUs of replicas from a GPU exporter's own series, where a store scrapes the exporter and no agent runs.

Owns the selector, and the way from a store's series to readouts with their true times: the series of one scrape share its
time. What they mean is the exporter's table's word (`rules.gpu_sources`). Whose a GPU is a label says, which has the name of
the replica.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from agent.fleet.engine_series import EnginePages
from agent.fleet.found import StoredPage, StoredSeries
from rules.gpu_sources.changes import PageChanges, same_refresh
from rules.gpu_sources.exporter import GpuExporter, GpuExporterPage, Sample
from rules.telemetry.gpu_readout import GpuReadout


def exporter_selector(exporter: GpuExporter, matchers: str) -> str:
    """The PromQL selector of what readouts are made from; `matchers` say whose. Names may stand behind a prefix that an
    operator chose, where the exporter lets him."""
    names = sorted({name for row in exporter.fields for name in row.names} | exporter.also_read.keys())
    before = "(.+_)?" if any(exporter.plain(f"x_{name}") == name for name in names) else ""
    return f'{{__name__=~"{before}({"|".join(map(re.escape, names))})",{matchers}}}'


@dataclass(slots=True)
class _Replica:
    """What is remembered of a replica's GPUs: readouts that no page of the replica has taken yet, newest of each GPU."""

    changes: PageChanges = field(default_factory=PageChanges)
    last: dict[tuple[str, ...], GpuExporterPage] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)
    ahead: list[GpuReadout] = field(default_factory=list)


class GpuPages:
    """The GPUs of one tier from answer to answer; `replica_label` has the replica's name. For one thread."""

    def __init__(self, exporter: GpuExporter, replica_label: str) -> None:
        self._exporter = exporter
        self._label = replica_label
        self._replicas: dict[str, _Replica] = {}

    def is_exporter_series(self, one: StoredSeries) -> bool:
        """Whether a series is one of the exporter's."""
        return self._exporter.wanted(one.labels.get("__name__", ""))

    def take(self, several: Iterable[StoredSeries]) -> None:
        """The readouts of an answer, none twice. Series whose label names no replica are of nobody."""
        scrapes: dict[tuple[str, float], dict[str, list[Sample]]] = {}
        for one in several:
            replica, scraped = one.labels.get(self._label), one.labels.get("instance", "")
            for t, value in zip(one.times, one.values, strict=True):
                if replica and t > self._of(replica).until.get(scraped, -math.inf):
                    sample = (one.labels.get("__name__", ""), one.labels, value)
                    scrapes.setdefault((replica, t), {}).setdefault(scraped, []).append(sample)
        for (replica, t), by_exporter in sorted(scrapes.items()):
            for scraped, samples in by_exporter.items():
                known = self._of(replica)
                known.until[scraped] = t
                self._read(known, samples, t)

    def pop_readouts_until(self, replica: str, t: float) -> tuple[GpuReadout, ...]:
        """The newest readout of each GPU of a replica that no page has taken yet and that is not after `t` (unix seconds)."""
        known = self._replicas.get(replica)
        if known is None:
            return ()
        newest = {one.gpu: one for one in known.ahead if one.t <= t}
        known.ahead = [one for one in known.ahead if one.t > t]
        return tuple(newest.values())

    def forget(self, replicas: set[str]) -> None:
        """What is remembered of replicas that are gone."""
        for replica in replicas:
            self._replicas.pop(replica, None)

    def _of(self, replica: str) -> _Replica:
        return self._replicas.setdefault(replica, _Replica())

    def _read(self, known: _Replica, samples: list[Sample], t: float) -> None:
        page = self._exporter.read(samples, t)
        gpus = tuple(readout.gpu for readout in page.readouts)
        last = known.last.get(gpus)
        if self._exporter.keeps_values and last is not None and same_refresh(last, page):
            return
        known.last = {gpus: page, **{other: one for other, one in known.last.items() if set(other).isdisjoint(gpus)}}
        known.ahead += known.changes.apply_page(page)


class PagesWithGpus:
    """Pages of replicas with the readouts of their GPUs that came since the page before."""

    def __init__(self, pages: EnginePages, gpus: GpuPages) -> None:
        self._pages, self._gpus = pages, gpus

    def pages(self, several: Iterable[StoredSeries]) -> Iterator[StoredPage]:
        """The pages in an answer that holds both engines' and exporters' series."""
        of_engines: list[StoredSeries] = []
        of_gpus: list[StoredSeries] = []
        for one in several:
            (of_gpus if self._gpus.is_exporter_series(one) else of_engines).append(one)
        self._gpus.take(of_gpus)
        for page in self._pages.pages(of_engines):
            yield replace(page, gpus=self._gpus.pop_readouts_until(page.replica, page.t))

    def forget(self, replicas: set[str]) -> None:
        """What is remembered of replicas that are gone."""
        self._pages.forget(replicas)
        self._gpus.forget(replicas)
