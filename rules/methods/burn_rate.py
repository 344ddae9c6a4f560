"""Burn rates of an error budget, over pairs of a long and a short window (SRE workbook ch. 5, multiwindow alerts).

A burn rate is the share of slow or failed requests by the allowed share: 1 spends a month's budget in a month. The long
window shows that a relevant part of the budget is spent, the short one that it still burns. A burn that is over does not
fire, although both windows still hold it. After a start only a part of the long window is observed. The fastest pair
counts the rest as equally busy and without slow requests; slower pairs are certain of an observed window only.

A failure is the fleet's: a 5xx response, an error of the engine. A refusal is a decision: no room (503 of a full queue),
or a request that cannot be served (4xx). A request that its client left is neither.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from rules.confidence import CONFIDENCE, Certainty, binomial_tail
from rules.methods.evidence import exact_reading, is_significant_share, measure_parts, range_reading
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry.outcomes import FAILED, FINISHED, HTTP_FAILED, HTTP_REFUSED, NO_ROOM, READ, Outcomes, outcomes
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.signals import Gap, Missing
from rules.telemetry.windows import MINUTE_SECONDS
from rules.telemetry.wording import describe_period, format_count, guess, number
from rules.verdicts import error_budget
from rules.verdicts.context import LIKELY_CONFIDENCE, SEPARATE, RuleContext, is_persistent, read_plan_value
from rules.verdicts.error_budget import SlowRequestCount
from rules.verdicts.held_windows import hold
from rules.verdicts.rule import Rule
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict, rank_verdict

PERIOD_SECONDS = 30 * 86_400.0
"""Seconds that a budget is for: the workbook's 30 days (14.4 x 1 h is 2 %)."""

RUNGS: tuple[tuple[str, Status], ...] = (
    ("page_fast", Status.CRITICAL),
    ("page_slow", Status.CRITICAL),
    ("ticket_fast", Status.WARNING),
    ("ticket_slow", Status.WARNING),
)
"""Rungs of the ladder by the stem of their thresholds' names, the fastest first."""

ENOUGH_TRIALS = 100_000.0
"""Maximum number of trials in a test of chance. It understates the evidence, and is quick."""


class Promise(NamedTuple):
    """Share of requests that may break an objective, and words for them after "5.0% of 200 requests in 1 h".

    `name` is that of the objective, `note` is a detail of a burn. `of_events`: the share is that of their output events.
    """

    allowed: float
    broken: str
    name: str
    note: str = ""
    of_events: bool = False

    def describe_count(self, requests: float) -> str:
        """Return what the share is of, in words."""
        return "output events" if self.of_events else format_count(round(requests), "request")


class BurnWindow(NamedTuple):
    """Rung: the allowed burn rate, a pair of windows (seconds), and the slow requests in both."""

    burn: float
    long_seconds: float
    short_seconds: float
    long: SlowRequestCount
    short: SlowRequestCount


def judge_burn(context: RuleContext) -> RuleResult:
    """Find a budget of slow requests that burns too fast, by the objective in the plan."""
    family, objective = context.rule.family, read_plan_value(context.tier, context.rule.needs)
    if not isinstance(objective, float | int):
        return context.unknown(Gap.NOT_IN_PLAN, f"the plan has no {context.rule.needs}")
    if family == "itl_seconds" and not context.tier.itl_comparable:
        return context.unknown(Gap.NOT_EXPOSED, "plan and engine do not mean the same by ITL")
    word, seconds = family.partition("_")[0].upper(), number(float(objective), "seconds")
    broken, of_events = f"missed the {seconds} {word} objective", not context.rule.per_request
    promise = Promise(context.limit("allowed_share"), broken, word, of_events=of_events)
    results = (judge_promise(context, promise), _judge_standing_queue(context, promise))
    firing = [result for result in results if isinstance(result, Verdict) and result.status is not Status.OK]
    # Here a certain warning is worse than a critical guess.
    result = max(firing, key=lambda verdict: rank_verdict(verdict)[1::-1], default=results[0])
    newest = [sample for sample in context.binned if sample.window.end > context.now - error_budget.IMPACT_SECONDS]
    is_seen = any(family in sample.window.histograms for sample in newest or context.binned)
    if not firing and context.binned and not is_seen:
        return context.unmeasured(family)
    return result or explain_no_rung(context)


