"""Pages of replicas from the engines' own series, where a store scrapes the engines and no agent runs.

Owns the way from a store's series to the page they were scraped from: the series of one scrape share its time. What a
page means is the engine table's word, as everywhere. `up` tells the scrapes that gave none.

GPUs of replicas from a GPU exporter's own series, where a store scrapes the exporter and no agent runs.

Owns the selector, and the way from a store's series to readouts with their true times: the series of one scrape share its
time. What they mean is the exporter's table's word (`rules.gpu_sources`). Whose a GPU is a label says, which has the name of
the replica.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from agent.fleet.stored_pages import StoredPage, StoredSeries
from rules.engines.layout import SUFFIXES, SeriesLayout, compile_layout, is_mapped_name
from rules.engines.normalize import snapshot
from rules.engines.registry import ENGINES, PROCESS_START, detect_engine, normalize_name
from rules.engines.table import EngineTable
from rules.gpu_sources.devices import PageChanges, same_refresh
from rules.gpu_sources.exporter import GpuExporter, GpuExporterPage, Sample
from rules.telemetry.families import FamilyKind
from rules.telemetry.snapshots import GpuReadout

UP = "up"

LAYOUTS = 64
"""Sets of series whose layout is remembered: a few for each release that a tier runs."""

Name = tuple[str, tuple[tuple[str, str], ...]]
"""A series' name and its labels in order."""


def engine_selector(engine: str | None, matchers: str) -> str:
    """The PromQL selector of everything that pages of a tier's replicas are made from, and of `up`.

    Metric names may be spelt with ':' or '_', and stand behind the prefix of Ray or KServe.
    """
    engines = engines_of(engine)
    more = f",{matchers}" if matchers else ""
    stems = {stem for one in engines for stem in _stems(one)}
    return f'{{__name__=~"{source_names_regex(stems | {PROCESS_START, UP}, engines)}"{more}}}'


def engines_of(engine: str | None) -> tuple[EngineTable, ...]:
    """All generations of an engine; without a name those of all."""
    return tuple(one for one in ENGINES if engine in (None, one.name))


def source_names_regex(stems: Iterable[str], engines: Iterable[EngineTable]) -> str:
    """A regular expression, as it stands between quotes, of these names as pages of these engines spell them."""
    wrappers = sorted({wrapper for one in engines for wrapper in one.wrappers})
    before = f"({'|'.join(wrappers)})?" if wrappers else ""
    return f"{before}({'|'.join(_grouped(sorted(stems)))})"


def _stems(engine: EngineTable) -> Iterator[str]:
    yield from engine.signatures
    yield from engine.info
    yield from (sample for _, sample in engine.fact_gauges)
    yield from (name for name in (engine.born,) if name)
    for row in engine.rows:
        if row.kind is FamilyKind.HISTOGRAM:
            yield from (row.source + suffix for suffix in SUFFIXES)
        else:
            yield from (row.sample, *row.plus)
        if row.zero_with:
            yield row.zero_with


def _grouped(stems: Iterable[str], between: str = "[:_]") -> Iterator[str]:
    """The names with what many begin with written once: a query has a length that stores limit."""
    groups: dict[str, list[str]] = {}
    for stem in stems:
        head, _, rest = stem.partition("_")
        groups.setdefault(head, []).append(rest)
    for head, rests in groups.items():
        longer = tuple(_grouped((rest for rest in rests if rest), "_"))
        more = f"{between}({'|'.join(longer)})" if len(longer) > 1 else "".join(between + one for one in longer)
        yield re.escape(head) + (f"({more})?" if more and "" in rests else more)


