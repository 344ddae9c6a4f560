"""Questions of the guide's 8.4 with the numbers that answer them for a tier.

The numbers hold for the request lengths they were measured at. A new number is a row of `_compute_numbers`, or a
signal's name in QUESTIONS.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from exporters.report.inputs import TierPast
from exporters.report.monitoring import judge_row
from exporters.report.wording import best
from rules.plan.money import amount
from rules.resize.production_summary import merge_bins
from rules.sizing import littles_ceiling_rps
from rules.telemetry import histograms
from rules.telemetry.derived import PlanFacts
from rules.telemetry.reading_methods import replica_rate
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading, SignalValue
from rules.telemetry.windows import Window
from rules.telemetry.wording import quantity
from rules.verdicts.verdict import FIRING, Status

GIGA = 1e9

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

NAMED = frozenset({"mfu", "mbu"})
"""Signals that are named where they are missing, too."""

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
    """Return the lengths of a window: medians and P95 of prompts and outputs."""
    if window is None:
        return "lengths are not known: nothing was seen"
    rows = []
    for what, key in (("prompts", "prompt_tokens"), ("outputs", "generation_tokens")):
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
        answer, numbers = "nothing was seen in this time", dict[str, SignalValue]()
        if window is not None:
            for name in (*PLACE.findall(form), *MORE_NUMBERS.get(key, ())):
                numbers[name] = computed[name][1] if name in computed else merge_bins(seen, name, window)
            words = {name: _words(past, computed, name, value) for name, value in numbers.items()}
            known = NAMED.union(name for name, value in numbers.items() if isinstance(value, Reading))
            texts = [_first_words(key, past, numbers)]
            texts += [part.format_map(words) for part in form.split("; ") if known.issuperset(PLACE.findall(part))]
            answer = "; ".join(filter(None, texts)) or "not known"
        rows.append(Question(key=key, question=f"{question}?", answer=answer, numbers=numbers, lengths=lengths))
    return tuple(rows)


def _words(past: TierPast, computed: Mapping[str, tuple[str, SignalValue]], name: str, value: SignalValue) -> str:
    unit, plan = computed[name][0] if name in computed else BY_NAME[name].unit, past.resize.seen.context.plan
    if unit == "money" and isinstance(value, Reading) and plan is not None and plan.cost is not None:
        return amount(value.value or 0.0, plan.cost.currency)
    return best(value, unit)


def _compute_numbers(past: TierPast, window: Window) -> Mapping[str, tuple[str, SignalValue]]:
    """Return the numbers that are no signal, with their unit."""
    resize, context = past.resize, past.resize.seen.context
    plan, gpus = context.plan, context.basis.gpus_per_replica
    point = context.curve.usable(plan.slo) if context.curve and plan else None
    ttft, tpot = (merge_bins(resize.seen, f"{name}_p99_seconds", window) for name in ("ttft", "tpot"))
    requests, generated = (replica_rate(window, name) for name in ("requests_finished", "generation_tokens"))
    c_max = ceiling = planned_rps = hourly = ttft_slo = tpot_slo = hbm = None
    if plan is not None:
        ttft_slo, tpot_slo = plan.slo.ttft_p99_seconds, plan.slo.tpot_p99_seconds
        hourly = plan.cost.gpu_hour_price * plan.gpu.per_replica if plan.cost else None
        named = re.search(r"(\d+)\s?GB", plan.gpu.product)
        hbm = float(named[1]) if named else None
    if point is not None and point.c_max is not None:
        c_max, planned_rps = point.c_max, point.usable_rps
        ceiling = littles_ceiling_rps(c_max, ttft_slo) if ttft_slo is not None else None
    installed = _mean(window, "gpu_memory_total_bytes")
    if installed is not None:
        # The GPU exporter measures what the product's name only tells.
        hbm = installed / GIGA
    prefill, decode = (_spent(window, family) for family in ("prefill_seconds", "decode_seconds"))
    usable: SignalValue = Missing(gap=Gap.NOT_IN_PLAN)
    if resize.usable is not None:
        usable = Reading(value=resize.usable.rps, low=resize.usable.low, high=resize.usable.high, n=1.0)
    return {
        "tokens_per_second_per_gpu": ("tokens_per_second", _share(generated, gpus)),
        "rps_per_gpu": ("per_second", _share(requests, gpus)),
        "rps_per_replica": ("per_second", _share(requests, 1.0)),
        "usable_rps": ("per_second", usable),
        "ttft_p99_seconds_per_money_an_hour": ("seconds", _share(ttft, hourly)),
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
        return value.map(lambda number: number / whole)
    return Reading(value=value / whole, low=value / whole, high=value / whole, n=1.0)


def _mean(window: Window, family: str) -> float | None:
    gauge = window.gauges.get(family)
    return gauge.mean if gauge is not None and gauge.seconds > 0 else None


def _spent(window: Window, family: str) -> float:
    """Return the seconds that all requests together spent."""
    parts = window.histograms.get(family, ())
    return (histograms.mean(parts) or 0.0) * sum(part.n for part in parts)


def _first_words(key: str, past: TierPast, numbers: Mapping[str, SignalValue]) -> str:
    """Return the words that begin an answer, "" for most."""
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
    """Return which objective is nearer to its limit, by bounds. Overlapping bounds give no answer."""
    if not isinstance(ttft, Reading) or not isinstance(tpot, Reading) or ttft.low is None or tpot.low is None:
        return ""
    if tpot.high is not None and ttft.low >= tpot.high:
        return "prefill"
    if ttft.high is not None and tpot.low >= ttft.high:
        return "decode"
    return "not known"
