"""LoRA adapters: requests that wait because the adapters in use do not fit in GPU memory at once (guide 9.3).

Owns what can be said of a cache that no engine counts: neither hits nor loads nor evictions are exposed. What is left is
its effect. Requests held back say it where the engine tells them apart, and its list of adapters where their limit is in
the plan. Adapters that were paged in without anybody waiting leave no trace: then the answer is unknown, never ok.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rules.confidence import Certainty
from rules.engines.registry import ENGINES
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import windows
from rules.telemetry.reading_methods import mean_level, replica_rate
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.windows import Window
from rules.telemetry.wording import number
from rules.verdicts.context import RuleContext, is_persistent
from rules.verdicts.verdict import RuleResult, Status

LOADS = ("kv_transfer_seconds", "external_prefix_queried_tokens")
"""What only counts with a KV connector; its requests may be held back for KV blocks as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterWait:
    """Requests held back, in seconds for each that finished (Little's law); None where the engine does not tell them apart.

    `running` and `waiting` are adapters with running and with waiting requests, means of a replica; `most` the most that
    ran at once.
    """

    seconds: float | None
    running: float
    most: float
    waiting: float
    finished: float


READ = frozenset({"adapters_running", "adapters_waiting", "requests_waiting_deferred", "requests_finished", *LOADS})
"""The families that are added up."""


def judge_adapters(case: RuleContext) -> RuleResult:
    """Held-back requests against the TTFT objective; else as many adapters running as fit, and others waiting."""
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    total = windows.sum_families((one.window for one in case.slices), READ)
    served = mean_level(total, "adapters_running")
    if isinstance(served, Missing):
        return case.unknown(
            served.gap, f"{_engine(case)} tells of no LoRA adapters: it serves none, or does not say ({_why(case)})"
        )
    if not served.high:
        return case.unknown(Gap.NO_TRAFFIC, "no request with a LoRA adapter was seen")
    found = _held(total)
    if found.finished < case.limit("minimum_requests"):
        return case.too_few_requests(found.finished, case.limit("minimum_requests"))
    allowed = case.limit("held_share") * _objective(case)
    most = case.view.plan.lora.max_adapters if case.view.plan and case.view.plan.lora else None

    def held_back(part: AdapterWait) -> bool:
        return part.seconds is not None and part.seconds > allowed

    def crowded(part: AdapterWait) -> bool:
        return most is not None and part.most >= most and part.waiting > case.limit("waiting")

    if _lasts(case, held_back, found):
        return _by_waiting(case, found, total, allowed)
    if most is not None and _lasts(case, crowded, found):
        return _by_names(case, found, most)
    each = [part for group in case.periods(case.slices) if (part := _of(group)) is not None]
    if any(held_back(part) or crowded(part) for part in each):
        return _over(case, found, allowed)
    return case.unknown(Gap.NOT_EXPOSED, f"{_nothing_held(found, allowed)}: {_why(case)}")


def _lasts(case: RuleContext, exceeds: Callable[[AdapterWait], bool], found: AdapterWait) -> bool:
    """Over the hold, in its last quarter, and in three separate minutes."""
    if not exceeds(found):
        return False
    return is_persistent(
        _of(case.last_quarter(case.slices)), [_of(group) for group in case.periods(case.slices)], exceeds
    )


def _of(slices: Sequence[BinnedWindow]) -> AdapterWait | None:
    if not slices:
        return None
    total = windows.sum_families((one.window for one in slices), READ)
    return None if isinstance(mean_level(total, "adapters_running"), Missing) else _held(total)


def _held(total: Window) -> AdapterWait:
    """By Little's law each finished request waited mean held / finished per second."""
    held, rps = mean_level(total, "requests_waiting_deferred"), replica_rate(total, "requests_finished")
    served, waiting = mean_level(total, "adapters_running"), mean_level(total, "adapters_waiting")
    return AdapterWait(
        seconds=(held.value or 0.0) / rps if isinstance(held, Reading) and rps else None,
        running=served.value or 0.0 if isinstance(served, Reading) else 0.0,
        most=served.high or 0.0 if isinstance(served, Reading) else 0.0,
        waiting=waiting.value or 0.0 if isinstance(waiting, Reading) else 0.0,
        finished=total.counters.get("requests_finished", 0.0),
    )


