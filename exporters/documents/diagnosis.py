"""Texts and JSON of `sizewatch doctor URL`: one screen a tier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from exporters.render.text import format_duration, text_table, wrap
from rules.catalogue.registry import BY_NAME
from rules.plan.gpus import engine_kv_tokens
from rules.telemetry.signals import Missing, SignalValue
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.wording import format_count, quantity
from rules.verdicts.verdict import Verdict

WIDTH = 100
INDENT = "   "

LABELS: Mapping[str, str] = {
    "completed_rps": "requests finished",
    "ttft_p50_seconds": "TTFT P50",
    "ttft_p99_seconds": "TTFT P99",
    "tpot_p50_seconds": "TPOT P50",
    "tpot_p99_seconds": "TPOT P99",
    "e2e_p99_seconds": "whole request P99",
    "queue_p99_seconds": "time in queue P99",
    "prompt_tokens_p95": "prompt P95",
    "generation_tokens_p95": "output P95",
    "generation_tokens_per_second": "generated",
    "requests_running": "requests running",
    "requests_waiting": "requests waiting",
    "kv_utilization": "KV cache in use",
    "eviction_rate": "preemptions a request",
    "prefix_hit_ratio": "prefix cache hits",
    "speculative_acceptance": "drafts accepted",
    "failed_share": "requests failed",
    "refused_share": "requests refused",
    "gpu_utilization": "GPU busy",
    "gpu_memory_utilization": "GPU memory in use",
}
"""Signals of the table in its order, with their words."""

FACTS: Mapping[str, str] = {
    "dtype": "weights",
    "cache_dtype": "KV cache type",
    "kv_cache_dtype": "KV cache type",
    "max_num_seqs": "at most so many requests at once",
    "max_model_len": "context",
    "enable_prefix_caching": "prefix caching",
    "gpu_memory_utilization": "GPU memory share",
}
"""Facts of a page that say how an engine runs, with their words."""

ON: Mapping[str, str] = {"True": "on", "False": "off"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSignal:
    """Signal since the engines' start and in the span of the look. None where it has no value of that kind."""

    name: str
    unit: str
    since_start: SignalValue | None
    lately: SignalValue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TierLook:
    """What a first look shows of one tier.

    `pages` are the last page of each replica, `titles` the engine of each in words, `loads` its requests per second,
    running and waiting. `span_seconds` is the time between the first and the last page, `age_seconds` that of the youngest
    engine, None if a page does not tell. `verdicts` fire now, the first to act on first. `since_start` fire over the
    engines' whole life only. `changes` tell what is unlike the engines' life. `waiting` are the rules that a longer look
    settles, with the seconds that they need. `with_plan` are those that need a plan.
    """

    tier: str
    pages: Mapping[str, Snapshot]
    titles: Mapping[str, str]
    loads: Mapping[str, tuple[float | None, ...]]
    gpus: str
    span_seconds: float
    age_seconds: float | None
    verdicts: tuple[Verdict, ...]
    since_start: tuple[Verdict, ...]
    changes: tuple[str, ...]
    waiting: Mapping[str, float]
    with_plan: tuple[str, ...]
    contradictions: tuple[str, ...]
    signals: tuple[ShownSignal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Looks at all tiers, addresses that gave no page, the objectives in words, and what to run next."""

    looks: tuple[TierLook, ...]
    problems: tuple[str, ...]
    objectives: str
    longer: str
    next_command: str


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the document of a diagnosis. Times are seconds, readings as in `replay --format json`."""
    document: dict[str, Any] = TypeAdapter(Diagnosis).dump_python(diagnosis, mode="json")
    for look, shown in zip(document["looks"], diagnosis.looks, strict=True):
        # A whole page is what `inspect` prints.
        look["pages"] = {
            name: {"engine": shown.titles[name], "facts": dict(p.facts)} for name, p in shown.pages.items()
        }
    return {"schema": 1, **document}


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """Return the screen: what runs, what is wrong, why, what to do first, and what would tell more."""
    lines: list[str] = []
    for look in diagnosis.looks:
        lines += [*_describe_tier(look), *_describe_findings(look, diagnosis), "", *_signal_table(look), ""]
        lines += _describe_rest(look, diagnosis)
    lines += [f"no page   {problem}" for problem in diagnosis.problems]
    lines += [f"next      {diagnosis.next_command}"]
    return "\n".join(lines)


def _describe_tier(look: TierLook) -> Iterator[str]:
    age = "" if look.age_seconds is None else f", up for {format_duration(look.age_seconds)}"
    seen = f"seen for {format_duration(look.span_seconds)}" if look.span_seconds else "one page seen"
    yield f"{look.tier}: {format_count(len(look.pages), 'engine')}{age}, {seen}"
    for replica, page in look.pages.items():
        facts = [
            f"{words} {ON.get(page.facts[name], page.facts[name])}"
            for name, words in FACTS.items()
            if name in page.facts
        ]
        tokens = engine_kv_tokens(page.facts)
        if tokens:
            facts.insert(0, f"KV cache of {tokens:,.0f} tokens")
        model = page.facts.get("model", "model unknown")
        yield from wrap(f"{replica}  {look.titles[replica]}, {model}; {', '.join(facts)}", INDENT, INDENT * 2, WIDTH)
    if look.gpus:
        yield f"{INDENT}GPUs  {look.gpus}"
    if len(look.loads) > 1:
        rows = [[name, *(_number(value) for value in load)] for name, load in look.loads.items()]
        yield from (INDENT + line for line in text_table(["replica", "rps", "running", "waiting"], rows))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _describe_findings(look: TierLook, diagnosis: Diagnosis) -> Iterator[str]:
    if not look.verdicts:
        if look.span_seconds:
            yield f"ok        Nothing is wrong that {format_duration(look.span_seconds)} can show. {diagnosis.objectives}"
        else:
            yield "unknown   One page shows the engine's life only; a second one shows what happens now."
    for verdict in look.verdicts:
        yield from _describe_finding(verdict)
    if look.verdicts:
        yield from wrap(diagnosis.objectives, f"{INDENT}", INDENT, WIDTH)
    for verdict in look.since_start:
        yield from wrap(f"{verdict.sentence} ({verdict.certainty})", "earlier   since its start: ", INDENT * 2, WIDTH)


def _describe_finding(verdict: Verdict) -> Iterator[str]:
    replica = f"{verdict.subject.replica}: " if verdict.subject.replica else ""
    yield from wrap(f"{replica}{verdict.sentence}", f"{verdict.status:<10}", INDENT * 2, WIDTH)
    expected = "" if isinstance(verdict.expected, Missing) else f"; expected {quantity(verdict.expected, verdict.unit)}"
    counted = "" if isinstance(verdict.observed, Missing) else f", n {verdict.observed.n:,.0f}"
    seen = f"observed {quantity(verdict.observed, verdict.unit)}{expected}{counted}, {verdict.certainty}"
    yield f"{INDENT}evidence  {seen}  ({verdict.rule})"
    for detail in verdict.details[:3]:
        yield from wrap(detail, f"{INDENT}          ", f"{INDENT}          ", WIDTH)
    for cause in verdict.causes[:2]:
        text = f"{'; '.join(cause.evidence) or cause.cause} ({cause.certainty})"
        yield from wrap(text, f"{INDENT}why       ", f"{INDENT}          ", WIDTH)
    if verdict.actions:
        yield from wrap(verdict.actions[0], f"{INDENT}do first  ", f"{INDENT}          ", WIDTH)


def _signal_table(look: TierLook) -> list[str]:
    age = "since its start" if look.age_seconds is None else f"since its start ({format_duration(look.age_seconds)})"
    rows = [[LABELS[s.name], _words(s.since_start, s.unit), _words(s.lately, s.unit)] for s in look.signals]
    head = ["", age, f"last {format_duration(look.span_seconds)}" if look.span_seconds else "now"]
    return [INDENT + line for line in text_table(head, rows)]


def _words(value: SignalValue | None, unit: str) -> str:
    return "" if value is None else quantity(value, unit)


def _describe_rest(look: TierLook, diagnosis: Diagnosis) -> Iterator[str]:
    for text in look.changes:
        yield from wrap(text, "changed   ", INDENT * 2, WIDTH)
    for text in look.contradictions:
        yield from wrap(text, "suspect   numbers of the page: ", INDENT * 2, WIDTH)
    if look.waiting:
        names = ", ".join(sorted(look.waiting))
        text = f"{diagnosis.longer} settles what needs minutes: {names}"
        yield from wrap(text, "longer    ", INDENT * 2, WIDTH)
    if look.with_plan:
        titles = ", ".join(BY_NAME[rule].title for rule in look.with_plan[:4])
        text = f"would judge {format_count(len(look.with_plan), 'more rule')} ({titles} ...), the fleet's size and its cost"
        yield from wrap(text, "a plan    ", INDENT * 2, WIDTH)
