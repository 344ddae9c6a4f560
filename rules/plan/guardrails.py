"""Guardrails: the gateway's token limits and queue breaker in the plan, against lengths and arrivals (guide 9.4).

The gateway is not observed. `plan check` compares with the plan, `check` and the report with production too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from rules.confidence import Certainty
from rules.plan.mistakes import Case, Found, Severity
from rules.plan.schema import TierPlan
from rules.sizing import safe_queue_depth
from rules.telemetry.signals import Reading
from rules.telemetry.wording import number, quantity

WORDS = {"max_prompt_tokens": "prompt limit", "max_generation_tokens": "output limit", "queue_breaker": "queue breaker"}
"""Guardrails by their key in the plan."""

LENGTHS = {"max_prompt_tokens": ("prompt_tokens", "p95"), "max_generation_tokens": ("generation_tokens", "p99")}
"""Lengths that a token limit is measured against: key of the workload, and quantile.

Prompts have headroom over P95 (guide 9.4). The guide calls the limit of outputs "generous but finite": P99.
"""

Threshold = Callable[[str], float]
"""Threshold of the catalogue's row Guardrails by its name, or the tier's override."""

State = Literal["fits", "missing", "not_in_plan", "too_low", "too_high", "ineffective", "refuses", "unknown"]
"""`not_in_plan`: the plan has no guardrails at all. `ineffective`: requests exceed it, or it sheds after the objective is
missed. `refuses`: more than 1 of 20 planned requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guardrail:
    """Guardrail by its key in the plan: planned value (None: none), fitting range in whole tokens or requests, and state.

    `high` is None where lengths are beyond the engine's last bucket, `low` too where nothing is known. `claim` is the
    verdict in words, `basis` what the range follows from.
    """

    key: str
    planned: float | None
    low: int | None = None
    high: int | None = None
    state: State
    certainty: Certainty = Certainty.CERTAIN
    claim: str
    basis: str

    @property
    def proposed(self) -> int | None:
        """Return the middle of the fitting range."""
        return None if self.low is None or self.high is None else max(1, round((self.low + self.high) / 2))

    @property
    def status(self) -> str:
        """Return the status of a verdict: ok, unknown or warning."""
        return {"fits": "ok", "unknown": "unknown", "not_in_plan": "unknown"}.get(self.state, "warning")

    @property
    def sentence(self) -> str:
        """Return value, verdict and range: "prompt limit 5,000 is too low; 7,600 to 11,400 fit: 2 to 3 x ..."."""
        head = f"{WORDS[self.key]} {self.planned:,.6g} {self.claim}" if self.planned else f"no {WORDS[self.key]}"
        if self.low is None:
            return f"{head}; {self.basis}"
        span = f"{self.low:,}"
        if self.high != self.low:
            span += " or more" if self.high is None else f" to {self.high:,}"
        if self.state != "fits":
            span += " fits" if self.high == self.low else " fit"
        return f"{head}; {span}: {self.basis}"


def judge_guardrails(
    tier: TierPlan, threshold: Threshold, seen: Mapping[str, Reading], seen_rps: float | None
) -> tuple[Guardrail, ...]:
    """Return the guardrails of a tier. A tier without an objective on the first token has no queue breaker.

    `seen` are readings by signal, such as prompt_tokens_p95: of enough requests they count, else the planned lengths.
    `seen_rps` are the busiest arrivals of production, in requests per second. A higher planned peak counts instead.
    """
    guardrails = [_judge_limit(tier, key, threshold, seen) for key in LENGTHS]
    if tier.slo.ttft_p99_seconds is not None:
        guardrails.append(_judge_breaker(tier, tier.slo.ttft_p99_seconds, threshold, seen_rps))
    if tier.guardrails is None:
        guardrails = [replace(guardrail, state="not_in_plan") for guardrail in guardrails]
    return tuple(guardrails)


