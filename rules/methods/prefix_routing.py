"""Prefix routing: evidence that requests with one prefix no longer reach the replica that caches it (guide 7.2).

Broken routing differs from changed prompts. Every replica loses hits at once, and the fleet's rate falls to about that of
one replica divided by their number. Prompts are as long as before, nothing is evicted, and requests are spread evenly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

from rules import confidence
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
from rules.telemetry import histograms
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
"""Binned windows of one minute, one for each replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalityThresholds:
    """Thresholds of PrefixRoutingBroken. The catalogue has their sources."""

    points: float
    near: float
    spread: float
    length_change: float
    eviction_rate: float
    warm_up_seconds: float
    minimum_requests: float
    chance: float
    evened: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceHitRate:
    """Hit rate of one replica (0-1), its source, and the minutes it was observed in (none for a planned rate)."""

    rate: float
    words: str
    minutes: tuple[Minute, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentHitRate:
    """Last minutes of the warm replicas, and the hit rate that they are compared with."""

    minutes: tuple[Minute, ...]
    reference: ReferenceHitRate | None

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
    def counts(self) -> tuple[float, ...]:
        """Return the finished requests of each replica, in the order of the replicas."""
        return _count_by_replica(self.binned, self.replicas)

    @property
    def expected_rate(self) -> float:
        """Return the share of the reference that is left if any replica may get any prefix (guide 7.2)."""
        return (self.reference.rate if self.reference else 1.0) / max(1, len(self.replicas))

    @property
    def length_change(self) -> float | None:
        """Return the mean prompt length now by that of the reference minutes. Return None if one is not known."""
        past = [one for minute in self.reference.minutes for one in minute] if self.reference else []
        then, now = (histograms.mean(sum_parts(binned, PROMPTS)) for binned in (past, self.binned))
        return now / then if then and now else None

    @property
    def eviction_rate(self) -> float:
        """Return the preemptions per finished request."""
        return sum_family(self.binned, PREEMPTIONS) / max(1.0, self.requests)

    def __str__(self) -> str:
        text = f"prefix hits are {self.rate:.0%} over {len(self.replicas)} replicas"
        return f"{text}, {self.reference.rate:.0%} {self.reference.words}" if self.reference else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """State of the routing. `broken` is None if it is not known, for the reason `gap`."""

    broken: bool | None
    text: str
    found: CurrentHitRate
    details: tuple[str, ...] = ()
    certain: bool = False
    gap: Gap = Gap.NOT_IN_PLAN


def judge_replicas(case: RuleContext) -> RuleResult:
    """Blame the routing if every replica lost hits at once and the rate fell to a single replica's share (guide 7.2).

    Certain only if requests are proven to be distributed differently than before.
    """
    if not case.binned:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    if not any(QUERIED in one.window.counters for one in case.binned):
        return case.unmeasured(QUERIED)
    held = hold(case.binned)
    if not any(held.by_batch(sum_family, QUERIED)):
        if not any(held.by_batch(sum_family, FINISHED)):
            return case.unknown(Gap.NO_TRAFFIC, "no prompt asked the prefix cache")
        return case.unknown(Gap.NOT_EXPOSED, "no prompt asked the prefix cache: it is off")
    routing = assess_routing(case.binned, case.context, case.rule)
    if routing.broken is None:
        return case.unknown(routing.gap, routing.text)
    reference, requests = routing.found.reference, routing.found.requests
    observed = exact_reading(routing.found.rate, requests)
    expected = exact_reading(reference.rate, requests) if reference is not None else Missing(gap=Gap.NOT_IN_PLAN)
    status = Status.WARNING if routing.broken else Status.OK
    certainty = certain_if(routing.certain or not routing.broken)
    return case.verdict(status, certainty, observed, expected, capitalize(routing.text), details=routing.details)


def assess_routing(binned: Sequence[BinnedWindow], context: TierContext, rule: Rule) -> Routing:
    """Return the state of the routing in the last minutes, against the minutes before them and the plan."""
    names = (field.name for field in fields(LocalityThresholds))
    limits = LocalityThresholds(**{name: rule.limit(name, context.limits) for name in names})
    planned = _read_planned_rate(context)
    found = hold(binned).once(measure_hit_rate, planned, limits)
    if sees_repeated_lookups(binned):
        return Routing(broken=None, text=REPEATED_LOOKUPS, found=found, gap=Gap.CONTRADICTORY)
    if found.requests < limits.minimum_requests:
        text = f"{found.requests:.0f} requests of warm replicas lately, {limits.minimum_requests:.0f} are needed"
        return Routing(broken=None, text=text, found=found, gap=Gap.TOO_FEW_REQUESTS)
    if len(found.replicas) < 2:
        text = f"one replica with a warm cache, {found.rate:.0%} prefix hits; no routing to break"
        return Routing(broken=False, text=text, found=found)
    if not _is_locality_lost(found, limits):
        return _explain_not_lost(found, limits, planned is not None)
    reason = _find_other_reason(found, limits)
    if reason:
        return Routing(broken=False, text=f"{found}; {reason}", found=found)
    return Routing(
        broken=True,
        text=f"{found}; every replica lost hits",
        found=found,
        details=_explain_broken(found),
        certain=_has_spread_changed(found, limits),
    )


def _read_planned_rate(context: TierContext) -> tuple[float, str] | None:
    """Return the planned hit rate and its source. The workload comes before the benchmark."""
    workload = context.plan.workload if context.plan else None
    if workload is not None and workload.prefix_hit_ratio is not None:
        return workload.prefix_hit_ratio, "in the plan"
    measured = [
        p.prefix_hit_ratio for p in (context.curve.points if context.curve else ()) if p.prefix_hit_ratio is not None
    ]
    return (min(measured), "in the benchmark") if measured else None


def sum_family(binned: Sequence[BinnedWindow], family: str) -> float:
    """Return the increase of a counter over binned windows."""
    return math.fsum([one.window.counters.get(family, 0.0) for one in binned])


def hit_rate(binned: Sequence[BinnedWindow]) -> float | None:
    """Return prefix cache hits per queried token (0-1). Return None without queries, or with more hits than queries."""
    asked, hits = sum_family(binned, QUERIED), sum_family(binned, HIT)
    return hits / asked if asked > 0 and hits <= asked else None


def measure_hit_rate(
    binned: HeldWindows, planned: tuple[float, str] | None, limits: LocalityThresholds
) -> CurrentHitRate:
    """Return the present hit rate and its reference. `planned` is the hit rate of plan or benchmark and its source.

    New and restarted replicas are left out until their caches can be warm: a cold cache is no broken routing.
    """
    newest = sorted(binned.periods(MINUTE_SECONDS))[-MINUTES:]
    warm = binned.once(split_by_warmth, limits.warm_up_seconds)[0]
    minutes = [(minute, group) for minute, group in warm.periods(MINUTE_SECONDS).items() if _count_asking(group)[0]]
    return CurrentHitRate(
        minutes=tuple(_select_asking(group) for minute, group in minutes if minute in newest),
        reference=_find_reference([group for minute, group in minutes if minute not in newest], planned, limits),
    )


def _select_asking(minute: Iterable[BinnedWindow]) -> Minute:
    """Return the windows in which prompts asked the prefix cache."""
    return tuple(one for one in minute if one.window.counters.get(QUERIED, 0.0) > 0)


def _count_asking(minute: HeldWindows) -> tuple[float, ...]:
    """Return the number of windows in which prompts asked, and their requests, queried tokens and hits."""
    return tuple(map(math.fsum, zip(*minute.by_batch(_count_asking_batch), strict=True)))


def _count_asking_batch(batch: HeldWindows) -> tuple[float, ...]:
    asking = _select_asking(batch)
    return len(asking), *(sum_family(asking, family) for family in (FINISHED, QUERIED, HIT))


def split_by_warmth(held: HeldWindows, warm_up_seconds: float) -> tuple[HeldWindows, HeldWindows]:
    """Return the seen windows of warm replicas, then those of replicas that started less than `warm_up_seconds` before.

    Replicas of the first minute are warm: their start was not seen.
    """
    first: dict[str | None, Window] = {}
    restarts: list[tuple[float, str | None]] = []
    for batch in sorted(held.batches, key=lambda one: one.start):
        names, restarted = batch.once(_list_replicas)
        restarts += restarted
        for one in batch if not names <= first.keys() else ():
            known = first.get(one.replica)
            if one.window.covered_seconds > 0 and (known is None or one.window.start < known.start):
                first[one.replica] = one.window
    begin = min((window.middle // MINUTE_SECONDS for window in first.values()), default=0.0)
    cold_from = {name: window.start for name, window in first.items() if window.middle // MINUTE_SECONDS > begin}
    for start, name in restarts:
        cold_from[name] = max(start, cold_from.get(name, start))

    def is_cold(one: BinnedWindow) -> bool:
        return 0 <= one.window.start - cold_from.get(one.replica, math.inf) < warm_up_seconds

    def has_cold(batch: HeldWindows) -> bool:
        return any(t <= batch.ends[1] and batch.start < t + warm_up_seconds for t in cold_from.values())

    def select_warm(batch: HeldWindows) -> HeldWindows:
        if batch.once(_is_seen) and not has_cold(batch):
            return batch
        return HeldWindows(one for one in batch if one.window.covered_seconds > 0 and not is_cold(one))

    def select_cold(batch: HeldWindows) -> HeldWindows:
        if not has_cold(batch):
            return HeldWindows()
        return HeldWindows(one for one in batch if one.window.covered_seconds > 0 and is_cold(one))

    return held.select(select_warm), held.select(select_cold)


def _list_replicas(batch: HeldWindows) -> tuple[frozenset[str | None], tuple[tuple[float, str | None], ...]]:
    """Return the seen replicas, and when which of them restarted."""
    seen = [one for one in batch if one.window.covered_seconds > 0]
    restarts = ((one.window.start, one.replica) for one in seen if one.window.counters.get("restarts", 0.0) > 0)
    return _share_names(frozenset(one.replica for one in seen)), tuple(restarts)


@lru_cache(maxsize=64)
def _share_names(names: frozenset[str | None]) -> frozenset[str | None]:
    """Return the same object for equal names: most minutes of a tier have the same replicas."""
    return names


def _is_seen(batch: HeldWindows) -> bool:
    """Return whether all of its windows were seen."""
    return all(one.window.covered_seconds > 0 for one in batch)


def _find_reference(
    past: Sequence[HeldWindows], planned: tuple[float, str] | None, limits: LocalityThresholds
) -> ReferenceHitRate | None:
    """Return the better of the best past minutes and the planned rate."""
    counts = [_count_asking(minute)[1:] for minute in past]
    rates = []
    for place in range(max(1, len(past) - MINUTES + 1)) if past else ():
        requests, asked, hit = (math.fsum(column) for column in zip(*counts[place : place + MINUTES], strict=True))
        if requests >= limits.minimum_requests and asked > 0 and hit <= asked:
            rates.append((hit / asked, place))
    best = max(rates, key=lambda pair: pair[0], default=None)
    if best is None or (planned is not None and planned[0] > best[0]):
        return ReferenceHitRate(rate=planned[0], words=planned[1]) if planned is not None else None
    minutes = tuple(map(_select_asking, past[best[1] : best[1] + MINUTES]))
    return ReferenceHitRate(rate=best[0], words="before", minutes=minutes)


def _is_locality_lost(found: CurrentHitRate, limits: LocalityThresholds) -> bool:
    """Return whether hits are lost in each of the last minutes on its own."""
    floor = found.reference.rate - limits.points if found.reference else -math.inf
    return all((hit_rate(minute) or 0.0) <= floor for minute in found.minutes)


def _explain_not_lost(found: CurrentHitRate, limits: LocalityThresholds, planned: bool) -> Routing:
    """Return an unbroken routing. Without a plan a rate that was always low may have been broken always."""
    best = found.reference.rate if found.reference else found.rate
    if best <= limits.near / len(found.replicas) and not planned:
        rate = f"prefix hits are {found.rate:.0%} over {len(found.replicas)} replicas"
        text = f"{rate}, as before; the plan has no hit rate of one replica"
        return Routing(broken=None, text=text, found=found)
    fallen = found.reference is not None and found.rate <= found.reference.rate - limits.points
    state = "not lost in each of the last minutes" if fallen else "not lost"
    return Routing(broken=False, text=f"{found}; {state}", found=found)


def _find_other_reason(found: CurrentHitRate, limits: LocalityThresholds) -> str:
    """Return the reason for lost hits other than the routing. Return "" without any."""
    groups, floor = group_by_replica(found.binned), (found.reference.rate if found.reference else 0.0) - limits.points
    warm = [name for name in found.replicas if (hit_rate(groups.get(name, ())) or 0.0) > floor]
    if warm:
        return f"not lost on {join_names(warm)}"
    if found.eviction_rate > limits.eviction_rate:
        return f"{number(found.eviction_rate, 'ratio')} preemptions a request, the KV cache has no room"
    change = found.length_change
    if change is not None and not 1 / limits.length_change <= change <= limits.length_change:
        return f"prompts changed, their mean length is {change:.2f} times that of before"
    # Caches that hold several prefixes keep more than the expected rate, full caches keep less.
    expected = found.expected_rate
    if not expected / limits.near <= found.rate <= expected * limits.near:
        return f"routing alone would leave about {expected:.0%}, so prompts or caches changed"
    mean = math.fsum(found.counts) / len(found.counts)
    if not all(mean / limits.spread <= count <= mean * limits.spread for count in found.counts):
        return "requests are not spread evenly, so prompts changed"
    return ""


def _explain_broken(found: CurrentHitRate) -> tuple[str, ...]:
    change, counts = found.length_change, found.counts
    lengths = (
        "prompt lengths before are not known" if change is None else f"prompts are {change:.2f} times as long as before"
    )
    least, most = (end(counts) / sum(counts) for end in (min, max))
    share = f"{least:.0%}" if round(least, 2) == round(most, 2) else f"{least:.0%} to {most:.0%}"
    return (
        f"{found.expected_rate:.0%} are left when any replica gets any prompt",
        lengths,
        f"{number(found.eviction_rate, 'ratio')} preemptions a request",
        f"each replica gets {share} of the requests",
    )


def _has_spread_changed(found: CurrentHitRate, limits: LocalityThresholds) -> bool:
    """Return whether requests are proven to be distributed differently than in the reference minutes.

    Either they are dealt out in turn, more evenly than a choice by prefix can be by chance, and were not before; or the
    shares of the replicas differ, and are more even.
    """
    if found.reference is None or not found.reference.minutes:
        return False
    before, now = (
        confidence.check_uniformity(_count_by_replica(minute, found.replicas) for minute in minutes)
        for minutes in (found.reference.minutes, found.minutes)
    )
    if now.probability_below <= limits.chance < before.probability_below:
        return True
    then = _count_by_replica([one for minute in found.reference.minutes for one in minute], found.replicas)
    moved = confidence.check_homogeneity(then, found.counts).probability_above <= limits.chance
    return moved and _unevenness(found.counts) <= _unevenness(then) - limits.evened


def _unevenness(counts: Sequence[float]) -> float:
    """Return the coefficient of variation (0 if all are equal), which is comparable between different sums."""
    return math.sqrt(confidence.check_uniformity([counts]).statistic / max(1.0, math.fsum(counts)))


def _count_by_replica(binned: Sequence[BinnedWindow], replicas: Sequence[str]) -> tuple[float, ...]:
    groups: Mapping[str | None, Sequence[BinnedWindow]] = group_by_replica(binned)
    return tuple(sum_family(groups.get(name, ()), FINISHED) for name in replicas)
