"""The catalogue: one row a rule. The only place where a threshold stands; the rows are in `rules.catalogue` by subject.

A row says what is judged, how, against what, how long it must hold, how loud it is, what it means and what to do. The way
of judging is named by `Way` and lives in `rules.evaluator.judgements` or `rules.methods.availability`. A rule's name is its
`alertname` and its runbook heading: a public contract. The order is that of answers and of the runbook.

NAMES holds the names in that order. A name that has no row yet is reserved.
"""

from __future__ import annotations

from collections.abc import Mapping

from rules.catalogue import benchmark, configuration, errors, fleet, hardware, latency, memory, routing, workload
from rules.plan.replica_count import NO_OVERRIDES, Margin, margin_from_rule
from rules.verdicts.rule import Rule

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


SUBJECTS = (benchmark, configuration, errors, fleet, hardware, latency, memory, routing, workload)
"""The modules that hold the rows."""

RULES: tuple[Rule, ...] = tuple(
    sorted((row for subject in SUBJECTS for row in subject.ROWS), key=lambda row: NAMES.index(row.name))
)

BY_NAME = {rule.name: rule for rule in RULES}


def margin_of(overrides: Mapping[str, Mapping[str, float]] = NO_OVERRIDES) -> Margin:
    """Return the margin that counts of replicas keep: NoHeadroom's own limits, or the overrides of a tier."""
    return margin_from_rule(BY_NAME["NoHeadroom"], overrides)
