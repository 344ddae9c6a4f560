"""Pools of a tier: their ratio against the ratio that the traffic needs (guide 6.5), and the replicas inside each.

The plan has the rate of a replica of each pool. Windows of the two pools are never added. Inside a pool one replica may
be a hot spot of the routing (guide 7.3), a straggler, or have a full data-parallel rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from rules.confidence import CONFIDENCE, Certainty, binomial_tail
from rules.methods.evidence import OUTPUTS, PROMPTS, certain_if, exact_reading, range_reading, select_pool
from rules.methods.prefix_routing import split_by_warmth
from rules.plan.capacity import POOL_TOKENS
from rules.plan.load_bins import QUEUE, BinnedWindow, mean_waiting
from rules.plan.schema import Disaggregation
from rules.telemetry import histograms, windows
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Gap
from rules.telemetry.wording import number
from rules.verdicts.context import SEPARATE, RuleContext, is_persistent
from rules.verdicts.held_windows import HeldWindows, hold
from rules.verdicts.verdict import RuleResult, Status

PREFILL, DECODE = POOL_TOKENS
PROMPT, GENERATED = POOL_TOKENS.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRatio:
    """Observed replicas of each pool, tokens per second of the whole pool, and the replicas that these rates need."""

    prefill: int
    decode: int
    prompt_rate: float
    generation_rate: float
    wants_prefill: float
    wants_decode: float

    @property
    def present(self) -> float:
        return self.prefill / self.decode

    @property
    def wanted_ratio(self) -> float:
        """Return the guide's P:D ratio: (prompt tokens/s / prefill rate) / (output tokens/s / decode rate)."""
        return self.wants_prefill / self.wants_decode

    @property
    def best_split(self) -> tuple[int, int]:
        """Return the split of the same replicas with the lowest load of the busier pool. Each pool keeps a replica."""
        whole = self.prefill + self.decode
        splits = [(prefill, whole - prefill) for prefill in range(1, whole)]

        def rank(split: tuple[int, int]) -> tuple[float, bool]:
            load = max(self.wants_prefill / split[0], self.wants_decode / split[1])
            return load, split != (self.prefill, self.decode)

        return min(splits, key=rank)

    @property
    def short(self) -> tuple[str, float]:
        """Return the pool that is short, and its needed replicas per present one."""
        if self.wanted_ratio > self.present:
            return PREFILL, self.wants_prefill / self.prefill
        return DECODE, self.wants_decode / self.decode

    def is_off(self, factor: float, busy: float) -> bool:
        """Return whether the ratio is off by more than `factor`, another split is better, and the short pool is busy."""
        apart = max(self.wanted_ratio / self.present, self.present / self.wanted_ratio)
        return apart > factor and self.best_split != (self.prefill, self.decode) and self.short[1] >= busy


def judge_pools(case: RuleContext) -> RuleResult:
    """Compare the ratio of prefill to decode replicas with the ratio that the tokens need (guide 6.5)."""
    planned = case.context.plan.disaggregation if case.context.plan else None
    if planned is None:
        return case.unknown(Gap.NOT_IN_PLAN, "the plan has no disaggregation")
    if not case.binned:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    for pool, family in ((PREFILL, PROMPT), (DECODE, GENERATED)):
        if pool not in case.context.pools.values():
            return case.unknown(Gap.NOT_EXPOSED, f"no target is configured with `pool: {pool}`; engines do not say it")
        seen = windows.sum_windows(one.window for one in select_pool(case, case.binned, pool))
        if family not in seen.counters:
            return case.unknown(seen.explain_missing(family), f"{family} of the {pool} pool were not measured")
    found = _measure(case, case.binned, planned)
    if found is None:
        return case.unknown(Gap.NO_TRAFFIC, "no tokens in one of the pools")
    factor, busy = case.limit("factor"), case.limit("busy")
    last = _measure(case, case.last_quarter(case.binned), planned)
    if last is None:
        return case.unknown(Gap.NO_TRAFFIC, "no tokens in one of the pools in the last quarter of the time")
    each = [_measure(case, group, planned) for group in case.periods(case.binned)]
    firing = found.is_off(factor, busy) and is_persistent(last, each, lambda pools: pools.is_off(factor, busy))
    replicas = last.prefill + last.decode
    observed, expected = exact_reading(last.present, replicas), exact_reading(found.wanted_ratio, replicas)
    status = Status.WARNING if firing else Status.OK
    pool, share = last.short
    present = f"{last.prefill} prefill and {last.decode} decode replicas"
    sentence = f"{present} (P:D {last.present:.2g}); the traffic wants P:D {last.wanted_ratio:.2g}"
    if firing:
        prefill, decode = last.best_split
        sentence = f"The {pool} pool is short, {share:.0%} of it is used; {prefill} and {decode} replicas would fit"
    details = (
        f"{present}, P:D {last.present:.2g}, the traffic wants {last.wanted_ratio:.2g}",
        f"prompts {number(last.prompt_rate, 'tokens_per_second')}",
        f"output {number(last.generation_rate, 'tokens_per_second')}",
        _short_prompts(case),
    )
    return case.verdict(status, Certainty.CERTAIN, observed, expected, sentence, details=details)


