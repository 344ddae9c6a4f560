"""Burn rates of an error budget, over pairs of a long and a short window (SRE workbook ch. 5, multiwindow alerts).

A burn rate is the share of slow requests by the allowed share: 1 spends a month's budget in a month. The long window
shows that a relevant part of the budget is spent, the short one that it still burns. A burn that is over does not fire,
although both windows still hold it. After a start only a part of the long window is observed. The fastest pair counts the
other part as equally busy and without slow requests; slower pairs are certain only of an observed window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import IntEnum

from rules.confidence import CONFIDENCE, Certainty, binomial_tail
from rules.methods.evidence import certain_if, is_significant_share, range_reading
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import MINUTE_SECONDS
from rules.telemetry.wording import describe_period, guess, number, spread
from rules.verdicts import error_budget
from rules.verdicts.context import LIKELY_CONFIDENCE, SEPARATE, RuleContext, read_plan_value
from rules.verdicts.error_budget import BurnSpan, SlowRequestCount
from rules.verdicts.verdict import RuleResult, Status, Verdict

PERIOD_SECONDS = 30 * 86_400.0
"""Seconds that a budget is for: the workbook's 30 days, from which its burn rates follow (14.4 x 1 h is 2 %)."""

RUNGS: tuple[tuple[str, Status], ...] = (
    ("page_fast", Status.CRITICAL),
    ("page_slow", Status.CRITICAL),
    ("ticket_fast", Status.WARNING),
    ("ticket_slow", Status.WARNING),
)
"""Rungs of the ladder by the stem of their thresholds' names, the fastest first."""

CALM_PARTS = 6
"""Part of the short window without a burn that ends it, and at least the fastest short window: a pause is no recovery."""

ENOUGH_TRIALS = 100_000.0
"""Maximum number of trials in a test of chance. It understates the evidence, and is quick."""


