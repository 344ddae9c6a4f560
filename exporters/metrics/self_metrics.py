"""sizewatch's own metrics: a declaration each with name, labels, help text and the function that gives its samples.

They are printed in the order of their declaration. An outdated forecast has no sample, so an autoscaler sees no
recommendation in place of zero.
"""

from __future__ import annotations

from exporters.metrics import samples as of
from exporters.metrics.names import (
    ALERTMANAGER,
    DESTINATION,
    FAMILY,
    KIND,
    OF_BOUND,
    OF_ENGINE,
    OF_GPU,
    OF_INCIDENT,
    OF_QUANTILE,
    OF_REPLICA,
    OF_RULE,
    OF_STRATEGY,
    OF_TIER,
    PREFIX,
    QUANTILE,
    REASON,
    RELEASE,
    RULE,
    SEVERITY,
    TIER,
    ExportedMetric,
)
from exporters.metrics.samples import Samples, Value
from rules.telemetry.families import FamilyKind

SAMPLES: dict[ExportedMetric, Samples] = {}
"""Function of the samples by metric."""


def _gauge(name: str, labels: tuple[str, ...], samples: Samples, text: str) -> ExportedMetric:
    metric = ExportedMetric(name=PREFIX + name, kind=FamilyKind.GAUGE, labels=labels, text=text)
    SAMPLES[metric] = samples
    return metric


def _counter(name: str, labels: tuple[str, ...], samples: Samples, text: str) -> ExportedMetric:
    metric = ExportedMetric(name=f"{PREFIX}{name}_total", kind=FamilyKind.COUNTER, labels=labels, text=text)
    SAMPLES[metric] = samples
    return metric


def _tier(name: str, value: Value, text: str) -> ExportedMetric:
    return _gauge(name, OF_TIER, of.map_tiers(value), text)


def _whole_tier(name: str, value: Value, text: str) -> ExportedMetric:
    return _gauge(name, OF_TIER, of.map_whole_tiers(value), text)


def _plan(name: str, path: str, text: str) -> ExportedMetric:
    return _tier(f"plan_{name}", f"context.plan.{path}", text)


def _agent(name: str, value: Value, text: str) -> ExportedMetric:
    return _gauge(name, (), of.map_agent(value), text)


def _agent_counter(name: str, value: str, text: str) -> ExportedMetric:
    return _counter(name, (), of.map_agent(value), text)


TARGET_UP = _gauge(
    "target_up",
    OF_REPLICA,
    of.map_targets(lambda r: r.up and not r.is_gone),
    "Whether its last scrape gave a usable page",
)
TARGET_SEEN = _gauge(
    "target_last_success_timestamp_seconds", OF_REPLICA, of.map_targets("last_seen"), "Unix time of its last good page"
)
SCRAPE_SECONDS = _gauge(
    "scrape_duration_seconds", OF_REPLICA, of.map_replicas("scrape_seconds"), "Duration of its last scrape"
)
SCRAPE_FAILURES = _counter("scrape_failures", (*OF_REPLICA, KIND), of.scrape_failures, "Failed scrapes by kind")
REPLICA_INFO = _gauge("replica_info", (*OF_ENGINE, *RELEASE), of.releases, "1; engine and release of the replica")
GPU_INFO = _gauge("gpu_info", (*OF_GPU, "product"), of.gpu_products, "1; GPUs of the replica")

VERDICT = _gauge("verdict", OF_RULE, of.verdicts, "0 ok, 1 warning, 2 critical; absent where it is unknown")
VERDICT_CERTAIN = _gauge("verdict_certain", OF_RULE, of.certain_verdicts, "1 if that verdict is certain, 0 if likely")
OBSERVED = _gauge(
    "observed", OF_BOUND, of.map_bounds("observed"), "What it measured in the rule's base unit, or a bound"
)
EXPECTED = _gauge("expected", OF_BOUND, of.map_bounds("expected"), "Value that it is compared with, in the same unit")
INCIDENT_ALERT = _gauge("incident_alert", (*OF_RULE, SEVERITY), of.incident_alerts, "Rules that one alert stands for")
UNKNOWN = _gauge("unknown", (*OF_RULE, REASON), of.unknowns, "1 while a rule cannot judge, with the reason")
INCIDENT = _gauge("incident", OF_INCIDENT, of.incidents, "Open incidents by root rule and gravest severity")
INCIDENT_START = _gauge(
    "incident_start_timestamp_seconds", OF_INCIDENT, of.incident_starts, "Unix time of the first of them"
)
CASCADE_STAGE = _gauge(
    "kv_cascade_stage",
    OF_REPLICA,
    of.map_replicas("cascade_stage"),
    "0 none, 1 filling, 2 evicting, 3 queueing, 4 user-visible",
)

