"""Guardrails: the limits that the plan says the gateway enforces, against the lengths and the load that are seen (guide 9.4).

Owns what fits, for prompts, outputs and the queue, and the sentences. It cannot see the gateway: what is judged is what the
plan writes of it, and whether requests beyond it were seen all the same. `rule.metric` names the guardrail; a new one is a
row of GUARDRAILS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rules.confidence import CONFIDENCE, Certainty
from rules.methods import request_lengths
from rules.methods.drift import is_lasting_drift
from rules.methods.load import busiest_rate
from rules.methods.request_lengths import OUTPUTS, PROMPTS, LimitSide, judge_runaway
from rules.plan.schema import Guardrails
from rules.sizing import safe_queue_depth
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.wording import number, quantity
from rules.verdicts.context import LIKELY_CONFIDENCE, RuleContext, worst_gap
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedQuantity:
    """One limit of the gateway: its words, its key in the plan, what it limits, and the quantile that its headroom is of.

    Prompts have theirs of P95 (guide 9.4). Of outputs the guide says "generous but finite": the same headroom, of P99.
    """

    words: str
    key: str
    family: str
    quantile: str
    q: float


LIMITED = (
    GuardedQuantity(words="prompt limit", key="max_prompt_tokens", family=PROMPTS, quantile="P95", q=0.95),
    GuardedQuantity(words="output limit", key="max_generation_tokens", family=OUTPUTS, quantile="P99", q=0.99),
)


NOTHING = Reading(value=None, low=0.0, high=None, n=0.0)
"""Of a limit that is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailViolation:
    """What is wrong with one limit, how sure that is, and its numbers."""

    text: str
    certain: bool
    observed: Reading
    expected: Reading


def judge_guardrail(case: RuleContext) -> RuleResult:
    """The guardrail that the row names."""
    return GUARDRAILS[case.rule.metric](case)


def _limits(case: RuleContext) -> RuleResult:
    """Input and output limits: missing, too generous to protect, or exceeded by what is seen."""
    guardrails = case.view.plan.guardrails if case.view.plan else None
    if guardrails is None:
        return case.unknown(Gap.NOT_IN_PLAN, f"the plan has no guardrails{_would_fit(case, LIMITED)}")
    missing = [one for one in LIMITED if getattr(guardrails, one.key) is None]
    told = [one for one in (_complaint(case, guardrails, limited) for limited in LIMITED) if one is not None]
    if missing:
        names = " and ".join(f"no {one.words}" for one in missing)
        text = f"The plan's guardrails have {names}{_would_fit(case, missing)}"
        return _verdict(case, [text, *(one.text for one in told)], told, certain=True)
    if told:
        return _verdict(case, [one.text for one in told], told, certain=any(one.certain for one in told))
    unknown = _unseen(case)
    return unknown if unknown is not None else _fitting(case, guardrails)


def _complaint(case: RuleContext, guardrails: Guardrails, limited: GuardedQuantity) -> GuardrailViolation | None:
    """Requests beyond the limit were seen (it is not enforced, or cuts 1 %), or it is too far above what is seen."""
    limit = getattr(guardrails, limited.key)
    parts = request_lengths.parts_of(case.slices, limited.family)
    if limit is None or request_lengths.count_requests(parts) < case.limit("minimum_requests"):
        return None
    headroom = case.limit("most_headroom")
    for q, at, side in ((0.99, float(limit), LimitSide.LONGER), (limited.q, limit / headroom, LimitSide.SHORTER)):
        likely = request_lengths.is_significant_quantile(parts, q, at, side, LIKELY_CONFIDENCE)
        found = request_lengths.quantile(parts, q)
        if found is None or not likely or not is_lasting_drift(case, limited.family, q, at, side):
            continue
        shown = (
            f"{number(limit, 'tokens')}, {'P99' if q > 0.95 else 'P95'} of what is seen is {quantity(found, 'tokens')}"
        )
        text = f"The {limited.words} is {shown}"
        text += (
            ": it is not enforced" if side is LimitSide.LONGER else f": more than {headroom:g}x, so it protects nothing"
        )
        return GuardrailViolation(
            text=text,
            certain=request_lengths.is_significant_quantile(parts, q, at, side, CONFIDENCE),
            observed=found,
            expected=Reading(value=None, low=0.0, high=float(limit), n=found.n),
        )
    return None


def _would_fit(case: RuleContext, several: Sequence[GuardedQuantity]) -> str:
    """The limits that the guide's headroom gives for what is seen; "" where too little was seen."""
    told = []
    for one in several:
        found = request_lengths.quantile(request_lengths.parts_of(case.slices, one.family), one.q)
        if found is None or found.high is None or found.n < case.limit("minimum_requests"):
            continue
        low, high = (number(case.limit(name) * found.high, "tokens") for name in ("least_headroom", "most_headroom"))
        told.append(f"{low.removesuffix(' tokens')} to {high} for {one.words.removesuffix(' limit')}s")
    return f"; by what is seen {' and '.join(told)} would fit" if told else ""


