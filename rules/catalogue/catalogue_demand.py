"""The catalogue's rows about demand and its forecast: what arrives against what the fleet may take (guide 8.3, 9.2).

Owns these rows only; what a row is stands in `rules.verdicts.rule`. A new one is a row here, its runbook section, and its tests.
"""

from __future__ import annotations

from rules.verdicts.rule import Rule, Scope, Severity, Threshold, Way

DEMAND_ROWS: tuple[Rule, ...] = (
    Rule(
        name="ForecastDegraded",
        way=Way.FORECAST,
        scope=Scope.TIER,
        loudness=Severity.REPORT,
        window_seconds=900,
        minimum_seconds=60,
        thresholds={
            "coverage": Threshold(
                value=0.90, unit="ratio", source="what a 95 % quantile must keep on the worst of real traces"
            ),
            "error_ratio": Threshold(
                value=1.0, unit="ratio", source="DESIGN 3.13: used only while it beats the naive methods"
            ),
            "minimum_forecasts": Threshold(
                value=60,
                unit="forecasts",
                source="of fewer, three misses of a right 95 % quantile are expected by chance",
            ),
        },
        signal="arrival_rps",
        unit="ratio",
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
        way=Way.DEMAND,
        scope=Scope.TIER,
        loudness=Severity.TICKET,
        window_seconds=900,
        minimum_seconds=180,
        thresholds={
            "share": Threshold(
                value=1.0, unit="ratio", source="guide 8.3: more than the usable requests a second breaks the objective"
            ),
            "minimum_requests": Threshold(
                value=100, unit="requests", source="of fewer, the rate itself is known to no better than a fifth"
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
    ),
)
