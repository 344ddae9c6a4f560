"""Load of a tier: arrivals against capacity, replicas beyond the benchmark, and the busiest periods (DESIGN 3.4, 3.12).

Completed requests saturate, so arrivals, requests in the system and a growing queue count too. Several rules share
`compare_offered_load`: they must recommend the same action for the same minutes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from rules.confidence import Certainty, poisson_lower_bound
from rules.methods.evidence import certain_if, join_names
from rules.plan.load_bins import QUEUE, BinnedWindow, mean_waiting
from rules.telemetry.arrivals import UNSERVED, count_arrivals, unserved
from rules.telemetry.outcomes import HTTP_OK, count_gone
from rules.telemetry.reading_methods import replica_rate
from rules.telemetry.readings import families_of
from rules.telemetry.signals import BY_NAME, Gap, Reading
from rules.telemetry.windows import DAY_SECONDS, MINUTE_SECONDS, NET_CHANGE, Window
from rules.telemetry.wording import format_count, number, split_claim
from rules.telemetry.work import Capacity, arriving_words, work_per_request
from rules.verdicts.context import SEPARATE, RuleContext, find_growing_queues, part_seen
from rules.verdicts.held_windows import HeldWindows, hold
from rules.verdicts.rule import LatencyPattern
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


def compare_offered_load(context: RuleContext) -> tuple[str, LatencyPattern]:
    """Return the load of the last quarter of the window in words, and the pattern that it explains.

    KNEE: above capacity for most of that time. HELD_UP: not above it. SLOWED: not above it, but requests wait at every
    replica, so that no neighbour could take the load. EITHER: capacity or load is not known. Replicas count together:
    load that fits if it is spread evenly needs no further replica.
    """
    capacity, last = context.tier.capacity, context.last_quarter(context.binned)
    if capacity is None:
        return "what load a replica can take is not known", LatencyPattern.EITHER
    whole = offered_load(last.sum_families(FAMILIES), capacity)
    if whole is None:
        return "what load arrives is not known", LatencyPattern.EITHER
    seconds = above = 0.0
    for group in context.periods(last):
        load = offered_load(group.sum_families(FAMILIES), capacity)
        if load is not None:
            covered = math.fsum(binned.window.covered_seconds for binned in group)
            seconds += covered
            above += covered if load.is_above else 0.0
    if above > 0 and above >= MOST * seconds:
        return str(whole), LatencyPattern.KNEE
    queues = [mean_waiting(group) or 0.0 for group in hold(last).by_replica.values()]
    waits_everywhere = context.period_seconds <= MINUTE_SECONDS and min(queues, default=0.0) >= QUEUE
    return str(whole), LatencyPattern.SLOWED if waits_everywhere else LatencyPattern.HELD_UP


@dataclass(frozen=True, slots=True)
class ReplicaOverload:
    """Binned windows of a replica, those beyond the benchmark, and the number of minutes (hours) that these are in.

    `lasting`: most of the last quarter. `completed`: more completed requests than the benchmark; else more requests in
    the system, or in the queue.
    """

    replica: str | None
    binned: HeldWindows
    beyond: tuple[BinnedWindow, ...]
    periods: int
    lasting: bool
    completed: bool

    @property
    def text(self) -> str:
        return self.beyond[-1].beyond


def judge_beyond(context: RuleContext) -> RuleResult:
    """Find load beyond the benchmark in most of the last quarter, from completed and present requests of each replica.

    Certain in three separate minutes, likely in two. A queue that grew throughout is likely too: completed requests do not
    show the arrivals.
    """
    curve, minutes = context.tier.curve, context.limit("minutes")
    if curve is None:
        return context.unknown(Gap.NOT_IN_PLAN, "the plan has no benchmark curve for this tier")
    rates = [binned.rps for binned in context.binned if binned.rps is not None]
    if not rates:
        return context.unmeasured("requests_finished")
    overloads = _find_overloads(context)
    if early := _explain_too_early(context, overloads, minutes - 1):
        return context.unknown(Gap.TOO_FEW_REQUESTS, early)
    observed = Reading(value=math.fsum(rates) / len(rates), low=min(rates), high=max(rates), n=float(len(rates)))
    expected = Reading(value=curve.top_rps, low=0.0, high=curve.top_rps, n=float(curve.minimum_requests))
    top, most = (number(rps, "per_second") for rps in (curve.top_rps, max(rates)))
    lasting = [overload for overload in overloads if overload.lasting and overload.periods >= minutes - 1]
    proven = [overload for overload in lasting if overload.periods >= minutes]
    claim, details = _describe_overloads(context, proven or lasting) if lasting else _describe_growth(context, top)
    if claim:
        load, pattern = compare_offered_load(context)
        sentence, certainty = f"{claim}; {LOAD_WORDS[pattern]}", certain_if(bool(proven))
        details = (*details, load)
        return context.verdict(
            Status.WARNING, certainty, observed, expected, sentence, details=details, pattern=pattern
        )
    if hold(context.binned).is_scraped_by_the_minute:
        if early := _explain_too_early(context, overloads, math.inf):
            return context.unknown(Gap.TOO_FEW_REQUESTS, early)
        last = context.last_quarter(context.binned)
        unplaced = [binned for binned in last if binned.rps is not None and binned.bin is None and not binned.outside]
        if hold(unplaced).watched_seconds > hold(last).watched_seconds / 2:
            text = "scrapes are too far apart to tell how many requests were in the system"
            return context.unknown(Gap.NOT_SCRAPED, text)
    sentence = f"At most {most} a replica; the benchmark goes to {top}"
    if overloads:
        longest = max(overloads, key=lambda overload: hold(overload.beyond).watched_seconds)
        end = "too short for a finding" if longest.lasting else "over by now"
        seen = part_seen(longest.beyond, longest.binned)
        sentence, details = f"Beyond the benchmark for {seen}; {end}", (longest.text,)
    return context.verdict(Status.OK, Certainty.CERTAIN, observed, expected, sentence, details=details)


def _explain_too_early(context: RuleContext, overloads: Sequence[ReplicaOverload], needed: float) -> str:
    """Return the load beyond the benchmark of replicas that were observed in fewer than `needed` periods, or ""."""
    lasting = [overload for overload in overloads if overload.lasting]
    if not lasting or any(len(context.periods(overload.binned)) >= needed for overload in lasting):
        return ""
    longest = max(lasting, key=lambda overload: hold(overload.beyond).watched_seconds)
    return f"beyond for {part_seen(longest.beyond, longest.binned)}: too early to say ({longest.text})"


def _find_overloads(context: RuleContext) -> list[ReplicaOverload]:
    overloads = []
    top = context.tier.curve.top_rps if context.tier.curve is not None else math.inf
    for replica, binned in hold(context.binned).by_replica.items():
        beyond = tuple(sample for sample in binned if sample.beyond)
        if not beyond:
            continue
        last = context.last_quarter(binned)
        seconds = math.fsum(sample.window.covered_seconds for sample in last)
        over = math.fsum(sample.window.covered_seconds for sample in last if sample.beyond)
        is_lasting = over > 0 and over >= context.limit("share") * seconds
        is_completed = any((sample.rps or 0.0) > top for sample in beyond)
        periods = len(context.periods(beyond))
        overloads.append(ReplicaOverload(replica, binned, beyond, periods, is_lasting, is_completed))
    return overloads


def _describe_overloads(context: RuleContext, overloads: Sequence[ReplicaOverload]) -> tuple[str, tuple[str, ...]]:
    """Return claim and details of replicas beyond the benchmark."""
    names, replicas = [overload.replica or "The tier" for overload in overloads], len(hold(context.binned).by_replica)
    is_completed = any(overload.completed for overload in overloads)
    who, verbs = f"{len(names)} of {replicas} replicas", ("are", "hold")
    if len(names) == 1:
        who, verbs = names[0] + (f" (1 of {replicas} replicas)" if replicas > 1 else ""), ("is", "holds")
    state = f"{verbs[0]} beyond the benchmarked load" if is_completed else f"{verbs[1]} more requests than benchmarked"
    periods = format_count(max(overload.periods for overload in overloads), context.periods_word.removesuffix("s"))
    return f"{who} {state}", (f"in {periods}: {overloads[-1].text}", join_names(names) if len(names) > 1 else "")


def _describe_growth(context: RuleContext, top: str) -> tuple[str, tuple[str, ...]]:
    """Return claim and details of a queue that grew throughout, "" without one."""
    for name, text in find_growing_queues(context).items():
        last = context.last_quarter(hold(context.binned).by_replica[name])
        finishing = number(max(binned.rps or 0.0 for binned in last), "per_second")
        details = split_claim(text)[1], f"{finishing} finish, the benchmark reached {top}"
        return f"More requests arrive at {name or context.tier.name} than finish", details
    return "", ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakComparison:
    """Requests per second of the tier, at least the observed ones in three of its busiest periods, and the planned peak.

    `is_burst`: the peak by the average over a day or more is above that of the plan, too.
    """

    observed: Reading
    planned: float
    certain: bool
    is_above: bool
    is_burst: bool
    text: str

    @property
    def is_above_plan(self) -> bool:
        """Return whether peak or peak-to-average ratio exceeds the plan by more than the allowed factor."""
        return self.is_above or self.is_burst


def find_busiest_periods(context: RuleContext) -> PeakComparison | None:
    """Return the busiest periods of the tier. Return None without a planned peak or with fewer than three periods."""
    rates = context.tier.plan.workload.requests_per_second if context.tier.plan and context.tier.plan.workload else None
    arrivals = hold(context.binned).once(_count_arrivals, context.period_seconds)
    if rates is None or rates.peak is None or len(arrivals) < SEPARATE:
        return None
    top, peak, factor = arrivals[:SEPARATE], rates.peak, context.limit("factor")
    requests, seconds = (math.fsum(pair[place] for pair in top) for place in (1, 2))
    total, whole = (math.fsum(arrival[place] for arrival in arrivals) for place in (1, 2))
    rps = top[-1][0]
    is_above = rps > peak * factor
    planned = f"{number(peak, 'per_second')} planned{f' ({rps / peak:.1f}x)' if is_above else ''}"
    text = f"{number(rps, 'per_second')} or more arrived in three {context.periods_word}, {planned}"
    # An hour is no measure of a day's average. Over a day or more the busiest hour is a lower bound of the peak.
    ratio = rps / (total / whole) if whole >= DAY_SECONDS and total else 0.0
    is_burst = bool(rates.average) and ratio > peak / (rates.average or math.inf) * factor
    if is_burst and rates.average:
        text += f", peak to average {ratio:.1f}, {peak / rates.average:.1f} planned"
    return PeakComparison(
        observed=Reading(value=rps, low=rps, high=None, n=requests),
        planned=peak,
        certain=poisson_lower_bound(requests) / seconds > peak,
        is_above=is_above,
        is_burst=is_burst,
        text=text,
    )


def _count_arrivals(held: HeldWindows, period_seconds: float) -> list[tuple[float, float, float]]:
    """Return requests per second, requests and seconds of each period of the tier, the busiest period first."""
    arrivals = []
    for group in held.periods(period_seconds).values():
        known = [rows for rows in group.by_batch(_read_arrivals) if rows is not None]
        seconds = max((end for _, end, _ in known), default=0.0) - min((start for start, _, _ in known), default=0.0)
        if known and seconds >= WHOLE * period_seconds:
            requests = max(0.0, math.fsum(chain.from_iterable(counts for _, _, counts in known)))
            arrivals.append((requests / seconds, requests, seconds))
    return sorted(arrivals, reverse=True)


def _read_arrivals(batch: HeldWindows) -> tuple[float, float, list[float]] | None:
    """Return first start and last end in unix seconds, and the arrivals of each window. None if no window counts them."""
    known = [binned.window for binned in batch if "requests_finished" in binned.window.counters]
    if not known:
        return None
    counts = [count_arrivals(window.counters, count_gone(window)) or 0.0 for window in known]
    return min(window.start for window in known), max(window.end for window in known), counts
