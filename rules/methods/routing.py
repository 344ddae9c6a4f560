"""Routing: by prefix to the replica that caches it (guide 7.2), and by capacity to the tiers of one model (guide 9.5).

Broken routing by prefix differs from changed prompts. Every replica loses hits at once, and the fleet's rate falls to
about that of one replica divided by their number. Prompts are as long as before, nothing is evicted, and requests are
spread evenly. Of tiers the finding belongs to the slower one that gets more than its share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from rules.confidence import Certainty, check_uniformity
from rules.methods.evidence import (
    OUTPUTS,
    PROMPTS,
    REPEATED_LOOKUPS,
    capitalize,
    exact_reading,
    join_names,
    sees_repeated_lookups,
    select_where,
    sum_counters_beside,
)
from rules.plan.curve import operating_point
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry import histograms, windows
from rules.telemetry.reading_methods import replica_rate
from rules.telemetry.signals import Gap, Missing
from rules.telemetry.windows import MINUTE_SECONDS, Window
from rules.telemetry.wording import number, spread
from rules.verdicts.context import SEPARATE, RuleContext, read_plan_value
from rules.verdicts.held_windows import HeldWindows, hold
from rules.verdicts.verdict import RuleResult, Status

RULE = "PrefixRoutingBroken"

HIT, QUERIED = "prefix_hit_tokens", "prefix_queried_tokens"
FINISHED, PREEMPTIONS = "requests_finished", "preemptions"


class HitRates(NamedTuple):
    """Last minutes of the warm replicas that prompts asked, their names, and the hit rate (0-1) that they are compared with.

    That is the rate of the minutes `past`, or of the plan. `left`: its share if any replica may get any prefix (guide 7.2).
    """

    minutes: tuple[HeldWindows, ...]
    binned: HeldWindows
    replicas: tuple[str, ...]
    left: float
    reference: float | None
    words: str
    past: tuple[HeldWindows, ...]

    def count_requests(self, binned: Sequence[BinnedWindow]) -> tuple[float, ...]:
        """Return the finished requests of each replica, in the order of the replicas."""
        groups = hold(binned).by_replica
        return tuple(sum_counters_beside(groups.get(name, ()), FINISHED)[0] for name in self.replicas)


def judge_replicas(context: RuleContext) -> RuleResult:
    """Blame the routing if every replica lost prefix hits at once and the rate fell to a single replica's share.

    Certain only if requests are proven to be dealt out in turn now, and were not before.
    """
    if not any(QUERIED in binned.window.counters for binned in context.binned):
        return context.unmeasured(QUERIED)
    total = hold(context.binned).sum_families((QUERIED, FINISHED)).counters
    if not total[QUERIED]:
        gap = Gap.NOT_EXPOSED if total.get(FINISHED) else Gap.NO_TRAFFIC
        return context.unknown(gap, f"no prompt asked the prefix cache{': it is off' if total.get(FINISHED) else ''}")
    if sees_repeated_lookups(context.binned):
        return context.unknown(Gap.CONTRADICTORY, REPEATED_LOOKUPS)
    planned = read_planned_rate(context.tier)
    hits, needed = _measure(context, planned), context.limit("minimum_requests")
    (requests,), rate = sum_counters_beside(hits.binned, FINISHED), hit_rate(hits.binned) or 0.0
    reference = hits.reference
    if requests < needed:
        text = f"{requests:.0f} requests of warm replicas lately, {needed:.0f} are needed"
        return context.unknown(Gap.TOO_FEW_REQUESTS, text)
    floor = -math.inf if reference is None else reference - context.limit("points")
    shown = f"prefix hits are {rate:.0%} over {len(hits.replicas)} replicas"
    compared = shown if reference is None else f"{shown}, {reference:.0%} {hits.words}"
    status, certain, details = Status.OK, True, ("", "")
    if len(hits.replicas) < 2:
        text = f"one replica with a warm cache, {rate:.0%} prefix hits; no routing to break"
    elif not all((hit_rate(minute) or 0.0) <= floor for minute in hits.minutes):
        if (rate if reference is None else reference) <= context.limit("near") / len(hits.replicas) and planned is None:
            # A rate that was always low may have been broken always.
            return context.unknown(Gap.NOT_IN_PLAN, f"{shown}, as before; the plan has no hit rate of one replica")
        text = f"{compared}; not lost{' in each of the last minutes' if rate <= floor else ''}"
    elif reason := _find_other_reason(context, hits, rate, floor):
        text = f"{compared}; {reason}"
    else:
        status, text, counts = Status.WARNING, f"{compared}; every replica lost hits", hits.count_requests(hits.binned)
        details = (
            f"{hits.left:.0%} are left when any replica gets any prompt",
            f"each replica gets {spread(min(counts) / sum(counts), max(counts) / sum(counts), 'ratio')} of the requests",
        )
        # Chance alone seldom makes requests so even: 0 for requests dealt out in turn.
        now, before = (check_uniformity(map(hits.count_requests, part)) for part in (hits.minutes, hits.past))
        certain = bool(hits.past) and now <= context.limit("chance") < before
    expected = Missing(gap=Gap.NOT_IN_PLAN) if reference is None else exact_reading(reference, requests)
    observed, sentence = exact_reading(rate, requests), capitalize(text)
    return context.verdict(status, Certainty.of(certain), observed, expected, sentence, details=details)


def read_planned_rate(context: TierContext) -> tuple[float, str] | None:
    """Return the planned hit rate and its source. The workload comes before the benchmark."""
    planned = read_plan_value(context, "workload.prefix_hit_ratio")
    if planned is not None:
        return planned, "in the plan"
    points = context.curve.points if context.curve else ()
    measured = [point.prefix_hit_ratio for point in points if point.prefix_hit_ratio is not None]
    return (min(measured), "in the benchmark") if measured else None


def hit_rate(binned: Sequence[BinnedWindow]) -> float | None:
    """Return prefix cache hits per queried token (0-1), None if impossible."""
    value, hits = sum_counters_beside(binned, QUERIED, HIT)
    return hits / value if value > 0 and hits <= value else None


def _measure(context: RuleContext, planned: tuple[float, str] | None) -> HitRates:
    """Return the present hit rate, with the better of the best past minutes and the planned rate.

    New and restarted replicas are left out until their caches can be warm: a cold cache is no broken routing.
    """
    held = hold(context.binned)
    newest = sorted(held.periods(MINUTE_SECONDS))[-SEPARATE:]
    warm, _ = held.once(split_by_warmth, context.limit("warm_up_seconds"))
    asking = select_where(warm, lambda binned: binned.window.counters.get(QUERIED, 0.0) > 0)
    minutes = asking.periods(MINUTE_SECONDS).items()
    now = tuple(group for minute, group in minutes if minute in newest)
    before = [
        (group, group.sum_families((FINISHED, QUERIED, HIT))) for minute, group in minutes if minute not in newest
    ]
    best, past = -1.0, before[:0]
    for place in range(max(1, len(before) - SEPARATE + 1)) if before else ():
        part = before[place : place + SEPARATE]
        total = windows.sum_windows(window for _, window in part).counters
        value, hits = total[QUERIED], total.get(HIT, 0.0)
        if total.get(FINISHED, 0.0) >= context.limit("minimum_requests") and best * value < hits <= value:
            best, past = hits / value, part
    reference, words = (best, "before") if best >= 0 else (None, "")
    if planned is not None and planned[0] > best:
        (reference, words), past = planned, before[:0]
    binned = HeldWindows.of_batches(now)
    replicas = tuple(sorted({sample.replica or "" for sample in binned}))
    left = (1.0 if reference is None else reference) / max(1, len(replicas))
    return HitRates(now, binned, replicas, left, reference, words, tuple(group for group, _ in past))


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

    def select(batch: HeldWindows, cold: bool) -> HeldWindows:
        # A batch without a cold replica keeps what was asked of it.
        if not any(start <= batch.ends[1] and batch.start < start + warm_up_seconds for start in cold_from.values()):
            return HeldWindows() if cold else batch
        ages = ((binned, binned.window.start - cold_from.get(binned.replica, math.inf)) for binned in batch)
        return HeldWindows(binned for binned, age in ages if (0 <= age < warm_up_seconds) is cold)

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
    """Return the reason for lost hits other than the routing, "" without any."""
    groups, counts = hits.binned.by_replica, hits.count_requests(hits.binned)
    kept = [name for name in hits.replicas if (hit_rate(groups.get(name, ())) or 0.0) > floor]
    if kept:
        return f"not lost on {join_names(kept)}"
    evictions = sum_counters_beside(hits.binned, PREEMPTIONS)[0] / max(1.0, sum(counts))
    if evictions > context.limit("eviction_rate"):
        return f"{number(evictions, 'ratio')} preemptions a request, the KV cache has no room"
    before = [binned for minute in hits.past for binned in minute]
    then, now = (histograms.mean(hold(binned).sum_parts(PROMPTS)) for binned in (before, hits.binned))
    most = context.limit("length_change")
    if then and now and not 1 / most <= now / then <= most:
        return f"prompts changed, their mean length is {now / then:.2f} times that of before"
    # Caches that hold several prefixes keep more than that, full caches keep less.
    near, left = context.limit("near"), hits.left
    if not left / near <= rate <= left * near:
        return f"routing alone would leave about {left:.0%}, so prompts or caches changed"
    mean, spread = math.fsum(counts) / len(counts), context.limit("spread")
    if not all(mean / spread <= count <= mean * spread for count in counts):
        return "requests are not spread evenly, so prompts changed"
    return ""


LATENCIES = {"tpot_seconds": "output tokens", "ttft_seconds": "first tokens"}
"""Latencies that show the speed of a tier. Waiting does not change the first."""

LENGTHS = (PROMPTS, OUTPUTS)

COMPARED = frozenset({FINISHED, *LENGTHS, *LATENCIES})

Sums = tuple[Window, Window]
"""Sum of the slower tier's windows and of the faster one's, over the same time."""


class TierPair(NamedTuple):
    """Tier beside one that is `faster` times as fast, by `words` or plan, in `minutes` and `total`."""

    fast: str
    minutes: tuple[Sums, ...]
    total: Sums
    faster: float
    words: str
    planned: bool

    def has_equal_shares(self, follow: float) -> bool:
        """Return whether requests are nearer to an equal share than to the capacities."""
        for sums in (*self.minutes, self.total):
            own, value = _read_rates(sums)
            if own <= 0 or value <= 0:
                return False
            followed = math.log(value / own) / math.log(self.faster)
            # Without a plan, a tier that gets far more requests may be slow because of them.
            if followed >= follow or not (self.planned or followed > -follow):
                return False
        return True

    def list_means(self, families: Iterable[str]) -> list[tuple[float, float]]:
        """Return the mean of each family here and there, where both are known."""
        parts = ([total.histograms.get(family, ()) for total in self.total] for family in families)
        means = ((histograms.mean(own), histograms.mean(value)) for own, value in parts)
        return [(own, value) for own, value in means if own and value]

    def is_slower(self, unequal: float) -> bool:
        """Return whether the median here is slower by the factor `unequal`, by the edges of its bucket."""
        for family in LATENCIES:
            mine, theirs = (histograms.quantile(total.histograms.get(family, ()), 0.5) for total in self.total)
            if mine and theirs and theirs.high is not None and (mine.low or 0.0) >= unequal * theirs.high:
                return True
        return False


def judge_tiers(context: RuleContext) -> RuleResult:
    """Find a faster tier of the same model that gets hardly more requests per replica than this one.

    Speeds are the plans' usable rates, else mean latencies.
    """
    slow, model = context.tier.name, read_plan_value(context.tier, "model")
    if model is None:
        return context.unknown(Gap.NOT_IN_PLAN, "the plan does not say which model this tier serves")
    names = [name for name, (tier, _) in sorted(context.fleet.items()) if read_plan_value(tier, "model") == model]
    rest = [name for name in names if name != slow]
    if not rest:
        sentence, alone = f"No other tier of {model} is watched", exact_reading(1.0, 0)
        return context.verdict(Status.OK, Certainty.CERTAIN, alone, alone, sentence)
    if not any(FINISHED in binned.window.counters for binned in context.binned):
        return context.unmeasured(FINISHED)
    pairs = [pair for name in rest if (pair := _compare(context, name))]
    if not pairs:
        text = f"no {SEPARATE} minutes with traffic on both, or no speeds to compare; others of the model: {join_names(rest)}"
        return context.unknown(Gap.TOO_FEW_REQUESTS, text)
    unequal, most = context.limit("unequal"), context.limit("lengths")
    equal = [pair for pair in pairs if pair.faster >= unequal and pair.has_equal_shares(context.limit("follow"))]
    # The guide recommends to give the tiers requests of different lengths.
    unrouted = [
        pair for pair in equal if all(1 / most <= own / value <= most for own, value in pair.list_means(LENGTHS))
    ]
    pair = max(unrouted or equal[:1] or pairs, key=attrgetter("faster"))
    own, value = _read_rates(pair.total)
    sentence = f"Each replica of {slow} gets {own:.3g} rps, of {pair.fast} {value:.3g} rps; {pair.words}"
    status, certain = Status.OK, True
    if unrouted:
        plans = (context.tier.plan, context.fleet[pair.fast][0].plan)
        points = [operating_point(plan) for plan in plans if plan]
        have_knees = all(point is not None and point.knee_reached for point in points)
        status, certain = Status.WARNING, have_knees or pair.is_slower(unequal)
    elif equal:
        sentence = f"Requests are given to {pair.fast} and {slow} by their lengths"
    elif pair.faster < unequal:
        sentence = f"No tier of {model} is much faster than {slow}; {pair.words} ({pair.fast})"
    n = sum(total.counters.get(FINISHED, 0.0) for total in pair.total)
    share = exact_reading(own / (own + value) if own + value > 0 else 0.0, n)
    return context.verdict(status, Certainty.of(certain), share, exact_reading(1 / (1 + pair.faster), n), sentence)


def _compare(context: RuleContext, name: str) -> TierPair | None:
    """Return this tier beside another, None without common minutes or speeds."""
    tier, held = context.fleet[name]
    mine, theirs = hold(context.binned).once(_sum_minutes), held.once(_sum_minutes)
    common = [(mine[minute], theirs[minute]) for minute in sorted(mine.keys() & theirs.keys())]
    minutes = tuple(sums for sums in common if any(_read_rates(sums)))[-SEPARATE:]
    if len(minutes) < SEPARATE:
        return None
    total = windows.sum_windows(own for own, _ in minutes), windows.sum_windows(window for _, window in minutes)
    if min(both.counters.get(FINISHED, 0.0) for both in total) < context.limit("minimum_requests"):
        return None
    own, value = (capacity.planned_rps if capacity else None for capacity in (context.tier.capacity, tier.capacity))
    if own and value:
        words = f"usable are {own:.3g} and {value:.3g} by the plan"
        return TierPair(name, minutes, total, value / own, words, planned=True)
    pair = TierPair(name, minutes, total, 1.0, "", planned=False)
    for family, what in LATENCIES.items():
        for here, there in pair.list_means((family,)):
            return pair._replace(faster=here / there, words=f"{what} take {here:.3g} and {there:.3g} s on average")
    return None


def _read_rates(sums: Sums) -> tuple[float, float]:
    """Return the finished requests per second and replica of the slower and of the faster tier."""
    own, value = (replica_rate(window, FINISHED) or 0.0 for window in sums)
    return own, value


def _sum_minutes(held: HeldWindows) -> dict[float, Window]:
    """Return the sum of each minute in which the tier was seen, by its number."""
    minutes = held.periods(windows.MINUTE_SECONDS).items()
    seen = {number: select_where(group, lambda binned: binned.window.covered_seconds > 0) for number, group in minutes}
    return {number: group.sum_families(COMPARED) for number, group in seen.items() if group}
