"""Rules that compare production with the benchmark at equal load (guide 9.1, step 13)."""

from __future__ import annotations

from itertools import chain

from rules.catalogue.latency_actions import BEYOND_LEVERS, SEE_THE_LOAD
from rules.catalogue.thresholds import ALLOWED_SLOW, MINIMUM_REQUESTS, SUPPORTED_REQUESTS
from rules.methods.bands import judge_excess
from rules.methods.demand import judge_batch
from rules.methods.divergence import judge_mean, judge_tail
from rules.methods.load import judge_beyond
from rules.telemetry.windows import HOUR_SECONDS
from rules.thresholds import Threshold
from rules.verdicts.rule import Rule, Severity

STEP_13 = "guide 9.1, step 13"


def _tail(name: str, stage: int, stem: str, title: str) -> Rule:
    return Rule(
        name=name,
        stage=stage,
        method=judge_tail,
        thresholds={
            "factor": Threshold(1.3, "ratio", f"{STEP_13}: more than 30 % above the benchmark"),
            "allowed_share": ALLOWED_SLOW,
            "minimum_requests": MINIMUM_REQUESTS,
            "supported_requests": SUPPORTED_REQUESTS,
        },
        signal=f"{stem}_p99_seconds",
        unit="seconds",
        family=f"{stem}_seconds",
        per_request=stem != "itl",
        title=title,
        meaning="More requests are slower than the benchmark allows at the same load: the plan's latency no longer holds.",
        actions=(
            "Check the first suspect; a cause with evidence comes before a new plan",
            "If the workload changed, go back to step 1: measure lengths and arrival pattern again, and benchmark with them",
            "If the benchmark is the first suspect, repeat it open loop with at least 300 requests a point",
        ),
    )


ROWS: tuple[Rule, ...] = (
    _tail("TtftDivergence", 72, "ttft", "TTFT P99 above benchmark"),
    _tail("TpotDivergence", 70, "tpot", "TPOT P99 above benchmark"),
    _tail("ItlDivergence", 71, "itl", "ITL P99 above benchmark"),
    Rule(
        name="GpuUtilizationShortfall",
        stage=90,
        method=judge_mean,
        thresholds={
            "points": Threshold(0.20, "ratio", f"{STEP_13}: more than 20 points below"),
            "supported_requests": SUPPORTED_REQUESTS,
        },
        signal="gpu_utilization",
        family="gpu_utilization",
        title="GPU utilisation below benchmark",
        meaning="The GPUs work less for the same completed requests than in the benchmark. The workload is another one "
        "(shorter prompts, other batching), or requests are held up before the GPU.",
        actions=(
            "Compare prompt and output lengths with the plan's workload",
            "Look at queue time and at the front end's CPU: a starved engine shows as an idle GPU",
            "Size the tier again if the lengths moved",
        ),
    ),
    Rule(
        name="PrefixHitDivergence",
        stage=55,
        method=judge_mean,
        thresholds={
            "points": Threshold(
                0.20, "ratio", f"{STEP_13} names the hit rate without a number; its 20 points are used"
            ),
            "minimum_requests": MINIMUM_REQUESTS,
            "supported_requests": SUPPORTED_REQUESTS,
        },
        signal="prefix_hit_ratio",
        family="prefix_hit_ratio",
        title="Prefix hit rate below benchmark",
        meaning="Prefill work that the plan expected to save is being computed: TTFT and capacity follow.",
        actions=(
            "Check that prefix caching is on and that requests of one prefix reach one replica",
            "Compare prompts with the benchmark's: a repeated seed makes a cache that production never has",
            "If prompts changed for good, plan without the hits: benchmark again",
        ),
    ),
    Rule(
        name="EvictionDivergence",
        stage=53,
        method=judge_excess,
        thresholds={
            "points": Threshold(0.05, "ratio", "guide 9.3: eviction rate below 5 %; so much above plan"),
            "minimum_requests": MINIMUM_REQUESTS,
            "supported_requests": SUPPORTED_REQUESTS,
        },
        signal="eviction_rate",
        family="eviction_rate",
        title="Evictions above benchmark",
        meaning="Requests are thrown out of the KV cache more often than in the benchmark: requests are longer, or more "
        "of them run at once, than was planned.",
        actions=(
            "Compare prompt and output lengths with the plan",
            "Give the KV cache more room: FP8 KV cache, or fewer requests at once (--max-num-seqs)",
            "Never lower --gpu-memory-utilization for this: it shrinks the cache",
        ),
    ),
    Rule(
        name="LoadBeyondBenchmark",
        stage=41,
        method=judge_beyond,
        thresholds={
            "minutes": Threshold(3, "minutes", "ours: a burst is one event, three separate minutes are not"),
            "share": Threshold(0.5, "ratio", "most of the last quarter of the hold"),
        },
        signal="completed_rps",
        unit="per_second",
        family="requests_finished",
        title="Load beyond benchmark",
        meaning="A replica completes more than the benchmark's highest uncensored point, holds more requests, or its queue "
        "keeps growing. The plan's latencies do not apply there, and nothing can be compared. More requests in the "
        "system at a load within what replicas take are held up, not too many.",
        actions=tuple(dict.fromkeys((SEE_THE_LOAD, *chain.from_iterable(BEYOND_LEVERS.values())))),
        levers=BEYOND_LEVERS,
    ),
)

BATCH_WORK = Rule(
    name="BatchWork",
    method=judge_batch,
    severity=Severity.REPORT,
    window_seconds=HOUR_SECONDS,
    thresholds={
        "share": Threshold(0.77, "ratio", f"{STEP_13}: more than 30 % off the benchmark, 1 / 1.3"),
        "minimum_requests": Threshold(30, "requests", "of fewer, the rate itself is known to no better than a fifth"),
    },
    signal="generation_tokens_per_second",
    about="what is needed by what there is",
    title="Batch work behind plan",
    meaning="At the present rate the work ends too late. Or fewer tokens are made than in the benchmark, although work waits.",
    actions=(
        "Add replicas until the deadline, or let the queue fill online tiers (sizewatch_spare_capacity_rps)",
        "Raise the client's concurrency or --max-num-seqs while KV cache and evictions allow it",
        "If the job has grown, put its size into the plan's batch",
    ),
)
"""Row by which the check confirms a batch tier. It is no rule of the agent, so it has no alert."""
