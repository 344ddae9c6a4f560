"""Samples of sizewatch's own metrics: targets, verdicts, plan numbers and agent health.

SAMPLES has one row per metric of `exporters.metrics.names.OWN`. Rows about forecasts, reports and stores are in
`exporters.metrics.component_metrics`. A new metric is a row in `exporters.metrics.names` and a row here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from exporters.metrics import names
from exporters.metrics.component_metrics import (
    FORECAST_SAMPLES,
    REPORT_SAMPLES,
    STORE_SAMPLES,
    Sample,
    Samples,
    of_each,
)
from exporters.metrics.names import ExportedMetric
from exporters.status.records import (
    AgentHealth,
    AgentStatus,
    AlertmanagerHealth,
    ExportScope,
    GpuStatus,
    ReplicaStatus,
    TierStatus,
    WebhookHealth,
)
from rules.catalogue.registry import margin_of
from rules.confidence import Certainty
from rules.evaluator.incident_alerts import TIER_DOWN, held_back
from rules.evaluator.incidents import Incident
from rules.plan.curve import OperatingPoint, operating_point
from rules.plan.replica_count import spare_rps
from rules.plan.schema import TierPlan, plan_version
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME as SIGNALS
from rules.telemetry.signals import Missing, Reading, SignalValue
from rules.telemetry.work import Capacity
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import SEVERITY, RuleResult, Status, Subject, Unknown, Verdict

TARGET_DOWN = "TargetDown"
"""Rule of the replicas of a tier that is down. The agent of a node calls a tier down whose other nodes may serve."""


def replica_labels(replica: ReplicaStatus) -> tuple[str, ...]:
    return replica.tier, replica.pool, replica.name


def engine_labels(replica: ReplicaStatus) -> tuple[str, ...]:
    return (*replica_labels(replica), replica.model)


def gpu_labels(replica: ReplicaStatus, gpu: GpuStatus) -> tuple[str, ...]:
    return (*replica_labels(replica), gpu.gpu)


def _of_replicas(
    value: Callable[[ReplicaStatus], float | None],
    labels: Callable[[ReplicaStatus], tuple[str, ...]] = replica_labels,
    *,
    after_death: bool = False,
) -> Samples:
    def samples(status: AgentStatus) -> Iterator[Sample]:
        for tier in status.tiers:
            for replica in tier.replicas if tier.export_scope is not ExportScope.WHOLE_TIER else ():
                measured = value(replica)
                if measured is not None and (after_death or not replica.is_gone):
                    yield labels(replica), measured

    return samples


def _of_plans(value: Callable[[TierPlan], float | None]) -> Samples:
    return of_each(lambda status: (((tier.name,), plan) for tier, plan in _plans(status)), value)


def _of_points(value: Callable[[OperatingPoint], float | None]) -> Samples:
    return of_each(lambda status: (((tier.name,), operating_point(plan)) for tier, plan in _plans(status)), value)


def _plans(status: AgentStatus) -> Iterator[tuple[TierStatus, TierPlan]]:
    return ((tier, tier.context.plan) for tier in status.tiers if tier.context.plan is not None)


def _of_whole_tiers(value: Callable[[TierStatus], float | None]) -> Samples:
    """Return samples of the tiers that the agent exports whole. The agent of a node sees a part, and lacks the history."""
    return of_each(
        lambda status: (((t.name,), t) for t in status.tiers if t.export_scope is not ExportScope.REPLICAS), value
    )


def _read(tier: TierStatus, signal: str) -> Reading | None:
    reading = read(SIGNALS[signal], tier.recent, tier.context.basis) if tier.recent is not None else None
    return reading if isinstance(reading, Reading) else None


def _spare(unit: Callable[[Capacity], float | None]) -> Samples:
    """Return samples of an online tier's spare capacity, requests per second x `unit`. Unknown demand has none."""

    def spare(tier: TierStatus) -> float | None:
        plan, capacity, used = tier.context.plan, tier.context.capacity, _read(tier, "fleet_utilization")
        if plan is None or plan.is_batch or capacity is None or not tier.context.serves_whole_requests:
            return None
        each, arriving = unit(capacity), _read(tier, "arrival_rps")
        if each is None or used is None or used.value is None:
            return None
        come = (arriving.value or arriving.low or 0.0) if arriving is not None else 0.0
        demand = max(used.value * capacity.rps * tier.replicas_up, come)
        return each * spare_rps(tier.replicas_up, demand, capacity.rps, margin_of(tier.context.limits))

    return _of_whole_tiers(spare)


