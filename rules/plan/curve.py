"""Benchmark curve: a monotone envelope, its load bins and measurements, and the highest load within the SLO.

C_max follows guide 8.3 and DESIGN 3.4. The H100 sweeps of PEERS 3.3 show that completed requests saturate, the knee is
a cliff and generator-limited points are flat.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from rules.plan.schema import LITTLES_LAW, BenchmarkCurve, PlannedOperatingPoint, Point, Slo, TierPlan
from rules.telemetry.signals import Gap, Missing, Reading, SignalValue

SATURATED_GAIN = 0.05
"""Neighbouring points that differ by less in completed rps are one saturated stretch: rps cannot tell them apart."""

RPS_TOLERANCE = 0.02
"""Completed rps may exceed the last uncensored point by this share before the load is beyond the benchmark."""

NEAR_TOP = 0.9
"""An estimated concurrency only says "beyond" when completed rps is at least this share of the top."""

CERTAIN_REQUESTS = 300
"""A point measured with fewer requests supports at most `likely`: its P99 is the third worst (DESIGN 3.3)."""

LIMITED = ("ttft_p99_seconds", "tpot_p99_seconds", "itl_p99_seconds", "e2e_p99_seconds")
"""What an SLO can limit. The curve must carry the first two where the SLO names them."""

IN_SYSTEM = "requests_in_system"

OFTEN_UNMEASURED = ("itl_p99_seconds", "e2e_p99_seconds")
"""What an SLO can limit, and what counts only where the curve carries it."""

LATENCIES = ("ttft_p50_seconds", "tpot_p50_seconds", *LIMITED)
"""Metrics that are interpolated by their logarithm: it halves the worst errors near the knee (six H100 sweeps, PEERS 3.3)."""

RISING = (*LATENCIES, "gpu_utilization", "kv_utilization", "eviction_rate", "output_tokens_per_second")
"""Metrics that never fall with load."""


class Expectation(NamedTuple):
    """Best benchmark value at a load, between those of both points of its bin; `requests` is their smaller count, or 0."""

    low: float
    value: float
    high: float
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """The highest load of one replica within the SLO (guide 8.3, steps 1 and 2).

    Without `knee_reached` no measured load broke the SLO, and both numbers are lower bounds. `limited_by` names the
    metric that broke it first; None also where the plan gives the point. `c_max` is None where the plan has no
    concurrencies. `given`: the plan's own point, by hand or by production.
    """

    c_max: float | None
    usable_rps: float
    limited_by: str | None
    knee_reached: bool
    given: PlannedOperatingPoint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The uncensored points as `written`, by rising load, as a monotone envelope; bin k ends at point k.

    Bin 0 reaches from no load to the first point. `concurrencies` are requests in the system at each point: the
    benchmark's own where `concurrency_given`, else by Little's law. That uses mean latencies in an imported curve
    (`is_littles_law`), else medians. At a fixed rate they are a result and no load: a slower server holds more
    requests. So they say "beyond" near the top only.
    """

    points: tuple[Point, ...]
    written: BenchmarkCurve
    concurrencies: tuple[float, ...] | None
    concurrency_given: bool
    is_littles_law: bool

    @classmethod
    def from_plan(cls, tier: TierPlan) -> Curve | None:
        """Return the tier's curve, None without uncensored points."""
        if tier.curve is None or all(point.censored for point in tier.curve.points):
            return None
        measured = tuple(point for point in sort_by_load(tier.curve) if not point.censored)
        lengths = "workload.generation_tokens"
        tokens = tier.value_at(f"{lengths}.mean") or tier.value_at(f"{lengths}.p50")
        in_system, written = concurrencies(measured, tokens)
        littles = written and tier.curve.measured is not None and tier.curve.measured.concurrency == LITTLES_LAW
        return cls(
            points=monotone_envelope(measured),
            written=tier.curve,
            concurrencies=in_system,
            concurrency_given=written and not littles,
            is_littles_law=littles,
        )

    @property
    def top_rps(self) -> float:
        """Return the completed rps of the last uncensored point, the highest load that the benchmark covers."""
        return self.points[-1].completed_rps

    @property
    def minimum_requests(self) -> int:
        """Return the fewest requests of any point, 0 if a point has no count."""
        return min(point.requests or 0 for point in self.points)

    def place(self, rps: float, in_system: float | None) -> tuple[int | None, str]:
        """Return the bin of one replica's load, or None and why it is beyond the measured loads.

        `rps` are completed requests per second, `in_system` running + waiting requests if known.
        """
        if beyond := self._beyond(rps, in_system):
            return None, beyond
        place = min(bisect_left(self.points, rps, key=lambda point: point.completed_rps), len(self.points) - 1)
        first = last = place  # of the saturated stretch around the point
        while self._saturated(first):
            first -= 1
        while last + 1 < len(self.points) and self._saturated(last + 1):
            last += 1
        told_by_rps = place == first and rps < (1 - SATURATED_GAIN) * self.points[place].completed_rps
        if first < last and not told_by_rps and in_system is not None and self.concurrencies:
            place = min(bisect_left(self.concurrencies, in_system, first, last + 1), last)
        return place, ""

    def expectation(self, bin: int, metric: str, rps: float, in_system: float | None = None) -> Expectation | None:
        """Return the expected values of a metric, or IN_SYSTEM, in a bin, None if a point of the bin lacks it.

        Latencies are interpolated by their logarithm, others linearly; below the first point the first point counts. In
        a saturated bin `in_system` places the load; without it the upper point counts.
        """
        ends = (self.points[max(bin - 1, 0)], self.points[bin])
        lower, upper = (getattr(point, metric, None) for point in ends)
        if metric == IN_SYSTEM and self.concurrencies is not None:
            lower, upper = self.concurrencies[max(bin - 1, 0)], self.concurrencies[bin]
        if lower is None or upper is None:
            return None
        share = self._share(bin, rps, in_system)
        value = interpolate(lower, upper, share, log=metric in LATENCIES)
        return Expectation(min(lower, upper), value, max(lower, upper), min(point.requests or 0 for point in ends))

    def expect_time(self, bin: int, rps: float) -> Expectation | None:
        """Return the mean seconds in the system in a bin by Little's law at both of its points, or None."""
        if self.concurrencies is None:
            return None
        ends = self.points[max(bin - 1, 0)], self.points[bin]
        low, high = (point.completed_rps for point in ends)
        before, after = self.concurrencies[max(bin - 1, 0)] / low, self.concurrencies[bin] / high
        share = min(max((rps - low) / (high - low), 0.0), 1.0) if high > low else 1.0
        value = interpolate(before, after, share, log=True)
        return Expectation(min(before, after), value, max(before, after), min(point.requests or 0 for point in ends))

    def read(self, metric: str, rps: float) -> SignalValue:
        """Return a metric, or IN_SYSTEM, at completed requests per second of one replica, between the points around it.

        The gap is `outside_benchmark` above the last point, `not_in_plan` if not measured. Below the first point its
        value is the upper bound.
        """
        bin, beyond = self.place(rps, None)
        if bin is None:
            return Missing(gap=Gap.OUTSIDE_BENCHMARK, text=beyond)
        expectation = self.expectation(bin, metric, rps)
        if expectation is None:
            return Missing(gap=Gap.NOT_IN_PLAN, text="the benchmark did not measure it around this load")
        low = expectation.low if rps >= self.points[0].completed_rps else 0.0
        return Reading(value=expectation.value, low=low, high=expectation.high, n=expectation.requests)

    def usable(self, slo: Slo) -> OperatingPoint | None:
        """Return C_max and usable rps under an SLO, None if a metric is missing or no measured load keeps it.

        The first limited metric to cross its limit decides, by log interpolation. Concurrency and completed rps there
        are linear. The latency of a censored point is a lower bound: it only shows that the knee is before it.
        """
        ends = []
        for metric in LIMITED:
            limit = getattr(slo, metric)
            carried = any(getattr(point, metric) is not None for point in self.points)
            if limit is None or (metric in OFTEN_UNMEASURED and not carried):
                continue
            index, crossed = self.find_limit(metric, limit)
            ends.append((index, not crossed, metric))
        # Offline work without an objective uses the highest load that was measured.
        highest = (float(len(self.points) - 1), True, "")
        index, knee_missed, metric = min(ends, key=lambda end: end[:2], default=highest)
        if index < 0:
            return None
        is_known = self.concurrency_given or self.is_littles_law
        return OperatingPoint(
            c_max=_at(self.concurrencies, index) if self.concurrencies and is_known else None,
            usable_rps=self.rps_at_point(index),
            limited_by=None if knee_missed else metric,
            knee_reached=not knee_missed,
        )

    def value_at(self, metric: str, point: OperatingPoint) -> float | None:
        """Return the expected value of a metric at an operating point, None if the curve lacks it."""
        bin, _ = self.place(point.usable_rps, point.c_max)
        expectation = None if bin is None else self.expectation(bin, metric, point.usable_rps, point.c_max)
        return expectation.value if expectation else None

    def rps_at(self, in_system: float) -> float | None:
        """Return the completed rps with so many requests in the system; None from the last point on, or if unknown."""
        if self.concurrencies is None or in_system >= self.concurrencies[-1]:
            return None
        place = bisect_left(self.concurrencies, in_system)
        below = (self.concurrencies[place - 1], self.points[place - 1].completed_rps) if place else (0.0, 0.0)
        share = (in_system - below[0]) / (self.concurrencies[place] - below[0])
        return interpolate(below[1], self.points[place].completed_rps, share, log=False)

    def _beyond(self, rps: float, in_system: float | None) -> str:
        if rps > self.top_rps * (1 + RPS_TOLERANCE):
            return f"{rps:.4g} completed rps is above {self.top_rps:.4g}, the highest load the benchmark vouches for"
        top = self.concurrencies[-1] if self.concurrencies else None
        if in_system is None or top is None or in_system <= top:
            return ""
        if not self.concurrency_given and rps < NEAR_TOP * self.top_rps:
            return ""
        origin = "" if self.concurrency_given else " (estimated by Little's law)"
        return f"{in_system:.4g} requests in the system are more than the benchmark's highest, {top:.4g}{origin}"

    def _saturated(self, bin: int) -> bool:
        return bin > 0 and self.points[bin].completed_rps < self.points[bin - 1].completed_rps * (1 + SATURATED_GAIN)

    def _share(self, bin: int, rps: float, in_system: float | None) -> float:
        """Return how far a load lies between the two points of its bin, 0 to 1."""
        if bin == 0:
            return 1.0
        low, high, load = self.points[bin - 1].completed_rps, self.points[bin].completed_rps, rps
        if self._saturated(bin):
            if in_system is None or self.concurrencies is None:
                return 1.0
            low, high, load = self.concurrencies[bin - 1], self.concurrencies[bin], in_system
        return min(max((load - low) / (high - low), 0.0), 1.0) if high > low else 1.0

    def find_limit(self, metric: str, limit: float) -> tuple[float, bool]:
        """Return the last point within a limit (fractional index, -1: none), and whether the metric exceeded it later.

        The search ends before a point without the metric: nobody measured it there.
        """
        before: float | None = None
        for index, point in enumerate(self.points):
            value: float | None = getattr(point, metric)
            if value is None:
                return index - 1.0, False
            if value > limit:
                if before is None:
                    return -1.0, True
                if metric in LATENCIES and before > 0:
                    return index - 1 + math.log(limit / before) / math.log(value / before), True
                return index - 1 + (limit - before) / (value - before), True
            before = value
        broken = any((getattr(point, metric) or 0) > limit for point in self.written.points if point.censored)
        return len(self.points) - 1.0, broken

    def rps_at_point(self, index: float) -> float:
        """Return the completed rps at a fractional index of the points."""
        return _at(tuple(point.completed_rps for point in self.points), index)


