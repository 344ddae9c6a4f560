"""Prefix routing: requests with one prefix no longer reach the replica that caches it (guide 7.2).

Broken routing differs from changed prompts. Every replica loses hits at once, and the fleet's rate falls to about that of
one replica divided by their number. Prompts are as long as before, nothing is evicted, and requests are spread evenly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rules.confidence import check_uniformity
from rules.methods.evidence import (
    PROMPTS,
    REPEATED_LOOKUPS,
    capitalize,
    certain_if,
    exact_reading,
    group_by_replica,
    join_names,
    sees_repeated_lookups,
    sum_parts,
)
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry import histograms, windows
from rules.telemetry.signals import Gap, Missing
from rules.telemetry.windows import MINUTE_SECONDS, Window
from rules.telemetry.wording import number
from rules.verdicts.context import RuleContext
from rules.verdicts.held_windows import HeldWindows, hold
from rules.verdicts.rule import Rule
from rules.verdicts.verdict import RuleResult, Status

RULE = "PrefixRoutingBroken"

HIT, QUERIED = "prefix_hit_tokens", "prefix_queried_tokens"
FINISHED, PREEMPTIONS = "requests_finished", "preemptions"

MINUTES = 3
"""Separate minutes that are the present, and that the best of the past is summed over (DESIGN 3.3)."""

Minute = tuple[BinnedWindow, ...]
"""Binned windows of one minute in which prompts asked the prefix cache, one for each replica."""

Limit = Callable[[str], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRates:
    """Last minutes of the warm replicas, and the hit rate (0-1) that they are compared with, from `past` or the plan."""

    minutes: tuple[Minute, ...]
    reference: float | None
    words: str
    past: tuple[Minute, ...] = ()

    @property
    def binned(self) -> tuple[BinnedWindow, ...]:
        return tuple(one for minute in self.minutes for one in minute)

    @property
    def replicas(self) -> tuple[str, ...]:
        return tuple(sorted({one.replica or "" for one in self.binned}))

    @property
    def rate(self) -> float:
        return hit_rate(self.binned) or 0.0

    @property
    def requests(self) -> float:
        return sum_family(self.binned, FINISHED)

    @property
    def left_by_routing(self) -> float:
        """Return the share of the reference that is left if any replica may get any prefix (guide 7.2)."""
        return (1.0 if self.reference is None else self.reference) / max(1, len(self.replicas))

    @property
    def length_change(self) -> float | None:
        """Return the mean prompt length now by that of the past minutes. Return None if one is not known."""
        past = [one for minute in self.past for one in minute]
        then, now = (histograms.mean(sum_parts(binned, PROMPTS)) for binned in (past, self.binned))
        return now / then if then and now else None

    @property
    def eviction_rate(self) -> float:
        """Return the preemptions per finished request."""
        return sum_family(self.binned, PREEMPTIONS) / max(1.0, self.requests)

    def count_requests(self, binned: Sequence[BinnedWindow]) -> tuple[float, ...]:
        """Return the finished requests of each replica, in the order of the replicas."""
        groups = group_by_replica(binned)
        return tuple(sum_family(groups.get(name, ()), FINISHED) for name in self.replicas)

    def __str__(self) -> str:
        text = f"prefix hits are {self.rate:.0%} over {len(self.replicas)} replicas"
        return text if self.reference is None else f"{text}, {self.reference:.0%} {self.words}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """State of the routing. `broken` is None if it is not known, for the reason `gap`."""

    broken: bool | None
    text: str
    hits: HitRates
    details: tuple[str, ...] = ()
    certain: bool = False
    gap: Gap = Gap.NOT_IN_PLAN


def judge_replicas(case: RuleContext) -> RuleResult:
    """Blame the routing if every replica lost prefix hits at once and the rate fell to a single replica's share.

    From hits, lookups, prompt lengths, preemptions and finished requests of each replica. Certain only if requests are
    proven to be dealt out in turn now, and were not before.
    """
    if not any(QUERIED in one.window.counters for one in case.binned):
        return case.unmeasured(QUERIED)
    total = hold(case.binned).sum_families((QUERIED, FINISHED)).counters
    if not total[QUERIED]:
        if not total.get(FINISHED):
            return case.unknown(Gap.NO_TRAFFIC, "no prompt asked the prefix cache")
        return case.unknown(Gap.NOT_EXPOSED, "no prompt asked the prefix cache: it is off")
    routing = assess_routing(case.binned, case.context, case.rule)
    if routing.broken is None:
        return case.unknown(routing.gap, routing.text)
    reference, requests = routing.hits.reference, routing.hits.requests
    observed = exact_reading(routing.hits.rate, requests)
    expected = Missing(gap=Gap.NOT_IN_PLAN) if reference is None else exact_reading(reference, requests)
    status = Status.WARNING if routing.broken else Status.OK
    certainty = certain_if(routing.certain or not routing.broken)
    return case.verdict(status, certainty, observed, expected, capitalize(routing.text), details=routing.details)


def assess_routing(binned: Sequence[BinnedWindow], context: TierContext, rule: Rule) -> Routing:
    """Return the state of the routing in the last minutes, against the minutes before them and the plan."""

    def limit(name: str) -> float:
        return rule.limit(name, context.limits)

    planned = _read_planned_rate(context)
    hits = _measure(hold(binned), planned, limit)
    if sees_repeated_lookups(binned):
        return Routing(broken=None, text=REPEATED_LOOKUPS, hits=hits, gap=Gap.CONTRADICTORY)
    needed = limit("minimum_requests")
    if hits.requests < needed:
        text = f"{hits.requests:.0f} requests of warm replicas lately, {needed:.0f} are needed"
        return Routing(broken=None, text=text, hits=hits, gap=Gap.TOO_FEW_REQUESTS)
    if len(hits.replicas) < 2:
        text = f"one replica with a warm cache, {hits.rate:.0%} prefix hits; no routing to break"
        return Routing(broken=False, text=text, hits=hits)
    floor = -math.inf if hits.reference is None else hits.reference - limit("points")
    if not all((hit_rate(minute) or 0.0) <= floor for minute in hits.minutes):
        # Without a plan a rate that was always low may have been broken always.
        best = hits.rate if hits.reference is None else hits.reference
        if best <= limit("near") / len(hits.replicas) and planned is None:
            rate = f"prefix hits are {hits.rate:.0%} over {len(hits.replicas)} replicas"
            return Routing(broken=None, text=f"{rate}, as before; the plan has no hit rate of one replica", hits=hits)
        state = "not lost in each of the last minutes" if hits.rate <= floor else "not lost"
        return Routing(broken=False, text=f"{hits}; {state}", hits=hits)
    reason = _find_other_reason(hits, floor, limit)
    if reason:
        return Routing(broken=False, text=f"{hits}; {reason}", hits=hits)
    change, counts = hits.length_change, hits.count_requests(hits.binned)
    least, most = (end(counts) / sum(counts) for end in (min, max))
    details = (
        f"{hits.left_by_routing:.0%} are left when any replica gets any prompt",
        "prompt lengths before are not known"
        if change is None
        else f"prompts are {change:.2f} times as long as before",
        f"{number(hits.eviction_rate, 'ratio')} preemptions a request",
        f"each replica gets {least:.0%} to {most:.0%} of the requests",
    )
    certain = _is_dealt_in_turn(hits, hits.minutes, limit) and not _is_dealt_in_turn(hits, hits.past, limit)
    text = f"{hits}; every replica lost hits"
    return Routing(broken=True, text=text, hits=hits, details=details, certain=bool(hits.past) and certain)


def _read_planned_rate(context: TierContext) -> tuple[float, str] | None:
    """Return the planned hit rate and its source. The workload comes before the benchmark."""
    workload = context.plan.workload if context.plan else None
    if workload is not None and workload.prefix_hit_ratio is not None:
        return workload.prefix_hit_ratio, "in the plan"
    points = context.curve.points if context.curve else ()
    measured = [point.prefix_hit_ratio for point in points if point.prefix_hit_ratio is not None]
    return (min(measured), "in the benchmark") if measured else None


def sum_family(binned: Sequence[BinnedWindow], family: str) -> float:
    """Return the increase of a counter over binned windows."""
    return math.fsum([one.window.counters.get(family, 0.0) for one in binned])


def hit_rate(binned: Sequence[BinnedWindow]) -> float | None:
    """Return prefix cache hits per queried token (0-1). Return None without queries, or with more hits than queries."""
    asked, hits = sum_family(binned, QUERIED), sum_family(binned, HIT)
    return hits / asked if asked > 0 and hits <= asked else None


def _measure(binned: HeldWindows, planned: tuple[float, str] | None, limit: Limit) -> HitRates:
    """Return the present hit rate, with the better of the best past minutes and the planned rate.

    New and restarted replicas are left out until their caches can be warm: a cold cache is no broken routing.
    """
    newest = sorted(binned.periods(MINUTE_SECONDS))[-MINUTES:]
    warm, _ = binned.once(split_by_warmth, limit("warm_up_seconds"))
    sums = {
        minute: (group, group.sum_families((FINISHED, QUERIED, HIT)))
        for minute, group in warm.periods(MINUTE_SECONDS).items()
    }
    asking = {minute: pair for minute, pair in sums.items() if pair[1].counters.get(QUERIED, 0.0) > 0}
    now = tuple(_select_asking(group) for minute, (group, _) in asking.items() if minute in newest)
    before = [pair for minute, pair in asking.items() if minute not in newest]
    best, past = -1.0, before[:0]
    for place in range(max(1, len(before) - MINUTES + 1)) if before else ():
        part = before[place : place + MINUTES]
        total = windows.sum_windows(window for _, window in part).counters
        asked, hits = total[QUERIED], total.get(HIT, 0.0)
        if total.get(FINISHED, 0.0) >= limit("minimum_requests") and best * asked < hits <= asked:
            best, past = hits / asked, part
    if planned is not None and planned[0] > best:
        return HitRates(minutes=now, reference=planned[0], words=planned[1])
    if best < 0:
        return HitRates(minutes=now, reference=None, words="")
    groups = tuple(_select_asking(group) for group, _ in past)
    return HitRates(minutes=now, reference=best, words="before", past=groups)


def _select_asking(minute: Iterable[BinnedWindow]) -> Minute:
    return tuple(one for one in minute if one.window.counters.get(QUERIED, 0.0) > 0)


def split_by_warmth(held: HeldWindows, warm_up_seconds: float) -> tuple[HeldWindows, HeldWindows]:
    """Return the windows of warm replicas, then those of replicas that started less than `warm_up_seconds` before.

    Replicas of the first minute are warm: their start was not seen.
    """
    first: dict[str | None, Window] = {}
    restarts: list[tuple[float, str | None]] = []
    for batch in sorted(held.batches, key=lambda one: one.start):
        begins, restarted = batch.once(_list_begins)
        first = begins | first
        restarts += restarted
    begin = min((window.middle // MINUTE_SECONDS for window in first.values()), default=0.0)
    cold_from = {name: window.start for name, window in first.items() if window.middle // MINUTE_SECONDS > begin}
    for start, name in restarts:
        cold_from[name] = max(start, cold_from.get(name, start))

    def is_cold(one: BinnedWindow) -> bool:
        return 0 <= one.window.start - cold_from.get(one.replica, math.inf) < warm_up_seconds

    def select(batch: HeldWindows, cold: bool) -> HeldWindows:
        # A batch without a cold replica keeps what was asked of it.
        if not any(start <= batch.ends[1] and batch.start < start + warm_up_seconds for start in cold_from.values()):
            return HeldWindows() if cold else batch
        return HeldWindows(one for one in batch if is_cold(one) is cold)

    return held.select(lambda batch: select(batch, False)), held.select(lambda batch: select(batch, True))


def _list_begins(batch: HeldWindows) -> tuple[dict[str | None, Window], list[tuple[float, str | None]]]:
    """Return the first seen window of each replica, and when which of them restarted."""
    seen = [one for one in batch if one.window.covered_seconds > 0]
    first: dict[str | None, Window] = {}
    for one in sorted(seen, key=lambda one: one.window.start):
        first.setdefault(one.replica, one.window)
    return first, [(one.window.start, one.replica) for one in seen if one.window.counters.get("restarts", 0.0) > 0]


def _find_other_reason(hits: HitRates, floor: float, limit: Limit) -> str:
    """Return the reason for lost hits other than the routing. Return "" without any."""
    groups = group_by_replica(hits.binned)
    kept = [name for name in hits.replicas if (hit_rate(groups.get(name, ())) or 0.0) > floor]
    if kept:
        return f"not lost on {join_names(kept)}"
    if hits.eviction_rate > limit("eviction_rate"):
        return f"{number(hits.eviction_rate, 'ratio')} preemptions a request, the KV cache has no room"
    change, most = hits.length_change, limit("length_change")
    if change is not None and not 1 / most <= change <= most:
        return f"prompts changed, their mean length is {change:.2f} times that of before"
    # Caches that hold several prefixes keep more than that, full caches keep less.
    near = limit("near")
    if not hits.left_by_routing / near <= hits.rate <= hits.left_by_routing * near:
        return f"routing alone would leave about {hits.left_by_routing:.0%}, so prompts or caches changed"
    counts, spread = hits.count_requests(hits.binned), limit("spread")
    mean = math.fsum(counts) / len(counts)
    if not all(mean / spread <= count <= mean * spread for count in counts):
        return "requests are not spread evenly, so prompts changed"
    return ""


def _is_dealt_in_turn(hits: HitRates, minutes: Sequence[Minute], limit: Limit) -> bool:
    """Return whether the replicas' requests are more even than a choice by prefix makes them by chance (chi-square)."""
    rows = (hits.count_requests(minute) for minute in minutes)
    return check_uniformity(rows) <= limit("chance")