def _output_tokens(capacity: Capacity) -> float | None:
    """Return the mean output tokens of the requests that a capacity is for, None unless they are exact."""
    tokens = capacity.lengths.generation_tokens
    return tokens.low if tokens is not None and tokens.is_exact else None


def _of_capacity(value: Callable[[Capacity], float | None]) -> Samples:
    return _of_whole_tiers(lambda tier: value(tier.context.capacity) if tier.context.capacity is not None else None)


def _of_health(value: Callable[[AgentHealth], float | None]) -> Samples:
    return of_each(lambda status: [((), status.health)], value)


def _failures(status: AgentStatus) -> Iterator[Sample]:
    pools = {(r.tier, r.name): r.pool for tier in status.tiers for r in tier.replicas}
    for (tier, replica, kind), number in sorted(status.health.scrape_failures.items()):
        yield (tier, pools.get((tier, replica), ""), replica, kind), number


def _gpus(status: AgentStatus) -> Iterator[Sample]:
    for tier in status.tiers:
        for replica in (*tier.replicas, *tier.parts):
            if not replica.is_gone:
                yield from (((*gpu_labels(replica, gpu), gpu.product), 1.0) for gpu in replica.gpus)


def _subject(subject: Subject, rule: str) -> tuple[str, ...]:
    return subject.tier, subject.replica or "", rule


def _judged(status: AgentStatus) -> Iterator[Verdict]:
    for tier in status.tiers:
        yield from (
            result for result in _answers(tier) if isinstance(result, Verdict) and result.status is not Status.UNKNOWN
        )


def _answers(tier: TierStatus) -> Iterator[RuleResult]:
    return (result for result in tier.results if tier.export_scope.has_series(result.subject))


def _of_incidents(value: Callable[[Sequence[Incident]], float]) -> Samples:
    def samples(status: AgentStatus) -> Iterator[Sample]:
        for tier, incidents in status.exported_incidents.items():
            mapping: dict[tuple[str, ...], list[Incident]] = {}
            for incident in incidents:
                if incident.ended_at is None:
                    mapping.setdefault((tier, incident.root.rule, incident.severity.value), []).append(incident)
            yield from ((labels, value(lasting)) for labels, lasting in mapping.items())

    return samples


def _incident_alerts(status: AgentStatus) -> Iterator[Sample]:
    """Yield the alerts of incidents by their labels, with the number of rules that each stands for.

    Beside TierDown its replicas are tickets, which it inhibits where it fires.
    """
    counts: dict[tuple[str, ...], float] = {}
    for alert in (candidate for alerts in status.incident_alerts.values() for candidate in alerts):
        labels = (*_subject(alert.subject, alert.rule), alert.severity.value)
        counts[labels] = max(counts.get(labels, 0.0), float(1 + len(held_back(alert))))
        for finding in alert.incident.findings if alert.rule == TIER_DOWN else ():
            if finding.rule == TARGET_DOWN and finding.ended_at is None:
                counts[*_subject(finding.subject, finding.rule), Severity.TICKET.value] = 1.0
    yield from counts.items()


def _bounds(reading: SignalValue) -> Iterator[tuple[str, float]]:
    """Yield the value, or its informative bounds if there is no value. No value here is below 0."""
    if isinstance(reading, Missing):
        return
    if reading.value is not None:
        yield "", reading.value
        return
    if reading.low is not None and (reading.low > 0 or reading.high is None):
        yield "lower", reading.low
    if reading.high is not None:
        yield "upper", reading.high


def _values(value: Callable[[Verdict], SignalValue]) -> Samples:
    def samples(status: AgentStatus) -> Iterator[Sample]:
        for verdict in _judged(status):
            for bound, measured in _bounds(value(verdict)):
                yield (*_subject(verdict.subject, verdict.rule), bound), measured

    return samples


