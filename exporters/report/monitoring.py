"""Plan against production: every row of the guide's monitoring table (9.3) over the report's period.

Each row of ROWS has a signal, a target and rules. Its verdict is the rule result over the period, else the findings of
its rules in the history. Thresholds come from the catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from exporters.render.text import describe_gap, format_duration
from exporters.report.data_quality import NEARLY
from exporters.report.findings import total_duration
from exporters.report.inputs import TierPast
from exporters.report.records import MonitoredValue, ReportNumber, RuleOutcome, row_from
from exporters.report.wording import as_number
from exporters.status.plan_comparison import worst_result
from rules.catalogue.registry import BY_NAME as RULES
from rules.confidence import Certainty
from rules.methods.burn_rate import allowed_to_fail
from rules.plan.load_bins import TierContext
from rules.resize.production_summary import merge_bins
from rules.telemetry.gpu_windows import gpu_utilization
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Gap, Missing, SignalKind, SignalValue
from rules.telemetry.windows import Window
from rules.telemetry.wording import number
from rules.verdicts.finding import Finding, UnknownSpan
from rules.verdicts.verdict import FIRING, SEVERITY, Unknown, Verdict

NOT_SEEN = Missing(gap=Gap.SCRAPE_FAILED, text="no hour of this time is in the history")


NO_SLO = "no SLO in the plan"

HOLDS_NOTHING = frozenset({Gap.NOT_IN_PLAN, Gap.NOT_EXPOSED, Gap.OUTSIDE_BENCHMARK})
"""Gaps of a rule that say nothing of a row which another rule judged (DESIGN 3.23)."""

UNJUDGED = RuleOutcome(rule="", title="", status="not_judged", certainty="", sentence="no rule judges it")


@dataclass(frozen=True, slots=True)
class TargetRange:
    """TargetRange of a row in words, and its ends in the row's unit (None: open, or no number)."""

    text: str
    low: float | None = None
    high: float | None = None

    def is_met(self, observed: ReportNumber) -> bool | None:
        """Return whether the observed value lies inside, to a tenth of a percent. None if that is not known."""
        value = observed.value
        if value is None or self.low is self.high is None:
            return None
        value = round(value, 3)
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoringRow:
    """Row of the table: signal, target and rules."""

    key: str
    title: str
    unit: str
    target: Callable[[TierContext], TargetRange]
    rules: tuple[str, ...]


def monitoring_rows(past: TierPast) -> tuple[MonitoredValue, ...]:
    return tuple(_watched(row, past) for row in ROWS)


def _watched(row: MonitoringRow, past: TierPast) -> MonitoredValue:
    seen = past.resize.seen
    observed, before = (_read(row.key, window, seen.context) for window in (seen.total, past.before))
    if row.key == "fleet_utilization" and seen.total is not None:
        # Use the hours under the present plan, as in the rest of the report.
        observed = past.resize.utilization
    elif seen.total is not None and BY_NAME[row.key].how is SignalKind.QUANTILE:
        observed = merge_bins(seen, row.key, seen.total)
    judged = judge_row(row.rules, past)
    if isinstance(observed, Missing) and (not judged.rule or judged.status == "unknown"):
        # An unmeasured signal never fires, but it is not healthy.
        judged = _judged("", "unknown", "", observed.text or observed.gap.value.replace("_", " "))
    target = row.target(seen.context)
    if target.text == NO_SLO and not judged.rule and judged.status == "ok":
        judged = replace(UNJUDGED, sentence="not judged without an SLO")
    return row_from(
        MonitoredValue,
        row,
        target=target.text,
        observed=as_number(observed),
        meets_target=target.is_met(as_number(observed)),
        before=as_number(before),
        change=_change(row.key, as_number(observed), as_number(before)),
        status=judged.status,
        certainty=judged.certainty,
        sentence=judged.sentence,
    )


