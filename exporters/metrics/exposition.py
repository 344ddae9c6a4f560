"""Collector of the `/metrics` page: agent status as Prometheus text or OpenMetrics, written by prometheus_client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, chain, product

from prometheus_client import exposition
from prometheus_client.metrics_core import Metric as Printed
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from exporters.metrics import names
from exporters.metrics.names import SAMPLES, ExportedMetric
from exporters.metrics.samples import engine_labels, gpu_labels
from exporters.render.safe_text import replace_undecodable
from exporters.status.records import AgentStatus, ExportScope, ReplicaStatus
from rules.telemetry.families import GPU_NAMES, FamilyKind, stem

OPENMETRICS = "application/openmetrics-text"
END = b"# EOF\n"

PART_BYTES = 65_536
"""Least size of a part of the page, except of the last: each is sent on its own."""

GROUP_REPLICAS = 16
"""Replicas of a family that are printed at once. A sample takes about a kilobyte until it is text."""


def render(status: AgentStatus, accept: str) -> tuple[bytes, str]:
    """Return the page and its content type. Use OpenMetrics 1.0.0 if `accept` prefers it, else text 0.0.4."""
    parts, content_type = render_parts(status, accept)
    return b"".join(parts), content_type


def render_parts(status: AgentStatus, accept: str) -> tuple[Iterator[bytes], str]:
    """Return the parts of the page, and its content type. Of 150 replicas it has 4 MiB, of which one part is made at a time."""
    metrics = StatusCollector(status).collect()
    if _prefers_openmetrics(accept):
        return _join_texts(chain(_print(metrics, _print_openmetrics), (END,))), openmetrics.CONTENT_TYPE_LATEST
    return _join_texts(_print(metrics, exposition.generate_latest)), exposition.CONTENT_TYPE_PLAIN_0_0_4


def _print_openmetrics(metric: Collector) -> bytes:
    text: bytes = openmetrics.generate_latest(metric, version="1.0.0")  # type: ignore[no-untyped-call]
    return text.removesuffix(END)


def _print(metrics: Iterable[Printed], generate: Callable[[Collector], bytes]) -> Iterator[bytes]:
    """Yield the text of each metric: the library keeps every line that it prints at once. Heads come once."""
    name, head = "", b""
    for metric in metrics:
        if metric.name != name:
            name, head = metric.name, b""
        elif not head:
            head = generate(_SingleMetric(Printed(name, metric.documentation, metric.type)))
        yield generate(_SingleMetric(metric)).removeprefix(head)


def _join_texts(texts: Iterable[bytes]) -> Iterator[bytes]:
    part = bytearray()
    for text in texts:
        part += text
        if len(part) >= PART_BYTES:
            yield bytes(part)
            part.clear()
    yield bytes(part)


def _prefers_openmetrics(accept: str) -> bool:
    # The library takes the first known type at any weight, and prints the client's version number back.
    weights = {"text/plain": 0.0, OPENMETRICS: 0.0}
    for offer in accept.split(","):
        kind, *parameters = (part.strip().lower() for part in offer.split(";"))
        if kind in weights:
            weights[kind] = max(weights[kind], _weight(parameters))
    return weights[OPENMETRICS] > 0 and weights[OPENMETRICS] >= weights["text/plain"]


def _weight(parameters: Iterable[str]) -> float:
    given = next((p.removeprefix("q=") for p in parameters if p.startswith("q=")), "1")
    try:
        return min(max(float(given), 0.0), 1.0)
    except ValueError:
        return 0.0


class StatusCollector(Collector):
    """Collector of prometheus_client over an agent status. Metrics without a sample are left out."""

    def __init__(self, status: AgentStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Printed]:
        """Yield engine and GPU families first, then sizewatch's own metrics. A family of many replicas comes in several."""
        exported = (tier for tier in self._status.tiers if tier.export_scope is not ExportScope.WHOLE_TIER)
        replicas = tuple(r for tier in exported for r in (*tier.replicas, *tier.parts) if not r.is_gone)
        groups = [replicas[start : start + GROUP_REPLICAS] for start in range(0, len(replicas), GROUP_REPLICAS)]
        for (family, metric), group in product(names.FAMILY.items(), groups):
            printed = _empty(metric)
            write = _add_histograms if metric.kind is FamilyKind.HISTOGRAM else _add_values
            for replica in group:
                write(printed, metric, family, replica)
            if printed.samples:
                yield printed
        for metric, samples in SAMPLES.items():
            printed = _empty(metric)
            for values, value in samples(self._status):
                printed.add_sample(metric.name, _labels(metric, values), value)
            if printed.samples:
                yield printed


class _SingleMetric(Collector):
    def __init__(self, metric: Printed) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Printed]:
        yield self._metric


def _empty(metric: ExportedMetric) -> Printed:
    return Printed(metric.name.removesuffix("_total"), metric.text, metric.type)


def _labels(metric: ExportedMetric, values: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(metric.labels, map(replace_undecodable, values), strict=True))


def _add_values(printed: Printed, metric: ExportedMetric, family: str, replica: ReplicaStatus) -> None:
    if family in GPU_NAMES:
        owners = [(gpu_labels(replica, gpu), gpu.counters, gpu.gauges) for gpu in replica.gpus]
    else:
        owners = [(engine_labels(replica), replica.totals.counters, replica.gauges)]
    for labels, counters, gauges in owners:
        values = counters if metric.kind is FamilyKind.COUNTER else gauges
        if family in names.PARTS:
            for name, value in values.items():
                if stem(name) == family:
                    printed.add_sample(metric.name, _labels(metric, (*labels, name.partition("/")[2])), value)
        elif family in values:
            printed.add_sample(metric.name, _labels(metric, labels), values[family])


def _add_histograms(printed: Printed, metric: ExportedMetric, family: str, replica: ReplicaStatus) -> None:
    """Add the buckets. Drop an untrusted sum with its count (OpenMetrics); the +Inf bucket has the count."""
    for part in replica.totals.histograms.get(family, ()):
        labels = _labels(metric, engine_labels(replica))
        for edge, upto in zip(part.edges, accumulate(part.counts), strict=True):
            le = floatToGoString(edge)  # type: ignore[no-untyped-call]
            printed.add_sample(f"{metric.name}_bucket", {**labels, "le": le}, upto)
        if part.total is not None:
            printed.add_sample(f"{metric.name}_count", labels, part.n)
            printed.add_sample(f"{metric.name}_sum", dict(labels), part.total)
