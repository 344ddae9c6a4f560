"""Names, kinds, labels and help texts of every exported metric (DESIGN 6).

Engine and GPU families go out by `rules.telemetry.families`; sizewatch's own metrics are listed in OWN. Panels, rule
files, queries and documents take their names from here. Quantiles and ratios of a window are not exported, as they
cannot be summed. Names follow Prometheus: base units, `_total`, no colons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rules.telemetry.families import BY_NAME, FAMILIES, GPU_NAMES, Family, FamilyKind, stem

PREFIX = "sizewatch_"

TIER, POOL, REPLICA, MODEL, GPU = "tier", "pool", "replica", "model", "gpu"
RULE, REASON, KIND, BOUND = "rule", "reason", "kind", "bound"
ALERTMANAGER, QUANTILE, DESTINATION, SEVERITY = "alertmanager", "quantile", "destination", "severity"

OF_TIER = (TIER,)
OF_REPLICA = (TIER, POOL, REPLICA)
OF_ENGINE = (TIER, POOL, REPLICA, MODEL)
OF_GPU = (TIER, POOL, REPLICA, GPU)
OF_RULE = (TIER, REPLICA, RULE)

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
        return "summary" if QUANTILE in self.labels else self.kind.value


def _family(family: Family) -> ExportedMetric:
    labels = OF_GPU if family.name in GPU_NAMES else OF_ENGINE
    part = (PARTS[family.name],) if family.name in PARTS else ()
    return ExportedMetric(name=PREFIX + family.export, kind=family.kind, labels=labels + part, text=family.text)


FAMILY: Mapping[str, ExportedMetric] = {family.name: _family(family) for family in FAMILIES if family.export}
"""Exported engine and GPU metrics by family name. A family without an export name is not exported."""


OWN: list[ExportedMetric] = []
"""sizewatch's own metrics in printed order, which is the order of their definition."""


def _gauge(name: str, labels: tuple[str, ...], text: str) -> ExportedMetric:
    OWN.append(ExportedMetric(name=PREFIX + name, kind=FamilyKind.GAUGE, labels=labels, text=text))
    return OWN[-1]


def _counter(name: str, labels: tuple[str, ...], text: str) -> ExportedMetric:
    OWN.append(ExportedMetric(name=f"{PREFIX}{name}_total", kind=FamilyKind.COUNTER, labels=labels, text=text))
    return OWN[-1]


TARGET_UP = _gauge("target_up", OF_REPLICA, "Whether the last scrape of the replica gave a page that could be used")
TARGET_SEEN = _gauge(
    "target_last_success_timestamp_seconds", OF_REPLICA, "Time of the replica's last good page, seconds since the epoch"
)
SCRAPE_SECONDS = _gauge("scrape_duration_seconds", OF_REPLICA, "How long the last scrape of the replica took")
SCRAPE_FAILURES = _counter("scrape_failures", (*OF_REPLICA, KIND), "Scrapes that gave no usable page, by kind")
REPLICA_INFO = _gauge(
    "replica_info", (*OF_ENGINE, "engine", "engine_version"), "1; which engine and release the replica runs"
)
GPU_INFO = _gauge("gpu_info", (*OF_GPU, "product"), "1; which GPUs the replica owns")

VERDICT = _gauge("verdict", OF_RULE, "What a rule says now: 0 ok, 1 warning, 2 critical; absent where it cannot judge")
VERDICT_CERTAIN = _gauge("verdict_certain", OF_RULE, "1 where that verdict is certain, 0 where it is only likely")
OBSERVED = _gauge(
    "observed",
    (*OF_RULE, BOUND),
    "What that verdict saw, in the rule's base unit, for people to read; where only a bound is known, bound says which",
)
EXPECTED = _gauge("expected", (*OF_RULE, BOUND), "What that verdict compared it with, in the same unit")
INCIDENT_ALERT = _gauge(
    "incident_alert",
    (*OF_RULE, SEVERITY),
    "Rules that one alert of an open incident stands for; rule is the one that the alert is named after",
)
UNKNOWN = _gauge("unknown", (*OF_RULE, REASON), "1 while a rule cannot judge, with the reason")
OF_INCIDENT = (TIER, "root", SEVERITY)
INCIDENT = _gauge(
    "incident",
    OF_INCIDENT,
    "Open incidents by their root rule; severity is that of its gravest finding: critical, warning or info",
)
INCIDENT_START = _gauge(
    "incident_start_timestamp_seconds", OF_INCIDENT, "When the first of them began, seconds since the epoch"
)
CASCADE_STAGE = _gauge(
    "kv_cascade_stage",
    OF_REPLICA,
    "KV cache cascade: 0 none, 1 filling, 2 evicting, 3 queueing, 4 user-visible",
)

