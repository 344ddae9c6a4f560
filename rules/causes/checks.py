"""Checks of causes: each returns the fact that supports or excludes its cause, None where data lack."""

from __future__ import annotations

import math

from rules.catalogue.registry import BY_NAME as CATALOGUE
from rules.causes.context import FIRST_TOKEN, FROM_ARRIVAL, MOST_LATE, NOT_ASKED, USERS, CauseContext, CauseResult
from rules.confidence import Certainty
from rules.methods import routing
from rules.methods.burn_rate import judge_availability
from rules.methods.divergence import judge_tail
from rules.methods.evidence import best_value
from rules.methods.load import offered_load
from rules.plan.capacity import benchmarked_mean
from rules.plan.curve import CERTAIN_REQUESTS
from rules.plan.load_bins import mean_waiting
from rules.telemetry import histograms, windows
from rules.telemetry.gauges import STEP_FAMILY
from rules.telemetry.gpu_windows import SLOWER, THROTTLED_COVERED, throttled
from rules.telemetry.outcomes import HELD, READ, outcomes
from rules.telemetry.reading_methods import lookup_share, mean_level, ratio, replica_rate
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading
from rules.telemetry.wording import format_count, format_duration, number
from rules.telemetry.work import mean_length
from rules.verdicts.context import RuleContext, read_plan_value
from rules.verdicts.held_windows import hold
from rules.verdicts.verdict import FIRING, RuleResult, Status, Unknown

LONGER = 1.2
"""Factor above planned lengths that is evidence. Bucket edges of 1-2-5 grids allow no finer distinction."""

NOTICEABLE = 0.05
"""Share of requests or time below which a cause is excluded (the guide's 5 % for evictions)."""

ENOUGH_REQUESTS = 20.0
"""Minimum number of requests of a mean."""

LOST = 2 * NOTICEABLE
"""Loss of prefix hits (0-1) that is larger than changes between minutes."""

NEARLY_ALL = 0.9
"""Share of the failures that proves a fault of one replica."""

MOST = 0.5
"""Share of the late requests, or of the time of whole requests, that proves a cause; requests that wait at a replica."""

HELD_BY = (("thermal", "heat", True), ("hardware", "the board", True), ("power", "the power limit", False))
"""Reasons of throttling, in words, and whether the reason alone proves slower GPUs: they usually run at their power limit."""

NOTHING_THERE = frozenset({Gap.NOT_EXPOSED, Gap.NO_TRAFFIC})
"""Reasons for a missing family that mean that the engine does not do what the family counts."""

EVICTIONS = ("preemptions", "requests_finished")
HIT_RATE = ("prefix_hit_tokens", "prefix_queried_tokens")


def check_prefix_hits(context: CauseContext) -> CauseResult | None:
    reading = lookup_share(context.total, *HIT_RATE)
    if isinstance(reading, Missing):
        return None
    if lost := _find_lost_hits(context):
        return CauseResult(supported=True, text=lost)
    value = reading.value or 0.0
    planned = routing.read_planned_rate(context.context)
    if planned is None:
        return None
    hits, where = planned
    text = f"{value:.0%}, {hits:.0%} {where}"
    return CauseResult(supported=value < hits - NOTICEABLE, proven=value < hits - LOST, text=text)


def check_repeated_prompts(context: CauseContext) -> CauseResult | None:
    """Check for a benchmark with one set of prompts at every rate: its prefix cache is better than production's."""
    reading, curve = lookup_share(context.total, *HIT_RATE), context.context.curve
    points = curve.points if curve else ()
    measured = min((p.prefix_hit_ratio for p in points if p.prefix_hit_ratio is not None), default=None)
    if measured is None or isinstance(reading, Missing) or (reading.value or 0.0) >= measured - LOST:
        return NOT_ASKED
    planned = read_plan_value(context.context, "workload.prefix_hit_ratio")
    wanted = "the plan names none" if planned is None else f"the plan has {planned:.0%}"
    text = f"repeated prompts, {measured:.0%} of its prompt tokens were cached, {wanted}"
    return CauseResult(supported=planned is None or measured > planned + LOST, proven=planned is not None, text=text)


