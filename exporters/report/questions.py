"""Questions of the guide's 8.4 with the numbers that answer them for a tier.

The numbers hold for the request lengths they were measured at. A new number is a row of COMPUTED, or a signal's name in
QUESTIONS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from exporters.report.inputs import TierPast
from exporters.report.monitoring import judge_row
from exporters.report.wording import best
from rules.plan.curve import OperatingPoint
from rules.plan.load_bins import TierContext
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

LENGTHS = (("prompts", "prompt_tokens"), ("outputs", "generation_tokens"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Question of the guide's 8.4 with its answer, its numbers by name, and the lengths that they hold for."""

    key: str
    question: str
    answer: str
    numbers: Mapping[str, SignalValue]
    lengths: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """Tier with data, and the summary of the period."""

    past: TierPast
    window: Window

    @property
    def tier(self) -> TierContext:
        return self.past.resize.seen.context

    @property
    def point(self) -> OperatingPoint | None:
        """Return the benchmark's point of the largest usable load."""
        return self.tier.curve.usable(self.tier.plan.slo) if self.tier.curve and self.tier.plan else None

    def signal(self, name: str) -> SignalValue:
        return merge_bins(self.past.resize.seen, name, self.window)

    def per_gpu(self, counter: str) -> float | None:
        rate, gpus = replica_rate(self.window, counter), self.tier.basis.gpus_per_replica
        return rate / gpus if rate is not None and gpus else None

    def mean_gauge(self, name: str) -> float | None:
        gauge = self.window.gauges.get(name)
        return gauge.integral / gauge.seconds if gauge is not None and gauge.seconds > 0 else None


def lengths_words(window: Window | None, basis: PlanFacts) -> str:
    """Return the lengths of a window: medians and P95 of prompts and outputs."""
    rows = []
    if window is None:
        return "lengths are not known: nothing was seen"
    for what, key in LENGTHS:
        readings = {name: read(BY_NAME[f"{key}_{name}"], window, basis) for name in ("p50", "p95")}
        known = {name: value for name, value in readings.items() if isinstance(value, Reading)}
        if known:
            values = (f"{name.upper()} {quantity(value, 'tokens')}" for name, value in known.items())
            rows.append(f"{what} {', '.join(values)}")
    return "at " + "; ".join(rows) if rows else "lengths are not known: compare these numbers with nothing"


def questions(past: TierPast) -> tuple[Question, ...]:
    """Return every question of QUESTIONS. Without data no question has an answer."""
    window = past.resize.seen.total
    lengths = lengths_words(window, past.resize.seen.context.basis)
    rows = []
    for key, question, form, more in QUESTIONS:
        answer, numbers = "nothing was seen in this time", dict[str, SignalValue]()
        if window is not None:
            facts = _Facts(past=past, window=window)
            numbers = {name: _read(facts, name) for name in (*re.findall(r"{(\w+)}", form), *more.split())}
            answer = _answer(facts, key, form, numbers)
        rows.append(Question(key=key, question=question, answer=answer, numbers=numbers, lengths=lengths))
    return tuple(rows)


def _read(facts: _Facts, name: str) -> SignalValue:
    value = COMPUTED[name][1](facts) if name in COMPUTED else facts.signal(name)
    if value is None:
        return Missing(gap=Gap.NOT_EXPOSED)
    return Reading(value=value, low=value, high=value, n=1.0) if isinstance(value, int | float) else value


def _answer(facts: _Facts, key: str, form: str, numbers: Mapping[str, SignalValue]) -> str:
    """Return the parts of the form whose numbers are known or are signals, with their numbers."""
    texts = [WORDS[key](facts)] if key in WORDS else []
    for part in form.split("; "):
        names = re.findall(r"{(\w+)}", part)
        if all(isinstance(numbers[name], Reading) or name in NAMED for name in names):
            texts.append(re.sub(r"{(\w+)}", lambda found: _words(facts, found[1], numbers[found[1]]), part))
    return "; ".join(filter(None, texts)) or "not known"