def _short_prompts(case: RuleContext) -> str:
    """Return that these prompts are too short to disaggregate (guide 6.5), or ""."""
    whole = windows.sum_families(
        (one.window for one in select_pool(case, case.binned, PREFILL)), ("requests_finished", PROMPT)
    )
    finished, limit = whole.counters.get("requests_finished", 0.0), case.limit("short_prompt")
    mean = whole.counters.get(PROMPT, 0.0) / finished if finished > 0 else limit
    return f"do not disaggregate: prompts have {mean:.0f} tokens, fewer than {limit:.0f}" if mean < limit else ""


def _measure(case: RuleContext, binned: Sequence[BinnedWindow], planned: Disaggregation) -> PoolRatio | None:
    """Return the ratio, or None if a pool was not observed or had no tokens."""
    (prefill, prompt), (decode, generation) = (
        _measure_pool(select_pool(case, binned, pool), family)
        for pool, family in ((PREFILL, PROMPT), (DECODE, GENERATED))
    )
    if not prompt or not generation:
        return None
    return PoolRatio(
        prefill=prefill,
        decode=decode,
        prompt_rate=prompt,
        generation_rate=generation,
        wants_prefill=prompt / planned.prefill_tokens_per_second,
        wants_decode=generation / planned.decode_tokens_per_second,
    )


