"""Gauges between two scrapes: how long one holds, and what the engine's own histograms say of the time in between.

Owns the sum of a gauge over a time and the reasons why there is none. A gauge tells of an instant. Between two scrapes it is
known only while what it measures cannot have come and gone; beyond that, Little's law on finished requests tells how many were
in the system (DESIGN 3.11).
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
"""Requests in the system by Little's law, in windows whose gauges do not tell. Its extremes are the bounds of the mean."""

STEP_FAMILY = "engine_steps"
"""The counter that tells whether the engine stepped at all; gauges move only then (vLLM issue 29928)."""

TOKEN_FAMILY = "itl_seconds"
"""Moves with every token: where nothing counts steps, it tells that an engine which counts nothing at all stood still."""

STEP_GAUGES = frozenset(
    {
        "requests_running",
        "requests_waiting",
        "requests_waiting_capacity",
        "requests_waiting_deferred",
        "kv_utilization",
        "kv_utilization_max",
    }
)

LASTING = frozenset({"engine_startup_seconds"})
"""Gauges that stay as they are while the process lives."""

GAUGE_HOLD_SECONDS = 75.0
"""The longest time between two scrapes for which a gauge is interpolated, unless requests take longer. Ours: the longest scrape
interval of an agent (60 s), and a quarter of it."""

BURST_SECONDS = 45.0
"""Up to this distance of two scrapes a short burst is left to the mean over minutes. Only gauges that are idle at both are
checked against finished requests. Ours: half as much again as the longest usual interval (30 s)."""

FRONT_END = 0.2
"""The part of a request's time that it may spend in a busy engine's front end, which counts it in no gauge. Ours: clients saw up
to 570 ms of overhead beside a saturated engine."""

SIGMA = 3.0
"""Standard deviations (Poisson) by which samples may differ from the mean by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeSum:
    """A gauge over a window: time integral (unit x seconds), the seconds it covers, extremes, samples it rests on."""

    integral: float
    seconds: float
    minimum: float
    maximum: float
    samples: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LittleEstimate:
    """What `requests` that finished tell of a window by Little's law: requests in the system, a mean between `low` and `high`."""

    in_system: float
    low: float
    high: float
    requests: float


def sum_gauges(
    earlier: Snapshot, later: Snapshot, counters: Mapping[str, float], parts: Mapping[str, tuple[Histogram, ...]]
) -> tuple[dict[str, GaugeSum], dict[str, Gap]]:
    """Return the gauges between two pages of one process, and why those are missing that both pages have.

    `counters` and `parts` are the increases between the pages. Trapezoids where the gauge holds. An engine that stood still
    keeps its last gauges: then zeros alone are believed, for as long as it stood.
    """
    dt = later.t - earlier.t
    still = _is_still(counters, parts)
    shown = [page.gauges.get(name, 0.0) for name in IN_SYSTEM for page in (earlier, later)]
    # Of most scrapes nothing needs to be estimated.
    finished = _estimate_in_system(earlier, later, parts) if dt > BURST_SECONDS or not any(shown) else None
    holds = dt <= GAUGE_HOLD_SECONDS or dt <= _shortest(parts)
    refuted = finished is not None and _is_refuted(math.fsum(shown) / 2, finished)
    sums: dict[str, GaugeSum] = {}
    gaps: dict[str, Gap] = {}
    for family, value in later.gauges.items():
        before = earlier.gauges.get(family)
        if before is None:
            continue
        of_steps = family in STEP_GAUGES
        if still and of_steps and value != 0:
            gaps[family] = Gap.STALE
        elif not (holds or family in LASTING or (still and of_steps)):
            gaps[family] = Gap.NOT_SCRAPED
        elif refuted and of_steps:
            gaps[family] = Gap.CONTRADICTORY
        else:
            sums[family] = interpolate(before, value, dt)
    if finished is not None and any(family in gaps for family in IN_SYSTEM):
        sums[IN_SYSTEM_BY_LITTLE] = GaugeSum(
            integral=finished.in_system * dt,
            seconds=dt,
            minimum=finished.low,
            maximum=finished.high,
            samples=finished.requests,
        )
    return sums, gaps


def interpolate(before: float, value: float, dt: float) -> GaugeSum:
    """Return the sum of a gauge that went in a straight line from one value to the other in `dt` seconds."""
    return GaugeSum(
        integral=(before + value) / 2 * dt,
        seconds=dt,
        minimum=min(before, value),
        maximum=max(before, value),
        samples=1,
    )


def _is_still(counters: Mapping[str, float], parts: Mapping[str, tuple[Histogram, ...]]) -> bool:
    """Return whether the engine did nothing: by its steps, else where every token would show and nothing was counted
    at all."""
    if STEP_FAMILY in counters:
        return counters[STEP_FAMILY] == 0
    return (
        TOKEN_FAMILY in parts
        and not any(counters.values())
        and not any(one.n for several in parts.values() for one in several)
    )


def _estimate_in_system(
    earlier: Snapshot, later: Snapshot, parts: Mapping[str, tuple[Histogram, ...]]
) -> LittleEstimate | None:
    """Estimate the requests in the system by Little's law; None where nothing finished, or a gauge or a time is missing.

    Finished requests may have begun before the window: `low` leaves that time out. Requests that are still there may have come
    at once: `high` adds them. With an idle system at both ends the mean is exact. Aborted requests come on top.
    """
    dt = later.t - earlier.t
    spent = _seconds_in_system(parts)
    if spent is None or not all(name in page.gauges for name in IN_SYSTEM for page in (earlier, later)):
        return None
    requests, seconds, longest = spent
    first, last = (math.fsum(page.gauges[name] for name in IN_SYSTEM) for page in (earlier, later))
    before = min(seconds, first * longest) if first else 0.0
    return LittleEstimate(
        in_system=seconds / dt,
        low=(seconds - before) / dt,
        high=seconds / dt + last,
        requests=requests,
    )


def _seconds_in_system(parts: Mapping[str, tuple[Histogram, ...]]) -> tuple[float, float, float] | None:
    """Return how many requests finished, the sum of their seconds in the system, and the longest that one may have
    been there."""
    whole = parts.get("e2e_seconds", ())
    requests = math.fsum(one.n for one in whole)
    if requests <= 0 or any(one.total is None for one in whole):
        return None
    longest = max(edge for one in whole for edge, count in zip(one.edges, one.counts, strict=True) if count > 0)
    return requests, math.fsum(one.total or 0.0 for one in whole), longest


def _shortest(parts: Mapping[str, tuple[Histogram, ...]]) -> float:
    """Seconds that nine of ten requests took at least: what was seen of them at one scrape still stands so much later."""
    found = quantile(parts.get("e2e_seconds", ()), 0.1)
    return found.low if found else 0.0


def _is_refuted(shown: float, finished: LittleEstimate) -> bool:
    """Return whether more requests were in the system than the `shown` mean of two pages, beyond chance.

    Not the other way round: those who left without an end (aborted) are in no histogram.
    """
    # An idle engine's front end holds nobody either; that of a busy one holds requests that its gauges never count.
    there = finished.low * (1 - FRONT_END) if shown else finished.low
    return shown < there - SIGMA * math.sqrt(there) - 1
