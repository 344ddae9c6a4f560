"""The minimum warm count: how many replicas to keep ready for demand that no schedule saw coming.

Owns the newsvendor's answer and what it is computed from. For one cold start nothing that is asked for helps, so what stands
warm at its beginning is the day's stock: a replica too few loses the requests it would have served in that time, one too
many was paid for nothing. Not here: how many replicas the forecast asks for (`prewarm`).

Derivation. Let X be the replicas needed within one lead L above those scheduled, m the warm ones kept for it, Co what a
replica that stays idle costs for L, Cu what a missing one costs (the requests of L that come late). The expected cost is
C(m) = Co E[(m - X)+] + Cu E[(X - m)+]. One more replica changes it by Co P(X <= m) - Cu P(X > m), which is first
not negative at the smallest m with P(X <= m) >= Cu / (Cu + Co): m* = F^-1(Cu / (Cu + Co)) (Arrow, Harris and Marschak 1951;
guide 9.3 asks for exactly this premium). Both costs grow with L, so that L cancels in the ratio and stays in X alone.
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
    """Both in one currency: a warm replica for one hour, and one request that comes late (0 and more)."""

    replica_hour: float
    late_request: float

    def __post_init__(self) -> None:
        if not self.replica_hour > 0 or not self.late_request >= 0:
            raise ValueError(
                f"a replica-hour at {self.replica_hour} and a late request at {self.late_request} price nothing"
            )

    def late_to_warm(self, usable_rps: float) -> float:
        """What the requests that one replica serves cost when they are late, by what the replica costs: Cu / Co, for
        `prewarm.certainty`."""
        return usable_rps * self.late_request / (self.replica_hour / SECONDS_PER_HOUR)

    def critical_ratio(self, usable_rps: float) -> float:
        """Cu / (Cu + Co), 0-1: Cu = requests per second of one replica x price of a late one, Co = price of a replica-second."""
        under = self.late_to_warm(usable_rps)
        return under / (under + 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimumWarm:
    """The count, the critical ratio it stands at, and of how many cold starts' worth of time the excess was seen."""

    replicas: int
    critical_ratio: float
    seen: int

    @property
    def sentence(self) -> str:
        """The count with its reason."""
        return (
            f"keep {self.replicas} warm: in {100 * self.critical_ratio:.4g} % of {self.seen} cold starts' time no more were "
            "needed above the schedule"
        )


def excess(demand: Array, scheduled: Array, usable_rps: float, lead: int) -> Array:
    """Replicas needed above those scheduled (counts per minute), at most within each `lead` minutes, not overlapping.

    `demand` is requests per second per minute; minutes with NaN are left out, a lead without any known minute too.
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


def minimum_warm(needed: Array, critical_ratio: float, *, at_least: int = 0) -> MinimumWarm:
    """The smallest count with at least `critical_ratio` of the excess at or below it; never below `at_least` (the plan's).

    `needed` are samples of X (see the module); without any only the plan speaks. Raises ValueError for a ratio outside [0, 1).
    """
    if not 0 <= critical_ratio < 1:
        raise ValueError(f"a critical ratio of {critical_ratio} is none")
    if len(needed) == 0:
        return MinimumWarm(replicas=at_least, critical_ratio=critical_ratio, seen=0)
    rank = max(1, int(np.ceil(critical_ratio * len(needed) - 1e-9)))
    count = int(np.ceil(np.sort(needed)[rank - 1]))
    return MinimumWarm(replicas=max(count, at_least), critical_ratio=critical_ratio, seen=len(needed))
