"""Readings of a window by the table of signals, and one page read as a window since the start of its process.

Every number has bounds and a count, every absence a gap. The window of a single page serves `sizewatch inspect` only,
never a verdict: a lifetime hides every change.
"""

from __future__ import annotations

from collections.abc import Callable

from rules.telemetry.derived import DERIVED, PlanFacts
from rules.telemetry.gauges import interpolate
from rules.telemetry.histograms import EMPTY, increase
from rules.telemetry.reading_methods import BRACKETS, bracketed, mean_level, ratio, total_level, total_rate
from rules.telemetry.signals import SIGNALS, Gap, Signal, SignalKind, SignalValue
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window

NOTHING = PlanFacts()

_WAYS: dict[SignalKind, Callable[[Signal, Window], SignalValue]] = {
    SignalKind.QUANTILE: lambda signal, window: bracketed(window, signal.families[0], signal.q or 0.0),
    SignalKind.RATE: lambda signal, window: total_rate(window, signal.families[0]),
    SignalKind.RATIO: lambda signal, window: ratio(window, signal.families[0], signal.families[1]),
    SignalKind.LEVEL: lambda signal, window: mean_level(window, signal.families[0]),
    SignalKind.TOTAL_LEVEL: lambda signal, window: total_level(window, signal.families[0]),
}


def families_of(signal: Signal) -> frozenset[str]:
    """Return all families that the signal's reading may use. Other families do not change it."""
    bracket = [other_family for family in signal.families for other_family in BRACKETS.get(family, ()) if other_family]
    return frozenset((*signal.families, *signal.also, *bracket))


def read_all(window: Window, basis: PlanFacts = NOTHING) -> dict[str, SignalValue]:
    """Return every signal of the table, in its order."""
    return {signal.name: read(signal, window, basis) for signal in SIGNALS}


def read(signal: Signal, window: Window, basis: PlanFacts = NOTHING) -> SignalValue:
    """Return the value of a signal in a window, or its gap."""
    if signal.how is SignalKind.DERIVED:
        return DERIVED[signal.name](window, basis)
    return _WAYS[signal.how](signal, window)


UNKNOWN_LIFETIME_SECONDS = 1.0
"""Span in seconds for a page without process start time. Its rates are meaningless and must not be shown."""


def window_since_start(page: Snapshot) -> Window:
    """Return the counters and histograms of a page as increases since its engine was ready. Keep its gauges."""
    start = page.started_at if page.ready_at is None else page.ready_at
    if start is None or start >= page.t:
        start = page.t - UNKNOWN_LIFETIME_SECONDS
    span = page.t - start
    parts = {family: (increase(EMPTY, c),) for family, c in page.histograms.items()}
    gauges = {family: interpolate(value, value, span) for family, value in page.gauges.items()}
    return Window(
        start=start,
        end=page.t,
        expected_seconds=span,
        covered_seconds=span,
        counters=dict(page.counters),
        histograms=parts,
        gauges=gauges,
        gaps=dict.fromkeys(sorted(page.contradictory), Gap.CONTRADICTORY)
        | dict.fromkeys(sorted(page.impossible), Gap.IMPOSSIBLE),
        sampled=page.sampled,
    )
