"""Pools of a tier: their ratio against the ratio that the traffic needs (guide 6.5), and the replicas inside each.

The plan has a replica's rate by pool. Windows of two pools are never added. Inside a pool a replica may stand out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple

from rules.confidence import CONFIDENCE, Certainty, binomial_tail
from rules.methods.evidence import OUTPUTS, PROMPTS, exact_reading, measure_parts, range_reading, select_pool
from rules.methods.routing import split_by_warmth
from rules.plan.capacity import POOL_TOKENS
from rules.plan.load_bins import QUEUE, BinnedWindow, mean_waiting
from rules.plan.schema import Disaggregation
from rules.telemetry import histograms, windows
from rules.telemetry.reading_methods import replica_rate
from rules.telemetry.signals import Gap
from rules.telemetry.wording import number
from rules.verdicts.context import LIKELY_CONFIDENCE, SEPARATE, RuleContext, is_persistent
from rules.verdicts.held_windows import HeldWindows, hold
from rules.verdicts.verdict import RuleResult, Status

PREFILL, DECODE = POOL_TOKENS
PROMPT = POOL_TOKENS[PREFILL]

Numbers = Mapping[str, float]
"""Numbers of a replica in a minute: rates per second, seconds per token, tokens a request, shares of the KV cache (0-1)."""

ComparedMinute = tuple[float, float, bool, Sequence[str]]
"""A replica's number, its neighbours', whether it stands out, and which WORK may be why (half of `alike` more)."""

WORK = ("rps", "arrived", "made", "prompt", "output")


class PoolRatio(NamedTuple):
    """Observed replicas of both pools (prefill, decode), the guide's P:D ratio of them, and of those that tokens need.
    `fitting`: the split of the same replicas with the lowest load of the busier pool. `use`: that of the `short` pool."""

    present: tuple[int, int]
    ratio: float
    wanted: float
    fitting: tuple[int, int]
    short: str
    use: float


def judge_pools(context: RuleContext) -> RuleResult:
    """Compare the ratio of prefill to decode replicas with the need (guide 6.5)."""
    planned = context.tier.plan.disaggregation if context.tier.plan else None
    if planned is None:
        return context.unknown(Gap.NOT_IN_PLAN, "the plan has no disaggregation")
    for pool, family in POOL_TOKENS.items():
        if pool not in context.tier.pools.values():
            text = f"no target is configured with `pool: {pool}`; engines do not say it"
            return context.unknown(Gap.NOT_EXPOSED, text)
        seen = windows.sum_windows(binned.window for binned in select_pool(context, context.binned, pool))
        if family not in seen.counters:
            return context.unknown(seen.explain_missing(family), f"{family} of the {pool} pool were not measured")
    whole = _measure(context, planned, context.binned)
    last, each = measure_parts(context, partial(_measure, context, planned))
    if whole is None or last is None:
        lately = "" if whole is None else " in the last quarter of the time"
        return context.unknown(Gap.NO_TRAFFIC, f"no tokens in one of the pools{lately}")

    def is_off(pools: PoolRatio) -> bool:
        apart = max(pools.wanted / pools.ratio, pools.ratio / pools.wanted)
        is_apart = apart > context.limit("factor") and pools.fitting != pools.present
        return is_apart and pools.use >= context.limit("busy")

    counts = " and ".join(f"{count} {pool}" for pool, count in zip(POOL_TOKENS, last.present, strict=True))
    sentence = f"{counts} replicas (P:D {last.ratio:.2g}); the traffic wants P:D {last.wanted:.2g}"
    prefill_windows = (binned.window for binned in select_pool(context, context.binned, PREFILL))
    counters = windows.sum_families(prefill_windows, ("requests_finished", PROMPT)).counters
    finished, shortest = counters.get("requests_finished", 0.0), context.limit("short_prompt")
    status, details = Status.OK, ["", ""]
    if finished > 0 and (mean := counters.get(PROMPT, 0.0) / finished) < shortest:
        details[1] = f"do not disaggregate: prompts have {mean:.0f} tokens, fewer than {shortest:.0f}"
    if is_off(whole) and is_persistent(last, each, is_off):
        (prefill, decode), details[0] = last.fitting, sentence
        used = f"The {last.short} pool is short, {last.use:.0%} of it is used"
        sentence = f"{used}; {prefill} and {decode} replicas would fit"
        status = Status.WARNING
    observed, expected = (exact_reading(ratio, sum(last.present)) for ratio in (last.ratio, whole.wanted))
    return context.verdict(status, Certainty.CERTAIN, observed, expected, sentence, details=details)


def _measure(context: RuleContext, planned: Disaggregation, binned: Sequence[BinnedWindow]) -> PoolRatio | None:
    """Return the ratio of the observed replicas and tokens, None without a pool."""
    present, needs = [], []
    for pool, family in POOL_TOKENS.items():
        of_pool = select_pool(context, binned, pool)
        counting = [sample.window for sample in of_pool if family in sample.window.counters]
        seconds, tokens = (sum(w.seconds_of(family) for w in counting), sum(w.counters[family] for w in counting))
        present.append(len({sample.replica for sample in of_pool if sample.window.covered_seconds > 0}))
        usual = getattr(planned, f"{pool}_tokens_per_second")
        needs.append(tokens / seconds * present[-1] / usual if seconds > 0 else 0.0)
    if not all(needs):
        return None
    now, total = (present[0], present[1]), sum(present)
    splits = [now, *((prefill, total - prefill) for prefill in range(1, total))]
    fitting = min(splits, key=lambda split: max(needs[0] / split[0], needs[1] / split[1]))
    ratio, wanted = present[0] / present[1], needs[0] / needs[1]
    place, short = (0, PREFILL) if wanted > ratio else (1, DECODE)
    return PoolRatio(now, ratio, wanted, fitting, short, needs[place] / now[place])


class OddReplica(NamedTuple):
    """Replica that stands out: beyond chance, in which share of its minutes, by what factor."""

    is_proven: bool
    share: float
    replica: str
    pattern: str
    times: float | None
    minutes: str
    text: str


def judge_imbalance(context: RuleContext) -> RuleResult:
    """Find a replica that is far busier or slower than the others of its pool, or a full rank inside a replica.

    Each minute is compared with the median of the others. Certain if so many minutes are no chance (sign test).
    """
    warm = hold(context.binned).once(split_by_warmth, context.limit("warm_up_seconds"))[0]
    compared: dict[tuple[str, str], list[ComparedMinute]] = {}
    for group in warm.periods(windows.MINUTE_SECONDS).values():
        numbers = chain.from_iterable(group.by_batch(_read_numbers, context.limit("minimum_requests")))
        for pool in windows.group_by(numbers, lambda pair: context.tier.pools.get(pair[0], "")).values():
            for pattern, replica, minute in _compare_replicas(context, dict(pool)):
                compared.setdefault((pattern, replica), []).append(minute)
    n = len({binned.replica for binned in warm if binned.window.covered_seconds > 0})
    odd = [row for key, minutes in compared.items() if (row := _find_odd(*key, minutes))]
    if odd:
        worst = max(odd)
        expected = range_reading(0.0, context.limit("slower" if worst.pattern == "straggler" else "busier"), n)
        details = (worst.minutes, *(row.text for row in odd if row is not worst))
        observed, sure = exact_reading(worst.times, n), Certainty.of(worst.is_proven)
        verdict = context.verdict(Status.WARNING, sure, observed, expected, worst.text, details=details)
        actions = sorted(verdict.actions, key=lambda text: not worst.pattern.startswith(text.lower().partition(":")[0]))
        return replace(verdict, actions=tuple(actions))
    if n < 2:
        sentence = "Fewer than two warm replicas: nothing to compare"
    elif max(map(len, compared.values()), default=0) >= SEPARATE:
        sentence = f"None of {n} replicas queues, is slow or takes nearly all work alone"
    elif all(binned.in_system is None for binned in warm):
        return context.unmeasured("requests_running")
    else:
        return context.unknown(Gap.TOO_FEW_REQUESTS, f"fewer than {SEPARATE} minutes in which replicas can be compared")
    observed, expected = exact_reading(1.0, n), range_reading(0.0, context.limit("busier"), n)
    return context.verdict(Status.OK, Certainty.CERTAIN, observed, expected, sentence)


def _find_odd(pattern: str, replica: str, minutes: Sequence[ComparedMinute]) -> OddReplica | None:
    """Return a replica that stands out in several minutes, in most of them and of the last quarter, else None. Each side
    is equally likely by chance. More work in more minutes than chance allows is no proof."""
    shown = [(own, usual) for own, usual, is_odd, _ in minutes if is_odd]
    last = [is_odd for _, _, is_odd, _ in minutes[-max(1, len(minutes) // 4) :]]
    if len(shown) < max(SEPARATE, len(minutes) // 2 + 1) or sum(last) <= len(last) / 2:
        return None
    own, usual = (math.fsum(column) / len(shown) for column in zip(*shown, strict=True))
    unit, words = PATTERNS[pattern]
    text = f"{replica} {words.format(number(own, unit), number(usual, unit))}"
    is_proven = binomial_tail(len(shown), len(minutes), 0.5) < 1 - CONFIDENCE
    most = max(sum(name in more for *_, more in minutes) for name in WORK)
    if most and binomial_tail(most, len(shown), 0.5) < 1 - LIKELY_CONFIDENCE:
        is_proven, text = False, text.replace("no more and no longer", "hardly more or longer")
    count = f"{pattern}: in {len(shown)} of {len(minutes)} minutes"
    times = own / usual if usual > 0 else None
    return OddReplica(is_proven, len(shown) / len(minutes), replica, pattern, times, count, text)


def _read_numbers(batch: HeldWindows, fewest: float) -> tuple[tuple[str, Numbers], ...]:
    rows = []
    for binned in batch:
        parts, gauges = binned.window.histograms, map(binned.window.gauge, ("kv_utilization", "kv_utilization_max"))
        kv, fullest = (None if gauge is None else gauge.mean for gauge in gauges)
        times = parts.get("tpot_seconds", ())
        numbers = {
            "rps": binned.rps,
            "arrived": math.fsum(filter(None, (binned.rps, replica_rate(binned.window, windows.NET_CHANGE)))),
            "made": replica_rate(binned.window, "generation_tokens"),
            "load": binned.in_system,
            "waiting": mean_waiting([binned]),
            "token": histograms.mean(times) if histograms.count_requests(times) >= fewest else None,
            "prompt": histograms.mean(parts.get(PROMPTS, ())),
            "output": histograms.mean(parts.get(OUTPUTS, ())),
            "kv": kv,
            "fullest": fullest,
        }
        rows.append((binned.replica or "", {name: value for name, value in numbers.items() if value is not None}))
    return tuple(rows)


def _compare_replicas(context: RuleContext, rows: Mapping[str, Numbers]) -> Iterator[tuple[str, str, ComparedMinute]]:
    """Yield pattern and replica with its minute."""

    def find_above(factor: float, *names: str) -> set[str]:
        pairs = (item for name in names for item in _beside_median(rows, name).items())
        return {replica for replica, (own, usual) in pairs if own > factor * usual}

    def compare_work(replica: str, own: float, usual: float, is_odd: bool) -> ComparedMinute:
        return own, usual, is_odd, [name for name in WORK if is_odd and replica in find_above((1 + alike) / 2, name)]

    # Requests wait there while neighbours have room: more work came, or the replica is held up.
    queues = {replica: own >= QUEUE > usual for replica, (own, usual) in _beside_median(rows, "waiting").items()}
    alike, busier, slower = map(context.limit, ("alike", "busier", "slower"))
    given: set[str] = set()
    if any(queues.values()):
        given = find_above(alike, "prompt", "output", "arrived", "made") | find_above(1.0, "rps")
    loads = _beside_median(rows, "load")
    most = max(2 * QUEUE, context.limit("alone") * math.fsum(load for load, _ in loads.values()))
    most_rps = context.limit("alone") * math.fsum(numbers.get("rps", 0.0) for numbers in rows.values())
    for replica, (load, usual) in loads.items():
        rps = rows[replica].get("rps", 0.0)
        is_counted = load + windows.MINUTE_SECONDS * rps >= context.limit("minimum_requests")
        yield "lone replica", replica, (load, usual, is_counted and load >= most and rps >= most_rps, ())
        if replica in queues:
            is_full = queues[replica] and load >= busier * usual
            yield "hot spot", replica, (load, usual, is_full and replica in given, ())
            yield "straggler's queue", replica, compare_work(replica, load, usual, is_full and replica not in given)
    # Neither more nor longer requests explain a slow replica.
    times = _beside_median(rows, "token")
    slow = {replica for replica, (own, usual) in times.items() if own >= slower * usual and "rps" in rows[replica]}
    slow -= find_above(alike, "rps", "prompt", "output") if slow else set()
    for replica, (own, usual) in times.items():
        yield "straggler", replica, compare_work(replica, own, usual, replica in slow)
    for replica, numbers in rows.items():
        if "fullest" in numbers and "kv" in numbers:
            full, mean = numbers["fullest"], numbers["kv"]
            yield "full rank", replica, (full, mean, full >= max(context.limit("full"), busier * mean), ())


def _beside_median(rows: Mapping[str, Numbers], name: str) -> dict[str, tuple[float, float]]:
    """Return for each replica that has a number the number and the median of the others."""
    known = sorted((numbers[name], replica) for replica, numbers in rows.items() if name in numbers)
    values = [value for value, _ in known]
    if len(values) < 2:
        return {}
    middle, is_odd = divmod(len(values) - 1, 2)
    places = (middle, middle) if is_odd else (middle - 1, middle)
    return {
        replica: (value, sum(values[place + (place >= rank)] for place in places) / 2)
        for rank, (value, replica) in enumerate(known)
    }


PATTERNS: Mapping[str, tuple[str, str]] = {
    "hot spot": ("", "holds {} requests, its neighbours {}; some wait there while others have room"),
    "lone replica": ("", "holds {} requests, its neighbours {}; the router gives them hardly any"),
    "straggler's queue": ("", "holds {} requests, its neighbours {}; some wait there, with no more and no longer ones"),
    "straggler": ("seconds", "takes {} a token, its neighbours {}; with no more and no longer requests"),
    "full rank": ("ratio", "has a rank with its KV cache {} full, {} on average; the other ranks have room"),
}
"""How a replica may stand out in a minute: unit and words."""
