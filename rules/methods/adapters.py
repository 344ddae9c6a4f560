"""LoRA adapters: requests that wait because the adapters in use do not fit in GPU memory at once (guide 9.3).

No engine exposes hits, loads or evictions of adapters, only their effect: held-back requests, and lists of running and
waiting adapters. Loads without a wait leave no trace, so the result is unknown, never ok.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rules.confidence import Certainty
from rules.methods.evidence import capitalize, certain_if, exact_reading, range_reading
from rules.plan.load_bins import BinnedWindow
from rules.telemetry.reading_methods import mean_level, replica_rate
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.windows import Window
from rules.telemetry.wording import format_count, number
from rules.verdicts.context import RuleContext, is_persistent
from rules.verdicts.held_windows import hold
from rules.verdicts.verdict import RuleResult, Status

LOADS = ("kv_transfer_seconds", "external_prefix_queried_tokens")
"""Families of a KV connector. With it requests may be held back for KV blocks too."""

READ = frozenset({"adapters_running", "adapters_waiting", "requests_waiting_deferred", "requests_finished", *LOADS})
"""Families of the sum."""

UNCOUNTED = "how often adapters are loaded is not exposed"
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
    """Compare held-back requests with the TTFT objective, else running adapters with those that fit.

    Certain by held-back requests without a KV connector. Likely by the lists: vLLM may name an adapter in both of them.
    """
    total = hold(case.binned).sum_families(READ)
    served = mean_level(total, "adapters_running")
    if isinstance(served, Missing):
        return case.unknown(served.gap, f"no LoRA adapters are exposed: {UNCOUNTED}")
    if not served.high:
        return case.unknown(Gap.NO_TRAFFIC, "no request with a LoRA adapter was seen")
    whole = _measure(total)
    if whole.finished < case.limit("minimum_requests"):
        return case.too_few_requests(whole.finished, case.limit("minimum_requests"))
    allowed = case.limit("held_share") * (case.context.basis.ttft_slo_seconds or case.limit("ttft_slo_seconds"))
    fit = case.context.plan.lora.max_adapters if case.context.plan and case.context.plan.lora else None

    def is_held_back(part: AdapterWait) -> bool:
        return part.seconds is not None and part.seconds > allowed

    def is_crowded(part: AdapterWait) -> bool:
        return fit is not None and part.most >= fit and part.waiting > case.limit("waiting")

    last, *each = (_measure_part(group) for group in (case.last_quarter(case.binned), *case.periods(case.binned)))
    observed, expected = exact_reading(whole.seconds, whole.finished), range_reading(0.0, allowed, whole.finished)
    ran, healthy = format_count(int(whole.most), "adapter"), f"up to {number(allowed, 'seconds')} is healthy"
    waited = number(whole.seconds or 0.0, "seconds")
    if is_held_back(whole) and is_persistent(last, each, is_held_back):
        connector = any(total.counters.get(name) or any(p.n for p in total.histograms.get(name, ())) for name in LOADS)
        slots = "adapter slots or KV loads" if connector else "adapter slots"
        sentence = f"Requests wait {waited} for {slots} on average; {healthy}"
        details = (f"at most {ran} ran at once{f', {fit} fit' if fit is not None else ''}", UNCOUNTED)
        certainty = certain_if(not connector)
        return case.verdict(Status.WARNING, certainty, observed, expected, sentence, details=details)
    if is_crowded(whole) and is_persistent(last, each, is_crowded):
        waiting = f"requests of {number(whole.waiting, '')} adapters wait on average"
        sentence, observed = f"{ran} ran at once where {fit} fit; {waiting}", range_reading(0.0, None, whole.finished)
        expected = Reading(value=0.0, low=0.0, high=None, n=whole.finished)
        return case.verdict(Status.WARNING, Certainty.LIKELY, observed, expected, sentence, details=(UNCOUNTED,))
    fine = "no more adapters ran than fit" if whole.seconds is None else f"requests waited {waited} each, {healthy}"
    if any(part is not None and (is_held_back(part) or is_crowded(part)) for part in each):
        # Unknown would not end a finding.
        sentence = capitalize(fine) if whole.seconds is not None else "Requests of adapters waited"
        details = ("not lastingly, or no longer", UNCOUNTED)
        return case.verdict(Status.OK, Certainty.LIKELY, observed, expected, sentence, details=details)
    return case.unknown(Gap.NOT_EXPOSED, f"{fine}; {UNCOUNTED}")


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
