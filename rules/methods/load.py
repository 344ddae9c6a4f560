"""Load: whether replicas carry more than the benchmark measured (DESIGN 3.4).

Owns the verdict on the load itself. Completed requests saturate, so the requests in the system and a queue that grows
say it too. Which minutes are outside is decided in `rules.plan.curve` and `rules.plan.load_bins`, and in
`rules.methods.offered_load` whether load is what is wrong: a slow machine fills the system at any load.

The busiest minutes of a tier against the planned peak, and over days the peak against the average (guide 1.3, 9.1).

Owns how a tier's arrivals are counted by period. An hour says nothing of a day's average, so the ratio is only told where
a day or more was seen; there the busiest hour is a lower bound of the peak. It gives no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rules.confidence import Certainty, poisson_lower_bound
from rules.methods.offered_load import is_it_the_load
from rules.plan.load_bins import BinnedWindow
from rules.telemetry.arrivals import count_arrivals
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.wording import number
from rules.verdicts.context import (
    SEPARATE,
    RuleContext,
    find_growing_queues,
    part_seen,
    scraped_by_the_minute,
    watched_seconds,
    worst_gap,
)
from rules.verdicts.latency_pattern import LatencyPattern, with_levers
from rules.verdicts.verdict import RuleResult, Status

LOAD_WORDS: dict[LatencyPattern, str] = {
    LatencyPattern.KNEE: ": more load than replicas take",
    LatencyPattern.TAIL: ": within what replicas take together, it is not the load",
    LatencyPattern.EITHER: "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOverload:
    """A replica beyond the benchmark: when, in how many minutes (hours), whether most of the last quarter, and what it showed.

    `completed` says whether it completed more than the benchmark did; else more requests were in the system, or queued.
    """

    replica: str | None
    beyond: tuple[BinnedWindow, ...]
    periods: int
    lasting: bool
    text: str
    completed: bool


def judge_beyond(case: RuleContext) -> RuleResult:
    """Beyond in most of the last quarter: certain if in three separate minutes, likely if in two.

    Likely too is a queue that grew throughout: completed requests do not show how much arrives.
    """
    curve = case.view.curve
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    if curve is None:
        return case.unknown(Gap.NOT_IN_PLAN, "the plan has no benchmark curve for this tier")
    rates = [s.rps for s in case.slices if s.rps is not None]
    if not rates:
        return case.unknown(worst_gap(case.slices, "requests_finished"), "requests_finished is not there")
    early = _too_early(case, case.limit("minutes") - 1)
    if early:
        return case.unknown(Gap.TOO_FEW_REQUESTS, early)
    status, certainty, sentence = _found(case, number(curve.top_rps, "per_second"), number(max(rates), "per_second"))
    observed = Reading(value=math.fsum(rates) / len(rates), low=min(rates), high=max(rates), n=float(len(rates)))
    expected = Reading(value=curve.top_rps, low=0.0, high=curve.top_rps, n=float(curve.minimum_requests))
    if status is Status.OK and scraped_by_the_minute(case.slices) and (early := beyond_so_far(case)):
        return case.unknown(Gap.TOO_FEW_REQUESTS, early)
    if status is Status.OK:
        return case.verdict(status, certainty, observed, expected, sentence)
    load, shape = is_it_the_load(case)
    told = f"{sentence}; {load}{LOAD_WORDS[shape]}"
    return with_levers(case.verdict(status, certainty, observed, expected, told), shape)


def _found(case: RuleContext, top: str, most: str) -> tuple[Status, Certainty, str]:
    replicas = _by_replica(case.slices)
    overloads = _overloads(case, replicas)
    lasting = [one for one in overloads if one.lasting and one.periods >= case.limit("minutes") - 1]
    surely = [one for one in lasting if one.periods >= case.limit("minutes")]
    if lasting:
        named = surely or lasting
        sentence = f"{_who(named, len(replicas))} than the benchmark measured in {_when(case, named)}: {named[-1].text}"
        return Status.WARNING, Certainty.CERTAIN if surely else Certainty.LIKELY, sentence
    growing = find_growing_queues(case)
    if growing:
        name, text = next(iter(growing.items()))
        finishing = number(max(s.rps or 0.0 for s in case.last_quarter(replicas[name])), "per_second")
        sentence = f"{name or case.view.tier}: {text}; {finishing} finish where the benchmark reached {top}"
        return Status.WARNING, Certainty.LIKELY, sentence
    sentence = f"At most {most} a replica; the benchmark goes to {top}"
    if overloads:
        longest = max(overloads, key=lambda one: watched_seconds(one.beyond))
        seen = part_seen(longest.beyond, replicas[longest.replica])
        end = "too short for a finding" if longest.lasting else "over by now"
        sentence = f"Beyond the benchmark for {seen}, {end}: {longest.text}"
    return Status.OK, Certainty.CERTAIN, sentence


def beyond_so_far(case: RuleContext) -> str:
    """Which load was seen beyond the benchmark in a time that is too short for any answer, in words; "" where none was."""
    return _too_early(case, math.inf)


def _too_early(case: RuleContext, needed: float) -> str:
    """Beyond at the end, of replicas that were not seen in so many minutes (hours), as a finding takes; "" where it is not so."""
    replicas = _by_replica(case.slices)
    overloads = [one for one in _overloads(case, replicas) if one.lasting]
    early = [one for one in overloads if len(case.periods(replicas[one.replica])) < needed]
    if not early or len(early) < len(overloads):
        return ""
    longest = max(early, key=lambda one: watched_seconds(one.beyond))
    seen = part_seen(longest.beyond, replicas[longest.replica])
    return f"beyond for {seen}: too early to say ({longest.text})"


def _overloads(case: RuleContext, replicas: Mapping[str | None, list[BinnedWindow]]) -> list[ReplicaOverload]:
    return [one for name, group in replicas.items() if (one := _overload(case, name, group)) is not None]


def _by_replica(slices: Sequence[BinnedWindow]) -> dict[str | None, list[BinnedWindow]]:
    replicas: dict[str | None, list[BinnedWindow]] = {}
    for one in slices:
        replicas.setdefault(one.replica, []).append(one)
    return replicas


def _overload(case: RuleContext, replica: str | None, slices: Sequence[BinnedWindow]) -> ReplicaOverload | None:
    beyond = [s for s in slices if s.beyond]
    if not beyond:
        return None
    last = case.last_quarter(slices)
    seconds = math.fsum(s.window.covered_seconds for s in last)
    over = math.fsum(s.window.covered_seconds for s in last if s.beyond)
    return ReplicaOverload(
        replica=replica,
        beyond=tuple(beyond),
        periods=len(case.periods(beyond)),
        lasting=over > 0 and over >= case.limit("share") * seconds,
        text=beyond[-1].beyond,
        completed=case.view.curve is not None and any((s.rps or 0.0) > case.view.curve.top_rps for s in beyond),
    )


def _who(found: Sequence[ReplicaOverload], replicas: int) -> str:
    names = ", ".join(one.replica for one in found if one.replica)
    completed = any(one.completed for one in found)
    if not names:
        return "The load was more" if completed else "More requests were in the system"
    had = "carried more" if completed else "had more requests in the system"
    if len(found) == 1:
        return f"{names} {had}" if replicas == 1 else f"{names} (1 of {replicas} replicas) {had}"
    return f"{len(found)} of {replicas} replicas ({names}) {had}"


def _when(case: RuleContext, found: Sequence[ReplicaOverload]) -> str:
    most = max(one.periods for one in found)
    word = case.periods_word if most > 1 else case.periods_word.removesuffix("s")
    return f"{'up to ' if len(found) > 1 else ''}{most} {word}"


DAY_SECONDS = 86400.0

WHOLE = 0.75
"""A period of which less was seen is no minute (hour) to take a rate of: one burst would be the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakComparison:
    """Requests per second of the tier in its busiest periods, at least `rps` in three of them; what was planned.

    `ratio` is the peak by the average over a day or more, `planned_ratio` the plan's; None where not known.
    """

    rps: float
    planned: float
    requests: float
    periods: str
    factor: float
    certain: bool
    ratio: float | None
    planned_ratio: float | None

    @property
    def is_above_plan(self) -> bool:
        """Beyond the planned peak, or beyond the planned peak-to-average ratio, by more than the allowed factor."""
        return self.rps > self.planned * self.factor or self._bursty

    @property
    def _bursty(self) -> bool:
        return (
            self.ratio is not None and self.planned_ratio is not None and self.ratio > self.planned_ratio * self.factor
        )

    def __str__(self) -> str:
        text = f"{number(self.rps, 'per_second')} or more arrived in three {self.periods}, the planned peak is "
        text += number(self.planned, "per_second")
        if self.rps > self.planned * self.factor:
            text += f": {self.rps / self.planned:.1f}x"
        if self._bursty and self.ratio is not None and self.planned_ratio is not None:
            text += f"; peak to average {self.ratio:.1f} where {self.planned_ratio:.1f} was planned"
        return text


