"""Load of a tier: arrivals against capacity, replicas beyond the benchmark, and the busiest periods (DESIGN 3.4, 3.12).

Completed requests saturate, so arrivals, requests in the system and a growing queue count too. Several rules share
`compare_offered_load`: they must recommend the same action for the same minutes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from rules.confidence import Certainty, poisson_lower_bound
from rules.methods.evidence import certain_if, group_by_replica, join_names
from rules.plan.load_bins import QUEUE, BinnedWindow, mean_waiting
from rules.telemetry.arrivals import UNSERVED, count_arrivals, unserved
from rules.telemetry.outcomes import FINISHED, HTTP_OK, count_gone
from rules.telemetry.reading_methods import replica_rate
from rules.telemetry.readings import families_of
from rules.telemetry.signals import BY_NAME, Gap, Reading
from rules.telemetry.windows import DAY_SECONDS, MINUTE_SECONDS, NET_CHANGE, Window
from rules.telemetry.wording import number, split_claim
from rules.telemetry.work import Capacity, arriving_words, work_per_request
from rules.verdicts.context import (
    SEPARATE,
    RuleContext,
    find_growing_queues,
    part_seen,
)
from rules.verdicts.held_windows import HeldWindows, hold, scraped_by_the_minute, watched_seconds
from rules.verdicts.latency_pattern import LatencyPattern, with_levers
from rules.verdicts.verdict import RuleResult, Status

FAMILIES = families_of(BY_NAME["fleet_utilization"]) | {NET_CHANGE, *UNSERVED, HTTP_OK, "ttft_seconds"}

MOST = 0.5
"""Share of the last quarter in which load must be above capacity, as LoadBeyondBenchmark requires."""

LOAD_WORDS: dict[LatencyPattern, str] = {
    LatencyPattern.KNEE: "more load than replicas take",
    LatencyPattern.HELD_UP: "the replicas together can take this load",
    LatencyPattern.SLOWED: "replicas should take this load, and do not take it now",
    LatencyPattern.EITHER: "what replicas take is not known",
}

WHOLE = 0.75
"""Share of a period that must be observed for a rate. In a shorter time a burst would be the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedLoad:
    """Arrivals at a replica per second, and the same as work, in requests of the lengths that the capacity is for."""

    arriving_rps: float
    work_rps: float
    capacity_rps: float

    @property
    def is_above(self) -> bool:
        return self.work_rps > self.capacity_rps

    def __str__(self) -> str:
        text = arriving_words(self.arriving_rps, self.work_rps, " at a replica")
        return f"{text}, {number(self.capacity_rps, 'per_second')} are usable"


def offered_load(whole: Window, capacity: Capacity) -> OfferedLoad | None:
    """Return the load that arrived at a replica, by the sum of its windows. Return None if finished requests are not known.

    Failed and refused requests arrived too. Unfinished requests are taken to be as long as finished ones.
    """
    finished = replica_rate(whole, "requests_finished")
    if finished is None:
        return None
    unseen = unserved(whole.counters) + count_gone(whole)
    turned_away = unseen / whole.covered_seconds if whole.covered_seconds > 0 else 0.0
    arriving = max(0.0, finished + turned_away + (replica_rate(whole, NET_CHANGE) or 0.0))
    each = work_per_request(whole, capacity.lengths)[1]
    return OfferedLoad(arriving_rps=arriving, work_rps=arriving * each, capacity_rps=capacity.rps)


def compare_offered_load(case: RuleContext) -> tuple[str, LatencyPattern]:
    """Return the load of the last quarter of the window in words, and the pattern that it explains.

    KNEE: above capacity for most of that time. HELD_UP: not above it. SLOWED: not above it, but requests wait at every
    replica, so that no neighbour could take the load. EITHER: capacity or load is not known. Replicas count together:
    load that fits if it is spread evenly needs no further replica.
    """
    capacity, last = case.context.capacity, case.last_quarter(case.binned)
    if capacity is None:
        return "what load a replica can take is not known", LatencyPattern.EITHER
    whole = offered_load(last.sum_families(FAMILIES), capacity)
    if whole is None:
        return "what load arrives is not known", LatencyPattern.EITHER
    seconds = above = 0.0
    for group in case.periods(last):
        load = offered_load(group.sum_families(FAMILIES), capacity)
        if load is not None:
            covered = math.fsum(one.window.covered_seconds for one in group)
            seconds += covered
            above += covered if load.is_above else 0.0
    if above > 0 and above >= MOST * seconds:
        return str(whole), LatencyPattern.KNEE
    queues = [mean_waiting(group) or 0.0 for group in group_by_replica(last).values()]
    waits_everywhere = case.period_seconds <= MINUTE_SECONDS and min(queues, default=0.0) >= QUEUE
    return str(whole), LatencyPattern.SLOWED if waits_everywhere else LatencyPattern.HELD_UP


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOverload:
    """Binned windows of a replica beyond the benchmark, and the number of minutes (hours) that they are in.

    `lasting`: most of the last quarter. `completed`: more completed requests than the benchmark; else more requests in
    the system, or in the queue.
    """

    replica: str | None
    beyond: tuple[BinnedWindow, ...]
    periods: int
    lasting: bool
    text: str
    completed: bool


