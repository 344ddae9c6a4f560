"""Backlogs: minutes whose requests did not meet the load that the minute completed.

Completed requests per second saturate (DESIGN 3.4): an engine that jams completes few and would pass for lightly loaded.
Owns how a replica's minute is taken off the curve while its queue grows, and until the queue that an overload left is
worked off. It sees the minutes of one replica in order; sums of them, as the history keeps, stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from rules.plan.load_bins import BinnedWindow
from rules.telemetry.gauges import GaugeSum
from rules.telemetry.windows import Window

QUEUE = 1.0
"""Mean waiting requests below which there is no queue to speak of: less than one always waits."""

GROWTH = 0.05
"""Arrivals above completions by less than this share are the coming and going of a full batch (measured: 1-3 %)."""

AFTER_SECONDS = 90.0
"""A minute that begins later than this after the one before says nothing about that one's queue."""


def mark_backlog(one: BinnedWindow, before: BinnedWindow | None) -> BinnedWindow:
    """A replica's minute, taken off the curve where a backlog rules its latencies; `before` is the minute before it.

    Growing: waiting is above the minute before and more arrived than finished; that is load beyond the benchmark. Worked
    off: the first tokens of this minute are those of requests that an overload left waiting.
    """
    queue = waiting_gauge(one.window)
    if queue is None or (one.bin is None and not one.beyond):
        return one
    if before is not None and one.window.start - before.window.end > AFTER_SECONDS:
        before = None
    if one.beyond:
        return replace(one, leftover=queue.maximum)
    growing = _growing(one, queue, before)
    if growing:
        return replace(one, bin=None, beyond=growing, leftover=queue.maximum)
    left = before.leftover if before is not None else 0.0
    if min(left, queue.maximum) < QUEUE:
        return one
    return replace(
        one,
        bin=None,
        backlog=f"{left:.0f} requests that an overload had left waiting were worked off",
        leftover=max(0.0, min(left - _begun(one.window), queue.maximum)),
    )


def waiting_gauge(window: Window) -> GaugeSum | None:
    """Requests that wait for capacity; held-back ones (adapters, KV loads) are no queue where the engine tells them apart."""
    return window.gauge("requests_waiting_capacity") or window.gauge("requests_waiting")


def _growing(one: BinnedWindow, queue: GaugeSum, before: BinnedWindow | None) -> str:
    """Of a queue that was growing already, both minutes count together: what is added in one may only level off."""
    mean = queue.integral / queue.seconds
    earlier = waiting_gauge(before.window) if before is not None else None
    if mean < QUEUE or (earlier is not None and mean <= earlier.integral / earlier.seconds):
        return ""
    together = [one.window] if before is None or not before.beyond else [before.window, one.window]
    finished = math.fsum(w.counters.get("requests_finished", 0.0) for w in together)
    more = math.fsum(w.counters.get("in_system_change", 0.0) for w in together)
    if more < max(1.0, GROWTH * finished):
        return ""
    return (
        f"{finished + more:,.0f} requests arrived, {finished:,.0f} finished, and the queue grew to {queue.maximum:.0f}"
    )


def _begun(window: Window) -> float:
    """Requests that got their first token; those that finished, where the engine does not tell."""
    parts = window.histograms.get("ttft_seconds")
    return math.fsum(p.n for p in parts) if parts else window.counters.get("requests_finished", 0.0)


def describe_growth(slices: Sequence[BinnedWindow], now: float) -> str:
    """The sentence on a queue of one replica that grew over the whole hold, "" where it did not (DESIGN 3.4).

    In every third more arrived than finished and more waited than in the third before, and the last waits twice as many
    as the first: what comes and goes in a busy queue does not.
    """
    thirds = _thirds(slices, now)
    first, second, third = (mean_waiting(group) for group in thirds)
    if first is None or second is None or third is None or third < max(QUEUE, 2 * first):
        return ""
    more = [math.fsum(s.window.counters.get("in_system_change", 0.0) for s in group) for group in thirds]
    if not first < second < third or min(more) <= 0:
        return ""
    return f"more requests arrive than finish: {first:.1f}, {second:.1f}, then {third:.1f} were waiting"


def thirds_seen(slices: Sequence[BinnedWindow], now: float) -> bool:
    """Whether something is known of the queue in every third of the hold: else nobody can tell that it did not grow."""
    return all(mean_waiting(group) is not None for group in _thirds(slices, now))


def _thirds(slices: Sequence[BinnedWindow], now: float) -> list[list[BinnedWindow]]:
    start = min((s.window.start for s in slices), default=now)
    thirds: list[list[BinnedWindow]] = [[], [], []]
    for one in slices:
        middle = (one.window.start + one.window.end) / 2
        thirds[min(2, int((middle - start) / max(now - start, 1e-9) * 3))].append(one)
    return thirds


def mean_waiting(slices: Sequence[BinnedWindow]) -> float | None:
    """Mean waiting requests of one replica; None where the gauges tell of less than half of what was seen."""
    gauges = [gauge for s in slices if (gauge := waiting_gauge(s.window)) is not None]
    seconds = math.fsum(g.seconds for g in gauges)
    if seconds <= 0 or seconds < math.fsum(s.window.covered_seconds for s in slices) / 2:
        return None
    return math.fsum(g.integral for g in gauges) / seconds
