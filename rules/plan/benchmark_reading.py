"""Readings of the plan's benchmark at a load of one replica, interpolated between its points.

`rules.what_if.answer` shows them. To add a quantity: a row of NAMES.
"""

from __future__ import annotations

from rules.plan.curve import Curve
from rules.plan.envelope import interpolate
from rules.plan.load_bins import TierContext
from rules.telemetry.signals import Gap, Missing, Reading, SignalValue

NO_CURVE = Missing(gap=Gap.NOT_IN_PLAN, text="the plan has no benchmark")

IN_SYSTEM = "requests_in_system"

NAMES = (
    *("ttft_p50_seconds", "ttft_p99_seconds", "tpot_p50_seconds", "tpot_p99_seconds", "itl_p99_seconds"),
    *("e2e_p99_seconds", "kv_utilization", IN_SYSTEM),
)


def read_benchmark(context: TierContext, name: str, rps: float) -> SignalValue:
    """Return a quantity at completed requests per second of one replica, between the two points around it.

    The gap is `outside_benchmark` above the last point, `not_in_plan` if not measured. Below the first point, its value
    is the upper bound. Raise KeyError for a name that is not in NAMES.
    """
    if name not in NAMES:
        raise KeyError(f"{name} is nothing that is predicted; known: {', '.join(NAMES)}")
    curve = context.curve
    if curve is None:
        return NO_CURVE
    if name == "itl_p99_seconds" and not context.itl_comparable:
        return Missing(gap=Gap.NOT_EXPOSED, text="engine and benchmark do not mean the same by ITL")
    bin, beyond = curve.place(rps, None)
    if bin is None:
        return Missing(gap=Gap.OUTSIDE_BENCHMARK, text=beyond)
    found = _in_system(curve, bin, rps) if name == IN_SYSTEM else _measured(curve, bin, name, rps)
    if isinstance(found, Missing) or rps >= curve.points[0].completed_rps:
        return found
    return Reading(value=found.value, low=0.0, high=found.high, n=found.n)


def _measured(curve: Curve, bin: int, name: str, rps: float) -> SignalValue:
    found = curve.expectation(bin, name, rps)
    if found is None:
        return Missing(gap=Gap.NOT_IN_PLAN, text="the benchmark did not measure it around this load")
    return Reading(value=found.interpolated, low=found.lower, high=found.upper, n=found.requests)


def _in_system(curve: Curve, bin: int, rps: float) -> SignalValue:
    if curve.concurrencies is None:
        return Missing(gap=Gap.NOT_IN_PLAN, text="the benchmark gives no concurrencies")
    ends = [(curve.points[at].completed_rps, curve.concurrencies[at]) for at in (max(bin - 1, 0), bin)]
    (below, low), (above, high) = ends
    share = (rps - below) / (above - below) if above > below else 1.0
    value = interpolate(low, high, min(1.0, max(0.0, share)), log=False)
    return Reading(value=value, low=low, high=high, n=float(curve.points[bin].requests or 0))


def find_benchmark_crossing(context: TierContext, name: str, limit: float) -> tuple[float, bool] | Missing:
    """Return the load of one replica at which a quantity crosses a limit, and whether it does.

    Without a crossing the load is that of the last point with the quantity. It is 0 if no measured load keeps the
    limit.
    """
    curve = context.curve
    if curve is None:
        return NO_CURVE
    index, crosses = curve.find_limit(name, limit)
    if index < 0:
        nothing = Missing(gap=Gap.NOT_IN_PLAN, text="the benchmark did not measure it")
        return (0.0, True) if crosses else nothing
    return curve.rps_at_point(index), crosses and index < len(curve.points) - 1
