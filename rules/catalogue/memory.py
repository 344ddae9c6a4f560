"""The catalogue's rows about the KV cache and its pressure (guide 7.4, 9.3), with all their thresholds.

Owns these rows only; what a row is stands in `rules.verdicts.rule`. A new one is a row here, its runbook section, and its tests.
"""

from __future__ import annotations

from rules.verdicts.rule import Rule, Scope, Severity, Threshold, Way

ROWS: tuple[Rule, ...] = (
    Rule(
        name="KvEviction",
        way=Way.EVENT_RATIO,
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
        way=Way.CASCADE,
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
