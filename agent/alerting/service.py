"""Alerts both ways, as one part of the daemon: what is posted out, what comes in by the webhook.

Owns the putting together for one configuration, what is done in a turn, and what goes on when a configuration takes the
place of another. It is loaded only where alerts are posted or received. It never waits for anybody: posting has threads
of its own, and the webhook leaves what came in a queue.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from agent.alerting.delivery import AlertDelivery
from agent.alerting.foreign import ExternalAlertStore
from agent.alerting.posting import PATH, AlertmanagerClient
from agent.alerting.webhook import WebhookReceiver
from agent.config.keys import AlertingConfig as Keys
from agent.config.problems import default_replica
from agent.http_server.credentials import token_gate
from agent.scrape.scrapers import Target
from exporters.alertmanager.payload import AlertPayload, present
from exporters.status.records import AlertmanagerHealth, WebhookHealth
from rules.evaluator.alert_state import AlertState, States
from rules.evaluator.external_alerts import AlertTargets, ExternalAlert
from rules.plan.load_bins import TierContext
from rules.verdicts.finding import Finding

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