def _judge_limit(tier: TierPlan, key: str, threshold: Threshold, seen: Mapping[str, Reading]) -> Guardrail:
    """Return a token limit: 2 to 3 x the best estimate of its quantile. Certain if both ends of the bucket agree."""
    part, quantile = LENGTHS[key]
    planned, p95 = tier.value_at(f"guardrails.{key}"), tier.value_at(f"workload.{part}.p95")
    length, longest = seen.get(f"{part}_{quantile}"), seen.get(f"{part}_p99")
    is_seen = length is not None and length.n >= threshold("minimum_requests")
    if not is_seen:
        value = tier.value_at(f"workload.{part}.{quantile}")
        length, longest = (Reading(value=value, low=value, high=value, n=0.0) if value else None), None
    state: State = "missing" if planned is None else "fits"
    claim, proven = "fits", planned is None
    if planned and p95 and not is_seen and planned < p95:
        state = "refuses"
        claim = f"is below the planned P95 of {p95:,.6g} tokens: more than 1 of 20 requests is over it"
    if length is None:
        if state == "fits":
            state, claim = "unknown", "cannot be compared"
        basis = f"no {quantile.upper()} of {part} is planned or seen"
        return Guardrail(key=key, planned=planned, state=state, claim=claim, basis=basis)
    least, most = threshold("least_headroom"), threshold("most_headroom")
    bottom, top = length.low or 0.0, length.high
    best = bottom if length.value is None or top is None else length.value
    low, high = _whole(least * best), None if top is None else _whole(most * best)
    if state == "fits":
        if longest is not None and max(longest.low or 0.0, longest.value or 0.0) > planned:
            state, proven = "ineffective", (longest.low or 0.0) >= planned
            claim = f"is not enforced, or cuts, as P99 is {quantity(longest, 'tokens')}"
        elif planned < low:
            state, claim, proven = "too_low", "is too low", planned < _whole(least * bottom)
        elif high is not None and planned > high:
            state, claim, proven = "too_high", "is too high", planned > _whole(most * (top or 0.0))
        else:
            proven = top is not None and least * top <= planned <= most * bottom
    span = "" if bottom == top else f" ({quantity(length, 'tokens')})"
    basis = f"{least:g} to {most:g} x the {'seen' if is_seen else 'planned'} {quantile.upper()}, {number(best, 'tokens')}{span}"
    certainty = Certainty.CERTAIN if proven or not is_seen else Certainty.LIKELY
    return Guardrail(
        key=key, planned=planned, low=low, high=high, state=state, certainty=certainty, claim=claim, basis=basis
    )


def _judge_breaker(tier: TierPlan, seconds: float, threshold: Threshold, seen_rps: float | None) -> Guardrail:
    """Return the queue breaker: 80 to 90 % of objective x busiest arrivals (2 s at 50 rps: 80 to 90).

    The range is in whole requests, at least one: of few requests no whole number may lie between 80 and 90 %.
    """
    key, planned = "queue_breaker", tier.value_at("guardrails.queue_breaker")
    peak = tier.value_at("workload.requests_per_second.peak") or 0.0
    rps = max(peak, seen_rps or 0.0)
    state: State = "missing" if planned is None else "unknown"
    if not rps:
        basis = "no arrivals are planned or seen"
        return Guardrail(key=key, planned=planned, state=state, claim="cannot be compared", basis=basis)
    depth = safe_queue_depth(seconds, rps)
    low, high = (max(1, _whole(threshold(name) * depth)) for name in ("low", "high"))
    state, claim = state if planned is None else "fits", "fits"
    if planned is not None and planned < low:
        state, claim = "too_low", f"sheds too early, at {planned / depth:.0%}"
    elif planned is not None and planned > max(high, threshold("too_deep") * depth):
        state = "ineffective"
        claim = f"is too deep: beyond {depth:,.3g} a violation is guaranteed before any request is shed"
    elif planned is not None and planned > high:
        state, claim = "too_high", f"is too close to a guaranteed violation, at {planned / depth:.0%}"
    share = f"{threshold('low'):.0%} to {threshold('high'):.0%}"
    origin = "planned peak" if peak == rps else "peak seen"
    basis = f"{share} of {number(seconds, 'seconds')} x {number(rps, 'per_second')}, the {origin}"
    return Guardrail(key=key, planned=planned, low=low, high=high, state=state, claim=claim, basis=basis)


def _whole(value: float) -> int:
    """Return whole tokens or requests, also of a product with a threshold that has no bound."""
    return round(min(value, sys.maxsize))


def check_guardrails(context: Case) -> Found:
    """Yield guardrails that are missing, or do not fit the planned lengths and peak."""
    guardrails = judge_guardrails(context.tier, partial(context.limit, "Guardrails"), {}, None)
    if context.tier.guardrails is None:
        known = "; ".join(guardrail.sentence for guardrail in guardrails if guardrail.low is not None)
        yield "guardrails", "info", f"is not in the plan{f'; {known}' if known else ''}"
        return
    severities: dict[str, Severity] = {"missing": "info", "refuses": "mistake"}
    for guardrail in guardrails:
        if guardrail.status == "warning":
            severity = severities.get(guardrail.state, "warning")
            yield f"guardrails.{guardrail.key}", severity, f"{guardrail.sentence} (guide 9.4)"