def _words(facts: _Facts, name: str, value: SignalValue) -> str:
    unit, plan = COMPUTED[name][0] if name in COMPUTED else BY_NAME[name].unit, facts.tier.plan
    if unit == "money" and isinstance(value, Reading) and plan is not None and plan.cost is not None:
        return amount(value.value or 0.0, plan.cost.currency)
    return best(value, unit)


def _usable(facts: _Facts) -> SignalValue:
    usable = facts.past.resize.usable
    if usable is None:
        return Missing(gap=Gap.NOT_IN_PLAN)
    return Reading(value=usable.rps, low=usable.low, high=usable.high, n=1.0)


def _ttft_for_money(facts: _Facts) -> SignalValue | None:
    plan, ttft = facts.tier.plan, facts.signal("ttft_p99_seconds")
    if plan is None or plan.cost is None or isinstance(ttft, Missing):
        return None
    hourly = plan.cost.gpu_hour_price * plan.gpu.per_replica
    return ttft.map(lambda seconds: seconds / hourly)


def _concurrency(facts: _Facts) -> float | None:
    running = facts.mean_gauge("requests_running")
    return running / facts.point.c_max if running is not None and facts.point and facts.point.c_max else None


def _prefill(facts: _Facts) -> float | None:
    spent = []
    for family in ("prefill_seconds", "decode_seconds"):
        parts = facts.window.histograms.get(family, ())
        spent.append((histograms.mean(parts) or 0.0) * sum(part.n for part in parts))
    return spent[0] / sum(spent) if all(spent) else None


def _prompts_by_outputs(facts: _Facts) -> float | None:
    prompts, outputs = (facts.window.counters.get(key) for _, key in LENGTHS)
    return prompts / outputs if prompts is not None and outputs else None


def _by_slo(name: str) -> Callable[[_Facts], SignalValue | None]:
    def share(facts: _Facts) -> SignalValue | None:
        limit = getattr(facts.tier.plan.slo, name) if facts.tier.plan else None
        seen = facts.signal(name)
        return seen.map(lambda seconds: seconds / limit) if limit and isinstance(seen, Reading) else None

    return share


def _bottleneck(facts: _Facts) -> str:
    """Return which objective is nearer to its limit, by bounds. Overlapping bounds give no answer."""
    ttft, tpot = (COMPUTED[name][1](facts) for name in ("ttft_by_slo", "tpot_by_slo"))
    if not isinstance(ttft, Reading) or not isinstance(tpot, Reading) or ttft.low is None or tpot.low is None:
        return ""
    if tpot.high is not None and ttft.low >= tpot.high:
        return "prefill"
    if ttft.high is not None and tpot.low >= ttft.high:
        return "decode"
    return "not known"


def _memory(facts: _Facts) -> float | None:
    """Return the generated tokens/s for each GB of HBM: of the GPU exporter, else by the product's name."""
    installed, tokens = facts.mean_gauge("gpu_memory_total_bytes"), facts.per_gpu("generation_tokens")
    named = re.search(r"(\d+)\s?GB", facts.tier.plan.gpu.product) if facts.tier.plan else None
    each = float(named.group(1)) if named else None
    if installed is not None:
        each = installed / GIGA
    return tokens / each if tokens is not None and each else None


def _ceiling(facts: _Facts) -> float | None:
    objective = facts.tier.plan.slo.ttft_p99_seconds if facts.tier.plan else None
    if facts.point is None or facts.point.c_max is None or objective is None:
        return None
    return littles_ceiling_rps(facts.point.c_max, objective)


def _ceiling_gap(facts: _Facts) -> float | None:
    """Return the guide's ceiling by the usable load. It has no verdict (DESIGN 3.11)."""
    ceiling = _ceiling(facts)
    return ceiling / facts.point.usable_rps if ceiling is not None and facts.point else None


CONFIRMED = {Status.OK: "yes", Status.WARNING: "no", Status.CRITICAL: "no"}


def _confirmed(facts: _Facts) -> str:
    judged = [judge_row((rule,), facts.past) for rule in ("TtftDivergence", "BenchmarkNotRepresentative")]
    sentences = [row.sentence for row in judged if row.rule and row.status not in FIRING]
    return "; ".join((CONFIRMED.get(facts.past.step13.status, "not known"), *sentences))


