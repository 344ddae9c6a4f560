"""Alerting of the daemon: posts to Alertmanagers, external alerts from the webhook, and the sink of the evaluation loop.

It is imported only if a configuration posts or receives alerts. It never blocks the cycle: delivery has its own threads
and the webhook has a queue.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from agent.alerting.delivery import AlertDelivery, AlertmanagerClient
from agent.alerting.webhook import WebhookReceiver
from agent.config.alerting import AlertingConfig as Keys
from agent.config.alerting import WebhookConfig
from agent.config.targets import default_replica
from agent.http_server.credentials import Authenticator, read_tokens
from agent.pipeline.interfaces import Sink, Source
from agent.scrape.scrapers import Target
from exporters.alertmanager.payload import present
from exporters.status.records import AlertmanagerHealth, WebhookHealth
from rules.evaluator.external_alerts import AFTERMATH_SECONDS, AlertTargets, ExternalAlert, assign_tier, attach_finding
from rules.evaluator.incident_alerts import IncidentAlert, step_incident_alerts
from rules.evaluator.incidents import Incident, group_incidents
from rules.evaluator.observation import StepResult
from rules.evaluator.state import EvaluatorState
from rules.plan.load_bins import TierContext
from rules.verdicts.finding import Finding

MOST = 1_000
"""Maximum number of external alerts in memory."""

SILENT_SECONDS = 48 * 3600.0
"""Silence in seconds after which a firing alert counts as ended: twice the longest usual `repeat_interval`."""

KEPT_SECONDS = 86_400.0
"""Time in seconds for which an ended alert is shown."""


class ExternalAlertStore:
    """External alerts by identity and start, for the cycle thread only. `left_out` counts the alerts beyond MOST.

    It goes on when the configuration changes, and so do `incident_alerts`, the alerts of the incidents. `watched_since` is
    the time of the first update, when the agent began to watch (unix seconds).
    """

    def __init__(self) -> None:
        self.left_out = 0
        self.watched_since: float | None = None
        self.incident_alerts: tuple[IncidentAlert, ...] = ()
        self._alerts: dict[tuple[str, float], ExternalAlert] = {}

    def resume(self, kept: Iterable[ExternalAlert], now: float) -> None:
        """Restore the alerts of an earlier run. Firing alerts count as received at `now` (unix seconds)."""
        for alert in kept:
            key = alert.identity, alert.started_at
            self._alerts[key] = alert if alert.ended_at is not None else replace(alert, heard_at=now)

    @property
    def alerts(self) -> tuple[ExternalAlert, ...]:
        """Return all alerts, sorted by start."""
        return tuple(sorted(self._alerts.values(), key=lambda alert: (alert.started_at, alert.name)))

    def update(
        self,
        arrived: Sequence[ExternalAlert],
        findings: Sequence[Finding],
        now: float,
        fleet: Callable[[], AlertTargets],
    ) -> tuple[ExternalAlert, ...]:
        """Add the received alerts and attach the finding that explains each. Return the new and changed alerts."""
        self.watched_since = now if self.watched_since is None else self.watched_since
        if not (arrived or self._alerts):
            return ()
        before = dict(self._alerts)
        if arrived:
            targets = fleet()
            for alert in arrived:
                self._take(assign_tier(alert, targets))
        changed = []
        for key, alert in tuple(self._alerts.items()):
            if alert.ended_at is None or now - alert.ended_at <= AFTERMATH_SECONDS:
                alert = attach_finding(alert, findings, now, self.watched_since)
            if alert.ended_at is None and now - alert.heard_at > SILENT_SECONDS:
                alert = replace(alert, ended_at=alert.heard_at)
            self._alerts[key] = alert
            known = before.get(key)
            # A new receive time alone needs no row of the history.
            if known is None or replace(known, heard_at=alert.heard_at) != alert:
                changed.append(alert)
            if alert.ended_at is not None and now - alert.ended_at > KEPT_SECONDS:
                del self._alerts[key]
        return tuple(changed)

    def _take(self, alert: ExternalAlert) -> None:
        key = alert.identity, alert.started_at
        known = self._alerts.get(key)
        if known is not None:
            summary = alert.summary or known.summary
            self._alerts[key] = replace(known, ended_at=alert.ended_at, heard_at=alert.heard_at, summary=summary)
        elif len(self._alerts) < MOST:
            self._alerts[key] = alert
        else:
            self.left_out += 1


class AlertingService:
    """Alerting of one configuration, inactive before the first cycle. Raise ConfigError for a bad token file.

    The alerts of `before`, its queue and the delivery of unchanged posts go on.
    """

    def __init__(
        self, keys: Keys, clock: Callable[[], float] = time.time, before: AlertingService | None = None
    ) -> None:
        self._keys = keys
        self._clock = clock
        self._posts = (keys.path, keys.alertmanagers, keys.resend_seconds)
        if before is not None and before._posts == self._posts:
            self.deliveries: tuple[AlertDelivery, ...] = before.deliveries
        else:
            managers = keys.alertmanagers if keys.path == "posts" else ()
            peers = [manager.to_peer(timeout_seconds=manager.timeout_seconds) for manager in managers]
            self.deliveries = tuple(
                AlertDelivery(AlertmanagerClient(peer), keys.resend_seconds, clock) for peer in peers
            )
        self.receiver: WebhookReceiver | None = None
        if keys.receiver is not None:
            self._gate = self._read_gate(keys.receiver)
            self.receiver = (before and before.receiver) or WebhookReceiver(self._gate, clock)
        self.foreign: ExternalAlertStore = before.foreign if before is not None else ExternalAlertStore()

    @staticmethod
    def _read_gate(keys: WebhookConfig) -> Authenticator:
        return Authenticator(read_tokens("alerting.receiver.bearer_token_file", keys.bearer_token_file))

    def activate(self) -> None:
        """Ask for this configuration's tokens from the next request on."""
        if self.receiver is not None:
            self.receiver.gate = self._gate

    def reload(self) -> None:
        """Read the receiver's tokens again. Raise ConfigError for an unusable file; the tokens before stay valid."""
        if self._keys.receiver is not None:
            self._gate = self._read_gate(self._keys.receiver)
            self.activate()

    def post(self, incidents: Iterable[Incident], state: EvaluatorState, now: float) -> None:
        """Update the alerts of the incidents and offer them for delivery."""
        alerts = self.foreign.incident_alerts = step_incident_alerts(self.foreign.incident_alerts, incidents, now)
        foreign, settings = self.foreign.alerts, self._keys.settings()
        queues = {alert.incident.tier: state.requests_waiting(alert.incident.tier) for alert in alerts}
        for delivery in self.deliveries:
            delivery.offer(lambda: present(alerts, foreign, self._clock(), settings, queues))

    def health(self) -> tuple[tuple[AlertmanagerHealth, ...], WebhookHealth | None]:
        """Return the health of delivery and of the webhook."""
        received = self.receiver.health(self.foreign.left_out) if self.receiver is not None else None
        return tuple(delivery.health for delivery in self.deliveries), received

    def close(self) -> None:
        """End the threads. Firing alerts are not resolved: they expire if no agent comes back."""
        for delivery in self.deliveries:
            delivery.close()


