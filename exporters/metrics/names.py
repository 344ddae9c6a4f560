"""Exported metrics (DESIGN 6): labels, names of engine and GPU families, and sizewatch's own metrics.

Families go out by `rules.telemetry.families`. A metric of sizewatch's own is declared here with the function that gives
its samples, in the order of the page. An outdated forecast has no sample, so an autoscaler sees no recommendation in
place of zero. Quantiles and ratios of a window are not exported: they cannot be summed. Names follow Prometheus: base
units, and `_total` of counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from exporters.metrics import samples as of
from exporters.status.records import AgentStatus
from rules.confidence import Certainty
from rules.telemetry.families import BY_NAME, FAMILIES, GPU_NAMES, Family, FamilyKind, stem
from rules.verdicts.verdict import SEVERITY as STATUS_NUMBERS

PREFIX = "sizewatch_"

TIER, POOL, REPLICA, MODEL, GPU = "tier", "pool", "replica", "model", "gpu"
RULE, REASON, KIND, BOUND = "rule", "reason", "kind", "bound"
ALERTMANAGER, QUANTILE, DESTINATION, SEVERITY = "alertmanager", "quantile", "destination", "severity"

OF_TIER = (TIER,)
OF_REPLICA = (TIER, POOL, REPLICA)
OF_ENGINE = (TIER, POOL, REPLICA, MODEL)
OF_GPU = (TIER, POOL, REPLICA, GPU)
OF_RULE = (TIER, REPLICA, RULE)
OF_BOUND = (*OF_RULE, BOUND)
OF_INCIDENT = (TIER, "root", SEVERITY)
OF_QUANTILE = (TIER, QUANTILE)
OF_STRATEGY = (TIER, "strategy")
RELEASE = ("engine", "engine_version")

PARTS: Mapping[str, str] = {"spec_accepted_at_position": "position", "gpu_fault_events_by_code": "code"}
"""Label of the part number, for families with parts (`spec_accepted_at_position/2`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedMetric:
    """Exported metric: full name (of a histogram without `_bucket`), labels in order, help text."""

    name: str
    kind: FamilyKind
    labels: tuple[str, ...]
    text: str

    @property
    def type(self) -> str:
        """Return the type of the TYPE line: series with a quantile are a summary, although they rise and fall as gauges."""
        if QUANTILE in self.labels:
            return "summary"
        return self.kind.value


def _family(family: Family) -> ExportedMetric:
    labels = OF_GPU if family.name in GPU_NAMES else OF_ENGINE
    part = (PARTS[family.name],) if family.name in PARTS else ()
    return ExportedMetric(name=PREFIX + family.export, kind=family.kind, labels=labels + part, text=family.text)


FAMILY: Mapping[str, ExportedMetric] = {family.name: _family(family) for family in FAMILIES if family.export}
"""Exported engine and GPU metrics by family name. A family without an export name is not exported."""


def metric(family: str) -> ExportedMetric:
    """Return the metric of a family or of its part. Raise KeyError if it is not exported."""
    return FAMILY[stem(family)]


def exported(family: str) -> str:
    """Return the exported name of a counter or gauge family. Raise KeyError if it is not exported."""
    return metric(family).name


def bucket(family: str) -> str:
    """Return the exported name of a histogram family's buckets. Raise KeyError if it is not an exported histogram."""
    return _histogram(family) + "_bucket"


def total(family: str) -> str:
    """Return the exported name of a histogram family's sum. Raise KeyError if it is not an exported histogram."""
    return _histogram(family) + "_sum"


def _histogram(family: str) -> str:
    if BY_NAME[family].kind is not FamilyKind.HISTOGRAM:
        raise KeyError(f"{family} is no histogram")
    return FAMILY[family].name


SAMPLES: dict[ExportedMetric, Callable[[AgentStatus], Iterable[of.Sample]]] = {}
"""Function of the samples by metric."""


def _gauge(
    name: str,
    labels: tuple[str, ...],
    items: of.Items,
    text: str,
    value: of.Value = float,
    kind: FamilyKind = FamilyKind.GAUGE,
) -> ExportedMetric:
    metric = ExportedMetric(name=PREFIX + name, kind=kind, labels=labels, text=text)
    SAMPLES[metric] = partial(of.list_samples, items, value)
    return metric


def _counter(name: str, labels: tuple[str, ...], items: of.Items, text: str, value: of.Value = float) -> ExportedMetric:
    return _gauge(f"{name}_total", labels, items, text, value, FamilyKind.COUNTER)


def _tier(name: str, value: of.Value, text: str) -> ExportedMetric:
    return _gauge(name, OF_TIER, of.tiers, text, value)


def _whole_tier(name: str, value: of.Value, text: str) -> ExportedMetric:
    return _gauge(name, OF_TIER, of.whole_tiers, text, value)


def _plan(name: str, path: str, text: str) -> ExportedMetric:
    return _tier(f"plan_{name}", f"context.plan.{path}", text)


def _agent(name: str, value: of.Value, text: str, kind: FamilyKind = FamilyKind.GAUGE) -> ExportedMetric:
    return _gauge(name, (), lambda status: [((), status.health)], text, value, kind)


def _agent_counter(name: str, value: str, text: str) -> ExportedMetric:
    return _agent(f"{name}_total", value, text, FamilyKind.COUNTER)


TARGET_UP = _gauge(
    "target_up", OF_REPLICA, of.targets, "Whether its last scrape gave a usable page", lambda r: r.up and not r.is_gone
)
TARGET_SEEN = _gauge(
    "target_last_success_timestamp_seconds", OF_REPLICA, of.targets, "Unix time of its last good page", "last_seen"
)
SCRAPE_SECONDS = _gauge(
    "scrape_duration_seconds", OF_REPLICA, of.replicas, "Duration of its last scrape", "scrape_seconds"
)
SCRAPE_FAILURES = _counter("scrape_failures", (*OF_REPLICA, KIND), of.scrape_failures, "Failed scrapes by kind")
REPLICA_INFO = _gauge("replica_info", (*OF_ENGINE, *RELEASE), of.releases, "1; engine and release of the replica")
GPU_INFO = _gauge("gpu_info", (*OF_GPU, "product"), of.gpu_products, "1; GPUs of the replica")

VERDICT = _gauge(
    "verdict",
    OF_RULE,
    of.verdicts,
    "0 ok, 1 warning, 2 critical; absent where it is unknown",
    lambda verdict: STATUS_NUMBERS[verdict.status],
)
VERDICT_CERTAIN = _gauge(
    "verdict_certain",
    OF_RULE,
    of.verdicts,
    "1 if that verdict is certain, 0 if likely",
    lambda verdict: verdict.certainty is Certainty.CERTAIN,
)
OBSERVED = _gauge(
    "observed", OF_BOUND, of.map_bounds("observed"), "What it measured in the rule's base unit, or a bound"
)
EXPECTED = _gauge("expected", OF_BOUND, of.map_bounds("expected"), "Value that it is compared with, in the same unit")
INCIDENT_ALERT = _gauge("incident_alert", (*OF_RULE, SEVERITY), of.incident_alerts, "Rules that one alert stands for")
UNKNOWN = _gauge("unknown", (*OF_RULE, REASON), of.unknowns, "1 while a rule cannot judge, with the reason")
INCIDENT = _gauge("incident", OF_INCIDENT, of.open_incidents, "Open incidents by root rule and gravest severity", len)
INCIDENT_START = _gauge(
    "incident_start_timestamp_seconds",
    OF_INCIDENT,
    of.open_incidents,
    "Unix time of the first of them",
    lambda incidents: min(incident.started_at for incident in incidents),
)
CASCADE_STAGE = _gauge(
    "kv_cascade_stage",
    OF_REPLICA,
    of.replicas,
    "0 none, 1 filling, 2 evicting, 3 queueing, 4 user-visible",
    "cascade_stage",
)

PLAN_USABLE_RPS = _tier(
    "plan_usable_rps", of.operating_value("usable_rps"), "Requests per second of one replica as planned"
)
CAPACITY_RPS = _whole_tier("capacity_rps", "context.capacity.rps", "Requests per second that a replica carries now")
CAPACITY_LOW_RPS = _whole_tier(
    "capacity_low_rps",
    lambda tier: of.read_path(tier, "context.capacity.low") or None,
    "Lower bound of that; absent where it is open",
)
CAPACITY_HIGH_RPS = _whole_tier("capacity_high_rps", "context.capacity.high", "Upper bound; absent where it is open")
SPARE_RPS = _whole_tier("spare_capacity_rps", of.spare_rps, "Requests per second that a tier can take more")
SPARE_TOKENS = _whole_tier("spare_capacity_tokens_per_second", of.spare_tokens, "The same in output tokens")
FLEET_UTILIZATION = _whole_tier(
    "fleet_utilization_ratio", lambda tier: tier.estimate("fleet_utilization"), "Work of 5 minutes by capacity"
)
SURPLUS_REPLICAS = _whole_tier("surplus_replicas", "surplus.replicas", "Replicas beyond a week's busiest hour")
PLAN_C_MAX = _tier("plan_c_max", of.operating_value("c_max"), "Requests in a replica at that point")
PLAN_REPLICAS = _plan("replicas", "fleet.instances", "Replicas the plan deploys")
PLAN_MINIMUM_WARM = _plan("minimum_warm_replicas", "fleet.minimum_warm", "Replicas the plan never scales away")
PLAN_GPUS = _plan("gpus_per_replica", "gpu.per_replica", "GPUs of one replica")
PLAN_PEAK = _plan("peak_rps", "workload.requests_per_second.peak", "Requests per second of the tier at its peak")
PLAN_TTFT = _plan("slo_ttft_p99_seconds", "slo.ttft_p99_seconds", "Promised P99 of the time to first token")
PLAN_TPOT = _plan("slo_tpot_p99_seconds", "slo.tpot_p99_seconds", "Promised P99 of the time per output token")
PLAN_ITL = _plan("slo_itl_p99_seconds", "slo.itl_p99_seconds", "Promised P99 of the time between output events")
PLAN_E2E = _plan("slo_e2e_p99_seconds", "slo.e2e_p99_seconds", "Promised P99 of the whole request")
PLAN_PREFIX_HITS = _plan("prefix_hit_ratio", "workload.prefix_hit_ratio", "Planned share of cached prompt tokens")
PLAN_PRICE = _gauge("plan_gpu_hour_price", (TIER, "currency"), of.prices, "Price of one GPU for one hour")

BUILD_INFO = _gauge(
    "build_info", ("version", "role"), lambda status: [((status.version, status.role), 1.0)], "1; version and role"
)
STATUS_PAGE = _gauge("status_page_info", ("url",), of.status_page, "1; address of the status page")
START_TIME = _gauge("start_time_seconds", (), lambda status: [((), status.started_at)], "Unix time of the start")
LAST_CYCLE = _agent("last_cycle_timestamp_seconds", "last_cycle_at", "Unix time of the end of the last good cycle")
CYCLES = _agent_counter("cycles", "cycles", "Cycles of the agent's loop")
CYCLE_OVERRUNS = _agent_counter("cycle_overruns", "overruns", "Cycles that were due while another ran")
CYCLE_SECONDS = _agent("cycle_duration_seconds", "last_cycle_seconds", "Duration of the last cycle")
CYCLE_ERRORS = _agent_counter("cycle_errors", "cycle_errors", "Unexpected errors inside cycles; each is in the log")
HISTORY_UP = _agent("history_up", of.is_empty("history_trouble"), "1 while the history can be written and read, else 0")
HISTORY_UNBOOKED = _agent("history_unbooked_windows", "unbooked_minutes", "Closed minutes that wait to be written")
HISTORY_DROPPED = _agent_counter("history_dropped_windows", "dropped_minutes", "Closed minutes that could not be kept")
CONFIG_RELOADS = _agent_counter("config_reloads", "config_reloads", "Times the configuration was read again")
CONFIG_OK = _agent("config_last_reload_successful", of.is_empty("config_trouble"), "0 while it cannot be used")
GPU_PROBLEMS = _agent("gpu_problems", lambda health: len(health.gpu_problems), "Troubles with reading GPUs")
DISCOVERY_UP = _agent("discovery_up", of.is_empty("discovery.trouble"), "1 while the Kubernetes API answers, else 0")
DISCOVERY_PODS = _gauge("discovery_pods", ("state",), of.discovered_pods, "Engine pods of this node by state")

_PEERS = of.map_parts("alertmanagers", "alertmanager")
ALERTMANAGER_UP = _gauge(
    "alertmanager_up",
    (ALERTMANAGER,),
    _PEERS,
    "1 while alerts can be posted to it, else 0",
    lambda peer: peer.trouble is None if peer.posts or peer.failures else None,
)
ALERTMANAGER_SUCCESS = _gauge(
    "alertmanager_last_success_timestamp_seconds",
    (ALERTMANAGER,),
    _PEERS,
    "Unix time of the last whole post",
    "last_success_at",
)
ALERTS_POSTED = _counter("alerts_posted", (ALERTMANAGER,), _PEERS, "Alerts that it took", "alerts")
ALERT_POST_FAILURES = _counter("alert_post_failures", (ALERTMANAGER,), _PEERS, "Failed rounds of posting", "failures")
ALERTS_REFUSED = _gauge(
    "alerts_refused", (ALERTMANAGER,), _PEERS, "Alerts that it does not take", lambda peer: len(peer.refused)
)
FOREIGN_ALERTS = _gauge("foreign_alerts", (TIER, RULE), of.foreign_alerts, "Alerts of others, by the rule behind them")
WEBHOOK_TAKEN = _agent_counter("webhook_requests", "webhook.taken", "Messages that were taken")
WEBHOOK_REFUSED = _counter("webhook_refusals", (REASON,), of.map_keys("webhook.refused"), "Refused messages")
WEBHOOK_LEFT_OUT = _agent_counter("webhook_alerts_left_out", "webhook.left_out", "Alerts of others beyond the limit")

RECOMMENDED = _tier(
    "recommended_replicas", "forecast.decision.replicas", "Replicas for the demand one cold start ahead"
)
MINIMUM_WARM = _tier("minimum_warm_replicas", "forecast.minimum_warm", "Fewest replicas ever recommended")
FORECAST_RPS = _gauge(
    "forecast_requests_per_second",
    OF_QUANTILE,
    of.map_demand("requests_at_lead"),
    "Forecast for one cold start from now",
)
FORECAST_FOR_NOW_RPS = _gauge(
    "forecast_for_now_requests_per_second",
    OF_QUANTILE,
    of.map_demand("requests_for_now"),
    "Forecast for now, of one cold start ago",
)
FORECAST_WORK = _gauge(
    "forecast_work_per_second",
    OF_QUANTILE,
    of.map_demand("at_lead"),
    "Forecast of work, which weighs requests by tokens",
)
DEMAND_WORK = _tier("demand_work_per_second", "forecast.now_rps", "Work that arrived in the last minute, per second")
FORECAST_LEAD = _tier("forecast_lead_seconds", "forecast.forecast.projection.horizon_seconds", "Cold start of the tier")
FORECAST_COVERAGE = _tier("forecast_coverage_ratio", of.coverage, "Share of past targets within P95; right is 0.95")
FORECAST_ERROR = _tier(
    "forecast_error_ratio", "forecast.forecast.projection.error_ratio", "Error by that of the naive method"
)
FORECAST_WEIGHT = _gauge(
    "forecast_weight",
    (TIER, "method"),
    of.map_tier_parts("forecast.forecast.weights", lambda weight: weight[0]),
    "Share of each method",
    lambda weight: weight[1],
)
COLD_START_SECONDS = _gauge(
    "cold_start_measured_seconds",
    (TIER, "timing", QUANTILE),
    of.cold_start_seconds,
    "By the part that was timed (pod: the whole)",
)
COLD_STARTS = _gauge(
    "cold_starts_measured",
    (TIER, "timing"),
    of.map_tier_parts("forecast.cold_start.known", lambda quantiles: quantiles.timing),
    "Starts that this rests on",
    "count",
)
_STRATEGIES = of.map_tier_parts("forecast.prewarm.worth.strategies", lambda strategy: strategy.name)
PREWARM_REPLICA_SECONDS = _gauge(
    "prewarm_replica_seconds",
    OF_STRATEGY,
    _STRATEGIES,
    "Simulated on the last week",
    lambda s: 3600.0 * s.replica_hours,
)
PREWARM_VIOLATION_SECONDS = _gauge(
    "prewarm_violation_seconds",
    OF_STRATEGY,
    _STRATEGIES,
    "Time with too few replicas",
    lambda s: 60.0 * s.violation_minutes,
)
FORECAST_FAILURES = _counter(
    "forecast_failures", (KIND,), of.map_keys("forecasting.failures"), "Failed forecasts by kind"
)

REPORT_UP = _agent("report_up", of.is_empty("reporting.trouble"), "0 while a weekly report that is due fails, else 1")
REPORT_SUCCESS = _agent(
    "report_last_success_timestamp_seconds", "reporting.made_at", "Unix time of the last weekly report"
)
REPORT_NEXT = _agent("report_next_timestamp_seconds", "reporting.next_at", "Unix time of the next weekly report")
REPORT_DELIVERIES = _counter("report_deliveries", (DESTINATION, "result"), of.delivery_results, "Reports by result")
_DELIVERIES = of.map_parts("reporting.deliveries", "destination")
REPORT_PENDING = _gauge(
    "report_delivery_pending", (DESTINATION,), _DELIVERIES, "Reports that it has not taken yet", "pending"
)
REPORT_DELIVERY_UP = _gauge(
    "report_delivery_up", (DESTINATION,), _DELIVERIES, "0 where the last attempt failed, else 1", of.is_empty("trouble")
)

STORE_QUERIES = _agent_counter("store_queries", "store.queries", "Queries of the store that role fleet reads")
STORE_SECONDS = _agent_counter("store_query_seconds", "store.seconds", "Time spent waiting for its answers")
STORE_FAILURES = _counter("store_failures", (KIND,), of.map_keys("store.failures"), "Failed queries by kind")
TIER_IN_SIGHT = _gauge(
    "tier_in_sight",
    OF_TIER,
    of.map_keys("store.in_sight"),
    "1 while the store tells of the tier, else 0",
    lambda reason: not reason,
)

OWN: tuple[ExportedMetric, ...] = tuple(SAMPLES)
"""sizewatch's own metrics in printed order."""

ALL: tuple[ExportedMetric, ...] = (*FAMILY.values(), *OWN)