def operating_point(tier: TierPlan) -> OperatingPoint | None:
    """Return the tier's operating point from curve and SLO, or the plan's own, None if neither exists.

    The plan's own point takes precedence if production measured it, if it is lower, or without a curve.
    """
    curve, given = Curve.from_plan(tier), tier.operating_point
    derived = curve.usable(tier.slo) if curve else None
    if given is None or (
        derived is not None and given.source != "production" and given.usable_rps >= derived.usable_rps
    ):
        return derived
    return OperatingPoint(
        c_max=given.c_max or (derived.c_max if derived and given.source != "production" else None),
        usable_rps=given.usable_rps,
        limited_by=None,
        knee_reached=True,
        given=given,
    )


def _at(values: tuple[float, ...], index: float) -> float:
    below = math.floor(index)
    return interpolate(values[below], values[min(below + 1, len(values) - 1)], index - below, log=False)


def interpolate(lower: float, upper: float, share: float, *, log: bool) -> float:
    """Return the value at `share` (0 to 1) from lower to upper, by logarithms with `log` (both above 0)."""
    # The ends are returned as they are: rounding must not push a value out of its bracket.
    if share <= 0 or lower == upper:
        return lower
    if share >= 1:
        return upper
    value = math.exp(math.log(lower) + share * math.log(upper / lower)) if log else lower + share * (upper - lower)
    return min(max(value, min(lower, upper)), max(lower, upper))


