"""Alerting of the daemon, a sink of the evaluation loop: posts to Alertmanagers, and alerts from the webhook.

It never blocks the cycle: delivery has its own threads.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from agent.alerting.delivery import AlertDelivery, AlertmanagerClient
from agent.alerting.webhook import WebhookReceiver
from agent.config.notifications import AlertingConfig as Keys
from agent.config.targets import default_replica
from agent.http_server.credentials import Authenticator, read_tokens
from agent.pipeline.interfaces import Sink
from agent.pipeline.loop import EvaluationLoop
from agent.scrape.scrapers import Target
from exporters.alertmanager.payload import present
from exporters.status.records import AlertmanagerHealth, WebhookHealth
from rules.evaluator.external_alerts import AFTERMATH_SECONDS, AlertTargets, ExternalAlert, assign_tier, attach_finding
from rules.evaluator.incident_alerts import IncidentAlert, step_incident_alerts
from rules.evaluator.incidents import group_incidents
from rules.evaluator.observation import StepResult
from rules.plan.load_bins import TierContext
from rules.telemetry.windows import DAY_SECONDS
from rules.verdicts.verdict import Finding

MOST = 1_000
"""Maximum number of external alerts in memory. Ended ones go first, then the newest."""

SILENT_SECONDS = 48 * 3600.0
"""Silence after which a firing alert counts as ended: twice the longest usual `repeat_interval`."""

LATE_SECONDS = 300.0
"""Seconds after an end in which a firing message is late: Alertmanager's `group_interval`."""


class ExternalAlertStore:
    """External alerts by identity and start. `left_out` counts those that fire beyond MOST."""

    def __init__(self) -> None:
        self.left_out = 0
        self.incident_alerts: tuple[IncidentAlert, ...] = ()
        self._alerts: dict[tuple[str, float], ExternalAlert] = {}

    def resume(self, kept: Iterable[ExternalAlert], now: float) -> None:
        """Restore the alerts of an earlier run. Firing alerts count as received at `now` (unix seconds)."""
        for alert in kept:
            firing = alert.ended_at is None
            self._alerts[alert.identity, alert.started_at] = replace(alert, heard_at=now) if firing else alert

    @property
    def alerts(self) -> tuple[ExternalAlert, ...]:
        return tuple(sorted(self._alerts.values(), key=lambda alert: (alert.started_at, alert.name)))

    def update(
        self, heard: Sequence[ExternalAlert], findings: Sequence[Finding], now: float, fleet: Callable[[], AlertTargets]
    ) -> tuple[ExternalAlert, ...]:
        """Add the received alerts with what explains them. Return the new and changed alerts."""
        before = dict(self._alerts)
        targets = fleet() if heard else AlertTargets(tiers=frozenset(), replicas={})
        firing = {identity: start for (identity, start), alert in before.items() if alert.ended_at is None}
        for alert in heard:
            key = alert.identity, alert.started_at
            first = firing.setdefault(*key)
            if alert.started_at < first <= (alert.ended_at or now):
                # Alertmanager moves a start to the earlier one of two Prometheus servers.
                key = alert.identity, first
            known = self._alerts.get(key)
            if known is not None:
                is_reopened = known.ended_at is not None and alert.ended_at is None
                if is_reopened and alert.heard_at - known.heard_at < LATE_SECONDS:
                    continue
                summary = alert.summary or known.summary
                self._alerts[key] = replace(known, ended_at=alert.ended_at, heard_at=alert.heard_at, summary=summary)
            else:
                self._alerts[key] = assign_tier(alert, targets)
        ends = {key: alert.ended_at or float("inf") for key, alert in self._alerts.items()}
        for key in sorted(ends, key=ends.__getitem__, reverse=True)[MOST:]:
            self.left_out += self._alerts.pop(key).ended_at is None
        changed = []
        for key, alert in tuple(self._alerts.items()):
            if alert.ended_at is None or now - alert.ended_at <= AFTERMATH_SECONDS:
                alert = attach_finding(alert, findings, now)
            if alert.ended_at is None and now - alert.heard_at > SILENT_SECONDS:
                alert = replace(alert, ended_at=alert.heard_at)
            self._alerts[key] = alert
            known = before.get(key)
            # A new receive time alone needs no row of the history.
            if known is None or replace(known, heard_at=alert.heard_at) != alert:
                changed.append(alert)
            if alert.ended_at is not None and now - alert.ended_at > DAY_SECONDS:
                del self._alerts[key]
        return tuple(changed)


