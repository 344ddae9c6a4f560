"""Errors: failed requests against the availability of the plan, and refused requests.

A failure is the fleet's: a 5xx response, an error of the engine. A refusal is a decision: no room (503 of a full queue),
or a request that cannot be served (4xx). A request that its client left is neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rules.confidence import CONFIDENCE, Certainty
from rules.methods.burn_rate import Promise, explain_no_rung, judge_promise
from rules.methods.evidence import certain_if, exact_reading, is_significant_share, range_reading
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry.outcomes import FAILED, FINISHED, HTTP_FAILED, HTTP_REFUSED, NO_ROOM, READ, Outcomes, outcomes
from rules.telemetry.signals import Gap, Missing
from rules.verdicts.context import LIKELY_CONFIDENCE, RuleContext, is_persistent, read_plan_value
from rules.verdicts.held_windows import hold
from rules.verdicts.rule import Rule
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict

KINDS: tuple[tuple[str, str, str, str], ...] = (
    (NO_ROOM, "no_room", "no_room_share", "refused for want of room (503)"),
    (HTTP_REFUSED, "bad", "bad_share", "answered 4xx"),
)
"""Kinds of refusals: family, field of `Outcomes`, threshold, words. Refusals that the fleet can avoid come first."""


def judge_availability(case: RuleContext) -> RuleResult:
    """Compare failed requests with the availability of the plan, by the burn of its budget.

    From errors of the engine and HTTP answers 5xx. Refused requests are in neither number. Certain as a burn is.
    """
    allowed, of_plan = allowed_to_fail(case.context, case.rule)
    source = "" if of_plan else " (the default: the plan has no slo.availability)"
    note = f"{(1 - allowed) * 100:.6g}% are promised to be served{source}"
    promise = Promise(allowed=allowed, broken="failed", name="Availability", note=note)
    result = judge_promise(case, promise)
    missing = _explain_missing(case) if case.binned else None
    if missing is not None and (result is None or (isinstance(result, Verdict) and result.status is Status.OK)):
        # The budget of three days may count families that the present pages do not print.
        return missing
    if result is None:
        return explain_no_rung(case, promise)
    if isinstance(result, Unknown) or result.status is Status.OK:
        return result
    return replace(result, details=(*result.details, *_describe_doubt(case)))


def allowed_to_fail(context: TierContext, rule: Rule) -> tuple[float, bool]:
    """Return the share of requests that may fail, and whether it is the plan's. `rule` is AvailabilityBurn."""
    planned = read_plan_value(context, "slo.availability")
    if isinstance(planned, float):
        return 1 - planned, True
    return rule.limit("allowed_share", context.limits), False


def _explain_missing(case: RuleContext) -> Unknown | None:
    """Return unknown if no replica separates failed requests, else None."""
    total = hold(case.binned).sum_families(READ)
    found = outcomes(total)
    if not isinstance(found, Missing):
        return None
    ends = {FAILED, HTTP_FAILED} & total.counters.keys()
    text = f"{FINISHED} was not measured" if ends else "neither requests that failed nor HTTP answers 5xx are counted"
    return case.unknown(found.gap, text)


def _describe_doubt(case: RuleContext) -> tuple[str, ...]:
    """Return why the counts are inconclusive, or which of the two kinds of failures is missing."""
    doubts = [found.doubt for found in hold(case.binned).once(_read_outcomes) if found.doubt]
    if doubts:
        return (f"not certain: {doubts[-1]}",)
    present = {family for one in case.binned for family in one.window.counters}
    if HTTP_FAILED not in present:
        return ("HTTP answers 5xx are not exposed: failures before the engine are not counted",)
    if FAILED not in present:
        return ("errors of the engine are not exposed: failures within a stream are not counted",)
    return ()


def _read_outcomes(binned: Iterable[BinnedWindow]) -> list[Outcomes]:
    return [found for one in binned if not isinstance(found := outcomes(one.window), Missing)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals:
    """Requests of one kind of refusal among all that came to an end."""

    refused: float
    asked: float
    doubtful: bool

    @property
    def share(self) -> float:
        return self.refused / self.asked if self.asked > 0 else 0.0


def judge_refused(case: RuleContext) -> RuleResult:
    """Compare the share of refused requests with the limit of each kind. Return the worse of the two.

    From refusals for want of room and HTTP answers 4xx. Certain beyond chance, where the counts do not contradict each other.
    """
    kinds = [kind for kind in KINDS if any(kind[0] in one.window.counters for one in case.binned)]
    if not kinds:
        total = hold(case.binned).sum_families(READ)
        several = [total.explain_missing(family) for family in (NO_ROOM, HTTP_REFUSED)]
        gap = next((gap for gap in several if gap is not Gap.NOT_EXPOSED), Gap.NOT_EXPOSED)
        return case.unknown(gap, "neither requests refused by a queue limit nor HTTP answers 4xx are counted")
    missing = _explain_missing(case)
    if missing is not None:
        return missing
    results = [_judge_kind(case, *kind[1:]) for kind in kinds]
    verdicts = [one for one in results if isinstance(one, Verdict)]
    firing = [one for one in verdicts if one.status is not Status.OK]
    if firing:
        return max(firing, key=lambda one: (one.status is Status.CRITICAL, one.certainty is Certainty.CERTAIN))
    return verdicts[0] if verdicts else results[0]


def _judge_kind(case: RuleContext, field: str, threshold: str, words: str) -> RuleResult:
    limit, needed = case.limit(threshold), case.limit("minimum_requests")
    total = _count_refusals(case.binned, field)
    if total is None or total.asked <= 0:
        return case.unknown(Gap.NO_TRAFFIC, "no requests came to an end")
    if total.asked < needed:
        return case.too_few_requests(total.asked, needed)
    observed, expected = exact_reading(total.share, total.asked), range_reading(0.0, limit, total.asked)
    claim, details = f"{total.share:.1%} of requests were {words}", (f"of {total.asked:,.0f} requests",)
    sentence = f"{claim}; {limit:.0%} is allowed"
    fine = case.verdict(Status.OK, Certainty.CERTAIN, observed, expected, sentence, details=details)
    if not is_significant_share(total.refused, total.asked, total.asked, limit, LIKELY_CONFIDENCE):
        return fine
    last = _count_refusals(case.last_quarter(case.binned), field)
    if last is None or last.asked < needed / 4:
        return case.too_few_requests(last.asked if last else 0.0, needed / 4, " in the last quarter of the time")
    each = (_count_refusals(group, field) for group in case.periods(case.binned))
    if not is_persistent(last, each, lambda part: part.share > limit):
        return replace(fine, sentence=f"{sentence}, and most of the time it was less")
    is_proven = not total.doubtful and is_significant_share(total.refused, total.asked, total.asked, limit, CONFIDENCE)
    status = Status.CRITICAL if last.share > case.limit("critical_share") else Status.WARNING
    return case.verdict(status, certain_if(is_proven), observed, expected, sentence, details=details)


def _count_refusals(binned: Iterable[BinnedWindow], field: str) -> Refusals | None:
    """Return the refused requests, or None if no binned window separates outcomes."""
    each = hold(binned).once(_read_outcomes)
    if not each:
        return None
    return Refusals(
        refused=sum(getattr(one, field) for one in each),
        asked=sum(one.all_requests for one in each),
        doubtful=any(one.doubt for one in each),
    )
