"""The doctor: is this installation sound? Line by line, each with what to do.

Owns what is checked and in which order. Looking is `doctor_probes` and `doctor_pages`, judging `doctor_machine` and
`doctor_targets`, words and layout `doctor_findings`; every other part (`doctor_alerting`, `doctor_certificates`, ...) owns both of
what it is called after. Another check is a row in CHECKS, or in TARGET_CHECKS where it is made of each target.
"""

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
    machine_checks,
    machine_probes,
    page_probes,
    process_limits,
    target_checks,
)
from agent.doctor.background_jobs import ForecastProbe, ReportProbe, check_report, probe_report
from agent.doctor.certificates import CertificateProbe, check_certificates, probe_certificates
from agent.doctor.check_result import CheckResult, count, fail, ok, warn
from agent.doctor.endpoints import AlertingProbe, StoreProbe, check_store, probe_store
from agent.doctor.history_file import HistoryFileProbe
from agent.doctor.machine_probes import DataFolderProbe, GpusProbe, HistoryProbe, PortProbe
from agent.doctor.page_probes import TargetProbe
from agent.doctor.process_limits import PermissionsProbe, check_permissions, check_special_files, probe_permissions
from agent.doctor.target_checks import TargetContext
from agent.durations import duration_text
from agent.errors import ConfigError
from agent.gpu.owners import assign_gpus
from rules.catalogue.registry import margin_of
from rules.plan.checks import PlanWarning as PlanFinding
from rules.plan.checks import check_plan
from rules.plan.mistakes import Severity

if TYPE_CHECKING:
    from agent.doctor.discovery import DiscoveryProbe


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResults:
    """All that was looked at, and when: `t` is unix seconds."""

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
    """Every finding, in the order of the tables. `clock` gives unix seconds.

    Takes the slowest target's timeout, four times at most, for each MOST_THREADS of them; without a usable configuration only the
    process is looked at.
    """
    process, limits = machine_probes.probe_process(), process_limits.probe_limits()
    if isinstance(loaded, ConfigError):
        problems = (
            fail("config", problem, "correct it; docs/configuration.md has every key") for problem in loaded.problems
        )
        return (*machine_checks.check_process(process, None), *problems)
    found = [
        *_mistakes(loaded),
        *machine_checks.check_process(process, loaded),
        *process_limits.check_limits(limits, loaded),
    ]
    odd = check_special_files(loaded)
    if limits.thread_trouble or odd:
        # Nothing else can be looked at: targets, GPUs and addresses are asked from threads, and who reads a pipe waits.
        return (*found, *odd)
    seen = run_probes(loaded, clock)
    return (*found, *(finding for _, check in CHECKS for finding in check(seen, loaded)))


def run_probes(loaded: LoadedConfig, clock: Callable[[], float]) -> ProbeResults:
    """All input and output of the doctor but for the process itself."""
    config = loaded.config
    pods = _pods(loaded, clock)
    watched = (pods.loaded if pods is not None else loaded).config.list_targets()
    history = machine_probes.probe_history(config.history_path, clock()) if config.history_path else None
    return ProbeResults(
        t=clock(),
        rights=probe_permissions(loaded),
        file=history_file.probe_history_file(config.history_path, history),
        certificates=probe_certificates(config, watched),
        targets=page_probes.probe_targets(watched, clock),
        pods=pods,
        gpus=machine_probes.probe_gpus(config, clock),
        folder=machine_probes.probe_data_folder(Path(config.data_dir)) if config.data_dir else None,
        history=history,
        port=machine_probes.probe_port(config),
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
    if seen.pods is None:
        return
    from agent.doctor import discovery

    yield from discovery.check_discovery(seen.pods, loaded)


def _mistakes(loaded: LoadedConfig) -> Iterator[CheckResult]:
    """What must be corrected before anything else is worth reading."""
    for mistake in loaded.mistakes:
        yield fail("config", mistake, "correct it; docs/configuration.md has every key")
    for finding in _told_of(loaded, "mistake"):
        yield fail("plan", f"{finding.path}: {finding.text}", "correct the plan; what follows from this value is wrong")


def _told_of(loaded: LoadedConfig, severity: Severity) -> list[PlanFinding]:
    return [one for one in check_plan(loaded.plan, margin_of()) if one.severity == severity] if loaded.plan else []


def _config(_: ProbeResults, loaded: LoadedConfig) -> Iterator[CheckResult]:
    config = loaded.config
    every = duration_text(config.turn_seconds)
    if config.role == "fleet":
        watched = f"{count(len(build_tier_contexts(loaded)), 'tier')} of a store, which is asked every {every}"
    else:
        tiers = len({target.tier for target in config.targets})
        watched = f"{count(len(config.targets), 'target')} in {count(tiers, 'tier')}, scraped every {every}"
    yield ok("config", f"{loaded.path}: role {config.role}, {watched}")
    for warning in loaded.warnings:
        yield warn("config", warning, "correct it, or leave it knowingly")


def _plan(_: ProbeResults, loaded: LoadedConfig) -> Iterator[CheckResult]:
    if loaded.plan is None:
        text = "none: targets are watched, and compared with nothing"
        yield warn("plan", text, "name one with the key plan; docs/plan.schema.json has its keys")
        return
    weak, grave = _told_of(loaded, "warning"), len(_told_of(loaded, "mistake"))
    tiers = count(len(loaded.plan.tiers), "tier")
    told = f"{loaded.config.plan}: {tiers}, {count(len(weak), 'weakness', 'weaknesses')}"
    yield ok("plan", f"{told}, {count(grave, 'grave mistake')} (above)" if grave else told)
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
        for _, check in TARGET_CHECKS:
            yield from check(met, loaded)


TARGET_CHECKS: tuple[tuple[str, Callable[[TargetContext, LoadedConfig], Iterator[CheckResult]]], ...] = (
    ("reachable, whole and in time", target_checks.check_page),
    ("engine and names known", target_checks.check_names),
    ("clocks agree", target_checks.check_clock),
    ("runs what was planned", target_checks.check_plan_match),
)

CHECKS: tuple[tuple[str, Callable[[ProbeResults, LoadedConfig], Iterator[CheckResult]]], ...] = (
    ("configuration", _config),
    ("sizing plan", _plan),
    ("rights of files", lambda seen, loaded: check_permissions(seen.rights, loaded)),
    ("pods", _discovery),
    ("targets", _targets),
    ("store", lambda seen, loaded: check_store(seen.store, loaded)),
    ("GPUs", lambda seen, loaded: machine_checks.check_gpus(seen.gpus, loaded)),
    ("folder of the history", lambda seen, loaded: machine_checks.check_data_folder(seen.folder, loaded)),
    ("one daemon for a folder", lambda seen, _: machine_checks.owner(seen.folder, seen.port)),
    ("history", lambda seen, loaded: machine_checks.check_history(seen.history, loaded)),
    ("its file", lambda seen, _: history_file.check_history_file(seen.file)),
    ("web address", lambda seen, loaded: machine_checks.check_port(seen.port, loaded)),
    ("the daemon's own page", lambda seen, loaded: daemon.check_daemon(seen.port, loaded, seen.t)),
    ("forecast", lambda seen, loaded: background_jobs.check_forecast(seen.forecast, loaded)),
    ("weekly report", lambda seen, loaded: check_report(seen.report, loaded)),
    ("alerts", lambda seen, loaded: endpoints.check_alerting(seen.alerting, loaded)),
    ("certificates", lambda seen, _: check_certificates(seen.certificates, seen.t)),
)
