"""Events: preemptions per finished request (DESIGN 3.8), and hardware faults (guide 9.3; METRICS trap 16).

Preemptions come in bursts: a finding ends once the last quarter of the window has none. A single fault is a finding for
the whole window, because nothing repairs itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rules.confidence import Certainty, poisson_lower_bound
from rules.methods.evidence import certain_if, exact_reading, join_names, range_reading
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import windows
from rules.telemetry.reading_methods import ratio
from rules.telemetry.signals import Gap, Missing
from rules.verdicts.context import (
    RuleContext,
    is_persistent,
    select_comparable,
    supports_certain,
    worst_gap,
)
from rules.verdicts.held_windows import hold, watched_seconds
from rules.verdicts.verdict import RuleResult, Status, Unknown

EVENTS, REQUESTS = "preemptions", "requests_finished"

BY_CODE = {"gpu_fault_events": "gpu_fault_events_by_code"}
"""Families whose events are also counted by code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCount:
    """Events, finished requests, and the replica-seconds in which events were observed."""

    events: float
    finished: float
    seconds: float

    def exceeds(self, limit: float) -> bool:
        """Return whether the best estimate exceeds `limit`. Events without finished requests exceed any limit."""
        return self.events > limit * self.finished

    def significantly_exceeds(self, limit: float) -> bool:
        """Return whether the 99.9 % lower bound of independent events (Poisson) exceeds `limit`."""
        return poisson_lower_bound(self.events) > limit * max(1.0, self.finished)


def count_events(binned: Iterable[BinnedWindow]) -> EventCount:
    """Return the preemptions of the binned windows that count them."""
    seen = [s.window for s in binned if EVENTS in s.window.counters and REQUESTS in s.window.counters]
    return EventCount(
        events=sum(w.counters[EVENTS] for w in seen),
        finished=sum(w.counters[REQUESTS] for w in seen),
        seconds=sum(w.seconds_of(EVENTS) for w in seen),
    )


def judge_event_ratio(case: RuleContext) -> RuleResult:
    """Compare preemptions per finished request with the guide's two limits, at any load.

    Certain beyond chance (Poisson) and in separate minutes, because preemptions cluster.
    """
    found = ratio(hold(case.binned).sum_families((EVENTS, REQUESTS)), EVENTS, REQUESTS)
    total = count_events(case.binned)
    if isinstance(found, Missing) and total.events <= 0:
        return case.unknown(found.gap, f"no {case.rule.signal}")
    warning, critical = case.limit("warning"), case.limit("critical")
    if total.finished < case.limit("minimum_requests") and not total.significantly_exceeds(warning):
        return case.too_few_requests(total.finished, case.limit("minimum_requests"))
    status, certainty = _compute_status(case, case.binned, warning)
    if isinstance(status, Unknown):
        return status
    if status is Status.WARNING and total.exceeds(critical):
        status = Status.CRITICAL
    claim = f"{total.events:,.0f} preemptions while no request finished"
    if total.finished > 0:
        claim = f"Preemptions are {total.events / total.finished:.1%} of finished requests"
    healthy, degraded = f"below {warning:.0%} is healthy", f"above {critical:.0%} is degraded"
    limit = degraded if status is Status.CRITICAL else healthy
    sentence = f"{claim}; {_describe_end(status, total.exceeds(warning)) or limit}"
    details = (
        f"{total.events:,.0f} preemptions for {total.finished:,.0f} finished requests",
        f"{healthy}, {degraded}",
    )
    expected = range_reading(0.0, warning, total.finished)
    return case.verdict(status, certainty, found, expected, sentence, details=details)


