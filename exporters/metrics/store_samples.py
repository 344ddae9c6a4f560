"""How reading a store goes, as samples: rows of `exporters.metrics.self_metrics.SAMPLES`.

Owns the rows. A new metric is a row in `exporters.metrics.names.STORE` and a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from exporters.metrics import names
from exporters.metrics.component_metrics import Sample, Samples
from exporters.metrics.names import ExportedMetric
from exporters.status.records import AgentStatus, StoreHealth


def _of_store(value: Callable[[StoreHealth], float | None]) -> Samples:
    def samples(status: AgentStatus) -> Iterator[Sample]:
        found = value(status.health.store) if status.health.store is not None else None
        if found is not None:
            yield (), float(found)

    return samples


def _store_failures(status: AgentStatus) -> Iterator[Sample]:
    found = status.health.store
    return (((kind,), float(number)) for kind, number in sorted(found.failures.items() if found is not None else ()))


def _in_sight(status: AgentStatus) -> Iterator[Sample]:
    found = status.health.store
    return (((tier,), float(not why)) for tier, why in sorted(found.in_sight.items() if found is not None else ()))


STORE_SAMPLES: tuple[tuple[ExportedMetric, Samples], ...] = (
    (names.STORE_QUERIES, _of_store(lambda store: store.queries)),
    (names.STORE_SECONDS, _of_store(lambda store: store.seconds)),
    (names.STORE_BYTES, _of_store(lambda store: store.received_bytes)),
    (names.STORE_FAILURES, _store_failures),
    (names.TIER_IN_SIGHT, _in_sight),
    (names.LEADER, _of_store(lambda store: store.leads)),
)
"""In the order of `exporters.metrics.names.STORE`."""
