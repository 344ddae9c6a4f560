"""LoRA adapters: requests that wait because the adapters in use do not fit in GPU memory at once (guide 9.3).

No engine exposes hits, loads or evictions of adapters, only their effect: held-back requests, and lists of running and
waiting adapters. Loads without a wait leave no trace, so the result is unknown, never ok.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rules.confidence import Certainty
from rules.engines.registry import ENGINES
from rules.methods.evidence import capitalize, certain_if, exact_reading, range_reading
from rules.plan.load_bins import BinnedWindow
from rules.telemetry.reading_methods import mean_level, replica_rate
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.windows import Window
from rules.telemetry.wording import number
from rules.verdicts.context import RuleContext, is_persistent
from rules.verdicts.held_windows import hold
from rules.verdicts.verdict import RuleResult, Status

LOADS = ("kv_transfer_seconds", "external_prefix_queried_tokens")
"""Families of a KV connector. With it requests may be held back for KV blocks too."""

READ = frozenset({"adapters_running", "adapters_waiting", "requests_waiting_deferred", "requests_finished", *LOADS})
"""Families of the sum."""

LOADS_UNKNOWN = "how often adapters are loaded is not exposed"
"""Detail of every verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterWait:
    """Seconds held back per finished request (Little's law), None if not exposed, and adapters of a replica.

    `most` is the maximum of running adapters, `waiting` the mean of adapters with waiting requests.
    """

    seconds: float | None
    most: float
    waiting: float
    finished: float


def judge_adapters(case: RuleContext) -> RuleResult:
    """Compare held-back requests with the TTFT objective, else running adapters with those that fit."""
    if not case.binned:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    total = hold(case.binned).sum_families(READ)
    served = mean_level(total, "adapters_running")
    if isinstance(served, Missing):
        return case.unknown(served.gap, f"no LoRA adapters are exposed: {_why(case)}")
    if not served.high:
        return case.unknown(Gap.NO_TRAFFIC, "no request with a LoRA adapter was seen")
    found = _measure(total)
    if found.finished < case.limit("minimum_requests"):
        return case.too_few_requests(found.finished, case.limit("minimum_requests"))
    allowed = case.limit("held_share") * (case.context.basis.ttft_slo_seconds or case.limit("ttft_slo_seconds"))
    most = case.context.plan.lora.max_adapters if case.context.plan and case.context.plan.lora else None

    def is_held_back(part: AdapterWait) -> bool:
        return part.seconds is not None and part.seconds > allowed

    def is_crowded(part: AdapterWait) -> bool:
        return most is not None and part.most >= most and part.waiting > case.limit("waiting")

    last, *each = (_measure_part(group) for group in (case.last_quarter(case.binned), *case.periods(case.binned)))
    if is_held_back(found) and is_persistent(last, each, is_held_back):
        return _report_held_back(case, found, total, allowed, most)
    if most is not None and is_crowded(found) and is_persistent(last, each, is_crowded):
        return _report_crowded(case, found, most)
    excuse = _explain_fine(found, allowed)
    if any(part is not None and (is_held_back(part) or is_crowded(part)) for part in each):
        # Unknown would not end a finding.
        sentence = capitalize(excuse) if found.seconds is not None else "Requests of adapters waited"
        details = ("not lastingly, or no longer", LOADS_UNKNOWN)
        observed, expected = exact_reading(found.seconds, found.finished), range_reading(0.0, allowed, found.finished)
        return case.verdict(Status.OK, Certainty.LIKELY, observed, expected, sentence, details=details)
    return case.unknown(Gap.NOT_EXPOSED, f"{excuse}; {_why(case)}")


def _measure_part(binned: Sequence[BinnedWindow]) -> AdapterWait | None:
    if not binned:
        return None
    total = hold(binned).sum_families(READ)
    return None if isinstance(mean_level(total, "adapters_running"), Missing) else _measure(total)


def _measure(total: Window) -> AdapterWait:
    """Return the mean wait of a finished request by Little's law: mean held / finished per second."""
    held, rps = mean_level(total, "requests_waiting_deferred"), replica_rate(total, "requests_finished")
    served, waiting = mean_level(total, "adapters_running"), mean_level(total, "adapters_waiting")
    return AdapterWait(
        seconds=(held.value or 0.0) / rps if isinstance(held, Reading) and rps else None,
        most=served.high or 0.0 if isinstance(served, Reading) else 0.0,
        waiting=waiting.value or 0.0 if isinstance(waiting, Reading) else 0.0,
        finished=total.counters.get("requests_finished", 0.0),
    )


def _report_held_back(
    case: RuleContext, found: AdapterWait, total: Window, allowed: float, slots: int | None
) -> RuleResult:
    seconds = found.seconds or 0.0
    connector = any(total.counters.get(name) or any(p.n for p in total.histograms.get(name, ())) for name in LOADS)
    also = "adapter slots or KV loads" if connector else "adapter slots"
    fit = f", {slots} fit" if slots is not None else ""
    sentence = f"Requests wait {number(seconds, 'seconds')} for {also} on average; up to {number(allowed, 'seconds')} is healthy"
    details = (f"at most {_adapters(found.most)} ran at once{fit}", LOADS_UNKNOWN)
    observed, expected = exact_reading(seconds, found.finished), range_reading(0.0, allowed, found.finished)
    return case.verdict(Status.WARNING, certain_if(not connector), observed, expected, sentence, details=details)


def _report_crowded(case: RuleContext, found: AdapterWait, most: int) -> RuleResult:
    """Return a likely warning: vLLM may name an adapter in both of its lists, so they are no proof (PEERS 2.12)."""
    waiting = f"requests of {number(found.waiting, '')} adapters wait on average"
    sentence = f"{_adapters(found.most)} ran at once where {most} fit; {waiting}"
    observed = range_reading(0.0, None, found.finished)
    expected = Reading(value=0.0, low=0.0, high=None, n=found.finished)
    return case.verdict(Status.WARNING, Certainty.LIKELY, observed, expected, sentence, details=(LOADS_UNKNOWN,))


def _adapters(count: float) -> str:
    return f"{count:.0f} adapter" if count == 1 else f"{count:.0f} adapters"


def _explain_fine(found: AdapterWait, allowed: float) -> str:
    if found.seconds is None:
        return "no more adapters ran than fit"
    return f"requests waited {number(found.seconds, 'seconds')} each, up to {number(allowed, 'seconds')} is healthy"


def _engine(case: RuleContext) -> str:
    """Return the title of the planned engine."""
    name = case.context.plan.engine if case.context.plan else ""
    return next((engine.title for engine in ENGINES if engine.name == name), name or "the engine")


def _why(case: RuleContext) -> str:
    """Return why the engine does not expose adapter loads, from its table."""
    name = case.context.plan.engine if case.context.plan else ""
    reasons = (engine.explain_missing(("adapter_evictions",)) for engine in ENGINES if engine.name == name)
    return next(filter(None, reasons), f"{_engine(case)} counts no adapter loads or evictions")
