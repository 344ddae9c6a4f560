"""Questions of the guide's 8.4 with their answers for a tier.

Every number is given with the request lengths it was measured at. Signals that the engine does not report are named. A
new question is a function here and a row of QUESTIONS.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from exporters.documents.check import result_words
from exporters.report.inputs import TierPast
from exporters.report.monitoring import judge_row
from exporters.report.records import QuestionAnswer, ReportNumber, TermRow
from exporters.report.wording import INSTANTS, as_number, money, words
from rules.plan.load_bins import TierContext
from rules.plan.schema import Slo
from rules.resize.production_summary import merge_bins
from rules.resize.proposal import Resize
from rules.sizing import littles_ceiling_rps
from rules.telemetry import histograms
from rules.telemetry.derived import PlanFacts
from rules.telemetry.reading_methods import replica_rate
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Gap, Reading, SignalValue
from rules.telemetry.windows import Window
from rules.telemetry.wording import number, quantity, spread

GIGA = 1e9

LENGTHS = (("prompts", "prompt_tokens"), ("outputs", "generation_tokens"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _TierSummary:
    """Tier with data, and the summary of the period."""

    past: TierPast
    window: Window

    @property
    def resize(self) -> Resize:
        return self.past.resize

    def signal(self, name: str) -> SignalValue:
        return merge_bins(self.resize.seen, name, self.window)

    def number(self, name: str) -> ReportNumber:
        return as_number(self.signal(name))

    @property
    def tier(self) -> TierContext:
        return self.resize.seen.context

    @property
    def slo(self) -> Slo | None:
        return self.tier.plan.slo if self.tier.plan else None

    @property
    def gpus(self) -> float | None:
        return self.tier.basis.gpus_per_replica

    @property
    def tokens_per_gpu(self) -> float | None:
        rate = replica_rate(self.window, "generation_tokens")
        return rate / self.gpus if rate is not None and self.gpus else None


_Answer = tuple[str, tuple[TermRow, ...]]


def lengths_words(window: Window | None, basis: PlanFacts) -> str:
    """Return the lengths of a window: medians and P95 of prompts and outputs."""
    rows = []
    if window is None:
        return "lengths are not known: nothing was seen"
    for what, key in LENGTHS:
        mapping = {name: read(BY_NAME[f"{key}_{name}"], window, basis) for name in ("p50", "p95")}
        known = {name: value for name, value in mapping.items() if isinstance(value, Reading)}
        if known:
            values = (f"{name.upper()} {quantity(value, 'tokens')}" for name, value in known.items())
            rows.append(f"{what} {', '.join(values)}")
    return "at " + "; ".join(rows) if rows else "lengths are not known: compare these numbers with nothing"


def questions(past: TierPast) -> tuple[QuestionAnswer, ...]:
    """Return every question of QUESTIONS. Without data no question has an answer."""
    window = past.resize.seen.total
    lengths = lengths_words(window, past.resize.seen.context.basis)
    question_answers = []
    for key, question, answer in QUESTIONS:
        text, terms = (
            ("nothing was seen in this time", ()) if window is None else answer(_TierSummary(past=past, window=window))
        )
        question_answers.append(QuestionAnswer(key=key, question=question, answer=text, numbers=terms, lengths=lengths))
    return tuple(question_answers)


def _term(name: str, value: float | None, unit: str, source: str = "measured") -> tuple[TermRow, ...]:
    return () if value is None else (TermRow(name=name, value=value, unit=unit, source=source),)


def _efficient(summary: _TierSummary) -> _Answer:
    each = summary.tokens_per_gpu
    text = f"{number(each, 'tokens_per_second')} generated a GPU" if each is not None else "tokens are not counted"
    tensor, dram = summary.number("tensor_active"), summary.number("dram_active")
    mfu, mbu = summary.number("mfu"), summary.number("mbu")
    if mfu.gap == mbu.gap == Gap.NOT_EXPOSED:
        text += "; MFU and MBU: not exposed (vLLM and SGLang estimate them only with --enable-mfu-metrics)"
    else:
        text += f"; MFU {words(mfu, 'ratio')}, MBU {words(mbu, 'ratio')}, as the engine estimates them"
    if not tensor.gap or not dram.gap:
        text += f", tensor pipes active {words(tensor, 'ratio')}, memory interface {words(dram, 'ratio')}"
    busy = summary.number("gpu_utilization")
    text += f"; GPUs had work {words(busy, 'ratio')} of the time" if not busy.gap else "; GPU utilisation is not known"
    return text, (
        *_term("tokens_per_second_per_gpu", each, "tokens_per_second"),
        *_term("gpu_utilization", busy.value, "ratio"),
        *_term("mfu", mfu.value, "ratio"),
        *_term("mbu", mbu.value, "ratio"),
    )


def _contract(summary: _TierSummary) -> _Answer:
    done = summary.number("completed_rps")
    ttft, tpot = summary.number("ttft_p99_seconds"), summary.number("tpot_p99_seconds")
    slo = summary.slo
    limit = f" (SLO {number(slo.ttft_p99_seconds, 'seconds')})" if slo and slo.ttft_p99_seconds else ""
    text = f"{words(done, 'per_second')} completed; TTFT P99 {words(ttft, 'seconds')}{limit}"
    text += f", TPOT P99 {words(tpot, 'seconds')}"
    text += f" (SLO {number(slo.tpot_p99_seconds, 'seconds')})" if slo and slo.tpot_p99_seconds else ""
    return text, _term("completed_rps", done.value, "per_second")


def _unit(summary: _TierSummary) -> _Answer:
    usable, rate = summary.resize.usable, replica_rate(summary.window, "requests_finished")
    text = f"{number(rate, 'per_second')} on average" if rate is not None else "requests are not counted"
    text += (
        f"; {number(usable.rps, 'per_second')} a replica keep the SLO ({usable.certainty.value})"
        if usable
        else "; what it could is not known"
    )
    return text, (
        *_term("rps_per_replica", rate, "per_second"),
        *_term("usable_rps", usable.rps if usable else None, "per_second", usable.reason if usable else ""),
    )


def _dollar(summary: _TierSummary) -> _Answer:
    context = summary.tier
    rate, cost = replica_rate(summary.window, "requests_finished"), summary.number("cost_per_million_tokens")
    each = rate / summary.gpus if rate is not None and summary.gpus else None
    text = f"{number(each, 'per_second')} a GPU" if each is not None else "rps per GPU is not known"
    plan = context.plan
    if plan is None or plan.cost is None:
        return f"{text}; the plan has no price", _term("rps_per_gpu", each, "per_second")
    currency, hourly = plan.cost.currency, plan.cost.gpu_hour_price * plan.gpu.per_replica
    ttft = summary.number("ttft_p99_seconds")
    least, most = (None if end is None else end / hourly for end in (ttft.low, ttft.high))
    text += f"; {money(cost.value, currency)} a million output tokens"
    if least is not None:
        text += f"; TTFT P99 {words(ttft, 'seconds')} for {money(hourly, currency)} a replica-hour: "
        text += f"{spread(least, most, 'seconds')} per {currency} an hour"
    return text, (
        *_term("rps_per_gpu", each, "per_second"),
        *_term("cost_per_million_tokens", cost.value, currency),
        *_term("ttft_p99_seconds_per_money_an_hour_at_least", least, "seconds"),
        *_term("ttft_p99_seconds_per_money_an_hour_at_most", most, "seconds"),
    )


def _useful(summary: _TierSummary) -> _Answer:
    used, waiting = as_number(summary.resize.utilization), summary.number("requests_waiting")
    context = summary.tier
    point = context.curve.usable(context.plan.slo) if context.curve and context.plan else None
    running = summary.window.gauges.get("requests_running")
    text = (
        f"fleet utilisation {words(used, 'ratio')} on average over the time: work by what the ready replicas can take; "
    )
    text += f"{words(waiting, '')} requests wait on average"
    share = None
    if running is not None and running.seconds > 0 and point is not None and point.c_max:
        share = running.integral / running.seconds / point.c_max
        text += f"; requests that run at once are {number(share, 'ratio')} of C_max on average"
    return text, (
        *_term("fleet_utilization", used.value, "ratio"),
        *_term("concurrency_by_c_max", share, "ratio"),
    )


def _bound(summary: _TierSummary) -> _Answer:
    """Answer by the time in each phase, and by the objective nearer to its limit."""
    prefill, decode = (_spent(summary.window, name) for name in ("prefill_seconds", "decode_seconds"))
    prompt, made = (summary.window.counters.get(name) for name in ("prompt_tokens", "generation_tokens"))
    text, share = "", None
    if prefill is not None and decode is not None and prefill + decode > 0:
        share = prefill / (prefill + decode)
        text = f"requests spend {number(share, 'ratio')} of their running time in prefill, the rest in decode"
    ratio = prompt / made if prompt is not None and made else None
    if ratio is not None:
        text += f"{'; ' if text else ''}{ratio:.3g} prompt tokens for each generated one"
    near, shares = _nearest(summary)
    text += f"{'; ' if text else ''}{near}" if near else ""
    return text or "the engine shows neither phase", (
        *_term("prefill_time_ratio", share, "ratio"),
        *_term("prompt_by_generated_tokens", ratio, ""),
        *shares,
    )


def _nearest(summary: _TierSummary) -> _Answer:
    """Answer which objective is nearer to its limit, by bounds. Overlapping bounds give no answer."""
    slo = summary.slo
    ttft, tpot = summary.number("ttft_p99_seconds"), summary.number("tpot_p99_seconds")
    if not (slo and slo.ttft_p99_seconds and slo.tpot_p99_seconds) or ttft.low is None or tpot.low is None:
        return "", ()
    first = _uses(ttft.low, ttft.high, slo.ttft_p99_seconds)
    each = _uses(tpot.low, tpot.high, slo.tpot_p99_seconds)
    uses = f"TTFT uses {spread(*first, 'ratio')} of its objective, TPOT {spread(*each, 'ratio')}"
    shares = (
        *_term("ttft_by_slo_at_least", first[0], "ratio"),
        *_term("ttft_by_slo_at_most", first[1], "ratio"),
        *_term("tpot_by_slo_at_least", each[0], "ratio"),
        *_term("tpot_by_slo_at_most", each[1], "ratio"),
    )
    if each[1] is not None and first[0] >= each[1]:
        return f"prefill is the bottleneck: {uses}", shares
    if first[1] is not None and each[0] >= first[1]:
        return f"decode is the bottleneck: {uses}", shares
    return f"whether prefill or decode is the bottleneck is not known: {uses}", shares


def _uses(low: float, high: float | None, objective: float) -> tuple[float, float | None]:
    return low / objective, None if high is None else high / objective


def _spent(window: Window, family: str) -> float | None:
    parts = window.histograms.get(family, ())
    mean = histograms.mean(parts)
    return None if mean is None else mean * sum(part.n for part in parts)


def _memory(summary: _TierSummary) -> _Answer:
    installed = summary.window.gauges.get("gpu_memory_total_bytes")
    each, source = None, "GPU exporter"
    if installed is not None and installed.seconds > 0:
        each = installed.integral / installed.seconds / GIGA
    elif summary.tier.plan is not None:
        named = re.search(r"(\d+)\s?GB", summary.tier.plan.gpu.product)
        each, source = float(named.group(1)) if named else None, "the product's name"
    tokens, kv = summary.tokens_per_gpu, summary.number("kv_utilization")
    per = tokens / each if tokens is not None and each else None
    text = (
        f"{number(per, 'tokens_per_second')} for each GB of HBM ({each:.0f} GB a GPU, by {source})"
        if per is not None and each
        else ("tokens/s per GB of HBM: not exposed, nothing tells the GPUs' memory")
    )
    full, days = summary.resize.kv_fullest, summary.resize.seen.observed_seconds / 86_400
    text += f"; KV cache {words(kv, 'ratio', INSTANTS)} in use on average"
    text += f", hourly mean {number(full, 'ratio')} in the fullest hours of {days:.1f} days" if full is not None else ""
    return text, (
        *_term("tokens_per_second_per_gb_hbm", per, "tokens_per_second", source),
        *_term("kv_utilization", kv.value, "ratio"),
    )


def _representative(summary: _TierSummary) -> _Answer:
    """Answer by Step 13, time in system at equal load, and the guide's ceiling, which has no verdict (DESIGN 3.11)."""
    context = summary.tier
    judged = judge_row(("BenchmarkNotRepresentative",), summary.past)
    text = result_words(summary.past.step13)
    text = f"{text[:1].upper()}{text[1:]}" + (f"; {judged.sentence}" if judged.rule else "")
    point = context.curve.usable(context.plan.slo) if context.curve and context.plan else None
    objective = context.plan.slo.ttft_p99_seconds if context.plan else None
    if point is None or point.c_max is None or objective is None:
        return text, ()
    ceiling = littles_ceiling_rps(point.c_max, objective)
    gap = ceiling / point.usable_rps
    text += f"; C_max / TTFT SLO = {point.c_max:.3g} / {objective:g} s = {ceiling:.3g} rps, {gap:.2g}x the "
    text += f"plan's usable {point.usable_rps:.3g} rps (guide 8.3: up to 2 where most of a request is its first token)"
    return text, _term("littles_law_gap", gap, "", "benchmark")


