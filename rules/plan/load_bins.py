"""Windows placed on the benchmark curve by their load, and sums of them by load bin.

Completed requests per second saturate (DESIGN 3.4): an engine that jams completes few and looks lightly loaded. A
replica's minute is therefore off the curve while its queue grows, and until the queue of an overload is worked off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from rules.plan.capacity import POOL_TOKENS, planned_capacity, pool_capacity
from rules.plan.curve import Curve
from rules.plan.gpus import gpu_peaks
from rules.plan.schema import TierPlan
from rules.telemetry import histograms, windows
from rules.telemetry.derived import PlanFacts
from rules.telemetry.gauges import BURST_SECONDS, IN_SYSTEM, IN_SYSTEM_BY_LITTLE, GaugeSum
from rules.telemetry.histograms import Histogram
from rules.telemetry.reading_methods import replica_rate
from rules.telemetry.windows import HOUR_SECONDS, Window
from rules.telemetry.work import Capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class TierContext:
    """A tier as judgements see it: its plan (None where there is none), the curve, and what readings need of it.

    `itl_comparable` says whether benchmark and engine mean the same by ITL. `limits` override thresholds by rule, `pools`
    says which pool a replica belongs to (mixed, prefill, decode), where that is known. `pool` is the one that
    `narrow_to_pool` left, "" for the whole tier.
    """

    name: str
    plan: TierPlan | None
    curve: Curve | None
    basis: PlanFacts
    itl_comparable: bool = True
    limits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    pools: Mapping[str, str] = field(default_factory=dict)
    pool: str = ""

    @property
    def serves_whole_requests(self) -> bool:
        """Return whether all replicas do the same part of a request: all of it, or that of the one pool.

        Otherwise no load is the capacity of a replica.
        """
        if self.pool:
            return True
        planned = self.plan is None or self.plan.pools == ("mixed",)
        return planned and POOL_TOKENS.keys().isdisjoint(self.pools.values())

    @property
    def capacity(self) -> Capacity | None:
        """Return the present capacity of one replica, None if neither plan nor production gives it."""
        return self.basis.capacity


def pool_of(context: TierContext, replica: str | None) -> str:
    """Return the pool of a replica, "" if unknown. Hours of the history have a pool's name as their replica."""
    known = replica or ""
    return context.pools.get(known, known if known in POOL_TOKENS else "")


def narrow_to_pool(context: TierContext, pool: str, seen: Window | None) -> TierContext:
    """Return one pool as a tier of its own. Its capacity counts requests of the lengths `seen` in the pool.

    What the plan says of whole replicas is left out. The planned replicas are the pool's.
    """
    plan, result = context.plan, None
    if plan is not None:
        counters = seen.counters if seen else {}
        tokens, finished = (counters.get(name, 0.0) for name in (POOL_TOKENS[pool], "requests_finished"))
        result = pool_capacity(plan, pool, tokens / finished if tokens > 0 and finished > 0 else None)
        count = getattr(plan.disaggregation, f"{pool}_instances", None)
        fleet = {"instances": count, "minimum_warm": None}
        kept = plan.fleet.model_copy(update=fleet) if plan.fleet and count else None
        plan = plan.model_copy(update={"curve": None, "operating_point": None, "fleet": kept})
    return replace(context, plan=plan, curve=None, basis=replace(context.basis, capacity=result), pool=pool)


def with_capacity(context: TierContext, capacity: Capacity | None) -> TierContext:
    """Return the context with production's capacity, or unchanged for None."""
    return context if capacity is None else replace(context, basis=replace(context.basis, capacity=capacity))