def _unknowns(status: AgentStatus) -> Iterator[Sample]:
    for tier in status.tiers:
        for result in _answers(tier):
            if isinstance(result, Unknown):
                yield (*_subject(result.subject, result.rule), result.reason.value), 1.0


def _plan_infos(status: AgentStatus) -> Iterator[Sample]:
    for tier, plan in _plans(status):
        yield (tier.name, plan_version(plan), plan.model, plan.engine, plan.gpu.product), 1.0


def _prices(status: AgentStatus) -> Iterator[Sample]:
    for tier, plan in _plans(status):
        if plan.cost is not None:
            yield (tier.name, plan.cost.currency), plan.cost.gpu_hour_price


def _of_alertmanagers(value: Callable[[AlertmanagerHealth], float | None]) -> Samples:
    return of_each(
        lambda status: (((alertmanager.alertmanager,), alertmanager) for alertmanager in status.health.alertmanagers),
        value,
    )


def _of_webhook(value: Callable[[WebhookHealth], float]) -> Samples:
    return of_each(lambda status: [((), status.health.webhook)], value)


def _webhook_refusals(status: AgentStatus) -> Iterator[Sample]:
    webhook = status.health.webhook
    refused = webhook.refused if webhook is not None else {}
    return (((reason,), float(number)) for reason, number in sorted(refused.items()))


def _pods(status: AgentStatus) -> Iterator[Sample]:
    discovery = status.health.discovery
    if discovery is not None:
        states = {"watched": discovery.watched, "starting": discovery.starting, "left_out": len(discovery.left_out)}
        yield from (((state,), float(number)) for state, number in states.items())


def _foreign_alerts(status: AgentStatus) -> Iterator[Sample]:
    firing = Counter(
        (alert.tier, alert.diagnosis.rule if alert.diagnosis else "")
        for alert in status.foreign
        if alert.ended_at is None and alert.tier is not None
    )
    return ((labels, float(number)) for labels, number in sorted(firing.items()))


def _peak(plan: TierPlan) -> float | None:
    rates = plan.workload.requests_per_second if plan.workload else None
    return rates.peak if rates else None


