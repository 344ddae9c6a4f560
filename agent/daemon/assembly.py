"""Assembly of the daemon from a configuration, and handover of state at a reload.

It starts nothing and closes everything it made. Parts are imported on demand, so a role loads only what it needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.config.keys import Config
from agent.config.load import LoadedConfig, build_tier_contexts, plan_versions
from agent.files import DataDir
from agent.gpu.collector import ExporterPage, GpuCollector, GpuReader
from agent.http_client.connection import PageFetcher
from agent.pipeline.loop import DAY_SECONDS, EvaluationLoop
from agent.scrape.scrapers import Scrapers
from agent.version import VERSION
from rules.evaluator import long_rules
from rules.evaluator.timeline import TimelineKind
from rules.plan.load_bins import TierContext
from rules.replicas.starts import KEPT_SECONDS
from rules.telemetry.signals import Gap

if TYPE_CHECKING:
    from agent.alerting.service import AlertingService
    from agent.forecasting.service import ForecastService
    from agent.history.service import HistoryService
    from agent.kubernetes.discovered_targets import PodSource
    from agent.replay.back_fill import BackFillService
    from agent.reporting.service import ReportService


@dataclass(slots=True)
class Assembly:
    """Parts of one configuration.

    `step13` holds the first-week sentence of each tier. `forecasts` is None without forecasting, `reports` without
    weekly reports, `back_fill` if no history is filled from a store. `loaded` includes discovered pods, `given` does
    not.
    """

    loaded: LoadedConfig
    turns: EvaluationLoop
    versions: dict[str, str]
    step13: dict[str, str] = field(default_factory=dict)
    forecasts: ForecastService | None = None
    reports: ReportService | None = None
    back_fill: BackFillService | None = None
    given: LoadedConfig | None = None

    def seal(self, now: float, stopping: Callable[[], bool]) -> None:
        if self.turns.history is not None:
            self.turns.history.seal(now, stopping)

    def upkeep(self, now: float) -> None:
        """Run the hourly work on the history. Keep the previous results if the history fails."""
        if self.turns.history is not None:
            found = self.turns.history.upkeep(self.turns.watcher.views, self.versions, now)
            self.step13 = self.step13 if found is None else found
            self.turns.measure_capacities(self._watched(), now)
            self.turns.set_long_term_results(self.turns.history.long_answers(self._watched(), self.versions, now))

    def _watched(self) -> dict[str, TierContext]:
        return {tier: self.turns.watcher.view(tier) for tier in sorted(self.turns.tiers)}

    @property
    def no_forecasts(self) -> str:
        """Return the reason why there is no forecast, or ""."""
        if self.loaded.config.history_path is None:
            return "not exposed: this agent keeps no history"
        return "forecasting is off (forecast.enabled: false)" if self.forecasts is None else ""

    def forecast(self, now: float) -> None:
        """Forecast every watched tier and set the projections for the rules. Block until the forecasts are done."""
        self.turns.measure_capacities(self._watched(), now)
        if self.forecasts is None:
            return
        from agent.forecasting.requests import build_request

        config, path = self.loaded.config, self.loaded.config.history_path
        assert path is not None
        scrape = config.settling_seconds / 2
        with self.turns.memory:
            starts = {tier: self.turns.watcher.starts(tier) for tier in self._watched()}
        questions = [
            build_request(view, starts[tier], config.forecast, history=path, now=now, scrape_interval_seconds=scrape)
            for tier, view in self._watched().items()
        ]
        told = self.forecasts.run(questions)
        with self.turns.memory:
            for event in told:
                self.turns.event(event.t, event.kind, event.text, event.tier)
            self.turns.watcher.set_projections(self.forecasts.projections())

    def load_error_budgets(self, tiers: Container[str], now: float) -> None:
        """Load the error budgets of three days from the history in place of those in memory."""
        for tier, view in self._watched().items():
            known = self.turns.history.budget(view, now) if self.turns.history is not None and tier in tiers else None
            if known is not None:
                self.turns.watcher.restore_error_budget(tier, known)

    def on_back_fill_done(self, text: str, now: float) -> None:
        """Load capacities and error budgets after the back fill. Any thread may call it."""
        self.turns.measure_capacities(self._watched(), now, again=True)
        history, watched = self.turns.history, self._watched()
        known = {tier: history.budget(view, now) for tier, view in watched.items()} if history is not None else {}
        with self.turns.memory:
            for tier, budget in known.items():
                if budget is not None:
                    self.turns.watcher.restore_error_budget(tier, budget)
            self.event(now, TimelineKind.BACK_FILL, text)

    def mark_history_unavailable(self, now: float) -> None:
        """Set rules over days to unknown, once, if there is no history."""
        if self.turns.history is None:
            for view in self._watched().values():
                self.turns.set_long_term_results(
                    long_rules.unknown_results(view, now, Gap.NOT_EXPOSED, "this agent keeps no history")
                )

    def has_pod_changes(self, loaded: LoadedConfig) -> bool:
        """Return whether discovered targets differ from the watched ones."""
        pods = self.turns.pods
        return pods is not None and pods.add_discovered_targets(loaded).config.targets != self.loaded.config.targets

    def inherit_state(self, before: Assembly, now: float, *, pods_only: bool = False) -> None:
        """Take over the memory of the previous configuration, and release everything that does not continue.

        `pods_only`: the configuration is the same, with other pods. No cycle may run in either of them.
        """
        self.turns.inherit_state(before.turns)
        self._remember_tiers(before)
        self.load_error_budgets(
            {tier for tier, version in self.versions.items() if before.versions.get(tier) != version}, now
        )
        same = {tier for tier, version in self.versions.items() if before.versions.get(tier) == version}
        self.step13 = {tier: text for tier, text in before.step13.items() if tier in same} | self.step13
        if self.forecasts is not None:
            self.forecasts.keep(self._watched())
        else:
            self.turns.watcher.set_projections({})
        if before.forecasts is not None and before.forecasts is not self.forecasts:
            before.forecasts.close()
        if before.reports is not None and before.reports is not self.reports:
            before.reports.stop()
        if before.back_fill is not None and before.back_fill is not self.back_fill:
            before.back_fill.stop()
        before.turns.release_connections()
        if before.turns.gpus is not self.turns.gpus:
            before.turns.gpus.close()
        if before.turns.history is not None and before.turns.history is not self.turns.history:
            before.turns.history.close()
        if before.turns.pods is not None and before.turns.pods is not self.turns.pods:
            before.turns.pods.stop()
        read = "other engine pods were found" if pods_only else "the configuration was read again"
        self.event(now, "reload", f"{read}: {len(self.turns.targets)} targets")
        for tier, version in self.versions.items():
            if before.versions.get(tier, version) != version:
                self.event(
                    now, "plan", f"the plan of {tier} changed from version {before.versions[tier]} to {version}", tier
                )

    def _remember_tiers(self, before: Assembly) -> None:
        """Keep the replica starts of a tier that has no pod at the moment, such as during a pod replacement."""
        for tier in self.versions.keys() - self.turns.tiers:
            known = before.turns.watcher.starts(tier)
            if known:
                self.turns.watcher.restore_starts(tier, known)

    def event(self, t: float, kind: str, text: str, tier: str | None = None) -> None:
        """Record a timeline event."""
        self.turns.event(t, kind, text, tier)

    def close(self, now: float) -> None:
        """Record what is open and release everything."""
        self.event(now, "stop", "sizewatch ended in order")
        if self.back_fill is not None:
            self.back_fill.stop()
        if self.forecasts is not None:
            self.forecasts.close()
        if self.turns.pods is not None:
            self.turns.pods.stop()
        try:
            self.turns.stop()
        finally:
            if self.turns.history is not None:
                self.turns.history.close()


Assemble = Callable[[LoadedConfig, Assembly | None], Assembly]
"""Signature of `assemble`, or of its replacement in a demo or test."""


def assemble(
    loaded: LoadedConfig,
    before: Assembly | None = None,
    *,
    clock: Callable[[], float] = time.time,
    gpu_source: GpuReader | None = None,
) -> Assembly:
    """Return all parts of a configuration. History and GPUs of `before` are reused if their configuration is the same.

    Raise ConfigError or HistoryError if the history cannot be opened; then nothing was made and `before` is unchanged.
    """
    # Before the history is opened: an unusable token file then leaves nothing to close.
    alerting = _alerting(loaded.config, clock)
    pods, known = _pods(loaded, before, clock)
    with ExitStack() as undone:
        keeping = _history(loaded, before)
        if keeping is not None and (before is None or keeping is not before.turns.history):
            undone.callback(keeping.close)
        if pods is not None and not known:
            undone.callback(pods.stop)
            pods.start()
        assembly = _together(loaded, before, (keeping, alerting, pods), clock, gpu_source)
        undone.pop_all()
    return assembly


def _together(
    given: LoadedConfig,
    before: Assembly | None,
    made: tuple[HistoryService | None, AlertingService | None, PodSource | None],
    clock: Callable[[], float],
    gpu_source: GpuReader | None,
) -> Assembly:
    keeping, alerting, pods = made
    loaded = given if pods is None else pods.add_discovered_targets(given)
    if loaded.config.role == "fleet":
        turns = _fleet_turns(loaded, before, keeping, alerting, clock)
    else:
        turns = _turns(loaded, before, keeping, alerting, clock, gpu_source)
        turns.pods = pods
    assembly = Assembly(
        loaded=loaded, turns=turns, versions=plan_versions(loaded), forecasts=_forecasts(loaded.config, before)
    )
    assembly.reports = _reports(loaded.config, before)
    if before is None:
        _resume(assembly, clock())
    assembly.given = given
    if before is None or before.given is not given:
        # New pods are no reason to read weeks of history again.
        assembly.upkeep(clock())
    assembly.mark_history_unavailable(clock())
    assembly.back_fill = _back_fill(assembly, before, clock)
    return assembly


def _turns(
    loaded: LoadedConfig,
    before: Assembly | None,
    history: HistoryService | None,
    alerting: AlertingService | None,
    clock: Callable[[], float],
    gpu_source: GpuReader | None,
) -> EvaluationLoop:
    targets = loaded.config.list_targets()
    same_gpus = before is not None and before.loaded.config.gpus == loaded.config.gpus
    return EvaluationLoop(
        targets=targets,
        views=build_tier_contexts(loaded),
        versions=plan_versions(loaded),
        scrapers=Scrapers(targets, clock=clock),
        gpus=before.turns.gpus
        if before is not None and same_gpus
        else GpuCollector(gpu_source or _gpu_source(loaded.config)),
        history=history,
        alerting=alerting,
        clock=clock,
        whole_tiers=loaded.config.tier_verdicts,
    )


def _fleet_turns(
    loaded: LoadedConfig,
    before: Assembly | None,
    history: HistoryService | None,
    alerting: AlertingService | None,
    clock: Callable[[], float],
) -> EvaluationLoop:
    from agent.sources.store import StoreSource, fleet_turns

    known = before.turns if before is not None and isinstance(before.turns, StoreSource) else None
    return fleet_turns(loaded, known, history=history, alerting=alerting, clock=clock)


def _pods(loaded: LoadedConfig, before: Assembly | None, clock: Callable[[], float]) -> tuple[PodSource | None, bool]:
    """Return the pod discovery, and whether it is already running."""
    if loaded.config.discovery.kubernetes is None:
        return None, False
    from agent.kubernetes.discovered_targets import has_same_discovery, pods_of

    if before is not None and before.turns.pods is not None and has_same_discovery(before.loaded.config, loaded.config):
        return before.turns.pods, True
    return pods_of(loaded.config, clock), False


def _resume(assembly: Assembly, now: float) -> None:
    """Restore the state of an earlier run from the history."""
    turns = assembly.turns
    if turns.history is not None:
        earlier = turns.history.load_previous_run(now - DAY_SECONDS, now)
        turns.past, turns.events = list(earlier.past), earlier.events
        if turns.alerting is not None:
            turns.alerting.foreign.resume(earlier.foreign, now)
        else:
            # Without a receiver the end of these alerts would never arrive.
            ended = [replace(one, ended_at=one.heard_at) for one in earlier.foreign if one.ended_at is None]
            turns.history.turn((), {}, ended, ())
        turns.restore_starts(turns.history.load_previous_run(now - KEPT_SECONDS, now).events)
        assembly.event(now, "start", f"sizewatch {VERSION} began to watch {turns.describe_targets}")
        turns.restore_findings(earlier.unfinished, now, earlier.seen)
        assembly.load_error_budgets(turns.tiers, now)


def _alerting(config: Config, clock: Callable[[], float]) -> AlertingService | None:
    keys = config.alerting
    if keys.path == "rules" and keys.receiver is None:
        return None
    from agent.alerting.service import AlertingService

    return AlertingService(keys, clock)


def _forecasts(config: Config, before: Assembly | None) -> ForecastService | None:
    """Return the forecast service, that of the previous configuration if any. Each request holds all its parameters."""
    if config.history_path is None or not config.forecast.enabled:
        return None
    if before is not None and before.forecasts is not None:
        return before.forecasts
    from agent.forecasting.service import ForecastService

    return ForecastService()


def _reports(config: Config, before: Assembly | None) -> ReportService | None:
    """Return the report service, that of the previous configuration if the data directory is the same."""
    if config.report_folder is None:
        return None
    assert config.data_dir is not None
    folder = Path(config.data_dir).absolute()
    if before is not None and before.reports is not None and before.reports.data_dir == folder:
        return before.reports
    from agent.reporting.service import ReportService

    return ReportService(folder)


def _back_fill(assembly: Assembly, before: Assembly | None, clock: Callable[[], float]) -> BackFillService | None:
    """Return the running back fill of role fleet, that of the previous configuration if it fills the same."""
    loaded, history = assembly.loaded, assembly.turns.history
    if loaded.config.role != "fleet" or history is None or not loaded.config.fleet.back_fill_seconds:
        return None
    from agent.replay.back_fill import BackFillService

    if before is not None and before.back_fill is not None and before.back_fill.fills(loaded):
        before.back_fill.done = assembly.on_back_fill_done
        return before.back_fill
    begun = BackFillService(loaded, history, clock, assembly.on_back_fill_done)
    begun.start()
    return begun


def _gpu_source(config: Config) -> GpuReader | None:
    kubernetes = config.discovery.kubernetes
    if kubernetes is not None and kubernetes.scope == "pod" and config.gpus.source == "nvml":
        # NVML shows a sidecar the whole node, without the owner of each GPU.
        return None
    if config.gpus.source == "nvml":
        from agent.gpu.nvml_reader import NvmlReader

        return NvmlReader()
    if config.gpus.exporter is not None:
        exporter, connection = config.gpus.exporter
        return ExporterPage(PageFetcher(connection.options(config.timeout_seconds())), exporter)
    return None


def _history(loaded: LoadedConfig, before: Assembly | None) -> HistoryService | None:
    if loaded.config.history_path is None:
        return None
    if before is not None and before.loaded.config.data_dir == loaded.config.data_dir:
        return before.turns.history
    from agent.history.service import HistoryService
    from agent.history.store import HistoryStore

    path = Path(loaded.config.history_path)
    ours = DataDir(path.parent, loaded.path)
    try:
        return HistoryService(lambda: HistoryStore(path), ours.close)
    except BaseException:
        ours.close()
        raise
