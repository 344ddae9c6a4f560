"""What a simulated replica takes at a load: read off the plan's curve, and the lengths that the plan was made for.

Owns the way from a plan to distributions. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.demo.simulation.lognormal import Z95, LogNormal
from rules.plan.curve import Curve
from rules.plan.schema import TokenQuantiles

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