def _unseen(case: RuleContext) -> Unknown | None:
    """Why nothing can be said of limits that are all there."""
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    n = max(request_lengths.count_requests(request_lengths.parts_of(case.slices, one.family)) for one in LIMITED)
    if n >= case.limit("minimum_requests"):
        return None
    if n > 0 or any(one.family in s.window.histograms for s in case.slices for one in LIMITED):
        return case.too_few_requests(n, case.limit("minimum_requests"))
    return case.unknown(worst_gap(case.slices, PROMPTS), "the engine shows no lengths of requests")


def _fitting(case: RuleContext, guardrails: Guardrails) -> Verdict:
    told: list[str] = []
    observed, limit = NOTHING, 0.0
    for one in LIMITED:
        found = request_lengths.quantile(request_lengths.parts_of(case.slices, one.family), one.q)
        if found is None:
            continue
        given = float(getattr(guardrails, one.key))
        text = (
            f"the {one.words} is {number(given, 'tokens')}, {one.quantile} of what is seen {quantity(found, 'tokens')}"
        )
        told.append(text)
        if len(told) == 1:
            observed, limit = found, given
    sentence = "; ".join(told)
    expected = Reading(value=None, low=0.0, high=limit, n=observed.n)
    return case.verdict(Status.OK, Certainty.CERTAIN, observed, expected, sentence[:1].upper() + sentence[1:])


def _verdict(case: RuleContext, texts: Sequence[str], told: Sequence[GuardrailViolation], *, certain: bool) -> Verdict:
    observed, expected = (told[0].observed, told[0].expected) if told else (NOTHING, NOTHING)
    certainty = Certainty.CERTAIN if certain else Certainty.LIKELY
    return case.verdict(Status.WARNING, certainty, observed, expected, ". ".join(texts))


def _queue_breaker(case: RuleContext) -> RuleResult:
    """Depth at which load is shed against objective x arrivals (Little's law).

    Too deep: the objective is surely broken before anything is shed, at the largest arrivals known, for at night the queue
    is far from any breaker. Too shallow: most of the waiting that the objective allows is refused, at what arrives now.
    """
    plan = case.view.plan
    breaker = plan.guardrails.queue_breaker if plan and plan.guardrails else None
    if plan is None:
        return case.unknown(Gap.NOT_IN_PLAN, "the plan has no guardrails")
    rates = plan.workload.requests_per_second if plan.workload else None
    peak, now = rates.peak if rates else None, busiest_rate(case)
    most = max((rate for rate in (peak, now) if rate), default=None)
    slo = plan.slo.ttft_p99_seconds
    if breaker is None:
        fitting = f"; {_band(case, slo, most)}" if most else ""
        return case.unknown(Gap.NOT_IN_PLAN, f"the plan's guardrails have no queue_breaker{fitting}")
    if most is None:
        return _no_arrivals(case)
    status, depth, rate, remark = _depth(case, breaker, slo, most, now)
    text = f"The breaker sheds load at {breaker:g} queued requests; {_band(case, slo, rate)}{remark}"
    observed = Reading(value=breaker, low=breaker, high=breaker, n=1.0)
    low, high = case.limit("low") * depth, case.limit("high") * depth
    expected = Reading(value=None, low=low, high=high, n=1.0)
    return case.verdict(status, Certainty.CERTAIN, observed, expected, text)


def _depth(
    case: RuleContext, breaker: float, slo: float, most: float, now: float | None
) -> tuple[Status, float, float, str]:
    """Status, the depth that breaks the objective, the arrivals it belongs to, and the remark."""
    depth = safe_queue_depth(slo, most)
    if breaker > case.limit("too_deep") * depth:
        remark = f": from {depth:,.0f} on every queued request misses {number(slo, 'seconds')} before any is shed"
        return Status.WARNING, depth, most, remark
    present = safe_queue_depth(slo, now) if now else 0.0
    if now and breaker < case.limit("too_shallow") * present:
        remark = f": {present:,.0f} could wait within {number(slo, 'seconds')}, most of them are refused"
        return Status.WARNING, present, now, remark
    return Status.OK, depth, most, ""


def _band(case: RuleContext, slo: float, rate: float) -> str:
    depth = safe_queue_depth(slo, rate)
    low, high = case.limit("low") * depth, case.limit("high") * depth
    least, most = f"{low:,.0f}", f"{high:,.0f}"
    fitting = f"{least} fits" if least == most else f"{least} to {most} fit"
    return f"{fitting} {number(slo, 'seconds')} at {number(rate, 'per_second')}"


def _no_arrivals(case: RuleContext) -> Unknown:
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    if any("requests_finished" in one.window.counters for one in case.slices):
        return case.unknown(Gap.NO_TRAFFIC, "nothing arrived, and the plan has no peak")
    return case.unknown(worst_gap(case.slices, "requests_finished"), "arrivals are not known, and the plan has no peak")


GUARDRAILS: Mapping[str, Callable[[RuleContext], RuleResult]] = {
    "max_tokens": _limits,
    "queue_breaker": _queue_breaker,
    "ended_by_length": judge_runaway,
}
"""By the row's `metric`."""
