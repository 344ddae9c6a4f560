"""Derived signals computed from several families of a window, with the source of each formula.

Facts that a window lacks (GPUs, prices, objectives) come in as `PlanFacts`. Comparison with a plan belongs to the
methods. To add a signal: a row of `rules.telemetry.signals` and a function in DERIVED. Per-token acceptance of
speculative decoding differs from accepted / drafted tokens: after the first refused token the rest of a round is lost
(DESIGN 3.7).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rules.sizing import cost_per_million_tokens, expected_tokens_per_round
from rules.telemetry import gpu_windows
from rules.telemetry.arrivals import unserved
from rules.telemetry.gpu_windows import energy, share_of_peak
from rules.telemetry.outcomes import HTTP_REFUSED, NO_ROOM, count_gone, outcomes
from rules.telemetry.reading_methods import (
    ALL,
    FULL_COVERAGE,
    gap_for_empty_family,
    has_repeated_lookups,
    lookup_share,
    mean_level,
    quantile,
    ratio,
    replica_rate,
    total_rate,
    tpot_mean,
)
from rules.telemetry.signals import Gap, Missing, Reading, SignalValue
from rules.telemetry.windows import NET_CHANGE, Window
from rules.telemetry.work import Capacity, work_of

FEW_LATE = 0.02
"""Share of the drafted tokens by which accepted ones may exceed them: a scrape lies between the two counts."""

AT_POSITION = "spec_accepted_at_position/"


def acceptance(window: Window) -> SignalValue:
    """Return accepted tokens by tried tokens. A token is tried if all earlier tokens of its round were accepted.

    The engine does not count refusals, so they are bounded. Each refusal ends a round, so refusals are at most the
    rounds that did not accept their last position. Each discards between one token and a whole round. The best estimate
    is the a with a + a^2 + ... + a^k = accepted per round. It assumes equal acceptance at every position (DESIGN 3.7;
    Leviathan et al. 2023, arXiv 2211.17192, equation 1). `n` counts rounds.
    """
    if "spec_drafts" not in window.counters and "spec_accept_length" in window.gauges:
        return _from_gauges(window)
    accepted = ratio(window, "spec_accepted_tokens", "spec_drafts")
    drafted = ratio(window, "spec_draft_tokens", "spec_drafts")
    if isinstance(accepted, Missing) or isinstance(drafted, Missing):
        return accepted if isinstance(accepted, Missing) else drafted
    if not drafted.value or accepted.value is None:
        return Missing(gap=Gap.NO_TRAFFIC, text="no token was drafted")
    if drafted.value < accepted.value / (1 + FEW_LATE):
        text = f"{accepted.value:.3g} tokens of {drafted.value:.3g} drafted ones were accepted in a round"
        return Missing(gap=Gap.CONTRADICTORY, text=f"{text}, which cannot be")
    if accepted.low is None or drafted.low is None:
        return Reading(value=_solved(accepted.value, drafted.value), low=None, high=None, n=accepted.n)
    return _from_counts(
        rounds=window.counters["spec_drafts"],
        drafted=window.counters["spec_draft_tokens"],
        accepted=min(window.counters["spec_accepted_tokens"], window.counters["spec_draft_tokens"]),
        at_position=_at_position(window),
    )


def _from_gauges(window: Window) -> SignalValue:
    """Return the acceptance of an engine that prints only averages.

    The averages are tokens per round (with the bonus token) and draft positions per round, over the engine's last log
    interval. They leave the result without bounds (SGLang srt/observability/metrics_collector.py: spec_accept_length,
    spec_num_steps).
    """
    length, steps = mean_level(window, "spec_accept_length"), mean_level(window, "spec_steps")
    if isinstance(length, Missing) or not length.value:
        return length if isinstance(length, Missing) else Missing(gap=Gap.NO_TRAFFIC, text="no token was drafted")
    if isinstance(steps, Missing) or not steps.value:
        text = "the engine prints tokens a round, not of how many drafted: acceptance per token does not follow"
        return Missing(gap=Gap.NOT_EXPOSED, text=text)
    accepted = min(max(0.0, length.value - 1), steps.value)
    return Reading(value=_solved(accepted, steps.value), low=None, high=None, n=length.n)


def _at_position(window: Window) -> tuple[float, ...]:
    """Return the accepted tokens by position. Return an empty tuple if the engine does not expose them."""
    names = [name for name in window.counters if name.startswith(AT_POSITION) and name[len(AT_POSITION) :].isdigit()]
    return tuple(window.counters[name] for name in sorted(names, key=lambda name: int(name[len(AT_POSITION) :])))


def _from_counts(rounds: float, drafted: float, accepted: float, at_position: tuple[float, ...]) -> Reading:
    refused = drafted - accepted
    longest = max(len(at_position), math.ceil(drafted / rounds))
    most = min(refused, rounds - (at_position[-1] if at_position else 0.0))
    fewest = refused / longest if at_position else 0.0
    low = accepted / (accepted + max(most, fewest)) if accepted else 0.0
    high = accepted / (accepted + fewest) if accepted else 0.0
    value = _solved(accepted / rounds, drafted / rounds)
    return Reading(value=min(high, max(low, value)), low=low, high=high, n=rounds)


def _solved(mean_accepted: float, mean_length: float) -> float:
    """Solve by bisection for the a at which rounds of `mean_length` tokens accept `mean_accepted`. A fractional length
    is a mixture of two whole lengths: n-gram drafts are often shorter than the maximum."""
    whole = math.floor(mean_length)
    longer = mean_length - whole
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if expected_tokens_per_round(middle, whole) - 1 + longer * middle ** (whole + 1) < mean_accepted:
            low = middle
        else:
            high = middle
    return high


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """Facts from the plan or the configuration: GPUs per replica, price per hour, objectives and present capacity per
    replica.

    The ITL objective is None where engine and plan do not mean the same by ITL.
    """

    gpus_per_replica: float | None = None
    gpu_hour_price: float | None = None
    ttft_slo_seconds: float | None = None
    tpot_slo_seconds: float | None = None
    itl_slo_seconds: float | None = None
    e2e_slo_seconds: float | None = None
    prefix_reuse_seconds: float | None = None
    peak_flops: float | None = None
    peak_bytes_per_second: float | None = None
    capacity: Capacity | None = None


def _exactly(value: float, n: float) -> Reading:
    return Reading(value=value, low=value, high=value, n=n)


def _arrivals(window: Window, basis: PlanFacts) -> SignalValue:
    """Return the arrival rate: the engine's count, or finished, failed and refused requests plus the change of requests
    in the system. The second form misses unobserved aborts, so it is a lower bound (METRICS 3)."""
    if "requests_arrived" in window.counters:
        return total_rate(window, "requests_arrived")
    for family in ("requests_finished", NET_CHANGE):
        if family not in window.counters or window.seconds_of(family) <= 0:
            return Missing(gap=window.explain_missing("requests_running" if family == NET_CHANGE else family))
    finished = window.counters["requests_finished"] + unserved(window.counters) + count_gone(window)
    change = window.counters[NET_CHANGE]
    of_finished, of_change = window.seconds_of("requests_finished"), window.seconds_of(NET_CHANGE)
    together = abs(of_finished - of_change) <= ALL * window.due_seconds
    at_least = max(0.0, finished + change) / window.span if together else 0.0
    if not FULL_COVERAGE <= min(of_finished, of_change) / window.due_seconds <= 1 + ALL:
        return Reading(value=None, low=at_least, high=None, n=finished)
    per_replica = max(0.0, finished / of_finished + change / of_change)
    return Reading(value=per_replica * window.due_seconds / window.span, low=at_least, high=None, n=finished)


def _failed_share(window: Window) -> SignalValue:
    """Return failed by served plus failed requests. The bounds follow from the overlap of the two failure counts."""
    ends = outcomes(window)
    if isinstance(ends, Missing):
        return ends
    if ends.accepted_requests <= 0:
        return gap_for_empty_family(window, "requests_finished")
    value, most = ends.failed / ends.accepted_requests, ends.most_failed / (ends.served + ends.most_failed)
    return Reading(value=value, low=0.0 if ends.doubt else value, high=most, n=ends.accepted_requests)


def _refused_share(window: Window) -> SignalValue:
    """Return refused requests of every counted kind by all ended requests."""
    ends = outcomes(window)
    if isinstance(ends, Missing):
        return ends
    if not {NO_ROOM, HTTP_REFUSED} & window.counters.keys():
        return Missing(gap=window.explain_missing(NO_ROOM))
    if ends.all_requests <= 0:
        return gap_for_empty_family(window, "requests_finished")
    return _exactly((ends.no_room + ends.bad) / ends.all_requests, ends.all_requests)


def _evictions_per_running(window: Window, basis: PlanFacts) -> SignalValue:
    """Return preemptions per second and running request (guide 7.4)."""
    rate, running = replica_rate(window, "preemptions"), mean_level(window, "requests_running")
    if rate is None:
        return Missing(gap=window.explain_missing("preemptions"))
    if isinstance(running, Missing):
        return running
    if not running.value:
        return gap_for_empty_family(window, "preemptions")
    low = rate / running.high if running.high else None
    high = rate / running.low if running.low else None
    return Reading(value=rate / running.value, low=low, high=high, n=window.counters["preemptions"])


def _reuse(window: Window, basis: PlanFacts) -> SignalValue:
    computed = ratio(window, "prompt_tokens_computed", "prompt_tokens")
    if isinstance(computed, Missing) or computed.value is None:
        return computed
    if has_repeated_lookups(computed.value, 1.0):
        text = f"{computed.value:.3g} prompt tokens were computed for each that was sent: they are counted again"
        return Missing(gap=Gap.CONTRADICTORY, text=text)
    value = max(0.0, 1 - computed.value)
    bound = None if computed.low is None else value
    return Reading(value=value, low=bound, high=bound, n=computed.n)


def _tokens_per_round(window: Window, basis: PlanFacts) -> SignalValue:
    if "spec_drafts" not in window.counters and "spec_accept_length" in window.gauges:
        printed = mean_level(window, "spec_accept_length")
        silent = isinstance(printed, Reading) and not printed.high
        return Missing(gap=Gap.NO_TRAFFIC, text="no token was drafted") if silent else printed
    accepted = ratio(window, "spec_accepted_tokens", "spec_drafts")
    if isinstance(accepted, Missing) or accepted.value is None:
        return accepted
    bound = None if accepted.low is None else 1 + accepted.low
    return Reading(value=1 + accepted.value, low=bound, high=bound, n=accepted.n)


def _cache_hits(cache: str) -> Callable[[Window, PlanFacts], SignalValue]:
    """Return how hits of a cache are read: by lookups, in tokens, or by the engine's own ratio."""
    part, whole, gauge = f"{cache}_hit_tokens", f"{cache}_queried_tokens", f"{cache}_hit_gauge"

    def read(window: Window, basis: PlanFacts) -> SignalValue:
        if whole in window.counters or gauge not in window.gauges:
            return lookup_share(window, part, whole)
        reading = mean_level(window, gauge)
        if isinstance(reading, Reading) and reading.high is not None and reading.high > 1 + ALL:
            return Missing(gap=Gap.CONTRADICTORY, text=f"the engine prints a hit rate of {reading.high:.4g}, above 1")
        return reading

    return read


