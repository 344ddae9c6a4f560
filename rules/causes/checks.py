"""The suspects: what can make a tier slower than its benchmark, or short of KV cache, and how each is examined.

Owns the table SUSPECTS. Each is examined with what the windows hold: supported, excluded (with the number that excludes
it), or not to be excluded for lack of data, and then it says so. A new suspect is a function and a row.
"""

from __future__ import annotations

from collections.abc import Callable

from rules.catalogue.registry import BY_NAME as CATALOGUE
from rules.causes import error_checks, first_token
from rules.causes.context import (
    EITHER,
    FAILING,
    HITS,
    LATENCY,
    OF_ONE_FAMILY,
    PREFIX_HITS,
    PRESSURE,
    SLOW,
    TURNED_AWAY,
    UNSERVED,
    USERS,
    CauseCheck,
    CauseContext,
    CauseResult,
)
from rules.causes.slow_minutes import find_slow_minutes, prove_when_slow
from rules.methods import prefix_routing
from rules.methods.offered_load import offered_load
from rules.plan.curve import CERTAIN_REQUESTS
from rules.telemetry import histograms, windows
from rules.telemetry.reading_methods import mean_level, ratio, replica_rate, share
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Gap, Missing
from rules.telemetry.windows import Window
from rules.telemetry.wording import number

LONGER = 1.2
"""Lengths above the plan's by more than this are evidence; bucket edges of 1-2-5 grids allow no finer distinction."""

NOTICEABLE = 0.05
"""A share of requests or time below which a suspect is taken as excluded (the guide's 5 % for evictions)."""

ENOUGH_REQUESTS = 20.0
"""Requests of which a mean says something: fewer are chance."""

LOST = 2 * NOTICEABLE
"""Points of prefix hits whose loss is beyond what changes from minute to minute."""

NOTHING_THERE = frozenset({Gap.NOT_EXPOSED, Gap.NO_TRAFFIC})
"""Reasons for which a family is absent where the engine does not do what it counts; others say nothing of that."""

EVICTIONS = ("preemptions", "requests_finished")


def _hits(scene: CauseContext) -> CauseResult:
    found = share(scene.total, "prefix_hit_tokens", "prefix_queried_tokens")
    if isinstance(found, Missing):
        return CauseResult(supported=None, text="the prefix hit rate is not known")
    value = found.value or 0.0
    lost = _lost_when_slow(scene)
    if lost:
        return CauseResult(supported=True, proven=True, text=lost)
    planned = _planned_hits(scene)
    if planned is None:
        text = f"prefix hits are {value:.0%}, and the plan does not say how many it had"
        return CauseResult(supported=None, text=text)
    hits, whose = planned
    if value < hits - NOTICEABLE:
        text = f"fewer prefix hits: {value:.0%} where {whose} {hits:.0%}"
        return CauseResult(supported=True, proven=value < hits - LOST, text=text)
    return CauseResult(supported=False, text=f"prefix hits are not lost ({value:.0%}, {whose} {hits:.0%})")


def _repeated(scene: CauseContext) -> CauseResult:
    """A benchmark that sends one set of prompts at every rate answers from a cache that production never has."""
    measured, found = _measured_hits(scene), share(scene.total, "prefix_hit_tokens", "prefix_queried_tokens")
    if measured is None or isinstance(found, Missing):
        return CauseResult(supported=None)
    if (found.value or 0.0) >= measured - LOST:
        return CauseResult(supported=False)
    planned = scene.workload.prefix_hit_ratio if scene.workload else None
    if planned is not None and measured <= planned + LOST:
        return CauseResult(supported=False, text=f"the benchmark's prefix hits are the planned ones ({planned:.0%})")
    wanted = "the plan's workload names none" if planned is None else f"the plan's workload has {planned:.0%}"
    text = f"the benchmark: {measured:.0%} of its prompt tokens came from the prefix cache, and {wanted}"
    return CauseResult(
        supported=True, proven=planned is not None, text=f"{text}; one seed for every rate repeats prompts"
    )


def _planned_hits(scene: CauseContext) -> tuple[float, str] | None:
    """Hits that were counted on, and who counted on them; the workload's word before the benchmark's."""
    if scene.workload is not None and scene.workload.prefix_hit_ratio is not None:
        return scene.workload.prefix_hit_ratio, "the plan has"
    measured = _measured_hits(scene)
    return None if measured is None else (measured, "the benchmark had")


def _measured_hits(scene: CauseContext) -> float | None:
    points = scene.view.curve.points if scene.view.curve else ()
    return min((p.prefix_hit_ratio for p in points if p.prefix_hit_ratio is not None), default=None)


