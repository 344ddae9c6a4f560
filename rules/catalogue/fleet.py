"""The catalogue's rows about the size of the fleet and what it is used for (guide 9.2, 9.3), with all their thresholds.

Owns these rows only; what a row is stands in `rules.verdicts.rule`. All but NoHeadroom look back days and are judged from the
history's hours (`rules.evaluator.long_rules`). A new one is a row here, its function in `rules.methods.long.JUDGES`, its runbook
section, and its tests.

The catalogue's rows about demand and its forecast: what arrives against what the fleet may take (guide 8.3, 9.2).

Owns these rows only; what a row is stands in `rules.verdicts.rule`. A new one is a row here, its runbook section, and its tests.
"""

from __future__ import annotations

from rules.methods.demand import judge_demand, judge_forecast
from rules.methods.headroom import judge_falling, judge_headroom
from rules.methods.utilization import judge_empty_cache, judge_empty_queue, judge_trap
from rules.verdicts.rule import Rule, Scope, Severity, Threshold

DAY = 86_400.0
WEEK = 7 * DAY
SEEN = 0.9
"""So much of the days must have been seen: below FULL_COVERAGE what is missing may be the other half of the story."""

TARGET = Threshold(value=0.60, unit="ratio", source="guide 9.3: fleet utilisation 60-80 %, its lower end")
FULLEST = Threshold(
    value=0.95, unit="ratio", source="DESIGN 3.12: P95 of the hours; one bad hour of twenty says nothing"
)

