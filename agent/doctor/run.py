"""Checks of an installation: a check is a function that yields results, and a row of CHECKS."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple

from agent.config.load import LoadedConfig
from agent.doctor import configuration, endpoints, targets
from agent.doctor.check_result import CheckResult, fail, ok
from agent.doctor.targets import NO_GPUS, TargetPage
from agent.errors import ConfigError
from agent.gpu.collector import GpuCollector, GpuRead
from agent.gpu.owners import assign_gpus
from agent.scrape.scrapers import list_targets
from agent.sources.scrape import make_gpu_reader
from agent.version import VERSION

Results = Iterable[CheckResult]

PROCESS = replace(ok(f"Python {platform.python_version()}, sizewatch {VERSION}"), check="process")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Configuration and what several checks read. `now` is unix seconds."""

    loaded: LoadedConfig
    now: float
    pods: configuration.PodsProbe
    gpus: GpuRead
    targets: tuple[TargetPage, ...]
    daemon: endpoints.DaemonStatus | None


def read_installation(loaded: LoadedConfig, clock: Callable[[], float]) -> Installation:
    """Read pods, GPUs, targets and the running daemon. `clock` returns unix seconds."""
    pods = configuration.read_pods(loaded, clock)
    listed = list_targets(pods.loaded.config)
    with closing(GpuCollector(make_gpu_reader(loaded.config))) as collector:
        problems = collector.read_gpus(clock()).problems
        if loaded.config.gpu_exporter is not None and collector.latest:
            # Another connection to a service that balances reaches another machine.
            collector.close()
            problems = collector.read_gpus(clock()).problems
    readouts = tuple(collector.latest.values())
    assign = assign_gpus if pods.source is None else pods.source.assign_gpus
    owned = assign(listed, collector.latest)
    tiers = loaded.plan.tiers if loaded.plan is not None else {}
    pages = [
        replace(page, tier=tiers.get(page.target.tier), gpus=owned.get(page.target.key, NO_GPUS), readouts=readouts)
        for page in targets.read_targets(listed, clock)
    ]
    daemon = endpoints.read_daemon(loaded.config)
    gpus = readouts, problems
    return Installation(loaded=loaded, now=clock(), pods=pods, gpus=gpus, targets=tuple(pages), daemon=daemon)


class Check(NamedTuple):
    """Check of an installation. `line` is the first word of its results."""

    line: str
    check: Callable[[Installation], Results]


def for_each_target(line: str, check: Callable[[TargetPage], Results]) -> Check:
    """Return the row of a check of one target, which needs neither configuration nor plan."""

    def check_targets(seen: Installation) -> Results:
        return (replace(result, check=f"{line} {page.name}") for page in seen.targets for result in check(page))

    return Check(line, check_targets)


CHECKS: tuple[Check, ...] = (
    Check("process", lambda _: (PROCESS,)),
    Check("config", lambda seen: configuration.check_config(seen.loaded)),
    Check("plan", lambda seen: configuration.check_sizing_plan(seen.loaded)),
    Check("secrets", lambda seen: configuration.check_secrets(seen.loaded.config)),
    Check("pods", lambda seen: configuration.check_pods(seen.pods, seen.loaded)),
    for_each_target("target", targets.check_page),
    for_each_target("engine", targets.check_signals),
    for_each_target("clock", targets.check_clock),
    for_each_target("plan", targets.check_plan_match),
    Check("store", lambda seen: endpoints.check_store(seen.loaded, seen.now)),
    Check("gpus", lambda seen: configuration.check_gpus(seen.gpus, seen.loaded)),
    Check("data_dir", lambda seen: configuration.check_data_dir(seen.loaded.config)),
    Check("history", lambda seen: configuration.check_history(seen.loaded.config, seen.now)),
    Check("web", lambda seen: endpoints.check_web(seen.daemon, seen.loaded.config.web)),
    Check("daemon", lambda seen: endpoints.check_daemon(seen.daemon, seen.loaded)),
    Check("forecast", lambda seen: configuration.check_forecast(seen.loaded)),
    Check("report", lambda seen: configuration.check_report(seen.loaded)),
    Check("alerting", lambda seen: endpoints.check_alerting(seen.loaded.config.alerting)),
)


def run_checks(loaded: LoadedConfig | ConfigError, clock: Callable[[], float] = time.time) -> tuple[CheckResult, ...]:
    """Return the results of all checks in order. `clock` returns unix seconds.

    Each MOST_THREADS targets take at most three times the slowest timeout.
    """
    if isinstance(loaded, ConfigError):
        return PROCESS, *(replace(fail(text, configuration.CORRECT), check="config") for text in loaded.problems)
    seen = read_installation(loaded, clock)
    return tuple(replace(result, check=result.check or row.line) for row in CHECKS for result in row.check(seen))
