"""The faults: what is done, how it is undone, by which of its own metrics sizewatch shows it, and what may be said of it.

Owns the table FAULTS. Each row is tried on its own and together with one of another group. A new fault is a row; what an engine can
do wrong is a row of `chaos_engine.ACTS`; those of files and
processes are `chaos_process_faults`', of the store `chaos_store_faults`', those that last an hour `chaos_hours`'.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

import chaos_address as address
from chaos_address import Act
from chaos_engine import ACTS
from chaos_fault import (
    DOWN,
    EVERY,
    POSTING,
    RESEND_TURNS,
    TIER_DOWN,
    TURNS_TO_RECOVER,
    VICTIM,
    Fault,
    Shows,
    grew,
    is_at,
)
from chaos_hours import HOURS
from chaos_process_faults import PROCESS_FAULTS
from chaos_store_faults import STORE_FAULTS
from chaos_world import Metrics, World, total

# ---- engines ----


def _act(name: str) -> Fault:
    fails = grew("sizewatch_scrape_failures_total", VICTIM)
    shows, metric = SHOWN_OTHERWISE.get(name, (fails, "sizewatch_scrape_failures_total"))

    def do(world: World) -> None:
        world.engines[1].act = ACTS[name]

    return Fault(name=name, group="engine", do=do, undo=_well, shows=shows, metric=metric, deserves=DOWN)


def _well(world: World) -> None:
    for engine in world.engines:
        engine.behave()


def _newer_version(before: Metrics, now: Metrics) -> bool:
    def told(metrics: Metrics) -> set[str]:
        return {name for name in metrics if name.startswith("sizewatch_replica_info") and VICTIM in name}

    return bool(told(now)) and told(now) != told(before)


def _fewer_requests(before: Metrics, now: Metrics) -> bool:
    """A restart is no failure: it shows as windows that begin anew, and the sums of the agent do not fall."""
    name = "sizewatch_requests_finished_total"
    return total(now, name, VICTIM) >= total(before, name, VICTIM)


def _no_leap(before: Metrics, now: Metrics) -> bool:
    """What cannot be is a gap: the sums of the agent neither leap nor fall."""
    name = "sizewatch_requests_finished_total"
    return total(before, name, VICTIM) <= total(now, name, VICTIM) < total(before, name, VICTIM) + 1e6


SHOWN_OTHERWISE: Mapping[str, tuple[Shows, str]] = {
    "back_in_time": (_fewer_requests, "sizewatch_requests_finished_total (does not fall)"),
    "impossible_numbers": (_no_leap, "sizewatch_requests_finished_total (does not leap)"),
    "other_version": (_newer_version, "sizewatch_replica_info"),
    "other_engine": (_newer_version, "sizewatch_replica_info"),
}


def _one_dies(world: World) -> None:
    world.engines[1].die()


def _all_die(world: World) -> None:
    for engine in world.engines:
        engine.die()


# ---- GPUs ----


def _gpu(name: str, turns: int = TURNS_TO_RECOVER, **changes: object) -> Fault:
    told = {key.replace("_0_", "0."): value for key, value in changes.items()}

    def do(world: World) -> None:
        world.gpus.set(told)

    def undo(world: World) -> None:
        world.gpus.set(dict.fromkeys(told))

    shows = lambda before, now: total(now, "sizewatch_gpu_problems") > 0  # noqa: E731
    metric = "sizewatch_gpu_problems"
    needs = lambda world: world.gpus.there  # noqa: E731
    return Fault(name=name, group="gpu", do=do, undo=undo, shows=shows, metric=metric, needs=needs, turns=turns)


# ---- others ----


def _managers_are(act: Act) -> Callable[[World], None]:
    def told(world: World) -> None:
        for manager in world.managers:
            manager.act = act

    return told


def _managers_well(world: World) -> None:
    for manager in world.managers:
        manager.behave()


def _spoil(world: World) -> None:
    for daemon in world.daemons:
        daemon.config.rename(daemon.config.with_suffix(".good"))
        daemon.config.write_bytes(b"plan: [\x00\xff")
        os.kill(daemon.pid, signal.SIGHUP)


def _mend(world: World) -> None:
    for daemon in world.daemons:
        daemon.config.with_suffix(".good").rename(daemon.config)
        os.kill(daemon.pid, signal.SIGHUP)


FAILURES = "sizewatch_scrape_failures_total"
MANAGER_UP = "sizewatch_alertmanager_up"

FAULTS: tuple[Fault, ...] = (
    *(_act(name) for name in ACTS),
    Fault(name="dies", group="engine", do=_one_dies, undo=_well, shows=grew(FAILURES), metric=FAILURES, deserves=DOWN),
    Fault(name="all_die", group="engine", do=_all_die, undo=_well, shows=grew(FAILURES), metric=FAILURES, deserves=TIER_DOWN),
    _gpu("gpu_lost", _0_gone=1),
    _gpu("gpu_hangs", **{"_0_hang.nvmlDeviceGetTotalEnergyConsumption": 1}),
    _gpu("gpu_call_fails", **{"_0_error.nvmlDeviceGetMemoryInfo_v2": 999}),
    # NVML is opened again after ten seconds, then later and later.
    _gpu("driver_away", turns=10_000, **{"_0_error.nvmlDeviceGetTemperatureV": 9, "error.nvmlInitWithFlags": 9}),
    *PROCESS_FAULTS,
    Fault(
        name="alertmanager_500", group="manager", do=_managers_are(address.says(500)), undo=_managers_well,
        shows=is_at(MANAGER_UP, 0.0), metric=MANAGER_UP, on=POSTING, turns=RESEND_TURNS,
    ),
    Fault(
        name="alertmanager_hangs", group="manager", do=_managers_are(address.hangs), undo=_managers_well,
        shows=is_at(MANAGER_UP, 0.0), metric=MANAGER_UP, on=POSTING, turns=RESEND_TURNS,
    ),
    Fault(
        name="bad_configuration", group="config", do=_spoil, undo=_mend,
        shows=is_at("sizewatch_config_last_reload_successful", 0.0), metric="sizewatch_config_last_reload_successful", on=EVERY,
    ),
    *STORE_FAULTS,
    *HOURS,
)  # fmt: skip