def _find_lost_hits(context: CauseContext) -> str:
    """Return the loss of hits of alike prompts in the slow minutes in words, "" without. It needs no planned hits."""
    minutes = context.slow_minutes
    is_other = context.rule.method in USERS and context.rule.family not in FROM_ARRIVAL
    if minutes is None or not minutes.before or is_other:
        return ""
    families = {*HIT_RATE, "prompt_tokens", "requests_finished", "prompt_tokens_per_request"}
    slow = windows.sum_families([minute.window for minute, _ in minutes.slow], families)
    before = windows.sum_families(minutes.before, families)
    now, then = (lookup_share(window, *HIT_RATE) for window in (slow, before))
    fewest = min(window.counters.get("requests_finished", 0.0) for window in (slow, before))
    if isinstance(now, Missing) or isinstance(then, Missing) or fewest < ENOUGH_REQUESTS:
        return ""
    later, earlier = (mean_length(window, "prompt_tokens", "prompt_tokens_per_request") for window in (slow, before))
    if not later or not earlier or not 1 / LONGER <= later / earlier <= LONGER:
        return ""
    late, usual = now.value or 0.0, then.value or 0.0
    return f"{late:.0%} in the slow minutes, {usual:.0%} before" if late < usual - LOST else ""


def check_longer(key: str, context: CauseContext) -> CauseResult | None:
    """Check for a P95 above the plan's, of all requests or of slow minutes, or for a mean that a few far longer ones raise."""
    family, planned = f"{key}_per_request", read_plan_value(context.context, f"workload.{key}.p95")
    mean = _compare_with_benchmark(context, key, family)
    if planned is None:
        return mean
    minutes, limit, results = context.slow_minutes, planned * LONGER, []
    slow = [minute.window for minute, _ in minutes.slow] if minutes else []
    for sampled, when, fewest in (([context.total], "", 0.0), (slow, " in the slow minutes", CERTAIN_REQUESTS)):
        parts = histograms.sum_histograms(part for window in sampled for part in window.histograms.get(family, ()))
        length = histograms.quantile(parts, 0.95)
        high = math.inf if length is None or length.high is None else length.high
        if length is not None and length.n >= fewest and not length.low <= limit < high:
            seen = f"above {length.low:,.0f}" if length.high is None else f"{length.low:,.0f} to {high:,.0f}"
            text = f"P95 {seen} tokens{when}, {planned:,.0f} planned"
            results.append(CauseResult(supported=length.low > limit, proven=not when, text=text))
    if mean and mean.supported:
        results.append(mean)
    return max(results, key=lambda result: (result.supported, result.proven), default=None)


def _compare_with_benchmark(context: CauseContext, key: str, family: str) -> CauseResult | None:
    """Return whether the mean request is longer than the benchmark's or, unless the rule has its curve, than planned."""
    expected, than = benchmarked_mean(context.context.plan, context.context.curve, key), "benchmarked"
    mean = mean_length(context.total, key, family)
    if expected is None or mean is None:
        return None
    planned = read_plan_value(context.context, f"workload.{key}.mean")
    if planned is not None and planned > expected and context.rule.method is not judge_tail:
        expected, than = planned, "planned"
    proven = context.total.counters.get("requests_finished", 0.0) >= ENOUGH_REQUESTS
    text = f"mean {mean:,.0f} tokens, {expected:,.0f} {than}"
    return CauseResult(supported=mean > expected * LONGER, proven=proven, text=text, than=than)


def check_held_back(context: CauseContext) -> CauseResult | None:
    """Check for requests held back before their first token: mean held / first tokens per second (Little's law)."""
    held = mean_level(context.total, "requests_waiting_deferred")
    first = replica_rate(context.total, "requests_finished")
    if isinstance(held, Missing) or not first:
        return None
    seconds, facts, curve = (held.value or 0.0) / first, context.context.basis, context.context.curve
    latencies = (getattr(point, context.rule.signal, None) for point in curve.points) if curve else ()
    expected = next(filter(None, latencies), None)
    if context.rule.method in USERS:
        expected = facts.e2e_slo_seconds if context.rule.family == "e2e_seconds" else facts.ttft_slo_seconds
    text = f"requests wait {number(seconds, 'seconds')} each for adapter slots or KV loads"
    return CauseResult(supported=seconds > NOTICEABLE * (expected or 0.0), text=text)


