"""What a simulated replica takes at a load: read off the plan's curve, and the lengths that the plan was made for.

Owns the way from a plan to distributions. Pure.

Log-normal lengths and latencies as the buckets of an engine's histograms. Pure.

Owns the distribution and the edges that vLLM prints. The same share of every bucket is taken each time, rounded with a
chance that is passed in, so that sums over a day keep the distribution without drawing every request.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from rules.plan.curve import Curve
from rules.plan.schema import TokenQuantiles

Z95, Z99 = 1.6449, 2.3263
"""Standard deviations above the median at which P95 and P99 of a normal distribution lie."""

_REQUEST = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
    960.0,
)
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_LENGTH = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0)

REQUEST_EDGES = (*_REQUEST, 1920.0, 7680.0, math.inf)
FIRST_TOKEN_EDGES = (*_FIRST, 160.0, 640.0, 2560.0, math.inf)
TOKEN_EDGES = (*_TOKEN, math.inf)
LENGTH_EDGES = (*_LENGTH, math.inf)
"""As a page of vLLM 0.32 prints them (vllm/v1/metrics/loggers.py); lengths for a model of 16384 tokens."""


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Median and standard deviation of the logarithm."""

    median: float
    sigma: float

    @staticmethod
    def from_quantiles(p50: float, high: float, z: float = Z99) -> LogNormal:
        """From the median and the quantile that lies `z` standard deviations above it."""
        return LogNormal(p50, max(1e-6, math.log(high / p50) / z))

    @property
    def mean(self) -> float:
        return self.median * math.exp(self.sigma**2 / 2)

    def scale(self, factor: float) -> LogNormal:
        return LogNormal(self.median * factor, self.sigma)

    def cumulative(self, edges: tuple[float, ...], n: int, chance: float) -> tuple[int, ...]:
        """Return how many of `n` lie at or below each edge, rounded up with `chance` (0 to 1)."""
        shares = _shares(round(self.median, 6), round(self.sigma, 4), edges)
        return (*[min(n, int(n * share + chance)) for share in shares[:-1]], n)


@lru_cache(maxsize=8192)
def _shares(median: float, sigma: float, edges: tuple[float, ...]) -> tuple[float, ...]:
    scale = sigma * math.sqrt(2)
    middle = math.log(median)
    finite = (0.5 * (1 + math.erf((math.log(edge) - middle) / scale)) for edge in edges[:-1])
    return (*finite, 1.0)


STEPS = 200
"""Loads up to the last point of the curve that are told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLoad:
    """A replica at one load of its benchmark: TTFT, TPOT, the gaps between tokens; shares of GPU time and KV cache."""

    first: LogNormal
    each: LogNormal
    gap: LogNormal
    gpu: float
    kv: float


class Loads:
    """A curve's loads, each read once."""

    def __init__(self, curve: Curve) -> None:
        self._curve = curve
        self._known: dict[int, SimulatedLoad] = {}

    def interpolate_load(self, rps: float) -> SimulatedLoad:
        """What the curve says of a load (completed requests per second); beyond its last point, what that says."""
        top = self._curve.points[-1].completed_rps
        step = min(STEPS, max(1, round(rps / top * STEPS)))
        if step not in self._known:
            self._known[step] = _loaded(self._curve, step / STEPS * top)
        return self._known[step]


def _loaded(curve: Curve, rps: float) -> SimulatedLoad:
    bin = curve.place(rps, None).bin
    if bin is None:
        raise ValueError(f"the curve of a simulated tier has no place for {rps} rps")

    def at(metric: str) -> float:
        found = curve.expectation(bin, metric, rps)
        if found is None:
            raise ValueError(f"the curve of a simulated tier has no {metric}")
        return found.interpolated

    each = LogNormal.from_quantiles(at("tpot_p50_seconds"), at("tpot_p99_seconds"))
    return SimulatedLoad(
        first=LogNormal.from_quantiles(at("ttft_p50_seconds"), at("ttft_p99_seconds")),
        each=each,
        gap=LogNormal.from_quantiles(each.median, at("itl_p99_seconds")),
        gpu=at("gpu_utilization"),
        kv=at("kv_utilization"),
    )


def lengths(planned: TokenQuantiles | None) -> LogNormal:
    """Lengths as they are planned: what sends them differs only where the story says so."""
    if planned is None or planned.p50 is None or planned.p95 is None:
        raise ValueError("the plan of a simulated tier has P50 and P95 of its lengths")
    return LogNormal.from_quantiles(planned.p50, planned.p95, Z95)