FLEET_ROWS: tuple[Rule, ...] = (
    Rule(
        name="KvCacheUnderused",
        method=judge_empty_cache,
        scope=Scope.TIER,
        loudness=Severity.REPORT,
        window_seconds=WEEK,
        minimum_seconds=SEEN * WEEK,
        thresholds={
            "below": Threshold(value=0.75, unit="ratio", source="guide 9.3: KV cache utilisation 75-90 %"),
            "fullest_hours": FULLEST,
            "cached_share": Threshold(
                value=0.1,
                unit="ratio",
                source="vLLM counts cached blocks as free (v1/core/block_pool.py, get_usage): with such hits they are used",
            ),
        },
        signal="kv_utilization",
        unit="ratio",
        family="kv_utilization",
        about="KV cache utilisation",
        title="KV cache never filled in a week",
        meaning="Even at the fullest instants of the fullest hours the KV cache stays below the guide's band: memory is paid "
        "for that no request uses.",
        actions=(
            "Give each replica more of the load and run fewer replicas, as far as latency allows it",
            "Consider fewer or smaller GPUs per replica, or higher-precision weights, and benchmark that",
            "Leave the cache as it is where prefix reuse lives in its free blocks",
        ),
    ),
    Rule(
        name="UtilizationTrap",
        method=judge_trap,
        scope=Scope.TIER,
        loudness=Severity.REPORT,
        window_seconds=WEEK,
        minimum_seconds=SEEN * WEEK,
        thresholds={
            "below": Threshold(value=0.40, unit="ratio", source="guide 9.3: below 40 % is the utilization trap"),
            "kv_below": Threshold(
                value=0.75,
                unit="ratio",
                source="DESIGN 3.12: with P95 KV utilisation below 75 %, or memory sets the size",
            ),
            "fullest_hours": FULLEST,
            "target": TARGET,
        },
        signal="fleet_utilization",
        unit="ratio",
        about="fleet utilisation",
        title="Utilization trap: paid capacity idles for days",
        meaning="The fleet serves far less than it could for at least a week, and the KV cache does not need the replicas "
        "either: most of the bill produces nothing.",
        actions=(
            "Share the GPUs with other models or tenants (model colocation: MIG or time-sharing)",
            "Fill idle hours with offline batch work: the fleet is warm and paid for",
            "Scale down faster, never below the minimum warm count",
            "Trim tokens per request: system prompts, output limits, retrieved context; then run fewer replicas",
            "Route simple requests to a smaller model, and keep fewer replicas of this one warm",
        ),
    ),
    Rule(
        name="NoHeadroom",
        method=judge_headroom,
        scope=Scope.TIER,
        loudness=Severity.TICKET,
        window_seconds=900,
        minimum_seconds=600,
        thresholds={
            "above": Threshold(
                value=0.90, unit="ratio", source="guide 9.3: above 90 %, no headroom for traffic spikes"
            ),
            "survives_loss_from": Threshold(
                value=4,
                unit="replicas",
                source="DESIGN 3.13: from four replicas on a recommended count carries its demand with one lost; 0 never asks. "
                "Below four, one more replica is a third of the bill or more",
            ),
            "busiest_hours": Threshold(
                value=0.05, unit="ratio", source="the busiest hours of a week: 8 of 168, one or two a day"
            ),
        },
        signal="fleet_utilization",
        unit="ratio",
        about="fleet utilisation",
        title="No headroom: the fleet is used to the brim",
        meaning="The tier runs so near its usable rate that the next spike, or the loss of one replica, breaks the objective.",
        actions=(
            "Add a replica of this tier",
            "Pre-warm ahead of the busy hours, where only those are full",
            "Move the knee to the right: quantise (FP8 on GPUs that have it), then benchmark again",
        ),
    ),
    Rule(
        name="TokensPerGpuHourFalling",
        method=judge_falling,
        scope=Scope.TIER,
        loudness=Severity.REPORT,
        window_seconds=2 * WEEK,
        minimum_seconds=SEEN * 2 * WEEK,
        thresholds={
            "fall": Threshold(
                value=0.10,
                unit="ratio",
                source="guide 9.3: declining as traffic grows; weeks of equal traffic differ by less than a tenth",
            ),
            "growth": Threshold(
                value=0.05, unit="ratio", source="guide 9.3: as traffic grows; less is the noise of two weeks"
            ),
            "days": Threshold(
                value=3, unit="days", source="DESIGN 3.3: three separate periods; a bad day is one event"
            ),
        },
        signal="tokens_per_gpu_hour",
        unit="tokens_per_hour",
        about="tokens per GPU-hour",
        title="Tokens per GPU-hour fall while traffic grows",
        meaning="Each GPU-hour yields less although there is more to do: something saturates, answers became shorter, or "
        "replicas were added faster than load.",
        actions=(
            "Read in the sentence what moved: requests per replica, or tokens per request",
            "Fewer requests per replica: scale down, or spread the load evenly",
            "Shorter answers: nothing is wrong; the plan's lengths are, measure them again (step 1)",
            "Neither: compare latency, KV cache, evictions and clocks with the week before; something saturates",
        ),
    ),
    Rule(
        name="QueueAlwaysEmpty",
        method=judge_empty_queue,
        scope=Scope.TIER,
        loudness=Severity.REPORT,
        window_seconds=DAY,
        minimum_seconds=SEEN * DAY,
        thresholds={
            "waiting": Threshold(
                value=0.05,
                unit="requests",
                source="guide 9.3: consistently zero; a request seen waiting for its first step in 1 of 20 scrapes is no queue",
            ),
            "gpu_below": Threshold(
                value=0.40, unit="ratio", source="guide 9.3: low GPU utilisation; its 40 % for a fleet is used"
            ),
            "fullest_hours": FULLEST,
            "target": Threshold(
                value=0.60,
                unit="ratio",
                source="guide 9.3: GPU compute utilisation 60-85 % while serving, its lower end",
            ),
        },
        signal="gpu_utilization",
        unit="ratio",
        about="GPU utilisation",
        title="Queue always empty on idle GPUs",
        meaning="For a whole day, busy hours included, no request waited and the GPUs were mostly idle: the fleet is larger "
        "than its traffic.",
        actions=(
            "Run fewer replicas, down to the minimum warm count",
            "Fill the idle hours with offline batch work, or share the GPUs with another model",
            "Check first that traffic is not being lost before it reaches the engines",
        ),
    ),
)


DEMAND_ROWS: tuple[Rule, ...] = (
    Rule(
        name="ForecastDegraded",
        method=judge_forecast,
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
        method=judge_demand,
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

ROWS: tuple[Rule, ...] = (*FLEET_ROWS, *DEMAND_ROWS)
