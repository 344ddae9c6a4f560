"""Samples of forecasts, reports and store reads, one row per metric in the order of `exporters.metrics.names`.

An outdated forecast has no sample, so an autoscaler sees no recommendation in place of zero. Report destinations are
labelled by their configured name, never by their address. A new metric is a row in `exporters.metrics.names` and a row
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from exporters.metrics import names
from exporters.metrics.names import ExportedMetric
from exporters.status.records import (
    AgentStatus,
    DeliveryHealth,
    ForecastHealth,
    ForecastStatus,
    ReportHealth,
    StoreHealth,
)
from rules.replicas.starts import StartQuantiles
from rules.verdicts.projection import ForecastPoint, Projection

if TYPE_CHECKING:
    from exporters.documents.prewarm_value import Strategy

Sample = tuple[tuple[str, ...], float]
"""Label values in the order of the metric's labels, and the value."""

Samples = Callable[[AgentStatus], Iterator[Sample]]

_Item = TypeVar("_Item")


def of_each(
    items: Callable[[AgentStatus], Iterable[tuple[tuple[str, ...], _Item | None]]],
    value: Callable[[_Item], float | None],
) -> Samples:
    """Return a sample of each item with its labels. An item or a value that is None has none."""

    def samples(status: AgentStatus) -> Iterator[Sample]:
        for labels, item in items(status):
            measured = value(item) if item is not None else None
            if measured is not None:
                yield labels, float(measured)

    return samples


def _tiers(status: AgentStatus) -> Iterator[tuple[str, ForecastStatus]]:
    return ((tier.name, tier.forecast) for tier in status.tiers if tier.forecast is not None)


def _of_tiers(value: Callable[[ForecastStatus], float | None]) -> Samples:
    return of_each(lambda status: (((name,), forecast) for name, forecast in _tiers(status)), value)


def _of_projections(value: Callable[[Projection], float | None]) -> Samples:
    return _of_tiers(lambda forecast: value(forecast.forecast.projection) if forecast.forecast is not None else None)


def _demand(which: Callable[[ForecastStatus], ForecastPoint | None]) -> Samples:
    def samples(status: AgentStatus) -> Iterator[Sample]:
        for name, forecast in _tiers(status):
            point = which(forecast)
            if point is not None:
                yield from (
                    ((name, q), value) for q, value in (("0.5", point.q50), ("0.95", point.q95), ("0.99", point.q99))
                )

    return samples


def _weights(status: AgentStatus) -> Iterator[Sample]:
    for name, forecast in _tiers(status):
        if forecast.forecast is not None:
            yield from (((name, method), share) for method, share in forecast.forecast.weights)


def _cold_starts(status: AgentStatus) -> Iterator[Sample]:
    for name, quantiles in _start_quantiles(status):
        yield (name, quantiles.timing, "0.5"), quantiles.p50_seconds
        yield (name, quantiles.timing, "0.95"), quantiles.p95_seconds


def _start_quantiles(status: AgentStatus) -> Iterator[tuple[str, StartQuantiles]]:
    return (
        (name, quantiles) for name, tier in _tiers(status) if tier.cold_start for quantiles in tier.cold_start.known
    )


def _worth(value: Callable[[Strategy], float]) -> Samples:
    def samples(status: AgentStatus) -> Iterator[Sample]:
        for name, forecast in _tiers(status):
            worth = forecast.prewarm.worth if forecast.prewarm is not None else None
            if worth is not None:
                yield from (((name, strategy.name), value(strategy)) for strategy in worth.strategies)

    return samples


def _of_process(value: Callable[[ForecastHealth], float | None]) -> Samples:
    return of_each(lambda status: [((), status.health.forecasting)], value)


def _forecast_failures(status: AgentStatus) -> Iterator[Sample]:
    health = status.health.forecasting
    failures = health.failures if health is not None else {}
    return (((kind,), float(number)) for kind, number in sorted(failures.items()))


