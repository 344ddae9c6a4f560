"""Pages of replicas, and readouts of their GPUs, from the series of engines and GPU exporters that a store scrapes.

The series of one scrape share its time. `up` shows the failed scrapes. A label assigns a GPU to its replica.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial

from agent.fleet.stored_pages import StoredPage
from agent.prometheus.answers import MatrixSeries
from rules.engines.reader import SeriesLayout, is_mapped_name, snapshot
from rules.engines.registry import ENGINES, PROCESS_START, EngineTable, sources
from rules.engines.several import SeveralEnginesError, split_page
from rules.gpu_sources.devices import PageChanges, same_refresh
from rules.gpu_sources.exporter import GpuExporter, GpuExporterPage, Sample
from rules.telemetry.snapshots import GpuReadout

UP = "up"

LAYOUTS = 64
"""Maximum number of cached layouts, by set of series: a few per release."""

OF_THE_TARGET = frozenset({"instance", "job", "pod", "namespace", "node", "container", "service", "cluster"})
"""Labels that a store usually adds to every series of a target, used without `up`."""

EXPORTED = "exported_"
"""Prometheus' prefix of a page's label that is also a target label (honor_labels: false)."""

Name = tuple[str, tuple[tuple[str, str], ...]]
"""Name and sorted labels of a series."""


def engine_selector(engine: str | None, matchers: str) -> str:
    """Return the PromQL selector of the series of a tier's pages, and of `up`.

    Metric names may have ':' or '_', and a prefix of Ray or KServe.
    """
    engines = engines_of(engine)
    stems = {name for table in engines for name in sources(table)}
    stored_names = source_names_regex(stems | {PROCESS_START, UP}, engines)
    return f'{{__name__=~"{stored_names}",{matchers}}}'


def replica_count_query(matchers: str, replica_label: str) -> str:
    """Return the PromQL for the number of scraped replicas."""
    return f"count(max by ({replica_label}) ({UP}{{{matchers}}}))"


def engines_of(engine: str | None) -> tuple[EngineTable, ...]:
    """Return all generations of an engine, without a name of all engines."""
    return tuple(table for table in ENGINES if engine in (None, table.name))


def source_names_regex(stems: Iterable[str], engines: Iterable[EngineTable]) -> str:
    """Return a quoted regular expression of these names in all spellings of these engines."""
    wrappers = sorted({wrapper for engine in engines for wrapper in engine.wrappers})
    before = ""
    if wrappers:
        before = f"({'|'.join(wrappers)})?"
    return f"{before}({'|'.join(_grouped(sorted(stems)))})"


def _grouped(stems: Iterable[str], between: str = "[:_]") -> Iterator[str]:
    """Yield expressions with common first words written once."""
    groups: dict[str, list[str]] = {}
    for stem in stems:
        head, _, rest = stem.partition("_")
        groups.setdefault(head, []).append(rest)
    for head, rests in groups.items():
        longer = tuple(_grouped(filter(None, rests), "_"))
        more = "".join(between + text for text in longer)
        if len(longer) > 1:
            more = f"{between}({'|'.join(longer)})"
        if more and "" in rests:
            more = f"({more})?"
        yield re.escape(head) + more


class EnginePages:
    """Pages of one tier, for one thread. `replica_label` identifies replicas, `pool_label` their pool.

    `engine` is the configured engine; without it the page determines the engine. `gpus` adds readouts of an exporter.
    """

    def __init__(
        self, replica_label: str, pool_label: str = "", engine: str | None = None, gpus: GpuPages | None = None
    ) -> None:
        self._replica, self._pool = replica_label, pool_label
        self._gpus = gpus
        self._engines = engines_of(engine)
        self._layout_of = lru_cache(LAYOUTS)(partial(find_layout, engines=self._engines))
        self._means_something = cache(partial(is_mapped_name, engines=self._engines))
        self._last: dict[str, float] = {}

    def pages(self, matrix_series: Iterable[MatrixSeries]) -> Iterator[StoredPage]:
        """Yield the new pages of a response, replica by replica, each in order of time."""
        grouped: dict[str, list[MatrixSeries]] = {}
        if self._gpus is not None:
            matrix_series = self._gpus.take(matrix_series)
        for candidate in matrix_series:
            replica = candidate.labels.get(self._replica)
            if replica and candidate.times:
                grouped.setdefault(replica, []).append(candidate)
        for replica, series in sorted(grouped.items()):
            for page in self._new_pages(replica, series, self._last.get(replica, -math.inf)):
                self._last[replica] = page.t
                if self._gpus is not None:
                    gpus = self._gpus.pop_readouts_until(replica, page.t)
                    page = replace(page, gpus=gpus or page.gpus)
                yield page

    def forget(self, replicas: set[str]) -> None:
        """Drop the state of replicas."""
        for replica in replicas:
            self._last.pop(replica, None)
        if self._gpus is not None:
            self._gpus.forget(replicas)

    def _new_pages(self, replica: str, matrix_series: Sequence[MatrixSeries], since: float) -> Iterator[StoredPage]:
        pool = next((s.labels[self._pool] for s in matrix_series if self._pool and self._pool in s.labels), "mixed")
        ups = [s for s in matrix_series if s.labels.get("__name__") == UP]
        down = {t for s in ups for t, value in zip(s.times, s.values, strict=True) if not value}
        # The labels of the target are those of `up`.
        target = frozenset(name for up in ups for name in up.labels if name != "__name__") or OF_THE_TARGET
        # One order for all replicas of a release, whose pages then share a layout.
        own = [s for s in matrix_series if self._means_something(s.labels.get("__name__", ""))]
        # Of targets that overlap in time, engines are those with more than the start of a process.
        starts: dict[str, MatrixSeries] = {}
        served = set()
        for series in own:
            instance = series.labels.get("instance", "")
            if series.labels["__name__"] == PROCESS_START:
                starts[instance] = series
            else:
                served.add(instance)
        engines = sorted(served & starts.keys())
        begun = max((starts[name].times[0] for name in engines), default=0.0)
        alive = [name for name in engines if starts[name].times[-1] >= begun]
        is_shared = len({starts[name].values[-1] for name in alive}) > 1
        scraped = sorted(((_name(series, target), series) for series in own), key=_order)
        rows: dict[float, list[tuple[Name, float]]] = {t: [] for t in down}
        for name, series in scraped:
            for t, value in zip(series.times, series.values, strict=True):
                if t > since:
                    rows.setdefault(t, []).append((name, value))
        for t in sorted(rows):
            if t > since and is_shared:
                error = f"several engines have its name ({' and '.join(alive)})"
                yield StoredPage(t=t, replica=replica, pool=pool, error=error)
            elif t > since:
                yield self._page(replica, pool, t, () if t in down else rows[t])

    def _page(self, replica: str, pool: str, t: float, row: Sequence[tuple[Name, float]]) -> StoredPage:
        if not row:
            return StoredPage(t=t, replica=replica, pool=pool, error="its scrape failed (up is 0)")
        layout = self._layout_of(tuple(name for name, _ in row))
        if isinstance(layout, str):
            return StoredPage(t=t, replica=replica, pool=pool, error=layout)
        return StoredPage(t=t, replica=replica, pool=pool, snapshot=snapshot(layout, [value for _, value in row], t))


def find_layout(names: tuple[Name, ...], engines: tuple[EngineTable, ...]) -> SeriesLayout | str:
    """Return the layout of an engine's series, or why they are none."""
    try:
        label, layouts = split_page([(name, dict(labels)) for name, labels in names], engines)
    except SeveralEnginesError as error:
        return f"{error}: nothing of it is judged"
    if label:
        return f"{len(layouts)} engines by their label {label} are one replica: replica_label is wrong"
    return layouts.get("", "no series of an engine that sizewatch reads")