def judge_beyond(case: RuleContext) -> RuleResult:
    """Find load beyond the benchmark in most of the last quarter: certain in three separate minutes, likely in two.

    A queue that grew throughout is likely too: completed requests do not show the arrivals.
    """
    curve = case.context.curve
    if not case.binned:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    if curve is None:
        return case.unknown(Gap.NOT_IN_PLAN, "the plan has no benchmark curve for this tier")
    rates = [s.rps for s in case.binned if s.rps is not None]
    if not rates:
        return case.unmeasured("requests_finished")
    early = _explain_too_early(case, case.limit("minutes") - 1)
    if early:
        return case.unknown(Gap.TOO_FEW_REQUESTS, early)
    status, certainty, sentence, details = _assess(
        case, number(curve.top_rps, "per_second"), number(max(rates), "per_second")
    )
    if status is Status.OK and scraped_by_the_minute(case.binned):
        if early := beyond_so_far(case):
            return case.unknown(Gap.TOO_FEW_REQUESTS, early)
        last = case.last_quarter(case.binned)
        unplaced = [one for one in last if one.rps is not None and one.bin is None and not one.outside]
        if watched_seconds(unplaced) > watched_seconds(last) / 2:
            text = "scrapes are too far apart to tell how many requests were in the system"
            return case.unknown(Gap.NOT_SCRAPED, text)
    observed = Reading(value=math.fsum(rates) / len(rates), low=min(rates), high=max(rates), n=float(len(rates)))
    expected = Reading(value=curve.top_rps, low=0.0, high=curve.top_rps, n=float(curve.minimum_requests))
    if status is Status.OK:
        return case.verdict(status, certainty, observed, expected, sentence, details=details)
    load, pattern = compare_offered_load(case)
    sentence = f"{sentence}; {LOAD_WORDS[pattern]}"
    return with_levers(case.verdict(status, certainty, observed, expected, sentence, details=(*details, load)), pattern)


def _assess(case: RuleContext, top: str, most: str) -> tuple[Status, Certainty, str, tuple[str, ...]]:
    """Return status, certainty, sentence and details."""
    replicas = group_by_replica(case.binned)
    overloads = _find_overloads(case, replicas)
    lasting = [one for one in overloads if one.lasting and one.periods >= case.limit("minutes") - 1]
    proven = [one for one in lasting if one.periods >= case.limit("minutes")]
    if lasting:
        named = proven or lasting
        names = join_names([one.replica for one in named if one.replica])
        details: tuple[str, ...] = (
            f"in {_count_periods(case, named)}: {named[-1].text}",
            names if len(named) > 1 else "",
        )
        return Status.WARNING, certain_if(bool(proven)), _describe_overload(named, len(replicas)), details
    growing = find_growing_queues(case)
    if growing:
        name, text = next(iter(growing.items()))
        finishing = number(max(s.rps or 0.0 for s in case.last_quarter(replicas[name])), "per_second")
        details = (split_claim(text)[1], f"{finishing} finish, the benchmark reached {top}")
        sentence = f"More requests arrive at {name or case.context.tier} than finish"
        return Status.WARNING, Certainty.LIKELY, sentence, details
    sentence, details = f"At most {most} a replica; the benchmark goes to {top}", ()
    whole = hold(case.binned).sum_families(FAMILIES)
    if whole.covered_seconds > 0 and (gone := count_gone(whole)) > whole.counters.get(FINISHED, 0.0):
        arrived = (count_arrivals(whole.counters, gone) or 0.0) / whole.covered_seconds
        ends = "none is finished" if whole.counters[FINISHED] <= 0 else f"at most {most} are finished"
        sentence = f"{number(arrived, 'per_second')} arrive at a replica, {ends}; the benchmark goes to {top}"
        details = (f"{gone:,.0f} clients left before the end of their answers",)
    elif whole.counters.get(FINISHED) == 0 and (tokens := replica_rate(whole, "prompt_tokens")):
        # Nothing counts those requests, but their prompts are read.
        arriving = number(tokens, "tokens_per_second")
        sentence = f"Prompts of {arriving} arrive at a replica, none is finished; the benchmark goes to {top}"
    if overloads:
        longest = max(overloads, key=lambda one: watched_seconds(one.beyond))
        seen = part_seen(longest.beyond, replicas[longest.replica])
        end = "too short for a finding" if longest.lasting else "over by now"
        sentence, details = f"Beyond the benchmark for {seen}; {end}", (longest.text,)
    return Status.OK, Certainty.CERTAIN, sentence, details


def beyond_so_far(case: RuleContext) -> str:
    """Return the load beyond the benchmark in a time that is too short for a result, in words. Return "" without any."""
    return _explain_too_early(case, math.inf)


