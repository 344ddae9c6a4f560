"""Samples of sizewatch's own metrics, from an agent status. `exporters.metrics.names` declares the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from exporters.status.records import AgentStatus, ExportScope, ReplicaStatus, TierStatus
from rules.catalogue.registry import margin_of
from rules.evaluator.incident_alerts import TIER_DOWN, held_back
from rules.evaluator.incidents import Incident
from rules.plan.curve import operating_point
from rules.plan.replica_count import spare_rps as spare_of
from rules.telemetry.signals import Missing
from rules.telemetry.snapshots import GpuReadout
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Status, Subject, Unknown, Verdict

Labels = tuple[str, ...]
"""Label values in the order of the metric's labels."""

Sample = tuple[Labels, float]
Items = Callable[[AgentStatus], Iterable[tuple[Labels, Any]]]
"""Function that gives the records of a metric with their labels."""

Value = str | Callable[[Any], float | None]
"""Path of attributes from a record to a number, or a function of the record. A None on the way gives no sample."""

TARGET_DOWN = "TargetDown"
"""Rule of the replicas of a tier that is down. The agent of a node calls a tier down whose other nodes may serve."""


def read_path(record: Any, path: str) -> Any:
    """Return the attribute of an attribute of a record, None if there is none on the way."""
    for name in path.split("."):
        record = getattr(record, name) if record is not None else None
    return record


def list_samples(items: Items, value: Value, status: AgentStatus) -> Iterator[Sample]:
    """Yield a sample of each item with its labels. A value that is None has none."""
    for labels, item in items(status):
        measured = read_path(item, value) if isinstance(value, str) else value(item)
        if measured is not None:
            yield labels, float(measured)


def tiers(status: AgentStatus) -> Iterator[tuple[Labels, TierStatus]]:
    return (((tier.name,), tier) for tier in status.tiers)


def whole_tiers(status: AgentStatus) -> Iterator[tuple[Labels, TierStatus]]:
    """Yield the tiers that the agent exports whole. The agent of a node sees a part, and lacks the history."""
    return (((tier.name,), tier) for tier in status.tiers if tier.export_scope is not ExportScope.REPLICAS)


def map_keys(path: str) -> Items:
    """Return the values of a mapping in the agent's health, labelled by their keys."""
    return lambda status: (((key,), value) for key, value in sorted((read_path(status.health, path) or {}).items()))


def map_parts(path: str, name: str) -> Items:
    """Return the parts of the agent's health, labelled by their own `name`."""
    return lambda status: (((getattr(part, name),), part) for part in read_path(status.health, path) or ())


def map_tier_parts(path: str, label: Callable[[Any], str]) -> Items:
    """Return the parts of each tier at a path, labelled by the tier and by themselves."""

    def parts(status: AgentStatus) -> Iterator[tuple[Labels, Any]]:
        for tier in status.tiers:
            yield from (((tier.name, label(part)), part) for part in read_path(tier, path) or ())

    return parts


def is_empty(path: str) -> Value:
    """Return whether the last attribute of a path is empty, such as a trouble. A record without its parent has no sample."""
    parent, _, name = path.rpartition(".")

    def value(record: Any) -> bool | None:
        owner = read_path(record, parent) if parent else record
        if owner is not None:
            return not getattr(owner, name)
        return None

    return value


def replica_labels(replica: ReplicaStatus) -> Labels:
    return replica.tier, replica.pool, replica.name


def engine_labels(replica: ReplicaStatus) -> Labels:
    return (*replica_labels(replica), replica.model)


def gpu_labels(replica: ReplicaStatus, gpu: GpuReadout) -> Labels:
    return (*replica_labels(replica), gpu.gpu)


def targets(status: AgentStatus) -> Iterator[tuple[Labels, ReplicaStatus]]:
    """Yield each replica, those that are gone included."""
    for tier in status.tiers:
        if tier.export_scope is not ExportScope.WHOLE_TIER:
            yield from ((replica_labels(replica), replica) for replica in tier.replicas)


def replicas(status: AgentStatus) -> Iterator[tuple[Labels, ReplicaStatus]]:
    return ((labels, replica) for labels, replica in targets(status) if not replica.is_gone)


def releases(status: AgentStatus) -> Iterator[Sample]:
    for _, replica in replicas(status):
        yield (*engine_labels(replica), replica.engine, replica.versions), 1.0


def scrape_failures(status: AgentStatus) -> Iterator[Sample]:
    pools = {(replica.tier, replica.name): replica.pool for tier in status.tiers for replica in tier.replicas}
    for (tier_name, name, kind), number in sorted(status.health.scrape_failures.items()):
        yield (tier_name, pools.get((tier_name, name), ""), name, kind), number


def gpu_products(status: AgentStatus) -> Iterator[Sample]:
    for tier in status.tiers:
        for replica in (*tier.replicas, *tier.parts):
            if not replica.is_gone:
                yield from (((*gpu_labels(replica, gpu), gpu.product), 1.0) for gpu in replica.gpus)


def _subject(subject: Subject, rule: str) -> Labels:
    return subject.tier, subject.replica or "", rule


def verdicts(status: AgentStatus) -> Iterator[tuple[Labels, Verdict]]:
    for tier in status.tiers:
        for result in tier.results:
            if isinstance(result, Unknown) or result.status is Status.UNKNOWN:
                continue
            if tier.export_scope.has_series(result.subject):
                yield _subject(result.subject, result.rule), result