def _by_waiting(case: RuleContext, found: AdapterWait, total: Window, allowed: float) -> RuleResult:
    seconds = found.seconds or 0.0
    connector = any(total.counters.get(name) or any(p.n for p in total.histograms.get(name, ())) for name in LOADS)
    also = "adapter slots or KV loads" if connector else "adapter slots"
    slots = case.view.plan.lora.max_adapters if case.view.plan and case.view.plan.lora else None
    fit = f", {slots} fit" if slots is not None else ""
    sentence = (
        f"Requests are held back for {also}: {number(seconds, 'seconds')} each on average, up to "
        f"{number(allowed, 'seconds')} is healthy; at most {_adapters(found.most)} ran at once{fit}. "
        "How often adapters are loaded is not exposed"
    )
    observed = Reading(value=seconds, low=seconds, high=seconds, n=found.finished)
    expected = Reading(value=None, low=0.0, high=allowed, n=found.finished)
    certainty = Certainty.LIKELY if connector else Certainty.CERTAIN
    return case.verdict(Status.WARNING, certainty, observed, expected, sentence)


def _by_names(case: RuleContext, found: AdapterWait, most: int) -> RuleResult:
    """vLLM has been seen to name an adapter in both of its lists, so the lists alone are no proof (PEERS 2.12)."""
    sentence = (
        f"{_adapters(found.most)} ran at once where {most} fit, and requests of {found.waiting:.2g} adapters were waiting "
        "on average. How often adapters are loaded is not exposed"
    )
    observed = Reading(value=None, low=0.0, high=None, n=found.finished)
    return case.verdict(
        Status.WARNING, Certainty.LIKELY, observed, Reading(value=0.0, low=0.0, high=None, n=found.finished), sentence
    )


def _over(case: RuleContext, found: AdapterWait, allowed: float) -> RuleResult:
    """Pressure that is over must be seen to be over: unknown would leave its finding standing for good."""
    told = _nothing_held(found, allowed) if found.seconds is not None else "Requests of adapters waited"
    sentence = (
        f"{told[0].upper()}{told[1:]}; not lastingly, or not any more. How often adapters are loaded is not exposed"
    )
    observed = Reading(value=found.seconds, low=found.seconds, high=found.seconds, n=found.finished)
    expected = Reading(value=None, low=0.0, high=allowed, n=found.finished)
    return case.verdict(Status.OK, Certainty.LIKELY, observed, expected, sentence)


def _adapters(count: float) -> str:
    return f"{count:.0f} adapter" if count == 1 else f"{count:.0f} adapters"


def _nothing_held(found: AdapterWait, allowed: float) -> str:
    if found.seconds is None:
        return "whether requests are held back for adapters is not told, and no more adapters ran than fit"
    return f"requests were held back for {number(found.seconds, 'seconds')} each, up to {number(allowed, 'seconds')} is healthy"


def _objective(case: RuleContext) -> float:
    return case.view.basis.ttft_slo_seconds or case.limit("ttft_slo_seconds")


def _engine(case: RuleContext) -> str:
    """The engine's title, by the plan."""
    name = case.view.plan.engine if case.view.plan else ""
    return next((engine.title for engine in ENGINES if engine.name == name), name or "the engine")


def _why(case: RuleContext) -> str:
    """What the engine's own table says of adapter loads."""
    name = case.view.plan.engine if case.view.plan else ""
    told = (
        text for engine in ENGINES if engine.name == name for family, text in engine.not_exposed if "adapter" in family
    )
    return next(told, f"{_engine(case)} counts no adapter loads or evictions")
