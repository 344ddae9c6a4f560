"""Quantiles of a tier's starts by kind of timing (`rules.replicas.starts.Timing`).

Kinds are never mixed: a start timed from process start is shorter than the same start timed from the request for its
pod. The P95 of fewer than `ENOUGH` starts is the slowest of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rules.confidence import nearest_rank
from rules.replicas.starts import ENOUGH, LEAD_QUANTILE, ReplicaStart, Timing
from rules.telemetry.wording import number

FROM_TO = {
    Timing.POD: "from the request for the pod to Ready",
    Timing.PROCESS: "from process start to ready",
}
"""How starts of a kind were timed, in words that follow "timed"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartQuantiles:
    """The starts of a tier with one kind of timing: how many, their P50 and P95 in seconds.

    `proven_seconds` is the P95 of their lower bounds.
    """

    timing: Timing
    count: int
    p50_seconds: float
    p95_seconds: float
    proven_seconds: float

    @property
    def has_p95(self) -> bool:
        """Return whether the P95 is another start than the slowest."""
        return self.count >= ENOUGH

    @property
    def sentence(self) -> str:
        """Return count and quantiles in words, without a full stop."""
        p50, p95 = (number(seconds, "seconds") for seconds in (self.p50_seconds, self.p95_seconds))
        if self.count == 1:
            return f"one start timed {FROM_TO[self.timing]}: {p95}"
        name = "P95" if self.has_p95 else "the slowest"
        return f"{self.count} starts timed {FROM_TO[self.timing]}: P50 {p50}, {name} {p95}"


def quantiles_by_timing(starts: Iterable[ReplicaStart]) -> tuple[StartQuantiles, ...]:
    """Return the quantiles of each kind of timing, in the order of `Timing`."""
    known = [(start.timing, start.lead_seconds or 0.0, took) for start in starts if (took := start.seconds) is not None]
    found = []
    for timing in Timing:
        leads = [lead for kind, lead, _ in known if kind is timing]
        lows = [took.low or 0.0 for kind, _, took in known if kind is timing]
        if leads:
            quantiles = StartQuantiles(
                timing=timing,
                count=len(leads),
                p50_seconds=nearest_rank(leads, 0.5),
                p95_seconds=nearest_rank(leads, LEAD_QUANTILE),
                proven_seconds=nearest_rank(lows, LEAD_QUANTILE),
            )
            found.append(quantiles)
    return tuple(found)
