"""Routing: by prefix to the replica that caches it (guide 7.2), and by capacity to the tiers of one model (guide 9.5).

Broken routing by prefix differs from changed prompts. Every replica loses hits at once, and the fleet's rate falls to
about that of one replica divided by their number. Prompts are as long as before, nothing is evicted, and requests are
spread evenly. Of tiers the finding belongs to the slower one that gets more than its share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rules.confidence import Certainty, check_uniformity
from rules.methods.evidence import (
    OUTPUTS,
    PROMPTS,
    REPEATED_LOOKUPS,
    capitalize,
    certain_if,
    exact_reading,
    join_names,
    sees_repeated_lookups,
)
from rules.plan.curve import operating_point
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry import histograms, windows
from rules.telemetry.reading_methods import replica_rate
from rules.telemetry.signals import Gap, Missing
from rules.telemetry.windows import MINUTE_SECONDS, Window
from rules.telemetry.wording import number
from rules.verdicts.context import SEPARATE, RuleContext, TierWindows
from rules.verdicts.held_windows import HeldWindows, hold
from rules.verdicts.verdict import RuleResult, Status

RULE = "PrefixRoutingBroken"

HIT, QUERIED = "prefix_hit_tokens", "prefix_queried_tokens"
FINISHED, PREEMPTIONS = "requests_finished", "preemptions"

MINUTES = 3
"""Separate minutes that are the present, and that the best of the past is summed over (DESIGN 3.3)."""

Minute = tuple[BinnedWindow, ...]
"""Binned windows of one minute in which prompts asked the prefix cache, one for each replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRates:
    """Last minutes of the warm replicas, and the hit rate (0-1) that they are compared with, from `past` or the plan."""

    minutes: tuple[Minute, ...]
    reference: float | None
    words: str
    past: tuple[Minute, ...] = ()

    @property
    def binned(self) -> tuple[BinnedWindow, ...]:
        return tuple(sample for minute in self.minutes for sample in minute)

    @property
    def replicas(self) -> tuple[str, ...]:
        return tuple(sorted({sample.replica or "" for sample in self.binned}))

    @property
    def left_by_routing(self) -> float:
        """Return the share of the reference that is left if any replica may get any prefix (guide 7.2)."""
        return (1.0 if self.reference is None else self.reference) / max(1, len(self.replicas))

    def count_requests(self, binned: Sequence[BinnedWindow]) -> tuple[float, ...]:
        """Return the finished requests of each replica, in the order of the replicas."""
        groups = hold(binned).by_replica
        return tuple(sum_family(groups.get(name, ()), FINISHED) for name in self.replicas)


def judge_replicas(context: RuleContext) -> RuleResult:
    """Blame the routing if every replica lost prefix hits at once and the rate fell to a single replica's share.

    From hits, lookups, prompt lengths, preemptions and finished requests of each replica, in the last minutes against the
    minutes before them and the plan. Certain only if requests are proven to be dealt out in turn now, and were not before.
    """
    if not any(QUERIED in binned.window.counters for binned in context.binned):
        return context.unmeasured(QUERIED)
    total = hold(context.binned).sum_families((QUERIED, FINISHED)).counters
    if not total[QUERIED]:
        gap = Gap.NOT_EXPOSED if total.get(FINISHED) else Gap.NO_TRAFFIC
        return context.unknown(gap, f"no prompt asked the prefix cache{': it is off' if total.get(FINISHED) else ''}")
    if sees_repeated_lookups(context.binned):
        return context.unknown(Gap.CONTRADICTORY, REPEATED_LOOKUPS)
    planned = _read_planned_rate(context.tier)
    hits, needed = _measure(context, planned), context.limit("minimum_requests")
    requests, rate, reference = sum_family(hits.binned, FINISHED), hit_rate(hits.binned) or 0.0, hits.reference
    if requests < needed:
        text = f"{requests:.0f} requests of warm replicas lately, {needed:.0f} are needed"
        return context.unknown(Gap.TOO_FEW_REQUESTS, text)
    floor = -math.inf if reference is None else reference - context.limit("points")
    shown = f"prefix hits are {rate:.0%} over {len(hits.replicas)} replicas"
    compared = shown if reference is None else f"{shown}, {reference:.0%} {hits.words}"
    status, certain = Status.OK, True
    details: tuple[str, ...] = ()
    if len(hits.replicas) < 2:
        text = f"one replica with a warm cache, {rate:.0%} prefix hits; no routing to break"
    elif not all((hit_rate(minute) or 0.0) <= floor for minute in hits.minutes):
        best = rate if reference is None else reference
        if best <= context.limit("near") / len(hits.replicas) and planned is None:
            # A rate that was always low may have been broken always.
            return context.unknown(Gap.NOT_IN_PLAN, f"{shown}, as before; the plan has no hit rate of one replica")
        text = f"{compared}; not lost{' in each of the last minutes' if rate <= floor else ''}"
    elif reason := _find_other_reason(context, hits, rate, floor):
        text = f"{compared}; {reason}"
    else:
        status, text, counts = Status.WARNING, f"{compared}; every replica lost hits", hits.count_requests(hits.binned)
        details = (
            f"{hits.left_by_routing:.0%} are left when any replica gets any prompt",
            f"each replica gets {min(counts) / sum(counts):.0%} to {max(counts) / sum(counts):.0%} of the requests",
        )
        # Chance alone seldom makes requests so even: 0 for requests dealt out in turn.
        now, before = (check_uniformity(map(hits.count_requests, part)) for part in (hits.minutes, hits.past))
        certain = bool(hits.past) and now <= context.limit("chance") < before
    expected = Missing(gap=Gap.NOT_IN_PLAN) if reference is None else exact_reading(reference, requests)
    observed, sentence = exact_reading(rate, requests), capitalize(text)
    return context.verdict(status, certain_if(certain), observed, expected, sentence, details=details)


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
    return math.fsum([sample.window.counters.get(family, 0.0) for sample in binned])