def _offload_utilization(window: Window) -> SignalValue:
    """Return the engine's ratio, or the tokens in the offloaded cache by those that fit."""
    if "kv_offload_utilization" in window.gauges:
        return mean_level(window, "kv_offload_utilization")
    return gpu_windows.level_ratio(window, "kv_offload_used_tokens", "kv_offload_total_tokens")


def _residency_by_reuse(window: Window, basis: PlanFacts) -> SignalValue:
    """Return the median life of a KV block by the planned time until its prefix comes back."""
    if basis.prefix_reuse_seconds is None:
        return Missing(gap=Gap.NOT_IN_PLAN, text="the plan does not tell when a prefix comes back")
    reuse, life = basis.prefix_reuse_seconds, quantile(window, "kv_residency_seconds", 0.5)
    return life if isinstance(life, Missing) else life.map(lambda seconds: seconds / reuse)


def _fleet_utilization(window: Window, basis: PlanFacts) -> SignalValue:
    """Return work by the capacity of live replicas (DESIGN 3.12), bounded by `rules.telemetry.work`."""
    if basis.capacity is None or basis.capacity.is_lower_bound:
        return Missing(gap=Gap.NOT_IN_PLAN, text="the plan has no curve to derive usable rps from")
    work = work_of(window, basis.capacity.lengths)
    if work is None:
        return Missing(gap=window.explain_missing(basis.capacity.lengths.only or "requests_finished"))
    capacity = basis.capacity.rps
    return work.total.map(lambda rps: rps / capacity)


