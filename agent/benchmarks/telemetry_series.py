"""Series of a Prometheus-compatible server as replica windows, and GPU utilisation during a run.

Server labels are removed, and the samples of a target become windows on the same path as pages. GPUs of a replica are
those of its pod, or else those the selector matches. The last choice is all GPUs of its host, if none idled. No message
holds a password, a token or a query.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.benchmarks.points import Setup
from agent.benchmarks.telemetry_merge import (
    FAMILIES,
    RecordedReplica,
    TelemetryFields,
    extract_gpu_utilization,
    span_text,
)
from agent.errors import BenchmarkError, ConfigError
from agent.http_client.errors import place_of
from agent.prometheus.answers import MatrixSeries, StoreError, StoreErrorKind
from agent.prometheus.api import StoreApi
from agent.prometheus.options import MOST_BYTES, TIMEOUT_SECONDS, StoreOptions
from rules.engines.layout import SeriesLayout, compile_layout
from rules.engines.normalize import snapshot
from rules.engines.registry import ENGINES, detect_engine, normalize_name
from rules.engines.table import EngineTable
from rules.gpu_sources.exporter import Sample
from rules.gpu_sources.registry import EXPORTERS, detect_exporter
from rules.plan.memory import engine_kv_tokens, whole
from rules.replicas.track import ScrapeTrack, record_failure, record_success
from rules.telemetry import gpu_windows
from rules.telemetry.gpu_windows import GPU_UTILIZATION_KINDS
from rules.telemetry.snapshots import GpuReadout, Snapshot
from rules.telemetry.windows import Window

_LOGIN = "give --bearer-token-file"
_NARROWER = "narrow it with --telemetry-selector"


@dataclass(frozen=True, slots=True)
class BenchmarkSeries:
    """Series of a response: name, other labels, and samples (unix seconds, value) in time order."""

    name: str
    labels: tuple[tuple[str, str], ...]
    samples: tuple[tuple[float, float], ...]


class PrometheusApi:
    """Client of one server. `ways_in` are fields of StoreOptions. No query is sent before `raw`.

    Raise BenchmarkError for an unusable address or file.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        max_bytes: int = MOST_BYTES,
        **ways_in: str | None,
    ) -> None:
        given: dict[str, Any] = {"timeout_seconds": timeout_seconds, "max_bytes": max_bytes, **ways_in}
        try:
            options = StoreOptions(url=url, **given)
        except ConfigError as error:
            raise BenchmarkError("--telemetry", error.problems[0].removeprefix("url: ")) from None
        self.place = place_of(url)
        self._api = StoreApi(options, login=_LOGIN)
        try:
            self._api.load()
        except StoreError as error:
            raise BenchmarkError(self.place, error.text) from error

    def raw(self, selector: str, start: float, end: float) -> tuple[BenchmarkSeries, ...]:
        """Return all samples of matching series in (start, end] (unix seconds). Raise BenchmarkError."""
        try:
            found = self._api.query_samples(selector, start, end)
        except StoreError as error:
            hint = f": {_NARROWER}" if error.kind is StoreErrorKind.TOO_MUCH else ""
            raise BenchmarkError(self.place, f"{error.text}{hint}") from error
        return tuple(self._named(one) for one in found)

    def close(self) -> None:
        self._api.close()

    def _named(self, one: MatrixSeries) -> BenchmarkSeries:
        labels = dict(one.labels)
        name = labels.pop("__name__", None)
        if name is None:
            raise BenchmarkError(self.place, "sent a series without a name: is the selector one of series?")
        return BenchmarkSeries(name, tuple(sorted(labels.items())), tuple(zip(one.times, one.values, strict=True)))


def missing_data_text(api: PrometheusApi, what: str, start: float, end: float) -> BenchmarkError:
    """Return the error for a response without samples. Its span reveals a wrong time zone."""
    return BenchmarkError(api.place, f"has no {what} from {span_text(start, end)}: do the times and the selector fit?")


TARGET_LABELS = ("instance", "job", "cluster", "namespace", "pod", "prometheus", "prometheus_replica", "replica")
"""Labels that identify a scraped target. Other server labels are the same on all series of a target."""

EXPORTED = "exported_"
"""Prefix Prometheus puts before a page's label that collides with its own (honor_labels: false)."""

Target = tuple[tuple[str, str], ...]


def engines_named(name: str | None) -> tuple[EngineTable, ...]:
    """Return the generations of an engine, or of all engines without a name."""
    return tuple(engine for engine in ENGINES if name in (None, engine.name))


