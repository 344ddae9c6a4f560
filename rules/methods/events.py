"""Events: preemptions per finished request, against fixed limits and against the benchmark (guide 9.3; DESIGN 3.8).

Owns the statistics of rare events that come in lots, and the prompt end of such a finding: a storm that is over is over
once the last quarter of the hold is free of it, though the sum over the hold still remembers it.

Faults: events that should not happen at all, such as GPU faults and memory errors (guide 9.3; METRICS trap 16).

Owns the count over the hold and its end: one event is a finding for as long as the hold remembers it, for nothing mends
itself meanwhile. Which counter is meant stands in the catalogue.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rules.confidence import Certainty, poisson_lower_bound
from rules.plan.load_bins import BinnedWindow, group_by_load_bin
from rules.telemetry import windows
from rules.telemetry.reading_methods import ratio
from rules.telemetry.signals import Gap, Missing, Reading
from rules.verdicts.context import (
    RuleContext,
    is_persistent,
    select_comparable,
    supports_certain,
    watched_seconds,
    worst_gap,
)
from rules.verdicts.verdict import RuleResult, Status, Unknown

EVENTS, REQUESTS = "preemptions", "requests_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCount:
    """Events, the requests that finished meanwhile, and the replica-seconds in which the events could be seen."""

    events: float
    finished: float
    seconds: float

    def exceeds(self, limit: float) -> bool:
        """By the best estimate; events while nothing finished exceed any limit."""
        return self.events > limit * self.finished

    def surely_exceeds(self, limit: float) -> bool:
        """By the 99.9 % lower bound of events that come one by one (Poisson)."""
        return poisson_lower_bound(self.events) > limit * max(1.0, self.finished)


def count(slices: Iterable[BinnedWindow]) -> EventCount:
    """The events of slices in which they were seen."""
    seen = [s.window for s in slices if EVENTS in s.window.counters and REQUESTS in s.window.counters]
    return EventCount(
        events=sum(w.counters[EVENTS] for w in seen),
        finished=sum(w.counters[REQUESTS] for w in seen),
        seconds=sum(w.seconds_of(EVENTS) for w in seen),
    )


def judge_event_ratio(case: RuleContext) -> RuleResult:
    """Preemptions per finished request against the guide's two limits, at any load."""
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    found = ratio(windows.sum_windows(s.window for s in case.slices), EVENTS, REQUESTS)
    total = count(case.slices)
    if isinstance(found, Missing) and total.events <= 0:
        return case.unknown(found.gap, f"no {case.rule.signal}")
    warning, critical = case.limit("warning"), case.limit("critical")
    if total.finished < case.limit("minimum_requests") and not total.surely_exceeds(warning):
        return case.too_few_requests(total.finished, case.limit("minimum_requests"))
    status, certainty = _status(case, case.slices, warning)
    if isinstance(status, Unknown):
        return status
    if status is Status.WARNING and total.exceeds(critical):
        status = Status.CRITICAL
    expected = Reading(value=None, low=0.0, high=warning, n=total.finished)
    return case.verdict(status, certainty, found, expected, _fixed_sentence(case, total, status))


def judge_excess(case: RuleContext) -> RuleResult:
    """Preemptions per finished request above the benchmark's at equal load by more than the allowed points."""
    found = select_comparable(case, (EVENTS, REQUESTS))
    if isinstance(found, Unknown):
        return found
    planned = supported = 0.0
    used: list[BinnedWindow] = []
    for bin, one in group_by_load_bin(found.slices, found.curve).items():
        wanted = found.curve.expectation(bin, case.rule.metric, one.rps, one.in_system)
        if wanted is None:
            continue
        finished = count(one.slices).finished
        planned += finished * max(wanted.lower, wanted.upper)
        supported += finished if supports_certain(case, wanted) else 0.0
        used.extend(one.slices)
    if not used:
        return case.unknown(Gap.NOT_IN_PLAN, f"the benchmark has no {case.rule.metric} at this load")
    total = count(used)
    if total.finished < case.limit("minimum_requests"):
        return case.too_few_requests(total.finished, case.limit("minimum_requests"))
    usual = planned / total.finished
    status, certainty = _status(case, used, usual + case.limit("points"))
    if isinstance(status, Unknown):
        return status
    if status is not Status.OK and supported < total.finished / 2:
        certainty = Certainty.LIKELY
    value = total.events / total.finished
    sentence = (
        f"{value:.1%} preemptions a finished request where the benchmark has {usual:.1%} at this load "
        f"({case.limit('points') * 100:.0f} points more are allowed){_over(status, value > usual + case.limit('points'))}"
    )
    observed = Reading(value=value, low=value, high=value, n=total.finished)
    return case.verdict(
        status, certainty, observed, Reading(value=usual, low=usual, high=usual, n=total.finished), sentence
    )


