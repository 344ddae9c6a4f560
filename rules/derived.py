"""Signals that are a function of their own: one function each, and the list of them.

Owns how several families of a window make one number, with the source of every formula. What a window alone cannot say
(GPUs, prices, objectives) comes in as `Basis`. It never compares with a plan: judgements do. A new derived signal is a
row of `rules.signals` and a function in DERIVED here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rules import histograms
from rules.signals import Gap, Missing, Reading, SignalValue
from rules.sizing import cost_per_million_tokens
from rules.speculation import acceptance
from rules.ways import ALL, FULL_COVERAGE, level, nothing_seen, ratio, replica_rate, total_rate
from rules.windows import NET_CHANGE, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What the plan or the configuration adds: GPUs a replica, price an hour, objectives, planned capacity."""

    gpus_per_replica: float | None = None
    gpu_hour_price: float | None = None
    ttft_slo_seconds: float | None = None
    tpot_slo_seconds: float | None = None
    usable_rps: float | None = None
    planned_tokens_per_request: float | None = None


def _exactly(value: float, n: float) -> Reading:
    return Reading(value=value, low=value, high=value, n=n)


def _tpot_mean(window: Window, basis: Basis) -> SignalValue:
    """Decode time / (generated tokens - requests): what engines without a TPOT histogram allow (vLLM before 0.11)."""
    decode = window.histograms.get("decode_seconds")
    lengths = window.histograms.get("generation_tokens_per_request")
    if decode is None or lengths is None:
        return Missing(gap=window.why_missing("decode_seconds" if decode is None else "generation_tokens_per_request"))
    requests = math.fsum(part.n for part in lengths)
    if requests <= 0:
        return nothing_seen(window, "generation_tokens_per_request")
    seconds, tokens = histograms.mean(decode), histograms.mean(lengths)
    if seconds is None or tokens is None:
        return Missing(gap=Gap.NOT_EXPOSED, text="a sum that the engine printed is contradicted by its buckets")
    if tokens <= 1:
        return Missing(gap=Gap.NO_TRAFFIC, text="no request generated a second token")
    return _exactly(seconds / (tokens - 1), requests)


def _arrivals(window: Window, basis: Basis) -> SignalValue:
    """Finished requests plus the change of requests in the system; what was aborted unseen came on top (METRICS 3)."""
    for family in ("requests_finished", NET_CHANGE):
        if family not in window.counters or window.seconds_of(family) <= 0:
            return Missing(gap=window.why_missing("requests_running" if family == NET_CHANGE else family))
    finished, change = window.counters["requests_finished"], window.counters[NET_CHANGE]
    of_finished, of_change = window.seconds_of("requests_finished"), window.seconds_of(NET_CHANGE)
    together = abs(of_finished - of_change) <= ALL * window.due_seconds
    at_least = max(0.0, finished + change) / window.span if together else 0.0
    share = min(of_finished, of_change) / window.due_seconds
    if not FULL_COVERAGE <= share <= 1 + ALL:
        return Reading(value=None, low=at_least, high=None, n=finished)
    per_replica = max(0.0, finished / of_finished + change / of_change)
    return Reading(value=per_replica * window.due_seconds / window.span, low=at_least, high=None, n=finished)


def _goodput(window: Window, basis: Basis) -> SignalValue:
    """Requests a second that ended well and within both objectives.

    Only margins are exposed; of the joint share the bounds are Frechet's: max(0, a + b + c - 2) and min(a, b, c).
    """
    if basis.ttft_slo_seconds is None and basis.tpot_slo_seconds is None:
        return Missing(gap=Gap.NOT_IN_PLAN, text="the tier has neither a TTFT nor a TPOT objective")
    finished = total_rate(window, "requests_finished")
    if isinstance(finished, Missing):
        return finished
    margins = [_ended_well(window)]
    for family, slo in (("ttft_seconds", basis.ttft_slo_seconds), ("tpot_seconds", basis.tpot_slo_seconds)):
        if slo is None:
            continue
        if family not in window.histograms:
            return Missing(gap=window.why_missing(family))
        slow = histograms.above(window.histograms[family], slo)
        if slow.n <= 0:
            return nothing_seen(window, family)
        margins.append((1 - slow.high / slow.n, 1 - slow.low / slow.n))
    low = max(0.0, math.fsum(a for a, _ in margins) - (len(margins) - 1)) * (finished.low or 0.0)
    high = None if finished.high is None else min(b for _, b in margins) * finished.high
    return Reading(value=None, low=low, high=high, n=finished.n)


def _ended_well(window: Window) -> tuple[float, float]:
    """Between which shares of the finished requests were neither aborted nor failed."""
    finished = window.counters.get("requests_finished", 0.0)
    badly = math.fsum(window.counters.get(name, 0.0) for name in ("requests_aborted", "requests_failed"))
    share = max(0.0, 1 - badly / finished) if finished > 0 else 1.0
    return share, share


def _evictions_per_running(window: Window, basis: Basis) -> SignalValue:
    """Preemptions per second and running request (guide 7.4)."""
    rate, running = replica_rate(window, "preemptions"), level(window, "requests_running")
    if rate is None:
        return Missing(gap=window.why_missing("preemptions"))
    if isinstance(running, Missing):
        return running
    if not running.value:
        return nothing_seen(window, "preemptions")
    low = rate / running.high if running.high else None
    high = rate / running.low if running.low else None
    return Reading(value=rate / running.value, low=low, high=high, n=window.counters["preemptions"])


def _reuse(window: Window, basis: Basis) -> SignalValue:
    computed = ratio(window, "prompt_tokens_computed", "prompt_tokens")
    if isinstance(computed, Missing) or computed.value is None:
        return computed
    value = max(0.0, 1 - computed.value)
    bound = None if computed.low is None else value
    return Reading(value=value, low=bound, high=bound, n=computed.n)