SAMPLES: tuple[tuple[ExportedMetric, Samples], ...] = (
    (names.TARGET_UP, _of_replicas(lambda r: float(r.up and not r.is_gone), after_death=True)),
    (names.TARGET_SEEN, _of_replicas(lambda r: r.last_seen, after_death=True)),
    (names.SCRAPE_SECONDS, _of_replicas(lambda r: r.scrape_seconds)),
    (names.SCRAPE_FAILURES, _failures),
    (names.REPLICA_INFO, _of_replicas(lambda r: 1.0, lambda r: (*engine_labels(r), r.engine, r.versions))),
    (names.GPU_INFO, _gpus),
    (names.VERDICT, lambda status: ((_subject(v.subject, v.rule), SEVERITY[v.status]) for v in _judged(status))),
    (
        names.VERDICT_CERTAIN,
        lambda status: (
            (_subject(v.subject, v.rule), float(v.certainty is Certainty.CERTAIN)) for v in _judged(status)
        ),
    ),
    (names.OBSERVED, _values(lambda verdict: verdict.observed)),
    (names.EXPECTED, _values(lambda verdict: verdict.expected)),
    (names.INCIDENT_ALERT, _incident_alerts),
    (names.UNKNOWN, _unknowns),
    (names.INCIDENT, _of_incidents(len)),
    (names.INCIDENT_START, _of_incidents(lambda lasting: min(incident.started_at for incident in lasting))),
    (names.CASCADE_STAGE, _of_replicas(lambda r: float(r.cascade_stage))),
    (names.PLAN_INFO, _plan_infos),
    (names.PLAN_USABLE_RPS, _of_points(lambda point: point.usable_rps)),
    (names.CAPACITY_RPS, _of_capacity(lambda candidate: candidate.rps)),
    (names.CAPACITY_LOW_RPS, _of_capacity(lambda candidate: candidate.low or None)),
    (names.CAPACITY_HIGH_RPS, _of_capacity(lambda candidate: candidate.high)),
    (names.SPARE_RPS, _spare(lambda candidate: 1.0)),
    (names.SPARE_TOKENS, _spare(_output_tokens)),
    (
        names.FLEET_UTILIZATION,
        _of_whole_tiers(lambda tier: used.value if (used := _read(tier, "fleet_utilization")) else None),
    ),
    (names.SURPLUS_REPLICAS, _of_whole_tiers(lambda tier: tier.surplus.replicas if tier.surplus is not None else None)),
    (names.PLAN_C_MAX, _of_points(lambda point: point.c_max)),
    (names.PLAN_REPLICAS, _of_plans(lambda p: p.fleet.instances if p.fleet else None)),
    (names.PLAN_MINIMUM_WARM, _of_plans(lambda p: p.fleet.minimum_warm if p.fleet else None)),
    (names.PLAN_GPUS, _of_plans(lambda p: p.gpu.per_replica)),
    (names.PLAN_PEAK, _of_plans(_peak)),
    (names.PLAN_TTFT, _of_plans(lambda p: p.slo.ttft_p99_seconds)),
    (names.PLAN_TPOT, _of_plans(lambda p: p.slo.tpot_p99_seconds)),
    (names.PLAN_ITL, _of_plans(lambda p: p.slo.itl_p99_seconds)),
    (names.PLAN_E2E, _of_plans(lambda p: p.slo.e2e_p99_seconds)),
    (names.PLAN_PREFIX_HITS, _of_plans(lambda p: p.workload.prefix_hit_ratio if p.workload else None)),
    (names.PLAN_PRICE, _prices),
    (names.BUILD_INFO, lambda status: iter([((status.version, status.role), 1.0)])),
    (names.STATUS_PAGE, lambda status: iter([((status.external_url,), 1.0)] if status.external_url else [])),
    (names.START_TIME, lambda status: iter([((), status.started_at)])),
    (names.LAST_CYCLE, _of_health(lambda h: h.last_cycle_at)),
    (names.CYCLES, _of_health(lambda h: h.cycles)),
    (names.CYCLE_OVERRUNS, _of_health(lambda h: h.overruns)),
    (names.CYCLE_SECONDS, _of_health(lambda h: h.last_cycle_seconds)),
    (names.CYCLE_ERRORS, _of_health(lambda h: h.cycle_errors)),
    (names.HISTORY_UP, _of_health(lambda h: h.history_trouble is None)),
    (names.HISTORY_UNBOOKED, _of_health(lambda h: h.unbooked_minutes)),
    (names.HISTORY_DROPPED, _of_health(lambda h: h.dropped_minutes)),
    (names.CONFIG_RELOADS, _of_health(lambda h: h.config_reloads)),
    (names.CONFIG_OK, _of_health(lambda h: h.config_trouble is None)),
    (names.GPU_PROBLEMS, _of_health(lambda h: len(h.gpu_problems))),
    (names.DISCOVERY_UP, of_each(lambda status: [((), status.health.discovery)], lambda d: d.trouble is None)),
    (names.DISCOVERY_PODS, _pods),
    (names.WEB_ERRORS, _of_health(lambda h: h.web_errors)),
    (names.WEB_REFUSALS, _of_health(lambda h: h.web_refusals)),
    (names.ALERTMANAGER_UP, _of_alertmanagers(lambda a: a.trouble is None if a.posts or a.failures else None)),
    (names.ALERTMANAGER_SUCCESS, _of_alertmanagers(lambda a: a.last_success_at)),
    (names.ALERTS_POSTED, _of_alertmanagers(lambda a: a.alerts)),
    (names.ALERT_POST_FAILURES, _of_alertmanagers(lambda a: a.failures)),
    (names.ALERTS_REFUSED, _of_alertmanagers(lambda a: len(a.refused))),
    (names.FOREIGN_ALERTS, _foreign_alerts),
    (names.WEBHOOK_TAKEN, _of_webhook(lambda w: w.taken)),
    (names.WEBHOOK_REFUSED, _webhook_refusals),
    (names.WEBHOOK_LEFT_OUT, _of_webhook(lambda w: w.left_out)),
    *FORECAST_SAMPLES,
    *REPORT_SAMPLES,
    *STORE_SAMPLES,
)