def hit_rate(binned: Sequence[BinnedWindow]) -> float | None:
    """Return prefix cache hits per queried token (0-1). Return None without queries, or with more hits than queries."""
    value, hits = sum_family(binned, QUERIED), sum_family(binned, HIT)
    return hits / value if value > 0 and hits <= value else None


def _measure(context: RuleContext, planned: tuple[float, str] | None) -> HitRates:
    """Return the present hit rate, with the better of the best past minutes and the planned rate.

    New and restarted replicas are left out until their caches can be warm: a cold cache is no broken routing.
    """
    held = hold(context.binned)
    newest = sorted(held.periods(MINUTE_SECONDS))[-MINUTES:]
    warm, _ = held.once(split_by_warmth, context.limit("warm_up_seconds"))
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
        value, hits = total[QUERIED], total.get(HIT, 0.0)
        if total.get(FINISHED, 0.0) >= context.limit("minimum_requests") and best * value < hits <= value:
            best, past = hits / value, part
    if planned is not None and planned[0] > best:
        return HitRates(minutes=now, reference=planned[0], words=planned[1])
    if best < 0:
        return HitRates(minutes=now, reference=None, words="")
    groups = tuple(_select_asking(group) for group, _ in past)
    return HitRates(minutes=now, reference=best, words="before", past=groups)


def _select_asking(minute: Iterable[BinnedWindow]) -> Minute:
    return tuple(binned for binned in minute if binned.window.counters.get(QUERIED, 0.0) > 0)