class BurnState(IntEnum):
    """State of a rung, the weakest first."""

    UNSEEN = 0  # too little of the long window
    CALM = 1
    OVER = 2  # the long window burns, and the latest requests do not
    BLIND = 3  # the long window burns, and the short one has too few requests
    LIKELY = 4
    CERTAIN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnWindow:
    """Rung: a pair of windows (seconds), the allowed burn rate, and the slow requests in both."""

    status: Status
    burn: float
    long_seconds: float
    short_seconds: float
    long: SlowRequestCount
    short: SlowRequestCount
    state: BurnState
    over: BurnSpan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Share of requests that may break an objective, and words for them after "5.0% of 200 requests in 1 h".

    `name` is that of the objective, `note` is a detail of a burn. `of_events`: the share is that of their output events.
    """

    allowed: float
    broken: str
    name: str
    note: str = ""
    of_events: bool = False

    def count(self, requests: float) -> str:
        """Return what the share is of, in words."""
        return "output events" if self.of_events else f"{requests:,.0f} requests"


def judge_burn(case: RuleContext) -> RuleResult:
    """Evaluate requests slower than the objective of a latency."""
    objective = read_plan_value(case.context, case.rule.needs)
    if not isinstance(objective, float | int):
        return case.unknown(Gap.NOT_IN_PLAN, f"the plan has no {case.rule.needs}")
    if case.rule.family == "itl_seconds" and not case.context.itl_comparable:
        return case.unknown(Gap.NOT_EXPOSED, "plan and engine do not mean the same by ITL")
    allowed, family = case.limit("allowed_share"), case.rule.family
    word, seconds = family.partition("_")[0].upper(), number(float(objective), "seconds")
    broken, of_events = f"missed the {seconds} {word} objective", not case.rule.per_request
    promise = Promise(allowed=allowed, broken=broken, name=word, of_events=of_events)
    result = max(judge_promise(case, promise), _judge_standing_queue(case, promise), key=_rank)
    if result is not None:
        return result
    if case.binned and not any(family in one.window.histograms for one in case.binned):
        return case.unmeasured(family)
    return explain_no_rung(case, promise)


def _rank(result: RuleResult | None) -> tuple[bool, bool, bool]:
    """Return the order of results: those that fire, certain ones first."""
    if not isinstance(result, Verdict) or result.status is Status.OK:
        return False, False, False
    return True, result.certainty is Certainty.CERTAIN, result.status is Status.CRITICAL


def _judge_standing_queue(case: RuleContext, promise: Promise) -> Verdict | None:
    """Return a finding of requests that wait longer than the objective now, None without one.

    Certain beyond chance, or if nobody got a first token in the last SEPARATE minutes.
    """
    overdue = error_budget.count_overdue(case.budget, case.rule.family, case.now)
    since = case.now - error_budget.IMPACT_SECONDS
    standing = error_budget.count_standing_minutes(case.budget, since, case.now)
    if standing >= SEPARATE:
        since = case.now - standing * MINUTE_SECONDS
    count = error_budget.count_slow_requests(case.budget, case.rule.family, since, case.now)
    # The slow first tokens of a queue that moves are in the ladder's windows.
    if (
        overdue < 1
        or count.best > 2 * overdue
        or not _is_beyond_chance(count.best, count.n, promise.allowed, LIKELY_CONFIDENCE)
    ):
        return None
    rows = error_budget.count_slow_rows(case.budget, case.rule.family, promise.allowed, since, case.now)
    proven = _is_beyond_chance(count.low, count.n, promise.allowed, CONFIDENCE) or standing >= SEPARATE
    page = case.limit(f"{RUNGS[0][0]}_burn") * promise.allowed
    status = Status.CRITICAL if _is_beyond_chance(count.low, count.n, page, CONFIDENCE) else Status.WARNING
    observed = Reading(value=count.best / count.n, low=count.low / count.n, high=count.high / count.n, n=count.n)
    waits = "request waits" if round(overdue) == 1 else "requests wait"
    sentence = f"{overdue:,.0f} {waits} for a first token and {promise.broken}"
    last = format_span(max(count.seconds, 1.0))
    details = (
        f"{number(count.best / count.n, 'ratio')} of {promise.count(count.n)} in {last} {promise.broken}",
        f"nobody got a first token for {standing} minutes" if standing else "",
    )
    certainty = certain_if(proven and rows >= SEPARATE)
    return case.verdict(
        status, certainty, observed, range_reading(0.0, promise.allowed, count.n), sentence, details=details
    )


def judge_promise(case: RuleContext, promise: Promise) -> RuleResult | None:
    """Return the worst rung that fires, certain ones first, else ok. Return None if no rung could be evaluated."""
    rungs = [_evaluate_rung(case, promise, name, status) for name, status in RUNGS]
    firing = [rung for rung in rungs if rung.state >= BurnState.LIKELY]
    if firing:
        worst = max(firing, key=lambda rung: rung.state)
        return _build_verdict(case, worst, worst.status, certain_if(worst.state is BurnState.CERTAIN), promise)
    blind = next((rung for rung in rungs if rung.state is BurnState.BLIND), None)
    if blind is not None:
        return case.too_few_requests(
            blind.short.n, case.limit("minimum_requests"), f" in the last {format_span(blind.short_seconds)}"
        )
    order = (BurnState.OVER, BurnState.CALM)
    fine = next((rung for state in order for rung in rungs if rung.state is state), None)
    return None if fine is None else _build_verdict(case, fine, Status.OK, Certainty.CERTAIN, promise)


def _evaluate_rung(case: RuleContext, promise: Promise, name: str, status: Status) -> BurnWindow:
    long_seconds, short_seconds = case.limit(f"{name}_long_seconds"), case.limit(f"{name}_short_seconds")
    rung = BurnWindow(
        status=status,
        burn=case.limit(f"{name}_burn"),
        long_seconds=long_seconds,
        short_seconds=short_seconds,
        long=error_budget.count_slow_requests(case.budget, case.rule.family, case.now - long_seconds, case.now),
        short=error_budget.count_slow_requests(case.budget, case.rule.family, case.now - short_seconds, case.now),
        state=BurnState.UNSEEN,
    )
    rung = replace(rung, over=_find_recovery(case, promise, rung))
    return replace(rung, state=_compute_state(case, promise, rung))


def _find_recovery(case: RuleContext, promise: Promise, rung: BurnWindow) -> BurnSpan | None:
    """Return the long window's burn if it is over: for long enough, and with too few slow requests since to be chance."""
    limit = rung.burn * promise.allowed
    if not _is_beyond_chance(rung.long.best, rung.long.n, limit, LIKELY_CONFIDENCE):
        return None
    span = error_budget.find_burn_span(case.budget, case.rule.family, limit, case.now - rung.long_seconds, case.now)
    calm_seconds = max(case.limit(f"{RUNGS[0][0]}_short_seconds"), rung.short_seconds / CALM_PARTS)
    if span is None or case.now - span.end < calm_seconds or span.n <= 0:
        return None
    trials = math.floor(min(span.n, ENOUGH_TRIALS))
    slow = math.ceil(span.slow / span.n * trials)
    proven = slow < trials and limit < 1 and 1 - binomial_tail(slow + 1, trials, limit) < 1 - CONFIDENCE
    return span if proven else None


