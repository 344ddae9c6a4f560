"""Errors: requests that failed against the promised availability, and requests that were refused.

Owns the two judgements and their sentences; what became of requests is `rules.telemetry.outcomes`, how fast a budget burns
`rules.methods.burn_rate`. A failure is the fleet's (an answer 5xx, an error of the engine) and wakes somebody. A refusal is a
decision: there was no room (503 of a full queue, a ticket for whoever sizes the fleet), or what was asked for cannot be
served (4xx, a ticket for whoever sends it). A request that its client left is neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rules.confidence import CONFIDENCE, Certainty
from rules.methods.burn_rate import Promise, judge_promise, unknown_text
from rules.methods.tails import is_significant_share
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry import windows
from rules.telemetry.outcomes import FAILED, FINISHED, HTTP_FAILED, HTTP_REFUSED, NO_ROOM, READ, Outcomes, outcomes
from rules.telemetry.signals import Gap, Missing, Reading
from rules.verdicts.context import LIKELY_CONFIDENCE, RuleContext, is_persistent, read_plan_value
from rules.verdicts.rule import Rule
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict

KINDS: tuple[tuple[str, str, str, str], ...] = (
    (NO_ROOM, "no_room", "no_room_share", "refused for want of room (503)"),
    (HTTP_REFUSED, "bad", "bad_share", "answered 4xx, as what cannot be served or is too much for one client"),
)
"""Of the refused: the family, the field of `Outcomes`, the threshold, the words; what the fleet can do something about first."""


def judge_availability(case: RuleContext) -> RuleResult:
    """Failed requests against the promised availability, by the ladder; refused ones are in neither number."""
    promise = _promise(case)
    answer = judge_promise(case, promise)
    lacking = _lacking(case) if case.slices else None
    if lacking is not None and (answer is None or (isinstance(answer, Verdict) and answer.status is Status.OK)):
        # The budget of three days may know what the pages of today do not print.
        return lacking
    if answer is None:
        return unknown_text(case, promise)
    if isinstance(answer, Unknown):
        return answer
    remarks = _remarks(case) if answer.status is not Status.OK else ""
    return replace(answer, sentence=f"{answer.sentence}{remarks}")


def allowed_to_fail(view: TierContext, rule: Rule) -> tuple[float, bool]:
    """Return the share of requests that may fail, and whether it is the plan's. `rule` is AvailabilityBurn."""
    said = read_plan_value(view, "slo.availability")
    if isinstance(said, float):
        return 1 - said, True
    return rule.limit("allowed_share", view.limits), False


def _promise(case: RuleContext) -> Promise:
    allowed, of_plan = allowed_to_fail(case.view, case.rule)
    whose = "" if of_plan else " (the default: the plan has no slo.availability)"
    return Promise(allowed=allowed, broken=f"failed where {(1 - allowed) * 100:.6g}% are promised to be served{whose}")


def _lacking(case: RuleContext) -> Unknown | None:
    """Why no replica tells failed requests from others; None where one does."""
    total = windows.sum_families((one.window for one in case.slices), READ)
    found = outcomes(total)
    if not isinstance(found, Missing):
        return None
    ends = {FAILED, HTTP_FAILED} & total.counters.keys()
    text = f"{FINISHED} is not there" if ends else "neither requests that failed nor HTTP answers 5xx are counted"
    return case.unknown(found.gap, text)


def _remarks(case: RuleContext) -> str:
    """What a reader should know of the counts: why they prove nothing, or that one of the two kinds is not there."""
    each = [found for one in case.slices if not isinstance(found := outcomes(one.window), Missing)]
    doubts = [one.doubt for one in each if one.doubt]
    if doubts:
        return f"; not certain: {doubts[-1]}"
    present = {family for one in case.slices for family in one.window.counters}
    if HTTP_FAILED not in present:
        return "; HTTP answers 5xx are not exposed, what failed before the engine had it is not counted"
    if FAILED not in present:
        return "; errors of the engine are not exposed, what failed in the middle of a stream is not counted"
    return ""


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
    """The share of requests that were refused, each kind against its own limit; the worse of the two."""
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    told_of = [kind for kind in KINDS if any(kind[0] in one.window.counters for one in case.slices)]
    if not told_of:
        total = windows.sum_families((one.window for one in case.slices), READ)
        several = [total.explain_missing(family) for family in (NO_ROOM, HTTP_REFUSED)]
        gap = next((gap for gap in several if gap is not Gap.NOT_EXPOSED), Gap.NOT_EXPOSED)
        return case.unknown(gap, "neither requests refused by a queue limit nor HTTP answers 4xx are counted")
    lacking = _lacking(case)
    if lacking is not None:
        return lacking
    answers = [_kind(case, *kind[1:]) for kind in told_of]
    firing = [one for one in answers if isinstance(one, Verdict) and one.status is not Status.OK]
    told = [one for one in answers if isinstance(one, Verdict)]
    if firing:
        return max(firing, key=lambda one: (one.status is Status.CRITICAL, one.certainty is Certainty.CERTAIN))
    return told[0] if told else answers[0]


def _kind(case: RuleContext, field: str, threshold: str, words: str) -> RuleResult:
    limit, needed = case.limit(threshold), case.limit("minimum_requests")
    total = _refusals(case.slices, field)
    if total is None or total.asked <= 0:
        return case.unknown(Gap.NO_TRAFFIC, "no requests came to an end")
    if total.asked < needed:
        return case.too_few_requests(total.asked, needed)
    if not is_significant_share(total.refused, total.asked, total.asked, limit, LIKELY_CONFIDENCE):
        return _refused_verdict(case, total, Status.OK, Certainty.CERTAIN, limit, words)
    last = _refusals(case.last_quarter(case.slices), field)
    if last is None or last.asked < needed / 4:
        return case.too_few_requests(last.asked if last else 0.0, needed / 4, " in the last quarter of the time")
    each = (_refusals(group, field) for group in case.periods(case.slices))
    if not is_persistent(last, each, lambda part: part.share > limit):
        return _refused_verdict(case, total, Status.OK, Certainty.CERTAIN, limit, words, ", but not in all that time")
    surely = not total.doubtful and is_significant_share(total.refused, total.asked, total.asked, limit, CONFIDENCE)
    status = Status.CRITICAL if last.share > case.limit("critical_share") else Status.WARNING
    return _refused_verdict(case, total, status, Certainty.CERTAIN if surely else Certainty.LIKELY, limit, words)


def _refusals(slices: Iterable[BinnedWindow], field: str) -> Refusals | None:
    """Requests refused in these slices; None where none of them tells."""
    each: list[Outcomes] = []
    for one in slices:
        found = outcomes(one.window)
        if not isinstance(found, Missing):
            each.append(found)
    if not each:
        return None
    return Refusals(
        refused=sum(getattr(one, field) for one in each),
        asked=sum(one.all_requests for one in each),
        doubtful=any(one.doubt for one in each),
    )


def _refused_verdict(
    case: RuleContext, total: Refusals, status: Status, certainty: Certainty, limit: float, words: str, remark: str = ""
) -> Verdict:
    observed = Reading(value=total.share, low=total.share, high=total.share, n=total.asked)
    expected = Reading(value=None, low=0.0, high=limit, n=total.asked)
    sentence = f"{total.share:.1%} of {total.asked:,.0f} requests were {words}; {limit:.0%} is allowed{remark}"
    return case.verdict(status, certainty, observed, expected, sentence)
