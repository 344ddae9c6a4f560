"""Sink that posts alerts and takes alerts of others in (`agent.alerting.service`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent.alerting.service import AlertingService, alert_targets
from agent.pipeline.interfaces import Source
from exporters.status.records import ExportScope
from rules.evaluator.alert_state import AlertKey, AlertState
from rules.evaluator.external_alerts import AlertTargets, ExternalAlert
from rules.evaluator.observation import StepResult
from rules.evaluator.state import EvaluatorState
from rules.plan.load_bins import TierContext
from rules.verdicts.finding import Finding


class AlertingSink:
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
        leads = self._source.is_leader
        self._changed += self.service.turn(self._exported_alerts(), findings, self._targets, now, posts=leads)

    def pop_changed(self) -> tuple[ExternalAlert, ...]:
        """Return the external alerts that changed since the last call."""
        changed, self._changed = tuple(self._changed), []
        return changed

    def close(self) -> None:
        """End the delivery threads."""
        self.service.close()

    def _exported_alerts(self) -> Mapping[AlertKey, AlertState]:
        """Return the alerts without those on whole tiers where another agent exports the tier."""
        return {
            key: alert
            for key, alert in self._state.alerts.items()
            if key.subject.replica is not None
            or self._source.export_scope(key.subject.tier) is not ExportScope.REPLICAS
        }

    def _targets(self) -> AlertTargets:
        pages = ((tier, replica.track.last) for (tier, _), replica in self._state.replicas.items())
        models = {(tier, page.facts["model"]) for tier, page in pages if page is not None and page.facts.get("model")}
        return alert_targets(self._source.targets, self._tiers, sorted(models))
