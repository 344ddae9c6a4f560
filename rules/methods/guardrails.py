"""Guardrails: the limits of the gateway in the plan, against lengths and load (guide 9.4).

The gateway is not observed. Evidence are the plan, and requests beyond its limits. `rule.metric` names the guardrail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rules.confidence import CONFIDENCE, Certainty
from rules.light_dataclass import light_dataclass
from rules.methods.drift import is_lasting_drift
from rules.methods.evidence import (
    OUTPUTS,
    PROMPTS,
    LimitSide,
    certain_if,
    count_requests,
    exact_reading,
    is_significant_quantile,
    quantile,
    range_reading,
    sum_parts,
)
from rules.methods.load import busiest_rate
from rules.plan.schema import Guardrails
from rules.sizing import safe_queue_depth
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.wording import number, quantity
from rules.verdicts.context import LIKELY_CONFIDENCE, RuleContext, worst_gap
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict


@light_dataclass(frozen=True, slots=True, kw_only=True)
class GuardedQuantity:
    """Limit of the gateway: its words, its key in the plan, the family it limits, and the quantile of its headroom.

    Prompts have headroom over P95 (guide 9.4). The guide calls the limit of outputs "generous but finite": P99.
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

NOTHING = range_reading(0.0, None, 0.0)
"""Reading of a limit that does not exist."""


@light_dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailViolation:
    """Violation of one limit, in words and numbers."""

    text: str
    certain: bool
    observed: Reading
    expected: Reading


def judge_guardrail(case: RuleContext) -> RuleResult:
    """Evaluate the guardrail that `metric` of the rule names."""
    return GUARDRAILS[case.rule.metric](case)


def _check_limits(case: RuleContext) -> RuleResult:
    """Find token limits that are missing, exceeded, or too generous to protect."""
    guardrails = case.context.plan.guardrails if case.context.plan else None
    if guardrails is None:
        proposed = _propose_limits(case, LIMITED)
        return case.unknown(Gap.NOT_IN_PLAN, "; ".join(filter(None, ("the plan has no guardrails", proposed))))
    missing = [limited for limited in LIMITED if getattr(guardrails, limited.key) is None]
    found = [one for limited in LIMITED if (one := _find_violation(case, guardrails, limited)) is not None]
    texts = [one.text for one in found]
    if missing:
        names = " and ".join(f"no {limited.words}" for limited in missing)
        texts = [f"The plan's guardrails have {names}", _propose_limits(case, missing), *texts]
    if texts:
        observed, expected = (found[0].observed, found[0].expected) if found else (NOTHING, NOTHING)
        certainty = certain_if(bool(missing) or any(one.certain for one in found))
        return case.verdict(Status.WARNING, certainty, observed, expected, texts[0], details=texts[1:])
    return _explain_unseen(case) or _confirm_limits(case, guardrails)


def _find_violation(case: RuleContext, guardrails: Guardrails, limited: GuardedQuantity) -> GuardrailViolation | None:
    """Return a limit that requests exceed (it is not enforced, or cuts 1 %), or that is far above all requests."""
    limit = getattr(guardrails, limited.key)
    parts = sum_parts(case.binned, limited.family)
    if limit is None or count_requests(parts) < case.limit("minimum_requests"):
        return None
    headroom = case.limit("most_headroom")
    for q, at, side, consequence in (
        (0.99, float(limit), LimitSide.LONGER, "is not enforced"),
        (limited.q, limit / headroom, LimitSide.SHORTER, f"protects nothing, at more than {headroom:g}x"),
    ):
        likely = is_significant_quantile(parts, q, at, side, LIKELY_CONFIDENCE)
        found = quantile(parts, q)
        if found is None or not likely or not is_lasting_drift(case, limited.family, q, at, side):
            continue
        seen = f"{'P99' if q > 0.95 else 'P95'} is {quantity(found, 'tokens')}"
        return GuardrailViolation(
            text=f"The {limited.words} of {number(limit, 'tokens')} {consequence}; {seen}",
            certain=is_significant_quantile(parts, q, at, side, CONFIDENCE),
            observed=found,
            expected=range_reading(0.0, float(limit), found.n),
        )
    return None


def _propose_limits(case: RuleContext, several: Sequence[GuardedQuantity]) -> str:
    """Return the limits by the headroom of the guide, in words. Return "" with too few requests."""
    texts = []
    for limited in several:
        found = quantile(sum_parts(case.binned, limited.family), limited.q)
        if found is None or found.high is None or found.n < case.limit("minimum_requests"):
            continue
        low, high = (number(case.limit(name) * found.high, "tokens") for name in ("least_headroom", "most_headroom"))
        texts.append(f"{low.removesuffix(' tokens')} to {high} for {limited.words.removesuffix(' limit')}s")
    return f"{' and '.join(texts)} would fit" if texts else ""