PLAN_INFO = _gauge(
    "plan_info", (TIER, "plan_version", MODEL, "engine", "product"), "1; the plan that is judged against"
)
PLAN_USABLE_RPS = _gauge(
    "plan_usable_rps", OF_TIER, "Requests per second of one replica at its planned operating point"
)
CAPACITY_RPS = _gauge(
    "capacity_rps",
    OF_TIER,
    "Requests per second that one replica carries within its SLO now, as replicas are counted with",
)
CAPACITY_LOW_RPS = _gauge("capacity_low_rps", OF_TIER, "Lower bound of that; absent where it is open")
CAPACITY_HIGH_RPS = _gauge("capacity_high_rps", OF_TIER, "Upper bound of that; absent where it is open")
SPARE_RPS = _gauge(
    "spare_capacity_rps",
    OF_TIER,
    "Requests per second that the ready replicas of an online tier can take beyond the present, with NoHeadroom's margin",
)
SPARE_TOKENS = _gauge(
    "spare_capacity_tokens_per_second", OF_TIER, "The same in output tokens, where the capacity's lengths are known"
)
FLEET_UTILIZATION = _gauge(
    "fleet_utilization_ratio",
    OF_TIER,
    "Completed work of the last 5 minutes by the capacity of the ready replicas, as on the status page",
)
SURPLUS_REPLICAS = _gauge(
    "surplus_replicas",
    OF_TIER,
    "Ready replicas beyond the recommended count for the busiest hour of a week and the minimum warm count",
)
PLAN_C_MAX = _gauge("plan_c_max", OF_TIER, "Requests in the system of one replica at its planned operating point")
PLAN_REPLICAS = _gauge("plan_replicas", OF_TIER, "Replicas the plan deploys")
PLAN_MINIMUM_WARM = _gauge("plan_minimum_warm_replicas", OF_TIER, "Replicas the plan never scales away")
PLAN_GPUS = _gauge("plan_gpus_per_replica", OF_TIER, "GPUs of one replica")
PLAN_PEAK = _gauge("plan_peak_rps", OF_TIER, "Requests per second of the whole tier at its planned peak")
PLAN_TTFT = _gauge("plan_slo_ttft_p99_seconds", OF_TIER, "Promised P99 of the time to first token")
PLAN_TPOT = _gauge("plan_slo_tpot_p99_seconds", OF_TIER, "Promised P99 of the time per output token")
PLAN_ITL = _gauge("plan_slo_itl_p99_seconds", OF_TIER, "Promised P99 of the time between two output events")
PLAN_E2E = _gauge("plan_slo_e2e_p99_seconds", OF_TIER, "Promised P99 of the whole request")
PLAN_PREFIX_HITS = _gauge("plan_prefix_hit_ratio", OF_TIER, "Share of prompt tokens planned to be in the prefix cache")
PLAN_PRICE = _gauge("plan_gpu_hour_price", (TIER, "currency"), "Price of one GPU for one hour")

