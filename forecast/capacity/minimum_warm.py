"""Minimum warm count: replicas to keep ready for demand above the schedule.

A replica requested now does not help for one cold start. So the warm replicas at its start are the stock of a
newsvendor. A missing replica loses the requests that it would have served; a surplus replica is paid for nothing.
`forecast.capacity.prewarm` counts the replicas of the forecast.

Derivation. Let X be the replicas needed within one lead L above the scheduled count, and m the warm replicas. Co is the
cost of an idle replica for L, Cu the cost of a missing one (the late requests of L). The expected cost is C(m) = Co
E[(m - X)+] + Cu E[(X - m)+]. One more replica changes it by Co P(X <= m) - Cu P(X > m). That is first not negative at
the smallest m with P(X <= m) >= Cu / (Cu + Co). So m* = F^-1(Cu / (Cu + Co)) (Arrow, Harris and Marschak 1951; guide
9.3 asks for exactly this premium). Both costs grow with L, so L cancels in the ratio and remains only in X.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from forecast.capacity.simulation import replicas
from forecast.series.binned import Array

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPrices:
    """Prices in one currency: a warm replica for one hour (above 0), and one late request (0 or more)."""

    replica_hour: float
    late_request: float

    def __post_init__(self) -> None:
        if not self.replica_hour > 0 or not self.late_request >= 0:
            raise ValueError(
                f"a replica-hour at {self.replica_hour} and a late request at {self.late_request} price nothing"
            )

    def late_to_warm(self, usable_rps: float) -> float:
        """Return Cu / Co for `prewarm.certainty`: late requests of one replica, divided by the cost of the replica."""
        return usable_rps * self.late_request / (self.replica_hour / SECONDS_PER_HOUR)

    def critical_ratio(self, usable_rps: float) -> float:
        """Return Cu / (Cu + Co), 0-1. Cu is requests/s of a replica x price of a late request, Co the price of a
        replica-second."""
        under = self.late_to_warm(usable_rps)
        return under / (under + 1.0)


def excess(demand: Array, scheduled: Array, usable_rps: float, lead: int) -> Array:
    """Return the replicas needed above the scheduled counts: the maximum of each `lead` minutes, without overlap.

    `demand` is requests/s by minute. NaN minutes are ignored; a lead of only NaN is omitted.
    """
    if lead < 1 or not usable_rps > 0:
        raise ValueError(f"a lead of {lead} minutes at {usable_rps} requests per second gives no excess")
    short = np.maximum(0.0, replicas(demand, usable_rps) - scheduled)
    if len(short) < lead:
        return np.empty(0)
    blocks = sliding_window_view(short, lead)[::lead]
    blocks = blocks[np.isfinite(blocks).any(axis=1)]
    most: Array = np.nanmax(blocks, axis=1) if len(blocks) else np.empty(0)
    return most


def minimum_warm(needed: Array, critical_ratio: float, *, at_least: int = 0) -> int:
    """Return the smallest count that covers `critical_ratio` of the excess, at least `at_least` (from the plan).

    `needed` are samples of X (see the module); without samples the result is `at_least`. Raise ValueError for a ratio
    outside [0, 1).
    """
    if not 0 <= critical_ratio < 1:
        raise ValueError(f"a critical ratio of {critical_ratio} is none")
    if len(needed) == 0:
        return at_least
    rank = max(1, int(np.ceil(critical_ratio * len(needed) - 1e-9)))
    return max(int(np.ceil(np.sort(needed)[rank - 1])), at_least)
