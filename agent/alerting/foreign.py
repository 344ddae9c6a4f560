"""Remembers the alerts of other systems: each once, on its tier, with what explains it, until a while after its end.

Owns the memory and its bound. How an alert is placed and explained is `rules.evaluator.external_alerts`'; it is handed what came in
and the episodes of a turn, and gives back what changed, for the history. For the thread of the turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from rules.evaluator.external_alerts import AFTERMATH_SECONDS, AlertTargets, ExternalAlert, assign_tier, attach_finding
from rules.verdicts.finding import Finding

MOST = 1_000
"""Alerts in memory; of a storm of others' alerts these say enough."""

SILENT_SECONDS = 48 * 3600.0
"""An alert that fires and was not heard of for so long ended unseen: twice the longest usual `repeat_interval`."""

KEPT_SECONDS = 86_400.0
"""How long one that ended is shown."""

Key = tuple[str, float]


class ExternalAlertStore:
    """The foreign alerts by identity and start. `left_out` counts those beyond MOST."""

    def __init__(self) -> None:
        self.left_out = 0
        self._alerts: dict[Key, ExternalAlert] = {}

    def resume(self, kept: Iterable[ExternalAlert], now: float) -> None:
        """Those of an earlier run of the agent; what fired then counts as heard of `now` (unix seconds)."""
        for alert in kept:
            self._alerts[_key(alert)] = alert if alert.ended_at is not None else replace(alert, heard_at=now)

    def take_over(self, before: ExternalAlertStore) -> None:
        """All that another one knew."""
        self._alerts, self.left_out = dict(before._alerts), before.left_out

    @property
    def alerts(self) -> tuple[ExternalAlert, ...]:
        """All of them, the first to begin first."""
        return tuple(sorted(self._alerts.values(), key=lambda alert: (alert.started_at, alert.name)))

    def turn(
        self,
        arrived: Sequence[ExternalAlert],
        episodes: Sequence[Finding],
        now: float,
        fleet: Callable[[], AlertTargets],
    ) -> tuple[ExternalAlert, ...]:
        """Takes up what arrived and looks for what explains each; returns those that are new or changed."""
        if not (arrived or self._alerts):
            return ()
        before = dict(self._alerts)
        known = fleet() if arrived else None
        for alert in arrived:
            self._take(alert if known is None else assign_tier(alert, known))
        for key, alert in self._alerts.items():
            if alert.ended_at is None or now - alert.ended_at <= AFTERMATH_SECONDS:
                self._alerts[key] = self._seen(attach_finding(alert, episodes, now), now)
        changed = tuple(
            alert
            for key, alert in self._alerts.items()
            if _describe_external_alert(before.get(key)) != _describe_external_alert(alert)
        )
        self._alerts = {key: alert for key, alert in self._alerts.items() if not _old(alert, now)}
        return changed

    def _take(self, alert: ExternalAlert) -> None:
        known = self._alerts.get(_key(alert))
        if known is not None:
            self._alerts[_key(alert)] = replace(
                known, ended_at=alert.ended_at, heard_at=alert.heard_at, summary=alert.summary or known.summary
            )
        elif len(self._alerts) < MOST:
            self._alerts[_key(alert)] = alert
        else:
            self.left_out += 1

    @staticmethod
    def _seen(alert: ExternalAlert, now: float) -> ExternalAlert:
        silent = alert.ended_at is None and now - alert.heard_at > SILENT_SECONDS
        return replace(alert, ended_at=alert.heard_at) if silent else alert


def _key(alert: ExternalAlert) -> Key:
    return alert.identity, alert.started_at


def _describe_external_alert(alert: ExternalAlert | None) -> ExternalAlert | None:
    """What of it is worth a row: that it was merely heard of again is not."""
    return replace(alert, heard_at=alert.started_at) if alert is not None else None


def _old(alert: ExternalAlert, now: float) -> bool:
    return alert.ended_at is not None and now - alert.ended_at > KEPT_SECONDS