def _explain_too_early(case: RuleContext, needed: float) -> str:
    """Return the load beyond the benchmark of replicas that were observed in fewer than `needed` periods, or ""."""
    replicas = group_by_replica(case.binned)
    overloads = [one for one in _find_overloads(case, replicas) if one.lasting]
    early = [one for one in overloads if len(case.periods(replicas[one.replica])) < needed]
    if not early or len(early) < len(overloads):
        return ""
    longest = max(early, key=lambda one: watched_seconds(one.beyond))
    seen = part_seen(longest.beyond, replicas[longest.replica])
    return f"beyond for {seen}: too early to say ({longest.text})"


def _find_overloads(case: RuleContext, replicas: Mapping[str | None, Sequence[BinnedWindow]]) -> list[ReplicaOverload]:
    overloads = []
    top = case.context.curve.top_rps if case.context.curve is not None else math.inf
    for replica, binned in replicas.items():
        beyond = tuple(s for s in binned if s.beyond)
        if not beyond:
            continue
        last = case.last_quarter(binned)
        seconds = math.fsum(s.window.covered_seconds for s in last)
        over = math.fsum(s.window.covered_seconds for s in last if s.beyond)
        overload = ReplicaOverload(
            replica=replica,
            beyond=beyond,
            periods=len(case.periods(beyond)),
            lasting=over > 0 and over >= case.limit("share") * seconds,
            text=beyond[-1].beyond,
            completed=any((s.rps or 0.0) > top for s in beyond),
        )
        overloads.append(overload)
    return overloads


def _describe_overload(found: Sequence[ReplicaOverload], replicas: int) -> str:
    completed = any(one.completed for one in found)
    if len(found) > 1:
        state = "are beyond the benchmarked load" if completed else "hold more requests than benchmarked"
        return f"{len(found)} of {replicas} replicas {state}"
    name = found[0].replica or "The tier"
    state = "is beyond the benchmarked load" if completed else "holds more requests than benchmarked"
    return f"{name} {state}" if replicas == 1 else f"{name} (1 of {replicas} replicas) {state}"


def _count_periods(case: RuleContext, found: Sequence[ReplicaOverload]) -> str:
    most = max(one.periods for one in found)
    word = case.periods_word if most > 1 else case.periods_word.removesuffix("s")
    return f"{'up to ' if len(found) > 1 else ''}{most} {word}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakComparison:
    """Requests per second of the tier in its busiest periods, at least `rps` in three of them, and the planned peak.

    `ratio` is the peak by the average over a day or more, `planned_ratio` that of the plan. None: not known.
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
        """Return whether peak or peak-to-average ratio exceeds the plan by more than the allowed factor."""
        return self.rps > self.planned * self.factor or bool(self._describe_burst())

    def _describe_burst(self) -> str:
        if self.ratio is None or self.planned_ratio is None or self.ratio <= self.planned_ratio * self.factor:
            return ""
        return f", peak to average {self.ratio:.1f}, {self.planned_ratio:.1f} planned"

    def __str__(self) -> str:
        times = f" ({self.rps / self.planned:.1f}x)" if self.rps > self.planned * self.factor else ""
        planned = number(self.planned, "per_second")
        text = f"{number(self.rps, 'per_second')} or more arrived in three {self.periods}, {planned} planned{times}"
        return text + self._describe_burst()


def find_busiest_periods(case: RuleContext) -> PeakComparison | None:
    """Return the busiest periods of the tier. Return None without a planned peak or with fewer than three periods."""
    rates = case.context.plan.workload.requests_per_second if case.context.plan and case.context.plan.workload else None
    arrivals = hold(case.binned).once(_count_arrivals, case.period_seconds)
    if rates is None or rates.peak is None or len(arrivals) < SEPARATE:
        return None
    top = arrivals[:SEPARATE]
    requests, seconds = math.fsum(count for _, count, _ in top), math.fsum(span for _, _, span in top)
    total, whole = math.fsum(count for _, count, _ in arrivals), math.fsum(span for _, _, span in arrivals)
    # An hour is no measure of a day's average. Over a day or more the busiest hour is a lower bound of the peak.
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


def _count_arrivals(held: HeldWindows, period_seconds: float) -> list[tuple[float, float, float]]:
    """Return requests per second, requests and seconds of each period of the tier, the busiest period first."""
    arrivals = []
    for group in held.periods(period_seconds).values():
        known = [found for found in group.by_batch(_read_arrivals) if found is not None]
        seconds = max((end for _, end, _ in known), default=0.0) - min((start for start, _, _ in known), default=0.0)
        if known and seconds >= WHOLE * period_seconds:
            requests = max(0.0, math.fsum(chain.from_iterable(counts for _, _, counts in known)))
            arrivals.append((requests / seconds, requests, seconds))
    return sorted(arrivals, reverse=True)


def _read_arrivals(batch: HeldWindows) -> tuple[float, float, list[float]] | None:
    """Return first start and last end in unix seconds, and the arrivals of each window. None if no window counts them."""
    known = [one.window for one in batch if "requests_finished" in one.window.counters]
    if not known:
        return None
    counts = [count_arrivals(window.counters, count_gone(window)) or 0.0 for window in known]
    return min(window.start for window in known), max(window.end for window in known), counts
