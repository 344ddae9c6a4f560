"""One page alone as a window: everything since the process started.

Owns that view only; it is for looking at a page (`sizewatch inspect`), never for judging: a lifetime hides every change.
"""

from __future__ import annotations

from rules.telemetry.gauges import GaugeSum
from rules.telemetry.histograms import from_cumulative
from rules.telemetry.signals import Gap
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window

UNKNOWN_LIFETIME_SECONDS = 1.0
"""Span where the page does not tell when its process started: rates then mean nothing, and must not be shown."""


def window_since_start(page: Snapshot) -> Window:
    """The counters and histograms of a page as the increase since its process started, its gauges as they are."""
    start = (
        page.started_at
        if page.started_at is not None and page.started_at < page.t
        else page.t - UNKNOWN_LIFETIME_SECONDS
    )
    span = page.t - start
    parts = {family: (from_cumulative(c.edges, c.counts, c.total),) for family, c in page.histograms.items()}
    gauges = {
        family: GaugeSum(integral=value * span, seconds=span, minimum=value, maximum=value, samples=1)
        for family, value in page.gauges.items()
    }
    return Window(
        start=start,
        end=page.t,
        expected_seconds=span,
        covered_seconds=span,
        counters=dict(page.counters),
        histograms=parts,
        gauges=gauges,
        gaps=dict.fromkeys(sorted(page.contradictory), Gap.CONTRADICTORY),
        sampled=page.sampled,
    )
