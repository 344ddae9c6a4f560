"""The catalogue's rows about the KV cache and its pressure (guide 7.4, 9.3), with all their thresholds.

Owns these rows only; what a row is stands in `rules.verdicts.rule`. A new one is a row here, its runbook section, and its tests.

The catalogue's rows about what caches and speculation yield against the guide's fixed bands (guide 7.7, 9.3).

Owns these rows only; what a row is stands in `rules.verdicts.rule`. A new one is a row here, its runbook section, and its tests.
"""

from __future__ import annotations

from rules.catalogue.templates import band
from rules.methods.availability import judge_cascade
from rules.methods.events import judge_event_ratio
from rules.verdicts.rule import Condition, Rule, Scope, Severity, Threshold

MEMORY_ROWS: tuple[Rule, ...] = (
    Rule(
        name="KvEviction",
        method=judge_event_ratio,
        scope=Scope.TIER,
        loudness=Severity.TICKET,
        window_seconds=300,
        minimum_seconds=60,
        thresholds={
            "warning": Threshold(
                value=0.05, unit="ratio", source="guide 9.3: 5-20 % warning (per request: DESIGN 3.8)"
            ),
            "critical": Threshold(
                value=0.20, unit="ratio", source="guide 9.3: above 20 % degraded (per request: DESIGN 3.8)"
            ),
            "minimum_requests": Threshold(
                value=20, unit="requests", source="one preemption of fewer exceeds 5 % by itself"
            ),
        },
        signal="eviction_rate",
        unit="ratio",
        family="preemptions",
        metric="requests_finished",
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
        method=judge_cascade,
        per_scrape=True,
        scope=Scope.REPLICA,
        loudness=Severity.PAGE,
        window_seconds=0,
        minimum_seconds=0,
        thresholds={
            "filling_level": Threshold(value=0.6, unit="ratio", source="DESIGN 3.9: above a level of about 0.6"),
            "pressed_level": Threshold(
                value=0.85,
                unit="ratio",
                source="measured on vLLM 0.32: evictions in a cascade free blocks, the level swings between 0.82 and 1",
            ),
            "full_level": Threshold(value=0.9, unit="ratio", source="guide 9.3: the healthy band ends at 90 %"),
            "growth_share": Threshold(
                value=0.1,
                unit="ratio",
                source="measured on vLLM 0.32: a healthy full batch fluctuates by 7 % in 15 s, the slowest cascade grew by 17 %",
            ),
            "eviction_rate": Threshold(value=0.05, unit="ratio", source="guide 9.3: 5 %"),
            "waiting_share_of_slo": Threshold(
                value=0.5, unit="ratio", source="half of the TTFT objective spent in the queue"
            ),
            "slow_share": Threshold(value=0.01, unit="ratio", source="a P99 allows 1 % (DESIGN 3.3)"),
            "hold_seconds": Threshold(
                value=9, unit="seconds", source="two scrapes at 5 s, one at 15 s, less their jitter"
            ),
            "look_back_seconds": Threshold(
                value=15, unit="seconds", source="one default scrape interval, three at 5 s; at least two intervals"
            ),
            "calm_seconds": Threshold(value=15, unit="seconds", source="one default scrape interval without pressure"),
            "ttft_slo_seconds": Threshold(
                value=2.0, unit="seconds", source="guide 8.3's objective, where the plan has none"
            ),
        },
        signal="kv_utilization",
        unit="ratio",
        title="KV cache memory-pressure cascade",
        meaning="The KV cache fills faster than requests leave, evictions and a queue follow, users wait: a memory problem "
        "that looks like a latency problem (guide 7.4). Stages: 1 filling, 2 evicting, 3 queueing, 4 user-visible.",
        actions=(
            "Shed or reroute load now: requests beyond the cache only wait for their own eviction",
            "Lower the number of requests at once (--max-num-seqs) so that those inside can finish",
            "Add replicas or use an FP8 KV cache (guide 7.5) before the next peak",
            "Never lower --gpu-memory-utilization for this: it shrinks the cache",
        ),
    ),
)


