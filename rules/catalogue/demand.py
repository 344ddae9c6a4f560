"""Rules about demand and its forecast (guide 8.3, 9.2)."""

from __future__ import annotations

from rules.catalogue.thresholds import BEFORE_LOAD, explain
from rules.methods.demand import judge_demand, judge_forecast
from rules.verdicts.rule import Rule, Severity, Threshold

ROWS: tuple[Rule, ...] = (
    Rule(
        name="ForecastDegraded",
        method=judge_forecast,
        loudness=Severity.REPORT,
        minimum_seconds=60,
        thresholds={
            "coverage": Threshold(0.90, "ratio", "what a 95 % quantile must keep on the worst of real traces"),
            "error_ratio": Threshold(1.0, "ratio", "DESIGN 3.13: used only while it beats the naive methods"),
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
        method=judge_demand,
        loudness=Severity.TICKET,
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
        explained_by=explain(*BEFORE_LOAD, "ForecastDegraded"),
    ),
)
