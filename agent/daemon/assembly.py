"""Assembly of the daemon's parts from a configuration, and its change at a reload.

`assemble` starts nothing but the discovery of pods. Parts are imported on demand: a role loads what it needs.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from agent.config.load import LoadedConfig, build_tier_contexts, plan_versions
from agent.config.targets import default_replica
from agent.errors import ConfigError, find_missing
from agent.files import DataDir
from agent.gpu.collector import GpuCollector, GpuReader
from agent.pipeline.change_log import ChangeLog
from agent.pipeline.interfaces import Closable, Source
from agent.pipeline.loop import EvaluationLoop
from agent.pipeline.runtime_state import RuntimeState
from agent.scrape.scrapers import Scrapers, list_targets
from agent.sources.scrape import ScrapeSource, make_gpu_reader
from agent.version import VERSION
from rules.evaluator import rule_evaluation
from rules.evaluator.timeline import TimelineEvent, TimelineKind
from rules.plan.load_bins import TierContext
from rules.replicas.starts import KEPT_SECONDS
from rules.telemetry.signals import Gap
from rules.telemetry.windows import DAY_SECONDS
from rules.telemetry.wording import format_count
from rules.verdicts.error_budget import Budget
from rules.verdicts.verdict import RuleResult

if TYPE_CHECKING:
    from agent.alerting.service import AlertingService
    from agent.forecasting.service import ForecastService
    from agent.history.service import HistoryService
    from agent.kubernetes.discovery import DiscoveredPod
    from agent.kubernetes.node_pods import PodSource
    from agent.replay.back_fill import BackFill
    from agent.reporting.service import ReportService


@dataclass(slots=True)
class Assembly:
    """Parts of one configuration.

    `step13` holds the first-week sentence of each tier, `long_results` the results of the rules over days. A part is
    None where the configuration wants none. `loaded` includes discovered pods, `given` does not.
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
    long_results: tuple[RuleResult, ...] = ()
    forecasts: ForecastService | None = None
    reports: ReportService | None = None
    back_fill: BackFill | None = None
    given: LoadedConfig | None = None

    def upkeep(self, now: float) -> None:
        """Run the hourly work on the history and set its results. Keep the previous results if the history fails."""
        self.read_history(now)
        with self.loop.memory:
            self.loop.state.set_long_term_results(self.long_results)

    def read_history(self, now: float) -> None:
        """Read the first-week sentences, capacities and results of the rules over days."""
        if self.history is None:
            text, contexts = "this agent keeps no history", self.loop.monitored_contexts().values()
            unknown = (rule_evaluation.unknown_results(context, now, Gap.NOT_EXPOSED, text) for context in contexts)
            self.long_results = tuple(chain.from_iterable(unknown))
            return
        self.step13 = self.step13 | self.history.upkeep(self.loop.evaluator.tiers, self.versions, now)
        self.measure_capacities(now)
        self.long_results = self.history.long_answers(self.loop.monitored_contexts(), self.versions, now)

    def measure_capacities(self, now: float) -> None:
        """Measure the capacity of a replica of each tier, like the commands that read the same hours."""
        if self.history is not None:
            measured = self.history.measured_views(self.loop.monitored_contexts(), self.versions, now)
            with self.loop.memory:
                self.loop.evaluator.set_capacities(measured or {})

    def forecast(self, now: float) -> None:
        """Forecast every watched tier and set the projections for the rules. Block until the forecasts are done."""
        self.measure_capacities(now)
        if self.forecasts is None:
            return
        from agent.forecasting.messages import build_request

        config, path = self.loaded.config, self.loaded.config.history_path
        assert path is not None
        contexts = self.loop.monitored_contexts()
        with self.loop.memory:
            starts = {tier: self.loop.state.of_tier(tier).starts for tier in contexts}
        filled = self.back_fill.minutes if self.back_fill is not None else 0
        requests = [build_request(context, starts[t], config, path, now, filled) for t, context in contexts.items()]
        events = self.forecasts.run(requests)
        with self.loop.memory:
            for event in events:
                self.event(event.t, event.kind, event.text, event.tier)
            self.loop.state.projections = self.forecasts.projections()

    def read_error_budgets(self, tiers: Container[str], now: float) -> dict[str, Budget]:
        """Return the error budgets of three days that the history has of these tiers."""
        if self.history is None:
            return {}
        contexts = self.loop.monitored_contexts().items()
        known = {tier: self.history.budget(context, now) for tier, context in contexts if tier in tiers}
        return {tier: budget for tier, budget in known.items() if budget is not None}

    def fill_demand(self, now: float) -> None:
        """Fill the demand of the weeks before the start from the store. Block until it is done or the store fails."""
        if self.back_fill is not None and (text := self.back_fill.run()):
            with self.loop.memory:
                self.event(now, TimelineKind.BACK_FILL, text)

    def write_reports(self, now: float) -> None:
        """Write the weekly reports that are due. Block until they are done."""
        if self.reports is not None:
            self.reports.run(self.loaded, now)

    def take_state(self, before: Assembly, now: float, reason: str) -> None:
        """Go on in place of the previous configuration, and close its parts that do not go on.

        Both share what holds state; what is monitored no more is dropped from it. No cycle may run in either of them.
        """
        loop, source = self.loop, self.loop.source
        changed = {tier for tier, version in self.versions.items() if before.versions.get(tier) != version}
        # Before the lock, which the pages wait for: it reads three days.
        budgets = self.read_error_budgets(changed, now)
        with loop.memory:
            contexts, earlier = self.loop.monitored_contexts(), before.loop.evaluator.tiers
            same = [tier for tier in contexts if tier in earlier and earlier[tier].plan == contexts[tier].plan]
            loop.evaluator.set_capacities({tier: earlier[tier] for tier in same})
            hosts = {target.key: default_replica(target.peer.url) for target in before.loop.source.targets}
            # A name at another address is another process.
            keys = {t.key for t in source.targets if hosts.get(t.key) == default_replica(t.peer.url)}
            loop.state.retain(keys, loop.evaluator.tiers)
            loop.state.set_long_term_results(self.long_results)
            self.runtime.retain(keys | {worker.key for worker in self.workers()}, source.agent_tiers)
            self.log.retain(keys)
            loop.defects = before.loop.defects
            for tier, budget in budgets.items():
                loop.state.restore_error_budget(tier, budget)
            self.step13 = {tier: text for tier, text in before.step13.items() if tier not in changed} | self.step13
            if self.forecasts is None:
                loop.state.projections = {}
            self.event(now, "reload", f"{reason}: {format_count(len(source.targets), 'target')}")
            for tier in sorted(changed & before.versions.keys()):
                text = f"the plan of {tier} changed from version {before.versions[tier]} to {self.versions[tier]}"
                self.event(now, "plan", text, tier)
        continued = set(map(id, self._parts()))
        for part in before._parts():
            if id(part) not in continued:
                part.close()

    def _parts(self) -> Iterator[Closable]:
        """Yield the parts that must be closed, in this order."""
        yield from self._services()
        yield from self.loop.source.parts()
        if self.alerting is not None:
            yield from self.alerting.deliveries
        if self.history is not None:
            yield self.history

    def _services(self) -> Iterator[Closable]:
        for part in (self.back_fill, self.forecasts, self.reports, self.pods):
            if part is not None:
                yield part

    def workers(self) -> tuple[DiscoveredPod, ...]:
        """Return pods here whose replica another agent scrapes."""
        return self.pods.workers() if self.pods is not None else ()

    def event(self, t: float, kind: str, text: str, tier: str | None = None) -> None:
        self.loop.record_event(TimelineEvent(t=t, kind=kind, tier=tier, text=text))

    def interrupt(self) -> None:
        """End the services and the present cycle: an end waits for nothing that hangs."""
        self.loop.source.interrupt()
        for part in self._services():
            part.close()

    def close(self, now: float) -> None:
        self.interrupt()
        self.event(now, "stop", "sizewatch ended in order")
        self.loop.stop()


