"""Utilisation of a replica's GPUs during a run, from GPU exporters' series on a Prometheus server.

Owns which GPUs are the benchmarked replica's: those of its pod, else those that the person's selector matches, else all
of its host if none of them idled. What an exporter's series mean is `rules.gpu_sources`'.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from agent.benchmarks.prometheus_api import BenchmarkSeries
from agent.benchmarks.telemetry_merge import TelemetryFields, extract_gpu_utilization
from agent.benchmarks.telemetry_series import Target, group_by_target, pages, selecting
from rules.gpu_sources.exporter import Sample
from rules.gpu_sources.registry import EXPORTERS, detect_exporter
from rules.telemetry import gpu_windows
from rules.telemetry.gpu_readings import GPU_UTILIZATION_KINDS
from rules.telemetry.gpu_readout import GpuReadout
from rules.telemetry.windows import Window

_FAMILIES = frozenset({*GPU_UTILIZATION_KINDS.values(), "gpu_utilization_sampled"})

IDLE = 0.01
"""A GPU of the benchmarked replica works during the run; below this share of time one is somebody else's."""

ENOUGH = 0.5
"""Share of a run that whole samples must cover: one that reaches over an end of the run holds the idle time beyond it."""

NONE = "gpu_utilization: the server has no GPU exporter's series of this span that the selector matches"


def gpu_selector(selector: str) -> str:
    """The GPU exporters' series that are needed, among those that `selector` matches."""
    names = {name for exporter in EXPORTERS for name in exporter.also_read}
    names.update(name for e in EXPORTERS for row in e.fields if row.ours in _FAMILIES for name in row.names)
    # Operators of AMD's exporter may put a prefix of their own before its names.
    return selecting([f"(?:[a-zA-Z][a-zA-Z0-9_]*_)?(?:{'|'.join(sorted(names))})"], selector)


def mean_gpu_utilization(
    series: Iterable[BenchmarkSeries], engine: Target, chosen: bool, start: float, end: float
) -> TelemetryFields:
    """Mean utilisation from start to end (unix seconds). `chosen`: a person's selector named these GPUs."""
    targets = group_by_target(series)
    if not any(one.samples for group in targets.values() for one in group):
        return TelemetryFields(remarks=(NONE,))
    pod, host = dict(engine).get("pod", ""), _host(engine)
    of_pod = {target: [one for one in group if _pod(one) == pod] for target, group in targets.items()}
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
    answer = extract_gpu_utilization(whole) if whole is not None else None
    if why or answer is None:
        return TelemetryFields(remarks=(f"gpu_utilization: {why or 'nothing on the server tells it'}",))
    text = f"gpu_utilization is the mean of the {len(windows)} GPUs {whose}"
    return TelemetryFields(values={"gpu_utilization": answer[1]}, gpu_utilization_kind=answer[0], remarks=(text,))


def _why_not(windows: Mapping[str, Sequence[Window]], whose: str, surely: bool, seconds: float) -> str:
    """Why these windows of GPUs are not told as the replica's in a run of so many seconds; empty where they are."""
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
    """By GPU, what it did between two readouts of one exporter."""
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


def _pod(series: BenchmarkSeries) -> str:
    labels = dict(series.labels)
    return labels.get("pod", "")


def _host(target: Target) -> str:
    return dict(target).get("instance", "").rpartition(":")[0]
