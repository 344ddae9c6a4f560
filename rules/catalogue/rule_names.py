"""The names of all rules, in the order of answers and of the runbook: `alertname`s and headings, a public contract.

Owns the names only; a rule's row is in `rules.catalogue`. A name that has no row yet is reserved.
"""

from __future__ import annotations

NAMES: tuple[str, ...] = (
    *("TtftDivergence", "TpotDivergence", "ItlDivergence", "GpuUtilizationShortfall", "PrefixHitDivergence"),
    *("EvictionDivergence", "LoadBeyondBenchmark", "WorkloadDrift", "BenchmarkNotRepresentative"),
    *("GpuMemoryLow", "GpuMemoryHigh", "KvCacheNearCeiling", "KvCacheUnderused", "KvEviction", "KvCacheCascade"),
    *("KvResidencyShort", "KvTransferSlow", "GpuComputeLow", "GpuSaturated", "UtilizationTrap", "NoHeadroom"),
    *("TokensPerGpuHourFalling", "QueueGrowing", "QueueAlwaysEmpty", "PastTheKnee", "TtftSloBurn", "TpotSloBurn"),
    *("AvailabilityBurn", "RequestsRefused"),
    *("TtftTail", "TpotTail", "PrefixHitLow", "PrefixRoutingBroken", "AdapterCachePressure"),
    *("SpeculationAcceptanceLow", "SpeculationUneconomic", "MixedTierLoadBalancing", "QuantizationMismatch"),
    *("ColdStartLate", "GuardrailMissing", "OutputLengthDrift", "RunawayGeneration", "QueueBreakerOff", "PdRatioOff"),
    "ExpertImbalance",
    *("GpuXid", "GpuThrottling", "GpuEccErrors", "TierDown", "TargetDown", "TelemetryStale", "UnknownTooLong"),
    *("AgentDown", "ForecastDegraded", "DemandExceedsCapacity"),
)
