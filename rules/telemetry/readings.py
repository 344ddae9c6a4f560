"""From a window to readings, by the table of signals.

Owns the walk over the table. How to read stands in `rules.telemetry.reading_methods`, the derived signals in
`rules.telemetry.derived`; both are reached
from here. Every number comes with bounds and the count behind it, every absence with its reason.

One page alone as a window: everything since the process started.

Owns that view only; it is for looking at a page (`sizewatch inspect`), never for judging: a lifetime hides every change.
"""

from __future__ import annotations

from collections.abc import Callable

from rules.telemetry import outcomes
from rules.telemetry.arrivals import UNSERVED
from rules.telemetry.derived import DERIVED, PlanFacts
from rules.telemetry.gauges import GaugeSum
from rules.telemetry.histograms import from_cumulative
from rules.telemetry.reading_methods import (
    BRACKETS,
    FROM_WHOLE,
    PER_TOKEN,
    bracketed,
    mean_level,
    ratio,
    total_level,
    total_rate,
)
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


ALSO_READ: dict[str, tuple[str, ...]] = {
    "arrival_rps": ("requests_arrived", "requests_running", *UNSERVED),
    "failed_share": tuple(outcomes.READ),
    "refused_share": tuple(outcomes.READ),
    "speculative_acceptance": ("spec_accepted_at_position", "spec_accept_length", "spec_steps"),
    "tokens_per_round": ("spec_accept_length",),
    "prefix_hit_ratio": ("prefix_hit_gauge",),
    "fleet_utilization": ("prompt_tokens_computed", "prefix_hit_tokens", "prefix_queried_tokens"),
    "gpu_utilization": ("gpu_busy_covered_seconds", "gpu_utilization_sampled", "gpu_gfx_active"),
    "gpu_power_watts": ("gpu_energy_covered_seconds",),
}
"""Families that a signal is read from where its own are not there."""


def families_of(signal: Signal) -> frozenset[str]:
    """All families that its reading may look at: the rest of a window does not change it."""
    bracket = [other for family in signal.families for other in BRACKETS.get(family, ()) if other]
    whole = FROM_WHOLE if signal.how is SignalKind.QUANTILE and PER_TOKEN in signal.families else ()
    return frozenset((*signal.families, *ALSO_READ.get(signal.name, ()), *bracket, *whole))


def read_all(window: Window, basis: PlanFacts = NOTHING) -> dict[str, SignalValue]:
    """Every signal of the table, in its order."""
    return {signal.name: read(signal, window, basis) for signal in SIGNALS}


def read(signal: Signal, window: Window, basis: PlanFacts = NOTHING) -> SignalValue:
    """One signal's value in a window, or why there is none."""
    if signal.how is SignalKind.DERIVED:
        return DERIVED[signal.name](window, basis)
    return _WAYS[signal.how](signal, window)


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