BUILD_INFO = _gauge("build_info", ("version", "role"), "1; which sizewatch this is")
STATUS_PAGE = _gauge(
    "status_page_info", ("url",), "1; address of the status page for people, where the configuration gives one"
)
START_TIME = _gauge("start_time_seconds", (), "When this agent started, seconds since the epoch")
LAST_CYCLE = _gauge(
    "last_cycle_timestamp_seconds", (), "When the last cycle that succeeded ended, seconds since the epoch"
)
CYCLES = _counter("cycles", (), "Cycles of the agent's loop")
CYCLE_OVERRUNS = _counter("cycle_overruns", (), "Cycles that were due while the one before them still ran")
CYCLE_SECONDS = _gauge("cycle_duration_seconds", (), "How long the last cycle took")
CYCLE_ERRORS = _counter("cycle_errors", (), "Unexpected errors inside cycles; each is in the log")
HISTORY_UP = _gauge("history_up", (), "1 while the history can be written, 0 while it cannot")
HISTORY_UNBOOKED = _gauge("history_unbooked_windows", (), "Closed minutes of replicas that wait to be written")
HISTORY_DROPPED = _counter("history_dropped_windows", (), "Closed minutes of replicas that could not be kept")
CONFIG_RELOADS = _counter("config_reloads", (), "Times the configuration was read again")
CONFIG_OK = _gauge("config_last_reload_successful", (), "0 while the configuration on disk could not be used")
GPU_PROBLEMS = _gauge("gpu_problems", (), "Troubles with reading GPUs on this machine; the status page says which")
DISCOVERY_UP = _gauge("discovery_up", (), "1 while the Kubernetes API tells of this node's pods, 0 while it does not")
DISCOVERY_PODS = _gauge(
    "discovery_pods",
    ("state",),
    "Engine pods of this node: watched, starting (of these and of those on their way), left_out; the status page says why",
)
WEB_ERRORS = _counter("web_errors", (), "Requests answered with 500; each is in the log")
WEB_REFUSALS = _counter("web_refusals", (), "Requests refused for lack of valid credentials")

ALERTMANAGER_UP = _gauge("alertmanager_up", (ALERTMANAGER,), "1 while alerts can be posted to it, 0 while they cannot")
ALERTMANAGER_SUCCESS = _gauge(
    "alertmanager_last_success_timestamp_seconds",
    (ALERTMANAGER,),
    "When the present alerts were last posted whole, seconds since the epoch",
)
ALERTS_POSTED = _counter("alerts_posted", (ALERTMANAGER,), "Alerts that it took, every sending counted")
ALERT_POST_FAILURES = _counter("alert_post_failures", (ALERTMANAGER,), "Rounds of posting that could not be ended")
ALERTS_REFUSED = _gauge("alerts_refused", (ALERTMANAGER,), "Alerts that it does not take; the status page says why")
FOREIGN_ALERTS = _gauge(
    "foreign_alerts",
    (TIER, RULE),
    "Alerts of others that fire on the tier, by the rule whose finding explains them (empty: none)",
)
WEBHOOK_TAKEN = _counter("webhook_requests", (), "Messages of the webhook that were taken")
WEBHOOK_REFUSED = _counter("webhook_refusals", (REASON,), "Messages of the webhook that were refused, by reason")
WEBHOOK_LEFT_OUT = _counter("webhook_alerts_left_out", (), "Alerts of others left out because there were too many")

OF_QUANTILE = (TIER, QUANTILE)