def build_tier_context(
    tier: str,
    plan: TierPlan | None,
    itl_comparable: bool = True,
    limits: Mapping[str, Mapping[str, float]] | None = None,
    pools: Mapping[str, str] | None = None,
) -> TierContext:
    """Return the context of a tier from its plan."""
    basis = PlanFacts()
    if plan is not None:
        flops, bandwidth = gpu_peaks(plan)
        basis = PlanFacts(
            peak_flops=flops,
            peak_bytes_per_second=bandwidth,
            prefix_reuse_seconds=plan.workload.prefix_reuse_seconds if plan.workload else None,
            gpus_per_replica=plan.gpu.per_replica,
            gpu_hour_price=plan.cost.gpu_hour_price if plan.cost else None,
            ttft_slo_seconds=plan.slo.ttft_p99_seconds,
            tpot_slo_seconds=plan.slo.tpot_p99_seconds,
            itl_slo_seconds=plan.slo.itl_p99_seconds if itl_comparable else None,
            e2e_slo_seconds=plan.slo.e2e_p99_seconds,
            capacity=planned_capacity(plan),
        )
    return TierContext(
        name=tier,
        plan=plan,
        curve=Curve.from_plan(plan) if plan else None,
        basis=basis,
        itl_comparable=itl_comparable,
        limits=limits or {},
        pools=pools or {},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BinnedWindow:
    """Window of one replica (or of a tier's load bin) with its load: completed requests per second and replica, and
    requests in the system. `bin` is its place on the curve, or None. `beyond` then says that the load was beyond the
    benchmark, `backlog` that requests waited for such a load that was over. `leftover` are those that still wait.
    """

    replica: str | None
    window: Window
    rps: float | None
    in_system: float | None
    bin: int | None = None
    beyond: str = ""
    backlog: str = ""
    leftover: float = 0.0

    @property
    def outside(self) -> str:
        """Return why a load is outside the benchmark, "" if it is inside or unknown."""
        return self.beyond or self.backlog


def bin_window(window: Window, curve: Curve | None, replica: str | None, bin: int | None = None) -> BinnedWindow:
    """Return a window with its load. `bin` is given where the window is already the sum of one bin (history)."""
    rps = replica_rate(window, "requests_finished")
    in_system = _in_system(window)
    placed = BinnedWindow(replica=replica, window=window, rps=rps, in_system=in_system, bin=bin)
    if curve is None or rps is None or bin is not None:
        return placed
    place, beyond = curve.place(rps, in_system)
    counted = window.gauges.get(IN_SYSTEM_BY_LITTLE)
    if counted is not None and len({curve.place(rps, end)[0] for end in (counted.minimum, counted.maximum)}) > 1:
        # The bounds of Little's law leave open where it lies.
        return placed
    running = window.gauges.get(IN_SYSTEM[0])
    is_rare = counted is None and running is not None and running.seconds > BURST_SECONDS * running.samples
    if beyond and in_system is not None and is_rare:
        # One sample of n requests has a standard deviation of sqrt(n) (Poisson): one of them is allowed.
        place, beyond = curve.place(rps, max(0.0, in_system - math.sqrt(in_system)))
    return replace(placed, bin=place, beyond=beyond)


def _in_system(window: Window) -> float | None:
    """Return the mean running + waiting requests of one replica, by Little's law where gauges have gaps.

    Gauges of unequal coverage would not add up, so both must be there.
    """
    gauges = [window.gauges[name] for name in IN_SYSTEM if name in window.gauges and window.gauges[name].seconds > 0]
    sampled = math.fsum([gauge.mean for gauge in gauges]) if len(gauges) == len(IN_SYSTEM) else None
    counted = window.gauges.get(IN_SYSTEM_BY_LITTLE)
    if counted is None:
        return sampled if sampled is not None and all(map(window.gauge, IN_SYSTEM)) else None
    if sampled is None:
        return counted.mean
    return (counted.integral + sampled * gauges[0].seconds) / (counted.seconds + gauges[0].seconds)


@dataclass(frozen=True)
class LoadBin:
    """The slices of one load bin with the load of their sum; families are added up only when asked for."""

    binned: tuple[BinnedWindow, ...]

    @cached_property
    def rps(self) -> float:
        """Return the completed requests per second of one replica."""
        seconds = math.fsum(s.window.seconds_of("requests_finished") for s in self.binned)
        return self.counter("requests_finished") / seconds if seconds > 0 else 0.0

    @cached_property
    def in_system(self) -> float | None:
        """Return the mean requests in the system of one replica."""
        known = [(s.in_system, s.window.covered_seconds) for s in self.binned if s.in_system is not None]
        weight = math.fsum(w for _, w in known)
        return math.fsum(v * w for v, w in known) / weight if weight > 0 else None

    def parts(self, family: str) -> tuple[Histogram, ...]:
        return histograms.sum_histograms(part for s in self.binned for part in s.window.histograms.get(family, ()))

    def counter(self, family: str) -> float:
        return math.fsum(s.window.counters.get(family, 0.0) for s in self.binned)

    def gauge(self, family: str) -> tuple[float, float, bool]:
        """Return the time integral of a gauge, its covered seconds, and whether any of it comes from a plain poll."""
        gauges = [s.window.gauges[family] for s in self.binned if family in s.window.gauges]
        sampled = any(family in s.window.sampled for s in self.binned)
        return math.fsum(g.integral for g in gauges), math.fsum(g.seconds for g in gauges), sampled


def sum_by_bin(binned: Iterable[BinnedWindow]) -> tuple[BinnedWindow, ...]:
    """Return one slice a load bin, and one for what was beyond the benchmark, by the bins that each was booked in."""
    return tuple(
        # Without the curve, so that nothing is placed anew: the history knows in which bin each minute was.
        replace(
            bin_window(windows.sum_windows(sample.window for sample in group), None, None, bin),
            beyond=next((sample.beyond for sample in reversed(group) if sample.beyond), ""),
        )
        for bin, group in windows.group_by(binned, lambda sample: sample.bin).items()
    )


def sum_by_hour(binned: Iterable[BinnedWindow]) -> tuple[BinnedWindow, ...]:
    """Return the sum of the load bins of each hour and pool, oldest first.

    It adds them all at once: bin after bin would take most of a report's time.
    """
    grouped = windows.group_by(binned, lambda part: (part.window.middle // HOUR_SECONDS, part.replica or ""))
    sums = {key: windows.sum_windows(part.window for part in grouped[key]) for key in sorted(grouped)}
    return tuple(
        BinnedWindow(replica=replica or None, window=whole, rps=None, in_system=None)
        for (_, replica), whole in sums.items()
    )


def sum_load_bins(binned: Iterable[BinnedWindow]) -> dict[int, LoadBin]:
    """Return the windows that have a load bin, by it."""
    grouped = windows.group_by(binned, lambda sample: sample.bin)
    return {bin: LoadBin(tuple(group)) for bin, group in grouped.items() if bin is not None}


QUEUE = 1.0
"""Mean waiting requests below which there is no queue to speak of: less than one always waits."""

GROWTH = 0.05
"""Arrivals above completions by less than this share are the coming and going of a full batch (measured: 1-3 %)."""

AFTER_SECONDS = 90.0
"""A minute that begins later than this after the one before says nothing about that one's queue."""


def mark_backlog(binned: BinnedWindow, before: BinnedWindow | None) -> BinnedWindow:
    """Return a replica's minute without its bin if a backlog dominates its latencies.

    The queue grows: more requests wait than in the minute `before`, and more arrived than finished. That is load beyond
    the benchmark. The queue is worked off: first tokens of this minute belong to requests of an overload.
    """
    queue = waiting_gauge(binned.window)
    if queue is None or (binned.bin is None and not binned.beyond):
        return binned
    if before is not None and binned.window.start - before.window.end > AFTER_SECONDS:
        before = None
    if binned.beyond:
        return replace(binned, leftover=queue.maximum)
    growing = _growing(binned, queue, before)
    if growing:
        return replace(binned, bin=None, beyond=growing, leftover=queue.maximum)
    left = before.leftover if before is not None else 0.0
    if min(left, queue.maximum) < QUEUE:
        return binned
    first = binned.window.histograms.get("ttft_seconds")
    # First tokens, or finished requests if the engine has no TTFT.
    begun = math.fsum(p.n for p in first) if first else binned.window.counters.get("requests_finished", 0.0)
    leftover = max(0.0, min(left - begun, queue.maximum))
    backlog = f"{left:.0f} requests that an overload had left waiting were worked off"
    return replace(binned, bin=None, backlog=backlog, leftover=leftover)


WAITING = ("requests_waiting_capacity", "requests_waiting")
"""Gauges of requests that wait for capacity; the first one that the engine has counts."""


def waiting_gauge(window: Window) -> GaugeSum | None:
    """Return the gauge of requests that wait for capacity, without held-back ones if the engine separates them."""
    return next((gauge for gauge in map(window.gauge, WAITING) if gauge is not None), None)


def _growing(binned: BinnedWindow, queue: GaugeSum, before: BinnedWindow | None) -> str:
    """Return how a queue grows, "" if it does not. Two minutes of a growing queue count together."""
    earlier = waiting_gauge(before.window) if before is not None else None
    if queue.mean < QUEUE or (earlier is not None and queue.mean <= earlier.mean):
        return ""
    together = [binned.window] if before is None or not before.beyond else [before.window, binned.window]
    finished = math.fsum(w.counters.get("requests_finished", 0.0) for w in together)
    more = math.fsum(w.counters.get("in_system_change", 0.0) for w in together)
    if more < max(1.0, GROWTH * finished):
        return ""
    arrived = f"{finished + more:,.0f} requests arrived"
    return f"{arrived}, {finished:,.0f} finished, and the queue grew to {queue.maximum:.0f}"


def describe_growth(binned: Sequence[BinnedWindow], now: float) -> str | None:
    """Return a sentence about a queue of one replica that grew over the whole hold, or "" (DESIGN 3.4).

    In every third more arrived than finished and more waited than before. The last third has twice the first's queue: a
    busy queue fluctuates less. One that began later doubles in two thirds. None if a third does not tell the queue.
    """
    start = min((s.window.start for s in binned), default=now)
    seconds = max(now - start, 1e-9)
    thirds: list[list[BinnedWindow]] = [[], [], []]
    for sample in binned:
        thirds[min(2, int((sample.window.middle - start) / seconds * 3))].append(sample)
    first, second, third = map(mean_waiting, thirds)
    if first is None or second is None or third is None:
        return None
    if third < QUEUE or third < 2 * first:
        return ""
    more = [math.fsum(s.window.counters.get("in_system_change", 0.0) for s in group) for group in thirds]
    grows = more[0] > 0 or first < QUEUE <= second <= third / 2
    if not (first < second < third and grows and min(more[1:]) > 0):
        return ""
    return f"more requests arrive than finish: {first:.1f}, {second:.1f}, then {third:.1f} were waiting"


def mean_waiting(binned: Sequence[BinnedWindow]) -> float | None:
    """Return the mean waiting requests of one replica, None if the gauges cover less than half of the time."""
    gauges = [gauge for s in binned if (gauge := waiting_gauge(s.window)) is not None]
    seconds = math.fsum(g.seconds for g in gauges)
    if seconds <= 0 or seconds < math.fsum(s.window.covered_seconds for s in binned) / 2:
        return None
    return math.fsum(g.integral for g in gauges) / seconds
