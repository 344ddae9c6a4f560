"""State of one replica between two scrapes, and its steps for a page or a failed scrape."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rules.replicas import stalls, starts
from rules.replicas.cascade import CascadeSample, CascadeState, CascadeThresholds, interrupt_cascade, step_cascade
from rules.replicas.stalls import NO_QUEUE, NO_STALLS, OverdueTrack, StallTrack
from rules.replicas.starts import ReplicaStart
from rules.replicas.track import ScrapeTrack, record_failure, record_success
from rules.telemetry import histograms, windows
from rules.telemetry.gauges import interpolate
from rules.telemetry.outcomes import HELD, HELD_LOST, OVERDUE, OVERDUE_LEFT
from rules.telemetry.signals import Gap
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window

CLAIMS = ("requests_running", "requests_waiting", "kv_utilization")
"""Gauges by which a page claims work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """State of one replica: scrape track, cascade, the windows of the `open` minute and its present `start`.

    `stale_seconds` is how long the page did not move although it claims work. `stalls` are its ranks that hold requests
    and do no work, `queue` its overdue requests. `error` is the error of the last scrape, `gpu_problem` that of its GPUs.
    `slope_gap` is why the cascade has no slope.
    """

    tier: str
    name: str
    track: ScrapeTrack = field(default_factory=ScrapeTrack)
    cascade: CascadeState = field(default_factory=CascadeState)
    open: tuple[Window, ...] = ()
    stale_seconds: float = 0.0
    stalls: StallTrack = NO_STALLS
    queue: OverdueTrack = NO_QUEUE
    error: str = ""
    gpu_problem: str = ""
    slope_gap: Gap = Gap.RESTARTED
    start: ReplicaStart | None = None


def apply_snapshot(
    replica: ReplicaState, snapshot: Snapshot, limits: CascadeThresholds, extra: Window | None = None
) -> tuple[ReplicaState, Window | None, Window | None]:
    """Return the replica after a good page, its window if any, and the minute that it closed.

    `extra` has other sources (GPUs) of the same time; it adds families and no coverage.
    """
    last = replica.track.last
    start = starts.detect_start(replica.track, snapshot, replica.name) or starts.update_start(replica.start, snapshot)
    track, window = record_success(replica.track, snapshot)
    cascade, slope_gap, stale_seconds = interrupt_cascade(replica.cascade), replica.slope_gap, 0.0
    stalled, queue = NO_STALLS, NO_QUEUE
    if window is not None:
        if extra is not None:
            window = _add_extra(window, extra)
        cascade, slope_gap = _follow_cascade(replica, snapshot, window, limits)
        is_claimed = any(window.gaps.get(family) is Gap.STALE for family in CLAIMS)
        if is_claimed and not stalls.is_suspended(snapshot.gauges):
            stale_seconds = replica.stale_seconds + window.span
        is_restart = window.gaps.get(windows.EVERYTHING) is Gap.RESTARTED
        if last is not None and not is_restart:
            stalled = stalls.step_stalls(replica.stalls, last, snapshot)
            queue = stalls.step_overdue(replica.queue, last, snapshot, limits.ttft_slo_seconds)
        if last is not None and (queue is not NO_QUEUE or replica.queue is not NO_QUEUE or replica.stalls.ranks):
            unanswered = _count_unanswered(replica.queue, replica.stalls, last)
            unanswered_now = _count_unanswered(queue, stalled, snapshot)
            window = _with_unanswered(window, unanswered, unanswered_now, None if is_restart else queue.gone)
    opened, closed = _open_minute(replica, track, window)
    replica = replace(
        replica,
        track=track,
        cascade=cascade,
        open=opened,
        stale_seconds=stale_seconds,
        stalls=stalled,
        queue=queue,
        error="",
        slope_gap=slope_gap,
        start=start,
    )
    return replica, window, closed