def sort_by_load(curve: BenchmarkCurve) -> tuple[Point, ...]:
    """Return the points by rising load, by the generator's setting if every point has it.

    Completed rps cannot order them: past the knee it stays or falls while the load grows.
    """
    controlled = ("requested_rps", "concurrency") if curve.loop == "open" else ("concurrency", "requested_rps")
    for name in controlled:
        if all(getattr(point, name) is not None for point in curve.points):
            return tuple(sorted(curve.points, key=attrgetter(name, "completed_rps")))
    return tuple(sorted(curve.points, key=attrgetter("completed_rps")))


def monotone_envelope(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the points with completed rps and each rising metric as maximum over this and all lower loads.

    A latency of a lower load can occur at a higher one too, so a dip is luck or noise. Missing values stay missing.
    """
    highest: dict[str, float] = {}
    line = []
    for point in points:
        given = {name: value for name in ("completed_rps", *RISING) if (value := getattr(point, name)) is not None}
        highest |= {name: max(value, highest.get(name, value)) for name, value in given.items()}
        line.append(point.model_copy(update={name: highest[name] for name in given}))
    return tuple(line)


def concurrencies(points: Sequence[Point], output_tokens: float | None) -> tuple[tuple[float, ...] | None, bool]:
    """Return the requests in the system at each point, never falling, and whether the benchmark measured them.

    Otherwise they follow from Little's law with the medians: rps x (TTFT + TPOT x (tokens - 1)). Tokens are the point's
    own, else `output_tokens`. The first result is None if a point lacks a part.
    """
    given = [point.concurrency for point in points if point.concurrency is not None]
    if len(given) == len(points):
        return tuple(accumulate(given, max)), True
    estimated = [value for point in points if (value := by_littles_law(point, output_tokens)) is not None]
    return (tuple(accumulate(estimated, max)) if len(estimated) == len(points) else None), False


def by_littles_law(point: Point, output_tokens: float | None) -> float | None:
    tokens = point.generation_tokens_mean or output_tokens
    if tokens is None or point.ttft_p50_seconds is None or point.tpot_p50_seconds is None:
        return None
    return point.completed_rps * (point.ttft_p50_seconds + point.tpot_p50_seconds * max(tokens - 1, 0))
