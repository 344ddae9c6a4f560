"""What the daemon and the web server know of each other: progress of the cycles, and the receiver of alerts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request

HEALTH = "/healthz"
READY = "/readyz"
WEBHOOK = "/webhook/alertmanager"

WEBHOOK_BYTES = 1024 * 1024
"""The longest body that is read, in bytes. Only the webhook reads one."""

STUCK_SECONDS = 300.0
"""Seconds without a successful cycle after which /healthz is 503."""

MOST_FAILED_CYCLES = 3
"""Failed cycles in a row after which /healthz is 503: one may be an accident, and the next comes after an interval."""

NOT_YET = "the first cycle has not succeeded yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleProgress:
    """Progress of the cycles. `seconds_since_cycle` counts from the end of the last one that succeeded, None before the
    first. `failed_in_row` cycles have failed since."""

    seconds_since_cycle: float | None = None
    failed_in_row: int = 0

    def health_problem(self, up_seconds: float) -> str:
        """Return why the agent is ill, or "". `up_seconds` is the time since the start."""
        since = self.seconds_since_cycle
        if self.failed_in_row >= MOST_FAILED_CYCLES:
            return f"the last {self.failed_in_row} cycles failed, the agent's log says why"
        if since is None and up_seconds > STUCK_SECONDS:
            return f"no cycle has succeeded in the {up_seconds:.0f} s since the start"
        if since is not None and since > STUCK_SECONDS:
            return f"the last cycle ended {since:.0f} s ago"
        return ""


WebhookEndpoint = Callable[[Request], Awaitable[None]]
"""Receiver of the alerts that a request carries. Its own credentials count, not those of the pages. Raise HTTPException."""