CACHE_ROWS: tuple[Rule, ...] = (
    band(
        "KvCacheNearCeiling",
        loudness=Severity.TICKET,
        thresholds={
            "above": Threshold(
                value=0.90, unit="ratio", source="guide 9.3: 75-90 % is healthy, near 100 % is the ceiling"
            )
        },
        signal="kv_utilization",
        about="KV cache in use",
        title="KV cache near its ceiling",
        meaning="The KV cache is nearly full all the time: any burst, or one long prompt, begins to evict.",
        actions=(
            "Use an FP8 KV cache (guide 7.5): it doubles what fits",
            "Add replicas before the next peak, or offload cold blocks for long-context batch work",
            "Never lower --gpu-memory-utilization for this: it shrinks the cache",
        ),
    ),
    band(
        "KvResidencyShort",
        loudness=Severity.REPORT,
        thresholds={
            "below": Threshold(
                value=10,
                unit="seconds",
                source="guide 7.7 names short residency without a number; a turn of a conversation comes back later than this",
            ),
            "minimum_requests": Threshold(
                value=20, unit="blocks", source="1 % of blocks is sampled: fewer say nothing"
            ),
        },
        signal="kv_residency_p50_seconds",
        unit="seconds",
        about="Half of the KV blocks are evicted within",
        title="KV blocks evicted young",
        meaning="Blocks are computed, cached briefly, evicted and computed again: the cache churns.",
        actions=(
            "Enlarge the cache: FP8 KV cache, more memory for it, or more replicas",
            "Protect prefixes that come back often with frequency-based eviction where the engine offers it",
        ),
    ),
    band(
        "KvTransferSlow",
        loudness=Severity.TICKET,
        thresholds={
            "above": Threshold(
                value=0.5,
                unit="seconds",
                source="guide 7.7 names rising transfer latency without a number; a quarter of its 2 s TTFT objective",
            ),
            "minimum_requests": Threshold(value=100, unit="transfers", source="1 % of fewer is less than one transfer"),
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
    band(
        "PrefixHitLow",
        loudness=Severity.TICKET,
        thresholds={
            "below": Threshold(
                value=0.30, unit="ratio", source="guide 9.3: below 30 % on a workload with known prefix reuse"
            ),
            "minimum_requests": Threshold(
                value=10_000, unit="tokens", source="some tens of prompts of the shortest kind"
            ),
        },
        signal="prefix_hit_ratio",
        family="prefix_hit_ratio",
        needs="workload.prefix_hit_ratio",
        condition=Condition.SERVING,
        about="Prompt tokens found in the prefix cache",
        title="Prefix cache hit rate low",
        meaning="The plan knows that prompts share prefixes, and the cache does not find them: routing sends them astray, or the "
        "cache is too small.",
        actions=(
            "Check that prefix caching is on and that requests of one prefix reach one replica",
            "Compare the replicas' own hit rates: all low at once is routing or prompts, one alone is that replica",
            "Enlarge the cache if blocks are evicted before they come back (KvEviction, KvResidencyShort)",
        ),
    ),
    band(
        "SpeculationAcceptanceLow",
        loudness=Severity.TICKET,
        thresholds={
            "below": Threshold(value=0.60, unit="ratio", source="guide 9.3: above 60 % (per token: DESIGN 3.7)"),
            "critical_below": Threshold(
                value=0.50, unit="ratio", source="guide 9.3: below 50 % it adds overhead without benefit (per token)"
            ),
            "minimum_requests": Threshold(value=200, unit="rounds", source="so many rounds make an acceptance"),
        },
        signal="speculative_acceptance",
        condition=Condition.SERVING,
        about="Drafted tokens accepted, of those tried,",
        title="Speculative acceptance low",
        meaning="The draft model no longer guesses what the target model says: rounds are spent on tokens that are thrown away.",
        actions=(
            "Compare traffic with what the draft model was chosen for; shorten the draft (fewer tokens a round) first",
            "Switch speculation off where it stays below the critical limit: it costs more than it yields",
            "See SpeculationUneconomic for what it is worth at the present batch",
        ),
    ),
)

ROWS: tuple[Rule, ...] = (*MEMORY_ROWS, *CACHE_ROWS)