def _fairly(summary: _TierSummary) -> _Answer:
    plan, each = summary.tier.plan, summary.tokens_per_gpu
    if plan is None or each is None:
        return "not known", ()
    precision = f", weights {plan.precision.weights}" if plan.precision and plan.precision.weights else ""
    text = f"{number(each, 'tokens_per_second')} a GPU on {plan.gpu.per_replica} x {plan.gpu.product}, {plan.engine}{precision}; "
    text += "compare it only with the same lengths and the same load"
    return text, _term("tokens_per_second_per_gpu", each, "tokens_per_second")


QUESTIONS: tuple[tuple[str, str, Callable[[_TierSummary], _Answer]], ...] = (
    ("efficiency", "Is my hardware being used efficiently?", _efficient),
    ("contract", "Am I serving users within my latency contract?", _contract),
    ("unit", "How many requests can each replica handle?", _unit),
    ("dollar", "What am I getting per dollar of GPU spend?", _dollar),
    ("useful", "How much of my capacity is doing useful work?", _useful),
    ("bound", "Is my system bottlenecked on decode or prefill?", _bound),
    ("memory", "How efficiently am I using my memory budget?", _memory),
    ("representative", "Is my benchmark representative of production?", _representative),
    ("fairly", "How do I compare two configurations fairly?", _fairly),
)
"""Key, question and answer function, in the guide's order."""
