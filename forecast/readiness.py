"""What a cold start does to requests and money: readiness against a lead, the warm buffer, the queue until capacity comes.

Owns these formulas of the guide (autoscaling, "handling cold starts" and "capacity planning") and nothing of how their
inputs were measured. Deterministic: loads are averages, randomness is the forecast's quantiles' business. A new worked
example of the guide is a function here with that example as its test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SECONDS_AN_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """A lead against the phases of a start; `margin_seconds` is negative where replicas come too late."""

    lead_seconds: float
    ready_seconds: float
    margin_seconds: float

    @property
    def in_time(self) -> bool:
        """Ready exactly at the surge is in time (guide: spare >= 0)."""
        return self.margin_seconds >= 0

    @property
    def words(self) -> str:
        return "ready before surge" if self.in_time else "surge sees cold queue"


def readiness(phases: Mapping[str, float], lead_seconds: float) -> Readiness:
    """Whether a replica that is asked for `lead_seconds` before a surge is ready for it.

    `phases` are seconds by name, one after another (node, image, weights, warm-up). Source: guide, cold-start-readiness.py.
    Raises ValueError where a time is negative or no number.
    """
    for name, seconds in (*phases.items(), ("lead", lead_seconds)):
        _amount(name, seconds)
    ready = math.fsum(phases.values())
    return Readiness(lead_seconds=lead_seconds, ready_seconds=ready, margin_seconds=lead_seconds - ready)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmBuffer:
    """Replicas that a load needs, how many of them must still be started, and the requests that wait for these."""

    target_replicas: int
    replicas_to_start: int
    waiting_requests: int


def warm_buffer(concurrent_requests: int, requests_per_replica: int, warm_replicas: int) -> WarmBuffer:
    """What arrives at once against what is warm. Source: guide, capacity-warm-buffer.py.

    Raises ValueError on a negative number, or where a replica holds no request.
    """
    _amount("concurrent_requests", concurrent_requests)
    _amount("warm_replicas", warm_replicas)
    if requests_per_replica < 1:
        raise ValueError(f"requests_per_replica must be at least 1, not {requests_per_replica}")
    target = -(-concurrent_requests // requests_per_replica)
    return WarmBuffer(
        target_replicas=target,
        replicas_to_start=max(0, target - warm_replicas),
        waiting_requests=max(0, concurrent_requests - warm_replicas * requests_per_replica),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdQueue:
    """The queue that waits for cold capacity: its peak and when that was (seconds from the first arrival), the requests that
    arrived while any waited, the time all of them waited together, and when nobody waited any more (None: not within the
    arrivals that were given; `left` wait still).
    """

    peak_requests: float
    peak_seconds: float
    late_requests: float
    waited_seconds: float
    drained_seconds: float | None
    left: float

    @property
    def mean_wait_seconds(self) -> float:
        """Of those that waited (Little's law: the area under the queue by what went through it)."""
        return self.waited_seconds / self.late_requests if self.late_requests else 0.0


def cold_queue(
    arrivals_rps: Sequence[float],
    bin_seconds: float,
    warm_rps: float,
    ready_rps: float,
    ready_after_seconds: float,
) -> ColdQueue:
    """How requests queue while cold capacity comes, as a fluid: the queue grows by arrivals less capacity, never below 0.

    `arrivals_rps` are requests per second, bin after bin of `bin_seconds`; capacity is `warm_rps` until `ready_after_seconds`
    after the first bin began, then `ready_rps`. Exact for rates that are constant within a bin. Source: fluid approximation
    of a queue with varying arrivals (Newell, Applications of Queueing Theory, 1982, chapter 2); it leaves out chance, and so
    is a lower bound of the wait near full load. Raises ValueError on a negative number or a bin of none.
    """
    for name, value in (("warm_rps", warm_rps), ("ready_rps", ready_rps), ("ready_after_seconds", ready_after_seconds)):
        _amount(name, value)
    if not 0 < bin_seconds < math.inf:
        raise ValueError(f"bin_seconds must be above 0, not {bin_seconds}")
    walk = _Walk()
    for place, rate in enumerate(arrivals_rps):
        _amount(f"arrivals_rps[{place}]", rate)
        begin, end = place * bin_seconds, (place + 1) * bin_seconds
        cut = min(max(ready_after_seconds, begin), end)
        walk.go(begin, cut, rate, warm_rps)
        walk.go(cut, end, rate, ready_rps)
    return walk.result()


@dataclass(slots=True)
class _Walk:
    """A queue on its way through time."""

    queue: float = 0.0
    peak: float = 0.0
    peak_at: float = 0.0
    late: float = 0.0
    waited: float = 0.0
    drained_at: float | None = 0.0

    def go(self, begin: float, end: float, rate: float, capacity: float) -> None:
        """From `begin` to `end` at a constant rate and capacity (per second)."""
        slope, span = rate - capacity, end - begin
        if span <= 0 or (self.queue <= 0 and slope <= 0):
            return
        # With a queue that shrinks only the part until it is empty counts.
        busy = min(span, self.queue / -slope) if slope < 0 else span
        after = max(0.0, self.queue + slope * busy)
        self.late += rate * busy
        self.waited += (self.queue + after) / 2 * busy
        emptied = slope < 0 and (busy < span or after <= 1e-9 * max(1.0, self.peak))
        self.queue = 0.0 if emptied else after
        self.drained_at = begin + busy if emptied else None
        if self.queue > self.peak:
            self.peak, self.peak_at = self.queue, end

    def result(self) -> ColdQueue:
        return ColdQueue(
            peak_requests=self.peak,
            peak_seconds=self.peak_at,
            late_requests=self.late,
            waited_seconds=self.waited,
            drained_seconds=self.drained_at,
            left=self.queue,
        )


def cold_start_cost(seconds: float, gpus: float, gpu_hour_price: float) -> float:
    """What one start costs before it serves anything, in the price's currency: its GPUs are paid for while they load.

    `seconds` of `gpus` at `gpu_hour_price` per GPU and hour. Source: guide 9.2 (cost of idle GPUs). Raises ValueError on a
    negative number.
    """
    for name, value in (("seconds", seconds), ("gpus", gpus), ("gpu_hour_price", gpu_hour_price)):
        _amount(name, value)
    return seconds / SECONDS_AN_HOUR * gpus * gpu_hour_price


def _amount(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a number from 0 on, not {value}")
