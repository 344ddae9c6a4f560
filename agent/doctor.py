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

from agent import (
    doctor_alerting,
    doctor_certificates,
    doctor_daemon,
    doctor_forecast,
    doctor_history_file,
    doctor_limits,
    doctor_machine,
    doctor_pages,
    doctor_probes,
    doctor_report,
    doctor_rights,
    doctor_store,
    doctor_targets,
)
from agent.collect.gpus import owners
from agent.config import Loaded
from agent.doctor_alerting import AlertingSeen
from agent.doctor_certificates import CertificateSeen
from agent.doctor_findings import Finding, count, exit_code, fail, format_text, ok, warn
from agent.doctor_forecast import ForecastSeen
from agent.doctor_history_file import FileSeen
from agent.doctor_pages import TargetSeen
from agent.doctor_probes import FolderSeen, GpusSeen, HistorySeen, PortSeen
from agent.doctor_report import ReportSeen
from agent.doctor_rights import RightsSeen
from agent.doctor_store import StoreSeen
from agent.doctor_targets import Met
from agent.durations import duration_text
from agent.errors import BadConfig
from agent.views import views_of
from rules.plan_case import Severity
from rules.plan_findings import Finding as PlanFinding
from rules.plan_findings import findings

if TYPE_CHECKING:
    from agent.doctor_discovery import DiscoverySeen