def _explain_unseen(case: RuleContext) -> Unknown | None:
    """Return why limits cannot be evaluated that are all in the plan."""
    if not case.binned:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    n = max(count_requests(sum_parts(case.binned, limited.family)) for limited in LIMITED)
    if n >= case.limit("minimum_requests"):
        return None
    if n > 0 or any(limited.family in s.window.histograms for s in case.binned for limited in LIMITED):
        return case.too_few_requests(n, case.limit("minimum_requests"))
    return case.unknown(worst_gap(case.binned, PROMPTS), "the engine shows no lengths of requests")


def _confirm_limits(case: RuleContext, guardrails: Guardrails) -> Verdict:
    texts: list[str] = []
    observed, limit = NOTHING, 0.0
    for limited in LIMITED:
        found = quantile(sum_parts(case.binned, limited.family), limited.q)
        if found is None:
            continue
        given = float(getattr(guardrails, limited.key))
        texts.append(
            f"the {limited.words} is {number(given, 'tokens')}, {limited.quantile} {quantity(found, 'tokens')}"
        )
        if len(texts) == 1:
            observed, limit = found, given
    expected = range_reading(0.0, limit, observed.n)
    return case.verdict(
        Status.OK, Certainty.CERTAIN, observed, expected, "The token limits fit the requests", details=texts
    )


def _check_queue_breaker(case: RuleContext) -> RuleResult:
    """Compare the queue depth at which load is shed with objective x arrivals (Little's law).

    Too deep: the objective is missed before load is shed, at the largest known arrivals, because at night no queue comes
    near a breaker. Too shallow: most of the allowed waiting is refused, at the present arrivals.
    """
    plan = case.context.plan
    if plan is None:
        return case.unknown(Gap.NOT_IN_PLAN, "the plan has no guardrails")
    breaker = plan.guardrails.queue_breaker if plan.guardrails else None
    rates = plan.workload.requests_per_second if plan.workload else None
    peak, now = rates.peak if rates else None, busiest_rate(case)
    most = max((rate for rate in (peak, now) if rate), default=None)
    slo = plan.slo.ttft_p99_seconds
    if slo is None:
        return case.unknown(Gap.NOT_IN_PLAN, "the plan has no objective on the first token")
    if breaker is None:
        fitting = f"; {_describe_fit(case, slo, most)}" if most else ""
        return case.unknown(Gap.NOT_IN_PLAN, f"the plan's guardrails have no queue_breaker{fitting}")
    if most is None:
        return _explain_no_arrivals(case)
    status, rate, remark, state = Status.OK, most, "", "fits"
    depth, present = safe_queue_depth(slo, most), safe_queue_depth(slo, now) if now else 0.0
    if breaker > case.limit("too_deep") * depth:
        status, state = Status.WARNING, "is too deep"
        remark = f"from {depth:,.0f} on every queued request misses {number(slo, 'seconds')} before any is shed"
    elif now and breaker < case.limit("too_shallow") * present:
        status, depth, rate, state = Status.WARNING, present, now, "is too shallow"
        remark = f"{present:,.0f} could wait within {number(slo, 'seconds')}, most of them are refused"
    text = f"The breaker at {breaker:g} queued requests {state}; {_describe_fit(case, slo, rate)}"
    expected = range_reading(case.limit("low") * depth, case.limit("high") * depth, 1.0)
    return case.verdict(status, Certainty.CERTAIN, exact_reading(breaker, 1.0), expected, text, details=(remark,))


def _describe_fit(case: RuleContext, slo: float, rate: float) -> str:
    depth = safe_queue_depth(slo, rate)
    least, most = (f"{case.limit(name) * depth:,.0f}" for name in ("low", "high"))
    fitting = f"{least} fits" if least == most else f"{least} to {most} fit"
    return f"{fitting} {number(slo, 'seconds')} at {number(rate, 'per_second')}"


def _explain_no_arrivals(case: RuleContext) -> Unknown:
    if not case.binned:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    if any("requests_finished" in one.window.counters for one in case.binned):
        return case.unknown(Gap.NO_TRAFFIC, "nothing arrived, and the plan has no peak")
    return case.unknown(worst_gap(case.binned, "requests_finished"), "arrivals are not known, and the plan has no peak")


GUARDRAILS: Mapping[str, Callable[[RuleContext], RuleResult]] = {
    "max_tokens": _check_limits,
    "queue_breaker": _check_queue_breaker,
}
"""Guardrails by `metric` of the rule."""