def find_busiest_periods(case: RuleContext) -> PeakComparison | None:
    """The tier's busiest periods in the hold; None where the plan has no peak or fewer than three periods were seen."""
    rates = case.view.plan.workload.requests_per_second if case.view.plan and case.view.plan.workload else None
    found = sorted((one for group in case.periods(case.slices) if (one := _arrivals(case, group))), reverse=True)
    if rates is None or rates.peak is None or len(found) < SEPARATE:
        return None
    top = found[:SEPARATE]
    requests, seconds = math.fsum(count for _, count, _ in top), math.fsum(span for _, _, span in top)
    total, whole = math.fsum(count for _, count, _ in found), math.fsum(span for _, _, span in found)
    average = total / whole if whole >= DAY_SECONDS else None
    return PeakComparison(
        rps=top[-1][0],
        planned=rates.peak,
        requests=requests,
        periods=case.periods_word,
        factor=case.limit("factor"),
        certain=poisson_lower_bound(requests) / seconds > rates.peak,
        ratio=top[-1][0] / average if average else None,
        planned_ratio=rates.peak / rates.average if rates.average else None,
    )


def busiest_rate(case: RuleContext) -> float | None:
    """Requests per second that arrived at the tier in at least three periods of the hold; None where fewer were seen."""
    found = sorted((one[0] for group in case.periods(case.slices) if (one := _arrivals(case, group))), reverse=True)
    return found[SEPARATE - 1] if len(found) >= SEPARATE else None


def _arrivals(case: RuleContext, group: Sequence[BinnedWindow]) -> tuple[float, float, float] | None:
    """Requests per second, requests and seconds of one period of the whole tier."""
    known = [one.window for one in group if "requests_finished" in one.window.counters]
    if not known:
        return None
    seconds = max(window.end for window in known) - min(window.start for window in known)
    if seconds < WHOLE * case.period_seconds:
        return None
    requests = max(0.0, math.fsum(count_arrivals(window.counters) or 0.0 for window in known))
    return requests / seconds, requests, seconds
