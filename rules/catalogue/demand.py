"""Rules about demand and its forecast (guide 8.3, 9.2)."""

from __future__ import annotations

from rules.catalogue.thresholds import OUTAGES, WORKLOAD, explain
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
        title="The forecast is no better than none",
        meaning="More demand came than the forecast's 95 % quantile allows for, or a naive method would have been as good: "
        "what is warmed by it comes too late or for nothing.",
        actions=(
            "Do not let the recommended replicas scale this tier until it has recovered; keep the minimum warm count up",
            "Look at what changed in the traffic (a new client, a moved batch job, a holiday) and tell it known events",
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
        title="More demand than capacity",
        meaning="More requests arrive than the replicas may take within the objective by the plan, or the forecast says that "
        "they will before a new replica can be ready: queues follow.",
        actions=(
            "Bring up the replicas that the sentence names, now: each takes a cold start to be ready",
            "Find out why planned replicas are not there, where the planned fleet would be enough",
            "Until they are ready shed or delay load (queue breaker, batch work); never raise batch limits against it",
            "If the demand stays, plan again with the new peak: workload.requests_per_second.peak and fleet.instances",
        ),
        explained_by=explain(*OUTAGES, *WORKLOAD, "ForecastDegraded"),
    ),
)