_log = logging.getLogger(__name__)

Assemble = Callable[[LoadedConfig, Assembly | None], Assembly]
"""Signature of `assemble`, or of its replacement in a demo or test."""


def assemble(
    given: LoadedConfig,
    before: Assembly | None = None,
    *,
    clock: Callable[[], float] = time.time,
    gpu_source: GpuReader | None = None,
    scrapers: Scrapers | None = None,
) -> Assembly:
    """Return all parts of a configuration. The state of `before` goes on in them, and each part whose keys are the same.

    Nothing of `before` changes until `Assembly.take_state`. Raise ConfigError or HistoryError; then nothing was made.
    """
    config = given.config
    with ExitStack() as undone:
        pods: PodSource | None = None
        if config.discovery.kubernetes is not None:
            from agent.kubernetes.node_pods import pods_of

            if before is not None and before.loaded.config.discovery == config.discovery:
                pods = before.pods
            elif (pods := pods_of(config, clock)) is not None:
                undone.callback(pods.close)
                pods.start()
        loaded = given if pods is None else pods.add_discovered_targets(given)
        contexts = build_tier_contexts(loaded)
        source = _make_source(loaded, contexts, before, pods, clock, gpu_source, scrapers)
        same_role = before is not None and before.loaded.config.role == config.role
        assembly = Assembly(
            given=given,
            loaded=loaded,
            loop=EvaluationLoop(source=source, tiers=contexts, clock=clock, before=before.loop if before else None),
            runtime=before.runtime if before is not None else RuntimeState(source.agent_tiers),
            log=before.log if before is not None and same_role else ChangeLog(log_targets=config.role != "fleet"),
            versions=plan_versions(loaded),
            pods=pods,
        )
        assembly.loop.sinks = (assembly.runtime, assembly.log)
        if config.alerting.path != "rules" or config.alerting.receiver is not None:
            from agent.alerting.service import AlertingService

            assembly.alerting = AlertingService(config.alerting, clock, before.alerting if before else None)
            assembly.alerting.connect(assembly.loop, lambda: assembly.runtime.past)
            assembly.loop.sinks += (assembly.alerting,)
        if config.history_path is not None:
            _add_history(assembly, config.history_path, before, clock(), undone)
        if before is None:
            _resume(assembly, clock())
            assembly.upkeep(clock())
        elif before.given is not given or assembly.history is None:
            # New pods are no reason to read weeks of history again.
            assembly.read_history(clock())
        undone.pop_all()
    return assembly