def _lost_when_slow(scene: CauseContext) -> str:
    """The sentence on hits that were there before the slow minutes and not in them, "" otherwise: needs no planned hits."""
    minutes = find_slow_minutes(scene)
    if (
        minutes is None
        or not minutes.before
        or (scene.rule.method in USERS and scene.rule.family != first_token.FAMILY)
    ):
        return ""
    slow, before = windows.sum_windows(one.window for one, _ in minutes.slow), windows.sum_windows(minutes.before)
    now, then = _hit_rate(slow), _hit_rate(before)
    if now is None or then is None or now >= then - LOST or not _same_prompts(slow, before):
        return ""
    return f"prefix hits lost: {now:.0%} in the slow minutes, {then:.0%} before"


def _same_prompts(now: Window, before: Window) -> bool:
    """Return whether enough requests were seen in both, with prompts of about one length: others have other
    prefixes."""
    if min(one.counters.get("requests_finished", 0.0) for one in (now, before)) < ENOUGH_REQUESTS:
        return False
    later, earlier = (histograms.mean(one.histograms.get("prompt_tokens_per_request", ())) for one in (now, before))
    return bool(later and earlier) and 1 / LONGER <= (later or 0.0) / (earlier or 1.0) <= LONGER


def _hit_rate(window: Window) -> float | None:
    found = share(window, "prefix_hit_tokens", "prefix_queried_tokens")
    return None if isinstance(found, Missing) else found.value


def _longer(family: str, word: str, key: str) -> Callable[[CauseContext], CauseResult]:
    def examine(scene: CauseContext) -> CauseResult:
        planned = getattr(scene.workload, key) if scene.workload else None
        parts = scene.total.histograms.get(family)
        if planned is None or planned.p95 is None or not parts:
            return CauseResult(supported=None, text=f"{word} lengths are not in the plan or not exposed")
        found = histograms.quantile(parts, 0.95)
        if found is None:
            return CauseResult(supported=None, text=f"no {word} lengths were seen")
        seen = f"above {found.low:,.0f}" if found.high is None else f"{found.low:,.0f} to {found.high:,.0f}"
        where = f"P95 {seen} tokens, {planned.p95:,.0f} in the plan"
        if found.low > planned.p95 * LONGER:
            return CauseResult(supported=True, proven=True, text=f"{word}s are longer than planned: {where}")
        if found.high is None or found.high > planned.p95 * LONGER:
            return CauseResult(supported=None, text=f"whether {word}s are longer than planned is not known: {where}")
        return CauseResult(supported=False, text=f"{word}s are not longer ({where})")

    return examine


def _held_back(scene: CauseContext) -> CauseResult:
    """Held-back requests wait before their first token; by Little's law each as long as mean held / first tokens a second."""
    held, first = mean_level(scene.total, "requests_waiting_deferred"), replica_rate(scene.total, "requests_finished")
    if isinstance(held, Missing) or not first:
        return CauseResult(supported=None, text="whether requests are held back (adapter slots, KV loads) is not known")
    seconds = (held.value or 0.0) / first
    text = f"requests are held back for adapter slots or KV loads: {number(seconds, 'seconds')} each on average"
    if seconds > NOTICEABLE * _expected_seconds(scene):
        return CauseResult(supported=True, proven=True, text=text)
    return CauseResult(supported=False, text="no requests held back for adapter slots or KV loads")


def _expected_seconds(scene: CauseContext) -> float:
    if scene.rule.method in USERS:
        return scene.view.basis.ttft_slo_seconds or 0.0
    curve = scene.view.curve
    values = [getattr(p, scene.rule.metric, None) for p in curve.points] if curve else []
    return min((v for v in values if v is not None), default=0.0)


def _adapters(scene: CauseContext) -> CauseResult:
    served = mean_level(scene.total, "adapters_running")
    planned = scene.view.plan.lora if scene.view.plan else None
    if isinstance(served, Missing) and served.gap not in NOTHING_THERE:
        return CauseResult(supported=None, text="whether LoRA adapters are served is not known")
    if isinstance(served, Missing) or not served.high:
        return CauseResult(supported=False, text="no LoRA adapters are served")
    text = f"LoRA adapters are served, {served.value or 0.0:.2g} at a time on average"
    if planned is None:
        return CauseResult(supported=True, proven=True, text=f"{text}; the plan has none")
    return CauseResult(supported=False, text=f"{text}, as planned")


def _speculation(scene: CauseContext) -> CauseResult:
    found = read(BY_NAME["speculative_acceptance"], scene.total)
    planned = scene.view.plan.speculation if scene.view.plan else None
    if isinstance(found, Missing) and found.gap not in NOTHING_THERE:
        return CauseResult(supported=None, text="whether the engine speculates is not known")
    if isinstance(found, Missing):
        gone = planned is not None and scene.total.counters.get("spec_drafts", 0.0) <= 0
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