def _judge_standing_queue(context: RuleContext, promise: Promise) -> Verdict | None:
    """Return a finding of requests that wait longer than the objective now, None without one."""
    overdue = error_budget.count_overdue(context.budget, context.rule.family, context.now)
    seconds = error_budget.IMPACT_SECONDS
    standing = error_budget.count_standing_minutes(context.budget, context.now - seconds, context.now)
    if standing >= SEPARATE:
        seconds = standing * MINUTE_SECONDS
    count = _count_slow(context, seconds)
    # The slow first tokens of a queue that moves are in the ladder's windows.
    is_chance = not _is_beyond_chance(count.best, count.n, promise.allowed, LIKELY_CONFIDENCE)
    if overdue < 1 or count.best > 2 * overdue or is_chance:
        return None
    proven = _is_beyond_chance(count.low, count.n, promise.allowed, CONFIDENCE) or standing >= SEPARATE
    proven &= _is_in_separate_minutes(context, promise.allowed, seconds)
    page = context.limit(f"{RUNGS[0][0]}_burn") * promise.allowed
    status = Status.CRITICAL if _is_beyond_chance(count.low, count.n, page, CONFIDENCE) else Status.WARNING
    waits = "request waits" if round(overdue) == 1 else "requests wait"
    sentence = f"{overdue:,.0f} {waits} for a first token and {promise.broken}"
    last = format_span(max(count.seconds, 1.0))
    details = (
        f"{number(count.best / count.n, 'ratio')} of {promise.describe_count(count.n)} in {last} {promise.broken}",
        f"nobody got a first token for {format_count(standing, 'minute')}" if standing else "",
    )
    expected, certainty = range_reading(0.0, promise.allowed, count.n), Certainty.of(proven)
    return context.verdict(status, certainty, count.reading, expected, sentence, details=details)


def judge_promise(context: RuleContext, promise: Promise) -> RuleResult | None:
    """Return the worst rung that fires, certain ones first, else unknown, ok or None."""
    rungs = [_judge_rung(context, promise, name, status) for name, status in RUNGS]
    return max((rung for rung in rungs if rung), key=itemgetter(0), default=(0, None))[1]


def _judge_rung(context: RuleContext, promise: Promise, name: str, status: Status) -> tuple[int, RuleResult] | None:
    """Return rank and result of one pair of windows, None if too little of the long one was seen.

    The ranks: 0 calm, 1 a burn that is over, 2 too few requests in the short window, 3 likely, 4 certain.
    """
    burn, *spans = (context.limit(f"{name}_{end}") for end in ("burn", "long_seconds", "short_seconds"))
    long_seconds, short_seconds = spans
    long, short = (_count_slow(context, seconds) for seconds in spans)
    rung = BurnWindow(burn, long_seconds, short_seconds, long, short)
    limit, needed = burn * promise.allowed, max(1.0, context.limit("minimum_requests"))
    if long.seconds < FULL_COVERAGE * short_seconds or long.n < needed:
        return None
    calm = 0, _build_verdict(context, rung, Status.OK, Certainty.CERTAIN, promise)
    if not _is_beyond_chance(long.best, long.n, limit, LIKELY_CONFIDENCE):
        return calm
    if over := _describe_recovery(context, rung, promise):
        return 1, _build_verdict(context, rung, Status.OK, Certainty.CERTAIN, promise, over)
    if short.n < needed:
        where = f" in the last {format_span(short_seconds)}"
        return 2, context.too_few_requests(short.n, context.limit("minimum_requests"), where)
    if short.best <= limit * short.n:
        return calm
    # Nothing counts as slow in the unobserved part, so the share of the observed part must be larger.
    known = long.seconds / long_seconds
    is_seen = known >= FULL_COVERAGE
    proven_limit = limit * (1.0 if is_seen else 1.0 / known)
    is_proven = short.low > limit * short.n and _is_beyond_chance(long.low, long.n, proven_limit, CONFIDENCE)
    is_proven &= is_seen or short_seconds == context.limit(f"{RUNGS[0][0]}_short_seconds")
    certain = is_proven and _is_in_separate_minutes(context, limit, long_seconds)
    return 4 if certain else 3, _build_verdict(context, rung, status, Certainty.of(certain), promise)


