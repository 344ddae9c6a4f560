"""Watching a tier: from the minutes of its replicas to answers. Pure steps: time is an argument.

Owns the minutes for as long as rules look back, and which of them a rule sees. The daemon and the replay both run on
this and on `rules.replicas.state`, so that they cannot disagree.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from rules.catalogue.registry import RULES
from rules.causes import explain
from rules.confidence import Certainty
from rules.evaluator.evaluate import evaluate_rule
from rules.methods.tiers import judge_tiers
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.replicas import starts
from rules.replicas.starts import ReplicaStart
from rules.replicas.state import ReplicaState
from rules.telemetry import windows
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import Window
from rules.verdicts import error_budget
from rules.verdicts.context import SEPARATE, TierWindows, read_plan_value
from rules.verdicts.error_budget import Budget
from rules.verdicts.hold import seldom_scraped, too_short
from rules.verdicts.projection import Projection
from rules.verdicts.rule import Rule
from rules.verdicts.verdict import RuleResult, Status, Subject, Unknown, Verdict

LIVE_SECONDS = 3600.0
"""Rules that look back no further are judged from the minutes in memory; the others from the history's hours."""

LIVE = tuple(rule for rule in RULES if not rule.per_scrape and rule.window_seconds <= LIVE_SECONDS)

LONGEST = max(rule.window_seconds for rule in LIVE)

RECENT_SECONDS = 960.0
"""Older minutes keep of their histograms only LENGTHS and of their gauges only LEVELS: rules that look back further read
no others, and these are most of a minute's memory (a node agent's 64 MiB, DESIGN 5)."""

LENGTHS = frozenset({"prompt_tokens_per_request", "generation_tokens_per_request"})
LEVELS = frozenset({"requests_running", "requests_waiting", "engine_startup_seconds"})

LOCALITY = frozenset(
    {
        *("prefix_queried_tokens", "prefix_hit_tokens", "requests_finished", "preemptions", "restarts"),
        *("prompt_tokens", "generation_tokens"),
    }
)
"""What `rules.methods.prefix_locality` and `rules.methods.pools` read of a replica's older minute, beside LENGTHS."""

OF_EACH = frozenset({"LoadBeyondBenchmark", "QueueGrowing", "PrefixRoutingBroken", "PdRatioOff", "ExpertImbalance"})
"""Rules that compare the replicas of a tier with each other: sums over replicas do not tell."""

SELDOM = frozenset({"PrefixRoutingBroken"})
SELDOM_SECONDS = 300.0
"""Of a tier that is seen as sums rules over an hour of every replica's minutes are judged so often: caches take longer to fill."""

AHEAD_SECONDS = 600.0
"""Replicas close their minutes in different turns, a slow target's late; what is further ahead is of a clock that was wrong."""

MOST_MINUTES = round((LONGEST + AHEAD_SECONDS) / windows.MINUTE_SECONDS) + 1
"""Whole minutes of one replica that are in memory at once."""

TIMES, SPARE = 8, 64
"""A minute of a tier is in at most so many slices of every replica that is watched (a sum's turns are shorter than a minute), and
some of pods that went. More come where a clock stands still while pods come and go."""

EXPLAINED_SECONDS = 180.0
"""A cascade is explained by the last three minutes: lengths are seen only when requests finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierMinutes:
    """The closed minutes of a tier's replicas, oldest first, as far back as its rules look; its error budget and its starts.

    Of a tier that is seen as sums, `slices` are minutes added up over the replicas of one load, and `each` holds what rules
    that compare replicas need of every one; None where `slices` are those of single replicas already.
    """

    slices: tuple[BinnedWindow, ...] = ()
    each: tuple[BinnedWindow, ...] | None = None
    budget: Budget = field(default_factory=Budget)
    starts: tuple[ReplicaStart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSize:
    """What is known when minutes are over: the judge's own time (unix seconds), and how many replicas the tier has."""

    now: float
    replicas: int


def add_minute(
    minutes: TierMinutes, minute: Window, replica: str, view: TierContext, watched: TierSize | None = None
) -> TierMinutes:
    """With one more closed minute of one replica, last; what is older than any rule looks back is dropped, and what is of
    a time that has yet to come: the clock went back. Without `watched` it is the minute that says what time it is."""
    now, since, until = _reach(minute.end, watched)
    keep = tuple(_aged(s, now) for s in minutes.slices if since < s.window.end <= until)
    before = next((s for s in reversed(keep) if s.replica == replica), None)
    newest = load_bins.mark_backlog(load_bins.bin_window(minute, view.curve, replica), before)
    return TierMinutes(
        slices=_bounded(keep, (newest,), watched),
        budget=error_budget.add_minute(_budget(minutes, view), minute),
        starts=minutes.starts,
    )


