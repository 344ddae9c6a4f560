"""Burn rates: how fast an objective's error budget is spent, over pairs of a long and a short window.

Owns the arithmetic of the SRE workbook's ladder (ch. 5, "Multiwindow, Multi-Burn-Rate Alerts") and its sentence. Every
number of the ladder stands in the catalogue; what was seen is counted by `rules.verdicts.error_budget`.

A burn rate is the share of slow requests by the share that is allowed: 1 spends a month's budget in just a month. The
long window says that a part of the budget worth waking somebody for is gone, the short one that it still is going. An
agent that has just started has seen only a part of the long window. Then the budget that was seen to be spent decides: the
unseen part is taken as equally busy and free of slow requests. So 10 minutes of which every request was slow are 16.7 x
over the hour, and wake somebody; 10 minutes at 20 x are 3.3 x of the hour's 14.4 x, and are told as likely until enough is
spent. With the history's minutes read back after a restart the unseen part is the restart itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from rules.confidence import CONFIDENCE, Certainty
from rules.methods.tails import is_significant_share
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.wording import guess, number
from rules.verdicts import error_budget
from rules.verdicts.context import LIKELY_CONFIDENCE, SEPARATE, RuleContext, read_plan_value, worst_gap
from rules.verdicts.error_budget import SlowRequestCount
from rules.verdicts.verdict import RuleResult, Status, Verdict

PERIOD_SECONDS = 30 * 86_400.0
"""The time that a budget is for: the workbook's 30 days, from which its burn rates follow (14.4 x 1 h is 2 %)."""

RUNGS: tuple[tuple[str, Status], ...] = (
    ("page_fast", Status.CRITICAL),
    ("page_slow", Status.CRITICAL),
    ("ticket_fast", Status.WARNING),
    ("ticket_slow", Status.WARNING),
)
"""By the stem of their thresholds' names, the fastest first."""

ENOUGH_TRIALS = 100_000.0
"""Of more requests chance is asked as if they were so many: that understates the evidence, and is quick."""


class BurnState(IntEnum):
    """What one rung comes to, the weakest first."""

    UNSEEN = 0  # too little of the long window
    CALM = 1
    BLIND = 2  # the long window burns, and the short one has too few requests to say whether it still does
    LIKELY = 3
    CERTAIN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnWindow:
    """One pair of windows (seconds), the burn rate that it allows, and what was counted in both."""

    status: Status
    burn: float
    long_seconds: float
    short_seconds: float
    long: SlowRequestCount
    short: SlowRequestCount
    state: BurnState


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What share of requests may break a promise, and what is told of those that do: `broken` stands after "5.0% of 200
    requests in the last 1 h"."""

    allowed: float
    broken: str


def judge_burn(case: RuleContext) -> RuleResult:
    """Requests slower than a latency's objective, by the ladder."""
    objective = read_plan_value(case.view, case.rule.needs)
    if not isinstance(objective, float | int):
        return case.unknown(Gap.NOT_IN_PLAN, f"the plan has no {case.rule.needs}")
    allowed, word = case.limit("allowed_share"), case.rule.family.partition("_")[0].upper()
    broken = f"had a {word} above the {number(float(objective), 'seconds')} promised to {1 - allowed:.0%} of them"
    promise = Promise(allowed=allowed, broken=broken)
    return judge_promise(case, promise) or _nothing(case, promise)


def judge_promise(case: RuleContext, promise: Promise) -> RuleResult | None:
    """The loudest rung that fires, certain ones first; ok where none does and none that burnt is silent. None: nothing seen."""
    rungs = [_rung(case, promise, name, status) for name, status in RUNGS]
    firing = [rung for rung in rungs if rung.state >= BurnState.LIKELY]
    if firing:
        loudest = max(firing, key=lambda rung: rung.state)
        certainty = Certainty.CERTAIN if loudest.state is BurnState.CERTAIN else Certainty.LIKELY
        return _verdict(case, loudest, loudest.status, certainty, promise)
    blind = next((rung for rung in rungs if rung.state is BurnState.BLIND), None)
    if blind is not None:
        return case.too_few_requests(
            blind.short.n, case.limit("minimum_requests"), f" in the last {format_span(blind.short_seconds)}"
        )
    calm = next((rung for rung in rungs if rung.state is BurnState.CALM), None)
    return None if calm is None else _verdict(case, calm, Status.OK, Certainty.CERTAIN, promise)


def _rung(case: RuleContext, promise: Promise, name: str, status: Status) -> BurnWindow:
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
    return replace(rung, state=_state(case, promise, rung))


