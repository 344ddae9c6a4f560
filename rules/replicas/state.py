"""State of one replica: its scrapes as windows, and its steps for a page or a failed scrape.

A failed scrape is a gap at once. If the same process answers again, its counters are booked late: a missed scrape loses
coverage and no requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from rules.replicas import stalls, starts
from rules.replicas.cascade import CascadeSample, CascadeState, CascadeThresholds, interrupt_cascade, step_cascade
from rules.replicas.stalls import NO_QUEUE, NO_STALLS, OverdueTrack, StallTrack
from rules.replicas.starts import ReplicaStart
from rules.telemetry import histograms, windows
from rules.telemetry.gauges import IN_SYSTEM, interpolate
from rules.telemetry.outcomes import HELD, HELD_LOST, OVERDUE, OVERDUE_LEFT
from rules.telemetry.signals import Gap
from rules.telemetry.snapshots import ENGINE_VERSION, PodTimes, Snapshot, is_same_release
from rules.telemetry.windows import Window

BRIDGE_SECONDS = 300.0
"""After a longer silence counters say too little about when: they are dropped (Prometheus' staleness is 300 s too)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeTrack:
    """Last good page, last scrape of any outcome, and failed scrapes since (the first at `silent_since`).

    `unscraped_seconds` lie between the last two good pages, 0 if bridged.
    """

    last: Snapshot | None = None
    seen: float | None = None
    misses: int = 0
    silent_since: float | None = None
    unscraped_seconds: float = 0.0


def record_success(track: ScrapeTrack, page: Snapshot) -> tuple[ScrapeTrack, Window | None]:
    """Return the track after a good page, and its window.

    The first page has none, nor a page after a clock that stopped or went back.
    """
    after = ScrapeTrack(last=page, seen=page.t, misses=0)
    if track.seen is None or page.t <= track.seen:
        return after, None
    if track.last is None:
        gap = windows.gap_window(track.seen, page.t, Gap.SCRAPE_FAILED)
        # A start, if the process became ready in the wait for it.
        waited = track.silent_since is not None and page.ready_at is not None and page.ready_at > track.silent_since
        return after, replace(gap, counters=windows.cold_start(page)) if waited else gap
    if track.misses == 0 and page.t - track.seen > BRIDGE_SECONDS:
        after = replace(after, unscraped_seconds=page.t - track.seen)
    window = windows.diff_snapshots(track.last, page)
    if windows.EVERYTHING in window.gaps:
        return after, replace(window, start=track.seen, expected_seconds=page.t - track.seen)
    if page.t - track.last.t > BRIDGE_SECONDS:
        reason = Gap.NOT_SCRAPED if after.unscraped_seconds else Gap.SCRAPE_FAILED
        return after, windows.gap_window(track.seen, page.t, reason)
    if track.misses == 0:
        return after, window
    # After failed scrapes: gaps up to `seen`, the counters of the whole silence, no gauges.
    gaps = {**window.gaps, **dict.fromkeys((*window.gauges, windows.EVERYTHING), Gap.SCRAPE_FAILED)}
    return after, replace(window, expected_seconds=window.end - track.seen, gauges={}, gaps=gaps)


def is_unwatched(window: Window) -> bool:
    """Return whether the agent did not scrape in the window: it was suspended, or its clock was set ahead."""
    return window.covered_seconds == 0 and window.span > BRIDGE_SECONDS and not window.counters


def record_failure(track: ScrapeTrack, t: float, reason: Gap = Gap.SCRAPE_FAILED) -> tuple[ScrapeTrack, Window | None]:
    """Return the track after a failed scrape at `t`, and a gap since the last scrape if there was one.

    After a clock that stopped or went back there is no gap and no earlier page.
    """
    misses = track.misses + 1
    if track.seen is not None and t <= track.seen:
        return ScrapeTrack(last=None, seen=t, misses=misses, silent_since=t), None
    window = None if track.seen is None else windows.gap_window(track.seen, t, reason)
    since = t if track.silent_since is None else track.silent_since
    return replace(track, seen=t, misses=misses, silent_since=since), window


def detect_release(
    known: Mapping[str, str], replica: str, page: Snapshot, live: Iterable[str]
) -> tuple[str, str] | None:
    """Return the release of a page if it is new to its replica, and the one that it replaces.

    `known` has the release of each replica, the newest record last. The second is "" for a new replica; but it changes
    the release of its tier if none of the `live` replicas runs it.
    """
    release, before = page.facts.get(ENGINE_VERSION), known.get(replica)
    if not release or (before is not None and is_same_release(before, release)):
        return None
    if before is None:
        texts = [known[name] for name in live if name in known] or list(known.values())[-1:]
        is_change = texts and not any(is_same_release(release, text) for text in texts)
        before = texts[-1] if is_change else ""
    return release, before


def detect_start(track: ScrapeTrack, page: Snapshot, replica: str) -> ReplicaStart | None:
    """Return the start of a page's process, if it is its first page and something is known of the start.

    `track` is the replica's before this page. A process that was already running counts by its own page.
    """
    # A first page may be dated before a cycle that closed while it was still parsed.
    if track.last is not None and (page.t <= (track.seen or 0.0) or not windows.is_restart(track.last, page)):
        return None
    started, ready, pod = page.started_at, page.ready_at, page.pod or PodTimes()
    start = ReplicaStart(
        replica=replica,
        seen_at=page.t,
        # Without a process start, it is when its metrics were made.
        started_at=None if started is not None and ready is not None and ready <= started else started,
        ready_at=ready,
        asked_at=pod.asked_at,
        pod_ready_at=pod.ready_at,
        unready=pod.asked_at is not None and pod.ready_at is None,
    )
    came = track.last.t if track.last is not None else track.silent_since
    known = start.started_at if ready is None else ready
    # A process older than the wait for it is a network failure, or one address for several.
    if came is not None and (known is None or known > came):
        alive = track.last.t if track.last is not None else None
        start = replace(start, alive_at=alive, silent_since=track.silent_since if track.misses else None)
    is_observed = start.alive_at is not None and start.silent_since is not None
    return start if start.timing is not None or start.asked_at is not None or is_observed else None


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
    start = detect_start(replica.track, snapshot, replica.name) or starts.update_start(replica.start, snapshot)
    track, window = record_success(replica.track, snapshot)
    cascade, slope_gap, stale_seconds = interrupt_cascade(replica.cascade), replica.slope_gap, 0.0
    stalled, queue = NO_STALLS, NO_QUEUE
    if window is not None:
        if extra is not None:
            # Sums of GPUs carry their own seconds.
            counters, gauges = {**extra.counters, **window.counters}, {**extra.gauges, **window.gauges}
            gaps, sampled = {**extra.gaps, **window.gaps}, window.sampled | extra.sampled
            window = replace(window, counters=counters, gauges=gauges, gaps=gaps, sampled=sampled)
        cascade, slope_gap = _follow_cascade(replica, snapshot, window, limits)
        is_claimed = any(window.gaps.get(family) is Gap.STALE for family in (*IN_SYSTEM, "kv_utilization"))
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
    replica = replace(replica, track=track, start=start, cascade=cascade, slope_gap=slope_gap, open=opened)
    return replace(replica, stale_seconds=stale_seconds, stalls=stalled, queue=queue, error=""), window, closed


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