def map_bounds(attribute: str) -> Items:
    """Return a value of each verdict, or its informative bounds if there is no value. No value here is below 0."""

    def samples(status: AgentStatus) -> Iterator[Sample]:
        for labels, verdict in verdicts(status):
            reading = getattr(verdict, attribute)
            if isinstance(reading, Missing):
                continue
            if reading.value is not None:
                yield (*labels, ""), reading.value
                continue
            if reading.low is not None and (reading.low > 0 or reading.high is None):
                yield (*labels, "lower"), reading.low
            if reading.high is not None:
                yield (*labels, "upper"), reading.high

    return samples


def unknowns(status: AgentStatus) -> Iterator[Sample]:
    """Yield 1 for each rule that cannot be evaluated, labelled by the reason."""
    for tier in status.tiers:
        for result in tier.results:
            if isinstance(result, Unknown) and tier.export_scope.has_series(result.subject):
                yield (*_subject(result.subject, result.rule), result.reason.value), 1.0


def open_incidents(status: AgentStatus) -> Iterator[tuple[Labels, Sequence[Incident]]]:
    for tier, incidents in status.exported_incidents.items():
        mapping: dict[Labels, list[Incident]] = {}
        for incident in incidents:
            if incident.ended_at is None:
                mapping.setdefault((tier, incident.root.rule, incident.severity.value), []).append(incident)
        yield from mapping.items()


def incident_alerts(status: AgentStatus) -> Iterator[Sample]:
    """Yield the alerts of incidents by their labels, with the number of rules that each stands for.

    Beside TierDown its replicas are tickets, which it inhibits where it fires.
    """
    counts: dict[Labels, float] = {}
    for alert in chain.from_iterable(status.incident_alerts.values()):
        labels = (*_subject(alert.subject, alert.rule), alert.severity.value)
        counts[labels] = max(counts.get(labels, 0.0), float(1 + len(held_back(alert))))
        for finding in alert.incident.findings if alert.rule == TIER_DOWN else ():
            if finding.rule == TARGET_DOWN and finding.ended_at is None:
                counts[*_subject(finding.subject, finding.rule), Severity.TICKET.value] = 1.0
    yield from counts.items()


def prices(status: AgentStatus) -> Iterator[Sample]:
    for tier in status.tiers:
        cost = read_path(tier, "context.plan.cost")
        if cost is not None:
            yield (tier.name, cost.currency), cost.gpu_hour_price


def operating_value(attribute: str) -> Value:
    def value(tier: TierStatus) -> float | None:
        plan = tier.context.plan
        number: float | None = read_path(operating_point(plan), attribute) if plan is not None else None
        return number

    return value


def spare_rps(tier: TierStatus) -> float | None:
    """Return the spare capacity of an online tier in requests per second, with NoHeadroom's margin. Unknown demand has none."""
    plan, capacity, used = tier.context.plan, tier.context.capacity, tier.estimate("fleet_utilization")
    if plan is None or plan.is_batch or capacity is None or used is None or not tier.context.serves_whole_requests:
        return None
    demand = max(used * capacity.rps * tier.replicas_up, tier.estimate("arrival_rps") or 0.0)
    return spare_of(tier.replicas_up, demand, capacity.rps, margin_of(tier.context.limits))


def spare_tokens(tier: TierStatus) -> float | None:
    """Return the same in output tokens, None unless the lengths that the capacity is for are exact."""
    spare, capacity = spare_rps(tier), tier.context.capacity
    tokens = capacity.lengths.generation_tokens if capacity is not None else None
    if spare is not None and tokens is not None and tokens.is_exact:
        return spare * tokens.low
    return None


def discovered_pods(status: AgentStatus) -> Iterator[Sample]:
    discovery = status.health.discovery
    if discovery is not None:
        yield ("watched",), float(discovery.watched)
        yield ("starting",), float(discovery.starting)
        yield ("left_out",), float(len(discovery.left_out))


def status_page(status: AgentStatus) -> Iterator[Sample]:
    if status.external_url:
        yield (status.external_url,), 1.0


def foreign_alerts(status: AgentStatus) -> Iterator[Sample]:
    firing: Counter[Labels] = Counter()
    for alert in status.foreign:
        if alert.ended_at is None and alert.tier is not None:
            firing[alert.tier, alert.diagnosis.rule if alert.diagnosis else ""] += 1
    return ((labels, float(number)) for labels, number in sorted(firing.items()))


def map_demand(attribute: str) -> Items:
    def samples(status: AgentStatus) -> Iterator[Sample]:
        for tier in status.tiers:
            point = read_path(tier, f"forecast.{attribute}")
            if point is not None:
                yield (tier.name, "0.5"), point.q50
                yield (tier.name, "0.95"), point.q95
                yield (tier.name, "0.99"), point.q99

    return samples


def coverage(tier: TierStatus) -> float | None:
    """Return the share of past targets of a tier's forecast at or below their 95 % quantile."""
    projection = read_path(tier, "forecast.forecast.projection")
    if projection and projection.forecasts:
        return float(projection.covered / projection.forecasts)
    return None


def cold_start_seconds(status: AgentStatus) -> Iterator[Sample]:
    for tier in status.tiers:
        for quantiles in read_path(tier, "forecast.cold_start.known") or ():
            yield (tier.name, quantiles.timing, "0.5"), quantiles.p50_seconds
            yield (tier.name, quantiles.timing, "0.95"), quantiles.p95_seconds


def delivery_results(status: AgentStatus) -> Iterator[Sample]:
    for delivery in read_path(status.health, "reporting.deliveries") or ():
        for result in ("sent", "failed", "given_up"):
            yield (delivery.destination, result), float(getattr(delivery, result))
