"""Texts and JSON of `sizewatch doctor URL`, one screen a tier, and of `sizewatch inspect`: all signals of a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter
from rich.console import RenderableType

from exporters.documents.replay import reading_json
from exporters.render.terminal import WIDEST, terminal_text, text_grid
from exporters.render.text import copy_fields
from rules.catalogue.registry import BY_NAME, SUSPECTED
from rules.engines.coverage import FamilyUse
from rules.engines.registry import EngineTable
from rules.gpu_sources.devices import BY_CODE, FAULTS
from rules.gpu_sources.exporter import GpuExporter, GpuExporterPage
from rules.plan.gpus import engine_kv_tokens
from rules.telemetry.families import GPU_NAMES
from rules.telemetry.signals import BY_NAME as SIGNALS
from rules.telemetry.signals import Gap, Missing, Signal, SignalValue
from rules.telemetry.snapshots import GpuReadout, Snapshot
from rules.telemetry.wording import format_count, format_duration, number, quantity
from rules.verdicts.verdict import Verdict

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
    "left_share": "left by their clients",
    "failed_share": "requests failed",
    "no_room_share": "refused for want of room (503)",
    "bad_share": "answered 4xx",
    "gpu_utilization": "GPU busy",
    "gpu_memory_utilization": "GPU memory in use",
}
"""Signals of the table in its order, with their words. Refusals stand by kind, as the rule judges them."""

REPLICA_SIGNALS: Mapping[str, str] = {
    "completed_rps": "finished",
    "requests_running": "running",
    "requests_waiting": "waiting",
    "kv_utilization": "KV cache",
    "prefix_hit_ratio": "hits",
    "ttft_p50_seconds": "TTFT P50",
    "tpot_p50_seconds": "TPOT P50",
}
"""Signals of the table of replicas in its order, with their words."""

RUN_FACTS: Mapping[str, str] = {
    "dtype": "weights",
    "cache_dtype": "KV cache type",
    "kv_cache_dtype": "KV cache type",
    "max_num_seqs": "at most so many requests at once",
    "max_model_len": "context",
    "enable_prefix_caching": "prefix caching",
    "gpu_memory_utilization": "GPU memory share",
}
"""Facts of a page that say how an engine runs, with their words."""

FIXED_BLOCKS = "num_gpu_blocks_override"
"""Fact of vLLM: size of the KV cache that somebody set."""

FULL = frozenset({"KvCacheCascade", "KvCacheNearCeiling", "KvEviction"})
"""Rules of a KV cache that is too small."""

FAILED = frozenset({"AvailabilityBurn", "RequestsRefused"})
"""Requests without an answer: late tokens do not explain them."""

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

    `pages` are the last page of each replica, `titles` its engine, `loads` its signals. `odd` says which replicas are
    unlike the others, `spread` whether they share the load. `span_seconds` is the time between the first and the last
    page, `age_seconds` that of the youngest engine, or None. `verdicts` fire now. `since_start` fire over the engines'
    life only; `ongoing` are outside their limits in the span too. `doubts` are objectives that too few requests seem
    to miss. `waiting` are the rules that a longer look settles, with seconds, `with_plan` those that need a plan.
    """

    tier: str
    pages: Mapping[str, Snapshot]
    titles: Mapping[str, str]
    loads: Mapping[str, Mapping[str, SignalValue]]
    odd: tuple[str, ...]
    spread: str
    gpus: str
    span_seconds: float
    age_seconds: float | None
    verdicts: tuple[Verdict, ...]
    since_start: tuple[Verdict, ...]
    ongoing: Mapping[str, str]
    doubts: tuple[str, ...]
    changes: tuple[str, ...]
    waiting: Mapping[str, float]
    with_plan: tuple[str, ...]
    contradictions: tuple[str, ...]
    troubles: tuple[str, ...]
    signals: tuple[ShownSignal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDiagnosis:
    """Looks at all tiers, addresses that gave no page, the objectives in words, and what to run next."""

    looks: tuple[TierLook, ...]
    problems: tuple[str, ...]
    objectives: str
    longer: str
    next_command: str


def diagnosis_json(diagnosis: EngineDiagnosis) -> dict[str, Any]:
    """Return the document of a diagnosis. Times are seconds, readings as in `replay --format json`."""
    # A whole page is what `inspect` prints.
    without_pages = {"looks": {"__all__": {"pages"}}}
    document: dict[str, Any] = TypeAdapter(EngineDiagnosis).dump_python(diagnosis, mode="json", exclude=without_pages)
    for look, shown in zip(document["looks"], diagnosis.looks, strict=True):
        look["pages"] = {
            name: {"engine": shown.titles[name], "facts": dict(p.facts)} for name, p in shown.pages.items()
        }
    return {"schema": 1, **document}


def diagnosis_text(diagnosis: EngineDiagnosis) -> str:
    """Return the screen: what is wrong, what runs, and what would tell more."""
    parts: list[RenderableType] = []
    if diagnosis.problems:
        parts += [text_grid([["no page", problem] for problem in diagnosis.problems]), ""]
    if len(diagnosis.looks) > 1:
        tiers = []
        for look in diagnosis.looks:
            tiers.append(f"{look.tier} ({format_count(len(look.pages), 'engine')})")
        text = f"{len(tiers)} tiers, each judged alone: {', '.join(tiers)}"
        parts += [text_grid([["mixed", text]], indent=0), ""]
    for look in diagnosis.looks:
        age = "" if look.age_seconds is None else f", up for {format_duration(look.age_seconds)}"
        seen = "one page seen"
        if look.span_seconds:
            seen = f"seen for {format_duration(look.span_seconds)}"
        title = f"{look.tier}: {format_count(len(look.pages), 'engine')}{age}, {seen}"
        parts += [title, text_grid(_describe_findings(look, diagnosis)), "", text_grid(_describe_engines(look)), ""]
        if len(look.loads) > 1:
            parts += [_replica_grid(look), ""]
        parts += [_signal_grid(look), "", text_grid(_describe_rest(look, diagnosis))]
    if diagnosis.looks:
        parts.append(text_grid([["next", diagnosis.next_command]]))
    return terminal_text(*parts).rstrip("\n")


def _describe_engines(look: TierLook) -> Iterator[list[str]]:
    """Yield what runs. Replicas that run alike stand in one row."""
    alike: dict[str, list[str]] = {}
    for replica, page in look.pages.items():
        facts = []
        for name, words in RUN_FACTS.items():
            text = page.facts.get(name, "")
            if text not in ("", "None"):
                facts.append(f"{words} {ON.get(text, text)}")
        tokens = engine_kv_tokens(page.facts)
        if tokens:
            facts.insert(0, f"KV cache of {tokens:,.0f} tokens")
        model = page.facts.get("model", "model unknown")
        words = "; ".join(filter(None, (f"{look.titles[replica]}, {model}", ", ".join(facts))))
        alike.setdefault(words, []).append(replica)
    for words, replicas in alike.items():
        yield ["engine", f"{', '.join(replicas)}: {words}"]
    if look.gpus:
        yield ["GPUs", look.gpus]
    if look.spread:
        yield ["load", look.spread]


def _replica_grid(look: TierLook) -> RenderableType:
    """Return the replicas beside each other in the span of the look."""
    rows = []
    for replica, values in look.loads.items():
        cells = (
            "" if isinstance(value, Missing) else _words(value, SIGNALS[name].unit) for name, value in values.items()
        )
        rows.append([replica, *cells])
    return text_grid(rows, ["replica", *REPLICA_SIGNALS.values()], words=1)


def _describe_findings(look: TierLook, diagnosis: EngineDiagnosis) -> Iterator[list[str]]:
    for trouble in look.troubles:
        yield ["critical", trouble]
    is_open = bool(look.doubts or look.ongoing or look.verdicts or look.odd)
    if not look.signals:
        yield ["unknown", "No signal of its pages can be read: nothing is judged."]
    elif not is_open and not look.troubles and look.span_seconds:
        yield ["ok", f"Nothing is wrong that {format_duration(look.span_seconds)} can show. {diagnosis.objectives}"]
    elif not is_open and not look.troubles:
        yield ["unknown", "One page shows the engine's life only; a second one shows what happens now."]
    # One trouble: its first finding says what to do. Notes and FAILED stand alone.
    troubles: dict[str, list[Verdict]] = {}
    for verdict in look.verdicts:
        kind, first = verdict.rule, BY_NAME[look.verdicts[0].rule]
        if BY_NAME[kind].stage and (kind not in FAILED or (first.explains_failures and first.name not in FAILED)):
            kind = ""
        troubles.setdefault(kind, []).append(verdict)
    for findings in troubles.values():
        fixed = {page.facts.get(FIXED_BLOCKS, "None") for page in look.pages.values()} - {"None", ""}
        is_full = any(verdict.rule in FULL for verdict in findings)
        yield from _describe_trouble(findings, sorted(fixed) if is_full else ())
    for doubt in look.doubts:
        yield ["unsure", doubt]
    for text in look.odd:
        yield ["odd", text]
    if is_open:
        yield ["", diagnosis.objectives]
    for verdict in look.since_start:
        ongoing = look.ongoing.get(verdict.rule)
        word = "so far"
        if look.span_seconds:
            word = "earlier"
        observed = ""
        if not isinstance(verdict.observed, Missing):
            observed = f", observed {quantity(verdict.observed, verdict.unit)}"
        text = f"since its start: {verdict.sentence} ({verdict.certainty}{observed})"
        yield ["still", f"{text}; {ongoing}"] if ongoing else [word, text]


def _describe_trouble(findings: Sequence[Verdict], fixed: Sequence[str]) -> Iterator[list[str]]:
    """Yield the first finding with its causes, and those of effects that its rule finds, then the effects."""
    verdict, observed = findings[0], findings[0].observed
    yield [verdict.status, f"{_name_replica(verdict)}{verdict.sentence}"]
    causes = {cause.cause: cause for cause in verdict.causes}
    for effect in findings:
        for cause in effect.causes:
            if verdict.rule in SUSPECTED.get(cause.cause, ()):
                causes.setdefault(cause.cause, cause)
    for cause in (*causes.values(),)[:2]:
        yield ["  why", f"{'; '.join(cause.evidence) or cause.cause} ({cause.certainty})"]
    if verdict.actions:
        yield ["  do first", verdict.actions[0]]
    for blocks in fixed:
        text = f"Remove --num-gpu-blocks-override, or raise it as far as memory allows: it sets {blocks} blocks"
        yield ["  then", text]
    text = f"observed {quantity(observed, verdict.unit)}, {verdict.certainty}"
    if not isinstance(observed, Missing) and observed.n > 1:
        text += f", n {observed.n:,.0f}"
    if not isinstance(verdict.expected, Missing):
        text += f", expected {quantity(verdict.expected, verdict.unit)}"
    yield ["  evidence", "; ".join((f"{text}, {verdict.rule}", *verdict.details[:2]))]
    for effect in findings[1:]:
        yield ["  also", f"{_name_replica(effect)}{effect.sentence} ({effect.certainty}, {effect.rule})"]


def _name_replica(verdict: Verdict) -> str:
    return f"{verdict.subject.replica}: " if verdict.subject.replica else ""


def _signal_grid(look: TierLook) -> RenderableType:
    age = "since its start" if look.age_seconds is None else f"since its start ({format_duration(look.age_seconds)})"
    rows = []
    for signal in look.signals:
        rows.append([LABELS[signal.name], _words(signal.since_start, signal.unit), _words(signal.lately, signal.unit)])
    head = ["", age, f"last {format_duration(look.span_seconds)}" if look.span_seconds else "now"]
    return text_grid(rows, head, words=1)


def _words(value: SignalValue | None, unit: str) -> str:
    if value is None:
        return ""
    return quantity(value, unit)


def _describe_rest(look: TierLook, diagnosis: EngineDiagnosis) -> Iterator[list[str]]:
    for text in look.changes:
        yield ["changed", text]
    for text in look.contradictions:
        yield ["suspect", f"numbers of the page: {text}"]
    if look.waiting:
        yield ["longer", f"{diagnosis.longer} settles what needs minutes: {', '.join(sorted(look.waiting))}"]
    if look.with_plan:
        rules = format_count(len(look.with_plan), "more rule")
        yield ["a plan", f"would judge {rules}, the fleet's size and its cost"]


def explain_gap(
    signal: Signal, value: SignalValue, engine: EngineTable, page: Snapshot, why_no_rate: str
) -> SignalValue:
    """Add to a missing signal the engine release and the reason for its absence."""
    if not isinstance(value, Missing):
        needs_time = why_no_rate and signal.unit.endswith(("per_second", "per_hour", "money"))
        if needs_time:
            return Missing(gap=Gap.NOT_EXPOSED, text=why_no_rate)
        return value
    if value.gap is not Gap.NOT_EXPOSED or value.text:
        return value
    if any(family in GPU_NAMES for family in signal.families):
        return replace(value, text="read from the GPU, not from an engine's page")
    if "in_system_change" in signal.families:
        return replace(value, text=NO_CHANGE)
    why = engine.explain_missing(signal.families)
    release = page.facts.get("engine_versions", "")
    title = f"{engine.title} {release}".strip()
    if not why:
        return replace(value, text=f"{title} does not have it, or it is not switched on")
    return replace(value, text=f"{title}: {why}" if release or engine.title not in why else why)


FACTS = (
    *("model", "engine_versions", "num_gpu_blocks", "num_pages", "block_size", "page_size", "kv_tokens"),
    *("max_model_len", "cache_dtype", "enable_prefix_caching"),
)
"""Facts shown in this order if a page has them."""

LISTED = tuple(name for name in GPU_NAMES if name != BY_CODE)
"""GPU families listed on their own. Faults by code are listed with the faults."""

NO_CHANGE = "one page tells no change"
NOT_TOLD = "not on the page, or the change between two pages"
_UNITS = {"degrees Celsius": "celsius"}


def inspect_text(title: str, page: Snapshot, readings: Mapping[str, SignalValue], uses: Sequence[FamilyUse]) -> str:
    """Return the whole text. Values are since process start, as a single page shows no change."""
    facts = ", ".join(f"{name} {page.facts[name]}" for name in FACTS if page.facts.get(name))
    rows = [(name, _signal_text(value, SIGNALS[name].unit)) for name, value in readings.items()]
    heads = (title, f"  facts     {facts or 'none'}", "", f"Signals (since the process started; {NO_CHANGE})")
    return _page_text([*heads, text_grid(rows)], uses, page.problems)


def _signal_text(value: SignalValue, unit: str) -> str:
    if isinstance(value, Missing):
        return ": ".join(filter(None, (value.gap.value, value.text)))
    if value.value is None or value.low == value.high:
        return quantity(value, unit)
    return f"{quantity(value, unit)} (about {number(value.value, unit)})"


def _page_text(parts: list[RenderableType], uses: Sequence[FamilyUse], problems: Sequence[str]) -> str:
    """Return the parts with the use of every family and the problems of a page. A line an entry, for searches."""
    for title, is_read in (("Families that are read", True), ("Families that are not read", False)):
        rows = [(use.name, use.text) for use in uses if bool(use.text) == is_read]
        if rows:
            parts += ["", title, text_grid(rows)]
    if problems:
        parts += ["", "Problems", *(f"  {problem}" for problem in problems)]
    return terminal_text(*parts, width=WIDEST)


def inspect_json(
    engine: str, page: Snapshot, readings: Mapping[str, SignalValue], uses: Sequence[FamilyUse]
) -> dict[str, Any]:
    """Return the facts, signals, families and problems of an engine's page."""
    signals = {name: reading_json(value) for name, value in readings.items()}
    head = {"engine": engine, "generation": page.generation, "facts": dict(page.facts), "signals": signals}
    return _page_json(head, uses, page.problems)


def _page_json(head: Mapping[str, Any], uses: Sequence[FamilyUse], problems: Sequence[str]) -> dict[str, Any]:
    families = []
    for use in uses:
        families.append({"name": use.name, "use": "mapped" if use.text else "unread", "text": use.text})
    return {"schema": 1, **head, "families": families, "problems": list(problems)}


def inspect_gpus_text(title: str, exporter: GpuExporter, page: GpuExporterPage, uses: Sequence[FamilyUse]) -> str:
    """Return the whole text. Counters are totals, as a single page shows no change."""
    head = f"  {format_count(len(page.readouts), 'GPU')}; counters so far, for {NO_CHANGE}"
    parts: list[RenderableType] = [title, head]
    for gpu in page.readouts:
        place = "" if gpu.index is None else f" {gpu.index}"
        rows = [(name, _quantity_text(_quantity(name, gpu, exporter, page))) for name in LISTED]
        parts += ["", f"GPU{place}: {gpu.product or 'product not told'}, {gpu.gpu}", text_grid(rows)]
    return _page_text(parts, uses, page.problems)


def inspect_gpus_json(exporter: GpuExporter, page: GpuExporterPage, uses: Sequence[FamilyUse]) -> dict[str, Any]:
    """Return the quantities of each GPU, the families and problems of a page of a GPU exporter."""
    gpus = []
    for gpu in page.readouts:
        quantities = {name: _quantity(name, gpu, exporter, page) for name in LISTED}
        fields = copy_fields(gpu, "gpu", "index", "product")
        gpus.append({**fields, "processes": list(gpu.pids), "quantities": quantities})
    return _page_json({"exporter": exporter.name, "gpus": gpus}, uses, page.problems)


def _quantity(name: str, gpu: GpuReadout, exporter: GpuExporter, page: GpuExporterPage) -> dict[str, Any]:
    value = gpu.gauges.get(name, gpu.counters.get(name))
    if value is None:
        reason = gpu.gaps.get(name) or exporter.not_exposed.get(name, NOT_TOLD)
        if name == FAULTS and gpu.gpu in page.faults:
            reason = f"{NO_CHANGE}; standing on it: {', '.join(sorted(page.faults[gpu.gpu] or ())) or 'none'}"
        return {"gap": Gap.NOT_EXPOSED.value, "text": reason}
    return {"value": value, "unit": GPU_NAMES[name].unit, "polled": name in gpu.sampled}


def _quantity_text(quantity: Mapping[str, Any]) -> str:
    if "gap" in quantity:
        return f"{quantity['gap']}: {quantity['text']}"
    value, unit = quantity["value"], quantity["unit"]
    text = f"{value / 1024.0**3:.2f} GiB" if unit == "bytes" else number(value, _UNITS.get(unit, unit))
    if unit in ("joules", "errors", "events"):
        text = f"{text} {unit}"
    if quantity["polled"]:
        return f"{text} (a poll)"
    return text