def _order(named: tuple[Name, MatrixSeries]) -> tuple[str, float, tuple[tuple[str, str], ...]]:
    """Order series by name, then buckets by their edge, as on a page."""
    (name, labels), series = named
    try:
        return name, float(series.labels.get("le", "inf")), labels
    except ValueError:
        return name, math.inf, labels


def _name(series: MatrixSeries, of_the_target: frozenset[str]) -> Name:
    """Return the series with the labels of its page. Replicas of one release differ only in target labels."""
    own = {k: v for k, v in series.labels.items() if k != "__name__" and k not in of_the_target}
    return series.labels.get("__name__", ""), tuple(sorted(own.items()))


def exporter_selector(exporter: GpuExporter, matchers: str) -> str:
    """Return the PromQL selector of an exporter's series. Names may have a prefix."""
    names = sorted({name for row in exporter.fields for name in row.names} | exporter.also_read.keys())
    before = ""
    if any(exporter.plain(f"x_{name}") == name for name in names):
        before = "(.+_)?"
    return f'{{__name__=~"{before}({"|".join(map(re.escape, names))})",{matchers}}}'


@dataclass(slots=True)
class _Replica:
    """State of a replica's GPUs. `ahead` are readouts that belong to no page yet."""

    changes: PageChanges = field(default_factory=PageChanges)
    last: dict[tuple[str, ...], GpuExporterPage] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)
    ahead: list[GpuReadout] = field(default_factory=list)


