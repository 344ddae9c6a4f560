"""Tables of the guide over the report's period: plan against production (9.3), and questions with their numbers (8.4).

A row of ROWS has a signal, a target and rules. Its verdict is the rule result over the period, else the findings of its
rules in the history. A number holds for the request lengths that it was measured at.
Add a row of `_compute_numbers`, or a name to QUESTIONS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from exporters.render.text import best, copy_fields, describe_gap
from exporters.report.findings import NEARLY, TierPast, total_duration
from exporters.status.plan_comparison import read_comparable, worst_result
from rules.catalogue.registry import BY_NAME as RULES
from rules.methods.burn_rate import allowed_to_fail
from rules.plan.curve import operating_point
from rules.plan.load_bins import TierContext
from rules.plan.money import amount
from rules.resize.production_summary import merge_bins
from rules.sizing import littles_ceiling_rps
from rules.telemetry import histograms
from rules.telemetry.derived import PlanFacts
from rules.telemetry.reading_methods import replica_rate
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading, SignalKind, SignalValue
from rules.telemetry.windows import Window, group_by
from rules.telemetry.wording import format_count, format_duration, number, quantity
from rules.verdicts.context import read_plan_value
from rules.verdicts.verdict import FIRING, SEVERITY, Status, Unknown, UnknownSpan, Verdict

NOTHING_KEPT = "no hour of this time is in the history"
NOT_SEEN: SignalValue = Missing(gap=Gap.SCRAPE_FAILED, text=NOTHING_KEPT)

NO_SLO, WITHIN = "no SLO", "within the SLO"

HOLDS_NOTHING = frozenset({Gap.NOT_IN_PLAN, Gap.NOT_EXPOSED, Gap.OUTSIDE_BENCHMARK})
"""Gaps that say nothing of a row which another rule judged (DESIGN 3.23)."""


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """Rule result over the period."""

    rule: str
    status: str
    certainty: str
    sentence: str


UNJUDGED = RuleOutcome("", "not_judged", "", "no rule judges it")


@dataclass(frozen=True, slots=True)
class TargetRange:
    """Target of a row in words, and its ends in the row's unit (None: open, or no number)."""

    text: str
    low: float | None = None
    high: float | None = None

    def is_met(self, observed: SignalValue) -> bool | None:
        """Return whether the observed value lies inside, to a tenth of a percent. None if that is not known."""
        if isinstance(observed, Missing) or observed.value is None or self.low is self.high is None:
            return None
        value = round(observed.value, 3)
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoredValue:
    """Row of the monitoring table (guide 9.3). `change` is observed by previous, less 1 (None: not comparable).

    `meets_target` is None where the target has no numbers, or nothing was observed. Outside of it a row is not ok, even
    if no rule found anything (DESIGN 3.23).
    """

    key: str
    title: str
    unit: str
    target: TargetRange
    rules: tuple[str, ...]
    observed: SignalValue
    meets_target: bool | None
    before: SignalValue
    change: float | None
    status: str
    certainty: str
    sentence: str


def monitoring_rows(past: TierPast) -> tuple[MonitoredValue, ...]:
    context = past.resize.seen.context
    return tuple(_monitor(key, title, target(context), rules, past) for key, title, target, rules in ROWS)


