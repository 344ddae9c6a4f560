"""Factory of the daemon's parts from a configuration.

It starts nothing but the discovery of pods. Parts are imported on demand: a role loads what it needs.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.config.load import LoadedConfig, build_tier_contexts, plan_versions
from agent.daemon.assembly import Assembly
from agent.errors import ConfigError, find_missing
from agent.files import DataDir
from agent.gpu.collector import GpuCollector, GpuReader
from agent.pipeline.change_log import ChangeLog
from agent.pipeline.interfaces import Source
from agent.pipeline.loop import EvaluationLoop
from agent.pipeline.runtime_state import RuntimeState
from agent.scrape.scrapers import Scrapers, list_targets
from agent.sources.scrape import ScrapeSource, make_gpu_reader
from agent.version import VERSION
from rules.plan.load_bins import TierContext
from rules.replicas.starts import KEPT_SECONDS
from rules.telemetry.windows import DAY_SECONDS

if TYPE_CHECKING:
    from agent.kubernetes.node_pods import PodSource

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
    """Restore the state of an earlier run from the history."""
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
