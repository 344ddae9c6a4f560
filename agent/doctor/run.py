"""Order of the doctor's checks. A further check is a row of CHECKS, or of TARGET_CHECKS if it applies to each target."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent.config.load import LoadedConfig, build_tier_contexts
from agent.doctor import (
    background_jobs,
    daemon,
    endpoints,
    history_file,
    machine,
    page_probes,
    process_limits,
    target_checks,
)
from agent.doctor.background_jobs import ForecastProbe, ReportProbe, check_report, probe_report
from agent.doctor.certificates import CertificateProbe, check_certificates, probe_certificates
from agent.doctor.check_result import CheckResult, fail, ok, warn
from agent.doctor.daemon import PortProbe
from agent.doctor.endpoints import AlertingProbe, StoreProbe, check_store, probe_store
from agent.doctor.history_file import HistoryFileProbe, HistoryProbe
from agent.doctor.machine import DataFolderProbe, GpusProbe
from agent.doctor.page_probes import TargetProbe
from agent.doctor.process_limits import PermissionsProbe, check_permissions, check_special_files, probe_permissions
from agent.doctor.target_checks import TargetContext
from agent.durations import duration_text
from agent.errors import ConfigError
from agent.gpu.owners import assign_gpus
from rules.catalogue.registry import CATALOGUE
from rules.plan.checks import PlanWarning, check_plan
from rules.plan.mistakes import Severity
from rules.telemetry.wording import format_count

if TYPE_CHECKING:
    from agent.doctor.discovery import DiscoveryProbe


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResults:
    """Results of all probes. `t` is their time in unix seconds."""

    t: float
    rights: PermissionsProbe
    file: HistoryFileProbe | None
    certificates: tuple[CertificateProbe, ...]
    targets: tuple[TargetProbe, ...]
    pods: DiscoveryProbe | None
    gpus: GpusProbe
    folder: DataFolderProbe | None
    history: HistoryProbe | None
    port: PortProbe
    alerting: AlertingProbe
    forecast: ForecastProbe | None
    report: ReportProbe | None
    store: StoreProbe | None


def run_checks(loaded: LoadedConfig | ConfigError, clock: Callable[[], float] = time.time) -> tuple[CheckResult, ...]:
    """Return the results of all checks in order. `clock` returns unix seconds.

    Each MOST_THREADS targets take at most four times the slowest timeout. Without a usable configuration, check the
    process only.
    """
    process, limits = machine.probe_process(), process_limits.probe_limits()
    if isinstance(loaded, ConfigError):
        problems = (
            fail("config", problem, "correct it; docs/configuration.md has every key") for problem in loaded.problems
        )
        return (*machine.check_process(process, None), *problems)
    found = [
        *_mistakes(loaded),
        *machine.check_process(process, loaded),
        *process_limits.check_limits(limits, loaded),
    ]
    odd = check_special_files(loaded)
    if limits.thread_trouble or odd:
        # The other probes need threads, and would block on a pipe.
        return (*found, *odd)
    seen = run_probes(loaded, clock)
    return (*found, *(finding for check in CHECKS for finding in check(seen, loaded)))


def run_probes(loaded: LoadedConfig, clock: Callable[[], float]) -> ProbeResults:
    """Run all probes except those of the process."""
    config = loaded.config
    pods = _pods(loaded, clock)
    watched = (pods.loaded if pods is not None else loaded).config.list_targets()
    history = history_file.probe_history(config.history_path, clock()) if config.history_path else None
    return ProbeResults(
        t=clock(),
        rights=probe_permissions(loaded),
        file=history_file.probe_history_file(config.history_path, history),
        certificates=probe_certificates(config, watched),
        targets=page_probes.probe_targets(watched, clock),
        pods=pods,
        gpus=machine.probe_gpus(config, clock),
        folder=machine.probe_data_folder(Path(config.data_dir)) if config.data_dir else None,
        history=history,
        port=daemon.probe_port(config),
        alerting=endpoints.probe_alerting(config),
        forecast=background_jobs.probe_forecast(config),
        report=probe_report(config),
        store=probe_store(loaded, clock),
    )


def _pods(loaded: LoadedConfig, clock: Callable[[], float]) -> DiscoveryProbe | None:
    if loaded.config.discovery.kubernetes is None:
        return None
    from agent.doctor import discovery

    return discovery.probe_discovery(loaded, clock)


def _discovery(seen: ProbeResults, loaded: LoadedConfig) -> Iterator[CheckResult]:
    if seen.pods is not None:
        from agent.doctor import discovery

        yield from discovery.check_discovery(seen.pods, loaded)


def _mistakes(loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Report grave mistakes of configuration and plan."""
    for mistake in loaded.mistakes:
        yield fail("config", mistake, "correct it; docs/configuration.md has every key")
    for finding in _plan_warnings(loaded, "mistake"):
        yield fail("plan", f"{finding.path}: {finding.text}", "correct the plan; what follows from this value is wrong")