def tokens_per_gpu_hour(window: Window, basis: PlanFacts) -> SignalValue:
    """Return generated tokens / (covered replica-hours x GPUs per replica)."""
    if basis.gpus_per_replica is None:
        return Missing(gap=Gap.NOT_IN_PLAN)
    rate = replica_rate(window, "generation_tokens")
    if rate is None:
        return Missing(gap=window.explain_missing("generation_tokens"))
    return _exactly(rate * 3600 / basis.gpus_per_replica, window.counters["generation_tokens"])


def _cost(window: Window, basis: PlanFacts) -> SignalValue:
    """Return the measured cost. It divides by measured tokens once (DESIGN 3.14)."""
    if basis.gpu_hour_price is None:
        return Missing(gap=Gap.NOT_IN_PLAN, text="the plan has no gpu_hour_price")
    made = tokens_per_gpu_hour(window, basis)
    if isinstance(made, Missing):
        return made
    if not made.value:
        return gap_for_empty_family(window, "generation_tokens")
    return _exactly(cost_per_million_tokens(1.0, basis.gpu_hour_price, made.value), made.n)


def _cold_start(window: Window, basis: PlanFacts) -> SignalValue:
    """Return the mean time from process start to ready, over the observed restarts with a known time.

    An engine that reports only its own startup time (SGLang startup_time_seconds) gives a lower bound. The container
    and the interpreter start before that clock.
    """
    if "cold_starts" in window.counters:
        return ratio(window, "cold_start_seconds", "cold_starts")
    if "engine_startup_seconds" in window.gauges:
        gauge_sum = window.gauges["engine_startup_seconds"]
        return Reading(value=None, low=gauge_sum.minimum, high=None, n=gauge_sum.samples)
    if "restarts" in window.counters:
        return Missing(gap=Gap.NOT_EXPOSED, text="the page does not tell when the engine was ready")
    return Missing(gap=Gap.NO_TRAFFIC, text="no restart was seen")


