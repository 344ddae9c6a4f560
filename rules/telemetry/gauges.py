"""Gauges between two scrapes: their time integral, or the reason why it is unknown.

A gauge describes an instant. Between two scrapes it is known only while its quantity cannot rise and fall unseen.
Beyond that, Little's law on finished requests gives the number in the system (DESIGN 3.11).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rules.telemetry.histograms import Histogram, quantile
from rules.telemetry.signals import Gap
from rules.telemetry.snapshots import Snapshot

IN_SYSTEM = ("requests_running", "requests_waiting")

IN_SYSTEM_BY_LITTLE = "requests_in_system"
"""Requests in the system by Little's law, for windows without usable gauges. Its extremes bound the mean."""

STEP_FAMILY = "engine_steps"
"""Counter of engine steps. Gauges change only with a step (vLLM issue 29928)."""

TOKEN_FAMILY = "itl_seconds"
"""Histogram that grows with every token. Without a step counter, it shows that an engine which counts nothing was
still."""

STEP_GAUGES = frozenset(
    {*IN_SYSTEM, "requests_waiting_capacity", "requests_waiting_deferred", "kv_utilization", "kv_utilization_max"}
)

GAUGE_HOLD_SECONDS = 75.0
"""Longest time between two scrapes, in seconds, over which a gauge is interpolated. Longer requests extend it. Ours:
the longest scrape interval of an agent (60 s) and a quarter of it."""

BURST_SECONDS = 45.0
"""Longest distance of two scrapes, in seconds, at which a short burst is left to the mean over minutes. Only gauges
that are idle at both are checked against finished requests. Ours: 1.5 times the longest usual interval (30 s)."""

FRONT_END = 0.2
"""Share of a request's time in a busy engine's front end, where no gauge counts it. Ours: clients measured up to 570 ms
of overhead at a saturated engine."""

SIGMA = 3.0
"""Standard deviations (Poisson) by which samples may differ from the mean by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeSum:
    """Gauge over a window: time integral (unit x seconds), covered seconds, extremes and number of samples."""

    integral: float
    seconds: float
    minimum: float
    maximum: float
    samples: float

    @property
    def mean(self) -> float:
        """Return the mean over the covered time. Rounding never moves it past the extremes."""
        return min(max(self.integral / self.seconds, self.minimum), self.maximum)


def sum_gauges(
    earlier: Snapshot, later: Snapshot, counters: Mapping[str, float], parts: Mapping[str, tuple[Histogram, ...]]
) -> tuple[dict[str, GaugeSum], dict[str, Gap]]:
    """Return the gauges between two pages of one process, and the gaps of gauges that both pages have.

    `counters` and `parts` are the increases between the pages. A gauge that holds is integrated by trapezoids. A
    stalled engine keeps its last gauges, so only zeros are accepted for that time, and none beside a queue.
    """
    dt = later.t - earlier.t
    still = _is_still(counters, parts)
    queued = still and later.gauges.get("requests_waiting", 0.0) > 0
    shown = [page.gauges.get(name, 0.0) for name in IN_SYSTEM for page in (earlier, later)]
    # Most scrapes need no estimate.
    finished = _estimate_in_system(earlier, later, parts) if dt > BURST_SECONDS or not any(shown) else None
    # Nine of ten requests took longer: one that is observed at a scrape stays.
    shortest = quantile(parts.get("e2e_seconds", ()), 0.1)
    holds = dt <= GAUGE_HOLD_SECONDS or (shortest is not None and dt <= (shortest.low or 0.0))
    refuted = finished is not None and _is_refuted(math.fsum(shown) / 2, finished)
    sums: dict[str, GaugeSum] = {}
    gaps: dict[str, Gap] = {}
    for family, value in later.gauges.items():
        before = earlier.gauges.get(family)
        if before is None:
            continue
        of_steps = family in STEP_GAUGES
        if still and of_steps and (value != 0 or queued):
            gaps[family] = Gap.STALE
        elif not (holds or family == "engine_startup_seconds" or (still and of_steps)):
            gaps[family] = Gap.NOT_SCRAPED
        elif refuted and of_steps:
            gaps[family] = Gap.CONTRADICTORY
        else:
            sums[family] = interpolate(before, value, dt)
    if finished is not None and any(family in gaps for family in IN_SYSTEM):
        sums[IN_SYSTEM_BY_LITTLE] = finished
    return sums, gaps


def tells_in_system(page: Snapshot) -> bool:
    """Return whether a page has both gauges of the requests in the system."""
    return page.gauges.keys() >= set(IN_SYSTEM)


def interpolate(before: float, value: float, dt: float) -> GaugeSum:
    """Return the sum of a gauge that changed linearly between two values in `dt` seconds."""
    # Hot path: some gauges of every scrape.
    low, high = (before, value) if before <= value else (value, before)
    return GaugeSum(integral=(before + value) / 2 * dt, seconds=dt, minimum=low, maximum=high, samples=1)


def _is_still(counters: Mapping[str, float], parts: Mapping[str, tuple[Histogram, ...]]) -> bool:
    """Return whether the engine did nothing, by its steps, else by a page that counts every token."""
    if STEP_FAMILY in counters:
        return counters[STEP_FAMILY] == 0
    is_counted = any(counters.values()) or any(histogram.n for part in parts.values() for histogram in part)
    return TOKEN_FAMILY in parts and not is_counted


def _estimate_in_system(
    earlier: Snapshot, later: Snapshot, parts: Mapping[str, tuple[Histogram, ...]]
) -> GaugeSum | None:
    """Estimate the requests in the system by Little's law, None if nothing finished or a gauge or time is
    missing. `samples` are the finished requests.

    Finished requests may have begun before the window; the minimum excludes that time. Present requests may have arrived at
    the start; the maximum adds them. The mean is exact if the system is idle at both ends. Aborted requests are not
    included.
    """
    dt = later.t - earlier.t
    whole = next(iter(parts.get("e2e_seconds", ())), None)
    if whole is None or not whole.n or not (tells_in_system(earlier) and tells_in_system(later)) or whole.total is None:
        return None
    requests, seconds = whole.n, whole.total
    longest = max(edge for edge, count in zip(whole.edges, whole.counts, strict=True) if count > 0)
    first, last = [math.fsum([page.gauges[name] for name in IN_SYSTEM]) for page in (earlier, later)]
    before = min(seconds, first * longest) if first else 0.0
    return GaugeSum(
        integral=seconds, seconds=dt, minimum=(seconds - before) / dt, maximum=seconds / dt + last, samples=requests
    )


def _is_refuted(shown: float, finished: GaugeSum) -> bool:
    """Return whether more requests were in the system than the `shown` mean of two pages, beyond chance. The reverse is
    no contradiction: aborted requests are in no histogram."""
    # An idle engine has nobody in its front end. A busy one holds requests there that its gauges never count.
    there = finished.minimum * (1 - FRONT_END) if shown else finished.minimum
    return shown < there - SIGMA * math.sqrt(there) - 1
