"""Load of a tier: arrivals against capacity or benchmark, growing queues, rising TTFT (guide 9.3; DESIGN 3.4, 3.12).

Completed requests saturate, so arrivals, requests in the system and a growing queue count too. Rules that share
`compare_offered_load` recommend the same for the same minutes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from statistics import NormalDist
from typing import NamedTuple

from rules.confidence import CONFIDENCE, Certainty
from rules.methods.evidence import (
    best_value,
    exact_reading,
    is_significant_share,
    join_names,
    measure_parts,
    range_reading,
    read_signal,
)
from rules.plan.load_bins import QUEUE, BinnedWindow, describe_growth, mean_waiting
from rules.telemetry import histograms
from rules.telemetry.arrivals import UNSERVED, count_arrivals, unserved
from rules.telemetry.histograms import Histogram, count_requests
from rules.telemetry.outcomes import FINISHED, HTTP_OK, count_gone
from rules.telemetry.reading_methods import replica_rate
from rules.telemetry.readings import families_of
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading
from rules.telemetry.windows import MINUTE_SECONDS, NET_CHANGE, Window
from rules.telemetry.wording import format_count, number, split_claim, spread
from rules.telemetry.work import Capacity, arriving_words, work_per_request
from rules.verdicts.context import (
    LIKELY_CONFIDENCE,
    SEPARATE,
    RuleContext,
    find_growing_queues,
    is_persistent,
    part_seen,
    too_early,
    worst_gap,
)
from rules.verdicts.held_windows import HeldWindows, hold
from rules.verdicts.rule import LatencyPattern
from rules.verdicts.verdict import RuleResult, Status, Unknown

FAMILIES = families_of(BY_NAME["fleet_utilization"]) | {NET_CHANGE, *UNSERVED, HTTP_OK, "ttft_seconds"}

MOST = 0.5
"""Share of the last quarter in which load must be above capacity."""

Z = NormalDist().inv_cdf(CONFIDENCE)

MEASURED = frozenset({"gpu_busy_seconds", "gpu_gr_engine_active", "gpu_gfx_active"})
"""Families of utilisation over time, not of a plain poll (METRICS trap 15)."""

QUANTILES = (0.5, 0.99)
"""Quantiles of TTFT that may rise. The median comes first because fewer requests prove it."""

LOAD_WORDS: dict[LatencyPattern, str] = {
    LatencyPattern.KNEE: "more load than replicas take",
    LatencyPattern.HELD_UP: "the replicas together can take this load",
    LatencyPattern.SLOWED: "replicas should take this load, and do not take it now",
    LatencyPattern.EITHER: "what replicas take is not known",
    LatencyPattern.UNCOUNTED: "the engine does not count its load",
}


class OfferedLoad(NamedTuple):
    """Arrivals at a replica per second, and as work: requests of the lengths that capacity counts."""

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
    """Return the load that arrived at a replica, by the sum of its windows, None if finished requests are not known.

    Failed and refused requests arrived too. Unfinished requests are taken to be as long as finished ones.
    """
    finished = replica_rate(whole, "requests_finished")
    if finished is None:
        return None
    unseen = unserved(whole.counters) + count_gone(whole)
    turned_away = unseen / whole.covered_seconds if whole.covered_seconds > 0 else 0.0
    arriving = max(0.0, finished + turned_away + (replica_rate(whole, NET_CHANGE) or 0.0))
    return OfferedLoad(arriving, arriving * work_per_request(whole, capacity.lengths)[1], capacity.rps)


def compare_offered_load(context: RuleContext) -> tuple[str, LatencyPattern]:
    """Return the load of the last quarter of the window in words, and the pattern that it explains.

    KNEE: above capacity for most of that time. HELD_UP: not above it. SLOWED: not above it, but requests wait at every
    replica, so that no neighbour could take the load. EITHER: capacity is not known, UNCOUNTED: load is not.
    Replicas count together: load that fits if it is spread evenly needs no further replica.
    """
    capacity, last = context.tier.capacity, context.last_quarter(context.binned)
    if capacity is None:
        return "what load a replica can take is not known", LatencyPattern.EITHER
    whole = offered_load(last.sum_families(FAMILIES), capacity)
    if whole is None:
        return "what load arrives is not known", LatencyPattern.UNCOUNTED
    sides: dict[bool, list[BinnedWindow]] = {True: [], False: []}
    for group in context.periods(last):
        load = offered_load(group.sum_families(FAMILIES), capacity)
        if load is not None:
            sides[load.is_above] += group
    above, within = (math.fsum(binned.window.covered_seconds for binned in side) for side in sides.values())
    is_above = above > 0 and above >= MOST * (above + within)
    whole = offered_load(hold(sides[is_above]).sum_families(FAMILIES), capacity) or whole
    if is_above:
        return str(whole), LatencyPattern.KNEE
    queues = [mean_waiting(group) or 0.0 for group in last.by_replica.values()]
    waits_everywhere = context.period_seconds <= MINUTE_SECONDS and min(queues, default=0.0) >= QUEUE
    return str(whole), LatencyPattern.SLOWED if waits_everywhere else LatencyPattern.HELD_UP


class ReplicaOverload(NamedTuple):
    """Binned windows of a replica, those beyond the benchmark, and the number of minutes (hours) that these are in.

    `lasting`: most of the last quarter. `completed`: more completed requests than the benchmark; else more requests in
    the system, or in the queue.
    """

    replica: str | None
    binned: HeldWindows
    beyond: HeldWindows
    periods: int
    lasting: bool
    completed: bool
    text: str


def judge_beyond(context: RuleContext) -> RuleResult:
    """Find load beyond the benchmark in most of the last quarter. A queue that grew throughout is likely too."""
    curve, minutes = context.tier.curve, context.limit("minutes")
    if curve is None:
        return context.unknown(Gap.NOT_IN_PLAN, "the plan has no benchmark curve for this tier")
    rates = [binned.rps for binned in context.binned if binned.rps is not None]
    if not rates:
        return context.unmeasured("requests_finished")
    overloads = _find_overloads(context, curve.top_rps)
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
        sentence, certainty, details = f"{claim}; {LOAD_WORDS[pattern]}", Certainty.of(bool(proven)), (*details, load)
        status = Status.WARNING
        return context.verdict(status, certainty, observed, expected, sentence, details=details, pattern=pattern)
    if hold(context.binned).is_scraped_by_the_minute:
        if early := _explain_too_early(context, overloads, math.inf):
            return context.unknown(Gap.TOO_FEW_REQUESTS, early)
        last = context.last_quarter(context.binned)
        unplaced = [binned for binned in last if binned.rps is not None and binned.bin is None and not binned.outside]
        if hold(unplaced).watched_seconds > last.watched_seconds / 2:
            return context.unknown(Gap.NOT_SCRAPED, "scrapes are too far apart to tell the requests in the system")
    sentence = f"At most {most} a replica; the benchmark goes to {top}"
    whole = hold(context.binned).sum_families(FAMILIES)
    if whole.covered_seconds > 0 and (gone := count_gone(whole)) > whole.counters.get(FINISHED, 0.0):
        arrived = number((count_arrivals(whole.counters, gone) or 0.0) / whole.covered_seconds, "per_second")
        ends = f"at most {most} are finished" if whole.counters[FINISHED] > 0 else "none is finished"
        sentence = f"{arrived} arrive at a replica, {ends}; the benchmark goes to {top}"
        details = (f"{gone:,.0f} clients left before the end of their answers",)
    if overloads:
        longest = max(overloads, key=attrgetter("beyond.watched_seconds"))
        end = "too short for a finding" if longest.lasting else "over by now"
        seen = part_seen(longest.beyond, longest.binned)
        sentence, details = f"Beyond the benchmark for {seen}; {end}", (longest.text,)
    return context.verdict(Status.OK, Certainty.CERTAIN, observed, expected, sentence, details=details)


def _explain_too_early(context: RuleContext, overloads: Sequence[ReplicaOverload], needed: float) -> str:
    """Return the load beyond the benchmark of replicas seen in fewer than `needed` periods."""
    lasting = [overload for overload in overloads if overload.lasting]
    if not lasting or any(len(context.periods(overload.binned)) >= needed for overload in lasting):
        return ""
    longest = max(lasting, key=attrgetter("beyond.watched_seconds"))
    return f"beyond for {part_seen(longest.beyond, longest.binned)}: too early to say ({longest.text})"


def _find_overloads(context: RuleContext, top: float) -> list[ReplicaOverload]:
    overloads = []
    for replica, binned in hold(context.binned).by_replica.items():
        beyond = HeldWindows(sample for sample in binned if sample.beyond)
        if not beyond:
            continue
        last = context.last_quarter(binned)
        seconds = math.fsum(sample.window.covered_seconds for sample in last)
        over = math.fsum(sample.window.covered_seconds for sample in last if sample.beyond)
        lasting = over > 0 and over >= context.limit("share") * seconds
        completed, periods = any((sample.rps or 0.0) > top for sample in beyond), len(context.periods(beyond))
        overloads.append(ReplicaOverload(replica, binned, beyond, periods, lasting, completed, beyond[-1].beyond))
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


def judge_queue(context: RuleContext) -> RuleResult:
    """Find replicas whose queue grew while more requests arrived than finished."""
    replicas, held = hold(context.binned).by_replica, hold(context.binned)
    late = context.last_quarter(context.binned).by_replica
    last = {name: mean_waiting(late.get(name, ())) for name in replicas}
    known = [value for value in last.values() if value is not None]
    if not known:
        return context.unknown(worst_gap(context.binned, "requests_waiting"), "how many requests wait is not known")
    expected = range_reading(0.0, context.limit("waiting"), float(len(replicas)))
    growing = held.find_growing_queues(context.now)
    grown = [grows for name in growing if (grows := _measure_growth(context, name, replicas[name])) is not None]
    if not grown:
        for name, group in replicas.items():
            waiting = last[name] or 0.0
            rises = name in late and _measure_growth(context, name, late[name]) is not None
            if waiting >= context.limit("waiting") and (rises or describe_growth(group, context.now) is None):
                text = f"{waiting:.1f} requests wait at {name or context.tier.name}; {part_seen(group, group)}"
                return context.unknown(Gap.TOO_FEW_REQUESTS, f"{text}: too early to say if they grow")
        most = f"at most {max(known):.1f} requests were waiting at a replica"
        sentence = f"No queue grows: {most} at the end of this time"
        observed = Reading(value=max(known), low=0.0, high=max(known), n=float(len(replicas)))
        return context.verdict(Status.OK, Certainty.CERTAIN, observed, expected, sentence)
    is_significant, level, finished, words, name = max(grown, key=itemgetter(0, 1))
    lasting = len(context.periods(replicas[name])) >= 2 * SEPARATE
    load, pattern = compare_offered_load(context)
    who = (name or context.tier.name) + (f" ({len(grown)} of {len(replicas)} replicas)" if len(replicas) > 1 else "")
    sentence = f"The queue of {who} grows; {split_claim(growing[name])[1]}; {LOAD_WORDS[pattern]}"
    observed, sure = exact_reading(level, finished), Certainty.of(is_significant and lasting)
    return context.verdict(Status.WARNING, sure, observed, expected, sentence, details=(words, load), pattern=pattern)


def _measure_growth(
    context: RuleContext, name: str | None, binned: HeldWindows
) -> tuple[bool, float, float, str, str | None] | None:
    """Return whether a queue's growth is beyond chance, its requests, those finished, the growth in words, and the name.

    Chance: the variance of the excess is the sum of arrivals and completions. None if it hardly grew.
    """
    waiting = mean_waiting(_select_third(context, binned, last=True))
    counters = binned.sum_families(("requests_finished", NET_CHANGE)).counters
    finished, more = counters.get("requests_finished", 0.0), counters.get(NET_CHANGE, 0.0)
    if waiting is None or waiting < context.limit("waiting") or more < context.limit("share") * finished:
        return None
    words = f"{more:,.0f} more arrived than finished in this time"
    if "requests_finished" in counters:
        words = f"{finished:,.0f} finished in this time, {finished + more:,.0f} arrived"
    return more > Z * math.sqrt(2 * finished + more), waiting, finished, words, name


def judge_saturated(context: RuleContext) -> RuleResult:
    """Find replicas with pegged GPUs and a rising TTFT. Pegged GPUs with a stable TTFT are healthy."""
    replicas, limit = hold(context.binned).by_replica, context.limit("pegged")
    readings = {name: read_signal(context, group, "gpu_utilization") for name, group in replicas.items()}
    known = {name: reading for name, reading in readings.items() if isinstance(reading, Reading)}
    if not known:
        missing = next(reading for reading in readings.values() if isinstance(reading, Missing))
        return context.unknown(missing.gap, missing.text or "GPU utilisation is not known")
    rises: list[tuple[bool, str, str | None]] = []
    unknown: Unknown | None = None
    sentence = "GPUs are busy {} of the time on the busiest replica: not pegged"
    for name, reading in known.items():
        rise = _find_rise(context, replicas[name]) if (reading.value or 0.0) >= limit else None
        if isinstance(rise, Unknown):
            unknown = unknown or rise
        elif rise is not None:
            sentence = "GPUs pegged at {} with stable TTFT: prefill-bound and healthy"
            rises += [(*rise, name)] if rise[1] else []
    busiest = max(known.values(), key=lambda reading: reading.value or 0.0)
    expected = range_reading(0.0, limit, busiest.n)
    if not rises:
        text = sentence.format(number(busiest.value or 0.0, "ratio"))
        return unknown or context.verdict(Status.OK, Certainty.CERTAIN, busiest, expected, text)
    is_proven, text, worst = max(rises, key=itemgetter(0))
    busy = number(known[worst].value or 0.0, "ratio")
    sentence = f"GPUs of {worst or context.tier.name} are pegged at {busy} while TTFT rises; {text}"
    details = (f"{len(rises)} of {format_count(len(replicas), 'replica')}",)
    is_measured = any(MEASURED & {*replica.window.counters, *replica.window.gauges} for replica in replicas[worst])
    certainty = Certainty.of(is_proven and is_measured)
    return context.verdict(Status.WARNING, certainty, known[worst], expected, sentence, details=details)


def _find_rise(context: RuleContext, binned: HeldWindows) -> tuple[bool, str] | Unknown | None:
    """Return whether a rise of TTFT is proven, and its words. None without pegged GPUs."""

    def measure(group: HeldWindows) -> float | None:
        return best_value(read_signal(context, group, "gpu_utilization"))

    def is_pegged(value: float) -> bool:
        return value >= context.limit("pegged")

    last, each = measure_parts(context, measure, binned)
    if not is_persistent(last, each, is_pegged):
        return too_early(context, binned, last, each, is_pegged)
    needed = context.limit("minimum_requests")
    thirds = (hold(_select_third(context, binned, last=end)) for end in (False, True))
    first, latest = (third.sum_parts(context.rule.family) for third in thirds)
    for parts, word in ((first, "first"), (latest, "last")):
        if (n := count_requests(parts)) < needed:
            return context.too_few_requests(n, needed, f" in the {word} third at pegged GPUs")
    rises = (_compare_quantile(context, first, latest, q) for q in QUANTILES)
    return max(rises, key=lambda rise: (bool(rise[1]), rise[0]))


def _compare_quantile(
    context: RuleContext, first: tuple[Histogram, ...], last: tuple[Histogram, ...], q: float
) -> tuple[bool, str]:
    """Return whether the rise of a TTFT quantile is proven, and the rise in words, "" without one.

    Likely: the best estimate rose by the factor, and more requests than the quantile allows are above it. Proven: the
    later requests also exceed the factor times the upper edge of the earlier bucket, beyond chance.
    """
    before, after = histograms.quantile(first, q), histograms.quantile(last, q)
    factor = context.limit("rise")
    if before is None or after is None or before.high is None or before.value is None:
        return False, ""
    over = histograms.share_above(last, factor * before.value)
    if not is_significant_share(over.best, over.n, over.n, 1 - q, LIKELY_CONFIDENCE):
        return False, ""
    sure = histograms.share_above(last, factor * before.high)
    is_proven = is_significant_share(sure.low, sure.n, sure.n, 1 - q, CONFIDENCE)
    was, now = (spread(reading.low or 0.0, reading.high, "seconds") for reading in (before, after))
    return is_proven, f"P{q * 100:g} was {was}, is {now}"


def _select_third(context: RuleContext, binned: Sequence[BinnedWindow], *, last: bool) -> tuple[BinnedWindow, ...]:
    """Return the binned windows whose middle is in the first or the last third of the rule's window."""
    start = min((sample.window.start for sample in binned), default=context.now)
    third = (context.now - start) / 3
    middles = ((sample, sample.window.middle) for sample in binned)
    return tuple(sample for sample, at in middles if (at >= context.now - third if last else at <= start + third))
