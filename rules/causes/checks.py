"""Checks of causes that make a tier slower than its benchmark, or short of KV cache.

A cause is supported, excluded with the number that excludes it, or not known for lack of data.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from rules.catalogue.registry import BY_NAME as CATALOGUE
from rules.causes.context import (
    FROM_ARRIVAL,
    MOST_LATE,
    USERS,
    CauseContext,
    CauseResult,
)
from rules.confidence import Certainty
from rules.methods import prefix_routing
from rules.methods.load import offered_load
from rules.plan.capacity import benchmarked_mean
from rules.plan.curve import CERTAIN_REQUESTS
from rules.telemetry import histograms, windows
from rules.telemetry.reading_methods import lookup_share, mean_level, ratio, replica_rate
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading
from rules.telemetry.windows import Window
from rules.telemetry.wording import number
from rules.telemetry.work import mean_length
from rules.verdicts.context import RuleContext
from rules.verdicts.held_windows import hold
from rules.verdicts.verdict import Status, Unknown

LONGER = 1.2
"""Factor above planned lengths that is evidence. Bucket edges of 1-2-5 grids allow no finer distinction."""

NOTICEABLE = 0.05
"""Share of requests or time below which a cause is excluded (the guide's 5 % for evictions)."""

ENOUGH_REQUESTS = 20.0
"""Minimum number of requests of a mean."""

LOST = 2 * NOTICEABLE
"""Loss of prefix hits (0-1) that is larger than changes between minutes."""

NOTHING_THERE = frozenset({Gap.NOT_EXPOSED, Gap.NO_TRAFFIC})
"""Reasons for a missing family that mean that the engine does not do what the family counts."""

EVICTIONS = ("preemptions", "requests_finished")
HIT_RATE = ("prefix_hit_tokens", "prefix_queried_tokens")


SAME_PROMPTS = frozenset({*HIT_RATE, "prompt_tokens", "requests_finished", "prompt_tokens_per_request"})
"""Families that compare the hits of slow minutes with those before."""


def check_prefix_hits(context: CauseContext) -> CauseResult:
    found = lookup_share(context.total, *HIT_RATE)
    if isinstance(found, Missing):
        return CauseResult(supported=None, text="the prefix hit rate is not known")
    value = found.value or 0.0
    lost = _find_lost_hits(context)
    if lost:
        return CauseResult(supported=True, proven=True, text=lost)
    hits, whose = context.workload.prefix_hit_ratio if context.workload else None, "the plan has"
    if hits is None:
        hits, whose = _read_measured_hits(context), "the benchmark had"
    if hits is None:
        text = f"prefix hits are {value:.0%}, and the plan does not say how many it had"
        return CauseResult(supported=None, text=text)
    if value < hits - NOTICEABLE:
        text = f"fewer prefix hits: {value:.0%} where {whose} {hits:.0%}"
        return CauseResult(supported=True, proven=value < hits - LOST, text=text)
    return CauseResult(supported=False, text=f"prefix hits are not lost ({value:.0%}, {whose} {hits:.0%})")


def check_repeated_prompts(context: CauseContext) -> CauseResult:
    """Check for a benchmark with one set of prompts at every rate: its prefix cache is better than production's."""
    measured, found = _read_measured_hits(context), lookup_share(context.total, *HIT_RATE)
    if measured is None or isinstance(found, Missing):
        return CauseResult(supported=None)
    if (found.value or 0.0) >= measured - LOST:
        return CauseResult(supported=False)
    planned = context.workload.prefix_hit_ratio if context.workload else None
    if planned is not None and measured <= planned + LOST:
        return CauseResult(supported=False, text=f"the benchmark's prefix hits are the planned ones ({planned:.0%})")
    wanted = "the plan names none" if planned is None else f"the plan has {planned:.0%}"
    text = f"the benchmark: repeated prompts, {measured:.0%} of its prompt tokens were cached, {wanted}"
    return CauseResult(supported=True, proven=planned is not None, text=text)


def _read_measured_hits(context: CauseContext) -> float | None:
    points = context.context.curve.points if context.context.curve else ()
    return min((p.prefix_hit_ratio for p in points if p.prefix_hit_ratio is not None), default=None)


def _find_lost_hits(context: CauseContext) -> str:
    """Return the loss of hits in the slow minutes in words, "" without a loss. It needs no planned hits."""
    minutes = context.slow_minutes
    is_other = context.rule.method in USERS and context.rule.family not in FROM_ARRIVAL
    if minutes is None or not minutes.before or is_other:
        return ""
    slow, before = (
        windows.sum_families(several, SAME_PROMPTS)
        for several in ((one.window for one, _ in minutes.slow), minutes.before)
    )
    now, then = (
        found.value if isinstance(found := lookup_share(window, *HIT_RATE), Reading) else None
        for window in (slow, before)
    )
    if now is None or then is None or now >= then - LOST or not _has_same_prompts(slow, before):
        return ""
    return f"prefix hits lost: {now:.0%} in the slow minutes, {then:.0%} before"


def _has_same_prompts(now: Window, before: Window) -> bool:
    """Return whether both windows have enough requests, with prompts of about the same length."""
    if min(one.counters.get("requests_finished", 0.0) for one in (now, before)) < ENOUGH_REQUESTS:
        return False
    later, earlier = (histograms.mean(one.histograms.get("prompt_tokens_per_request", ())) for one in (now, before))
    return bool(later and earlier) and 1 / LONGER <= (later or 0.0) / (earlier or 1.0) <= LONGER


def check_longer(family: str, word: str, key: str) -> Callable[[CauseContext], CauseResult]:
    """Return the check for a P95 length above that of the plan, or without it for a mean above the benchmark's."""

    def examine(context: CauseContext) -> CauseResult:
        planned = getattr(context.workload, key) if context.workload else None
        parts = context.total.histograms.get(family)
        if planned is None or planned.p95 is None:
            return _compare_with_benchmark(context, (key, family), word)
        if not parts:
            return CauseResult(supported=None, text=f"{word} lengths are not exposed")
        found = histograms.quantile(parts, 0.95)
        if found is None:
            return CauseResult(supported=None, text=f"no {word} lengths were seen")
        seen = f"above {found.low:,.0f}" if found.high is None else f"{found.low:,.0f} to {found.high:,.0f}"
        where = f"P95 {seen} tokens, {planned.p95:,.0f} planned"
        if found.low > planned.p95 * LONGER:
            return CauseResult(supported=True, proven=True, text=f"{word}s are longer than planned: {where}")
        if found.high is None or found.high > planned.p95 * LONGER:
            return CauseResult(supported=None, text=f"{word}s may be longer than planned: {where}")
        return CauseResult(supported=False, text=f"{word}s are not longer ({where})")

    return examine


def _compare_with_benchmark(context: CauseContext, names: tuple[str, str], word: str) -> CauseResult:
    """Return whether requests are longer than those of the benchmark. `names` are counter and histogram of the length."""
    benchmarked = benchmarked_mean(context.context.plan, context.context.curve, names[0])
    mean = mean_length(context.total, *names)
    if benchmarked is None or mean is None:
        return CauseResult(supported=None, text=f"{word} lengths are neither in the plan nor in its benchmark")
    where = f"mean {mean:,.0f} tokens, {benchmarked:,.0f} benchmarked"
    if mean <= benchmarked * LONGER:
        return CauseResult(supported=False, text=f"{word}s are not longer ({where})")
    proven = context.total.counters.get("requests_finished", 0.0) >= ENOUGH_REQUESTS
    times = mean / benchmarked
    return CauseResult(supported=True, proven=proven, text=f"{word}s are {times:.1f} x as long as benchmarked: {where}")


def check_held_back(context: CauseContext) -> CauseResult:
    """Check for requests held back before their first token: mean held / first tokens per second (Little's law)."""
    held, first = (
        mean_level(context.total, "requests_waiting_deferred"),
        replica_rate(context.total, "requests_finished"),
    )
    if isinstance(held, Missing) or not first:
        return CauseResult(supported=None, text="whether requests are held back (adapter slots, KV loads) is not known")
    seconds = (held.value or 0.0) / first
    text = f"requests are held back for adapter slots or KV loads: {number(seconds, 'seconds')} each on average"
    if seconds > NOTICEABLE * _read_expected_seconds(context):
        return CauseResult(supported=True, proven=True, text=text)
    return CauseResult(supported=False, text="no requests held back for adapter slots or KV loads")


def _read_expected_seconds(context: CauseContext) -> float:
    if context.rule.method in USERS:
        facts = context.context.basis
        return (facts.e2e_slo_seconds if context.rule.family == "e2e_seconds" else facts.ttft_slo_seconds) or 0.0
    curve = context.context.curve
    values = [getattr(p, context.rule.signal, None) for p in curve.points] if curve else []
    return min((v for v in values if v is not None), default=0.0)


def check_adapters(context: CauseContext) -> CauseResult:
    served = mean_level(context.total, "adapters_running")
    planned = context.context.plan.lora if context.context.plan else None
    if isinstance(served, Missing) and served.gap not in NOTHING_THERE:
        return CauseResult(supported=None, text="whether LoRA adapters are served is not known")
    if isinstance(served, Missing) or not served.high:
        return CauseResult(supported=False, text="no LoRA adapters are served")
    text = f"LoRA adapters are served, {number(served.value or 0.0, '')} at a time on average"
    if planned is None:
        return CauseResult(supported=True, proven=True, text=f"{text}; the plan has none")
    return CauseResult(supported=False, text=f"{text}, as planned")


def check_speculation(context: CauseContext) -> CauseResult:
    found = read(BY_NAME["speculative_acceptance"], context.total)
    planned = context.context.plan.speculation if context.context.plan else None
    if isinstance(found, Missing) and found.gap not in NOTHING_THERE:
        return CauseResult(supported=None, text="whether the engine speculates is not known")
    if isinstance(found, Missing):
        gone = planned is not None and context.total.counters.get("spec_drafts", 0.0) <= 0
        text = "speculation does not run, the plan has it" if gone else "no speculation"
        return CauseResult(supported=gone, proven=gone, text=text)
    value = found.value or 0.0
    if planned is None:
        text = f"speculation runs ({value:.0%} of drafted tokens are accepted); the plan has none"
        return CauseResult(supported=True, proven=True, text=text)
    if planned.acceptance is not None and value < planned.acceptance - LOST:
        text = f"fewer drafted tokens are accepted: {value:.0%} where {planned.acceptance:.0%} was planned"
        return CauseResult(supported=True, proven=True, text=text)
    return CauseResult(supported=False, text=f"speculation is as planned ({value:.0%} accepted)")


def check_evictions(context: CauseContext) -> CauseResult:
    """Check evictions over the whole window, and over the window of KvEviction at its end. The worse counts."""
    last = max(one.window.end for one in context.binned) - CATALOGUE["KvEviction"].window_seconds
    recent = [one.window for one in context.binned if one.window.end > last]
    sums = [context.total]
    if len(recent) < len(context.binned):
        sums.append(windows.sum_families(recent, EVICTIONS))
    found = [(seen, ratio(seen, *EVICTIONS)) for seen in sums]
    known = [(one.value or 0.0, seen) for seen, one in found if not isinstance(one, Missing)]
    if not known:
        return CauseResult(supported=None, text="preemptions are not known")
    most, seen = max(known, key=lambda one: one[0])
    preempted, finished = (seen.counters[family] for family in EVICTIONS)
    minutes = f"{max(1.0, seen.span / windows.MINUTE_SECONDS):.0f} min"
    text = f"{preempted:,.0f} preemptions for {finished:,.0f} finished requests ({number(most, 'ratio')}) in {minutes}"
    if most > NOTICEABLE:
        return CauseResult(supported=True, proven=True, text=f"the KV cache is too small for this traffic: {text}")
    return CauseResult(supported=False, text=f"{'few' if preempted else 'no'} evictions: {text}")


def check_load(context: CauseContext) -> CauseResult:
    capacity = context.context.capacity
    load = offered_load(context.total, capacity) if capacity is not None else None
    if load is None:
        return CauseResult(supported=None, text="the load that a replica can take is not in the plan")
    if load.is_above:
        return CauseResult(supported=True, proven=True, text=f"more load than planned: {load}")
    return CauseResult(supported=False, text=f"not more load than planned ({load})")


def check_benchmark(context: CauseContext) -> CauseResult:
    """Check for a closed-loop benchmark, which has no arrivals of its own, or too few requests for a P99 (PEERS 3.2,
    traps 10, 11)."""
    curve = context.context.curve
    if curve is None:
        return CauseResult(supported=None, text="there is no benchmark curve")
    fewest, most = curve.minimum_requests, max(point.requests or 0 for point in curve.points)
    few = fewest < CERTAIN_REQUESTS
    if curve.loop == "closed":
        count = f" with only {fewest} to {most} requests a point" if few else ""
        return CauseResult(
            supported=True, text=f"the benchmark: a closed-loop sweep{count}, whose P99 is not production's"
        )
    if few:
        return CauseResult(
            supported=True, text=f"the benchmark: only {fewest} requests at its thinnest point make no P99"
        )
    return CauseResult(supported=False, text=f"the benchmark has {fewest} or more requests a point")


def check_cold_cache(context: CauseContext) -> CauseResult:
    """Check for a new replica that found far fewer prefixes than the others (guide 7.3: it begins with a cold cache).

    Most late requests on it prove the cause. Without late requests the lost hits alone make it likely.
    """
    warm_up = CATALOGUE[prefix_routing.RULE].limit("warm_up_seconds", context.context.limits)
    warm, young = hold(context.binned).once(prefix_routing.split_by_warmth, warm_up)
    usual = prefix_routing.hit_rate(warm)
    if not young or usual is None:
        return CauseResult(supported=False)
    cold = [one for one in young if (rate := prefix_routing.hit_rate([one])) is not None and rate < usual - LOST]
    hits = prefix_routing.hit_rate(cold)
    if hits is None:
        return CauseResult(supported=False)
    names = ", ".join(sorted({one.replica or "" for one in cold}))
    text = f"cold cache: {names} is new, {hits:.0%} prefix hits there, {usual:.0%} on warm replicas"
    minutes = context.slow_minutes
    if minutes is None:
        return CauseResult(supported=True, text=text)
    late = math.fsum(count for _, count in minutes.slow)
    there = math.fsum(count for one, count in minutes.slow if any(one is other for other in cold)) / late
    text = f"{text}; {there:.0%} of the late requests of slow minutes are there"
    return CauseResult(supported=there > NOTICEABLE, proven=there > MOST_LATE, text=text)


def check_routing(context: CauseContext) -> CauseResult:
    """Check the routing by rule PrefixRoutingBroken, with several replicas."""
    if len({one.replica for one in context.binned} - {None}) < 2:
        return CauseResult(supported=False)
    rule, now = CATALOGUE[prefix_routing.RULE], hold(context.binned).ends[1]
    result = prefix_routing.judge_replicas(
        RuleContext(rule=rule, catalogue=CATALOGUE, context=context.context, binned=context.binned, now=now)
    )
    if isinstance(result, Unknown):
        return CauseResult(supported=None, text=f"whether routing keeps prefixes together: {result.text}")
    text = result.sentence[:1].lower() + result.sentence[1:]
    if result.status is Status.OK:
        return CauseResult(supported=False, text=f"not the routing ({text})")
    proven = result.certainty is Certainty.CERTAIN
    return CauseResult(supported=True, proven=proven, text=f"the routing: {text}")
