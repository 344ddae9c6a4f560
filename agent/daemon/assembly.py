"""Assembly of the daemon from a configuration, and handover of state at a reload.

`agent.daemon.factory` makes one.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.config.load import LoadedConfig
from agent.pipeline.change_log import ChangeLog
from agent.pipeline.loop import EvaluationLoop
from agent.pipeline.runtime_state import RuntimeState
from rules.evaluator import long_rules
from rules.evaluator.timeline import TimelineEvent, TimelineKind
from rules.telemetry.signals import Gap

if TYPE_CHECKING:
    from agent.alerting.service import AlertingService
    from agent.forecasting.service import ForecastService
    from agent.history.service import HistoryService
    from agent.kubernetes.discovery import Worker
    from agent.kubernetes.node_pods import PodSource
    from agent.replay.back_fill import BackFillService
    from agent.reporting.service import ReportService, WeeklyTrigger


@dataclass(slots=True)
class Assembly:
    """Parts of one configuration.

    `step13` holds the first-week sentence of each tier. `forecasts` is None without forecasting, `reports` without
    weekly reports, `back_fill` if no history is filled from a store. `loaded` includes discovered pods, `given` does
    not.
    """

    loaded: LoadedConfig
    loop: EvaluationLoop
    runtime: RuntimeState
    log: ChangeLog
    versions: dict[str, str]
    history: HistoryService | None = None
    alerting: AlertingService | None = None
    pods: PodSource | None = None
    step13: dict[str, str] = field(default_factory=dict)
    forecasts: ForecastService | None = None
    reports: ReportService | None = None
    back_fill: BackFillService | None = None
    given: LoadedConfig | None = None

    def upkeep(self, now: float) -> None:
        """Run the hourly work on the history. Keep the previous results if the history fails."""
        if self.history is not None:
            found = self.history.upkeep(self.loop.evaluator.tiers, self.versions, now)
            self.step13 = self.step13 if found is None else found
            self.measure_capacities(now)
            contexts = self.loop.monitored_contexts()
            self.loop.set_long_term_results(self.history.long_answers(contexts, self.versions, now))

    def measure_capacities(self, now: float, *, again: bool = False) -> None:
        """Measure the capacity of a replica of each tier, like the commands that read the same hours.

        `again` reads the days before anew because the history was filled with past data."""
        if self.history is None:
            return
        found = self.history.measured_views(self.loop.monitored_contexts(), self.versions, now, again=again)
        if found is not None:
            with self.loop.memory:
                self.loop.evaluator.set_capacities(found)

    @property
    def no_forecasts(self) -> str:
        """Return the reason why there is no forecast, or ""."""
        if self.loaded.config.history_path is None:
            return "not exposed: this agent keeps no history"
        return "forecasting is off (forecast.enabled: false)" if self.forecasts is None else ""

    @property
    def weekly_times(self) -> WeeklyTrigger | None:
        """Return the times of the weekly report, or None without reports."""
        return self.reports.weekly(self.loaded) if self.reports is not None else None

    def forecast(self, now: float) -> None:
        """Forecast every watched tier and set the projections for the rules. Block until the forecasts are done."""
        self.measure_capacities(now)
        if self.forecasts is None:
            return
        from agent.forecasting.requests import build_request

        config, path = self.loaded.config, self.loaded.config.history_path
        assert path is not None
        scrape = config.settling_seconds / 2
        contexts = self.loop.monitored_contexts()
        with self.loop.memory:
            starts = {tier: self.loop.state.starts(tier) for tier in contexts}
        questions = [
            build_request(context, starts[tier], config.forecast, history=path, now=now, scrape_interval_seconds=scrape)
            for tier, context in contexts.items()
        ]
        told = self.forecasts.run(questions)
        with self.loop.memory:
            for event in told:
                self.event(event.t, event.kind, event.text, event.tier)
            self.loop.state.set_projections(self.forecasts.projections())

    def load_error_budgets(self, tiers: Container[str], now: float) -> None:
        """Load the error budgets of three days from the history in place of those in memory."""
        for tier, context in self.loop.monitored_contexts().items():
            known = self.history.budget(context, now) if self.history is not None and tier in tiers else None
            if known is not None:
                self.loop.state.restore_error_budget(tier, known)

    def on_back_fill_done(self, text: str, now: float) -> None:
        """Load capacities and error budgets after the back fill. Any thread may call it."""
        self.measure_capacities(now, again=True)
        history, watched = self.history, self.loop.monitored_contexts()
        known = {tier: history.budget(context, now) for tier, context in watched.items()} if history is not None else {}
        with self.loop.memory:
            for tier, budget in known.items():
                if budget is not None:
                    self.loop.state.restore_error_budget(tier, budget)
            self.event(now, TimelineKind.BACK_FILL, text)

    def mark_history_unavailable(self, now: float) -> None:
        """Set rules over days to unknown, once, if there is no history."""
        if self.history is None:
            for context in self.loop.monitored_contexts().values():
                self.loop.set_long_term_results(
                    long_rules.unknown_results(context, now, Gap.NOT_EXPOSED, "this agent keeps no history")
                )

    def has_pod_changes(self, loaded: LoadedConfig) -> bool:
        """Return whether discovered targets differ from the watched ones."""
        if self.pods is None:
            return False
        return self.pods.add_discovered_targets(loaded).config.targets != self.loaded.config.targets

    def inherit_state(self, before: Assembly, now: float, *, pods_only: bool = False) -> None:
        """Take over the memory of the previous configuration, and release everything that does not continue.

        `pods_only`: the configuration is the same, with other pods. No cycle may run in either of them.
        """
        self.loop.inherit_state(before.loop)
        keys = {target.key for target in self.loop.source.targets}
        self.runtime.inherit(before.runtime, keys | {worker.key for worker in self.workers()})
        self.log.inherit(before.log, keys)
        self._inherit_starts(before)
        self.load_error_budgets(
            {tier for tier, version in self.versions.items() if before.versions.get(tier) != version}, now
        )
        same = {tier for tier, version in self.versions.items() if before.versions.get(tier) == version}
        self.step13 = {tier: text for tier, text in before.step13.items() if tier in same} | self.step13
        if self.forecasts is not None:
            self.forecasts.keep(self.loop.monitored_contexts())
        else:
            self.loop.state.set_projections({})
        if self.alerting is not None:
            self.alerting.take_over(before.alerting)
        elif before.alerting is not None:
            before.alerting.close()
        if before.forecasts is not None and before.forecasts is not self.forecasts:
            before.forecasts.close()
        if before.reports is not None and before.reports is not self.reports:
            before.reports.stop()
        if before.back_fill is not None and before.back_fill is not self.back_fill:
            before.back_fill.stop()
        if before.history is not None and before.history is not self.history:
            before.history.close()
        if before.pods is not None and before.pods is not self.pods:
            before.pods.stop()
        read = "other engine pods were found" if pods_only else "the configuration was read again"
        self.event(now, "reload", f"{read}: {len(self.loop.source.targets)} targets")
        for tier, version in self.versions.items():
            if before.versions.get(tier, version) != version:
                self.event(
                    now, "plan", f"the plan of {tier} changed from version {before.versions[tier]} to {version}", tier
                )

    def _inherit_starts(self, before: Assembly) -> None:
        """Keep the replica starts and releases of a tier that has no pod at the moment, such as during a pod replacement."""
        for tier in self.versions.keys() - self.loop.source.tiers:
            self.loop.state.restore_starts(tier, before.loop.state.starts(tier))
            self.loop.state.restore_releases(tier, before.loop.state.releases(tier))

    def workers(self) -> tuple[Worker, ...]:
        """Return pods on this machine whose replica another agent scrapes."""
        return self.pods.workers() if self.pods is not None else ()

    def event(self, t: float, kind: str, text: str, tier: str | None = None) -> None:
        """Record a timeline event."""
        self.loop.record_event(TimelineEvent(t=t, kind=kind, tier=tier, replica=None, text=text))

    def close(self, now: float) -> None:
        """Record what is open and release everything."""
        self.event(now, "stop", "sizewatch ended in order")
        if self.back_fill is not None:
            self.back_fill.stop()
        if self.forecasts is not None:
            self.forecasts.close()
        if self.pods is not None:
            self.pods.stop()
        self.loop.stop()