def check_adapters(context: CauseContext) -> CauseResult | None:
    served, plan = mean_level(context.total, "adapters_running"), context.context.plan
    if isinstance(served, Missing):
        return CauseResult(supported=False, text="none are served") if served.gap in NOTHING_THERE else None
    is_planned = plan is not None and plan.lora is not None
    text = f"{number(served.value or 0.0, '')} LoRA adapters are served at a time on average, "
    text += "as planned" if is_planned else "none is planned"
    # Without a plan they may always have been there.
    return CauseResult(supported=not is_planned and bool(served.high), proven=plan is not None, text=text)


def check_speculation(context: CauseContext) -> CauseResult | None:
    accepted = read(BY_NAME["speculative_acceptance"], context.total)
    planned = context.context.plan.speculation if context.context.plan else None
    if isinstance(accepted, Missing):
        is_gone = planned is not None and context.total.counters.get("spec_drafts", 0.0) <= 0
        text = "it does not run, the plan has it" if is_gone else "it does not run"
        return CauseResult(supported=is_gone, text=text) if accepted.gap in NOTHING_THERE else None
    value, expected = accepted.value or 0.0, planned.acceptance if planned else None
    is_worse, wanted = expected is not None and value < expected - LOST, "as planned"
    if planned is None:
        is_worse = value < CATALOGUE["SpeculationAcceptanceLow"].limit("below", context.context.limits)
        wanted = "none is planned"
    elif expected is not None:
        wanted = f"{expected:.0%} planned"
    return CauseResult(supported=is_worse, text=f"{value:.0%} of drafted tokens are accepted, {wanted}")


def check_evictions(context: CauseContext) -> CauseResult | None:
    """Check evictions over the whole window, and over the window of KvEviction at its end. The worse counts."""
    last = max(binned.window.end for binned in context.binned) - CATALOGUE["KvEviction"].window_seconds
    recent = [binned.window for binned in context.binned if binned.window.end > last]
    sums = [context.total, windows.sum_families(recent, EVICTIONS)]
    shares = [(share.value or 0.0, seen) for seen in sums if isinstance(share := ratio(seen, *EVICTIONS), Reading)]
    if not shares:
        return None
    most, seen = max(shares, key=lambda pair: pair[0])
    preempted, finished = (seen.counters[family] for family in EVICTIONS)
    text = f"{preempted:,.0f} preemptions for {finished:,.0f} finished requests ({number(most, 'ratio')})"
    text += f" in {format_duration(seen.span)}"
    return CauseResult(supported=most > NOTICEABLE, text=text)


def check_load(context: CauseContext) -> CauseResult | None:
    capacity = context.context.capacity
    load = offered_load(context.total, capacity) if capacity else None
    return CauseResult(supported=load.is_above, text=str(load)) if load else None


def check_benchmark(context: CauseContext) -> CauseResult | None:
    """Check for a closed-loop benchmark, or one with too few requests for a P99 (PEERS 3.2, traps 10, 11)."""
    curve = context.context.curve
    if curve is None:
        return None
    fewest, most = curve.minimum_requests, max(point.requests or 0 for point in curve.points)
    is_closed = curve.written.loop == "closed"
    sweep = f"{'a closed' if is_closed else 'an open'}-loop sweep with {fewest} to {most} requests a point"
    text = f"{sweep}; a P99 needs open arrivals and {CERTAIN_REQUESTS:.0f} requests"
    return CauseResult(supported=is_closed or fewest < CERTAIN_REQUESTS, proven=False, text=text)


def check_cold_cache(context: CauseContext) -> CauseResult | None:
    """Check for a new replica with far fewer prefix hits (guide 7.3). Proof: most late requests of slow minutes are there."""
    warm_up = CATALOGUE[routing.RULE].limit("warm_up_seconds", context.context.limits)
    warm, young = hold(context.binned).once(routing.split_by_warmth, warm_up)
    usual = routing.hit_rate(warm)
    if not young or usual is None:
        return NOT_ASKED
    cold = [binned for binned in young if (rate := routing.hit_rate([binned])) is not None and rate < usual - LOST]
    hits = routing.hit_rate(cold)
    if hits is None:
        return NOT_ASKED
    names = ", ".join(sorted({binned.replica or "" for binned in cold}))
    text = f"{names} is new, {hits:.0%} prefix hits there, {usual:.0%} on warm replicas"
    if (minutes := context.slow_minutes) is None:
        return CauseResult(supported=True, proven=False, text=text)
    there = minutes.share(lambda window: any(window is sample.window for sample in cold))
    text = f"{text}; {there:.0%} of the late requests of slow minutes are there"
    return CauseResult(supported=there > NOTICEABLE, proven=there > MOST_LATE, text=text)


