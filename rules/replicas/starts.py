"""Starts of a replica: end of the old process, process start, ready, first served request, and their durations.

A page's own times take precedence; otherwise the silence around the start bounds it. `forecast.capacity.cold_start`
computes a tier's cold start from them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from enum import StrEnum

from pydantic import TypeAdapter

from rules.light_dataclass import light_dataclass
from rules.replicas.track import ScrapeTrack
from rules.telemetry import windows
from rules.telemetry.gauges import IN_SYSTEM
from rules.telemetry.signals import Reading
from rules.telemetry.snapshots import PodTimes, Snapshot
from rules.telemetry.wording import number, quantity

SILENCE_LIMIT_SECONDS = 960.0
"""Where the page does not tell when its process started, a longer silence was a stop and no start: twice the slow ends of
the four phases together (guide, handling cold starts: 180 + 90 + 180 + 30 s)."""

SERVE_SECONDS = 300.0
"""Requests that were there when the replica was ready are waited for so long; one that takes longer says nothing of a start."""

KEPT_SECONDS = 28 * 86_400.0
"""Starts that are older than the newest one by more were of other weights, images and nodes."""

MOST = 200
"""Of a tier, the newest: enough for a P95 with ten starts above it."""

LEAD_QUANTILE = 0.95
"""The lead of a tier is the P95 of its starts: one in twenty may come late."""

ENOUGH = 20
"""From so many starts on a P95 by nearest rank is something else than the slowest one; fewer say nothing of one in twenty."""

SAME_SECONDS = windows.RESTART_TOLERANCE_SECONDS

FINISHED = "requests_finished"


class Timing(StrEnum):
    """Timed part of a cold start and its clock. Only `POD` is the whole; kinds are never mixed."""

    POD = "pod"  # from the pod's making, which is the request for the replica, to Ready
    UNREADY = "pod_unready"  # from the pod's making to the first page; Ready was not seen
    PROCESS = "process"  # from process start to ready, by the page
    SILENCE = "silence"  # from the last page of the process before to the first page
    ENGINE = "engine"  # what the engine says of its own start


@light_dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStart:
    """Start of a replica; all times are unix seconds, None if unknown.

    `alive_at` is the last good page of the old process, `silent_since` the first failed scrape, `seen_at` the first
    good page. Without `alive_at` and `silent_since` the process was already running. `started_at`, `ready_at` and
    `engine_seconds` are the page's. `waited`: requests were there and none was served; `served_at` is when the first of
    them was. `asked_at`, `scheduled_at`, `container_at` and `pod_ready_at` are the pod's (`rules.telemetry.snapshots`).
    `unready`: it answers and its pod is not Ready yet.
    """

    replica: str
    seen_at: float
    alive_at: float | None = None
    silent_since: float | None = None
    started_at: float | None = None
    ready_at: float | None = None
    waited: bool = False
    served_at: float | None = None
    engine_seconds: float | None = None
    asked_at: float | None = None
    scheduled_at: float | None = None
    container_at: float | None = None
    pod_ready_at: float | None = None
    unready: bool = False

    @property
    def t(self) -> float:
        """Return the best known time (unix seconds) of ready."""
        return self.seen_at if self.ready_at is None else self.ready_at

    @property
    def is_final(self) -> bool:
        """Return whether nothing more will be known of the start."""
        return (not self.waited or self.served_at is not None) and not self.unready

    @property
    def has_observed_begin(self) -> bool:
        """Return whether the begin was observed, so that `seen_at` bounds it."""
        return self.alive_at is not None or self.silent_since is not None

    @property
    def is_independently_timed(self) -> bool:
        """Return whether more is known of it than what the engine says of itself."""
        return self.source is not Timing.ENGINE

    @property
    def source(self) -> Timing:
        """Return the kind of timing of `seconds`, the widest that is known."""
        if self.asked_at is not None:
            return Timing.UNREADY if self.pod_ready_at is None else Timing.POD
        if self.started_at is not None:
            return Timing.PROCESS
        return Timing.SILENCE if self._silence is not None else Timing.ENGINE

    @property
    def seconds(self) -> Reading:
        """Return the duration of the cold start.

        From process start to ready by the page, or to the first good page; else at most from the old process's last
        page. If requests waited, the upper bound reaches to the first served request: time without requests is no cold
        start.
        """
        until = self.seen_at if self.served_at is None else self.served_at
        if self.asked_at is not None:
            return self._since_asked(self.asked_at, until)
        if self.started_at is not None:
            if self.ready_at is None:
                low = max(0.0, (self.silent_since or 0.0) - self.started_at)
                return Reading(value=None, low=low, high=until - self.started_at, n=1.0)
            took = self.ready_at - self.started_at
            high = max(took, until - self.started_at) if self.has_observed_begin else None
            return Reading(value=took, low=took, high=high, n=1.0)
        low = self.engine_seconds or 0.0
        silence = self._silence
        return Reading(value=None, low=low, high=None if silence is None else max(low, silence), n=1.0)

    def _since_asked(self, asked_at: float, until: float) -> Reading:
        """Return the duration from the pod's creation to Ready.

        Without Ready: at least to the first page, at most to the first served request.
        """
        if self.pod_ready_at is not None:
            took = max(0.0, self.pod_ready_at - asked_at)
            return Reading(value=took, low=took, high=took, n=1.0)
        low = max(0.0, self.seen_at - asked_at)
        high = None if self.served_at is None else max(low, until - asked_at)
        return Reading(value=None, low=low, high=high, n=1.0)

    def unseen_seconds(self, timing: Timing) -> float | None:
        """Return the seconds that this kind of timing omits. Return None unless part and whole are known."""
        took = self.ready_at - self.started_at if self.ready_at is not None and self.started_at is not None else None
        part = {Timing.PROCESS: took, Timing.ENGINE: self.engine_seconds}.get(timing)
        whole = self.seconds.value if self.source is Timing.POD else None
        return None if whole is None or part is None else max(0.0, whole - part)

    @property
    def lead_seconds(self) -> float:
        """Return the value for quantiles: best estimate, else upper bound, else lower bound."""
        found = self.seconds
        return next(each for each in (found.value, found.high, found.low, 0.0) if each is not None)

    @property
    def seconds_since_gone(self) -> Reading | None:
        """Return the duration from gone to ready. Return None if another process took over at once.

        It was gone between its last good page and the first failed scrape. It was ready between the page's own time and
        the first good page.
        """
        if self.alive_at is None or self.silent_since is None:
            return None
        low = 0.0 if self.ready_at is None else max(0.0, self.ready_at - self.silent_since)
        return Reading(value=None, low=low, high=self.seen_at - self.alive_at, n=1.0)

    @property
    def _silence(self) -> float | None:
        """Return the silence as upper bound, None if too long for a start."""
        gone = self.seconds_since_gone
        if gone is None or gone.high is None or gone.high > SILENCE_LIMIT_SECONDS:
            return None
        return gone.high if self.served_at is None or self.alive_at is None else self.served_at - self.alive_at


def detect_start(track: ScrapeTrack, page: Snapshot, replica: str) -> ReplicaStart | None:
    """Return the start of a page's process, if it is its first page and its duration is known at least in part.

    `track` is the replica's before this page. A process that was already running counts by its own page.
    """
    # A first page may be dated before a cycle that closed while it was still parsed.
    if track.last is not None and (page.t <= (track.seen or 0.0) or not windows.is_restart(track.last, page)):
        return None
    told = _told(page, replica)
    came = track.last.t if track.last is not None else track.silent_since
    if came is None or _older(told, came):
        found = told if told.ready_at is not None or told.started_at is None else None
    else:
        alive = track.last.t if track.last is not None else None
        silent = track.silent_since if track.misses else None
        found = replace(told, alive_at=alive, silent_since=silent, waited=_waits(page))
    if found is None and told.asked_at is not None:
        # Its page tells too little, its pod enough.
        found = told
    return found if found is not None and (found.is_independently_timed or found.engine_seconds) else None


def _told(page: Snapshot, replica: str) -> ReplicaStart:
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
        engine_seconds=page.gauges.get("engine_startup_seconds") or None,
        asked_at=pod.asked_at,
        scheduled_at=pod.scheduled_at,
        container_at=pod.container_at,
        pod_ready_at=pod.ready_at,
        unready=pod.asked_at is not None and pod.ready_at is None,
    )


def _older(told: ReplicaStart, came: float) -> bool:
    """Return whether the process is older than the wait for it: a network failure, or one address for several."""
    known = told.started_at if told.ready_at is None else told.ready_at
    return known is not None and known <= came


def _waits(page: Snapshot) -> bool:
    there = math.fsum(page.gauges.get(name, 0.0) for name in IN_SYSTEM)
    return there > 0 and page.counters.get(FINISHED) == 0


def update_start(start: ReplicaStart | None, page: Snapshot) -> ReplicaStart | None:
    """Return the start after another page of the process, or the same object without news."""
    if start is None or start.is_final:
        return start
    if start.unready and page.pod is not None and page.pod.ready_at is not None:
        start = replace(start, unready=False, pod_ready_at=page.pod.ready_at)
    if start.waited and start.served_at is None and page.counters.get(FINISHED, 0.0) > 0:
        return replace(start, served_at=page.t)
    late = page.t - start.seen_at > SERVE_SECONDS
    return replace(start, waited=False, unready=False) if late else start


def add_start(known: tuple[ReplicaStart, ...], start: ReplicaStart) -> tuple[ReplicaStart, ...]:
    """Add a start, oldest first. Return the same object if it is known, too old or not final.

    Age counts from the newest start: a tier without starts for months keeps its last ones.
    """
    since = max(one.t for one in (*known, start)) - KEPT_SECONDS
    if not start.is_final or start.t <= since or any(_same(start, one) for one in known):
        return known
    return tuple(sorted((*(one for one in known if one.t > since), start), key=lambda one: one.t))[-MOST:]


def _same(one: ReplicaStart, other: ReplicaStart) -> bool:
    """Return whether both are of one process: an agent that restarts finds known processes."""
    if one.replica != other.replica:
        return False
    if one.started_at is not None and other.started_at is not None:
        return abs(one.started_at - other.started_at) <= SAME_SECONDS
    if one.engine_seconds is not None and one.engine_seconds == other.engine_seconds:
        return True
    return one.seen_at == other.seen_at


def nearest_rank(values: Sequence[float], q: float) -> float:
    """Return quantile `q` (0-1] as one of the values (Hyndman and Fan 1996, definition 1). Raise ValueError for none."""
    if not values:
        raise ValueError("no values, no quantile")
    return sorted(values)[max(0, math.ceil(q * len(values) - 1e-9) - 1)]


def describe_start(start: ReplicaStart) -> str:
    """Return a sentence about one start."""
    gone, took, engine = start.seconds_since_gone, _process(start), start.engine_seconds
    if start.asked_at is not None:
        return _pod(start, start.asked_at)
    if gone is not None and start.ready_at is not None:
        said = f"ready {quantity(gone, 'seconds')} after it was gone" + (f" ({took})" if took else "")
    elif gone is not None:
        said = f"back at most {number(gone.high or 0.0, 'seconds')} after it was gone" + (f" ({took})" if took else "")
    else:
        said = took or f"its own start took {number(engine or 0.0, 'seconds')}, as the engine says"
    if start.alive_at is None and start.silent_since is not None:
        said = f"new: {said}"
    if start.served_at is None:
        return said
    return (
        f"{said}; a request that was there was served at most {number(start.served_at - start.t, 'seconds')} after that"
    )


def _pod(start: ReplicaStart, asked_at: float) -> str:
    """Return the pod's steps, each counted from its creation. The engine's readiness is not its pod's."""
    steps = (
        ("on a node", start.scheduled_at),
        ("container started", start.container_at),
        ("engine ready", start.ready_at or start.seen_at),
        ("pod Ready", start.pod_ready_at),
    )
    told = [f"{what} after {number(max(0.0, at - asked_at), 'seconds')}" for what, at in steps if at is not None]
    return f"its pod was asked for: {', '.join(told)}" + ("" if start.pod_ready_at else "; Ready was not seen")


def _process(start: ReplicaStart) -> str:
    if start.started_at is None:
        return ""
    took = start.seconds
    if start.ready_at is None:
        return f"at most {number(start.seen_at - start.started_at, 'seconds')} after its process started"
    return f"process start to ready {number(took.value or 0.0, 'seconds')}"


_START = TypeAdapter(ReplicaStart)


def to_text(start: ReplicaStart) -> str:
    """Return the start as JSON for the history's events."""
    return json.dumps(
        {name: value for name, value in asdict(start).items() if value is not None and value is not False}
    )


def from_text(text: str) -> ReplicaStart:
    """Return the start of a JSON text. Raise ValueError for an invalid one."""
    try:
        return _START.validate_python(json.loads(text))
    except RecursionError:
        raise ValueError("a start that is nested too deeply") from None
