"""Starts of a replica: end of the old process, process start, ready, and their durations.

`forecast.capacity.cold_start` computes a tier's cold start from them. Kinds of timing are never mixed in a quantile:
from process start on a start is shorter than from the request for its pod.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from pydantic import TypeAdapter

from rules.confidence import nearest_rank
from rules.telemetry import windows
from rules.telemetry.signals import Reading
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.wording import number

SLOWEST_SECONDS = 960.0
"""A start that takes longer is overdue: twice the slow ends of the four phases together (guide, handling cold starts:
180 + 90 + 180 + 30 s)."""

READY_SECONDS = 300.0
"""A pod that answers and is not Ready is waited for so long."""

KEPT_SECONDS = 28 * 86_400.0
"""Starts that are older than the newest one by more were of earlier weights, images and nodes."""

MOST = 200
"""Of a tier, the newest: enough for a P95 with ten starts above it."""

LEAD_QUANTILE = 0.95
"""The lead of a tier is the P95 of its starts: one in twenty may come late."""

ENOUGH = 20
"""From so many starts on a P95 by nearest rank is something else than the slowest one; fewer say nothing of one in twenty."""


class Timing(StrEnum):
    """Timed part of a cold start. Only `POD` is the whole."""

    POD = "pod"  # from the pod's making, which is the request for the replica, to Ready
    PROCESS = "process"  # from process start to ready, by the page


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStart:
    """Start of a replica; all times are unix seconds, None if unknown.

    `alive_at` is the last good page of the old process, `silent_since` the first failed scrape, `seen_at` the first
    good page. Without `alive_at` and `silent_since` the process was already running. `started_at` and `ready_at` are the
    page's, `asked_at` and `pod_ready_at` the pod's (`rules.telemetry.snapshots`). `unready`: it answers and its pod is
    not Ready yet.
    """

    replica: str
    seen_at: float
    alive_at: float | None = None
    silent_since: float | None = None
    started_at: float | None = None
    ready_at: float | None = None
    asked_at: float | None = None
    pod_ready_at: float | None = None
    unready: bool = False

    @property
    def t(self) -> float:
        """Return the best known time (unix seconds) of ready."""
        return self.seen_at if self.ready_at is None else self.ready_at

    @property
    def has_observed_begin(self) -> bool:
        """Return whether the begin was observed, so that `seen_at` bounds it."""
        return self.alive_at is not None or self.silent_since is not None

    @property
    def timing(self) -> Timing | None:
        """Return the kind of timing of `seconds`, the wider of those that are known."""
        if self.asked_at is not None and self.pod_ready_at is not None:
            return Timing.POD
        is_bounded = self.ready_at is not None or self.has_observed_begin
        return Timing.PROCESS if self.started_at is not None and is_bounded else None

    @property
    def seconds(self) -> Reading | None:
        """Return the duration of the cold start: of the pod exact, of the process from its start to ready by the page.

        Without ready on the page, it was ready between the first failed scrape and the first good page.
        """
        if self.asked_at is not None and self.pod_ready_at is not None:
            took = max(0.0, self.pod_ready_at - self.asked_at)
            return Reading(value=took, low=took, high=took, n=1.0)
        if self.started_at is None or self.timing is None:
            return None
        until = self.seen_at - self.started_at
        if self.ready_at is None:
            return Reading(value=None, low=max(0.0, (self.silent_since or 0.0) - self.started_at), high=until, n=1.0)
        took = self.ready_at - self.started_at
        return Reading(value=took, low=took, high=max(took, until) if self.has_observed_begin else None, n=1.0)

    @property
    def lead_seconds(self) -> float | None:
        """Return the value for quantiles: best estimate, else upper bound."""
        seconds = self.seconds
        if seconds is None:
            return None
        return seconds.high if seconds.value is None else seconds.value


def update_start(start: ReplicaStart | None, page: Snapshot) -> ReplicaStart | None:
    """Return the start after another page of the process, or the same object without news."""
    if start is None or not start.unready:
        return start
    if page.pod is not None and page.pod.ready_at is not None:
        return replace(start, unready=False, pod_ready_at=page.pod.ready_at)
    return replace(start, unready=False) if page.t - start.seen_at > READY_SECONDS else start


def add_start(known: tuple[ReplicaStart, ...], start: ReplicaStart) -> tuple[ReplicaStart, ...]:
    """Add a start, oldest first. Return the same object if it is known, too old or not Ready yet.

    Age counts from the newest start: a tier without starts for months keeps its last ones.
    """
    since = max(earlier.t for earlier in (*known, start)) - KEPT_SECONDS
    if start.unready or start.t <= since or any(_is_same(start, earlier) for earlier in known):
        return known
    kept = [earlier for earlier in known if earlier.t > since]
    return tuple(sorted((*kept, start), key=lambda earlier: earlier.t))[-MOST:]


def _is_same(start: ReplicaStart, earlier: ReplicaStart) -> bool:
    """Return whether both are of one process: an agent that restarts finds known processes."""
    if start.replica != earlier.replica:
        return False
    if start.started_at is not None and earlier.started_at is not None:
        return abs(start.started_at - earlier.started_at) <= windows.RESTART_TOLERANCE_SECONDS
    return start.seen_at == earlier.seen_at


def describe_start(start: ReplicaStart) -> str:
    """Return how long a start took: of its pod, else of its process, else how long it was gone at most."""
    took = start.seconds
    if took is None and start.alive_at is not None:
        return f"back at most {number(start.seen_at - start.alive_at, 'seconds')} after it was gone"
    if took is None:
        return "its page does not tell how long it took"
    if took.value is None:
        return f"at most {number(took.high or 0.0, 'seconds')} after its process started"
    if start.timing is Timing.POD:
        return f"pod Ready {number(took.value, 'seconds')} after it was asked for"
    return f"process start to ready {number(took.value, 'seconds')}"


START = TypeAdapter(ReplicaStart)
"""Starts as JSON in the history's events."""

FROM_TO = {
    Timing.POD: "from the request for the pod to Ready",
    Timing.PROCESS: "from process start to ready",
}
"""How starts of a kind were timed, in words that follow "timed"."""


@dataclass(frozen=True, slots=True)
class StartQuantiles:
    """Quantiles of a tier's starts with one timing, in seconds; `proven_seconds` is the P95 of their lower bounds.

    `has_p95`: the P95 is another start than the slowest.
    """

    timing: Timing
    count: int
    p50_seconds: float
    p95_seconds: float
    proven_seconds: float

    @property
    def has_p95(self) -> bool:
        return self.count >= ENOUGH


def quantiles_by_timing(starts: Iterable[ReplicaStart]) -> tuple[StartQuantiles, ...]:
    """Return the quantiles of each kind of timing, in the order of `Timing`."""
    by_timing, quantiles = windows.group_by(starts, lambda start: start.timing), []
    for timing in Timing:
        timed = by_timing.get(timing, [])
        leads = [start.lead_seconds or 0.0 for start in timed]
        proven = [took.low or 0.0 for start in timed if (took := start.seconds)]
        if timed:
            median, p95 = nearest_rank(leads, 0.5), nearest_rank(leads, LEAD_QUANTILE)
            quantiles.append(StartQuantiles(timing, len(leads), median, p95, nearest_rank(proven, LEAD_QUANTILE)))
    return tuple(quantiles)