def add_aggregated_minute(
    minutes: TierMinutes,
    groups: Sequence[BinnedWindow],
    each: Sequence[BinnedWindow],
    view: TierContext,
    watched: TierSize | None = None,
) -> TierMinutes:
    """With one more minute of a tier that is seen as sums: `groups` added up by load, `each` of every replica, placed."""
    if not groups and not each:
        return minutes
    now, since, until = _reach(max(s.window.end for s in (*groups, *each)), watched)
    known = _budget(minutes, view)
    for one in groups:
        known = error_budget.add_minute(known, one.window)
    before = (_aged(s, now) for s in minutes.slices if since < s.window.end <= until)
    of_each = (_aged_each(s, now) for s in minutes.each or () if since < s.window.end <= until)
    return TierMinutes(
        slices=_bounded(before, groups, watched),
        each=_bounded(of_each, each, watched),
        budget=known,
        starts=minutes.starts,
    )


def _reach(end: float, watched: TierSize | None) -> tuple[float, float, float]:
    """What time it is when a minute ends at `end`, and which minutes are remembered then: those that end after the first and not
    after the second. A minute that is far from the judge's own time is of another's wrong clock, and makes none of the tier's old.
    """
    now = end if watched is None or abs(end - watched.now) <= AHEAD_SECONDS else watched.now
    return now, now - LONGEST - windows.MINUTE_SECONDS, now + AHEAD_SECONDS


def _bounded(
    before: Iterable[BinnedWindow], newest: Sequence[BinnedWindow], watched: TierSize | None
) -> tuple[BinnedWindow, ...]:
    """With the newest, and without the oldest of their minutes where these are in more slices than so many replicas leave."""
    several = (*before, *newest)
    if watched is None or len(several) <= MOST_MINUTES * 2 * watched.replicas + SPARE:
        return several
    most = TIMES * watched.replicas + SPARE
    places: dict[float, deque[int]] = {windows.minute_of(one.window): deque(maxlen=most) for one in newest}
    others: list[int] = []
    for place, one in enumerate(several):
        places.get(windows.minute_of(one.window), others).append(place)
    return tuple(several[place] for place in sorted(itertools.chain(others, *places.values())))


def last_minute_by_replica(minutes: TierMinutes, now: float) -> dict[str | None, BinnedWindow]:
    """The last minute of every replica of such a tier, for `rules.plan.load_bins`."""
    return {s.replica: s for s in minutes.each or () if s.window.end > now - load_bins.AFTER_SECONDS - RECENT_SECONDS}


def add_start(minutes: TierMinutes, start: ReplicaStart) -> TierMinutes:
    """With one more start of a replica; the same object where it adds nothing."""
    known = starts.add_start(minutes.starts, start)
    return minutes if known is minutes.starts else replace(minutes, starts=known)


def _aged(one: BinnedWindow, now: float) -> BinnedWindow:
    """The slice without what nobody asks of it any more."""
    window = one.window
    slim = window.histograms.keys() <= LENGTHS and window.gauges.keys() <= LEVELS
    if window.end > now - RECENT_SECONDS or slim:
        return one
    parts = {family: part for family, part in window.histograms.items() if family in LENGTHS}
    gauges = {family: gauge for family, gauge in window.gauges.items() if family in LEVELS}
    return replace(one, window=replace(window, histograms=parts, gauges=gauges))


def _aged_each(one: BinnedWindow, now: float) -> BinnedWindow:
    """Of a replica's older minutes only what tells whether the prefix cache's locality was kept is asked any more."""
    window = one.window
    if window.end > now - RECENT_SECONDS or not window.gauges:
        return one
    counters = {family: value for family, value in window.counters.items() if family in LOCALITY}
    parts = {family: part for family, part in window.histograms.items() if family in LENGTHS}
    slim = replace(window, counters=counters, histograms=parts, gauges=_NOTHING, short_seconds=_NOTHING)
    return replace(one, window=slim)


_NOTHING: Mapping[str, Any] = MappingProxyType({})
"""One object for all of an hour."""


def _budget(minutes: TierMinutes, view: TierContext) -> Budget:
    """The budget so far, if it was counted against the tier's present objectives."""
    anew = error_budget.empty_budget(view)
    return minutes.budget if minutes.budget.objectives == anew.objectives else anew


def rebin_minutes(minutes: TierMinutes, view: TierContext) -> TierMinutes:
    """The same minutes on another curve, after the plan changed."""
    anew = TierMinutes(starts=minutes.starts)
    if minutes.each is not None:
        # Sums by the loads of another curve: they cannot be taken apart again.
        return replace(anew, each=(), budget=_budget(minutes, view))
    for one in minutes.slices:
        anew = add_minute(anew, one.window, one.replica or "", view)
    same = minutes.budget.objectives == error_budget.empty_budget(view).objectives
    return replace(anew, budget=minutes.budget) if same else anew


