"""Rules about compute, queues and the use of the fleet (guide 8.1, 9.2, 9.3)."""

from __future__ import annotations

from itertools import chain

from rules.catalogue.latency_actions import QUEUE_LEVERS, SEE_THE_LOAD
from rules.catalogue.thresholds import DAY, FULLEST, SEEN, WEEK
from rules.methods.bands import judge_band
from rules.methods.load import judge_queue, judge_saturated
from rules.methods.utilization import judge_empty_queue, judge_falling, judge_headroom, judge_trap
from rules.thresholds import Threshold
from rules.verdicts.rule import Rule, Severity

ROWS: tuple[Rule, ...] = (
    Rule(
        name="GpuComputeLow",
        method=judge_band,
        severity=Severity.REPORT,
        thresholds={"below": Threshold(0.60, "ratio", "guide 9.3: 60-85 % during active serving")},
        signal="gpu_utilization",
        serving_only=True,
        about="GPU utilisation while serving",
        title="GPU utilisation low while serving",
        meaning="The GPUs wait although requests are served: batches are too small, or decode is bound by memory bandwidth.",
        actions=(
            "Raise the number of requests at once (--max-num-seqs) while the KV cache has room",
            "At low concurrency evaluate speculative decoding before more hardware (guide 8.5)",
            "If the load is simply low, see UtilizationTrap: the fleet is larger than its traffic",
        ),
    ),
    Rule(
        name="GpuSaturated",
        stage=61,
        method=judge_saturated,
        thresholds={
            "target": Threshold(
                0.85, "ratio", "guide 9.3: 60-85 % during active serving, its upper end; in the report"
            ),
            "pegged": Threshold(0.95, "ratio", "guide 9.3: pegged at 100 %, less what sums round off"),
            "rise": Threshold(1.3, "ratio", "as step 13 (guide 9.1): 30 % more is a difference"),
            "minimum_requests": Threshold(
                30, "requests", "in the first and in the last third: of fewer chance decides"
            ),
        },
        signal="gpu_utilization",
        family="ttft_seconds",
        title="GPU saturated, TTFT rising",
        meaning="The GPUs have no time left and requests wait longer and longer for their first token. Pegged with a stable "
        "TTFT is healthy: the hardware is used.",
        actions=(
            "Chunked prefill, or prefill and decode on replicas of their own: prefill is what saturates",
            "Add replicas of this tier if the load stays",
            "A quantised model needs less time for the same prompts",
        ),
    ),
    Rule(
        name="UtilizationTrap",
        method=judge_trap,
        severity=Severity.REPORT,
        window_seconds=WEEK,
        minimum_seconds=SEEN * WEEK,
        thresholds={
            "below": Threshold(0.40, "ratio", "guide 9.3: below 40 % is the utilization trap"),
            "kv_below": Threshold(
                0.75, "ratio", "guide 9.3: KV cache utilisation 75-90 %; above, memory sets the size"
            ),
            "fullest_hours": FULLEST,
            "target": Threshold(0.60, "ratio", "guide 9.3: fleet utilisation 60-80 %, its lower end"),
        },
        signal="fleet_utilization",
        about="fleet utilisation",
        title="Utilization trap",
        meaning="The fleet serves far less than it could for at least a week. The KV cache does not need the replicas "
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
        stage=42,
        method=judge_headroom,
        minimum_seconds=600,
        thresholds={
            "above": Threshold(0.90, "ratio", "guide 9.3: above 90 %, no headroom for traffic spikes"),
            "target": Threshold(0.80, "ratio", "guide 9.3: fleet utilisation 60-80 %, its upper end; in the report"),
            "survives_loss_from": Threshold(
                4,
                "replicas",
                "ours: from four replicas on a recommended count carries its demand with one lost; 0 never asks. "
                "Below four, one more replica is a third of the bill or more",
            ),
            "busiest_hours": Threshold(0.05, "ratio", "the busiest hours of a week: 8 of 168, one or two a day"),
        },
        signal="fleet_utilization",
        about="fleet utilisation",
        title="No capacity headroom",
        meaning="The tier runs near its usable rate: the next spike, or the loss of one replica, breaks the objective.",
        actions=(
            "Add a replica of this tier",
            "Pre-warm ahead of the busy hours, where only those are full",
            "Move the knee to the right: quantise (FP8 on GPUs that have it), then benchmark again",
        ),
    ),
    Rule(
        name="TokensPerGpuHourFalling",
        stage=90,
        method=judge_falling,
        severity=Severity.REPORT,
        window_seconds=2 * WEEK,
        minimum_seconds=SEEN * 2 * WEEK,
        thresholds={
            "fall": Threshold(
                0.10,
                "ratio",
                "guide 9.3: declining as traffic grows; weeks of equal traffic differ by less than a tenth",
            ),
            "growth": Threshold(0.05, "ratio", "guide 9.3: as traffic grows; less is the noise of two weeks"),
            "days": Threshold(3, "days", "ours: three separate periods; a bad day is one event"),
        },
        signal="tokens_per_gpu_hour",
        unit="tokens_per_hour",
        about="tokens per GPU-hour",
        title="Tokens per GPU-hour falling",
        meaning="Each GPU-hour yields less although there is more to do: something saturates, answers became shorter, or "
        "replicas were added faster than load.",
        actions=(
            "Read in the details what moved: requests per replica, or tokens per request",
            "Fewer requests per replica: scale down, or spread the load evenly",
            "Shorter answers: measure the plan's lengths again (step 1); nothing else is wrong",
            "Neither: compare latency, KV cache, evictions and clocks with the week before; something saturates",
        ),
    ),
    Rule(
        name="QueueGrowing",
        stage=62,
        method=judge_queue,
        thresholds={
            "waiting": Threshold(1, "requests", "one always waits: below it there is no queue"),
            "share": Threshold(
                0.02, "ratio", "measured: a full batch's arrivals and completions differ by 1-3 % a minute"
            ),
        },
        signal="requests_waiting",
        unit="requests",
        family="requests_waiting",
        title="Queue growing",
        meaning="More requests arrive than finish, and the queue grows steadily: every further request waits longer than the one "
        "before. Above the load that replicas take the fleet is too small for its traffic; below it something holds requests up.",
        actions=tuple(dict.fromkeys((SEE_THE_LOAD, *chain.from_iterable(QUEUE_LEVERS.values())))),
        levers=QUEUE_LEVERS,
    ),
    Rule(
        name="QueueAlwaysEmpty",
        method=judge_empty_queue,
        severity=Severity.REPORT,
        window_seconds=DAY,
        minimum_seconds=SEEN * DAY,
        thresholds={
            "waiting": Threshold(
                0.05,
                "requests",
                "guide 9.3: consistently zero; a request seen waiting for its first step in 1 of 20 scrapes is no queue",
            ),
            "gpu_below": Threshold(0.40, "ratio", "guide 9.3: low GPU utilisation; its 40 % for a fleet is used"),
            "fullest_hours": FULLEST,
        },
        signal="gpu_utilization",
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