def engine_selector(engines: Iterable[EngineTable], selector: str) -> str:
    """Return a selector of the required series of these engines within `selector`, in either spelling of ':'."""
    return selecting([_printed(engine) for engine in engines], selector)


def selecting(patterns: Sequence[str], selector: str) -> str:
    """Return a selector of all series whose name matches a pattern. `selector` is `a="b",...`, braces optional."""
    matchers = selector.strip().removeprefix("{").removesuffix("}").strip().strip(",")
    return f'{{__name__=~"{"|".join(patterns)}"{"," if matchers else ""}{matchers}}}'


def _printed(engine: EngineTable) -> str:
    """Return a pattern of the sample names of an engine on a server."""
    names = {*engine.signatures, *engine.info, *(sample for _, sample in engine.fact_gauges), engine.born}
    for row in engine.rows:
        if row.family in FAMILIES:
            names.update((row.sample, *row.plus, row.zero_with))
    wrappers = "".join(f"{wrapper}|" for wrapper in engine.wrappers)
    # Tables spell ':' as '_'. A dot matches both and keeps the query short (VictoriaMetrics accepts 16 kB).
    return f"(?:{wrappers})(?:{'|'.join(sorted(names - {''}))})".replace("_", ".")


def group_by_target(series: Iterable[BenchmarkSeries]) -> dict[Target, list[BenchmarkSeries]]:
    """Group series by scraped target and restore the labels of the page."""
    targets: dict[Target, list[BenchmarkSeries]] = {}
    for one in series:
        target = tuple((name, text) for name, text in one.labels if name in TARGET_LABELS)
        page = BenchmarkSeries(one.name, _as_on_page(dict(one.labels)), one.samples)
        targets.setdefault(target, []).append(page)
    return {target: sorted(group, key=_edge) for target, group in targets.items()}


def _edge(series: BenchmarkSeries) -> float:
    """Return the upper edge of a bucket. Pages sort buckets by edge, servers by label text."""
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
    """Yield each scrape: its time, the indices of the series on the page, and their values."""
    at: dict[float, list[tuple[int, float]]] = {}
    for place, one in enumerate(series):
        for t, value in one.samples:
            at.setdefault(t, []).append((place, value))
    for t in sorted(at):
        yield t, tuple(place for place, _ in at[t]), [value for _, value in at[t]]


def replica(
    target: Target, series: Sequence[BenchmarkSeries], engines: tuple[EngineTable, ...]
) -> RecordedReplica | None:
    """Return the windows of a target, or None if it is not an engine."""
    layouts: dict[tuple[int, ...], SeriesLayout | None] = {}
    track, parts, engine, setup = ScrapeTrack(), list[Window](), None, Setup()
    for t, places, values in pages(series):
        if places not in layouts:
            layouts[places] = _layout([series[place] for place in places], engines)
        layout = layouts[places]
        if layout is None:
            track, window = record_failure(track, t)
        else:
            engine, page = layout.engine, snapshot(layout, values, t)
            setup = _setup(page)
            track, window = record_success(track, page)
        if window is not None:
            parts.append(window)
    if engine is None:
        return None
    return RecordedReplica(name=target_name(target), engine=engine, windows=tuple(parts), setup=setup)


def _setup(page: Snapshot) -> Setup:
    """Return what a page exposes of the engine's configuration."""
    return Setup(kv_tokens=engine_kv_tokens(page.facts), max_num_seqs=whole(page.facts.get("max_num_seqs", "")))


def _layout(series: Sequence[BenchmarkSeries], engines: tuple[EngineTable, ...]) -> SeriesLayout | None:
    names: list[tuple[str, Mapping[str, str]]] = [(one.name, dict(one.labels)) for one in series]
    engine = detect_engine(((normalize_name(name), labels) for name, labels in names), engines)
    return None if engine is None else compile_layout(names, engine)


def target_name(target: Target) -> str:
    """Return a selector that names the target."""
    matchers = ",".join(f'{name}="{text}"' for name, text in target)
    return f"{{{matchers}}}"


def one_line(selector: str | None, place: str) -> str:
    """Return the stripped selector. Raise BenchmarkError for one that is not valid in a query."""
    text = (selector or "").strip()
    if any(not sign.isprintable() for sign in text) or len(text) > 2000:
        raise BenchmarkError(place, "the selector holds characters that no query has, or is longer than 2000")
    return text


_FAMILIES = frozenset({*GPU_UTILIZATION_KINDS.values(), "gpu_utilization_sampled"})

IDLE = 0.01
"""Share of time below which a GPU does not belong to the benchmarked replica."""