def _add_extra(window: Window, extra: Window) -> Window:
    """Add the families of GPUs, whose sums carry their own seconds."""
    return replace(
        window,
        counters={**extra.counters, **window.counters},
        gauges={**extra.gauges, **window.gauges},
        gaps={**extra.gaps, **window.gaps},
        sampled=window.sampled | extra.sampled,
    )


def apply_failed_scrape(
    replica: ReplicaState, t: float, reason: Gap = Gap.SCRAPE_FAILED, error: str = ""
) -> tuple[ReplicaState, Window | None, Window | None]:
    """Return the replica after a failed scrape at `t` with its error text, its window, and the minute that it closed."""
    track, window = record_failure(replica.track, t, reason)
    cascade, (opened, closed) = interrupt_cascade(replica.cascade), _open_minute(replica, track, window)
    replica = replace(replica, track=track, cascade=cascade, open=opened, error=error, slope_gap=reason)
    return replica, window, closed


def _count_unanswered(queue: OverdueTrack, stalled: StallTrack, page: Snapshot) -> tuple[float, float]:
    """Return the overdue requests of a page, and those that an engine holds which no longer steps."""
    waiting, held = stalls.count_held(stalled, page)
    return max(queue.overdue, waiting), held


def _with_unanswered(
    window: Window, before: tuple[float, float], now: tuple[float, float], gone: float | None
) -> Window:
    """Return the window with the overdue and the held requests, of which `gone` left.

    None: their process ended, and all of `before` have no answer.
    """
    levels = zip((OVERDUE, HELD), map(min, before, now), strict=True)
    ends = zip((OVERDUE_LEFT, HELD_LOST), before if gone is None else (gone, 0.0), strict=True)
    counters = {family: value for family, value in ends if value}
    gauges = {family: interpolate(level, level, window.span) for family, level in levels if level}
    return replace(window, counters={**window.counters, **counters}, gauges={**window.gauges, **gauges})


def _open_minute(
    replica: ReplicaState, track: ScrapeTrack, window: Window | None
) -> tuple[tuple[Window, ...], Window | None]:
    """Return the windows of the open minute with one more, and the minute that it or a clock that went back closed."""
    known = replica.open
    if window is None:
        is_back = track.seen is not None and replica.track.seen is not None and track.seen < replica.track.seen
        return ((), windows.sum_windows(known)) if is_back and known else (known, None)
    if known and windows.minute_of(window) != windows.minute_of(known[0]):
        return (window,), windows.sum_windows(known)
    return (*known, window), None


def _follow_cascade(
    replica: ReplicaState, now: Snapshot, window: Window, limits: CascadeThresholds
) -> tuple[CascadeState, Gap]:
    """Return the cascade after a window, and why it has no slope."""
    whole_gap = window.gaps.get(windows.EVERYTHING)
    if whole_gap is not None:
        return interrupt_cascade(replica.cascade), whole_gap
    untold = window.gaps.get("kv_utilization_max")
    if "kv_utilization_max" not in now.gauges or untold is Gap.STALE:
        return replica.cascade, replica.slope_gap
    if untold in windows.UNKNOWN_BETWEEN_SCRAPES:
        return interrupt_cascade(replica.cascade), untold
    slow = histograms.share_above(window.histograms.get("ttft_seconds", ()), limits.ttft_slo_seconds)
    e2e = window.histograms.get("e2e_seconds")
    sample = CascadeSample(
        t=now.t,
        dt=window.span,
        level=now.gauges["kv_utilization_max"],
        running=now.gauges.get("requests_running", 0.0),
        waiting=now.gauges.get("requests_waiting_capacity", now.gauges.get("requests_waiting", 0.0)),
        preemptions=window.counters.get("preemptions", 0.0),
        finished=window.counters.get("requests_finished", 0.0),
        first_tokens=slow.n,
        slow_first_tokens=slow.low,
        request_seconds=histograms.mean(e2e) if e2e else None,
    )
    return step_cascade(replica.cascade, sample, limits), replica.slope_gap