__all__ = ["Finding", "exit_code", "format_text", "run_checks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that was looked at, and when: `t` is unix seconds."""

    t: float
    rights: RightsSeen
    file: FileSeen | None
    certificates: tuple[CertificateSeen, ...]
    targets: tuple[TargetSeen, ...]
    pods: DiscoverySeen | None
    gpus: GpusSeen
    folder: FolderSeen | None
    history: HistorySeen | None
    port: PortSeen
    alerting: AlertingSeen
    forecast: ForecastSeen | None
    report: ReportSeen | None
    store: StoreSeen | None


def run_checks(loaded: Loaded | BadConfig, clock: Callable[[], float] = time.time) -> tuple[Finding, ...]:
    """Every finding, in the order of the tables. `clock` gives unix seconds.

    Takes the slowest target's timeout, four times at most, for each MOST_THREADS of them; without a usable configuration only the
    process is looked at.
    """
    process, limits = doctor_probes.process(), doctor_limits.look()
    if isinstance(loaded, BadConfig):
        problems = (
            fail("config", problem, "correct it; docs/configuration.md has every key") for problem in loaded.problems
        )
        return (*doctor_machine.process(process, None), *problems)
    found = [*_mistakes(loaded), *doctor_machine.process(process, loaded), *doctor_limits.limits(limits, loaded)]
    odd = doctor_rights.not_files(loaded)
    if limits.thread_trouble or odd:
        # Nothing else can be looked at: targets, GPUs and addresses are asked from threads, and who reads a pipe waits.
        return (*found, *odd)
    seen = look(loaded, clock)
    return (*found, *(finding for _, check in CHECKS for finding in check(seen, loaded)))


def look(loaded: Loaded, clock: Callable[[], float]) -> Seen:
    """All input and output of the doctor but for the process itself."""
    config = loaded.config
    pods = _pods(loaded, clock)
    watched = (pods.loaded if pods is not None else loaded).config.watched()
    history = doctor_probes.history(config.history_path, clock()) if config.history_path else None
    return Seen(
        t=clock(),
        rights=doctor_rights.look(loaded),
        file=doctor_history_file.look(config.history_path, history),
        certificates=doctor_certificates.look(config, watched),
        targets=doctor_pages.targets(watched, clock),
        pods=pods,
        gpus=doctor_probes.gpus(config, clock),
        folder=doctor_probes.folder(Path(config.data_dir)) if config.data_dir else None,
        history=history,
        port=doctor_probes.port(config),
        alerting=doctor_alerting.look(config),
        forecast=doctor_forecast.look(config),
        report=doctor_report.look(config),
        store=doctor_store.look(loaded, clock),
    )


def _pods(loaded: Loaded, clock: Callable[[], float]) -> DiscoverySeen | None:
    if loaded.config.discovery.kubernetes is None:
        return None
    from agent import doctor_discovery

    return doctor_discovery.look(loaded, clock)


def _discovery(seen: Seen, loaded: Loaded) -> Iterator[Finding]:
    if seen.pods is None:
        return
    from agent import doctor_discovery

    yield from doctor_discovery.discovery(seen.pods, loaded)


def _mistakes(loaded: Loaded) -> Iterator[Finding]:
    """What must be corrected before anything else is worth reading."""
    for mistake in loaded.mistakes:
        yield fail("config", mistake, "correct it; docs/configuration.md has every key")
    for finding in _told_of(loaded, "mistake"):
        yield fail("plan", f"{finding.path}: {finding.text}", "correct the plan; what follows from this value is wrong")


def _told_of(loaded: Loaded, severity: Severity) -> list[PlanFinding]:
    return [one for one in findings(loaded.plan) if one.severity == severity] if loaded.plan else []


def _config(_: Seen, loaded: Loaded) -> Iterator[Finding]:
    config = loaded.config
    every = duration_text(config.turn_seconds)
    if config.role == "fleet":
        watched = f"{count(len(views_of(loaded)), 'tier')} of a store, which is asked every {every}"
    else:
        tiers = len({target.tier for target in config.targets})
        watched = f"{count(len(config.targets), 'target')} in {count(tiers, 'tier')}, scraped every {every}"
    yield ok("config", f"{loaded.path}: role {config.role}, {watched}")
    for warning in loaded.warnings:
        yield warn("config", warning, "correct it, or leave it knowingly")


def _plan(_: Seen, loaded: Loaded) -> Iterator[Finding]:
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


def _targets(seen: Seen, loaded: Loaded) -> Iterator[Finding]:
    readouts = {readout.gpu: readout for readout in seen.gpus.readouts}
    whose = owners if seen.pods is None else seen.pods.owners
    owned = whose([target.target for target in seen.targets], readouts)
    tiers = loaded.plan.tiers if loaded.plan else {}
    for target in seen.targets:
        met = Met(
            seen=target,
            tier=tiers.get(target.target.tier),
            owned=tuple(readouts[gpu] for gpu in owned[target.target.key]),
            readable=seen.gpus.readouts,
        )
        for _, check in TARGET_CHECKS:
            yield from check(met, loaded)


TARGET_CHECKS: tuple[tuple[str, Callable[[Met, Loaded], Iterator[Finding]]], ...] = (
    ("reachable, whole and in time", doctor_targets.page),
    ("engine and names known", doctor_targets.names),
    ("clocks agree", doctor_targets.clock),
    ("runs what was planned", doctor_targets.plan),
)

CHECKS: tuple[tuple[str, Callable[[Seen, Loaded], Iterator[Finding]]], ...] = (
    ("configuration", _config),
    ("sizing plan", _plan),
    ("rights of files", lambda seen, loaded: doctor_rights.rights(seen.rights, loaded)),
    ("pods", _discovery),
    ("targets", _targets),
    ("store", lambda seen, loaded: doctor_store.store(seen.store, loaded)),
    ("GPUs", lambda seen, loaded: doctor_machine.gpus(seen.gpus, loaded)),
    ("folder of the history", lambda seen, loaded: doctor_machine.folder(seen.folder, loaded)),
    ("one daemon for a folder", lambda seen, _: doctor_machine.owner(seen.folder, seen.port)),
    ("history", lambda seen, loaded: doctor_machine.history(seen.history, loaded)),
    ("its file", lambda seen, _: doctor_history_file.file(seen.file)),
    ("web address", lambda seen, loaded: doctor_machine.port(seen.port, loaded)),
    ("the daemon's own page", lambda seen, loaded: doctor_daemon.daemon(seen.port, loaded, seen.t)),
    ("forecast", lambda seen, loaded: doctor_forecast.forecast(seen.forecast, loaded)),
    ("weekly report", lambda seen, loaded: doctor_report.report(seen.report, loaded)),
    ("alerts", lambda seen, loaded: doctor_alerting.alerting(seen.alerting, loaded)),
    ("certificates", lambda seen, _: doctor_certificates.certificates(seen.certificates, seen.t)),
)
