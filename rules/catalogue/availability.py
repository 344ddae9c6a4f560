"""Rules about replicas that do not answer, telemetry that does not move, demand and its forecast (guide 8.3, 9.2)."""

from __future__ import annotations

from rules.methods.availability import (
    judge_stale_page,
    judge_stalled,
    judge_target_down,
    judge_tier_down,
    judge_unknown_too_long,
)
from rules.methods.demand import judge_demand, judge_forecast
from rules.replicas.stalls import STALL_SECONDS, START_SECONDS, STEP_PARTS
from rules.thresholds import Threshold
from rules.verdicts.rule import Rule, Scope, Severity

ROWS: tuple[Rule, ...] = (
    Rule(
        name="TierDown",
        stage=20,
        method=judge_tier_down,
        severity=Severity.PAGE,
        window_seconds=0,
        thresholds={
            "misses": Threshold(3, "scrapes", "as failureThreshold of a Kubernetes probe, by default"),
            "seconds": Threshold(45, "seconds", "three scrapes: nobody is served, and a page comes within 90 s of it"),
        },
        signal="coverage",
        unit="replicas",
        title="Tier down",
        meaning="No replica of the tier answers on its metrics page: it serves nobody, or its service cannot be observed.",
        actions=(
            "Send one request to the tier's own endpoint: it may be down only for sizewatch",
            "If it is down, send its traffic to the model's other tiers or a fallback before you repair it",
            "If it serves, run `sizewatch doctor`: it reports which step to the metrics pages fails",
        ),
    ),
    Rule(
        name="TargetDown",
        stage=30,
        method=judge_target_down,
        scope=Scope.REPLICA,
        window_seconds=0,
        thresholds={
            "misses": Threshold(3, "scrapes", "as failureThreshold of a Kubernetes probe, by default"),
            "start_seconds": Threshold(
                300, "seconds", "guide 9.2: 2-5 minutes; only where no start was measured and none is planned"
            ),
        },
        signal="coverage",
        unit="scrapes",
        title="Target down",
        meaning="The engine's metrics page has not answered for three scrapes: the replica is down, restarting or unreachable.",
        actions=(
            "Check the replica: its process, and /metrics from this node",
            "Run `sizewatch doctor`: it reports which step of the connection fails",
        ),
    ),
    Rule(
        name="EngineStalled",
        stage=30,
        method=judge_stalled,
        scope=Scope.REPLICA,
        severity=Severity.PAGE,
        window_seconds=0,
        thresholds={
            "likely_seconds": Threshold(10, "seconds", "ours: longer than a usual step, one scrape or two"),
            "seconds": Threshold(STALL_SECONDS, "seconds", "four default scrapes: no usual step takes as long"),
            "steps": Threshold(STEP_PARTS, "steps", "ours: so many of the longest steps seen"),
            "start_seconds": Threshold(
                START_SECONDS, "seconds", "guide 9.2: a cold start takes 2 to 5 minutes, where the plan has none"
            ),
        },
        signal="coverage",
        unit="seconds",
        title="Engine stalled",
        meaning="Requests are in the engine, or in one of its data-parallel ranks, and it does no work: no step, no token, "
        "no first token. They get no answer, although the page is served.",
        actions=(
            "Look at that engine or rank: its log, its processes and its GPUs",
            "Send one request to it: an answer shows that it works again",
            "If it stays, take the replica out of the routing and restart it; its requests are lost",
        ),
    ),
    Rule(
        name="TelemetryStale",
        stage=89,
        method=judge_stale_page,
        scope=Scope.REPLICA,
        window_seconds=0,
        thresholds={"seconds": Threshold(120, "seconds", "ours: well past any single step of an engine")},
        signal="coverage",
        unit="seconds",
        title="Telemetry stale",
        meaning="The page answers but does not change although it reports running or waiting requests, or a GPU was not "
        "read: the values are old.",
        actions=(
            "Check whether the engine is stuck: send one request and watch its step counter",
            "After a mass cancel vLLM keeps its last gauges until the next step (issue 29928): then this is harmless",
            "If a GPU is named, check the driver or the exporter on that node",
        ),
    ),
    Rule(
        name="UnknownTooLong",
        stage=90,
        method=judge_unknown_too_long,
        window_seconds=0,
        thresholds={
            "seconds": Threshold(3600, "seconds", "the longest that a live rule looks back: a gap has left every hold")
        },
        signal="coverage",
        unit="seconds",
        title="Results unknown for too long",
        meaning="Rules that judged this tier before have no result now, because scrapes fail, counters restart or "
        "telemetry stands still. What they watch for would not be noticed.",
        actions=(
            "Repair the cause in the sentence: the target's scrape, the restarting process, the stuck page",
            "Run `sizewatch doctor`: it reports which targets and signals are missing, and why",
        ),
    ),
    Rule(
        name="ForecastDegraded",
        method=judge_forecast,
        reads_windows=False,
        severity=Severity.REPORT,
        minimum_seconds=60,
        thresholds={
            "coverage": Threshold(0.90, "ratio", "what a 95 % quantile must keep on the worst of real traces"),
            "error_ratio": Threshold(1.0, "ratio", "ours: used only while it beats the naive methods"),
            "minimum_forecasts": Threshold(
                60, "forecasts", "of fewer, three misses of a right 95 % quantile are expected by chance"
            ),
        },
        signal="arrival_rps",
        about="targets within the 95 % quantile",
        title="Forecast accuracy degraded",
        meaning="More demand came than the forecast's 95% quantile allows, or a naive method was as good. What is pre- "
        "warmed by it comes too late or for nothing.",
        actions=(
            "Do not let the recommended replicas scale this tier until it has recovered; keep the minimum warm count up",
            "Find what changed in the traffic (a client, a batch job, a holiday), and configure known events",
            "Compare the methods with the naive ones over weeks of the tier's own history: which one holds there",
        ),
    ),
    Rule(
        name="DemandExceedsCapacity",
        stage=40,
        method=judge_demand,
        thresholds={
            "share": Threshold(1.0, "ratio", "guide 8.3: more than the usable requests a second breaks the objective"),
            "minimum_requests": Threshold(
                100, "requests", "of fewer, the rate itself is known to no better than a fifth"
            ),
        },
        signal="arrival_rps",
        unit="per_second",
        about="arriving requests",
        title="Demand exceeds capacity",
        meaning="More requests arrive than the replicas can serve, or the forecast reaches that "
        "before a new replica is ready. Queues follow.",
        actions=(
            "Start the missing replicas now: each takes a cold start to be ready",
            "If the planned fleet is enough, find out why planned replicas are missing",
            "Until they are ready shed or delay load (queue breaker, batch work); never raise batch limits against it",
            "If the demand stays, plan again with the new peak: workload.requests_per_second.peak and fleet.instances",
        ),
    ),
)