def check_routing(context: CauseContext) -> CauseResult | None:
    """Check the routing by rule PrefixRoutingBroken, with several replicas."""
    if len({binned.replica for binned in context.binned} - {None}) < 2:
        return NOT_ASKED
    result = judge_beside(context, routing.RULE)
    if isinstance(result, Unknown):
        return None
    is_certain, text = result.certainty is Certainty.CERTAIN, result.sentence[:1].lower() + result.sentence[1:]
    return CauseResult(supported=result.status is not Status.OK, proven=is_certain, text=text)


def judge_beside(context: CauseContext, name: str) -> RuleResult:
    """Return what another rule says of the same windows."""
    rule, now = CATALOGUE[name], hold(context.binned).ends[1]
    of = RuleContext(rule=rule, catalogue=CATALOGUE, tier=context.context, binned=context.binned, now=now)
    return rule.method(of)


def check_queueing_cause(context: CauseContext) -> CauseResult | None:
    """Check for waits beyond the limit (edges prove it), a mean queue, or long waits without slow tokens."""
    if part := measure_part("queue_seconds", "in the queue", context):
        return part
    whole, waited = (histograms.mean(context.total.histograms.get(name, ())) for name in (FIRST_TOKEN, "queue_seconds"))
    tokens = getattr(judge_beside(context, "TpotDivergence"), "status", None)
    if whole and waited and waited > MOST * whole and tokens not in FIRING:
        text = f"{waited / whole:.0%} of the time to first tokens is spent in the queue"
        return CauseResult(supported=True, proven=False, text=text)
    waiting = mean_waiting(context.binned)
    if waiting is None:
        return None
    text = f"{number(waiting, '')} requests waiting a replica on average"
    return CauseResult(supported=waiting > MOST, proven=False, text=text)


def measure_part(family: str, where: str, context: CauseContext) -> CauseResult | None:
    """Check for a part with much of the time of requests, or alone above the limit of first tokens (None: no limit)."""
    if context.rule.family == "e2e_seconds":
        whole, part = (histograms.mean(context.total.histograms.get(name, ())) for name in ("e2e_seconds", family))
        if not whole or part is None:
            return None
        text = f"{part / whole:.0%} of the time of requests is spent {where}"
        return CauseResult(supported=part > NOTICEABLE * whole, proven=part > MOST * whole, text=text)
    first, parts = map(context.total.histograms.get, (FIRST_TOKEN, family))
    limit = context.context.basis.ttft_slo_seconds
    if context.rule.method not in USERS or not first or not parts or not limit:
        return None
    late, spent = histograms.share_above(first, limit), histograms.share_above(parts, limit)
    if late.best <= 0:
        return None
    requests, late_ones = format_count(round(spent.best), "request"), format_count(round(late.best), "first token")
    text = f"{requests} spent more than {number(limit, 'seconds')} {where} alone, and {late_ones} came late"
    is_large, proven = spent.best > NOTICEABLE * late.best, spent.low > MOST * late.best
    return CauseResult(supported=is_large, proven=proven, text=text)


def check_throttling_cause(context: CauseContext) -> CauseResult | None:
    """Check the shares of time in which clocks were held down, of all replicas, then of each if most were late there."""

    def is_held(window: windows.Window) -> bool:
        return (best_value(throttled(window)) or 0.0) > NOTICEABLE

    totals, known, minutes = {"": context.total}, [], context.slow_minutes
    if minutes and minutes.share(is_held) > MOST:
        groups = hold(context.binned).by_replica.items()
        totals |= {f" at {name}": group.sum_families((*SLOWER, THROTTLED_COVERED)) for name, group in groups}
    for where, total in totals.items():
        for what, word, proof in HELD_BY:
            share = best_value(ratio(total, f"gpu_throttled_{what}_seconds", THROTTLED_COVERED))
            if share is not None:
                known.append((share > NOTICEABLE and proof, not where, share, f"{word} {share:.0%} of the time{where}"))
    if not known:
        return None
    proof, _, share, text = max(known)
    return CauseResult(supported=share > NOTICEABLE, proven=proof, text=f"clocks were held down by {text}")


