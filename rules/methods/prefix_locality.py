"""Whether requests of one prefix still reach the replica that holds it (guide 7.2: routing destroys locality).

Owns what tells a broken routing from changed prompts, over the minutes of a tier's replicas: every replica loses hits at
once, the fleet's rate falls to about that of one replica divided by their number, prompts are as long as before, nothing
is evicted, and requests are spread evenly. It knows no rule; `rules.methods.prefix_routing` and `rules.causes.checks` ask it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from rules import confidence
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import histograms
from rules.telemetry.windows import minute_of

HIT, QUERIED, FINISHED = "prefix_hit_tokens", "prefix_queried_tokens", "requests_finished"
PROMPTS, PREEMPTIONS = "prompt_tokens_per_request", "preemptions"

MINUTES = 3
"""Separate minutes that are the present, and that the best of the past is summed over (DESIGN 3.3)."""

Minute = tuple[BinnedWindow, ...]
"""The slices of one minute, a replica each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalityThresholds:
    """The thresholds of PrefixRoutingBroken; their sources stand in the catalogue."""

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
    """The hit rate that one replica has (0-1) and who says so; `minutes` are those it was seen in, none from a plan."""

    rate: float
    words: str
    minutes: tuple[Minute, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentHitRate:
    """The last minutes of the warm replicas that serve, and what they are compared with."""

    minutes: tuple[Minute, ...]
    replicas: tuple[str, ...]
    reference: ReferenceHitRate | None

    @property
    def slices(self) -> tuple[BinnedWindow, ...]:
        return tuple(one for minute in self.minutes for one in minute)

    @property
    def rate(self) -> float:
        return hit_rate(self.slices) or 0.0

    @property
    def requests(self) -> float:
        return sum_family(self.slices, FINISHED)


def sum_family(slices: Sequence[BinnedWindow], family: str) -> float:
    """The increase of a counter over slices."""
    return math.fsum(one.window.counters.get(family, 0.0) for one in slices)


def hit_rate(slices: Sequence[BinnedWindow]) -> float | None:
    """Prompt tokens found in the prefix cache per token asked for (0-1); None where none was asked for, or fewer than found."""
    asked, hits = sum_family(slices, QUERIED), sum_family(slices, HIT)
    return hits / asked if asked > 0 and hits <= asked else None


def measure_hit_rate(
    slices: Sequence[BinnedWindow], planned: tuple[float, str] | None, limits: LocalityThresholds
) -> CurrentHitRate:
    """What is compared; `planned` is the hit rate of plan or benchmark and whose it is. Replicas that are new or began
    anew are left out until their caches can be warm: a cold cache is no broken routing."""
    placed = [(minute_of(one.window), one) for one in slices]
    newest = sorted({minute for minute, _ in placed})[-MINUTES:]
    minutes = _by_minute(_warm(placed, limits.warm_up_seconds))
    now = tuple(several for minute, several in minutes if minute in newest)
    past = tuple(several for minute, several in minutes if minute not in newest)
    return CurrentHitRate(
        minutes=now,
        replicas=tuple(sorted({one.replica or "" for minute in now for one in minute})),
        reference=_reference(past, planned, limits),
    )


def _warm(placed: Sequence[tuple[float, BinnedWindow]], warm_up_seconds: float) -> list[tuple[float, BinnedWindow]]:
    """Those that asked a warm cache, each with its minute."""
    covered = [(minute, one) for minute, one in placed if one.window.covered_seconds > 0]
    begin = min((minute for minute, _ in covered), default=0.0)
    cold_from: dict[str | None, float] = {}
    for minute, one in sorted(covered, key=lambda pair: pair[1].window.start):
        if one.window.counters.get("restarts", 0.0) > 0 or (one.replica not in cold_from and minute > begin):
            cold_from[one.replica] = one.window.start
        elif one.replica not in cold_from:
            cold_from[one.replica] = -math.inf
    return [
        (minute, one)
        for minute, one in covered
        if not 0 <= one.window.start - cold_from[one.replica] < warm_up_seconds
        and one.window.counters.get(QUERIED, 0.0) > 0
    ]


def _by_minute(placed: Sequence[tuple[float, BinnedWindow]]) -> list[tuple[float, Minute]]:
    grouped: dict[float, list[BinnedWindow]] = {}
    for minute, one in placed:
        grouped.setdefault(minute, []).append(one)
    return [(minute, tuple(grouped[minute])) for minute in sorted(grouped)]


def _reference(
    past: tuple[Minute, ...], planned: tuple[float, str] | None, limits: LocalityThresholds
) -> ReferenceHitRate | None:
    """The better of the past's best minutes and of what the plan says."""
    # Read once a minute and not once a stretch: of a large tier an hour is many thousand slices.
    read = [
        tuple([one.window.counters.get(family, 0.0) for one in minute] for family in (FINISHED, QUERIED, HIT))
        for minute in past
    ]
    seen = []
    for place in range(max(1, len(past) - MINUTES + 1)) if past else ():
        requests, asked, hit = (
            math.fsum(chain(*column)) for column in zip(*read[place : place + MINUTES], strict=True)
        )
        if requests >= limits.minimum_requests and asked > 0 and hit <= asked:
            seen.append(ReferenceHitRate(rate=hit / asked, words="before", minutes=past[place : place + MINUTES]))
    if planned is not None:
        seen.append(ReferenceHitRate(rate=planned[0], words=planned[1]))
    return max(seen, key=lambda one: one.rate, default=None)


def is_locality_lost(found: CurrentHitRate, limits: LocalityThresholds) -> bool:
    """Return whether hits are lost now, in each of the last minutes on its own."""
    return found.reference is not None and all(
        (hit_rate(minute) or 0.0) <= found.reference.rate - limits.points for minute in found.minutes
    )


def find_warm_replicas(found: CurrentHitRate, limits: LocalityThresholds) -> tuple[str, ...]:
    """Replicas whose own rate has not fallen."""
    floor = (found.reference.rate if found.reference else 0.0) - limits.points
    of_each = _by_replica(found.slices)
    return tuple(name for name in found.replicas if (hit_rate(of_each.get(name, ())) or 0.0) > floor)


def expected_rate(found: CurrentHitRate) -> float:
    """What is left of the reference when any replica may get any prefix: its share by the number of replicas (guide 7.2)."""
    return (found.reference.rate if found.reference else 1.0) / max(1, len(found.replicas))


def is_near_rate(found: CurrentHitRate, limits: LocalityThresholds) -> bool:
    """Return whether the present rate is about that; caches that hold several prefixes keep some more, full ones
    less."""
    expected = expected_rate(found)
    return expected / limits.near <= found.rate <= expected * limits.near


def shares(found: CurrentHitRate) -> tuple[float, ...]:
    """Finished requests of each replica, in the order of the replicas."""
    return _requests_by(found.slices, found.replicas)


def spread_evenly(found: CurrentHitRate, limits: LocalityThresholds) -> bool:
    """Return whether no replica has many more or fewer requests than the mean of all."""
    counts = shares(found)
    mean = math.fsum(counts) / len(counts)
    return all(mean / limits.spread <= count <= mean * limits.spread for count in counts)


def spread_changed(found: CurrentHitRate, limits: LocalityThresholds) -> bool:
    """Return whether requests are surely given out in another way than when the hits were there.

    Either dealt out in turn, more evenly than requests that choose their replica by prefix can be by chance, and not so
    before; or in other shares than before, and more evenly.
    """
    if found.reference is None or not found.reference.minutes:
        return False
    past = tuple(one for minute in found.reference.minutes for one in minute)
    before, now = (_even(minutes, found.replicas) for minutes in (found.reference.minutes, found.minutes))
    if now.probability_below <= limits.chance < before.probability_below:
        return True
    then, since = _requests_by(past, found.replicas), shares(found)
    moved = confidence.check_homogeneity(then, since).probability_above <= limits.chance
    return moved and _unevenness(since) <= _unevenness(then) - limits.evened


def _unevenness(counts: Sequence[float]) -> float:
    """The coefficient of variation (0 where all are equal): comparable between counts of different sums."""
    return math.sqrt(confidence.check_uniformity([counts]).statistic / max(1.0, math.fsum(counts)))


def _even(minutes: Sequence[Minute], replicas: Sequence[str]) -> confidence.ChiSquare:
    return confidence.check_uniformity(_requests_by(minute, replicas) for minute in minutes)


def _requests_by(slices: Sequence[BinnedWindow], replicas: Sequence[str]) -> tuple[float, ...]:
    of_each = _by_replica(slices)
    return tuple(sum_family(of_each.get(name, ()), FINISHED) for name in replicas)


def _by_replica(slices: Sequence[BinnedWindow]) -> Mapping[str | None, Sequence[BinnedWindow]]:
    grouped: dict[str | None, list[BinnedWindow]] = {}
    for one in slices:
        grouped.setdefault(one.replica, []).append(one)
    return grouped


def mean_prompt(slices: Sequence[BinnedWindow]) -> float | None:
    """Mean prompt tokens a request, None where the engine does not say."""
    parts = histograms.sum_histograms(part for one in slices for part in one.window.histograms.get(PROMPTS, ()))
    return histograms.mean(parts)


def lengths_change(found: CurrentHitRate) -> float | None:
    """Mean prompt length now to that of the minutes compared with; None where one of them is not known."""
    past = [one for minute in found.reference.minutes for one in minute] if found.reference else []
    then, now = mean_prompt(past), mean_prompt(found.slices)
    return now / then if then and now else None


def eviction_rate(found: CurrentHitRate) -> float:
    """Preemptions a finished request in the last minutes."""
    return sum_family(found.slices, PREEMPTIONS) / max(1.0, found.requests)