def _read(key: str, window: Window | None, context: TierContext) -> SignalValue:
    if window is None:
        return NOT_SEEN
    kind = context.curve.written.gpu_utilization_kind if context.curve else None
    if key == "gpu_utilization" and kind:
        return gpu_utilization(window, kind)
    return read(BY_NAME[key], window, context.basis)


def _change(key: str, observed: ReportNumber, before: ReportNumber) -> float | None:
    """Return the change as a share of the earlier value, None if unknown: quantile bounds may overlap."""
    if observed.value is None or not before.value:
        return None
    if BY_NAME[key].how is SignalKind.QUANTILE and _overlap(observed, before):
        return None
    return observed.value / before.value - 1


def _overlap(reading: ReportNumber, report: ReportNumber) -> bool:
    ends = [(a.low or 0.0, b.high) for a, b in ((reading, report), (report, reading))]
    return all(high is None or low < high for low, high in ends)


def judge_row(rules: Iterable[str], past: TierPast) -> RuleOutcome:
    """Return the worst result of these rules: over the whole period, else in its findings."""
    names = tuple(rules)
    answered = worst_result(tuple(a for a in past.results if a.rule in names and a.subject.replica is None))
    fired = [finding for finding in past.findings if finding.rule in names]
    loudest = max(fired, key=lambda finding: SEVERITY[finding.worst.status], default=None)
    if isinstance(answered, Verdict) and (
        loudest is None or SEVERITY[answered.status] >= SEVERITY[loudest.worst.status]
    ):
        sure = answered.certainty.value if answered.status in FIRING else ""
        return _judged(answered.rule, answered.status.value, sure, answered.sentence_with_suspect())
    if loudest is not None:
        return _fired(loudest, fired, past)
    unknown: list[Unknown | UnknownSpan] = [a for a in past.results if isinstance(a, Unknown) and a.rule in names]
    unknown += _silent(names, past)
    if {span.rule for span in unknown} < set(names):
        unknown = [span for span in unknown if span.reason not in HOLDS_NOTHING]
    reason = unknown[-1] if unknown else None
    if past.resize.seen.total is None or not past.resize.seen.hours:
        return _judged("", "unknown", "", NOT_SEEN.text)
    if reason is not None:
        return _judged(reason.rule, "unknown", "", describe_gap(reason.reason, reason.text))
    return _judged("", "ok", "", "nothing was found in this time") if names else UNJUDGED


def _silent(names: tuple[str, ...], past: TierPast) -> list[UnknownSpan]:
    """Return the unknown spans of the rules that were not judged for more than the time that counts as nearly none."""
    seen = past.resize.seen
    shortest = (1 - NEARLY) * (seen.until - seen.since)
    by_rule = ([unknown for unknown in past.unknowns if unknown.rule == name] for name in names)
    return [span for spans in by_rule if total_duration(spans, seen.since, seen.until) > shortest for span in spans]


def _fired(loudest: Finding, fired: list[Finding], past: TierPast) -> RuleOutcome:
    seen = past.resize.seen
    seconds = total_duration(fired, seen.since, seen.until)
    times = {1: "once", 2: "twice"}.get(len(fired), f"{len(fired):,} times")
    lasting = ", not over" if any(finding.ended_at is None for finding in fired) else ""
    text = f"fired {times}, {format_duration(seconds)} in all{lasting}; at its worst: {loudest.worst.sentence_with_suspect()}"
    sure = loudest.worst.certainty
    return _judged(loudest.rule, loudest.worst.status.value, Certainty(sure).value, text)


def _judged(rule: str, status: str, certainty: str, sentence: str) -> RuleOutcome:
    title = RULES[rule].title if rule in RULES else rule
    return RuleOutcome(rule=rule, title=title, status=status, certainty=certainty, sentence=sentence)


def _words(text: str, low: float | None = None, high: float | None = None) -> Callable[[TierContext], TargetRange]:
    return lambda _: TargetRange(text, low, high)