class EnginePages:
    """The pages of one tier from answer to answer. `replica_label` names the label that tells replicas apart, `pool_label`
    one that names their pool; `engine` is the configured one, without it the page tells. For one thread."""

    def __init__(self, replica_label: str, pool_label: str = "", engine: str | None = None) -> None:
        self._replica, self._pool = replica_label, pool_label
        self._engines = engines_of(engine)
        self._layouts: dict[tuple[Name, ...], SeriesLayout | None] = {}
        self._last: dict[str, float] = {}
        self._series: dict[str, tuple[Name, ...]] = {}
        self._known: dict[str, bool] = {}

    def series_of(self, replica: str) -> tuple[Name, ...]:
        """The series of a replica's last page, as the page spelt them; none where it had no page of an engine."""
        return self._series.get(replica, ())

    def pages(self, several: Iterable[StoredSeries]) -> Iterator[StoredPage]:
        """The pages in an answer, replica by replica, each replica's in order of time; none twice."""
        grouped: dict[str, list[StoredSeries]] = {}
        for one in several:
            replica = one.labels.get(self._replica)
            if replica and one.times:
                grouped.setdefault(replica, []).append(one)
        for replica, series in sorted(grouped.items()):
            for page in self._of(replica, series):
                if page.t > self._last.get(replica, -math.inf):
                    self._last[replica] = page.t
                    yield page

    def forget(self, replicas: set[str]) -> None:
        """What is remembered of replicas that are gone."""
        for replica in replicas:
            self._last.pop(replica, None)
            self._series.pop(replica, None)

    def _of(self, replica: str, several: Sequence[StoredSeries]) -> Iterator[StoredPage]:
        pool = next((s.labels[self._pool] for s in several if self._pool and self._pool in s.labels), "mixed")
        ups = [s for s in several if s.labels.get("__name__") == UP]
        down = {t for s in ups for t, value in zip(s.times, s.values, strict=True) if not value}
        scraped = sorted((s for s in several if self._means_something(s)), key=_order)
        target = _of_the_target(ups)
        rows: dict[float, list[tuple[Name, float]]] = {t: [] for t in down}
        for one in scraped:
            name = _name(one, target)
            for t, value in zip(one.times, one.values, strict=True):
                rows.setdefault(t, []).append((name, value))
        for t in sorted(rows):
            yield self._page(replica, pool, t, () if t in down else rows[t])

    def _means_something(self, one: StoredSeries) -> bool:
        name = one.labels.get("__name__", "")
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = name != UP and is_mapped_name(name, self._engines)
        return known

    def _page(self, replica: str, pool: str, t: float, row: Sequence[tuple[Name, float]]) -> StoredPage:
        if not row:
            return StoredPage(t=t, replica=replica, pool=pool, snapshot=None, trouble="its scrape failed (up is 0)")
        names = tuple(name for name, _ in row)
        layout = self._layout(names)
        if self._series.get(replica) != names:
            self._series[replica] = names
        if layout is None:
            text = "no series of an engine that sizewatch reads"
            return StoredPage(t=t, replica=replica, pool=pool, snapshot=None, trouble=text)
        return StoredPage(t=t, replica=replica, pool=pool, snapshot=snapshot(layout, [value for _, value in row], t))

    def _layout(self, names: tuple[Name, ...]) -> SeriesLayout | None:
        if names not in self._layouts:
            if len(self._layouts) >= LAYOUTS:
                self._layouts.clear()
            series = [(name, dict(labels)) for name, labels in names]
            engine = detect_engine(((normalize_name(name), labels) for name, labels in series), self._engines)
            self._layouts[names] = compile_layout(series, engine) if engine is not None else None
        return self._layouts[names]


def _order(one: StoredSeries) -> tuple[str, float]:
    """Buckets by their edge, as a page has them."""
    try:
        return one.labels.get("__name__", ""), float(one.labels.get("le", "inf"))
    except ValueError:
        return one.labels.get("__name__", ""), math.inf


OF_THE_TARGET = frozenset({"instance", "job", "pod", "namespace", "node", "container", "service", "cluster"})
"""Labels that a store usually puts on every series of a target, where there is no `up` to tell them."""

EXPORTED = "exported_"
"""Prometheus' prefix for a page's label that is also the target's (honor_labels: false)."""


def _of_the_target(ups: Sequence[StoredSeries]) -> frozenset[str]:
    """The labels of `up` are those of the target alone."""
    return frozenset(name for one in ups for name in one.labels if name != "__name__") or OF_THE_TARGET


def _name(one: StoredSeries, of_the_target: frozenset[str]) -> Name:
    """The series as its page spelt it: of two replicas of one release only the target's labels differ."""
    own = {k: v for k, v in one.labels.items() if k != "__name__" and k not in of_the_target}
    moved = {k.removeprefix(EXPORTED): v for k, v in own.items() if k.removeprefix(EXPORTED) in of_the_target}
    kept = {k: v for k, v in own.items() if k.removeprefix(EXPORTED) not in of_the_target}
    return one.labels.get("__name__", ""), tuple(sorted((kept | moved).items()))


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
        """Return whether a series is one of the exporter's."""
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
