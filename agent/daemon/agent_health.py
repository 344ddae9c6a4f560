"""Counters of the daemon, and the health that pages and metrics show of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from agent.daemon.assembly import Assembly
from agent.http_server.interfaces import TurnProgress
from exporters.render.text import copy_fields
from exporters.status.records import AgentHealth


@dataclass(slots=True)
class DaemonCounters:
    """Daemon counters since its start."""

    turns: int = 0
    overruns: int = 0
    errors: int = 0
    failed_in_row: int = 0
    reloads: int = 0
    last_turn_seconds: float | None = None
    last_turn_at: float | None = None
    succeeded_at: float | None = None
    """End of the last cycle that succeeded, in seconds of time.monotonic."""
    config_trouble: str | None = None
    secret_trouble: str | None = None

    def progress(self) -> TurnProgress:
        """Return what /healthz needs. It waits for no cycle."""
        since = time.monotonic() - self.succeeded_at if self.succeeded_at is not None else None
        return TurnProgress(seconds_since_turn=since, failed_in_row=self.failed_in_row)

    def health(self, parts: Assembly, clock: Callable[[], float]) -> AgentHealth:
        """Return the health of the daemon and of the parts of its active configuration."""
        history, alerting = parts.history, parts.alerting
        posting, webhook = alerting.health() if alerting is not None else ((), None)
        return AgentHealth(
            **copy_fields(self, "turns", "overruns", "last_turn_seconds", "last_turn_at", "failed_in_row"),
            turn_errors=self.errors + parts.loop.defects,
            scrape_failures=dict(parts.runtime.failures),
            history_trouble=history.error if history else None,
            history_notice=history.notice if history else None,
            unbooked_minutes=len(history.buffer) if history else 0,
            dropped_minutes=history.buffer.dropped if history else 0,
            config_reloads=self.reloads,
            config_trouble="; ".join(filter(None, (self.config_trouble, self.secret_trouble))) or None,
            gpu_problems=parts.runtime.gpu_problems,
            alertmanagers=posting,
            webhook=webhook,
            forecasting=parts.forecasts.health() if parts.forecasts is not None else None,
            reporting=parts.reports.health(parts.loaded, clock()) if parts.reports is not None else None,
            store=parts.loop.source.store_health(),
            discovery=parts.pods.health() if parts.pods is not None else None,
        )