ENOUGH = 0.5
"""Share of a run that whole samples must cover. A sample across an end of the run includes idle time."""

NONE = "gpu_utilization: the server has no GPU exporter's series of this span that the selector matches"


def gpu_selector(selector: str) -> str:
    """Return a selector of the required GPU exporter series within `selector`."""
    names = {name for exporter in EXPORTERS for name in exporter.also_read}
    names.update(name for e in EXPORTERS for row in e.fields if row.ours in _FAMILIES for name in row.names)
    # AMD's exporter may have a custom prefix before its names.
    return selecting([f"(?:[a-zA-Z][a-zA-Z0-9_]*_)?(?:{'|'.join(sorted(names))})"], selector)


def mean_gpu_utilization(
    series: Iterable[BenchmarkSeries], engine: Target, chosen: bool, start: float, end: float
) -> TelemetryFields:
    """Return the mean utilisation from start to end (unix seconds). `chosen`: the user's selector named these GPUs."""
    targets = group_by_target(series)
    if not any(one.samples for group in targets.values() for one in group):
        return TelemetryFields(remarks=(NONE,))
    pod, host = dict(engine).get("pod", ""), _host(engine)
    of_pod = {
        target: [one for one in group if dict(one.labels).get("pod", "") == pod] for target, group in targets.items()
    }
    if pod and any(of_pod.values()):
        return _mean(of_pod, f"of pod {pod}", True, start, end)
    if chosen:
        return _mean(targets, "that the selector matches", True, start, end)
    return _mean(
        {t: group for t, group in targets.items() if host and _host(t) == host}, f"of {host}", False, start, end
    )


def _mean(
    targets: dict[Target, list[BenchmarkSeries]], whose: str, surely: bool, start: float, end: float
) -> TelemetryFields:
    windows: dict[str, list[Window]] = {}
    for group in targets.values():
        for gpu, window in _windows(group):
            wholly = start <= window.start and window.end <= end
            windows.setdefault(gpu, []).extend([window] if wholly else [])
    why = _why_not(windows, whose, surely, end - start)
    whole = gpu_windows.sum_gpus(part for parts in windows.values() for part in parts)
    result = extract_gpu_utilization(whole) if whole is not None else None
    if why or result is None:
        return TelemetryFields(remarks=(f"gpu_utilization: {why or 'nothing on the server tells it'}",))
    text = f"gpu_utilization is the mean of the {len(windows)} GPUs {whose}"
    return TelemetryFields(values={"gpu_utilization": result[1]}, gpu_utilization_kind=result[0], remarks=(text,))


def _why_not(windows: Mapping[str, Sequence[Window]], whose: str, surely: bool, seconds: float) -> str:
    """Return the reason these GPU windows do not belong to the replica, or "". `seconds` is the length of the run."""
    if not windows:
        return "no GPU on the server is known to be the replica's: --telemetry-selector can name them"
    share = min(math.fsum(w.end - w.start for w in parts) for parts in windows.values()) / seconds
    if share < ENOUGH:
        return f"samples of a GPU that lie wholly in the run cover {share:.0%} of it: they are too far apart"
    means = [extract_gpu_utilization(whole) for parts in windows.values() if (whole := gpu_windows.sum_gpus(parts))]
    if len({mean[0] if mean else None for mean in means}) > 1:
        return f"the {len(windows)} GPUs {whose} tell it in different ways, or not at all"
    idle = sum(mean is not None and mean[1] < IDLE for mean in means)
    if idle and not surely:
        return f"{idle} of {len(windows)} GPUs {whose} idled: --telemetry-selector can name those of the replica"
    return ""


def _windows(series: Sequence[BenchmarkSeries]) -> Iterable[tuple[str, Window]]:
    """Yield each GPU's window between two readouts of an exporter."""
    before: dict[str, GpuReadout] = {}
    for t, places, values in pages(series):
        samples = [(series[p].name, dict(series[p].labels), v) for p, v in zip(places, values, strict=True)]
        for readout in _readouts(samples, t):
            earlier = before.get(readout.gpu)
            before[readout.gpu] = readout
            window = gpu_windows.diff_readouts(earlier, readout) if earlier is not None else None
            if window is not None:
                yield readout.gpu, window


def _readouts(samples: Sequence[Sample], t: float) -> tuple[GpuReadout, ...]:
    exporter = detect_exporter((name, labels) for name, labels, _ in samples)
    return () if exporter is None else exporter.read(samples, t).readouts


def _host(target: Target) -> str:
    return dict(target).get("instance", "").rpartition(":")[0]