def _monitor(key: str, title: str, target: TargetRange, rules: str, past: TierPast) -> MonitoredValue:
    seen, names = past.resize.seen, tuple(rules.split())
    observed = before = NOT_SEEN
    if seen.total is not None:
        observed = read_comparable(key, seen.total, seen.context)
    if past.before is not None:
        before = read_comparable(key, past.before, seen.context)
    if key == "fleet_utilization" and seen.total is not None:
        # Use the hours under the present plan, as in the rest of the report.
        observed = past.resize.utilization
    elif seen.total is not None and BY_NAME[key].how is SignalKind.QUANTILE:
        observed = merge_bins(seen, key, seen.total)
    judged = judge_row(names, past)
    if isinstance(observed, Missing) and (not judged.rule or judged.status == "unknown"):
        # An unmeasured signal never fires, but it is not healthy.
        judged = RuleOutcome("", "unknown", "", observed.text or observed.gap.value.replace("_", " "))
    if target.text == NO_SLO and not judged.rule and judged.status == "ok":
        judged = replace(UNJUDGED, sentence="not judged without an SLO")
    unit = BY_NAME[key].unit
    return MonitoredValue(
        key=key,
        title=title,
        unit="" if unit in ("adapters", "requests") else unit,
        target=target,
        rules=names,
        observed=observed,
        meets_target=target.is_met(observed),
        before=before,
        change=_change(key, observed, before),
        **copy_fields(judged, "status", "certainty", "sentence"),
    )


def _change(key: str, observed: SignalValue, before: SignalValue) -> float | None:
    """Return the change as a share of the earlier value, None if unknown: quantile bounds may overlap."""
    if isinstance(observed, Missing) or isinstance(before, Missing) or observed.value is None or not before.value:
        return None
    if BY_NAME[key].how is SignalKind.QUANTILE:
        ends = [(a.low or 0.0, b.high) for a, b in ((observed, before), (before, observed))]
        if all(high is None or low < high for low, high in ends):
            return None
    return observed.value / before.value - 1


def judge_row(rules: Iterable[str], past: TierPast) -> RuleOutcome:
    """Return the worst result of these rules: over the whole period, else in its findings."""
    names, seen = frozenset(rules), past.resize.seen
    results = [result for result in past.results if result.rule in names]
    answered = worst_result(result for result in results if result.subject.replica is None)
    fired = [finding for finding in past.findings if finding.rule in names]
    loudest = max(fired, key=lambda finding: SEVERITY[finding.worst.status], default=None)
    loudness = max((SEVERITY[finding.worst.status] for finding in fired), default=0)
    if isinstance(answered, Verdict) and SEVERITY[answered.status] >= loudness:
        sure = answered.certainty.value if answered.status in FIRING else ""
        return RuleOutcome(answered.rule, answered.status.value, sure, answered.sentence_with_suspect())
    if loudest is not None:
        times = {1: "once", 2: "twice"}.get(len(fired), f"{len(fired):,} times")
        lasting = ", not over" if any(finding.ended_at is None for finding in fired) else ""
        text = f"fired {times}, {format_duration(total_duration(fired, seen))} in all{lasting}; at its worst: "
        text += loudest.worst.sentence_with_suspect()
        return RuleOutcome(loudest.rule, loudest.worst.status.value, loudest.worst.certainty.value, text)
    if seen.total is None or not seen.hours:
        return RuleOutcome("", "unknown", "", NOTHING_KEPT)
    unknown: list[Unknown | UnknownSpan] = [result for result in results if isinstance(result, Unknown)]
    for spans in group_by((span for span in past.unknowns if span.rule in names), lambda span: span.rule).values():
        # Less than that counts as nearly none.
        if total_duration(spans, seen) > (1 - NEARLY) * (seen.until - seen.since):
            unknown += spans
    if {span.rule for span in unknown} < names:
        unknown = [span for span in unknown if span.reason not in HOLDS_NOTHING]
    if unknown:
        return RuleOutcome(unknown[-1].rule, "unknown", "", describe_gap(unknown[-1].reason, unknown[-1].text))
    return RuleOutcome("", "ok", "", "nothing was found in this time") if names else UNJUDGED


Target = Callable[[TierContext], TargetRange]

End = float | str | None
"""End of a target: a number, or "Rule.threshold" of the catalogue, which a tier may override. None is open."""


def _target(form: str, low: End = None, high: End = None) -> Target:
    def target(context: TierContext) -> TargetRange:
        ends = [_end(end, context) for end in (low, high)]
        return TargetRange(form.format(*(f"{end * 100:.3g}" for end in ends if end is not None)), *ends)

    return target