def split_by_warmth(held: HeldWindows, warm_up_seconds: float) -> tuple[HeldWindows, HeldWindows]:
    """Return the windows of warm replicas, then those of replicas that started less than `warm_up_seconds` before.

    Replicas of the first minute are warm: their start was not seen.
    """
    first: dict[str | None, Window] = {}
    restarts: list[tuple[float, str | None]] = []
    for batch in sorted(held.batches, key=lambda held_windows: held_windows.start):
        begins, restarted = batch.once(_list_begins)
        first = begins | first
        restarts += restarted
    begin = min((window.middle // MINUTE_SECONDS for window in first.values()), default=0.0)
    cold_from = {name: window.start for name, window in first.items() if window.middle // MINUTE_SECONDS > begin}
    for start, name in restarts:
        cold_from[name] = max(start, cold_from.get(name, start))

    def is_cold(binned: BinnedWindow) -> bool:
        return 0 <= binned.window.start - cold_from.get(binned.replica, math.inf) < warm_up_seconds

    def select(batch: HeldWindows, cold: bool) -> HeldWindows:
        # A batch without a cold replica keeps what was asked of it.
        if not any(start <= batch.ends[1] and batch.start < start + warm_up_seconds for start in cold_from.values()):
            return HeldWindows() if cold else batch
        return HeldWindows(binned for binned in batch if is_cold(binned) is cold)

    return held.select(lambda batch: select(batch, False)), held.select(lambda batch: select(batch, True))


def _list_begins(batch: HeldWindows) -> tuple[dict[str | None, Window], list[tuple[float, str | None]]]:
    """Return the first seen window of each replica, and when which of them restarted."""
    seen = [sample for sample in batch if sample.window.covered_seconds > 0]
    first: dict[str | None, Window] = {}
    for binned in sorted(seen, key=lambda sample: sample.window.start):
        first.setdefault(binned.replica, binned.window)
    restarted = [sample for sample in seen if sample.window.counters.get("restarts", 0.0) > 0]
    return first, [(sample.window.start, sample.replica) for sample in restarted]


def _find_other_reason(context: RuleContext, hits: HitRates, rate: float, floor: float) -> str:
    """Return the reason for lost hits other than the routing. Return "" without any."""
    groups, counts = hold(hits.binned).by_replica, hits.count_requests(hits.binned)
    kept = [name for name in hits.replicas if (hit_rate(groups.get(name, ())) or 0.0) > floor]
    if kept:
        return f"not lost on {join_names(kept)}"
    evictions = sum_family(hits.binned, PREEMPTIONS) / max(1.0, sum(counts))
    if evictions > context.limit("eviction_rate"):
        return f"{number(evictions, 'ratio')} preemptions a request, the KV cache has no room"
    before = [binned for minute in hits.past for binned in minute]
    then, now = (histograms.mean(hold(binned).sum_parts(PROMPTS)) for binned in (before, hits.binned))
    most = context.limit("length_change")
    if then and now and not 1 / most <= now / then <= most:
        return f"prompts changed, their mean length is {now / then:.2f} times that of before"
    # Caches that hold several prefixes keep more than that, full caches keep less.
    near, left = context.limit("near"), hits.left_by_routing
    if not left / near <= rate <= left * near:
        return f"routing alone would leave about {left:.0%}, so prompts or caches changed"
    mean, spread = math.fsum(counts) / len(counts), context.limit("spread")
    if not all(mean / spread <= count <= mean * spread for count in counts):
        return "requests are not spread evenly, so prompts changed"
    return ""


LATENCIES = {"tpot_seconds": "output tokens", "ttft_seconds": "first tokens"}
"""Latencies that show the speed of a tier. The time per token comes first, because waiting does not change it."""

COMPARED = frozenset({FINISHED, PROMPTS, OUTPUTS, *LATENCIES})

Sums = tuple[Window, Window]
"""Sum of the slower tier's windows and of the faster one's, over the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPair:
    """Tier beside one that is `faster` times as fast: their common `minutes`, newest last, and the `total` of these.

    `words` describe the measure. `planned`: the plan is the measure.
    """

    fast: str
    minutes: tuple[Sums, ...]
    total: Sums
    faster: float
    words: str
    planned: bool

    def has_equal_shares(self, follow: float) -> bool:
        """Return whether requests are nearer to an equal share than to the capacities, in each minute and in all."""
        for sums in (*self.minutes, self.total):
            own, value = _read_rates(sums)
            if own <= 0 or value <= 0:
                return False
            followed = math.log(value / own) / math.log(self.faster)
            # Without a plan, a tier that gets far more requests may be slow because of them.
            if followed >= follow or not (self.planned or followed > -follow):
                return False
        return True

    def differs(self, families: Iterable[str], most: float) -> bool:
        """Return whether a mean of the tiers differs by more than the factor `most`."""
        for family in families:
            mine, theirs = (histograms.mean(total.histograms.get(family, ())) for total in self.total)
            if mine and theirs and not 1 / most <= mine / theirs <= most:
                return True
        return False

    def is_slower(self, unequal: float) -> bool:
        """Return whether the median here is slower by the factor `unequal`, by the edges of its bucket."""
        for family in LATENCIES:
            mine, theirs = (histograms.quantile(total.histograms.get(family, ()), 0.5) for total in self.total)
            if mine and theirs and theirs.high is not None and (mine.low or 0.0) >= unequal * theirs.high:
                return True
        return False


def judge_tiers(rule_context: RuleContext) -> RuleResult:
    """Find a faster tier of the same model that gets hardly more requests per replica than this one.

    From finished requests and lengths of the last minutes, and the plans' usable rates, else mean latencies. Certain if both
    benchmarks reached the knee, or if the median here is slower by the edges of its bucket.
    """
    model = rule_context.tier.plan.model if rule_context.tier.plan else None
    if model is None:
        return rule_context.unknown(Gap.NOT_IN_PLAN, "the plan does not say which model this tier serves")
    rest = {
        name: (context, held)
        for name, (context, held) in rule_context.fleet.items()
        if name != rule_context.tier.name and context.plan and context.plan.model == model
    }
    if not rest:
        sentence = f"No other tier of {model} is watched"
        alone = exact_reading(1.0, 0)
        return rule_context.verdict(Status.OK, Certainty.CERTAIN, alone, alone, sentence)
    if not any(FINISHED in binned.window.counters for binned in rule_context.binned):
        return rule_context.unmeasured(FINISHED)
    pairs = [pair for name, tier in sorted(rest.items()) if (pair := _compare(rule_context, name, tier)) is not None]
    if not pairs:
        names = join_names(sorted(rest))
        text = f"no {SEPARATE} minutes with traffic on both, or no speeds to compare; others of the model: {names}"
        return rule_context.unknown(Gap.TOO_FEW_REQUESTS, text)
    unequal, follow, slow = rule_context.limit("unequal"), rule_context.limit("follow"), rule_context.tier.name
    equal = [pair for pair in pairs if pair.faster >= unequal and pair.has_equal_shares(follow)]
    # The guide recommends to give the tiers requests of different lengths.
    routed = [pair for pair in equal if pair.differs((PROMPTS, OUTPUTS), rule_context.limit("lengths"))]
    unrouted = [pair for pair in equal if pair not in routed]
    pair = max(unrouted or routed[:1] or pairs, key=lambda pair: pair.faster)
    own, value = _read_rates(pair.total)
    sentence = f"Each replica of {slow} gets {own:.3g} rps, of {pair.fast} {value:.3g} rps; {pair.words}"
    status, certain = Status.OK, True
    if unrouted:
        points = [operating_point(plan) for plan in (rule_context.tier.plan, rest[pair.fast][0].plan) if plan]
        have_knees = all(point is not None and point.knee_reached for point in points)
        status, certain = Status.WARNING, have_knees or pair.is_slower(unequal)
    elif routed:
        sentence = f"Requests are given to {pair.fast} and {slow} by their lengths"
    elif pair.faster < unequal:
        sentence = f"No tier of {model} is much faster than {slow}; {pair.words} ({pair.fast})"
    n = sum(total.counters.get(FINISHED, 0.0) for total in pair.total)
    share = exact_reading(own / (own + value) if own + value > 0 else 0.0, n)
    return rule_context.verdict(status, certain_if(certain), share, exact_reading(1 / (1 + pair.faster), n), sentence)


def _compare(rule_context: RuleContext, name: str, tier: TierWindows) -> TierPair | None:
    """Return this tier beside another, None without enough common minutes or a measure of their speeds."""
    their_context, held = tier
    mine, theirs = hold(rule_context.binned).once(_sum_minutes), held.once(_sum_minutes)
    common = [(mine[minute], theirs[minute]) for minute in sorted(mine.keys() & theirs.keys())]
    minutes = tuple(sums for sums in common if any(_read_rates(sums)))[-SEPARATE:]
    if len(minutes) < SEPARATE:
        return None
    total = windows.sum_windows(own for own, _ in minutes), windows.sum_windows(window for _, window in minutes)
    if min(both.counters.get(FINISHED, 0.0) for both in total) < rule_context.limit("minimum_requests"):
        return None
    capacities = (rule_context.tier.capacity, their_context.capacity)
    own, value = (capacity.planned_rps if capacity else None for capacity in capacities)
    planned = f"usable are {own:.3g} and {value:.3g} by the plan" if own and value else ""
    faster, words = (value / own, planned) if own and value else _compare_latencies(total)
    if not words:
        return None
    return TierPair(fast=name, minutes=minutes, total=total, faster=faster, words=words, planned=bool(planned))


def _compare_latencies(total: Sums) -> tuple[float, str]:
    for family, what in LATENCIES.items():
        own, value = (histograms.mean(both.histograms.get(family, ())) for both in total)
        if own and value:
            return own / value, f"{what} take {own:.3g} and {value:.3g} s on average"
    return 1.0, ""


def _read_rates(sums: Sums) -> tuple[float, float]:
    """Return the finished requests per second and replica of the slower and of the faster tier."""
    own, value = (replica_rate(window, FINISHED) or 0.0 for window in sums)
    return own, value


def _sum_minutes(held: HeldWindows) -> dict[float, Window]:
    """Return the sum of each minute in which the tier was seen, by its number."""
    minutes = held.periods(windows.MINUTE_SECONDS).items()
    seen = {number: group.select(_select_seen) for number, group in minutes}
    return {number: group.sum_families(COMPARED) for number, group in seen.items() if group}


def _select_seen(batch: HeldWindows) -> HeldWindows:
    seen = HeldWindows(binned for binned in batch if binned.window.covered_seconds > 0)
    return batch if len(seen) == len(batch) else seen