def _alone(way: Callable[[Window], SignalValue]) -> Callable[[Window, PlanFacts], SignalValue]:
    """Adapt a function of the window alone to the signature of DERIVED."""
    return lambda window, _: way(window)


DERIVED: dict[str, Callable[[Window, PlanFacts], SignalValue]] = {
    "tpot_mean_seconds": _alone(tpot_mean),
    "arrival_rps": _arrivals,
    "failed_share": _alone(_failed_share),
    "refused_share": _alone(_refused_share),
    "evictions_per_running_request_per_second": _evictions_per_running,
    "prefix_hit_ratio": _cache_hits("prefix"),
    "prefix_reuse_ratio": _reuse,
    "external_prefix_hit_ratio": _cache_hits("external_prefix"),
    "kv_offload_utilization": _alone(_offload_utilization),
    "kv_residency_by_reuse": _residency_by_reuse,
    "speculative_acceptance": _alone(acceptance),
    "tokens_per_round": _tokens_per_round,
    "gpu_utilization": _alone(gpu_windows.utilization),
    "gpu_memory_utilization": _alone(lambda window: gpu_windows.level_ratio(window, *gpu_windows.MEMORY)),
    "gpu_power_watts": _alone(gpu_windows.power),
    "energy_per_generated_token": lambda window, plan: energy(window, plan.gpus_per_replica, "generation_tokens"),
    "mfu": lambda window, plan: share_of_peak(window, plan.peak_flops, "estimated_flops"),
    "mbu": lambda window, plan: share_of_peak(
        window, plan.peak_bytes_per_second, "estimated_read_bytes", "estimated_write_bytes"
    ),
    "gpu_throttled_ratio": _alone(gpu_windows.throttled),
    "fleet_utilization": _fleet_utilization,
    "tokens_per_gpu_hour": tokens_per_gpu_hour,
    "cost_per_million_tokens": _cost,
    "cold_start_seconds": _cold_start,
}
"""Functions of derived signals, by signal name."""