def _slo(name: str, unit: str = "seconds") -> Callable[[TierContext], TargetRange]:
    def target(context: TierContext) -> TargetRange:
        limit = getattr(context.plan.slo, name) if context.plan else None
        return TargetRange(f"SLO {number(limit, unit)}", high=limit) if limit is not None else TargetRange(NO_SLO)

    return target


Limit = tuple[str, str]
"""Rule and threshold of the catalogue, which a tier may override."""


def _limits(text: str, low: Limit | None = None, high: Limit | None = None) -> Callable[[TierContext], TargetRange]:
    """Return a target by limits of the catalogue, which `text` has in percent, the low one first."""

    def target(context: TierContext) -> TargetRange:
        ends = [RULES[limit[0]].limit(limit[1], context.limits) if limit else None for limit in (low, high)]
        return TargetRange(text.format(*(f"{end * 100:.3g}" for end in ends if end is not None)), *ends)

    return target


def _failures(context: TierContext) -> TargetRange:
    allowed, of_plan = allowed_to_fail(context, RULES["AvailabilityBurn"])
    return TargetRange(f"at most {number(allowed, 'ratio')}{'' if of_plan else ' (the default)'}", high=allowed)


def _usable(context: TierContext) -> TargetRange:
    fleet, capacity = context.plan.fleet if context.plan else None, context.capacity
    if capacity is None or fleet is None:
        return TargetRange("not in the plan")
    most = capacity.rps * fleet.instances
    text = f"up to {number(most, 'per_second')} ({fleet.instances} replicas at "
    return TargetRange(f"{text}{number(capacity.rps, 'per_second')})", high=most)


def _hits(context: TierContext) -> TargetRange:
    ratio = context.plan.workload.prefix_hit_ratio if context.plan and context.plan.workload else None
    return TargetRange(f"planned {number(ratio, 'ratio')}" if ratio is not None else "depends on the workload")


def _adapters(context: TierContext) -> TargetRange:
    most = context.plan.lora.max_adapters if context.plan and context.plan.lora else None
    return TargetRange("not in the plan" if most is None else f"up to {most} (max_adapters)", high=most)


def _energy(context: TierContext) -> TargetRange:
    planned = context.plan.cost.joules_per_generated_token if context.plan and context.plan.cost else None
    return TargetRange("not planned" if planned is None else f"planned {number(planned, 'joules_per_token')}")


def _row(key: str, title: str, unit: str, target: Callable[[TierContext], TargetRange], *rules: str) -> MonitoringRow:
    return MonitoringRow(key=key, title=title, unit=unit, target=target, rules=rules)


