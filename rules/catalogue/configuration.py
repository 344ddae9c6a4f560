"""Rules about prefix caching, adapters, speculation, number formats and tiers (guide 6.5, 7.2, 9.3, 9.5)."""

from __future__ import annotations

from rules.catalogue.thresholds import LONGER, MINIMUM_REQUESTS, TTFT_SLO
from rules.methods.bands import judge_acceptance, judge_band
from rules.methods.configuration import (
    judge_adapters,
    judge_benchmark_stale,
    judge_cold_start,
    judge_flapping,
    judge_precision,
)
from rules.methods.pools import judge_imbalance
from rules.methods.routing import judge_replicas, judge_tiers
from rules.telemetry.windows import HOUR_SECONDS
from rules.thresholds import Threshold
from rules.verdicts.rule import Rule, Severity

CAPABILITY = "compute capability"

ROWS: tuple[Rule, ...] = (
    Rule(
        name="PrefixHitLow",
        stage=56,
        method=judge_band,
        thresholds={
            "below": Threshold(0.30, "ratio", "guide 9.3: below 30 % on a workload with known prefix reuse"),
            "minimum_requests": Threshold(10_000, "tokens", "some tens of prompts of the shortest kind"),
        },
        signal="prefix_hit_ratio",
        family="prefix_hit_ratio",
        needs="workload.prefix_hit_ratio",
        serving_only=True,
        about="Prefix cache hit rate",
        title="Prefix cache hit rate low",
        meaning="The plan knows that prompts share prefixes, and the cache does not find them: routing sends them astray, or the "
        "cache is too small.",
        actions=(
            "Check that prefix caching is on and that requests of one prefix reach one replica",
            "Compare the replicas' own hit rates: all low at once is routing or prompts, one alone is that replica",
            "Enlarge the cache if blocks are evicted before they come back (KvEviction, KvResidencyShort)",
        ),
    ),
    Rule(
        name="PrefixRoutingBroken",
        stage=30,
        method=judge_replicas,
        window_seconds=3600,
        thresholds={
            "points": Threshold(
                0.20, "ratio", "guide 9.1, step 13 names the hit rate without a number; its 20 points are used"
            ),
            "near": Threshold(
                1.5,
                "ratio",
                "guide 7.2: about 1/N; measured on vLLM 0.32: 0.41 of 0.97 over three replicas, 1.3 times 1/N",
            ),
            "spread": Threshold(1.5, "ratio", "a replica with more than half as much again is chosen by something"),
            "length_change": Threshold(
                1.2, "ratio", "mean prompts of one mix differ by less from minute to minute (recordings)"
            ),
            "eviction_rate": Threshold(0.05, "ratio", "guide 9.3: eviction rate below 5 %"),
            "warm_up_seconds": Threshold(
                300, "seconds", "measured on vLLM 0.32: a new replica's hits are back after 80 s"
            ),
            "minimum_requests": Threshold(50, "requests", "of fewer, a prompt moves the rate by points"),
            "chance": Threshold(0.01, "ratio", "so rarely a routing by prefix is as even as one in turn (chi-square)"),
        },
        signal="prefix_hit_ratio",
        family="prefix_queried_tokens",
        title="Prefix locality lost in routing",
        meaning="Requests no longer reach the replica that holds their prefix: every replica computes every prefix, and the "
        "hit rate falls to about one replica's divided by their number.",
        actions=(
            "Look at what changed in the router or load balancer when the rate fell; restore routing by prefix",
            "Cap the share of one replica and let the rest overflow, so that no prefix makes a hot spot",
            "Where the router cannot do it, plan without the hits: benchmark again",
        ),
    ),
    Rule(
        name="AdapterCachePressure",
        stage=31,
        method=judge_adapters,
        thresholds={
            "held_share": Threshold(
                0.1, "ratio", "a tenth of the TTFT objective on average is one request in ten that loses all of it"
            ),
            "waiting": Threshold(0.5, "adapters", "half of the time some adapter waits for its turn"),
            "minimum_requests": MINIMUM_REQUESTS,
            "ttft_slo_seconds": TTFT_SLO,
        },
        signal="adapters_active",
        unit="seconds",
        about="requests held back",
        title="LoRA adapter slots exhausted",
        meaning="Requests wait until their adapter has a place in GPU memory: more adapters are used at once than fit. It "
        "looks like prefill interference on some tenants, and no tuning of prefill helps (guide 9.3).",
        actions=(
            "Give adapters more places (--max-loras), or use a lower rank; check the KV cache afterwards: both share memory",
            "Route each adapter to few replicas instead of all to every one",
            "Put max_adapters into the plan's lora, so that it can be compared",
        ),
    ),
    Rule(
        name="SpeculationAcceptanceLow",
        stage=31,
        method=judge_acceptance,
        thresholds={
            "below": Threshold(0.60, "ratio", "guide 9.3: above 60 % (per token)"),
            "critical_below": Threshold(
                0.50, "ratio", "guide 9.3: below 50 % it adds overhead without benefit (per token)"
            ),
            "minimum_requests": Threshold(200, "rounds", "so many rounds make an acceptance"),
        },
        signal="speculative_acceptance",
        serving_only=True,
        about="Speculative acceptance",
        title="Speculative acceptance low",
        meaning="The draft model no longer guesses what the target model says: rounds are spent on tokens that are thrown away.",
        actions=(
            "Compare traffic with what the draft model was chosen for; shorten the draft (fewer tokens a round) first",
            "Switch speculation off where it stays below the critical limit: it costs more than it yields",
            "Measure TPOT and tokens per second with speculation and without it, at the present batch, and keep what wins",
        ),
    ),
    Rule(
        name="MixedTierLoadBalancing",
        stage=30,
        method=judge_tiers,
        thresholds={
            "unequal": Threshold(1.3, "ratio", "guide 9.1, step 13: 30 % apart is another tier than the one beside it"),
            "follow": Threshold(
                0.5, "ratio", "half way, by logarithm, between an equal share and what the tiers can take"
            ),
            "lengths": Threshold(1.5, "ratio", "guide 9.5: routed by characteristics, requests differ between tiers"),
            "minimum_requests": Threshold(30, "requests", "of each tier in the last minutes; fewer share by chance"),
        },
        signal="completed_rps",
        family="requests_finished",
        title="Load balancing ignores replica capacity",
        meaning="Requests of one model are spread over tiers of different speed as if they were one. The slower tier sets "
        "the P99 of all of them, and the faster tier idles.",
        actions=(
            "Weight the tiers by their usable requests a second, or route requests by kind",
            "Keep latency-sensitive requests off the slower tier; give it batch work and what fits its memory",
            "Size and alert each tier on its own: a fleet average hides both",
        ),
    ),
    Rule(
        name="ReplicaImbalance",
        stage=60,
        method=judge_imbalance,
        thresholds={
            "busier": Threshold(1.5, "ratio", "a replica with more than half as much again is chosen by something"),
            "slower": Threshold(1.3, "ratio", "guide 9.1, step 13: 30 % apart is not the machine that was measured"),
            "alike": LONGER,
            "full": Threshold(0.9, "ratio", "guide 9.3: the healthy band of the KV cache ends at 90 %"),
            "minimum_requests": Threshold(10, "requests", "of a replica in a minute: of fewer, one is the mean"),
            "warm_up_seconds": Threshold(
                300, "seconds", "measured on vLLM 0.32: a new replica's hits are back after 80 s"
            ),
        },
        signal="requests_running",
        unit="times",
        family="requests_running",
        title="One replica unlike the others",
        meaning="One replica is a hot spot, a straggler, or has a full data-parallel rank. Its requests are slow while the "
        "others have room, and a tier's averages hide it.",
        actions=(
            "Hot spot: cap the share of one replica at the router and let the rest overflow (guide 7.3)",
            "Straggler: compare its clocks, temperature and neighbours with the others; drain it if it stays slow",
            "Full rank: balance requests over the data-parallel ranks by their queues, not in turn",
        ),
    ),
    Rule(
        name="QuantizationMismatch",
        stage=31,
        method=judge_precision,
        reads_windows=False,
        minimum_seconds=60,
        thresholds={
            "fp4": Threshold(10.0, CAPABILITY, "Blackwell's are the first tensor cores with FP4 (guide 4.3: NVFP4)"),
            "fp8": Threshold(8.9, CAPABILITY, "guide 9.5: FP8 is Hopper's and Blackwell's; Ada (8.9) has it too"),
            "int8": Threshold(7.5, CAPABILITY, "Turing's are the first data-centre tensor cores with INT8"),
            "bf16": Threshold(8.0, CAPABILITY, "Ampere's are the first tensor cores with BF16"),
            "fp16": Threshold(7.0, CAPABILITY, "Volta's are the first tensor cores"),
        },
        signal="tpot_mean_seconds",
        unit=CAPABILITY,
        about="compute capability",
        title="Number format without hardware support",
        meaning="The model runs, converted at every step: the memory may be saved, the planned speed-up is not there. One "
        "artefact does not serve every hardware generation (guide 9.5).",
        actions=(
            "Serve an artefact made for this GPU: INT8 on A100, FP8 from compute capability 8.9 on",
            "Benchmark this tier by itself: the curve of another generation does not hold here",
            "If the format was chosen for memory alone, raise the threshold for this tier",
        ),
    ),
    Rule(
        name="ColdStartLate",
        stage=31,
        method=judge_cold_start,
        window_seconds=HOUR_SECONDS,
        minimum_seconds=60,
        thresholds={
            "factor": Threshold(
                1.0, "ratio", "guide 9.5: the pre-warm lead follows the tier's own measured cold start"
            ),
        },
        signal="cold_start_seconds",
        unit="seconds",
        about="the slowest start",
        title="Cold start slower than lead time",
        meaning="Replicas that are asked for so many seconds ahead come too late: during every scale-up the objective is "
        "missed until they are ready.",
        actions=(
            "Raise cold_start_seconds in the plan to what was measured, so that pre-warming begins early enough",
            "Shorten the start: weights on a local disk, images pulled ahead, compiled graphs kept",
            "Keep more replicas warm until then (fleet.minimum_warm)",
        ),
    ),
    Rule(
        name="ReplicaFlapping",
        stage=90,
        method=judge_flapping,
        window_seconds=HOUR_SECONDS,
        minimum_seconds=60,
        thresholds={
            "times": Threshold(
                3, "replicas", "GPU serving guide: once is a dip of the load, a third time is a rule of scaling"
            ),
        },
        signal="coverage",
        unit="replicas",
        about="replicas stopped within their own cold start",
        title="Replicas flapping",
        meaning="Replicas are stopped before they ran for as long as their start took: every start is paid for again, and "
        "users wait for the next one.",
        actions=(
            "Raise the scaler's cooldown before scaling down (stabilizationWindowSeconds) well above the cold start",
            "If the replicas crash instead, read the log of one that stopped: its last lines tell why",
            "Keep as many replicas warm as the dips need (fleet.minimum_warm)",
        ),
    ),
    Rule(
        name="BenchmarkStale",
        method=judge_benchmark_stale,
        severity=Severity.REPORT,
        window_seconds=0,
        thresholds={
            "replicas": Threshold(
                1, "replicas", "guide 8.2: a result without the version it was measured on cannot size a fleet"
            ),
        },
        signal="coverage",
        unit="replicas",
        about="replicas that run something else",
        title="Benchmark of another configuration",
        meaning="The curve was measured on another release, batch limit or parallelism than production runs. Its latencies "
        "and its usable requests a second may no longer hold.",
        actions=(
            "Benchmark the configuration that runs, and import it: `sizewatch plan import --measured engine_version=...`",
            "Until then compare TTFT and TPOT with the time before the upgrade, at the same load",
            "If only some replicas differ, finish the rollout or take it back: a tier is one configuration",
        ),
        # It explains nothing: it lasts until the next benchmark, and would take up every later finding of the tier.
    ),
)
