"""From series as a Prometheus server keeps them back to the pages they were scraped from.

Owns which series are asked for, which labels are the server's own and not the page's, and the walk from samples of one
target, scrape by scrape, to windows by the one path that pages take. It does no network.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from agent.benchmarks.prometheus_api import BenchmarkSeries
from agent.benchmarks.telemetry_merge import FAMILIES
from agent.benchmarks.telemetry_recording import RecordedReplica
from agent.errors import BenchmarkError
from rules.engines.layout import SeriesLayout, compile_layout
from rules.engines.normalize import snapshot
from rules.engines.registry import ENGINES, detect_engine, normalize_name
from rules.engines.table import EngineTable
from rules.replicas import track as tracks
from rules.replicas.track import ScrapeTrack
from rules.telemetry.windows import Window

TARGET_LABELS = ("instance", "job", "cluster", "namespace", "pod", "prometheus", "prometheus_replica", "replica")
"""Labels that tell one scraped target from another. Others that a server adds are the same on all series of a target."""

EXPORTED = "exported_"
"""What Prometheus puts before a page's label of the same name as one of its own (honor_labels: false)."""

Target = tuple[tuple[str, str], ...]


def engines_named(name: str | None) -> tuple[EngineTable, ...]:
    """The generations of an engine, all engines' without a name."""
    return tuple(engine for engine in ENGINES if name in (None, engine.name))


def engine_selector(engines: Iterable[EngineTable], selector: str) -> str:
    """The series of these engines that are needed, in either spelling of ':', among those that `selector` matches."""
    return selecting([_printed(engine) for engine in engines], selector)


def selecting(patterns: Sequence[str], selector: str) -> str:
    """A selector of all series whose name matches one of the patterns. `selector` is `a="b",...`, with or without braces."""
    matchers = selector.strip().removeprefix("{").removesuffix("}").strip().strip(",")
    return f'{{__name__=~"{"|".join(patterns)}"{"," if matchers else ""}{matchers}}}'


def _printed(engine: EngineTable) -> str:
    """A pattern of the names that an engine's samples may have on a server."""
    names = {*engine.signatures, *engine.info, *(sample for _, sample in engine.fact_gauges), engine.born}
    for row in engine.rows:
        if row.family in FAMILIES:
            names.update((row.sample, *row.plus, row.zero_with))
    wrappers = "".join(f"{wrapper}|" for wrapper in engine.wrappers)
    # Tables spell ':' as '_'; a dot stands for either, and keeps the query short (VictoriaMetrics takes 16 kB).
    return f"(?:{wrappers})(?:{'|'.join(sorted(names - {''}))})".replace("_", ".")


def group_by_target(series: Iterable[BenchmarkSeries]) -> dict[Target, list[BenchmarkSeries]]:
    """Series by the target that they were scraped from, their labels as the page had them."""
    targets: dict[Target, list[BenchmarkSeries]] = {}
    for one in series:
        target = tuple((name, text) for name, text in one.labels if name in TARGET_LABELS)
        page = BenchmarkSeries(one.name, _as_on_page(dict(one.labels)), one.samples)
        targets.setdefault(target, []).append(page)
    return {target: sorted(group, key=_edge) for target, group in targets.items()}


def _edge(series: BenchmarkSeries) -> float:
    """The upper edge of a bucket: pages have buckets by rising edge, servers by the text of their labels."""
    try:
        edge = float(dict(series.labels).get("le", "-inf"))
    except ValueError:
        return math.inf
    return math.inf if math.isnan(edge) else edge


def _as_on_page(labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    back = {name.removeprefix(EXPORTED): text for name, text in labels.items() if name.startswith(EXPORTED)}
    kept = {name: text for name, text in labels.items() if not name.startswith(EXPORTED)}
    return tuple(sorted({**kept, **back}.items()))


def pages(series: Sequence[BenchmarkSeries]) -> Iterator[tuple[float, tuple[int, ...], list[float]]]:
    """Scrape by scrape: its time, which of the series were on the page, and their values."""
    at: dict[float, list[tuple[int, float]]] = {}
    for place, one in enumerate(series):
        for t, value in one.samples:
            at.setdefault(t, []).append((place, value))
    for t in sorted(at):
        yield t, tuple(place for place, _ in at[t]), [value for _, value in at[t]]


def replica(
    target: Target, series: Sequence[BenchmarkSeries], engines: tuple[EngineTable, ...]
) -> RecordedReplica | None:
    """A target's windows; None for one that is no engine's."""
    layouts: dict[tuple[int, ...], SeriesLayout | None] = {}
    track, parts, engine = ScrapeTrack(), list[Window](), None
    for t, places, values in pages(series):
        if places not in layouts:
            layouts[places] = _layout([series[place] for place in places], engines)
        layout = layouts[places]
        if layout is None:
            track, window = tracks.record_failure(track, t)
        else:
            engine = layout.engine
            track, window = tracks.record_success(track, snapshot(layout, values, t))
        if window is not None:
            parts.append(window)
    if engine is None:
        return None
    return RecordedReplica(name=target_name(target), engine=engine, windows=tuple(parts))


def _layout(series: Sequence[BenchmarkSeries], engines: tuple[EngineTable, ...]) -> SeriesLayout | None:
    names: list[tuple[str, Mapping[str, str]]] = [(one.name, dict(one.labels)) for one in series]
    engine = detect_engine(((normalize_name(name), labels) for name, labels in names), engines)
    return None if engine is None else compile_layout(names, engine)


def target_name(target: Target) -> str:
    """A target as a selector that names it."""
    matchers = ",".join(f'{name}="{text}"' for name, text in target)
    return f"{{{matchers}}}"


def one_line(selector: str | None, place: str) -> str:
    """The selector as it was given. Raises BadBenchmark for one that cannot stand in a query."""
    text = (selector or "").strip()
    if any(not sign.isprintable() for sign in text) or len(text) > 2000:
        raise BenchmarkError(place, "the selector holds characters that no query has, or is longer than 2000")
    return text