class GpuPages:
    """GPU readouts of one tier, for one thread. `replica_label` has the name of the replica."""

    def __init__(self, exporter: GpuExporter, replica_label: str) -> None:
        self._exporter = exporter
        self._label = replica_label
        self._replicas: defaultdict[str, _Replica] = defaultdict(_Replica)

    def take(self, series: Iterable[MatrixSeries]) -> list[MatrixSeries]:
        """Add the new readouts of a response. Return the series that are not the exporter's."""
        scrapes: dict[tuple[str, float], dict[str, list[Sample]]] = {}
        rest = []
        for matrix_series in series:
            if not self._exporter.wanted(matrix_series.labels.get("__name__", "")):
                rest.append(matrix_series)
                continue
            replica, scraped = matrix_series.labels.get(self._label), matrix_series.labels.get("instance", "")
            for t, value in zip(matrix_series.times, matrix_series.values, strict=True):
                if replica and t > self._replicas[replica].until.get(scraped, -math.inf):
                    sample = (matrix_series.labels.get("__name__", ""), matrix_series.labels, value)
                    scrapes.setdefault((replica, t), {}).setdefault(scraped, []).append(sample)
        for (replica, t), by_exporter in sorted(scrapes.items()):
            for scraped, samples in by_exporter.items():
                known = self._replicas[replica]
                known.until[scraped] = t
                self._read(known, samples, t)
        return rest

    def pop_readouts_until(self, replica: str, t: float) -> tuple[GpuReadout, ...]:
        """Return and remove the newest readout of each GPU of a replica up to `t` (unix seconds)."""
        known = self._replicas.get(replica)
        if known is None:
            return ()
        newest = {readout.gpu: readout for readout in known.ahead if readout.t <= t}
        known.ahead = [readout for readout in known.ahead if readout.t > t]
        return tuple(newest.values())

    def forget(self, replicas: set[str]) -> None:
        """Drop the state of replicas."""
        for replica in replicas:
            self._replicas.pop(replica, None)

    def _read(self, known: _Replica, samples: list[Sample], t: float) -> None:
        page = self._exporter.read(samples, t)
        gpus = tuple(readout.gpu for readout in page.readouts)
        last = known.last.get(gpus)
        if last is not None and same_refresh(last, page):
            return
        for former in [former for former in known.last if not set(former).isdisjoint(gpus)]:
            del known.last[former]
        known.last[gpus] = page
        known.ahead += known.changes.apply_page(page)