def _evictions(scene: CauseContext) -> CauseResult:
    """Over all of the time, or over the last of it, as long as KvEviction judges, if there were more then."""
    last = max(one.window.end for one in scene.slices) - CATALOGUE["KvEviction"].window_seconds
    recent = windows.sum_families((one.window for one in scene.slices if one.window.end > last), EVICTIONS)
    found = [(seen, ratio(seen, *EVICTIONS)) for seen in (scene.total, recent)]
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


def _more_load(scene: CauseContext) -> CauseResult:
    capacity = scene.view.capacity
    load = offered_load((scene.total,), capacity) if capacity is not None else None
    if load is None:
        return CauseResult(supported=None, text="the load that a replica can take is not in the plan")
    if load.is_above:
        return CauseResult(supported=True, proven=True, text=f"more load than planned: {load}")
    return CauseResult(supported=False, text=f"not more load than planned ({load})")


def _benchmark(scene: CauseContext) -> CauseResult:
    """A closed loop starts with a burst and has no arrivals of its own; few requests make no P99 (PEERS 3.2, traps 10, 11)."""
    curve = scene.view.curve
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


def _routing(scene: CauseContext) -> CauseResult:
    """Return what rule PrefixRoutingBroken finds, where several replicas are seen."""
    if len({one.replica for one in scene.slices} - {None}) < 2:
        return CauseResult(supported=False)
    seen = prefix_routing.assess_routing(scene.slices, scene.view, CATALOGUE[prefix_routing.RULE])
    if seen.broken is None:
        return CauseResult(supported=None, text=f"whether routing keeps prefixes together: {seen.text}")
    text = f"the routing: {seen.text}" if seen.broken else f"not the routing ({seen.text})"
    return CauseResult(supported=seen.broken, proven=seen.certain, text=text)


SUSPECTS: tuple[CauseCheck, ...] = (
    CauseCheck(cause="engine stopped", methods=FAILING, examine=error_checks.no_steps),
    CauseCheck(cause="one replica", methods=UNSERVED, examine=error_checks.one_replica),
    CauseCheck(cause="hardware faults", methods=FAILING, examine=error_checks.faults),
    CauseCheck(cause="restarts", methods=FAILING, examine=error_checks.restarts),
    CauseCheck(cause="client requests", methods=TURNED_AWAY, examine=error_checks.is_client_error),
    CauseCheck(cause="evictions", methods=HITS, families=PREFIX_HITS, examine=_evictions),
    CauseCheck(
        cause="routing",
        methods=OF_ONE_FAMILY,
        families=(*PREFIX_HITS, "ttft_seconds"),
        examine=_routing,
    ),
    CauseCheck(cause="prefix hits", methods=EITHER, examine=_hits),
    CauseCheck(
        cause="benchmark",
        methods=OF_ONE_FAMILY,
        families=(*PREFIX_HITS, "ttft_seconds", "tpot_seconds"),
        examine=_repeated,
    ),
    CauseCheck(
        cause="adapters held back", methods=SLOW, families=("ttft_seconds",), examine=prove_when_slow(_held_back)
    ),
    CauseCheck(
        cause="prompt lengths", methods=EITHER, examine=_longer("prompt_tokens_per_request", "prompt", "prompt_tokens")
    ),
    CauseCheck(
        cause="output lengths",
        methods=EITHER,
        examine=_longer("generation_tokens_per_request", "output", "generation_tokens"),
    ),
    CauseCheck(cause="adapters", methods=SLOW, examine=_adapters),
    CauseCheck(cause="speculation", methods=SLOW, examine=_speculation),
    CauseCheck(cause="throttling", methods=LATENCY, examine=prove_when_slow(first_token.check_throttling_cause)),
    CauseCheck(cause="more load", methods=PRESSURE | USERS | TURNED_AWAY, examine=_more_load),
    CauseCheck(cause="evictions", methods=SLOW, examine=prove_when_slow(_evictions)),
    CauseCheck(cause="queueing", methods=SLOW, families=("ttft_seconds",), examine=first_token.check_queueing_cause),
    CauseCheck(cause="prefill", methods=USERS, families=("ttft_seconds",), examine=first_token.check_prefill_cause),
    CauseCheck(
        cause="failed transfers", methods=LATENCY | FAILING, families=("ttft_seconds",), examine=error_checks.transfers
    ),
    CauseCheck(cause="benchmark", methods=SLOW, examine=_benchmark),
)
