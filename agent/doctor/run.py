"""Checks of an installation: a check is a function that yields results, and a row of CHECKS.

Checks of targets take a `TargetPage`, whose target may come from a configuration or from an address.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from agent.config.config import Config
from agent.config.load import LoadedConfig
from agent.doctor.check_result import CheckResult, fail, ok
from agent.doctor.configuration import CORRECT, check_config, check_forecast, check_report, check_sizing_plan
from agent.doctor.endpoints import check_alerting, check_store
from agent.doctor.machine import check_data_dir, check_gpus, check_history, check_secrets
from agent.doctor.pods import PodsProbe, check_pods, read_pods
from agent.doctor.running_daemon import DaemonStatus, check_daemon, check_web, read_daemon
from agent.doctor.target_checks import check_clock, check_page, check_plan_match, check_signals
from agent.doctor.target_pages import NO_GPUS, TargetPage, read_targets
from agent.errors import ConfigError
from agent.gpu.collector import GpuRead
from agent.gpu.owners import assign_gpus
from agent.scrape.scrapers import list_targets
from agent.sources.scrape import make_gpu_reader
from agent.version import VERSION

Results = Iterable[CheckResult]

PROCESS = ok("process", f"Python {platform.python_version()}, sizewatch {VERSION}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Configuration and what several checks read. `now` is unix seconds."""

    loaded: LoadedConfig
    now: float
    pods: PodsProbe | None = None
    gpus: GpuRead = ((), ())
    targets: tuple[TargetPage, ...] = ()
    daemon: DaemonStatus | None = None


def read_installation(loaded: LoadedConfig, clock: Callable[[], float]) -> Installation:
    """Read pods, GPUs, targets and the running daemon. `clock` returns unix seconds."""
    pods, gpus = read_pods(loaded, clock), _read_gpus(loaded.config, clock)
    targets = list_targets((pods.loaded if pods is not None else loaded).config)
    assign = pods.source.assign_gpus if pods is not None and pods.source is not None else assign_gpus
    owned = assign(targets, {readout.gpu: readout for readout in gpus[0]})
    tiers = loaded.plan.tiers if loaded.plan is not None else {}
    pages = [
        replace(page, tier=tiers.get(page.target.tier), gpus=owned.get(page.target.key, NO_GPUS), readouts=gpus[0])
        for page in read_targets(targets, clock)
    ]
    daemon = read_daemon(loaded.config)
    return Installation(loaded=loaded, now=clock(), pods=pods, gpus=gpus, targets=tuple(pages), daemon=daemon)


def _read_gpus(config: Config, clock: Callable[[], float]) -> GpuRead:
    """Read every GPU of the configured source."""
    source = make_gpu_reader(config)
    if source is None:
        return (), ()
    with closing(source):
        return source.read(clock())


def for_each_target(check: Callable[[TargetPage], Results]) -> Callable[[Installation], Results]:
    """Return a check of an installation from a check of one target, which needs neither configuration nor plan."""
    return lambda seen: chain.from_iterable(map(check, seen.targets))


class Check(NamedTuple):
    """Check of an installation. `line` is the first word of its results."""

    line: str
    check: Callable[[Installation], Results]


CHECKS: tuple[Check, ...] = (
    Check("process", lambda _: (PROCESS,)),
    Check("config", lambda seen: check_config(seen.loaded)),
    Check("plan", lambda seen: check_sizing_plan(seen.loaded)),
    Check("secrets", lambda seen: check_secrets(seen.loaded.config)),
    Check("pods", lambda seen: check_pods(seen.pods, seen.loaded)),
    Check("target", for_each_target(check_page)),
    Check("engine", for_each_target(check_signals)),
    Check("clock", for_each_target(check_clock)),
    Check("plan", for_each_target(check_plan_match)),
    Check("store", lambda seen: check_store(seen.loaded, seen.now)),
    Check("gpus", lambda seen: check_gpus(seen.gpus, seen.loaded)),
    Check("data_dir", lambda seen: check_data_dir(seen.loaded.config)),
    Check("history", lambda seen: check_history(seen.loaded.config, seen.now)),
    Check("web", lambda seen: check_web(seen.daemon, seen.loaded.config.web)),
    Check("daemon", lambda seen: check_daemon(seen.daemon, seen.loaded)),
    Check("forecast", lambda seen: check_forecast(seen.loaded)),
    Check("report", lambda seen: check_report(seen.loaded)),
    Check("alerting", lambda seen: check_alerting(seen.loaded.config.alerting)),
)


def run_checks(loaded: LoadedConfig | ConfigError, clock: Callable[[], float] = time.time) -> tuple[CheckResult, ...]:
    """Return the results of all checks in order. `clock` returns unix seconds.

    Each MOST_THREADS targets take at most three times the slowest timeout.
    """
    if isinstance(loaded, ConfigError):
        return (PROCESS, *(fail("config", problem, CORRECT) for problem in loaded.problems))
    seen = read_installation(loaded, clock)
    return tuple(chain.from_iterable(row.check(seen) for row in CHECKS))
