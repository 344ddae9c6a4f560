"""Time that a replica needs to finish its requests before it ends, and how many its sudden loss cuts off.

Engines say how long a request takes only when it is over. The requests that a replica holds at a moment are longer than
those that it finishes: a long one is there more often. `measure_loss` counts with that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rules.telemetry import histograms
from rules.telemetry.histograms import Histogram, Quantile
from rules.telemetry.windows import Window

E2E = "e2e_seconds"
FINISHED = 0.99
"""Share of requests that end within the drain time."""

LEAST_REQUESTS = 100
"""Below it the P99 is the slowest request of all, and says nothing of the next."""

ROUTING_SECONDS = 15
"""Sleep of the preStop hook: routers still send to a pod that ends, until they see it (KServe 0.19 sleeps 15 s)."""

SHUTDOWN_MARGIN_SECONDS = 20
"""For shutdown and transfer after the last request (serving guide, spot-drain-deadline.py)."""

SPOT_WARNING_SECONDS = 120.0
"""Warning before a spot instance is taken (serving guide). AWS gives two minutes; other clouds give less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainTime:
    """Seconds within which 99 % of requests end, by their E2E quantile."""

    e2e_p99: Quantile

    @property
    def seconds(self) -> int:
        """Return the upper bound of the P99 in whole seconds. It is finite (`measure_drain`)."""
        return math.ceil(self.e2e_p99.high or 0.0)

    @property
    def grace_seconds(self) -> int:
        """Return `terminationGracePeriodSeconds` of a pod: routing, drain and margin. The preStop hook counts in it."""
        return ROUTING_SECONDS + self.seconds + SHUTDOWN_MARGIN_SECONDS


def measure_drain(window: Window) -> DrainTime | str:
    """Return the drain time of a tier's window, or why it is not known."""
    found = histograms.quantile(window.histograms.get(E2E, ()), FINISHED)
    if found is None:
        return f"the duration of requests is not known: {window.explain_missing(E2E)}"
    if found.n < LEAST_REQUESTS:
        return f"{found.n:.0f} requests are too few for the P99 of their duration, {LEAST_REQUESTS} are needed"
    if found.high is None:
        return f"more than 1 % of requests take longer than {found.low:g} s, the engine's last bucket"
    return DrainTime(e2e_p99=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotLoss:
    """Loss of a replica `warning_seconds` after its warning.

    `in_flight` are the requests that a replica holds on average. Of them between `unfinished_low` and
    `unfinished_high` cannot end in time.
    """

    warning_seconds: float
    in_flight: float
    unfinished_low: float
    unfinished_high: float


def measure_loss(window: Window, warning_seconds: float) -> SpotLoss | None:
    """Return what a loss cuts off by a tier's window, None without the duration of its requests.

    By Little's law a replica holds rate x mean duration. Requests that still need more than d seconds number
    rate x E[(duration - d)+], the mean excess of all finished ones (residual life of a renewal process); each bucket's
    edges bound it.
    """
    parts = window.histograms.get(E2E, ())
    mean, seconds = histograms.mean(parts), window.seconds_of(E2E)
    if mean is None or not seconds > 0:
        return None
    in_flight = math.fsum(part.n for part in parts) / seconds * mean
    low, high = _excess(parts, max(warning_seconds - SHUTDOWN_MARGIN_SECONDS, 0.0))
    return SpotLoss(
        warning_seconds=warning_seconds,
        in_flight=in_flight,
        unfinished_low=low / seconds,
        unfinished_high=min(high / seconds, in_flight),
    )


def _excess(parts: tuple[Histogram, ...], limit: float) -> tuple[float, float]:
    """Return bounds of the sum over all observations of max(0, seconds - limit); the upper one may be infinite."""
    low, high = 0.0, 0.0
    for part in parts:
        for lower, edge, count in zip((0.0, *part.edges[:-1]), part.edges, part.counts, strict=True):
            low += count * max(lower - limit, 0.0)
            high += count * max(edge - limit, 0.0) if count else 0.0
    return low, high