def _acceptance(window: Window, basis: Basis) -> SignalValue:
    return acceptance(window)


def _tokens_per_round(window: Window, basis: Basis) -> SignalValue:
    accepted = ratio(window, "spec_accepted_tokens", "spec_drafts")
    if isinstance(accepted, Missing) or accepted.value is None:
        return accepted
    bound = None if accepted.low is None else 1 + accepted.low
    return Reading(value=1 + accepted.value, low=bound, high=bound, n=accepted.n)


GPU_UTILIZATION_KINDS = {
    "gr_engine_active": "gpu_gr_engine_active",
    "sm_active": "gpu_sm_active",
    "nvml_gpu": "gpu_busy_seconds",
    "amd_gfx": "gpu_gfx_active",
}
"""Which family holds which kind of utilisation; kinds are never compared with each other (DESIGN 3.4)."""


def gpu_utilization(window: Window, kind: str) -> SignalValue:
    """Utilisation of one kind (0-1): from sums where the driver keeps them, else the gauge's time mean."""
    family = GPU_UTILIZATION_KINDS[kind]
    if family != "gpu_busy_seconds":
        return level(window, family)
    found = ratio(window, "gpu_busy_seconds", "gpu_busy_covered_seconds")
    return found if isinstance(found, Reading) else level(window, "gpu_utilization_sampled")


def _gpu_utilization(window: Window, basis: Basis) -> SignalValue:
    found = gpu_utilization(window, "gr_engine_active")
    return found if isinstance(found, Reading) else gpu_utilization(window, "nvml_gpu")


def _gpu_memory(window: Window, basis: Basis) -> SignalValue:
    used, total = (window.gauges.get(name) for name in ("gpu_memory_used_bytes", "gpu_memory_total_bytes"))
    if used is None:
        return Missing(gap=window.why_missing("gpu_memory_used_bytes"))
    if total is None or total.minimum <= 0:
        return Missing(gap=window.why_missing("gpu_memory_total_bytes"))
    return Reading(
        value=used.integral / used.seconds / (total.integral / total.seconds),
        low=used.minimum / total.maximum,
        high=min(1.0, used.maximum / total.minimum),
        n=used.samples,
    )


def _gpu_power(window: Window, basis: Basis) -> SignalValue:
    found = ratio(window, "gpu_energy_joules", "gpu_energy_covered_seconds")
    return found if isinstance(found, Reading) else level(window, "gpu_power_watts")


def _fleet_utilization(window: Window, basis: Basis) -> SignalValue:
    """The larger of requests and tokens against the planned capacity of the replicas that were up (DESIGN 3.12)."""
    if basis.usable_rps is None:
        return Missing(gap=Gap.NOT_IN_PLAN, text="the plan has no curve to derive usable rps from")
    finished = replica_rate(window, "requests_finished")
    if finished is None:
        return Missing(gap=window.why_missing("requests_finished"))
    value = finished / basis.usable_rps
    prompt, generated = replica_rate(window, "prompt_tokens"), replica_rate(window, "generation_tokens")
    if basis.planned_tokens_per_request and prompt is not None and generated is not None:
        value = max(value, (prompt + generated) / (basis.usable_rps * basis.planned_tokens_per_request))
    return _exactly(value, window.counters["requests_finished"])


def tokens_per_gpu_hour(window: Window, basis: Basis) -> SignalValue:
    """Generated tokens / (covered replica-hours x GPUs a replica)."""
    if basis.gpus_per_replica is None:
        return Missing(gap=Gap.NOT_IN_PLAN)
    rate = replica_rate(window, "generation_tokens")
    if rate is None:
        return Missing(gap=window.why_missing("generation_tokens"))
    return _exactly(rate * 3600 / basis.gpus_per_replica, window.counters["generation_tokens"])


def _cost(window: Window, basis: Basis) -> SignalValue:
    """Measured cost divides by measured tokens once (DESIGN 3.14)."""
    if basis.gpu_hour_price is None:
        return Missing(gap=Gap.NOT_IN_PLAN, text="the plan has no gpu_hour_price")
    made = tokens_per_gpu_hour(window, basis)
    if isinstance(made, Missing):
        return made
    if not made.value:
        return nothing_seen(window, "generation_tokens")
    return _exactly(cost_per_million_tokens(1.0, basis.gpu_hour_price, made.value), made.n)


def _cold_start(window: Window, basis: Basis) -> SignalValue:
    """Mean time from process start to ready, of the restarts seen in the window whose pages tell it."""
    if "cold_starts" in window.counters:
        return ratio(window, "cold_start_seconds", "cold_starts")
    if "restarts" in window.counters:
        return Missing(gap=Gap.NOT_EXPOSED, text="the page does not tell when the engine was ready")
    return Missing(gap=Gap.NO_TRAFFIC, text="no restart was seen")


DERIVED: dict[str, Callable[[Window, Basis], SignalValue]] = {
    "tpot_mean_seconds": _tpot_mean,
    "arrival_rps": _arrivals,
    "goodput_rps": _goodput,
    "evictions_per_running_request_per_second": _evictions_per_running,
    "prefix_reuse_ratio": _reuse,
    "speculative_acceptance": _acceptance,
    "tokens_per_round": _tokens_per_round,
    "gpu_utilization": _gpu_utilization,
    "gpu_memory_utilization": _gpu_memory,
    "gpu_power_watts": _gpu_power,
    "fleet_utilization": _fleet_utilization,
    "tokens_per_gpu_hour": tokens_per_gpu_hour,
    "cost_per_million_tokens": _cost,
    "cold_start_seconds": _cold_start,
}
"""By the signal's name."""
