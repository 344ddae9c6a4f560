"""Scrapes of one replica to windows: failed scrapes, restarts and clock jumps. Releases that the replicas of a tier run.

A failed scrape is a gap at once. If the same process answers again, its counters are booked late: a missed scrape loses
coverage and no requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rules.telemetry import windows
from rules.telemetry.signals import Gap
from rules.telemetry.snapshots import ENGINE_VERSION, Snapshot, is_same_release
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
    """Return the release that a page tells if it is another than is known of its replica, and the one that it replaces.

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