def _add_history(assembly: Assembly, path: Path, before: Assembly | None, now: float, undone: ExitStack) -> None:
    """Add the history and the parts that read it. Those of the previous configuration go on if the folder is the same."""
    from agent.history.schema import HistoryError
    from agent.history.service import HistoryService, HistorySink
    from agent.history.store import HistoryStore

    config = assembly.loaded.config
    kept = before if before is not None and before.loaded.config.history_path == path else None
    history = kept.history if kept is not None else None
    if history is None:
        folder = DataDir(path.parent, assembly.loaded.path)
        undone.callback(folder.close)

        def open_store() -> HistoryStore:
            try:
                # Whoever removed the history may have removed the lock.
                folder.lock()
            except ConfigError as error:
                raise HistoryError(path, str(error)) from error
            return HistoryStore(path)

        history = HistoryService(open_store, folder.close)
        undone.callback(history.close)
    assembly.history = history
    # After the alerting: the history stores the alerts that changed.
    changed = assembly.alerting.pop_changed if assembly.alerting is not None else tuple
    assembly.loop.sinks += (HistorySink(history, assembly.loop.source, assembly.versions, changed),)
    missing = find_missing("pandas")
    if config.forecast.enabled and not missing:
        from agent.forecasting.service import ForecastService

        assembly.forecasts = (kept and kept.forecasts) or ForecastService()
    elif config.forecast.enabled and before is None:
        # The image of role node has no library for one.
        _log.log(logging.INFO if config.role == "node" else logging.WARNING, 'forecast off error="%s"', missing)
    if config.report_folder is not None:
        from agent.reporting.service import ReportService

        folders = path.parent.absolute(), config.report_folder.absolute()
        if config.report.directory:
            _make_report_folder(folders[1], assembly.loaded.path)
        is_same = kept is not None and kept.reports is not None and kept.reports.folders == folders
        assembly.reports = kept.reports if kept is not None and is_same else ReportService(*folders)
    if config.role == "fleet" and config.fleet.back_fill_seconds:
        from agent.replay.back_fill import BackFill

        assembly.back_fill = BackFill(assembly.loaded, history, now)


def _make_report_folder(folder: Path, named: Path) -> None:
    """Make the folder of the weekly reports. Raise ConfigError if it cannot be written: a week from now is too late."""
    try:
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        why = f"{folder} cannot be written ({error.strerror}); make it writable, or name another"
        raise ConfigError((f"{named}: report.directory: {why}",)) from error


def _make_source(
    loaded: LoadedConfig,
    contexts: dict[str, TierContext],
    before: Assembly | None,
    pods: PodSource | None,
    clock: Callable[[], float],
    gpu_source: GpuReader | None,
    scrapers: Scrapers | None,
) -> Source:
    earlier = before.loop.source if before is not None else None
    if loaded.config.role == "fleet":
        from agent.sources.store import StoreSource, build_store_source

        return build_store_source(loaded, contexts, earlier if isinstance(earlier, StoreSource) else None)
    targets, gpus, engines = list_targets(loaded.config), None, None
    if before is not None and isinstance(earlier, ScrapeSource):
        engines = earlier.engines
        gpus = earlier.gpus if before.loaded.config.gpus == loaded.config.gpus else None
    return ScrapeSource(
        targets,
        scrapers or Scrapers(targets, clock=clock, cycle_seconds=loaded.config.cycle_seconds),
        gpus or GpuCollector(gpu_source or make_gpu_reader(loaded.config)),
        pods,
        clock,
        whole_tiers=loaded.config.tier_verdicts,
        engines=engines,
    )


def _resume(assembly: Assembly, now: float) -> None:
    history, loop = assembly.history, assembly.loop
    if history is None:
        return
    earlier = history.load_previous_run(now - DAY_SECONDS, now)
    assembly.runtime.past = [finding for finding in earlier.findings if finding.ended_at is not None]
    assembly.runtime.events = earlier.events
    if assembly.alerting is not None:
        assembly.alerting.foreign.resume(earlier.foreign, now)
    else:
        # Without a receiver the end of these alerts would never arrive.
        ended = [replace(alert, ended_at=alert.heard_at) for alert in earlier.foreign if alert.ended_at is None]
        history.write_cycle(ended=ended, now=now)
    loop.restore_starts(history.load_previous_run(now - KEPT_SECONDS, now).events)
    assembly.event(now, "start", f"sizewatch {VERSION} began to watch {loop.source.describe()}")
    loop.restore_findings([each for each in earlier.findings if each.ended_at is None], now, earlier.seen_at)
    for tier, budget in assembly.read_error_budgets(loop.source.tiers, now).items():
        loop.state.restore_error_budget(tier, budget)