RECOMMENDED = _gauge(
    "recommended_replicas",
    OF_TIER,
    "Replicas to ask for now, for the demand one cold start ahead; absent while nothing is recommended",
)
MINIMUM_WARM = _gauge(
    "minimum_warm_replicas", OF_TIER, "Replicas that the recommendation never goes below, by the plan or by prices"
)
FORECAST_RPS = _gauge(
    "forecast_requests_per_second",
    OF_QUANTILE,
    "Arriving requests of the tier forecast for one cold start from now; absent once the forecast is outlived",
)
FORECAST_FOR_NOW_RPS = _gauge(
    "forecast_for_now_requests_per_second", OF_QUANTILE, "What was forecast for now, one cold start ago"
)
FORECAST_WORK = _gauge(
    "forecast_work_per_second",
    OF_QUANTILE,
    "The same forecast as work: requests weighed by their tokens, in requests of the lengths that capacity counts",
)
DEMAND_WORK = _gauge("demand_work_per_second", OF_TIER, "Work that arrived in the last whole minute, in the same unit")
FORECAST_LEAD = _gauge(
    "forecast_lead_seconds",
    OF_TIER,
    "How far ahead the forecast is judged: the tier's cold start, from the request for a replica to Ready",
)
FORECAST_COVERAGE = _gauge(
    "forecast_coverage_ratio", OF_TIER, "Share of past targets at or below their 95 % quantile; right is 0.95"
)
FORECAST_ERROR = _gauge(
    "forecast_error_ratio", OF_TIER, "The forecast's error by that of the naive method; below 1 it is the better one"
)
FORECAST_MADE = _gauge(
    "forecast_made_timestamp_seconds", OF_TIER, "When the forecast in use was made, seconds since the epoch"
)
FORECAST_WEIGHT = _gauge("forecast_weight", (TIER, "method"), "Share of each method in the forecast in use")
COLD_START_SECONDS = _gauge(
    "cold_start_measured_seconds",
    (TIER, "timing", QUANTILE),
    "Cold start of the tier by the starts that were seen or told, by which part of it was timed (pod: the whole)",
)
COLD_STARTS = _gauge("cold_starts_measured", (TIER, "timing"), "Starts that this rests on")
PREWARM_REPLICA_SECONDS = _gauge(
    "prewarm_replica_seconds",
    (TIER, "strategy"),
    "Replica-seconds that each way to scale would have cost in the last week, simulated on what arrived",
)
PREWARM_VIOLATION_SECONDS = _gauge(
    "prewarm_violation_seconds",
    (TIER, "strategy"),
    "Time in which it would have had fewer replicas ready than the demand of that week needed",
)
FORECAST_RUNS = _counter("forecast_runs", (), "Answers of the forecasting process, one a tier and minute")
FORECAST_FAILURES = _counter("forecast_failures", (KIND,), "Questions that it did not answer, by kind")
FORECAST_SECONDS = _gauge("forecast_duration_seconds", (), "How long the last round of forecasts took")
FORECAST_MEMORY = _gauge("forecast_process_resident_memory_bytes", (), "Memory of the forecasting process")
REPORT_UP = _gauge("report_up", (), "1 while the weekly report is written when it is due, 0 while that fails")
REPORT_SUCCESS = _gauge("report_last_success_timestamp_seconds", (), "When the last weekly report was written")
REPORT_NEXT = _gauge("report_next_timestamp_seconds", (), "When the next weekly report is due")
REPORT_FAILURES = _counter("report_failures", (), "Attempts to write a report that failed")
REPORT_MEMORY = _gauge("report_process_peak_memory_bytes", (), "Most memory that a reporting process took")
REPORT_DELIVERIES = _counter(
    "report_deliveries", (DESTINATION, "result"), "Reports by destination: sent, failed (and tried again), given_up"
)
REPORT_PENDING = _gauge("report_delivery_pending", (DESTINATION,), "Reports that this destination has not taken yet")
REPORT_DELIVERY_UP = _gauge(
    "report_delivery_up", (DESTINATION,), "1 where the last attempt arrived or none was made yet, 0 where it failed"
)

STORE_QUERIES = _counter("store_queries", (), "Queries of the store that role fleet reads")
STORE_SECONDS = _counter("store_query_seconds", (), "Time spent waiting for its answers")
STORE_BYTES = _counter("store_received_bytes", (), "Bytes of its answers")
STORE_FAILURES = _counter("store_failures", (KIND,), "Queries that it did not answer whole, by kind")
TIER_IN_SIGHT = _gauge(
    "tier_in_sight", OF_TIER, "1 while the store tells of the tier, 0 while it does not: all is unknown"
)

FORECASTS = tuple(OWN[OWN.index(RECOMMENDED) : OWN.index(FORECAST_RUNS)])
"""Metrics of a tier's forecast, recommendation and measured capacity."""

ALL: tuple[ExportedMetric, ...] = (*FAMILY.values(), *OWN)


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


def count(family: str) -> str:
    """Return the exported name of a histogram family's count. Raise KeyError if it is not an exported histogram."""
    return _histogram(family) + "_count"


def _histogram(family: str) -> str:
    if BY_NAME[family].kind is not FamilyKind.HISTOGRAM:
        raise KeyError(f"{family} is no histogram")
    return FAMILY[family].name