ROWS: tuple[MonitoringRow, ...] = (
    _row("gpu_memory_utilization", "GPU memory", "ratio", _words("80-90 %", 0.8, 0.9), "GpuMemoryLow", "GpuMemoryHigh"),
    _row(
        "gpu_utilization",
        "GPU compute",
        "ratio",
        _limits("{}-{} % while serving", ("GpuComputeLow", "below"), ("GpuSaturated", "target")),
        "GpuComputeLow",
        "GpuSaturated",
        "GpuUtilizationShortfall",
    ),
    _row("adapters_active", "Active adapters (LoRA)", "", _adapters, "AdapterCachePressure"),
    _row(
        "adapter_evictions_per_second",
        "Adapter evictions",
        "events_per_second",
        _words("near zero"),
        "AdapterCachePressure",
    ),
    _row(
        "kv_utilization",
        "KV cache in use, on average",
        "ratio",
        _limits("{}-{} %", ("KvCacheUnderused", "below"), ("KvCacheNearCeiling", "above")),
        "KvCacheCascade",
        "KvCacheNearCeiling",
        "KvCacheUnderused",
    ),
    _row(
        "eviction_rate",
        "KV evictions a request",
        "ratio",
        _limits("below {} %", high=("KvEviction", "warning")),
        "KvEviction",
        "EvictionDivergence",
    ),
    _row(
        "evictions_per_running_request_per_second",
        "KV evictions an active request and second",
        "events_per_second",
        _words("below 0.05 a second", high=0.05),
    ),
    _row(
        "fleet_utilization",
        "Fleet utilisation, on average",
        "ratio",
        _limits("{}-{} %", ("UtilizationTrap", "target"), ("NoHeadroom", "target")),
        "UtilizationTrap",
        "NoHeadroom",
    ),
    _row(
        "prefix_hit_ratio",
        "Prefix cache hits",
        "ratio",
        _hits,
        "PrefixHitLow",
        "PrefixHitDivergence",
        "PrefixRoutingBroken",
    ),
    _row("prefix_reuse_ratio", "Prefill avoided by reuse", "ratio", _words("as much as the prompts share")),
    _row("kv_transfer_p99_seconds", "KV transfer P99", "seconds", _words("not rising"), "KvTransferSlow"),
    _row("kv_offload_load_mean_seconds", "KV offload: mean load", "seconds", _words("not rising")),
    _row("kv_offload_store_mean_seconds", "KV offload: mean store", "seconds", _words("not rising")),
    _row("gpu_pcie_tx_bytes_per_second", "PCIe from a GPU", "bytes_per_second", _words("below the link's rate")),
    _row("gpu_pcie_rx_bytes_per_second", "PCIe to a GPU", "bytes_per_second", _words("below the link's rate")),
    _row("gpu_nvlink_tx_bytes_per_second", "NVLink from a GPU", "bytes_per_second", _words("below the link's rate")),
    _row("gpu_nvlink_rx_bytes_per_second", "NVLink to a GPU", "bytes_per_second", _words("below the link's rate")),
    _row("ttft_p50_seconds", "TTFT P50", "seconds", _words("within the SLO")),
    _row("ttft_p99_seconds", "TTFT P99", "seconds", _slo("ttft_p99_seconds"), "TtftDivergence", "TtftSloBurn"),
    _row("tpot_p50_seconds", "TPOT P50", "seconds", _words("within the SLO")),
    _row("tpot_p99_seconds", "TPOT P99", "seconds", _slo("tpot_p99_seconds"), "TpotDivergence", "TpotSloBurn"),
    _row("itl_p50_seconds", "ITL P50", "seconds", _words("within the SLO")),
    _row("itl_p99_seconds", "ITL P99", "seconds", _slo("itl_p99_seconds"), "ItlDivergence", "ItlSloBurn"),
    _row("e2e_p99_seconds", "E2E P99", "seconds", _slo("e2e_p99_seconds"), "E2eSloBurn"),
    _row("requests_waiting", "Queue depth", "", _words("near zero"), "QueueGrowing", "QueueAlwaysEmpty"),
    _row(
        "tokens_per_gpu_hour",
        "Tokens per GPU-hour",
        "tokens_per_hour",
        _words("as many as possible"),
        "TokensPerGpuHourFalling",
    ),
    _row(
        "speculative_acceptance",
        "Speculation: acceptance",
        "ratio",
        _limits("above {} %", ("SpeculationAcceptanceLow", "below")),
        "SpeculationAcceptanceLow",
    ),
    _row("failed_share", "Failed requests", "ratio", _failures, "AvailabilityBurn"),
    _row("refused_share", "Refused requests", "ratio", _words("none for want of room"), "RequestsRefused"),
    _row("completed_rps", "Completed requests", "per_second", _usable, "LoadBeyondBenchmark"),
    _row("energy_per_generated_token", "Energy per generated token", "joules_per_token", _energy),
    _row("cost_per_million_tokens", "Cost per million tokens", "money", _words("as planned, see step 12")),
)
"""Rows in the order of the guide's tables 9.3 and, from reuse to NVLink, 7.7. E2E and the last five are not in them."""