def _end(end: End, context: TierContext) -> float | None:
    if not isinstance(end, str):
        return end
    rule, _, threshold = end.partition(".")
    return RULES[rule].limit(threshold, context.limits)


def _planned(form: str, path: str, unit: str, without: str, is_limit: bool = True) -> Target:
    def target(context: TierContext) -> TargetRange:
        value = read_plan_value(context, path)
        if value is None:
            return TargetRange(without)
        return TargetRange(form.format(number(value, unit)), high=value if is_limit else None)

    return target


def _slo(name: str, form: str = "SLO {}") -> Target:
    return _planned(form, f"slo.{name}", "seconds", NO_SLO)


def _failures(context: TierContext) -> TargetRange:
    allowed, of_plan = allowed_to_fail(context, RULES["AvailabilityBurn"])
    return TargetRange(f"at most {number(allowed, 'ratio')}{'' if of_plan else ', the default'}", high=allowed)


def _usable(context: TierContext) -> TargetRange:
    fleet, capacity = context.plan.fleet if context.plan else None, context.capacity
    if capacity is None or fleet is None:
        return TargetRange("not in the plan")
    most = capacity.rps * fleet.instances
    text = f"up to {number(most, 'per_second')}, {format_count(fleet.instances, 'replica')} at {number(capacity.rps, 'per_second')}"
    return TargetRange(text, high=most)


_BUSY = _target("{}-{} % while serving", "GpuComputeLow.below", "GpuSaturated.target")
_KV = _target("{}-{} %", "KvCacheUnderused.below", "KvCacheNearCeiling.above")
_EVICTED = _target("below {} %", high="KvEviction.warning")
_EVICTED_NOW = _target("below 0.05 a second", high=0.05)
_ACCEPTED = _target("above {} %", "SpeculationAcceptanceLow.below")
_FLEET = _target("{}-{} %", "UtilizationTrap.target", "NoHeadroom.target")
_HITS = _planned("planned {}", "workload.prefix_hit_ratio", "ratio", "depends on the workload", is_limit=False)
_ADAPTERS = _planned("up to {} (max_adapters)", "lora.max_adapters", "", "not in the plan")
_ENERGY = _planned("planned {}", "cost.joules_per_generated_token", "joules_per_token", "", is_limit=False)
_STEADY, _LINK, _ZERO = map(_target, ("not rising", "below the link's rate", "near zero"))

