"""Time that a replica needs to finish its requests before it ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rules.telemetry import histograms
from rules.telemetry.signals import Reading
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainTime:
    """Seconds within which 99 % of requests end, by their E2E quantile."""

    e2e_p99: Reading

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
    reading = histograms.quantile(window.histograms.get(E2E, ()), FINISHED)
    if reading is None:
        return f"the duration of requests is not known: {window.explain_missing(E2E)}"
    if reading.n < LEAST_REQUESTS:
        return f"{reading.n:.0f} requests are too few for the P99 of their duration, {LEAST_REQUESTS} are needed"
    if reading.high is None:
        return f"more than 1 % of requests take longer than {reading.low:g} s, the engine's last bucket"
    return DrainTime(e2e_p99=reading)