def _configuration(facts: _Facts) -> str:
    plan = facts.tier.plan
    precision = f", weights {plan.precision.weights}" if plan and plan.precision and plan.precision.weights else ""
    return f"{plan.engine}{precision}, at these lengths only" if plan else ""


Compute = Callable[[_Facts], SignalValue | float | None]

COMPUTED: Mapping[str, tuple[str, Compute]] = {
    "tokens_per_second_per_gpu": ("tokens_per_second", lambda facts: facts.per_gpu("generation_tokens")),
    "rps_per_gpu": ("per_second", lambda facts: facts.per_gpu("requests_finished")),
    "rps_per_replica": ("per_second", lambda facts: replica_rate(facts.window, "requests_finished")),
    "usable_rps": ("per_second", _usable),
    "ttft_p99_seconds_per_money_an_hour": ("seconds", _ttft_for_money),
    "fleet_utilization": ("ratio", lambda facts: facts.past.resize.utilization),
    "concurrency_by_c_max": ("ratio", _concurrency),
    "prefill_time_ratio": ("ratio", _prefill),
    "prompt_by_generated_tokens": ("", _prompts_by_outputs),
    "ttft_by_slo": ("ratio", _by_slo("ttft_p99_seconds")),
    "tpot_by_slo": ("ratio", _by_slo("tpot_p99_seconds")),
    "tokens_per_second_per_gb_hbm": ("tokens_per_second", _memory),
    "kv_fullest_hours": ("ratio", lambda facts: facts.past.resize.kv_fullest),
    "littles_ceiling_rps": ("per_second", _ceiling),
    "littles_law_gap": ("", _ceiling_gap),
}
"""Numbers that are no signal: their unit, and their function (None: not known)."""

WORDS: Mapping[str, Callable[[_Facts], str]] = {
    "bound": _bottleneck,
    "representative": _confirmed,
    "fairly": _configuration,
}
"""Words that begin an answer."""

NAMED = frozenset({"mfu", "mbu"})
"""Signals that are named where they are missing, too."""

QUESTIONS: tuple[tuple[str, str, str, str], ...] = (
    (
        "efficiency",
        "Is my hardware being used efficiently?",
        (
            "{tokens_per_second_per_gpu} generated a GPU; MFU {mfu}, MBU {mbu}; "
            "tensor pipes {tensor_active}; memory interface {dram_active}"
        ),
        "gpu_utilization",
    ),
    (
        "contract",
        "Am I serving users within my latency contract?",
        "TTFT {ttft_by_slo}, TPOT {tpot_by_slo} of the SLO",
        "completed_rps ttft_p99_seconds tpot_p99_seconds",
    ),
    ("unit", "How many requests can each replica handle?", "{usable_rps}; {rps_per_replica} on average", ""),
    (
        "dollar",
        "What am I getting per dollar of GPU spend?",
        "{rps_per_gpu} a GPU; {cost_per_million_tokens} a million output tokens",
        "ttft_p99_seconds_per_money_an_hour",
    ),
    (
        "useful",
        "How much of my capacity is doing useful work?",
        "fleet utilisation {fleet_utilization} on average; {concurrency_by_c_max} of C_max",
        "",
    ),
    (
        "bound",
        "Is my system bottlenecked on decode or prefill?",
        "{prefill_time_ratio} of time in prefill; {prompt_by_generated_tokens} prompt tokens a generated one",
        "ttft_by_slo tpot_by_slo",
    ),
    (
        "memory",
        "How efficiently am I using my memory budget?",
        (
            "{tokens_per_second_per_gb_hbm} a GB of HBM; KV cache {kv_utilization} on average; "
            "{kv_fullest_hours} in the fullest hours"
        ),
        "",
    ),
    (
        "representative",
        "Is my benchmark representative of production?",
        "C_max / TTFT SLO is {littles_ceiling_rps}, {littles_law_gap}x usable (guide 8.3: up to 2)",
        "",
    ),
    ("fairly", "How do I compare two configurations fairly?", "", "tokens_per_second_per_gpu"),
)
"""Key, question, the words around its numbers, and the numbers of report.json alone, in the guide's order."""
