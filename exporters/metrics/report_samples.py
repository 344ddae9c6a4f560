"""How the weekly report and its delivery go, as samples.

Owns REPORT_SAMPLES, one row a metric, in the order of `exporters.metrics.names.OWN`. A new metric is a row there and here. A
destination is told by the name that it was given, never by its address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from exporters.metrics import names
from exporters.metrics.component_metrics import Sample, Samples
from exporters.metrics.names import ExportedMetric
from exporters.status.records import AgentStatus, DeliveryHealth, ReportHealth


def _of_reports(value: Callable[[ReportHealth], float | None]) -> Samples:
    def samples(status: AgentStatus) -> Iterator[Sample]:
        found = value(status.health.reporting) if status.health.reporting is not None else None
        if found is not None:
            yield (), float(found)

    return samples


def _of_deliveries(value: Callable[[DeliveryHealth], float]) -> Samples:
    def samples(status: AgentStatus) -> Iterator[Sample]:
        found = status.health.reporting
        for one in found.deliveries if found is not None else ():
            yield (one.destination,), float(value(one))

    return samples


def _results(status: AgentStatus) -> Iterator[Sample]:
    found = status.health.reporting
    for one in found.deliveries if found is not None else ():
        for result, count in (("sent", one.sent), ("failed", one.failed), ("given_up", one.given_up)):
            yield (one.destination, result), float(count)


REPORT_SAMPLES: tuple[tuple[ExportedMetric, Samples], ...] = (
    (names.REPORT_UP, _of_reports(lambda one: not one.trouble)),
    (names.REPORT_SUCCESS, _of_reports(lambda one: one.made_at)),
    (names.REPORT_NEXT, _of_reports(lambda one: one.next_at)),
    (names.REPORT_FAILURES, _of_reports(lambda one: one.failures)),
    (names.REPORT_MEMORY, _of_reports(lambda one: one.memory_bytes or None)),
    (names.REPORT_DELIVERIES, _results),
    (names.REPORT_PENDING, _of_deliveries(lambda one: one.pending)),
    (names.REPORT_DELIVERY_UP, _of_deliveries(lambda one: not one.trouble)),
)
