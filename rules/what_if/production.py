"""Production's latency-throughput curve around any load of one replica, and the observed peak.

It assumes that latency never falls with load: requests at or above a load were no faster, those below no slower. The
peak comes from arrivals by five minutes, else from hours, else from the plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rules.plan.benchmark_reading import IN_SYSTEM
from rules.plan.curve import CERTAIN_REQUESTS, RPS_TOLERANCE
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.resize.production_summary import RATE_SECONDS, ProductionSummary
from rules.telemetry import histograms, windows
from rules.telemetry.arrivals import count_arrivals
from rules.telemetry.derived import PlanFacts
from rules.telemetry.outcomes import count_gone
from rules.telemetry.reading_methods import mean_level
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading, SignalKind, SignalValue
from rules.telemetry.windows import HOUR_SECONDS, Window
from rules.verdicts.context import SEPARATE

ENOUGH = 3000
"""Requests of a pool: at 99 % the bounds of chance are then the ranks 98.4 and 99.6; fewer would leave the upper end open."""

FEWEST = CERTAIN_REQUESTS

CHANCE = 3.09
"""Standard deviations of a share that chance exceeds once in a thousand (DESIGN 3.3: 99.9 %, one-sided)."""

BLOCKS = 24
"""Stretches of equal load that the whole range is cut into, where the load at which something happens is looked for."""


KV = "kv_utilization"

LEVELS = {KV: (KV,), IN_SYSTEM: ("requests_running", "requests_waiting")}
"""What is a mean of a replica over time, by the gauges that are added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBlock:
    """Requests served at loads up to `highest` of one replica; `rps` is their mean load."""

    window: Window
    highest: float
    rps: float
    requests: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductionLoads:
    """A tier's binned windows by rising load of one replica.

    `top_rps` is the highest load with FEWEST requests at or above it (None: fewer in all). `blocks` divide the range
    into stretches of about equal width with ENOUGH requests each (the lowest: FEWEST). `overloaded` requests are left
    out: more were in the system than the benchmark had, so completed requests do not show the load (DESIGN 3.4).
    """

    binned: tuple[BinnedWindow, ...]
    basis: PlanFacts
    top_rps: float | None
    blocks: tuple[LoadBlock, ...]
    overloaded: float

    def nearest_at_or_above(self, rps: float) -> LoadBlock | None:
        """Return the nearest ENOUGH requests at or above a load, None with fewer than FEWEST.

        A load within the benchmark's tolerance above the highest counts as the highest.
        """
        top = self.top_rps
        if top is not None and top < rps <= top * (1 + RPS_TOLERANCE):
            rps = top
        return _nearest(one for one in self.binned if (one.rps or 0.0) >= rps)

    def nearest_at_or_below(self, rps: float) -> LoadBlock | None:
        """Return the nearest ENOUGH requests at or below a load."""
        return _nearest(one for one in reversed(self.binned) if (one.rps or 0.0) <= rps)

    def read_at(self, name: str, rps: float) -> SignalValue:
        """Return a signal at a load of one replica, bounded by the requests just below and just above it.

        The best estimate is interpolated by logarithms. The gap is `load_not_reached` with too few requests at or above
        the load.
        """
        above, below = self.nearest_at_or_above(rps), self.nearest_at_or_below(rps)
        if above is None:
            return Missing(gap=Gap.LOAD_NOT_REACHED, text=self._reach())
        upper = read_window(above.window, name, self.basis)
        lower = read_window(below.window, name, self.basis) if below is not None else None
        if isinstance(upper, Missing) or below is None or not isinstance(lower, Reading):
            # Below all that was served: not slower than that, and nobody saw how much quicker.
            return upper if isinstance(upper, Missing) else Reading(value=None, low=0.0, high=upper.high, n=upper.n)
        low = min(lower.low or 0.0, upper.low or 0.0)
        high = None if lower.high is None or upper.high is None else max(lower.high, upper.high)
        value = _between((below.rps, lower.value), (above.rps, upper.value), rps)
        return Reading(value=value, low=low, high=high, n=lower.n + upper.n)

    def _reach(self) -> str:
        if self.top_rps is None:
            requests = math.fsum(map(count_requests, self.binned))
            return f"production served {requests:.0f} requests; {FEWEST} are needed"
        return f"production ran at {self.top_rps:.3g} rps a replica at most (with {FEWEST} requests there)"


def collect_loads(binned: Iterable[BinnedWindow], context: TierContext) -> ProductionLoads:
    """Return the windows by load, without those that worked off a backlog."""
    loaded = [one for one in binned if one.rps and not one.backlog and count_requests(one) > 0]
    known = sorted((one for one in loaded if not _overloaded(one, context)), key=lambda one: one.rps or 0.0)
    top = _top(known)
    return ProductionLoads(
        binned=tuple(known),
        basis=context.basis,
        top_rps=top,
        blocks=_blocks(known) if top is not None else (),
        overloaded=math.fsum(count_requests(one) for one in loaded if _overloaded(one, context)),
    )


def _overloaded(one: BinnedWindow, context: TierContext) -> bool:
    """Return whether the requests in the system, not the completed ones, exceed the benchmark."""
    return bool(one.beyond) and context.curve is not None and (one.rps or 0.0) <= context.curve.top_rps


def _top(known: Sequence[BinnedWindow]) -> float | None:
    requests = 0.0
    for one in reversed(known):
        requests += count_requests(one)
        if requests >= FEWEST:
            return one.rps
    return None


