"""The few ways to read a window: one function for each `How` but the derived, and what they share.

Each takes a window and names of families, and answers with bounds and the count behind them, or with the reason why it
cannot. All are functions of a window's sums alone, so any grouping of the same windows reads the same. Which signal is
read which way stands in `rules.telemetry.signals`; a new way is a function here and a member of `How`.
"""

from __future__ import annotations

from rules.telemetry import histograms
from rules.telemetry.signals import Gap, Missing, Reading, SignalValue
from rules.telemetry.windows import EVERYTHING, Window

FULL_COVERAGE = 0.9
"""Below this share of expected replica-seconds a tier total is a lower bound, never a value (DESIGN, words)."""

ALL = 1e-6
"""Shares of coverage are equal within this: times of scrapes are doubles of unix seconds, good to a microsecond."""


def quantile(window: Window, family: str, q: float) -> SignalValue:
    """A histogram family's quantile (0-1) of the requests in the window; the edges around its rank are the bounds."""
    if family not in window.histograms:
        return Missing(gap=window.explain_missing(family))
    found = histograms.quantile(window.histograms[family], q)
    if found is None:
        return gap_for_empty_family(window, family)
    return Reading(value=found.value, low=found.low, high=found.high, n=found.n)


def gap_for_empty_family(window: Window, family: str, text: str = "") -> Missing:
    """A family that counted nothing: no traffic, unless too much of the window was not seen to say so."""
    if window.seconds_of(family) < FULL_COVERAGE * window.due_seconds:
        unseen = window.gaps.get(family) or window.gaps.get(EVERYTHING)
        if unseen is not None:
            return Missing(gap=unseen)
    return Missing(gap=Gap.NO_TRAFFIC, text=text)


def total_rate(window: Window, family: str) -> SignalValue:
    """Increase per second of the whole tier: increase / span.

    Where less was covered the value stands for the whole by what was seen. Only a lower bound is told below
    FULL_COVERAGE, and where counters booked late (`rules.replicas.track`) reach back further than the other replicas' windows.
    """
    seen = window.seconds_of(family)
    if family not in window.counters or seen <= 0 or window.span <= 0:
        return Missing(gap=window.explain_missing(family))
    increase = window.counters[family]
    at_least = increase / window.span
    share = seen / window.due_seconds
    if not FULL_COVERAGE <= share <= 1 + ALL:
        return Reading(value=None, low=at_least, high=None, n=increase)
    value = at_least / min(1.0, share)
    return Reading(value=value, low=at_least, high=value if share >= 1 - ALL else None, n=increase)


def replica_rate(window: Window, family: str) -> float | None:
    """Increase per covered replica-second, None where the family was not seen."""
    seconds = window.seconds_of(family)
    if family not in window.counters or seconds <= 0:
        return None
    return window.counters[family] / seconds


def ratio(window: Window, above: str, below: str) -> SignalValue:
    """Increase of one counter by the increase of another; `n` is the latter.

    Exact where both were seen in the same time. Otherwise the ratio of their rates, which nothing bounds.
    """
    for family in (above, below):
        if family not in window.counters:
            return Missing(gap=window.explain_missing(family))
    base = window.counters[below]
    if base <= 0:
        return gap_for_empty_family(window, below)
    value = window.counters[above] / base
    of_above, of_below = window.seconds_of(above), window.seconds_of(below)
    if abs(of_above - of_below) <= ALL * window.due_seconds:
        return Reading(value=value, low=value, high=value, n=base)
    if of_above <= 0 or of_below <= 0:
        return Missing(gap=window.explain_missing(above if of_above <= 0 else below))
    return Reading(value=value * of_below / of_above, low=None, high=None, n=base)


def share(window: Window, part: str, whole: str) -> SignalValue:
    """The ratio of a counter that counts some of what another counts: never above 1, which is a contradiction."""
    found = ratio(window, part, whole)
    if isinstance(found, Reading) and found.value is not None and found.value > 1 + ALL:
        counted = f"{window.counters[part]:,.0f} {part} of {window.counters[whole]:,.0f} {whole}"
        return Missing(gap=Gap.CONTRADICTORY, text=f"{counted} ({found.value:.0%}) cannot be")
    return found


def mean_level(window: Window, family: str) -> SignalValue:
    """Mean of a gauge over its covered time; the extremes that were seen are the bounds."""
    gauge = window.gauge(family)
    if gauge is None:
        return Missing(gap=window.explain_missing(family))
    return Reading(
        value=gauge.integral / gauge.seconds,
        low=gauge.minimum,
        high=gauge.maximum,
        n=gauge.samples,
    )


def total_level(window: Window, family: str) -> SignalValue:
    """A gauge summed over the replicas: its mean times the replicas expected, and so its extremes.

    Below FULL_COVERAGE only what was seen is told: a lower bound, for no gauge here is negative.
    """
    mean, gauge = mean_level(window, family), window.gauge(family)
    if isinstance(mean, Missing) or gauge is None or window.span <= 0:
        return mean
    share, at_least = gauge.seconds / window.due_seconds, gauge.integral / window.span
    if share < FULL_COVERAGE:
        return Reading(value=None, low=at_least, high=None, n=gauge.samples)
    replicas = window.due_seconds / window.span
    whole = share >= 1 - ALL
    return Reading(
        value=gauge.integral / gauge.seconds * replicas,
        low=gauge.minimum * replicas if whole else at_least,
        high=gauge.maximum * replicas if whole else None,
        n=gauge.samples,
    )
