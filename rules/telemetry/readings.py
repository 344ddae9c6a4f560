"""Readings of a window by the table of signals, and one page read as a window since the start of its process.

Every number has bounds and a count, every absence a gap. The window of a single page serves `sizewatch inspect` only,
never a verdict: a lifetime hides every change.
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


LOOKED_UP_FOR = ("prompt_tokens", "requests_finished", "requests_running", "requests_waiting")
"""Families that tell whether lookups of a cache were counted again."""

ALSO_READ: dict[str, tuple[str, ...]] = {
    "arrival_rps": ("requests_arrived", "requests_running", *UNSERVED, outcomes.HTTP_OK, "ttft_seconds"),
    "failed_share": tuple(outcomes.READ),
    "refused_share": tuple(outcomes.READ),
    "speculative_acceptance": ("spec_accepted_at_position", "spec_accept_length", "spec_steps"),
    "tokens_per_round": ("spec_accept_length",),
    "prefix_hit_ratio": ("prefix_hit_gauge", *LOOKED_UP_FOR),
    "external_prefix_hit_ratio": ("external_prefix_hit_gauge", *LOOKED_UP_FOR),
    "kv_offload_utilization": ("kv_offload_utilization",),
    "fleet_utilization": ("prompt_tokens_computed", "prefix_hit_tokens", "prefix_queried_tokens"),
    "gpu_utilization": ("gpu_busy_covered_seconds", "gpu_utilization_sampled", "gpu_gfx_active"),
    "gpu_power_watts": ("gpu_energy_covered_seconds",),
    **dict.fromkeys(
        ("energy_per_generated_token", "energy_per_token"), ("gpu_energy_covered_seconds", "gpu_power_watts")
    ),
}
"""Fallback families of a signal."""


def families_of(signal: Signal) -> frozenset[str]:
    """Return all families that the signal's reading may use. Other families do not change it."""
    bracket = [other for family in signal.families for other in BRACKETS.get(family, ()) if other]
    return frozenset((*signal.families, *ALSO_READ.get(signal.name, ()), *bracket))


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
    """Return the counters and histograms of a page as increases since its process started. Keep its gauges."""
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
        gaps=dict.fromkeys(sorted(page.contradictory), Gap.CONTRADICTORY)
        | dict.fromkeys(sorted(page.impossible), Gap.IMPOSSIBLE),
        sampled=page.sampled,
    )