def _describe_recovery(context: RuleContext, rung: BurnWindow, promise: Promise) -> str:
    """Return the long window's burn if it is over: for long enough, and with too few slow requests since to be chance."""
    budget, family, now, limit = context.budget, context.rule.family, context.now, rung.burn * promise.allowed
    rows = error_budget.list_slow_rows(budget, family, limit, now - rung.long_seconds, now)
    # A pause is no recovery.
    if not rows or now - rows[-1][1] < max(context.limit(f"{RUNGS[0][0]}_short_seconds"), rung.short_seconds / 6):
        return ""
    after = error_budget.count_slow_requests(budget, family, rows[-1][1], now)
    trials = math.floor(min(after.n, ENOUGH_TRIALS))
    slow = math.ceil(after.high / after.n * trials) if after.n > 0 else trials
    if slow >= trials or limit >= 1 or 1 - binomial_tail(slow + 1, trials, limit) >= 1 - CONFIDENCE:
        return ""
    share = number(after.high / after.n, "ratio") if promise.of_events else f"{after.high:,.0f}"
    spent = f"{promise.name} recovering, budget spent {describe_period(rows[0][0], rows[-1][1], now)} UTC"
    return f"{spent}; {share} of {promise.describe_count(after.n)} since {promise.broken}"


def _is_beyond_chance(slow: float, n: float, limit: float, confidence: float) -> bool:
    return limit < 1 and is_significant_share(slow, n, min(n, ENOUGH_TRIALS), limit, confidence)


def explain_no_rung(context: RuleContext) -> RuleResult:
    """Return unknown with the reason why no rung could be evaluated."""
    long_seconds, short_seconds = (context.limit(f"{RUNGS[0][0]}_{end}_seconds") for end in ("long", "short"))
    long, last = _count_slow(context, long_seconds), f" in the last {format_span(long_seconds)}"
    if not context.binned:
        return context.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    if long.n <= 0:
        return context.unknown(Gap.NO_TRAFFIC, f"no requests{last}")
    needed = FULL_COVERAGE * short_seconds
    if long.seconds < needed:
        return context.unknown(Gap.TOO_FEW_REQUESTS, f"{math.floor(long.seconds)} s seen, {needed:.0f} s are needed")
    return context.too_few_requests(long.n, context.limit("minimum_requests"), last)


def _count_slow(context: RuleContext, seconds: float) -> SlowRequestCount:
    return error_budget.count_slow_requests(context.budget, context.rule.family, context.now - seconds, context.now)


def _is_in_separate_minutes(context: RuleContext, limit: float, seconds: float) -> bool:
    since, family = context.now - seconds, context.rule.family
    return len(error_budget.list_slow_rows(context.budget, family, limit, since, context.now)) >= SEPARATE


def _build_verdict(
    context: RuleContext, rung: BurnWindow, status: Status, certainty: Certainty, promise: Promise, over: str = ""
) -> Verdict:
    long, short, n = rung.long, rung.short, rung.long.n
    seen = min(long.seconds, rung.long_seconds)
    is_partial = seen < FULL_COVERAGE * rung.long_seconds
    when = format_span(seen if is_partial else rung.long_seconds)
    sentence = over or f"{number(long.best / n, 'ratio')} of {promise.describe_count(n)} in {when} {promise.broken}"
    details: tuple[str, ...] = ()
    if status is not Status.OK:
        rate = long.best / n / promise.allowed
        lately = guess(short.low / short.n, short.best / short.n, short.high / short.n, "ratio")
        sentence += f"; the budget burns {rate:.3g}x too fast"
        details = (
            f"{rung.burn:g}x is the limit over {format_span(rung.long_seconds)} and {format_span(rung.short_seconds)}",
            f"{lately} of {promise.describe_count(short.n)} in the last {format_span(rung.short_seconds)}",
            f"{rate * seen / PERIOD_SECONDS:.1%} of a month's budget was spent",
            f"{when} of {format_span(rung.long_seconds)} were seen" if is_partial else "",
            f"output events of {format_count(round(n), 'request')}" if promise.of_events else "",
            promise.note,
        )
    expected = range_reading(0.0, promise.allowed, n)
    return context.verdict(status, certainty, long.reading, expected, sentence, details=details)


def format_span(seconds: float) -> str:
    """Return a duration in its largest unit: "5 min", "6 h", "3 d"."""
    size, unit = next((s, u) for s, u in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (0.0, "s")) if seconds >= s)
    return f"{seconds / size if size else seconds:.3g} {unit}"


KINDS: tuple[tuple[str, str, str, str], ...] = (
    (NO_ROOM, "no_room", "no_room_share", "refused for want of room (503)"),
    (HTTP_REFUSED, "bad", "bad_share", "answered 4xx"),
)
"""Kinds of refusals: family, field of `Outcomes`, threshold, words. Refusals that the fleet can avoid come first."""