def alert_targets(
    targets: Iterable[Target], contexts: Mapping[str, TierContext], models: Iterable[tuple[str, str]]
) -> AlertTargets:
    """Return the tiers, replicas and models an alert can refer to. `models` holds (tier, served model) pairs."""
    targets, serving = tuple(targets), defaultdict(set)
    planned = ((name, context.plan.model) for name, context in contexts.items() if context.plan is not None)
    for tier, model in (*planned, *models):
        serving[model].add(tier)
    return AlertTargets(
        tiers=frozenset({target.tier for target in targets} | set(contexts)),
        replicas={target.key: _names(target) for target in targets},
        models={model: frozenset(tiers) for model, tiers in serving.items()},
    )


def _names(target: Target) -> frozenset[str]:
    """Return the replica name, its address with and without port, and the first part of its host (often the pod)."""
    address = default_replica(target.peer.url)
    host = address.rpartition(":")[0]
    pod = host.partition(".")[0] if re.search("[a-z]", host) and not host.startswith("[") else ""
    return frozenset(filter(None, (target.replica, address, host, pod)))


class AlertingSink(Sink):
    """Alerts of one evaluation loop. `past` returns the findings of the last day, which explain external alerts."""

    def __init__(
        self,
        service: AlertingService,
        source: Source,
        state: EvaluatorState,
        tiers: Mapping[str, TierContext],
        past: Callable[[], list[Finding]],
    ) -> None:
        self.service = service
        self._source = source
        self._state = state
        self._tiers = tiers
        self._past = past
        self._changed: list[ExternalAlert] = []
        self._due = False

    def accept(self, result: StepResult) -> None:
        """Note that a step was evaluated."""
        self._due = self._due or result.observation is not None

    def end_cycle(self, now: float) -> None:
        """Send alerts and collect incoming ones. It never waits: delivery has its own threads."""
        if not self._due:
            return
        self._due = False
        findings = (*self._state.open_findings(), *self._past())
        receiver = self.service.receiver
        arrived = receiver.waiting() if receiver is not None else ()
        self._changed += self.service.foreign.update(arrived, findings, now, self._targets)
        if self.service.deliveries:
            scope = self._source.export_scope
            exported = [each for each in findings if scope(each.subject.tier).has_alerts(each.subject)]
            incidents = group_incidents(exported, (rule.result for rule in self._state.rules.values()), now)
            self.service.post(incidents, self._state, now)

    def pop_changed(self) -> tuple[ExternalAlert, ...]:
        """Return the external alerts that changed since the last call."""
        changed, self._changed = tuple(self._changed), []
        return changed

    def close(self) -> None:
        """End the delivery threads."""
        self.service.close()

    def _targets(self) -> AlertTargets:
        pages = ((tier, replica.track.last) for (tier, _), replica in self._state.replicas.items())
        models = [(tier, page.facts["model"]) for tier, page in pages if page is not None and page.facts.get("model")]
        return alert_targets(self._source.targets, self._tiers, models)