def check_one_replica(context: CauseContext) -> CauseResult | None:
    """Check for one replica with nearly all failures while others serve."""
    groups = hold(binned for binned in context.binned if binned.replica is not None).by_replica
    sums = ((name, outcomes(group.sum_families(READ))) for name, group in groups.items())
    each = {name: results for name, results in sums if not isinstance(results, Missing)}
    failing = context.rule.method is judge_availability
    wrong = {name: results.failed if failing else results.no_room + results.bad for name, results in each.items()}
    total = sum(wrong.values())
    if len(each) < 2 or total <= 0:
        return NOT_ASKED
    worst = max(wrong, key=wrong.__getitem__)
    share = wrong[worst] / (each[worst].accepted_requests if failing else each[worst].all_requests)
    text = f"{worst}, {share:.0%} of its requests, {total - wrong[worst]:,.0f} at the other {len(each) - 1}"
    return CauseResult(supported=wrong[worst] >= NEARLY_ALL * total, text=text)


def check_engine_steps(context: CauseContext) -> CauseResult | None:
    """Check for an engine that fails or holds requests and takes no step, while its front end serves the page."""
    dead: set[str] = set()
    failed = held = 0.0
    for binned in context.binned:
        results, holds = outcomes(binned.window), binned.window.gauges.get(HELD)
        is_still = binned.window.counters.get(STEP_FAMILY) == 0
        fails = results.failed if is_still and not isinstance(results, Missing) else 0.0
        if fails > 0 or holds:
            dead.add(binned.replica or context.context.name)
            failed, held = failed + fails, max(held, holds.maximum if holds else 0.0)
    if not dead:
        return NOT_ASKED
    count = f"{failed:,.0f} failed" if failed else f"it holds {held:,.0f} requests"
    text = f"no step at {', '.join(sorted(dead))} while the front end answers ({count}): the worker is dead or hangs"
    return CauseResult(supported=True, text=text)


def check_transfers(context: CauseContext) -> CauseResult | None:
    """Check for failed KV transfers: the request fails, or its prompt is computed again."""
    count, results = context.total.counters.get("kv_transfer_failures"), outcomes(context.total)
    if count is None or isinstance(results, Missing):
        return NOT_ASKED
    failing = context.rule.method is judge_availability
    of, word = (results.failed, "failed") if failing else (results.accepted_requests, "were taken on")
    text = f"{format_count(round(count), 'KV transfer')} failed while {of:,.0f} requests {word}"
    return CauseResult(supported=count >= 1 and count > NOTICEABLE * of, text=text)


def check_restarts(context: CauseContext) -> CauseResult | None:
    """Check for engine restarts, which fail the requests in the system."""
    count = context.total.counters.get("restarts", 0.0)
    text = f"{format_count(round(count), 'restart')} of engines in that time"
    return CauseResult(supported=count >= 1, proven=False, text=text)


def check_hardware_faults(context: CauseContext) -> CauseResult | None:
    """Check for GPU faults. Proof: most requests failed on the faulty replicas since the fault."""
    first: dict[str | None, float] = {}
    names = ("gpu_fault_events", "gpu_ecc_uncorrectable_errors")
    count = sum(context.total.counters.get(name, 0.0) for name in names)
    for binned in context.binned:
        if any(map(binned.window.counters.get, names)):
            first[binned.replica] = min(binned.window.start, first.get(binned.replica, math.inf))
    ends = ((sample, outcomes(sample.window)) for sample in context.binned)
    failed = [(sample, end.failed) for sample, end in ends if not isinstance(end, Missing)]
    after = math.fsum(some for sample, some in failed if sample.window.end > first.get(sample.replica, math.inf))
    proven = after > math.fsum(some for _, some in failed) / 2
    faults, requests = format_count(round(count), "fault"), format_count(round(after), "request")
    text = f"{faults} of GPUs in that time, {requests} failed on their replicas since"
    return CauseResult(supported=count >= 1 and after > 0, proven=proven, text=text)


def check_client_errors(context: CauseContext) -> CauseResult | None:
    """Check for refused requests that cannot be served: more replicas would refuse them too."""
    results = outcomes(context.total)
    if isinstance(results, Missing) or results.bad + results.no_room <= 0:
        return NOT_ASKED
    text = f"{results.bad:,.0f} answered 4xx, {results.no_room:,.0f} refused for want of room"
    return CauseResult(supported=results.bad > results.no_room, text=text)