def _state(case: RuleContext, promise: Promise, rung: BurnWindow) -> BurnState:
    limit, needed = rung.burn * promise.allowed, max(1.0, case.limit("minimum_requests"))
    long, short = rung.long, rung.short
    if long.seconds < FULL_COVERAGE * rung.short_seconds or long.n < needed:
        return BurnState.UNSEEN
    if not _beyond_chance(long.best, long.n, limit, LIKELY_CONFIDENCE):
        return BurnState.CALM
    if short.n < needed:
        return BurnState.BLIND
    if short.best <= limit * short.n:
        return BurnState.CALM
    surely = short.low > limit * short.n and _beyond_chance(long.low, long.n, limit * _unseen(rung), CONFIDENCE)
    separate = sum(1 for share in long.shares if share > limit) >= SEPARATE
    return BurnState.CERTAIN if surely and separate else BurnState.LIKELY


def _unseen(rung: BurnWindow) -> float:
    """By how much the share of the seen part must be larger, if nothing was slow in the part that was not seen."""
    known = rung.long.seconds / rung.long_seconds
    return 1.0 if known >= FULL_COVERAGE else 1.0 / known


def _beyond_chance(slow: float, n: float, limit: float, confidence: float) -> bool:
    return limit < 1 and is_significant_share(slow, n, min(n, ENOUGH_TRIALS), limit, confidence)


def _nothing(case: RuleContext, promise: Promise) -> RuleResult:
    """Why no rung could be judged."""
    family = case.rule.family
    if case.slices and not any(family in one.window.histograms for one in case.slices):
        return case.unknown(worst_gap(case.slices, family), f"{family} is not there")
    return unknown_text(case, promise)


def unknown_text(case: RuleContext, promise: Promise) -> RuleResult:
    """Why no rung could be judged, where what is counted is there."""
    first = _rung(case, promise, *RUNGS[0])
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    if first.long.n <= 0:
        return case.unknown(Gap.NO_TRAFFIC, f"no requests in the last {format_span(first.long_seconds)}")
    needed = FULL_COVERAGE * first.short_seconds
    if first.long.seconds < needed:
        return case.unknown(Gap.TOO_FEW_REQUESTS, f"{first.long.seconds:.0f} s seen, {needed:.0f} s are needed")
    return case.too_few_requests(
        first.long.n, case.limit("minimum_requests"), f" in the last {format_span(first.long_seconds)}"
    )


def _verdict(case: RuleContext, rung: BurnWindow, status: Status, certainty: Certainty, promise: Promise) -> Verdict:
    n = rung.long.n
    observed = Reading(value=rung.long.best / n, low=rung.long.low / n, high=rung.long.high / n, n=n)
    expected = Reading(value=None, low=0.0, high=promise.allowed, n=n)
    when = f"the last {format_span(rung.long_seconds)}"
    if status is Status.OK and rung.long.seconds < FULL_COVERAGE * rung.long_seconds:
        when = f"{format_span(rung.long.seconds)} seen"
    sentence = (
        f"{_slow(rung.long)} of {n:,.0f} requests in {when} {promise.broken}{_burning(rung, status, promise.allowed)}"
    )
    seen = "" if status is Status.OK else _seen(rung)
    return case.verdict(status, certainty, observed, expected, f"{sentence}{seen}")


def _burning(rung: BurnWindow, status: Status, allowed: float) -> str:
    if status is Status.OK:
        still = rung.short.best / rung.short.n if rung.short.n > 0 else 0.0
        over = rung.long.best > rung.burn * allowed * rung.long.n
        return f"; in the last {format_span(rung.short_seconds)} {still:.1%}" if over else ""
    rate = rung.long.best / rung.long.n / allowed
    spent = rate * rung.long.seconds / PERIOD_SECONDS
    return (
        f", and {_slow(rung.short)} of {rung.short.n:,.0f} in the last {format_span(rung.short_seconds)}: "
        f"the error budget burns {rate:.3g} times as fast as it may ({rung.burn:g} is the limit here), "
        f"{spent:.1%} of a month's budget was spent"
    )


def _slow(tally: SlowRequestCount) -> str:
    """The share of slow requests with what the bucket around the objective leaves open."""
    return guess(tally.low / tally.n, tally.best / tally.n, tally.high / tally.n, "ratio")


def _seen(rung: BurnWindow) -> str:
    if rung.long.seconds >= FULL_COVERAGE * rung.long_seconds:
        return ""
    return f"; of that time {format_span(rung.long.seconds)} were seen"


def format_span(seconds: float) -> str:
    """A window's length in its largest unit: "5 min", "6 h", "3 d"."""
    size, unit = next((s, u) for s, u in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (0.0, "s")) if seconds >= s)
    return f"{seconds / size if size else seconds:.3g} {unit}"