def _plan_warnings(loaded: LoadedConfig, severity: Severity) -> list[PlanWarning]:
    found = check_plan(loaded.plan, CATALOGUE, loaded.config.thresholds) if loaded.plan else ()
    return [one for one in found if one.severity == severity]


def _config(_: ProbeResults, loaded: LoadedConfig) -> Iterator[CheckResult]:
    config = loaded.config
    every = duration_text(config.turn_seconds)
    if config.role == "fleet":
        watched = f"{format_count(len(build_tier_contexts(loaded)), 'tier')} of a store, which is asked every {every}"
    else:
        tiers = len({target.tier for target in config.targets})
        watched = (
            f"{format_count(len(config.targets), 'target')} in {format_count(tiers, 'tier')}, scraped every {every}"
        )
    yield ok("config", f"{loaded.path}: role {config.role}, {watched}")
    for warning in loaded.warnings:
        yield warn("config", warning, "correct it, or leave it knowingly")


def _plan(_: ProbeResults, loaded: LoadedConfig) -> Iterator[CheckResult]:
    if loaded.plan is None:
        text = "none: targets are watched, and compared with nothing"
        yield warn("plan", text, "name one with the key plan; docs/plan.schema.json has its keys")
        return
    weak, grave = _plan_warnings(loaded, "warning"), len(_plan_warnings(loaded, "mistake"))
    tiers = format_count(len(loaded.plan.tiers), "tier")
    told = f"{loaded.config.plan}: {tiers}, {format_count(len(weak), 'weakness', 'weaknesses')}"
    yield ok("plan", f"{told}, {format_count(grave, 'grave mistake')} (above)" if grave else told)
    for finding in weak:
        yield warn(
            "plan", f"{finding.path}: {finding.text}", "sizewatch plan check has more; the plan is used as it is"
        )


def _targets(seen: ProbeResults, loaded: LoadedConfig) -> Iterator[CheckResult]:
    readouts = {readout.gpu: readout for readout in seen.gpus.readouts}
    assign = assign_gpus if seen.pods is None else seen.pods.assign_gpus
    owned = assign([target.target for target in seen.targets], readouts)
    tiers = loaded.plan.tiers if loaded.plan else {}
    for target in seen.targets:
        met = TargetContext(
            seen=target,
            tier=tiers.get(target.target.tier),
            owned=tuple(readouts[gpu] for gpu in owned[target.target.key].gpus),
            readable=seen.gpus.readouts,
        )
        for check in TARGET_CHECKS:
            yield from check(met, loaded)


TARGET_CHECKS: tuple[Callable[[TargetContext, LoadedConfig], Iterator[CheckResult]], ...] = (
    target_checks.check_page,
    target_checks.check_names,
    target_checks.check_clock,
    target_checks.check_plan_match,
)

CHECKS: tuple[Callable[[ProbeResults, LoadedConfig], Iterator[CheckResult]], ...] = (
    _config,
    _plan,
    lambda seen, loaded: check_permissions(seen.rights, loaded),
    _discovery,
    _targets,
    lambda seen, loaded: check_store(seen.store, loaded),
    lambda seen, loaded: machine.check_gpus(seen.gpus, loaded),
    lambda seen, loaded: machine.check_data_folder(seen.folder, loaded),
    lambda seen, _: daemon.check_folder_owner(seen.folder, seen.port),
    lambda seen, loaded: history_file.check_history(seen.history, loaded),
    lambda seen, _: history_file.check_history_file(seen.file),
    lambda seen, loaded: daemon.check_port(seen.port, loaded),
    lambda seen, loaded: daemon.check_daemon(seen.port, loaded, seen.t),
    lambda seen, loaded: background_jobs.check_forecast(seen.forecast, loaded),
    lambda seen, loaded: check_report(seen.report, loaded),
    lambda seen, loaded: endpoints.check_alerting(seen.alerting, loaded),
    lambda seen, _: check_certificates(seen.certificates, seen.t),
)