FORECAST_SAMPLES: tuple[tuple[ExportedMetric, Samples], ...] = (
    (names.RECOMMENDED, _of_tiers(lambda tier_forecast: tier_forecast.recommended)),
    (names.MINIMUM_WARM, _of_tiers(lambda tier_forecast: tier_forecast.minimum_warm)),
    (names.FORECAST_RPS, _demand(lambda tier_forecast: tier_forecast.requests_at_lead)),
    (names.FORECAST_FOR_NOW_RPS, _demand(lambda tier_forecast: tier_forecast.requests_for_now)),
    (names.FORECAST_WORK, _demand(lambda tier_forecast: tier_forecast.at_lead)),
    (names.DEMAND_WORK, _of_tiers(lambda tier_forecast: tier_forecast.now_rps)),
    (names.FORECAST_LEAD, _of_projections(lambda projection: projection.horizon_seconds)),
    (
        names.FORECAST_COVERAGE,
        _of_projections(lambda projection: projection.covered / projection.forecasts if projection.forecasts else None),
    ),
    (names.FORECAST_ERROR, _of_projections(lambda projection: projection.error_ratio)),
    (names.FORECAST_MADE, _of_projections(lambda projection: projection.made_at)),
    (names.FORECAST_WEIGHT, _weights),
    (names.COLD_START_SECONDS, _cold_starts),
    (
        names.COLD_STARTS,
        lambda status: (
            ((name, quantiles.timing), float(quantiles.count)) for name, quantiles in _start_quantiles(status)
        ),
    ),
    (names.PREWARM_REPLICA_SECONDS, _worth(lambda candidate: 3600.0 * candidate.replica_hours)),
    (names.PREWARM_VIOLATION_SECONDS, _worth(lambda candidate: 60.0 * candidate.violation_minutes)),
    (names.FORECAST_RUNS, _of_process(lambda health: health.runs)),
    (names.FORECAST_FAILURES, _forecast_failures),
    (names.FORECAST_SECONDS, _of_process(lambda health: health.last_seconds)),
    (names.FORECAST_MEMORY, _of_process(lambda health: health.memory_bytes)),
)


def _of_reports(value: Callable[[ReportHealth], float | None]) -> Samples:
    return of_each(lambda status: [((), status.health.reporting)], value)


def _deliveries(status: AgentStatus) -> Sequence[DeliveryHealth]:
    return status.health.reporting.deliveries if status.health.reporting is not None else ()


def _of_deliveries(value: Callable[[DeliveryHealth], float]) -> Samples:
    return of_each(lambda status: (((delivery.destination,), delivery) for delivery in _deliveries(status)), value)


def _results(status: AgentStatus) -> Iterator[Sample]:
    for delivery in _deliveries(status):
        for result, count in (("sent", delivery.sent), ("failed", delivery.failed), ("given_up", delivery.given_up)):
            yield (delivery.destination, result), float(count)


REPORT_SAMPLES: tuple[tuple[ExportedMetric, Samples], ...] = (
    (names.REPORT_UP, _of_reports(lambda report: not report.trouble)),
    (names.REPORT_SUCCESS, _of_reports(lambda report: report.made_at)),
    (names.REPORT_NEXT, _of_reports(lambda report: report.next_at)),
    (names.REPORT_FAILURES, _of_reports(lambda report: report.failures)),
    (names.REPORT_MEMORY, _of_reports(lambda report: report.memory_bytes or None)),
    (names.REPORT_DELIVERIES, _results),
    (names.REPORT_PENDING, _of_deliveries(lambda delivery: delivery.pending)),
    (names.REPORT_DELIVERY_UP, _of_deliveries(lambda delivery: not delivery.trouble)),
)


def _of_store(value: Callable[[StoreHealth], float | None]) -> Samples:
    return of_each(lambda status: [((), status.health.store)], value)


def _store_failures(status: AgentStatus) -> Iterator[Sample]:
    store = status.health.store
    return (((kind,), float(number)) for kind, number in sorted(store.failures.items() if store is not None else ()))


def _in_sight(status: AgentStatus) -> Iterator[Sample]:
    store = status.health.store
    return (((tier,), float(not why)) for tier, why in sorted(store.in_sight.items() if store is not None else ()))


STORE_SAMPLES: tuple[tuple[ExportedMetric, Samples], ...] = (
    (names.STORE_QUERIES, _of_store(lambda store: store.queries)),
    (names.STORE_SECONDS, _of_store(lambda store: store.seconds)),
    (names.STORE_BYTES, _of_store(lambda store: store.received_bytes)),
    (names.STORE_FAILURES, _store_failures),
    (names.TIER_IN_SIGHT, _in_sight),
)
"""Store metrics and their samples, in the order of `exporters.metrics.names`."""
