"""Rules about GPU memory and the KV cache (guide 7.4, 7.7, 9.3)."""

from __future__ import annotations

from rules.catalogue.thresholds import ALLOWED_SLOW, FULLEST, SEEN, TTFT_SLO, WEEK
from rules.methods.availability import judge_cascade
from rules.methods.bands import judge_band, judge_event_ratio
from rules.methods.utilization import judge_empty_cache
from rules.thresholds import Threshold
from rules.verdicts.rule import Rule, Scope, Severity

ROWS: tuple[Rule, ...] = (
    Rule(
        name="GpuMemoryLow",
        method=judge_band,
        severity=Severity.REPORT,
        thresholds={"below": Threshold(0.70, "ratio", "guide 9.3: below 70 % is over-provisioned on memory")},
        signal="gpu_memory_utilization",
        serving_only=True,
        about="GPU memory use",
        title="GPU memory underused",
        meaning="The GPUs have more memory than this model and its KV cache use: a smaller GPU, or a larger cache, would "
        "do. Engines that reserve their memory at start (vLLM, SGLang, TensorRT-LLM) use what their flag sets. KV "
        "cache utilisation shows how full their cache is.",
        actions=(
            "Raise --gpu-memory-utilization (vLLM) or --mem-fraction-static (SGLang) if the KV cache is short",
            "If the KV cache is not short either, size the next plan on GPUs with less memory",
        ),
    ),
    Rule(
        name="GpuMemoryHigh",
        method=judge_band,
        thresholds={"above": Threshold(0.95, "ratio", "guide 9.3: above 95 % risks running out on a spike")},
        signal="gpu_memory_utilization",
        about="GPU memory use",
        title="GPU memory nearly full",
        meaning="What is not reserved by the engine (activations, other processes, fragmentation) may not fit at the next spike.",
        actions=(
            "Look for other processes on the GPU: only the engine should be there",
            "Leave the engine less than it has: a spike of activations or a new CUDA graph needs room",
            "Use an FP8 KV cache or quantised weights (guide 7.5) before the next growth of traffic",
        ),
    ),
    Rule(
        name="KvCacheNearCeiling",
        stage=50,
        method=judge_band,
        thresholds={"above": Threshold(0.90, "ratio", "guide 9.3: 75-90 % is healthy, near 100 % is the ceiling")},
        signal="kv_utilization",
        about="KV cache use",
        title="KV cache near capacity",
        meaning="The KV cache is nearly full all the time: any burst, or one long prompt, begins to evict.",
        actions=(
            "Use an FP8 KV cache (guide 7.5): it doubles what fits",
            "Add replicas before the next peak, or offload cold blocks for long-context batch work",
            "Never lower --gpu-memory-utilization for this: it shrinks the cache",
        ),
    ),
    Rule(
        name="KvCacheUnderused",
        method=judge_empty_cache,
        severity=Severity.REPORT,
        window_seconds=WEEK,
        minimum_seconds=SEEN * WEEK,
        thresholds={
            "below": Threshold(0.75, "ratio", "guide 9.3: KV cache utilisation 75-90 %"),
            "fullest_hours": FULLEST,
            "cached_share": Threshold(
                0.1,
                "ratio",
                "vLLM counts cached blocks as free (v1/core/block_pool.py, get_usage): with such hits they are used",
            ),
        },
        signal="kv_utilization",
        family="kv_utilization",
        about="KV cache utilisation",
        title="KV cache underused",
        meaning="Even at the fullest instants of the fullest hours the KV cache stays below the guide's band: memory is paid "
        "for that no request uses.",
        actions=(
            "Give each replica more of the load and run fewer replicas, as far as latency allows it",
            "Consider fewer or smaller GPUs per replica, or higher-precision weights, and benchmark that",
            "Leave the cache as it is where prefix reuse lives in its free blocks",
        ),
    ),
    Rule(
        name="KvEviction",
        stage=52,
        method=judge_event_ratio,
        window_seconds=300,
        minimum_seconds=60,
        thresholds={
            "warning": Threshold(0.05, "ratio", "guide 9.3: 5-20 % warning (per request)"),
            "critical": Threshold(0.20, "ratio", "guide 9.3: above 20 % degraded (per request)"),
            "minimum_requests": Threshold(20, "requests", "one preemption of fewer exceeds 5 % by itself"),
        },
        signal="eviction_rate",
        family="preemptions",
        title="KV cache evictions",
        meaning="The KV cache is too small for the present traffic: running requests are thrown out and computed again.",
        actions=(
            "Use an FP8 KV cache (guide 7.5), or add replicas",
            "Lower the number of requests at once (--max-num-seqs) so that those inside can finish",
            "Never lower --gpu-memory-utilization for this: it shrinks the cache",
        ),
    ),
    Rule(
        name="KvCacheCascade",
        stage=51,
        method=judge_cascade,
        scope=Scope.REPLICA,
        severity=Severity.PAGE,
        window_seconds=0,
        thresholds={
            "filling_level": Threshold(0.6, "ratio", "ours: below it a cache that fills still has room"),
            "pressed_level": Threshold(
                0.85,
                "ratio",
                "measured on vLLM 0.32: evictions in a cascade free blocks, the level swings between 0.82 and 1",
            ),
            "full_level": Threshold(0.9, "ratio", "guide 9.3: the healthy band ends at 90 %"),
            "growth_share": Threshold(
                0.1,
                "ratio",
                "measured on vLLM 0.32: a healthy full batch fluctuates by 7 % in 15 s, the slowest cascade grew by 17 %",
            ),
            "eviction_rate": Threshold(0.05, "ratio", "guide 9.3: 5 %"),
            "waiting_share_of_slo": Threshold(0.5, "ratio", "half of the TTFT objective spent in the queue"),
            "slow_share": ALLOWED_SLOW,
            "hold_seconds": Threshold(9, "seconds", "two scrapes at 5 s, one at 15 s, less their jitter"),
            "look_back_seconds": Threshold(
                15, "seconds", "one default scrape interval, three at 5 s; at least two intervals"
            ),
            "calm_seconds": Threshold(15, "seconds", "one default scrape interval without pressure"),
            "ttft_slo_seconds": TTFT_SLO,
        },
        signal="kv_utilization",
        title="KV cache cascade",
        meaning="The KV cache fills faster than requests leave, evictions and a queue follow, users wait: a memory problem "
        "that looks like a latency problem (guide 7.4). Stages: 1 filling, 2 evicting, 3 queueing, 4 user-visible.",
        actions=(
            "Shed or reroute load now: requests beyond the cache only wait for their own eviction",
            "Lower the number of requests at once (--max-num-seqs) so that those inside can finish",
            "Add replicas or use an FP8 KV cache (guide 7.5) before the next peak",
            "Never lower --gpu-memory-utilization for this: it shrinks the cache",
        ),
    ),
    Rule(
        name="KvResidencyShort",
        method=judge_band,
        severity=Severity.REPORT,
        thresholds={
            "below": Threshold(
                1,
                "ratio",
                "by definition: gone before its prefix comes back; neither guide 7.7 nor an engine gives a number",
            ),
            "minimum_requests": Threshold(20, "blocks", "1 % of blocks is sampled: fewer say nothing"),
        },
        signal="kv_residency_by_reuse",
        needs="workload.prefix_reuse_seconds",
        about="KV block life by planned reuse",
        title="KV block residency short",
        meaning="Blocks are computed, cached briefly, evicted and computed again: the cache churns. Half of them are gone "
        "before the plan expects their prefix again.",
        actions=(
            "Enlarge the cache: FP8 KV cache, more memory for it, or more replicas",
            "Protect prefixes that come back often with frequency-based eviction where the engine offers it",
        ),
    ),
    Rule(
        name="KvTransferSlow",
        stage=31,
        method=judge_band,
        thresholds={
            "above": Threshold(
                0.5,
                "seconds",
                "guide 7.7 names rising transfer latency without a number; a quarter of its 2 s TTFT objective",
            ),
            "minimum_requests": Threshold(100, "transfers", "1 % of fewer is less than one transfer"),
        },
        signal="kv_transfer_p99_seconds",
        unit="seconds",
        about="KV transfer P99",
        title="KV transfers slow",
        meaning="Moving KV blocks between instances or tiers of memory takes a large part of the first token's time: the "
        "interconnect is the bottleneck, not the GPU.",
        actions=(
            "Look at the data path: PCIe, NIC and network utilisation of the nodes that take part",
            "Place prefill and decode instances nearer to each other, or send fewer bytes with an FP8 KV cache",
        ),
    ),
)