def _compute_state(case: RuleContext, promise: Promise, rung: BurnWindow) -> BurnState:
    limit, needed = rung.burn * promise.allowed, max(1.0, case.limit("minimum_requests"))
    long, short = rung.long, rung.short
    if long.seconds < FULL_COVERAGE * rung.short_seconds or long.n < needed:
        return BurnState.UNSEEN
    if not _is_beyond_chance(long.best, long.n, limit, LIKELY_CONFIDENCE):
        return BurnState.CALM
    if rung.over is not None:
        return BurnState.OVER
    if short.n < needed:
        return BurnState.BLIND
    if short.best <= limit * short.n:
        return BurnState.CALM
    # Nothing counts as slow in the unobserved part, so the share of the observed part must be larger.
    known = long.seconds / rung.long_seconds
    is_seen = known >= FULL_COVERAGE
    proven_limit = limit * (1.0 if is_seen else 1.0 / known)
    is_proven = short.low > limit * short.n and _is_beyond_chance(long.low, long.n, proven_limit, CONFIDENCE)
    is_proven &= is_seen or rung.short_seconds == case.limit(f"{RUNGS[0][0]}_short_seconds")
    since = case.now - rung.long_seconds
    separate = error_budget.count_slow_rows(case.budget, case.rule.family, limit, since, case.now) >= SEPARATE
    return BurnState.CERTAIN if is_proven and separate else BurnState.LIKELY


def _is_beyond_chance(slow: float, n: float, limit: float, confidence: float) -> bool:
    return limit < 1 and is_significant_share(slow, n, min(n, ENOUGH_TRIALS), limit, confidence)


def explain_no_rung(case: RuleContext, promise: Promise) -> RuleResult:
    """Return unknown with the reason why no rung could be evaluated."""
    first = _evaluate_rung(case, promise, *RUNGS[0])
    if not case.binned:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    if first.long.n <= 0:
        return case.unknown(Gap.NO_TRAFFIC, f"no requests in the last {format_span(first.long_seconds)}")
    needed = FULL_COVERAGE * first.short_seconds
    if first.long.seconds < needed:
        return case.unknown(Gap.TOO_FEW_REQUESTS, f"{math.floor(first.long.seconds)} s seen, {needed:.0f} s are needed")
    return case.too_few_requests(
        first.long.n, case.limit("minimum_requests"), f" in the last {format_span(first.long_seconds)}"
    )


def _build_verdict(
    case: RuleContext, rung: BurnWindow, status: Status, certainty: Certainty, promise: Promise
) -> Verdict:
    n, seen = rung.long.n, min(rung.long.seconds, rung.long_seconds)
    observed = Reading(value=rung.long.best / n, low=rung.long.low / n, high=rung.long.high / n, n=n)
    is_partial = seen < FULL_COVERAGE * rung.long_seconds
    when = format_span(seen if is_partial else rung.long_seconds)
    share, edges = number(rung.long.best / n, "ratio"), spread(rung.long.low / n, rung.long.high / n, "ratio")
    sentence = f"{share} of {promise.count(n)} in {when} {promise.broken}"
    details: tuple[str, ...] = ()
    if rung.state is BurnState.OVER and rung.over is not None:
        sentence = _describe_recovery(rung.over, case.now, promise)
    elif status is not Status.OK:
        rate = rung.long.best / n / promise.allowed
        lately = f"{_format_share(rung.short)} of {promise.count(rung.short.n)}"
        sentence += f"; the budget burns {rate:.3g}x too fast"
        details = (
            f"share between the edges of the bucket: {edges}" if edges != share else "",
            f"{rung.burn:g}x is the limit over {format_span(rung.long_seconds)} and {format_span(rung.short_seconds)}",
            f"{lately} in the last {format_span(rung.short_seconds)}",
            f"{rate * seen / PERIOD_SECONDS:.1%} of a month's budget was spent",
            f"{when} of {format_span(rung.long_seconds)} were seen" if is_partial else "",
            f"output events of {n:,.0f} requests" if promise.of_events else "",
            promise.note,
        )
    return case.verdict(status, certainty, observed, range_reading(0.0, promise.allowed, n), sentence, details=details)


def _describe_recovery(span: BurnSpan, now: float, promise: Promise) -> str:
    slow = number(span.slow / span.n, "ratio") if promise.of_events else f"{span.slow:,.0f}"
    return (
        f"{promise.name} recovering, budget spent {describe_period(span.begin, span.end, now)}; "
        f"{slow} of {promise.count(span.n)} since {promise.broken}"
    )


def _format_share(count: SlowRequestCount) -> str:
    """Return the share of slow requests, between the edges of the bucket around the objective."""
    return guess(count.low / count.n, count.best / count.n, count.high / count.n, "ratio")


def format_span(seconds: float) -> str:
    """Return a duration in its largest unit: "5 min", "6 h", "3 d"."""
    size, unit = next((s, u) for s, u in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (0.0, "s")) if seconds >= s)
    return f"{seconds / size if size else seconds:.3g} {unit}"
