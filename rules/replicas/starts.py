"""Starts of a replica: end of the old process, process start, ready, and their durations.

A start is timed by its pod (asked for to Ready) or by its page (process start to ready). `forecast.capacity.cold_start`
computes a tier's cold start from them. Kinds of timing are never mixed in a quantile: a start timed from process start is
shorter than the same start timed from the request for its pod.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from pydantic import TypeAdapter

from rules.confidence import nearest_rank
from rules.replicas.track import ScrapeTrack
from rules.telemetry import windows
from rules.telemetry.signals import Reading
from rules.telemetry.snapshots import PodTimes, Snapshot
from rules.telemetry.wording import number

SLOWEST_SECONDS = 960.0
"""A start that takes longer is overdue: twice the slow ends of the four phases together (guide, handling cold starts:
180 + 90 + 180 + 30 s)."""

READY_SECONDS = 300.0
"""A pod that answers and is not Ready is waited for so long."""

KEPT_SECONDS = 28 * 86_400.0
"""Starts that are older than the newest one by more were of other weights, images and nodes."""

MOST = 200
"""Of a tier, the newest: enough for a P95 with ten starts above it."""

LEAD_QUANTILE = 0.95
"""The lead of a tier is the P95 of its starts: one in twenty may come late."""

ENOUGH = 20
"""From so many starts on a P95 by nearest rank is something else than the slowest one; fewer say nothing of one in twenty."""


class Timing(StrEnum):
    """Timed part of a cold start. Only `POD` is the whole; kinds are never mixed."""

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


def detect_start(track: ScrapeTrack, page: Snapshot, replica: str) -> ReplicaStart | None:
    """Return the start of a page's process, if it is its first page and something is known of the start.

    `track` is the replica's before this page. A process that was already running counts by its own page.
    """
    # A first page may be dated before a cycle that closed while it was still parsed.
    if track.last is not None and (page.t <= (track.seen or 0.0) or not windows.is_restart(track.last, page)):
        return None
    start = _read_start(page, replica)
    came = track.last.t if track.last is not None else track.silent_since
    if came is None or _is_older(start, came):
        return start if start.timing is not None or start.asked_at is not None else None
    alive = track.last.t if track.last is not None else None
    start = replace(start, alive_at=alive, silent_since=track.silent_since if track.misses else None)
    is_known = start.timing is not None or start.asked_at is not None or (alive is not None and track.misses > 0)
    return start if is_known else None


def _read_start(page: Snapshot, replica: str) -> ReplicaStart:
    """Return the page's data of its process. Without a process start, `started_at` is when its metrics were made."""
    started, ready = page.started_at, page.ready_at
    if started is not None and ready is not None and ready <= started:
        started = None
    pod = page.pod or PodTimes()
    return ReplicaStart(
        replica=replica,
        seen_at=page.t,
        started_at=started,
        ready_at=ready,
        asked_at=pod.asked_at,
        pod_ready_at=pod.ready_at,
        unready=pod.asked_at is not None and pod.ready_at is None,
    )


def _is_older(start: ReplicaStart, came: float) -> bool:
    """Return whether the process is older than the wait for it: a network failure, or one address for several."""
    known = start.started_at if start.ready_at is None else start.ready_at
    return known is not None and known <= came


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
    since = max(replica_start.t for replica_start in (*known, start)) - KEPT_SECONDS
    if start.unready or start.t <= since or any(_same(start, replica_start) for replica_start in known):
        return known
    return tuple(
        sorted(
            (*(replica_start for replica_start in known if replica_start.t > since), start),
            key=lambda replica_start: replica_start.t,
        )
    )[-MOST:]


def _same(start: ReplicaStart, replica_start: ReplicaStart) -> bool:
    """Return whether both are of one process: an agent that restarts finds known processes."""
    if start.replica != replica_start.replica:
        return False
    if start.started_at is not None and replica_start.started_at is not None:
        return abs(start.started_at - replica_start.started_at) <= windows.RESTART_TOLERANCE_SECONDS
    return start.seen_at == replica_start.seen_at


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


_START = TypeAdapter(ReplicaStart)


def to_text(start: ReplicaStart) -> str:
    """Return the start as JSON for the history's events."""
    return _START.dump_json(start, exclude_defaults=True).decode()


def from_text(text: str) -> ReplicaStart:
    """Return the start of a JSON text. Raise ValueError for an invalid one."""
    return _START.validate_json(text)


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
    start_quantiles = []
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
            start_quantiles.append(quantiles)
    return tuple(start_quantiles)
