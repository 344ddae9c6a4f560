"""Factory of the daemon's parts from a configuration.

It starts nothing but the discovery of pods and the back-fill. Parts are imported on demand, so a role loads only what
it needs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.config.config import Config
from agent.config.load import LoadedConfig, build_tier_contexts, plan_versions
from agent.daemon.assembly import Assembly
from agent.errors import FORECAST_MODULE, find_missing
from agent.files import DataDir
from agent.gpu.collector import GpuCollector, GpuReader
from agent.pipeline.change_log import ChangeLog
from agent.pipeline.interfaces import Sink, Source
from agent.pipeline.loop import EvaluationLoop
from agent.pipeline.runtime_state import RuntimeState
from agent.scrape.scrapers import Scrapers, list_targets
from agent.sources.scrape import ScrapeSource, make_gpu_reader
from agent.version import VERSION
from exporters.status.records import DAY_SECONDS
from rules.evaluator.external_alerts import ExternalAlert
from rules.plan.load_bins import TierContext
from rules.replicas.starts import KEPT_SECONDS

if TYPE_CHECKING:
    from agent.alerting.service import AlertingService
    from agent.forecasting.service import ForecastService
    from agent.history.service import HistoryService
    from agent.kubernetes.node_pods import PodSource
    from agent.replay.back_fill import BackFillService
    from agent.reporting.service import ReportService


_log = logging.getLogger(__name__)

Assemble = Callable[[LoadedConfig, Assembly | None], Assembly]
"""Signature of `assemble`, or of its replacement in a demo or test."""


def assemble(
    loaded: LoadedConfig,
    before: Assembly | None = None,
    *,
    clock: Callable[[], float] = time.time,
    gpu_source: GpuReader | None = None,
) -> Assembly:
    """Return all parts of a configuration. The state of `before` goes on in them, and each part whose keys are the same.

    Nothing of `before` changes until `Assembly.take_state`.

    Raise ConfigError or HistoryError if the history cannot be opened; then nothing was made and `before` is unchanged.
    """
    # Before the history is opened: an unusable token file then leaves nothing to close.
    alerting = _alerting(loaded.config, before, clock)
    pods = _pods(loaded, before, clock)
    with ExitStack() as undone:
        history = _history(loaded, before)
        if history is not None and (before is None or history is not before.history):
            undone.callback(history.close)
        if pods is not None and (before is None or pods is not before.pods):
            undone.callback(pods.stop)
            pods.start()
        assembly = _build(loaded, before, (history, alerting, pods), clock, gpu_source)
        undone.pop_all()
    return assembly


def _build(
    given: LoadedConfig,
    before: Assembly | None,
    parts: tuple[HistoryService | None, AlertingService | None, PodSource | None],
    clock: Callable[[], float],
    gpu_source: GpuReader | None,
) -> Assembly:
    history, alerting, pods = parts
    loaded = given if pods is None else pods.add_discovered_targets(given)
    contexts, versions = build_tier_contexts(loaded), plan_versions(loaded)
    source, agent_tiers = _source(loaded, contexts, before, pods, clock, gpu_source)
    runtime = before.runtime if before is not None else RuntimeState(agent_tiers)
    same_role = before is not None and before.loaded.config.role == loaded.config.role
    log = before.log if before is not None and same_role else ChangeLog(log_targets=loaded.config.role != "fleet")
    loop = EvaluationLoop(
        source=source, tiers=contexts, clock=clock, before=before.loop if before is not None else None
    )
    loop.sinks = (runtime, log, *_output_sinks(loop, runtime, versions, history, alerting))
    assembly = Assembly(
        loaded=loaded,
        loop=loop,
        runtime=runtime,
        log=log,
        versions=versions,
        history=history,
        alerting=alerting,
        pods=pods,
        forecasts=_forecasts(loaded.config, before),
        reports=_reports(loaded.config, before),
        given=given,
        agent_tiers=agent_tiers,
    )
    if before is None:
        _resume(assembly, clock())
        assembly.read_history(clock())
        loop.state.set_long_term_results(assembly.long_results)
    elif before.given is not given or history is None:
        # New pods are no reason to read weeks of history again.
        assembly.read_history(clock())
    assembly.back_fill = _back_fill(assembly, clock)
    return assembly


def _output_sinks(
    loop: EvaluationLoop,
    runtime: RuntimeState,
    versions: dict[str, str],
    history: HistoryService | None,
    alerting: AlertingService | None,
) -> Iterator[Sink]:
    """Yield the sinks for alerts and history, in this order: the history stores the alerts that changed."""
    changed: Callable[[], tuple[ExternalAlert, ...]] = tuple
    if alerting is not None:
        alerting.connect(loop, lambda: runtime.past)
        changed = alerting.pop_changed
        yield alerting
    if history is not None:
        from agent.history.service import HistorySink

        yield HistorySink(history, loop.source, versions, changed)


def _source(
    loaded: LoadedConfig,
    contexts: dict[str, TierContext],
    before: Assembly | None,
    pods: PodSource | None,
    clock: Callable[[], float],
    gpu_source: GpuReader | None,
) -> tuple[Source, frozenset[str]]:
    """Return the source of a configuration, and the tiers that other agents export."""
    earlier = before.loop.source if before is not None else None
    if loaded.config.role == "fleet":
        from agent.sources.store import StoreSource, build_store_source

        store = build_store_source(loaded, contexts, earlier if isinstance(earlier, StoreSource) else None)
        return store, store.agent_tiers
    targets = list_targets(loaded.config)
    gpus = None
    if before is not None and isinstance(earlier, ScrapeSource) and before.loaded.config.gpus == loaded.config.gpus:
        gpus = earlier.gpus
    source = ScrapeSource(
        targets,
        Scrapers(targets, clock=clock, turn_seconds=loaded.config.turn_seconds),
        gpus or GpuCollector(gpu_source or make_gpu_reader(loaded.config)),
        pods,
        clock,
        whole_tiers=loaded.config.tier_verdicts,
        engines=earlier.engines if isinstance(earlier, ScrapeSource) else None,
    )
    return source, frozenset()


def _pods(loaded: LoadedConfig, before: Assembly | None, clock: Callable[[], float]) -> PodSource | None:
    if loaded.config.discovery.kubernetes is None:
        return None
    from agent.kubernetes.node_pods import has_same_discovery, pods_of

    if before is not None and before.pods is not None and has_same_discovery(before.loaded.config, loaded.config):
        return before.pods
    return pods_of(loaded.config, clock)


def _resume(assembly: Assembly, now: float) -> None:
    """Restore the state of an earlier run from the history."""
    history, loop = assembly.history, assembly.loop
    if history is None:
        return
    earlier = history.load_previous_run(now - DAY_SECONDS, now)
    assembly.runtime.past, assembly.runtime.events = list(earlier.past), earlier.events
    if assembly.alerting is not None:
        assembly.alerting.foreign.resume(earlier.foreign, now)
    else:
        # Without a receiver the end of these alerts would never arrive.
        ended = [replace(one, ended_at=one.heard_at) for one in earlier.foreign if one.ended_at is None]
        history.write_cycle((), {}, ended, ())
    loop.restore_starts(history.load_previous_run(now - KEPT_SECONDS, now).events)
    assembly.event(now, "start", f"sizewatch {VERSION} began to watch {loop.source.describe()}")
    loop.restore_findings(earlier.unfinished, now, earlier.seen)
    for tier, budget in assembly.read_error_budgets(loop.source.tiers, now).items():
        loop.state.restore_error_budget(tier, budget)


def _alerting(config: Config, before: Assembly | None, clock: Callable[[], float]) -> AlertingService | None:
    keys = config.alerting
    if keys.path == "rules" and keys.receiver is None:
        return None
    from agent.alerting.service import AlertingService

    return AlertingService(keys, clock, before.alerting if before is not None else None)


def _forecasts(config: Config, before: Assembly | None) -> ForecastService | None:
    """Return the forecast service, that of the previous configuration if any. Each request holds all its parameters."""
    if config.history_path is None or not config.forecast.enabled:
        return None
    if missing := find_missing(FORECAST_MODULE):
        if before is None:
            # Role node has no forecast, and its image no library for one.
            _log.log(logging.INFO if config.role == "node" else logging.WARNING, 'forecast off error="%s"', missing)
        return None
    if before is not None and before.forecasts is not None:
        return before.forecasts
    from agent.forecasting.service import ForecastService

    return ForecastService()


def _reports(config: Config, before: Assembly | None) -> ReportService | None:
    """Return the report service, that of the previous configuration if its folders are the same."""
    if config.report_folder is None:
        return None
    assert config.data_dir is not None
    folders = Path(config.data_dir).absolute(), config.report_folder.absolute()
    if before is not None and before.reports is not None and before.reports.folders == folders:
        return before.reports
    from agent.reporting.service import ReportService

    return ReportService(*folders)


def _back_fill(assembly: Assembly, clock: Callable[[], float]) -> BackFillService | None:
    """Return the running back-fill of role fleet. After a reload it continues with the days that are left."""
    loaded, history = assembly.loaded, assembly.history
    if loaded.config.role != "fleet" or history is None or not loaded.config.fleet.back_fill_seconds:
        return None
    from agent.replay.back_fill import BackFillService

    begun = BackFillService(loaded, history, clock, assembly.on_back_fill_done)
    begun.start()
    return begun


def _history(loaded: LoadedConfig, before: Assembly | None) -> HistoryService | None:
    if loaded.config.history_path is None:
        return None
    if before is not None and before.loaded.config.data_dir == loaded.config.data_dir:
        return before.history
    from agent.history.service import HistoryService
    from agent.history.store import HistoryStore

    path = Path(loaded.config.history_path)
    ours = DataDir(path.parent, loaded.path)
    try:
        return HistoryService(lambda: HistoryStore(path), ours.close)
    except BaseException:
        ours.close()
        raise