PLAN_USABLE_RPS = _tier(
    "plan_usable_rps", of.operating_value("usable_rps"), "Requests per second of one replica as planned"
)
CAPACITY_RPS = _whole_tier("capacity_rps", "context.capacity.rps", "Requests per second that a replica carries now")
CAPACITY_LOW_RPS = _whole_tier("capacity_low_rps", of.capacity_low, "Lower bound of that; absent where it is open")
CAPACITY_HIGH_RPS = _whole_tier("capacity_high_rps", "context.capacity.high", "Upper bound; absent where it is open")
SPARE_RPS = _whole_tier("spare_capacity_rps", of.spare_rps, "Requests per second that a tier can take more")
SPARE_TOKENS = _whole_tier("spare_capacity_tokens_per_second", of.spare_tokens, "The same in output tokens")
FLEET_UTILIZATION = _whole_tier("fleet_utilization_ratio", of.fleet_utilization, "Work of 5 minutes by capacity")
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
HISTORY_UP = _agent("history_up", of.is_empty("history_trouble"), "1 while the history can be written, else 0")
HISTORY_UNBOOKED = _agent("history_unbooked_windows", "unbooked_minutes", "Closed minutes that wait to be written")
HISTORY_DROPPED = _agent_counter("history_dropped_windows", "dropped_minutes", "Closed minutes that could not be kept")
CONFIG_RELOADS = _agent_counter("config_reloads", "config_reloads", "Times the configuration was read again")
CONFIG_OK = _agent("config_last_reload_successful", of.is_empty("config_trouble"), "0 while it cannot be used")
GPU_PROBLEMS = _agent("gpu_problems", lambda health: len(health.gpu_problems), "Troubles with reading GPUs")
DISCOVERY_UP = _agent("discovery_up", of.is_empty("discovery.trouble"), "1 while the Kubernetes API answers, else 0")
DISCOVERY_PODS = _gauge("discovery_pods", ("state",), of.discovered_pods, "Engine pods of this node by state")

ALERTMANAGER_UP = _gauge(
    "alertmanager_up", (ALERTMANAGER,), of.alertmanagers_up, "1 while alerts can be posted to it, else 0"
)
ALERTMANAGER_SUCCESS = _gauge(
    "alertmanager_last_success_timestamp_seconds",
    (ALERTMANAGER,),
    of.map_alertmanagers("last_success_at"),
    "Unix time of the last whole post",
)
ALERTS_POSTED = _counter("alerts_posted", (ALERTMANAGER,), of.map_alertmanagers("alerts"), "Alerts that it took")
ALERT_POST_FAILURES = _counter(
    "alert_post_failures", (ALERTMANAGER,), of.map_alertmanagers("failures"), "Failed rounds of posting"
)
ALERTS_REFUSED = _gauge(
    "alerts_refused",
    (ALERTMANAGER,),
    of.map_alertmanagers(lambda peer: len(peer.refused)),
    "Alerts that it does not take",
)
FOREIGN_ALERTS = _gauge("foreign_alerts", (TIER, RULE), of.foreign_alerts, "Alerts of others, by the rule behind them")
WEBHOOK_TAKEN = _agent_counter("webhook_requests", "webhook.taken", "Messages that were taken")
WEBHOOK_REFUSED = _counter("webhook_refusals", (REASON,), of.map_keys("webhook.refused"), "Refused messages")
WEBHOOK_LEFT_OUT = _agent_counter("webhook_alerts_left_out", "webhook.left_out", "Alerts of others beyond the limit")

RECOMMENDED = _tier("recommended_replicas", "forecast.recommended", "Replicas for the demand one cold start ahead")
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
    of.map_tier_parts("forecast.forecast.weights", lambda w: w[:1], lambda w: w[1]),
    "Share of each method",
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
    of.map_tier_parts("forecast.cold_start.known", lambda s: (s.timing,), "count"),
    "Starts that this rests on",
)
PREWARM_REPLICA_SECONDS = _gauge(
    "prewarm_replica_seconds",
    OF_STRATEGY,
    of.map_strategies(lambda s: 3600.0 * s.replica_hours),
    "Simulated on the last week",
)
PREWARM_VIOLATION_SECONDS = _gauge(
    "prewarm_violation_seconds",
    OF_STRATEGY,
    of.map_strategies(lambda s: 60.0 * s.violation_minutes),
    "Time with too few replicas",
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
REPORT_PENDING = _gauge(
    "report_delivery_pending", (DESTINATION,), of.map_deliveries("pending"), "Reports that it has not taken yet"
)
REPORT_DELIVERY_UP = _gauge(
    "report_delivery_up",
    (DESTINATION,),
    of.map_deliveries(of.is_empty("trouble")),
    "0 where the last attempt failed, else 1",
)

STORE_QUERIES = _agent_counter("store_queries", "store.queries", "Queries of the store that role fleet reads")
STORE_SECONDS = _agent_counter("store_query_seconds", "store.seconds", "Time spent waiting for its answers")
STORE_FAILURES = _counter("store_failures", (KIND,), of.map_keys("store.failures"), "Failed queries by kind")
TIER_IN_SIGHT = _gauge("tier_in_sight", OF_TIER, of.tiers_in_sight, "1 while the store tells of the tier, else 0")

OWN: tuple[ExportedMetric, ...] = tuple(SAMPLES)
"""sizewatch's own metrics in printed order."""

ALL: tuple[ExportedMetric, ...] = (*FAMILY.values(), *OWN)