def _status(case: RuleContext, slices: Sequence[BinnedWindow], limit: float) -> tuple[Status | Unknown, Certainty]:
    """Certain by the bound, and only if it was so in the last quarter and in three separate minutes: events cluster."""
    if not count(slices).exceeds(limit):
        return Status.OK, Certainty.CERTAIN
    last = count(case.last_quarter(slices))
    if last.seconds <= 0:
        reason = worst_gap(case.last_quarter(case.slices), EVENTS)
        return case.unknown(reason, "preemptions were not seen in the last quarter of the time"), Certainty.LIKELY
    if last.events <= 0:
        return Status.OK, Certainty.CERTAIN
    each = (count(group) for group in case.periods(slices))
    certain = count(slices).surely_exceeds(limit) and is_persistent(last, each, lambda part: part.exceeds(limit))
    return Status.WARNING, Certainty.CERTAIN if certain else Certainty.LIKELY


def _fixed_sentence(case: RuleContext, total: EventCount, status: Status) -> str:
    share = f" ({total.events / total.finished:.1%})" if total.finished > 0 else ""
    return (
        f"{total.events:,.0f} preemptions for {total.finished:,.0f} finished requests{share}: healthy is below "
        f"{case.limit('warning'):.0%}, above {case.limit('critical'):.0%} is degraded"
        f"{_over(status, total.exceeds(case.limit('warning')))}"
    )


def _over(status: Status, exceeds: bool) -> str:
    return "; none in the last quarter of that time" if status is Status.OK and exceeds else ""


BY_CODE = {"gpu_fault_events": "gpu_fault_events_by_code"}
"""Families whose events come by code too."""


def judge_faults(case: RuleContext) -> RuleResult:
    """Return whether any event was counted in the hold; certain, for events are counted one by one."""
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    family = case.rule.family
    total = windows.sum_families((one.window for one in case.slices), (family, BY_CODE.get(family, family)))
    if family not in total.counters:
        return case.unknown(total.explain_missing(family), f"{case.rule.about}: not measured here")
    count = total.counters[family]
    status = Status.WARNING if count >= case.limit("events") else Status.OK
    where = sorted({one.replica for one in case.slices if one.window.counters.get(family) and one.replica})
    sentence = f"{case.rule.about}: {count:.0f} in {_minutes(case)}{_codes(case, total)}"
    sentence += f", of {', '.join(where)}" if where and status is not Status.OK else ""
    observed = Reading(value=count, low=count, high=count, n=count)
    return case.verdict(status, Certainty.CERTAIN, observed, Reading(value=0.0, low=0.0, high=0.0, n=count), sentence)


def _minutes(case: RuleContext) -> str:
    return f"{math.ceil(watched_seconds(case.slices) / windows.MINUTE_SECONDS):d} min"


def _codes(case: RuleContext, total: windows.Window) -> str:
    stem = BY_CODE.get(case.rule.family)
    found = {
        name.partition("/")[2]: n for name, n in total.counters.items() if stem and name.startswith(f"{stem}/") and n
    }
    return f" ({', '.join(f'{code} x {n:.0f}' for code, n in sorted(found.items()))})" if found else ""
