"""Guardrails that would fit what is seen (guide 9.4): 2 to 3 times P95 for lengths, 80 to 90 % of the queue that breaks the SLO.

Owns the numbers for a plan; whether the present ones are wrong is `rules.methods.guardrails`'s, whose thresholds are used here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rules.catalogue.registry import BY_NAME as RULES
from rules.methods import request_lengths
from rules.methods.guardrails import LIMITED
from rules.resize.production_summary import ProductionSummary
from rules.resize.workload import WorkloadNow
from rules.sizing import safe_queue_depth


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailRange:
    """A guardrail by its key in the plan: what is planned (None: nothing), and between what it would fit; `proposed` is the
    middle. `basis` says what it was reckoned from."""

    key: str
    planned: float | None
    low: float
    high: float
    proposed: int
    basis: str


def list_guardrail_ranges(seen: ProductionSummary, workload: WorkloadNow) -> tuple[GuardrailRange, ...]:
    """Every guardrail that can be reckoned from what was seen; lengths need as many requests as the rule does."""
    plan = seen.view.plan
    if plan is None:
        return ()
    present = plan.guardrails
    found = [*_lengths(seen, {one.key: getattr(present, one.key) if present else None for one in LIMITED})]
    rates = [rate for rate in (workload.peak_rps, workload.planned_peak_rps) if rate]
    if rates:
        found.append(
            compute_queue_breaker(
                plan.slo.ttft_p99_seconds, max(rates), present.queue_breaker if present else None, seen.view.limits
            )
        )
    return tuple(found)


def compute_queue_breaker(
    slo_seconds: float, rps: float, planned: float | None, limits: Mapping[str, Mapping[str, float]]
) -> GuardrailRange:
    """The queue at which to shed load: 80 to 90 % of objective x arrivals; 2 s at 50 rps are 100, so 80 to 90."""
    rule, depth = RULES["QueueBreakerOff"], safe_queue_depth(slo_seconds, rps)
    low, high = rule.limit("low", limits) * depth, rule.limit("high", limits) * depth
    return GuardrailRange(
        key="queue_breaker",
        planned=planned,
        low=low,
        high=high,
        proposed=max(1, round((low + high) / 2)),
        basis=f"{slo_seconds:g} s x {rps:.4g} rps = {depth:.4g} queued requests miss the objective",
    )


def _lengths(seen: ProductionSummary, planned: Mapping[str, float | None]) -> list[GuardrailRange]:
    rule, found = RULES["GuardrailMissing"], []
    for one in LIMITED:
        parts = seen.lately.histograms.get(one.family, ()) if seen.lately else ()
        quantile = request_lengths.quantile(parts, one.q)
        if quantile is None or quantile.high is None or quantile.n < rule.limit("minimum_requests", seen.view.limits):
            continue
        best = quantile.value if quantile.value is not None else quantile.high
        low, high = (rule.limit(name, seen.view.limits) * best for name in ("least_headroom", "most_headroom"))
        found.append(
            GuardrailRange(
                key=one.key,
                planned=planned[one.key],
                low=low,
                high=high,
                proposed=round((low + high) / 2),
                basis=f"{one.quantile} of what is seen is {best:,.0f} tokens",
            )
        )
    return found
