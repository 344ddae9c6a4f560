"""Thresholds and groups of rules that several subjects share."""

from __future__ import annotations

from collections.abc import Mapping

from rules.plan.curve import CERTAIN_REQUESTS
from rules.thresholds import Threshold

DAY = 86_400.0
WEEK = 7 * DAY
SEEN = 0.9
"""Share of the days that must have been seen: what is missing could be the other half of the story."""

MINIMUM_REQUESTS = Threshold(100, "requests", "1 % of fewer is less than one request")
SUPPORTED_REQUESTS = Threshold(
    CERTAIN_REQUESTS, "requests", "ours: of fewer a P99 is one of the three slowest; then at most `likely`"
)
ALLOWED_SLOW = Threshold(0.01, "ratio", "a P99 allows 1 %")
TTFT_SLO = Threshold(2.0, "seconds", "guide 8.3's objective, where the plan has none")
FULLEST = Threshold(0.95, "ratio", "ours: P95 of the hours; one bad hour of twenty says nothing")
ENOUGH_FOR_P99 = Threshold(100, "requests", "of fewer a P99 is the slowest one or none at all")
LONGER = Threshold(
    1.2,
    "ratio",
    "guide 9.1, step 1 gives no number; the safety factor of well-known traffic, 20 % (step 11), covers no more",
)

BURNS = ("TpotSloBurn", "ItlSloBurn", "TtftSloBurn", "E2eSloBurn")

ONLINE_ONLY = frozenset(
    {
        *("TtftDivergence", "TpotDivergence", "ItlDivergence", "GpuUtilizationShortfall", "PrefixHitDivergence"),
        *("EvictionDivergence", "LoadBeyondBenchmark", "BenchmarkNotRepresentative"),
        *("TtftSloBurn", "NoHeadroom", "DemandExceedsCapacity", "ForecastDegraded"),
        *("QueueGrowing", "GpuSaturated", "KvCacheNearCeiling", "KvCacheCascade", "UtilizationTrap"),
    }
)
"""Rules that are not asked of a batch tier: nobody waits for a first token, and a long queue at the highest concurrency is
what is wanted (guide 1.4). A queue also puts its minutes outside of the curve's loads."""

_LENGTHS = ("WorkloadDrift", "OutputLengthDrift")
_HITS = ("PrefixHitDivergence", "PrefixHitLow")

SUSPECTED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("engine stopped", "client requests", "one replica"), ()),
    "hardware faults": ("GpuEccErrors", "GpuXid", "GpuThrottling"),
    "throttling": ("GpuThrottling",),
    "restarts": ("TierDown", "TargetDown", "ColdStartLate"),
    "routing": ("PrefixRoutingBroken",),
    "cold cache": _HITS,
    "prefix hits": ("PrefixRoutingBroken", *_HITS),
    "prompt lengths": ("WorkloadDrift",),
    "output lengths": _LENGTHS,
    "adapters held back": ("AdapterCachePressure",),
    "adapters": ("AdapterCachePressure",),
    "speculation": ("SpeculationAcceptanceLow",),
    "failed transfers": ("KvTransferFailing", "KvTransferSlow"),
    "more load": ("MixedTierLoadBalancing", "DemandExceedsCapacity", "LoadBeyondBenchmark", "NoHeadroom"),
    "evictions": ("KvCacheNearCeiling", "KvCacheCascade", "KvEviction", "EvictionDivergence"),
    "queueing": ("QueueGrowing",),
    "prefill": (*_LENGTHS, *_HITS),
}
"""Rules that find what a suspected cause of a symptom names. They are the root rather than others that explain it too.
An empty entry: no rule finds it, so the symptom itself is the root if the suspect is certain."""
