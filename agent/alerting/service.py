"""Alerts both ways, as one part of the daemon: what is posted out, what comes in by the webhook.

Owns the putting together for one configuration, what is done in a turn, and what goes on when a configuration takes the
place of another. It is loaded only where alerts are posted or received. It never waits for anybody: posting has threads
of its own, and the webhook leaves what came in a queue.

Remembers the alerts of other systems: each once, on its tier, with what explains it, until a while after its end.

Owns the memory and its bound. How an alert is placed and explained is `rules.evaluator.external_alerts`'; it is handed what came in
and the episodes of a turn, and gives back what changed, for the history. For the thread of the turns.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from agent.alerting.delivery import PATH, AlertDelivery, AlertmanagerClient
from agent.alerting.webhook import WebhookReceiver
from agent.config.keys import AlertingConfig as Keys
from agent.config.problems import default_replica
from agent.http_server.credentials import token_gate
from agent.scrape.scrapers import Target
from exporters.alertmanager.payload import AlertPayload, present
from exporters.status.records import AlertmanagerHealth, WebhookHealth
from rules.evaluator.alert_state import AlertState, States
from rules.evaluator.external_alerts import AFTERMATH_SECONDS, AlertTargets, ExternalAlert, assign_tier, attach_finding
from rules.plan.load_bins import TierContext
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


_log = logging.getLogger(__name__)

TOLD = 20
"""Foreign alerts that a turn logs one by one: a storm of them must not fill a disk."""


class AlertingService:
    """Made by a configuration's `alerting`; opens nothing before the first turn. Raises BadConfig for a bad token file."""

    def __init__(self, keys: Keys, clock: Callable[[], float] = time.time) -> None:
        self._keys = keys
        self._settings = keys.settings()
        self._clock = clock
        several = keys.alertmanagers if keys.path == "posts" else ()
        self.deliveries = tuple(
            AlertDelivery(AlertmanagerClient(one.options(PATH)), keys.resend_seconds, clock) for one in several
        )
        self.receiver: WebhookReceiver | None = None
        if keys.receiver is not None:
            gate = token_gate("alerting.receiver.bearer_token_file", keys.receiver.bearer_token_file)
            self.receiver = WebhookReceiver(gate, clock)
        self.foreign = ExternalAlertStore()

    def take_over(self, before: AlertingService | None) -> None:
        """What another configuration's alerting knows; its threads go on where they post the same, else they end."""
        if before is None:
            return
        self.foreign.take_over(before.foreign)
        if self.receiver is not None and before.receiver is not None:
            self.receiver.take_over(before.receiver)
        if before._posts == self._posts:
            self.deliveries = before.deliveries
        else:
            before.close()

    @property
    def _posts(self) -> tuple[object, ...]:
        return self._keys.path, self._keys.alertmanagers, self._keys.resend_seconds

    def turn(
        self,
        states: States,
        episodes: Sequence[Finding],
        fleet: Callable[[], AlertTargets],
        now: float,
        *,
        posts: bool = True,
    ) -> tuple[ExternalAlert, ...]:
        """Takes up what came in and, where this agent `posts`, hands over what is to be posted. Returns the foreign alerts that
        changed."""
        arrived = self.receiver.waiting() if self.receiver is not None else ()
        changed = self.foreign.turn(arrived, episodes, now, fleet)
        for alert in changed[:TOLD]:
            _log.info("foreign alert %s", _describe_alert(alert))
        if len(changed) > TOLD:
            _log.info("%d more foreign alerts fire or are over; api/status lists them", len(changed) - TOLD)
        if self.deliveries and posts:
            self._offer(tuple(states.values()), self.foreign.alerts, now)
        return changed

    def _offer(self, states: tuple[AlertState, ...], foreign: tuple[ExternalAlert, ...], now: float) -> None:
        def made() -> tuple[AlertPayload, ...]:
            return present(states, foreign, self._clock(), self._settings)

        alerts = made()
        for delivery in self.deliveries:
            delivery.offer(made, alerts)

    def health(self) -> tuple[tuple[AlertmanagerHealth, ...], WebhookHealth | None]:
        """How both ways go."""
        received = self.receiver.health(self.foreign.left_out) if self.receiver is not None else None
        return tuple(delivery.health for delivery in self.deliveries), received

    def close(self) -> None:
        """Ends the threads. Nothing is resolved by that: what fires lapses where no agent comes back."""
        for delivery in self.deliveries:
            delivery.end()
        for delivery in self.deliveries:
            delivery.join()


def _describe_alert(alert: ExternalAlert) -> str:
    where = "/".join(filter(None, (alert.tier or "of no tier", alert.replica)))
    state = "fires" if alert.ended_at is None else "is over"
    return f"{alert.name} ({where}) {state}" + (f": {alert.diagnosis.sentence}" if alert.diagnosis else "")


def alert_targets(
    targets: Iterable[Target], views: Mapping[str, TierContext], models: Iterable[tuple[str, str]]
) -> AlertTargets:
    """What alerts can be about; `models` are pairs of a tier and a model that it was seen to serve."""
    targets = tuple(targets)
    serving: dict[str, set[str]] = {}
    planned = ((tier, view.plan.model) for tier, view in views.items() if view.plan is not None)
    for tier, model in (*planned, *models):
        serving.setdefault(model, set()).add(tier)
    return AlertTargets(
        tiers=frozenset({target.tier for target in targets} | set(views)),
        replicas={target.key: _names(target) for target in targets},
        models={model: frozenset(tiers) for model, tiers in serving.items()},
    )


def _names(target: Target) -> frozenset[str]:
    """A replica's name, its address with and without the port, and the first part of a host name: often its pod's."""
    address = default_replica(target.options.url)
    host = address.rpartition(":")[0]
    pod = host.partition(".")[0] if re.search("[a-z]", host) and not host.startswith("[") else ""
    return frozenset(filter(None, (target.replica, address, host, pod)))