ROWS: tuple[tuple[str, str, Target, str], ...] = (
    ("gpu_memory_utilization", "GPU memory", _target("{}-{} %", 0.8, 0.9), "GpuMemoryLow GpuMemoryHigh"),
    ("gpu_utilization", "GPU compute", _BUSY, "GpuComputeLow GpuSaturated GpuUtilizationShortfall"),
    ("adapters_active", "Active adapters (LoRA)", _ADAPTERS, "AdapterCachePressure"),
    ("adapter_evictions_per_second", "Adapter evictions", _ZERO, "AdapterCachePressure"),
    ("kv_utilization", "KV cache in use, on average", _KV, "KvCacheCascade KvCacheNearCeiling KvCacheUnderused"),
    ("eviction_rate", "KV evictions a request", _EVICTED, "KvEviction EvictionDivergence"),
    ("evictions_per_running_request_per_second", "KV evictions an active request", _EVICTED_NOW, ""),
    ("fleet_utilization", "Fleet utilisation, on average", _FLEET, "UtilizationTrap NoHeadroom"),
    ("prefix_hit_ratio", "Prefix cache hits", _HITS, "PrefixHitLow PrefixHitDivergence PrefixRoutingBroken"),
    ("prefix_reuse_ratio", "Prefill avoided by reuse", _target(""), ""),
    ("kv_transfer_p99_seconds", "KV transfer P99", _STEADY, "KvTransferSlow"),
    ("kv_offload_load_mean_seconds", "KV offload: mean load", _STEADY, ""),
    ("kv_offload_store_mean_seconds", "KV offload: mean store", _STEADY, ""),
    ("gpu_pcie_tx_bytes_per_second", "PCIe from a GPU", _LINK, ""),
    ("gpu_pcie_rx_bytes_per_second", "PCIe to a GPU", _LINK, ""),
    ("gpu_nvlink_tx_bytes_per_second", "NVLink from a GPU", _LINK, ""),
    ("gpu_nvlink_rx_bytes_per_second", "NVLink to a GPU", _LINK, ""),
    ("ttft_p50_seconds", "TTFT P50", _slo("ttft_p99_seconds", WITHIN), ""),
    ("ttft_p99_seconds", "TTFT P99", _slo("ttft_p99_seconds"), "TtftDivergence TtftSloBurn"),
    ("tpot_p50_seconds", "TPOT P50", _slo("tpot_p99_seconds", WITHIN), ""),
    ("tpot_p99_seconds", "TPOT P99", _slo("tpot_p99_seconds"), "TpotDivergence TpotSloBurn"),
    ("itl_p50_seconds", "ITL P50", _slo("itl_p99_seconds", WITHIN), ""),
    ("itl_p99_seconds", "ITL P99", _slo("itl_p99_seconds"), "ItlDivergence ItlSloBurn"),
    ("e2e_p99_seconds", "E2E P99", _slo("e2e_p99_seconds"), "E2eSloBurn"),
    ("requests_waiting", "Queue depth", _ZERO, "QueueGrowing QueueAlwaysEmpty"),
    ("tokens_per_gpu_hour", "Tokens per GPU-hour", _target("as many as possible"), "TokensPerGpuHourFalling"),
    ("speculative_acceptance", "Speculation: acceptance", _ACCEPTED, "SpeculationAcceptanceLow"),
    ("failed_share", "Failed requests", _failures, "AvailabilityBurn"),
    ("refused_share", "Refused requests", _target("none"), "RequestsRefused"),
    ("completed_rps", "Completed requests", _usable, "LoadBeyondBenchmark"),
    ("energy_per_generated_token", "Energy per generated token", _ENERGY, ""),
    ("cost_per_million_tokens", "Cost per million tokens", _target(""), ""),
)
"""Key, title, target and rules, in the order of the guide's tables 9.3 and 7.7."""

KEYS = {"prompts": "prompt_tokens", "outputs": "generation_tokens"}
"""Plan keys by the report's words."""

QUESTIONS: Mapping[str, str] = {
    "efficiency": "Is my hardware being used efficiently? {tokens_per_second_per_gpu} generated a GPU; "
    "MFU {mfu}, MBU {mbu}; tensor pipes {tensor_active}; memory interface {dram_active}",
    "contract": "Am I serving users within my latency contract? TTFT {ttft_by_slo}, TPOT {tpot_by_slo} of the SLO",
    "unit": "How many requests can each replica handle? {usable_rps}; {rps_per_replica} on average",
    "dollar": "What am I getting per dollar of GPU spend? {rps_per_gpu} a GPU; "
    "{cost_per_million_tokens} a million output tokens",
    "useful": "How much of my capacity is doing useful work? fleet utilisation {fleet_utilization} on average; "
    "{concurrency_by_c_max} of C_max",
    "bound": "Is my system bottlenecked on decode or prefill? {prefill_time_ratio} of time in prefill; "
    "{prompt_by_generated_tokens} prompt tokens a generated one",
    "memory": "How efficiently am I using my memory budget? {tokens_per_second_per_gb_hbm} a GB of HBM; "
    "KV cache {kv_utilization} on average; {kv_fullest_hours} in the fullest hours",
    "representative": "Is my benchmark representative of production? "
    "C_max / TTFT SLO is {littles_ceiling_rps}, {littles_law_gap}x usable (guide 8.3: up to 2)",
    "fairly": "How do I compare two configurations fairly? ",
}
"""Questions in the guide's order, each with the words around its numbers."""