def recent_windows(
    minutes: TierMinutes, replica: ReplicaState, view: TierContext, now: float
) -> tuple[BinnedWindow, ...]:
    """The last minutes of one replica, the open one included."""
    of_each = minutes.slices if minutes.each is None else minutes.each
    closed = [s for s in of_each if s.replica == replica.name and s.window.end > now - EXPLAINED_SECONDS]
    if replica.open:
        closed.append(load_bins.bin_window(windows.sum_windows(replica.open), view.curve, replica.name))
    return tuple(closed)


def cached_results(minutes: TierMinutes, answers: Iterable[RuleResult], now: float) -> dict[str, RuleResult]:
    """By rule, those of a tier's last answers that need not be asked for anew at `now`."""
    if minutes.each is None:
        return {}
    return {one.rule: one for one in answers if one.rule in SELDOM and one.t <= now < one.t + SELDOM_SECONDS}


def evaluate_tier_rules(
    minutes: TierMinutes,
    view: TierContext,
    now: float,
    fleet: Mapping[str, TierWindows] | None = None,
    projection: Projection | None = None,
    kept: Mapping[str, RuleResult] | None = None,
) -> tuple[RuleResult, ...]:
    """What the rules over slices say about the tier at `now`; of a rule whose minimum has not passed: unknown.

    `fleet` are the minutes of all tiers, for rules that compare them; `projection` is the tier's forecast, where there is one.
    `kept` are answers, by rule, that still stand and are not asked for anew (`still_stand`).
    """
    standing = kept or {}
    holds: dict[tuple[bool, float], tuple[BinnedWindow, ...]] = {}
    answers = []
    for rule in LIVE:
        if rule.name in standing:
            answers.append(replace(standing[rule.name], t=now))
            continue
        of_each = minutes.each is not None and rule.name in OF_EACH
        kind = (of_each, rule.window_seconds)
        if kind not in holds:
            # Rules share few lengths of time, and of a large tier an hour is many thousand slices.
            holds[kind] = _hold(minutes.each or () if of_each else minutes.slices, rule, now)
        answers.append(_judged(rule, minutes, holds[kind], view, now, fleet or {}, projection))
    return tuple(answers)


def _judged(
    rule: Rule,
    minutes: TierMinutes,
    hold: tuple[BinnedWindow, ...],
    view: TierContext,
    now: float,
    fleet: Mapping[str, TierWindows],
    projection: Projection | None,
) -> RuleResult:
    subject = Subject(tier=view.tier)
    if rule.needs and read_plan_value(view, rule.needs) is None:
        # First of all: waiting does not put it into the plan.
        text = f"the plan has no {rule.needs}"
        return Unknown(t=now, rule=rule.name, subject=subject, reason=Gap.NOT_IN_PLAN, text=text)
    if not hold and rule.minimum_seconds > 0:
        text = too_short(rule, hold)
        return Unknown(t=now, rule=rule.name, subject=subject, reason=Gap.TOO_FEW_REQUESTS, text=text)
    others = None
    if rule.method is judge_tiers:
        others = {
            name: TierWindows(view=tier.view, slices=_hold(tier.slices, rule, now)) for name, tier in fleet.items()
        }
    answer = evaluate_rule(
        rule, view, hold, now, fleet=others, budget=minutes.budget, projection=projection, starts=minutes.starts
    )
    if not isinstance(answer, Verdict):
        return answer
    if not seldom_scraped(hold):
        return explain.add_causes(answer, view, hold)
    steps = len({windows.minute_of(one.window) for one in hold if one.window.covered_seconds > 0})
    if answer.status is Status.OK and steps < SEPARATE:
        text = f"scrapes are too far apart: {steps} intervals between scrapes were seen, {SEPARATE} are needed"
        return Unknown(t=now, rule=rule.name, subject=subject, reason=Gap.NOT_SCRAPED, text=text)
    if answer.status is Status.OK and _may_exceed(answer):
        text = "scrapes are too far apart, and the bounds of what was seen reach beyond what is healthy"
        return Unknown(t=now, rule=rule.name, subject=subject, reason=Gap.NOT_SCRAPED, text=text)
    return explain.add_causes(replace(answer, certainty=Certainty.LIKELY), view, hold)


def _may_exceed(answer: Verdict) -> bool:
    """Return whether the bounds of what was seen reach beyond what is expected."""
    seen, expected = answer.observed, answer.expected
    if not isinstance(seen, Reading) or not isinstance(expected, Reading) or expected.high is None:
        return False
    return seen.high is None or seen.high > expected.high


def _hold(all_slices: Sequence[BinnedWindow], rule: Rule, now: float) -> tuple[BinnedWindow, ...]:
    return tuple(s for s in all_slices if s.window.end > now - rule.window_seconds)
