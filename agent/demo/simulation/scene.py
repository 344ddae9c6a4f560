"""A cascade watched closely: every page goes through the daemon's own watcher, and its verdicts are what is kept.

Owns the watcher of one tier around its cascade, and the alert of another system that came with it. Rules that need longer
than the scene to know anything are told by `agent.demo.simulation.evaluation`; the scene keeps episodes only.
"""

from __future__ import annotations

from agent.alerting.foreign import ExternalAlertStore
from agent.demo.simulation.scenario import ScriptedCascade
from agent.demo.simulation.tier_run import TierRun
from agent.history.spans import Span
from rules.evaluator.external_alerts import AlertTargets, ExternalAlert
from rules.evaluator.step import ClosedMinute, Evaluator
from rules.plan.load_bins import TierContext
from rules.telemetry.snapshots import Snapshot
from rules.verdicts import finding
from rules.verdicts.finding import Finding

ALERT = "InferenceLatencyHigh"
SUMMARY = "P95 request duration above 10 s for 2 minutes (simulated)"


class CascadeRun:
    """One tier and its cascade, turn by turn."""

    def __init__(self, run: TierRun, view: TierContext, cascade: ScriptedCascade) -> None:
        self._run, self._view, self._cascade = run, view, cascade
        self._watcher = Evaluator({view.tier: view})
        self._foreign = ExternalAlertStore()
        self._ended: list[Finding] = []
        model = view.plan.model if view.plan is not None else ""
        names = (follower.name for follower in run.followers)
        self._fleet = AlertTargets(
            tiers=frozenset({view.tier}),
            replicas={(view.tier, name): frozenset({name}) for name in names},
            models={model: frozenset({view.tier})},
        )

    def turn(
        self, t: float, pages: tuple[tuple[str, Snapshot | None], ...]
    ) -> tuple[tuple[Span, ...], tuple[ClosedMinute, ...]]:
        """The pages of a turn (None: none came); what ended or changed with it, and the minutes that are over."""
        for name, page in pages:
            if page is None:
                self._watcher.apply_failed_scrape(self._view.tier, name, t)
            else:
                self._watcher.apply_snapshot(self._view.tier, name, page)
        ended, closed = self._watcher.step(t)
        over = [one for one in ended if isinstance(one, Finding)]
        self._ended += over
        return (*over, *self._alert(t)), closed

    def end(self, t: float) -> tuple[tuple[Span, ...], tuple[ClosedMinute, ...]]:
        """What was still open when nobody looked so closely any more."""
        left = [one for standing in self._watcher.standings.values() for one in finding.close_rule_state(standing, t)]
        return tuple(one for one in left if isinstance(one, Finding)), self._watcher.flush()

    def _alert(self, t: float) -> tuple[ExternalAlert, ...]:
        lasting = [s.episode for s in self._watcher.standings.values() if s.episode is not None]
        return self._foreign.turn(self._arrived(t), (*lasting, *self._ended), t, lambda: self._fleet)

    def _arrived(self, t: float) -> tuple[ExternalAlert, ...]:
        """Posted every turn while it fires, and once more with its end."""
        begin, until = self._cascade.alert_at, self._cascade.alert_until
        if not begin <= t < until + 60.0:
            return ()
        name = self._run.followers[self._cascade.replica].name
        return (
            ExternalAlert(
                name=ALERT,
                labels=(("alertname", ALERT), ("instance", name), ("severity", "page")),
                summary=SUMMARY,
                started_at=begin,
                ended_at=until if t >= until else None,
                heard_at=t,
            ),
        )