MORE_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "efficiency": ("gpu_utilization",),
    "contract": ("completed_rps", "ttft_p99_seconds", "tpot_p99_seconds"),
    "dollar": ("ttft_p99_seconds_per_money_an_hour",),
    "bound": ("ttft_by_slo", "tpot_by_slo"),
    "fairly": ("tokens_per_second_per_gpu",),
}
"""Numbers of report.json alone."""

PLACE = re.compile(r"{(\w+)}")
"""Place of a number in an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Question of the guide's 8.4 with its answer, its numbers by name, and the lengths that they hold for."""

    key: str
    question: str
    answer: str
    numbers: Mapping[str, SignalValue]
    lengths: str


def lengths_words(window: Window | None, basis: PlanFacts) -> str:
    if window is None:
        return "lengths are not known: nothing was seen"
    rows = []
    for what, key in KEYS.items():
        values = []
        for name in ("p50", "p95"):
            reading = read(BY_NAME[f"{key}_{name}"], window, basis)
            if isinstance(reading, Reading):
                values.append(f"{name.upper()} {quantity(reading, 'tokens')}")
        if values:
            rows.append(f"{what} {', '.join(values)}")
    return "at " + "; ".join(rows) if rows else "lengths are not known: compare these numbers with nothing"


def questions(past: TierPast) -> tuple[Question, ...]:
    """Return every question of QUESTIONS. Without data no question has an answer."""
    seen, window = past.resize.seen, past.resize.seen.total
    lengths = lengths_words(window, seen.context.basis)
    computed = _compute_numbers(past, window) if window is not None else {}
    rows = []
    for key, text in QUESTIONS.items():
        question, _, form = text.partition("? ")
        answer, numbers, words = "nothing was seen in this time", dict[str, SignalValue](), dict[str, str]()
        if window is not None:
            for name in (*PLACE.findall(form), *MORE_NUMBERS.get(key, ())):
                unit, value = computed.get(name) or (BY_NAME[name].unit, merge_bins(seen, name, window))
                numbers[name], words[name] = value, _number_words(past, unit, value)
            # Model FLOP and bandwidth utilisation are named where they are missing, too.
            known = {"mfu", "mbu"}.union(name for name, value in numbers.items() if isinstance(value, Reading))
            texts = [_first_words(key, past, numbers)]
            texts += [part.format_map(words) for part in form.split("; ") if known.issuperset(PLACE.findall(part))]
            answer = "; ".join(filter(None, texts)) or "not known"
        rows.append(Question(key=key, question=f"{question}?", answer=answer, numbers=numbers, lengths=lengths))
    return tuple(rows)


def _number_words(past: TierPast, unit: str, value: SignalValue) -> str:
    plan = past.resize.seen.context.plan
    if unit == "money" and isinstance(value, Reading) and plan is not None and plan.cost is not None:
        return amount(value.value or 0.0, plan.cost.currency)
    return best(value, unit)