def _blocks(known: Sequence[BinnedWindow]) -> tuple[LoadBlock, ...]:
    width = (known[-1].rps or 0.0) / BLOCKS
    found: list[LoadBlock] = []
    group: list[BinnedWindow] = []
    requests = 0.0
    for one in reversed(known):
        if requests >= ENOUGH and (group[0].rps or 0.0) - (one.rps or 0.0) > width:
            found.append(_pool(group))
            group, requests = [], 0.0
        group.append(one)
        requests += count_requests(one)
    return (*([_pool(group)] if requests >= FEWEST else []), *reversed(found))


def read_window(window: Window, name: str, basis: PlanFacts) -> SignalValue:
    """Return a signal of pooled requests.

    Bounds of a quantile include chance: the ranks of the true quantile (99.9 % each side).
    """
    if name in LEVELS:
        return _mean_level(window, LEVELS[name])
    signal = BY_NAME[name]
    found = read(signal, window, basis)
    if isinstance(found, Missing):
        return found
    parts = window.histograms.get(signal.families[0], ())
    if signal.how is not SignalKind.QUANTILE or signal.q is None or not parts or found.low is None:
        return found
    slack = CHANCE * math.sqrt(signal.q * (1 - signal.q) / found.n)
    below = histograms.quantile(parts, max(signal.q - slack, 1 / found.n))
    above = histograms.quantile(parts, signal.q + slack) if signal.q + slack < 1 else None
    return Reading(
        value=found.value,
        low=below.low if below else found.low,
        high=above.high if above else None,
        n=found.n,
    )


def _mean_level(window: Window, families: tuple[str, ...]) -> SignalValue:
    """Return the sum of mean gauges of one replica. Extremes of a gauge are instants and no bounds of its mean."""
    total, samples = 0.0, math.inf
    for family in families:
        found = mean_level(window, family)
        if isinstance(found, Missing) or found.value is None:
            return found
        total, samples = total + found.value, min(samples, found.n)
    return Reading(value=total, low=total, high=total, n=samples)


def count_requests(one: BinnedWindow) -> float:
    """Return the finished requests of a binned window."""
    return one.window.counters.get("requests_finished", 0.0)


def _nearest(binned: Iterable[BinnedWindow]) -> LoadBlock | None:
    group: list[BinnedWindow] = []
    requests = 0.0
    for one in binned:
        group.append(one)
        requests += count_requests(one)
        if requests >= ENOUGH:
            break
    return _pool(group) if requests >= FEWEST else None


def _pool(group: Sequence[BinnedWindow]) -> LoadBlock:
    requests = math.fsum(map(count_requests, group))
    seconds = math.fsum(count_requests(one) / (one.rps or 1.0) for one in group)
    return LoadBlock(
        window=windows.sum_windows(one.window for one in group),
        highest=max(one.rps or 0.0 for one in group),
        rps=requests / seconds,
        requests=requests,
    )


def _between(lower: tuple[float, float | None], upper: tuple[float, float | None], rps: float) -> float | None:
    (below, low), (above, high) = lower, upper
    if not low or not high:
        return low if high is None else high
    share = min(1.0, max(0.0, (rps - below) / (above - below))) if above > below else 0.5
    return math.exp(math.log(low) + share * math.log(high / low))


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPeak:
    """Peak of the whole tier in rps: when (unix seconds, None: never seen), over how many `seconds`, its source.

    `highest` is the busiest single stretch.
    """

    rps: float
    at: float | None
    seconds: float
    source: str
    highest: float | None = None


NO_PEAK = "no peak was seen and the plan has none: say with --rps for which load"


def find_peak(seen: ProductionSummary) -> ObservedPeak | None:
    """Return the peak of production or of the plan, None without either."""
    rates = seen.context.plan.workload.requests_per_second if seen.context.plan and seen.context.plan.workload else None
    by_rate = ((one.rps, one.start) for one in seen.rates)
    found = _third(by_rate, RATE_SECONDS, "reached in three stretches of five minutes", SEPARATE)
    found = found or _third(_hours(seen.hours), HOUR_SECONDS, "mean of a busy hour: its busiest minutes were higher", 1)
    if found is None and rates is not None and rates.peak:
        return ObservedPeak(rps=rates.peak, at=None, seconds=0.0, source="the plan's peak: none was seen")
    return found


def count_replicas_at(seen: ProductionSummary, t: float | None) -> float | None:
    """Return the replicas of the hour of `t`, else their mean; None without any."""
    for one in seen.hours:
        if t is not None and one.middle // HOUR_SECONDS == t // HOUR_SECONDS and one.span > 0:
            return one.covered_seconds / one.span
    return seen.observed_replicas or None


def _third(several: Iterable[tuple[float, float]], seconds: float, source: str, fewest: int) -> ObservedPeak | None:
    """Return the third busiest stretch, so that one burst is no peak, or the lowest of fewer."""
    found = sorted((one for one in several if one[0] > 0), reverse=True)
    if len(found) < fewest:
        return None
    rps, at = found[min(SEPARATE, len(found)) - 1]
    return ObservedPeak(rps=rps, at=at, seconds=seconds, source=source, highest=found[0][0])


def _hours(several: Iterable[Window]) -> Iterable[tuple[float, float]]:
    for one in several:
        requests = count_arrivals(one.counters, count_gone(one))
        if requests is not None and one.span > 0 and one.coverage > 0 and math.isfinite(requests):
            yield requests / one.span / one.coverage, one.middle // HOUR_SECONDS * HOUR_SECONDS