class AlertingService(Sink):
    """Alerting of one evaluation loop. What does not change of `before` goes on. Raise ConfigError."""

    def __init__(
        self, keys: Keys, clock: Callable[[], float] = time.time, before: AlertingService | None = None
    ) -> None:
        self._keys = keys
        self._clock = clock
        self._posts = (keys.path, keys.alertmanagers, keys.resend_seconds)
        self.deliveries: tuple[AlertDelivery, ...] = ()
        if before is not None and before._posts == self._posts:
            self.deliveries = before.deliveries
        elif keys.path == "posts":
            peers = (manager.to_peer(timeout_seconds=manager.timeout_seconds) for manager in keys.alertmanagers)
            clients = (AlertmanagerClient(peer) for peer in peers)
            self.deliveries = tuple(AlertDelivery(client, keys.resend_seconds, clock) for client in clients)
        self.receiver: WebhookReceiver | None = None
        if keys.receiver is not None:
            gate = Authenticator(read_tokens("alerting.receiver.bearer_token_file", keys.receiver.bearer_token_file))
            self.receiver = WebhookReceiver(gate, clock, before.receiver if before else None)
        self.foreign: ExternalAlertStore = before.foreign if before is not None else ExternalAlertStore()
        self._changed: list[ExternalAlert] = []
        self._due = False

    def connect(self, loop: EvaluationLoop, past: Callable[[], list[Finding]]) -> None:
        """Set the loop. `past` returns the findings of the last day, which explain external alerts."""
        self._loop, self._past = loop, past

    def accept(self, result: StepResult) -> None:
        self._due = self._due or result.observation is not None

    def end_cycle(self, now: float) -> None:
        """Send alerts and collect incoming ones. It never waits: delivery has its own threads."""
        if not self._due:
            return
        self._due = False
        state = self._loop.state
        findings = (*state.open_findings(), *self._past())
        if self.receiver is not None:
            arrived = self.receiver.waiting()
        else:  # Their end never arrives.
            lasting = (alert for alert in self.foreign.alerts if alert.ended_at is None)
            arrived = tuple(replace(alert, ended_at=alert.heard_at) for alert in lasting)
        self._changed += self.foreign.update(arrived, findings, now, self._targets)
        if not self.deliveries:
            return
        scope = self._loop.source.export_scope
        exported = [finding for finding in findings if scope(finding.subject.tier).has_alerts(finding.subject)]
        incidents = group_incidents(exported, (rule.result for rule in state.rules.values()), now)
        alerts = self.foreign.incident_alerts = step_incident_alerts(self.foreign.incident_alerts, incidents, now)
        foreign, settings = self.foreign.alerts, self._keys.settings()
        queues = {alert.incident.tier: state.requests_waiting(alert.incident.tier) for alert in alerts}
        for delivery in self.deliveries:
            delivery.offer(lambda: present(alerts, foreign, self._clock(), settings, queues))

    def pop_changed(self) -> tuple[ExternalAlert, ...]:
        changed, self._changed = tuple(self._changed), []
        return changed

    def health(self) -> tuple[tuple[AlertmanagerHealth, ...], WebhookHealth | None]:
        received = self.receiver.health(self.foreign.left_out) if self.receiver is not None else None
        return tuple(delivery.health for delivery in self.deliveries), received

    def close(self) -> None:
        """End the threads. Firing alerts are not resolved: they expire if no agent comes back."""
        for delivery in self.deliveries:
            delivery.close()

    def _targets(self) -> AlertTargets:
        pages = ((tier, replica.track.last) for (tier, _), replica in self._loop.state.replicas.items())
        models = [(tier, page.facts["model"]) for tier, page in pages if page is not None and page.facts.get("model")]
        return alert_targets(self._loop.source.targets, self._loop.evaluator.tiers, models)


def alert_targets(
    targets: Iterable[Target], contexts: Mapping[str, TierContext], models: Iterable[tuple[str, str]]
) -> AlertTargets:
    """Return the tiers, replicas and models that an alert can refer to. `models` has pairs of tier and served model.

    Names of a replica: its own, its address with and without port, and the first part of its host (often the pod).
    """
    targets, serving, replicas = tuple(targets), defaultdict(set), {}
    planned = ((name, context.plan.model) for name, context in contexts.items() if context.plan is not None)
    for tier, model in (*planned, *models):
        serving[model].add(tier)
    for target in targets:
        address = default_replica(target.peer.url)
        host = address.rpartition(":")[0]
        replicas[target.key] = frozenset((target.replica, address, host, host.partition(".")[0])) - {""}
    return AlertTargets(
        tiers=frozenset({target.tier for target in targets} | set(contexts)),
        replicas=replicas,
        models={model: frozenset(tiers) for model, tiers in serving.items()},
    )
