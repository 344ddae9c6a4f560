"""What production served at which load of one replica: the piece of its own latency-throughput curve around any load.

Owns the pools of requests just below and just above a load, and what they bound. It supposes one thing: that latency never
falls with load. Then requests served at a load or above it were no quicker than that load is, whatever was pooled, and those
below no slower. Whole bins as a table are `rules.resize.production_curve`'s. Another quantity needs no line here: it is a
signal's name.

The load that a what-if asks about: the peak that was seen, when, and from what; and the replicas that carried it.

Owns where a peak comes from, in order: arrivals by five minutes (as Step 11 sizes for), hours where no arrivals are
kept, the plan's peak where nothing was seen.
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


LEVELS = {"kv_utilization": ("kv_utilization",), IN_SYSTEM: ("requests_running", "requests_waiting")}
"""What is a mean of a replica over time, by the gauges that are added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBlock:
    """Requests served at loads in [lowest, highest] of one replica; `rps` is their mean load."""

    window: Window
    lowest: float
    highest: float
    rps: float
    requests: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductionLoads:
    """A tier's slices by rising load, each at one load: completed requests per second of one replica.

    `top_rps` is the highest load at or above which FEWEST requests were served (None: fewer were served at all). `blocks` are
    the whole range in stretches of about equal width, each with ENOUGH requests (the lowest: FEWEST). `overloaded` requests
    are left out: they were served with more in the system than the benchmark ever had, and completed requests no
    longer tell such a load (DESIGN 3.4).
    """

    slices: tuple[BinnedWindow, ...]
    basis: PlanFacts
    top_rps: float | None
    blocks: tuple[LoadBlock, ...]
    overloaded: float

    def nearest_at_or_above(self, rps: float) -> LoadBlock | None:
        """The ENOUGH requests that were served nearest to a load, at it or above it; None where fewer than FEWEST were.

        A load as little above the highest as the benchmark's end allows counts as that.
        """
        top = self.top_rps
        if top is not None and top < rps <= top * (1 + RPS_TOLERANCE):
            rps = top
        return _nearest(one for one in self.slices if (one.rps or 0.0) >= rps)

    def nearest_at_or_below(self, rps: float) -> LoadBlock | None:
        """The same at the load or below it."""
        return _nearest(one for one in reversed(self.slices) if (one.rps or 0.0) <= rps)

    def read_at(self, name: str, rps: float) -> SignalValue:
        """A signal at a load of one replica, with bounds: what was served just below it, and just above it.

        The best estimate lies between the two by their mean loads, by logarithms (as `rules.plan.curve` does between points).
        `load_not_reached` where too few requests were served at the load or above it: nothing is drawn on from the last point.
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
            requests = math.fsum(map(count_requests, self.slices))
            return f"production served {requests:.0f} requests; {FEWEST} are needed"
        return f"production ran at {self.top_rps:.3g} rps a replica at most (with {FEWEST} requests there)"


def collect_loads(slices: Iterable[BinnedWindow], view: TierContext) -> ProductionLoads:
    """The slices that had a load, by it. What waited for a load that was over (`rules.plan.load_bins`) was not served at its
    own."""
    loaded = [one for one in slices if one.rps and not one.backlog and count_requests(one) > 0]
    known = sorted((one for one in loaded if not _overloaded(one, view)), key=lambda one: one.rps or 0.0)
    top = _top(known)
    return ProductionLoads(
        slices=tuple(known),
        basis=view.basis,
        top_rps=top,
        blocks=_blocks(known) if top is not None else (),
        overloaded=math.fsum(count_requests(one) for one in loaded if _overloaded(one, view)),
    )


def _overloaded(one: BinnedWindow, view: TierContext) -> bool:
    """Beyond the benchmark by what is in the system, not by what is completed."""
    return bool(one.beyond) and view.curve is not None and (one.rps or 0.0) <= view.curve.top_rps


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
    """A signal of pooled requests. Of a quantile the bounds are wider than a reading's by chance: those of the ranks between
    which the quantile of such requests lies (99.9 % each way), not only of these."""
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
    """The mean of gauges of one replica, added up. The extremes of a gauge are those of instants, and no bounds of it."""
    total, samples = 0.0, math.inf
    for family in families:
        found = mean_level(window, family)
        if isinstance(found, Missing) or found.value is None:
            return found
        total, samples = total + found.value, min(samples, found.n)
    return Reading(value=total, low=total, high=total, n=samples)


def count_requests(one: BinnedWindow) -> float:
    """Requests that finished in a slice."""
    return one.window.counters.get("requests_finished", 0.0)


def _nearest(slices: Iterable[BinnedWindow]) -> LoadBlock | None:
    group: list[BinnedWindow] = []
    requests = 0.0
    for one in slices:
        group.append(one)
        requests += count_requests(one)
        if requests >= ENOUGH:
            break
    return _pool(group) if requests >= FEWEST else None


def _pool(group: Sequence[BinnedWindow]) -> LoadBlock:
    loads = [one.rps or 0.0 for one in group]
    requests = math.fsum(map(count_requests, group))
    seconds = math.fsum(count_requests(one) / (one.rps or 1.0) for one in group)
    return LoadBlock(
        window=windows.sum_windows(one.window for one in group),
        lowest=min(loads),
        highest=max(loads),
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
    """Requests per second of the whole tier; `at` is when it was (unix seconds, None: never seen) over `seconds`, `source` says of
    what it is the peak. `highest` is the busiest single stretch."""

    rps: float
    at: float | None
    seconds: float
    source: str
    highest: float | None = None


def find_peak(seen: ProductionSummary) -> ObservedPeak | None:
    """The peak of the time; None where neither production nor plan has one."""
    rates = seen.view.plan.workload.requests_per_second if seen.view.plan and seen.view.plan.workload else None
    by_rate = ((one.rps, one.start) for one in seen.rates)
    found = _third(by_rate, RATE_SECONDS, "reached in three stretches of five minutes", SEPARATE)
    found = found or _third(_hours(seen.hours), HOUR_SECONDS, "mean of a busy hour: its busiest minutes were higher", 1)
    if found is None and rates is not None and rates.peak:
        return ObservedPeak(rps=rates.peak, at=None, seconds=0.0, source="the plan's peak: none was seen")
    return found


def count_replicas_at(seen: ProductionSummary, t: float | None) -> float | None:
    """Replicas that were seen in the hour of `t`; without it, or where that hour is not known, on average. None: none."""
    for one in seen.hours:
        middle = (one.start + one.end) / 2
        if t is not None and middle // HOUR_SECONDS == t // HOUR_SECONDS and one.span > 0:
            return one.covered_seconds / one.span
    return seen.mean_ready_replicas or None


def _third(several: Iterable[tuple[float, float]], seconds: float, source: str, fewest: int) -> ObservedPeak | None:
    """Of the busiest three the lowest, so that one burst is no peak; of fewer the lowest of those there are."""
    found = sorted((one for one in several if one[0] > 0), reverse=True)
    if len(found) < fewest:
        return None
    rps, at = found[min(SEPARATE, len(found)) - 1]
    return ObservedPeak(rps=rps, at=at, seconds=seconds, source=source, highest=found[0][0])


def _hours(several: Iterable[Window]) -> Iterable[tuple[float, float]]:
    for one in several:
        requests = count_arrivals(one.counters)
        if requests is not None and one.span > 0 and one.coverage > 0 and math.isfinite(requests):
            yield requests / one.span / one.coverage, (one.start + one.end) / 2 // HOUR_SECONDS * HOUR_SECONDS