def judge_excess(case: RuleContext) -> RuleResult:
    """Find more preemptions per finished request than the benchmark at equal load, beyond the allowed points.

    Certain as `judge_event_ratio`, if enough requests stand behind the points of most of the load.
    """
    found = select_comparable(case, (EVENTS, REQUESTS))
    if isinstance(found, Unknown):
        return found
    planned = supported = 0.0
    used: list[BinnedWindow] = []
    for bin, one in hold(found.binned).by_load_bin(found.curve).items():
        wanted = found.curve.expectation(bin, case.rule.signal, one.rps, one.in_system)
        if wanted is None:
            continue
        finished = count_events(one.binned).finished
        planned += finished * max(wanted.lower, wanted.upper)
        supported += finished if supports_certain(wanted, case.limit("supported_requests")) else 0.0
        used.extend(one.binned)
    if not used:
        return case.unknown(Gap.NOT_IN_PLAN, f"the benchmark has no {case.rule.signal} at this load")
    total = count_events(used)
    if total.finished < case.limit("minimum_requests"):
        return case.too_few_requests(total.finished, case.limit("minimum_requests"))
    usual, points = planned / total.finished, case.limit("points")
    status, certainty = _compute_status(case, used, usual + points)
    if isinstance(status, Unknown):
        return status
    if status is not Status.OK and supported < total.finished / 2:
        certainty = Certainty.LIKELY
    value = total.events / total.finished
    end = _describe_end(status, value > usual + points)
    sentence = f"Preemptions are {value:.1%} of finished requests; the benchmark has {usual:.1%} at this load"
    sentence = f"{sentence}; {end}" if end else sentence
    details = (
        f"{total.events:,.0f} preemptions for {total.finished:,.0f} finished requests",
        f"{points * 100:.0f} points more than the benchmark are allowed",
    )
    observed, expected = (exact_reading(each, total.finished) for each in (value, usual))
    return case.verdict(status, certainty, observed, expected, sentence, details=details)


def _compute_status(
    case: RuleContext, binned: Sequence[BinnedWindow], limit: float
) -> tuple[Status | Unknown, Certainty]:
    """Return status and certainty. Certain needs the bound and persistence, because events cluster."""
    if not count_events(binned).exceeds(limit):
        return Status.OK, Certainty.CERTAIN
    last = count_events(case.last_quarter(binned))
    if last.seconds <= 0:
        reason = worst_gap(case.last_quarter(case.binned), EVENTS)
        return case.unknown(reason, "preemptions were not seen in the last quarter of the time"), Certainty.LIKELY
    if last.events <= 0:
        return Status.OK, Certainty.CERTAIN
    each = (count_events(group) for group in case.periods(binned))
    is_proven = count_events(binned).significantly_exceeds(limit)
    return Status.WARNING, certain_if(is_proven and is_persistent(last, each, lambda part: part.exceeds(limit)))


def _describe_end(status: Status, exceeds: bool) -> str:
    return "none in the last quarter of the time" if status is Status.OK and exceeds else ""


def judge_faults(case: RuleContext) -> RuleResult:
    """Find any event in the window. The result is certain, because events are counted one by one."""
    family = case.rule.family
    total = hold(case.binned).sum_families((family, BY_CODE.get(family, family)))
    if family not in total.counters:
        return case.unknown(total.explain_missing(family), f"{case.rule.about}: not measured here")
    count = total.counters[family]
    status = Status.WARNING if count >= case.limit("events") else Status.OK
    where = sorted({one.replica for one in case.binned if one.window.counters.get(family) and one.replica})
    minutes = math.ceil(watched_seconds(case.binned) / windows.MINUTE_SECONDS)
    sentence = f"{case.rule.about}: {count:.0f} in {minutes:d} min"
    sentence += f" on {join_names(where)}" if where and status is not Status.OK else ""
    observed, expected = exact_reading(count, count), exact_reading(0.0, count)
    details = (_list_codes(family, total),)
    return case.verdict(status, Certainty.CERTAIN, observed, expected, sentence, details=details)


def _list_codes(family: str, total: windows.Window) -> str:
    """Return the number of events by code, "" without codes."""
    stem = BY_CODE.get(family)
    found = {
        name.partition("/")[2]: n for name, n in total.counters.items() if stem and name.startswith(f"{stem}/") and n
    }
    return join_names([f"{code} x {n:.0f}" for code, n in sorted(found.items())])