def judge_availability(context: RuleContext) -> RuleResult:
    """Compare failed requests with the availability of the plan, by the burn of its budget."""
    allowed, of_plan = allowed_to_fail(context.tier, context.rule)
    source = "" if of_plan else " (the default: the plan has no slo.availability)"
    note = f"{(1 - allowed) * 100:.6g}% are promised to be served{source}"
    result = judge_promise(context, Promise(allowed, "failed", "Availability", note))
    missing = _explain_missing(context) if context.binned else None
    is_fine = result is None or (isinstance(result, Verdict) and result.status is Status.OK)
    if missing is not None and is_fine:
        # The budget of three days may count families that the present pages do not print.
        return missing
    if result is None or is_fine or isinstance(result, Unknown):
        return result or explain_no_rung(context)
    doubts = [f"not certain: {results.doubt}" for results in hold(context.binned).once(_read_outcomes) if results.doubt]
    return replace(result, details=(*result.details, *doubts[-1:]))


def allowed_to_fail(context: TierContext, rule: Rule) -> tuple[float, bool]:
    """Return the share of requests that may fail, and whether it is the plan's."""
    planned = read_plan_value(context, "slo.availability")
    if isinstance(planned, float):
        return 1 - planned, True
    return rule.limit("allowed_share", context.limits), False


def _explain_missing(context: RuleContext) -> Unknown | None:
    """Return unknown if no replica separates failed requests, else None."""
    total = hold(context.binned).sum_families(READ)
    missing = outcomes(total)
    if not isinstance(missing, Missing):
        return None
    ends = {FAILED, HTTP_FAILED} & total.counters.keys()
    text = f"{FINISHED} was not measured" if ends else "neither requests that failed nor HTTP answers 5xx are counted"
    return context.unknown(missing.gap, text)


def _read_outcomes(binned: Iterable[BinnedWindow]) -> list[Outcomes]:
    return [results for sample in binned if not isinstance(results := outcomes(sample.window), Missing)]


def judge_refused(context: RuleContext) -> RuleResult:
    """Compare the share of refused requests with the limit of each kind. Return the worse of the two."""
    total = hold(context.binned).sum_families(READ)
    kinds = [kind for kind in KINDS if kind[0] in total.counters]
    if not kinds:
        gaps = list(map(total.explain_missing, (NO_ROOM, HTTP_REFUSED)))
        gap = next((gap for gap in gaps if gap is not Gap.NOT_EXPOSED), Gap.NOT_EXPOSED)
        return context.unknown(gap, "neither requests refused by a queue limit nor HTTP answers 4xx are counted")
    missing = _explain_missing(context)
    if missing is not None:
        return missing
    results = [_judge_kind(context, *kind[1:]) for kind in kinds]
    return max((result for result in results if isinstance(result, Verdict)), key=rank_verdict, default=results[0])


def _judge_kind(context: RuleContext, field: str, threshold: str, words: str) -> RuleResult:
    limit, needed = context.limit(threshold), context.limit("minimum_requests")
    refused, n = _count_refusals(context.binned, field)
    if n <= 0:
        return context.unknown(Gap.NO_TRAFFIC, "no requests came to an end")
    if n < needed:
        return context.too_few_requests(n, needed)
    observed, expected = exact_reading(refused / n, n), range_reading(0.0, limit, n)
    sentence, details = f"{refused / n:.1%} of requests were {words}; {limit:.0%} is allowed", f"of {n:,.0f} requests"
    status, certainty = Status.OK, Certainty.CERTAIN
    if is_significant_share(refused, n, n, limit, LIKELY_CONFIDENCE):
        last, each = measure_parts(context, partial(_count_refusals, field=field))
        if last[1] < needed / 4:
            return context.too_few_requests(last[1], needed / 4, " in the last quarter of the time")
        if is_persistent(last, each, lambda part: part[0] > limit * part[1]):
            is_doubtful = any(results.doubt for results in hold(context.binned).once(_read_outcomes))
            certainty = Certainty.of(not is_doubtful and is_significant_share(refused, n, n, limit, CONFIDENCE))
            status = Status.CRITICAL if last[0] > context.limit("critical_share") * last[1] else Status.WARNING
        else:
            sentence += ", and most of the time it was less"
    return context.verdict(status, certainty, observed, expected, sentence, details=(details,))


def _count_refusals(binned: Iterable[BinnedWindow], field: str) -> tuple[float, float]:
    """Return the refused requests of a kind, and all that came to an end."""
    each = hold(binned).once(_read_outcomes)
    return sum(getattr(results, field) for results in each), sum(results.all_requests for results in each)