def _compute_numbers(past: TierPast, window: Window) -> Mapping[str, tuple[str, SignalValue]]:
    resize, context = past.resize, past.resize.seen.context
    plan, basis, gpus = context.plan, context.basis, context.basis.gpus_per_replica
    point = operating_point(plan) if plan else None
    ttft, tpot = (merge_bins(resize.seen, f"{name}_p99_seconds", window) for name in ("ttft", "tpot"))
    requests, generated = (replica_rate(window, name) for name in ("requests_finished", "generation_tokens"))
    ttft_slo, tpot_slo = basis.ttft_slo_seconds, basis.tpot_slo_seconds
    c_max = ceiling = planned_rps = hbm = None
    if plan is not None:
        named = re.search(r"(\d+)\s?GB", plan.gpu.product)
        hbm = float(named[1]) if named else None
    if point is not None and point.c_max is not None:
        c_max, planned_rps = point.c_max, point.usable_rps
        ceiling = littles_ceiling_rps(c_max, ttft_slo) if ttft_slo is not None else None
    installed = _mean(window, "gpu_memory_total_bytes")
    if installed is not None:
        # The GPU exporter measures what the product's name only tells.
        hbm = installed / 1e9
    prefill, decode = (_spent(window, family) for family in ("prefill_seconds", "decode_seconds"))
    usable: SignalValue = Missing(gap=Gap.NOT_IN_PLAN)
    if resize.usable is not None:
        usable = Reading(value=resize.usable.rps, low=resize.usable.low, high=resize.usable.high, n=1.0)
    return {
        "tokens_per_second_per_gpu": ("tokens_per_second", _share(generated, gpus)),
        "rps_per_gpu": ("per_second", _share(requests, gpus)),
        "rps_per_replica": ("per_second", _share(requests, 1.0)),
        "usable_rps": ("per_second", usable),
        "ttft_p99_seconds_per_money_an_hour": ("seconds", _share(_share(ttft, basis.gpu_hour_price), gpus)),
        "fleet_utilization": ("ratio", resize.utilization),
        "concurrency_by_c_max": ("ratio", _share(_mean(window, "requests_running"), c_max)),
        "prefill_time_ratio": ("ratio", _share(prefill, prefill and decode and prefill + decode)),
        "prompt_by_generated_tokens": ("", _share(*map(window.counters.get, ("prompt_tokens", "generation_tokens")))),
        "ttft_by_slo": ("ratio", _share(ttft, ttft_slo)),
        "tpot_by_slo": ("ratio", _share(tpot, tpot_slo)),
        "tokens_per_second_per_gb_hbm": ("tokens_per_second", _share(_share(generated, gpus), hbm)),
        "kv_fullest_hours": ("ratio", _share(resize.kv_fullest, 1.0)),
        "littles_ceiling_rps": ("per_second", _share(ceiling, 1.0)),
        # The guide's ceiling by the usable load has no verdict (DESIGN 3.11).
        "littles_law_gap": ("", _share(ceiling, planned_rps)),
    }


def _share(value: SignalValue | float | None, whole: float | None) -> SignalValue:
    """Return a number by another. What is not known of either is not exposed."""
    if value is None or isinstance(value, Missing) or not whole:
        return Missing(gap=Gap.NOT_EXPOSED)
    if isinstance(value, Reading):
        return value.map(lambda part: part / whole)
    return Reading(value=value / whole, low=value / whole, high=value / whole, n=1.0)


def _mean(window: Window, family: str) -> float | None:
    gauge = window.gauges.get(family)
    return gauge.mean if gauge is not None and gauge.seconds > 0 else None


def _spent(window: Window, family: str) -> float:
    parts = window.histograms.get(family, ())
    return (histograms.mean(parts) or 0.0) * sum(part.n for part in parts)


def _first_words(key: str, past: TierPast, numbers: Mapping[str, SignalValue]) -> str:
    plan = past.resize.seen.context.plan
    if key == "bound":
        return _bottleneck(numbers["ttft_by_slo"], numbers["tpot_by_slo"])
    if key == "representative":
        confirmed = {Status.OK: "yes", Status.WARNING: "no", Status.CRITICAL: "no"}.get(past.step13.status, "not known")
        judged = [judge_row((rule,), past) for rule in ("TtftDivergence", "BenchmarkNotRepresentative")]
        sentences = [row.sentence for row in judged if row.rule and row.status not in FIRING]
        return "; ".join((confirmed, *sentences))
    if key == "fairly" and plan is not None:
        weights = plan.precision.weights if plan.precision else None
        return f"{plan.engine}{f', weights {weights}' if weights else ''}, at these lengths only"
    return ""


def _bottleneck(ttft: SignalValue, tpot: SignalValue) -> str:
    """Return which objective is nearer to its limit, if bounds do not overlap."""
    if not isinstance(ttft, Reading) or not isinstance(tpot, Reading) or ttft.low is None or tpot.low is None:
        return ""
    if tpot.high is not None and ttft.low >= tpot.high:
        return "prefill"
    if ttft.high is not None and tpot.low >= ttft.high:
        return "decode"
    return "not known"