def _measure_pool(binned: Sequence[BinnedWindow], family: str) -> tuple[int, float]:
    """Return the observed replicas of a pool, and its tokens per second: those per replica-second x replicas."""
    replicas = len({one.replica for one in binned if one.window.covered_seconds > 0})
    seconds = sum(one.window.seconds_of(family) for one in binned if family in one.window.counters)
    tokens = sum(one.window.counters.get(family, 0.0) for one in binned)
    return replicas, tokens / seconds * replicas if seconds > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMinute:
    """Minute of one replica: completed requests per second, requests in the system and of them waiting, mean seconds per
    token, and KV utilisation, mean and of the fullest data-parallel rank (0-1). None: not known. `lengths` are histograms."""

    replica: str
    rps: float | None
    load: float | None
    waiting: float | None
    token_seconds: float | None
    kv: float | None
    fullest: float | None
    lengths: Mapping[str, tuple[Histogram, ...]]

    @property
    def prompt(self) -> float | None:
        """Return the mean prompt length. Few minutes have a replica that it may excuse."""
        return histograms.mean(self.lengths.get(PROMPTS, ()))

    @property
    def output(self) -> float | None:
        """Return the mean output length."""
        return histograms.mean(self.lengths.get(OUTPUTS, ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaComparison:
    """Number of one replica and of its neighbours in a minute, and whether the replica stands out by it."""

    own: float
    others: float
    stands_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OddReplica:
    """Replica with its comparisons by one pattern, oldest first."""

    replica: str
    pattern: str
    minutes: tuple[ReplicaComparison, ...]

    @property
    def shown(self) -> int:
        return sum(1 for one in self.minutes if one.stands_out)

    @property
    def is_lasting(self) -> bool:
        """Return whether it stands out in several minutes, in most of them, and in most of the last quarter."""
        last = self.minutes[-max(1, len(self.minutes) // 4) :]
        lately = sum(1 for one in last if one.stands_out)
        return self.shown >= SEPARATE and self.shown > len(self.minutes) / 2 and lately > len(last) / 2

    @property
    def is_proven(self) -> bool:
        """Return whether so many minutes are beyond chance: the sign test, each side equally likely."""
        return binomial_tail(self.shown, len(self.minutes), 0.5) < 1 - CONFIDENCE

    @property
    def means(self) -> tuple[float, float]:
        """Return the mean number here and on the neighbours, over the minutes in which it stands out."""
        told = [one for one in self.minutes if one.stands_out]
        return math.fsum(one.own for one in told) / len(told), math.fsum(one.others for one in told) / len(told)

    def __str__(self) -> str:
        _, unit, words = PATTERNS[self.pattern]
        own, others = (number(value, unit) for value in self.means)
        return f"{self.replica} {words.format(own, others)}"


def judge_imbalance(case: RuleContext) -> RuleResult:
    """Find a replica that is far busier or slower than the others of its pool, or a full rank inside a replica.

    A new replica is left out while its cache may be cold. Fewer than SEPARATE common minutes are no comparison.
    """
    if not case.binned:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    warm = hold(case.binned).once(split_by_warmth, case.limit("warm_up_seconds"))[0]
    minutes = [group for group in warm.periods(windows.MINUTE_SECONDS).values() if any(group.by_batch(_is_comparable))]
    grouped = [several for group in minutes for several in _read_minute(case, group)]
    found: dict[tuple[str, str], list[ReplicaComparison]] = {}
    for several in grouped:
        for pattern, (compare, _, _) in PATTERNS.items():
            for name, compared in compare(case, several):
                found.setdefault((pattern, name), []).append(compared)
    rows = [OddReplica(replica=name, pattern=kind, minutes=tuple(several)) for (kind, name), several in found.items()]
    n = len({one.replica for one in warm})
    odd = [one for one in rows if one.is_lasting]
    if odd:
        return _describe_odd(case, odd, n)
    if n < 2:
        sentence = "Fewer than two warm replicas: nothing to compare"
    elif max((len(one.minutes) for one in rows), default=0) >= SEPARATE:
        sentence = f"No replica stands out among {n}"
    elif all(one.in_system is None for one in warm):
        return case.unmeasured("requests_running")
    else:
        return case.unknown(Gap.TOO_FEW_REQUESTS, f"fewer than {SEPARATE} minutes in which replicas can be compared")
    same, fine = exact_reading(1.0, n), range_reading(0.0, case.limit("busier"), n)
    return case.verdict(Status.OK, Certainty.CERTAIN, same, fine, sentence)


def _describe_odd(case: RuleContext, odd: Sequence[OddReplica], n: float) -> RuleResult:
    worst = max(odd, key=lambda one: (one.is_proven, one.shown / len(one.minutes), one.replica))
    own, others = worst.means
    limit = case.limit("slower" if worst.pattern == "straggler" else "busier")
    observed = exact_reading(own / others if others > 0 else None, n)
    details = (
        f"{worst.pattern}: in {worst.shown} of {len(worst.minutes)} minutes",
        *(str(one) for one in odd if one is not worst),
    )
    sure = certain_if(worst.is_proven)
    return case.verdict(Status.WARNING, sure, observed, range_reading(0.0, limit, n), str(worst), details=details)


def _is_comparable(batch: HeldWindows) -> bool:
    """Return whether any window has what replicas are compared by: old minutes of a large tier have not."""
    return any(one.window.gauges or "tpot_seconds" in one.window.histograms for one in batch)


def _read_minute(case: RuleContext, minute: HeldWindows) -> Iterable[list[ReplicaMinute]]:
    """Return the replicas of a minute, by pool."""
    replicas = chain.from_iterable(minute.by_batch(_read_batch, case.limit("minimum_requests")))
    return windows.group_by(replicas, lambda one: case.context.pools.get(one.replica, "")).values()


def _read_batch(batch: HeldWindows, fewest: float) -> tuple[ReplicaMinute, ...]:
    return tuple(_read_replica(one, fewest) for one in batch)


def _read_replica(one: BinnedWindow, fewest: float) -> ReplicaMinute:
    kv, fullest = (one.window.gauge(family) for family in ("kv_utilization", "kv_utilization_max"))
    times = one.window.histograms.get("tpot_seconds", ())
    return ReplicaMinute(
        replica=one.replica or "",
        rps=one.rps,
        load=one.in_system,
        waiting=mean_waiting([one]),
        token_seconds=histograms.mean(times) if math.fsum(part.n for part in times) >= fewest else None,
        kv=kv.mean if kv else None,
        fullest=fullest.mean if fullest else None,
        lengths=one.window.histograms,
    )


Comparisons = Iterator[tuple[str, ReplicaComparison]]
Read = Callable[[ReplicaMinute], float | None]


def _compare_loads(case: RuleContext, several: Sequence[ReplicaMinute]) -> Comparisons:
    """Yield requests in the system. A replica stands out if requests wait on it while its neighbours have room.

    It must also get more work: a replica that holds more and finishes less is slow, not busy.
    """
    queues = {one.replica: own >= QUEUE > usual for one, own, usual in _beside_median(several, lambda one: one.waiting)}
    busier: frozenset[str] = frozenset()
    if any(queues.values()):
        longer = _find_above(several, case.limit("alike"), lambda one: one.prompt, lambda one: one.output)
        busier = longer | _find_above(several, 1.0, lambda one: one.rps)
    for one, load, usual in _beside_median(several, lambda one: one.load):
        if one.replica in queues:
            is_hot = queues[one.replica] and one.replica in busier and load >= case.limit("busier") * usual
            yield one.replica, ReplicaComparison(own=load, others=usual, stands_out=is_hot)


def _compare_speeds(case: RuleContext, several: Sequence[ReplicaMinute]) -> Comparisons:
    """Yield seconds per token. A replica stands out if neither more nor longer requests explain it."""
    reads = (lambda one: one.rps, lambda one: one.prompt, lambda one: one.output)
    slower = case.limit("slower")
    explained: frozenset[str] | None = None
    for one, own, usual in _beside_median(several, lambda one: one.token_seconds):
        is_slow = own >= slower * usual and one.rps is not None
        if is_slow:
            if explained is None:
                explained = _find_above(several, case.limit("alike"), *reads)
            is_slow = one.replica not in explained
        yield one.replica, ReplicaComparison(own=own, others=usual, stands_out=is_slow)


def _find_above(several: Sequence[ReplicaMinute], factor: float, *reads: Read) -> frozenset[str]:
    """Return the replicas of which any number is above `factor` times the median of the others."""
    compared = (row for read in reads for row in _beside_median(several, read))
    return frozenset(one.replica for one, own, usual in compared if own > factor * usual)


def _compare_ranks(case: RuleContext, several: Sequence[ReplicaMinute]) -> Comparisons:
    """Yield the fullest KV cache of a replica's data-parallel ranks, against their mean."""
    for one in several:
        if one.fullest is not None and one.kv is not None:
            is_full = one.fullest >= max(case.limit("full"), case.limit("busier") * one.kv)
            yield one.replica, ReplicaComparison(own=one.fullest, others=one.kv, stands_out=is_full)


def _beside_median(several: Sequence[ReplicaMinute], read: Read) -> Iterator[tuple[ReplicaMinute, float, float]]:
    """Yield each replica that has a number, with the number and the median of the others."""
    known = sorted(((value, place) for place, one in enumerate(several) if (value := read(one)) is not None))
    values = [value for value, _ in known]
    for rank, (value, place) in enumerate(known):
        if len(values) > 1:
            middle, odd = divmod(len(values) - 1, 2)
            low, high = (middle, middle) if odd else (middle - 1, middle)
            yield several[place], value, sum(values[at + (at >= rank)] for at in (low, high)) / 2


_BUSY = "holds {} requests, its neighbours {}; some wait there while others have room"
_SLOW = "takes {} a token, its neighbours {}; with no more and no longer requests"
_FULL = "has a rank with its KV cache {} full, {} on average; the other ranks have room"

PATTERNS: Mapping[str, tuple[Callable[[RuleContext, Sequence[ReplicaMinute]], Comparisons], str, str]] = {
    "hot spot": (_compare_loads, "", _BUSY),
    "straggler": (_compare_speeds, "seconds", _SLOW),
    "full rank": (_compare_ranks, "ratio", _FULL),
}
"""How a replica may stand out in a minute: the comparison that shows it, its unit and its words."""
