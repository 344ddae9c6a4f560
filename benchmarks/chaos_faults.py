"""The faults: what is done, how it is undone, by which of its own metrics sizewatch shows it, and what may be said of it.

Owns the table FAULTS. Each row is tried on its own and together with one of another group. A new fault is a row; what an engine can
do wrong is a row of `chaos_engine.ACTS`.
"""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from chaos_engine import ACTS
from chaos_world import DaemonProcess, Metrics, World, total

Shows = Callable[[Metrics, Metrics], bool]
"""Of a daemon's page before the fault and now."""

TURNS_TO_RECOVER = 2

STANDALONE, BOTH = ("standalone",), ("standalone", "node")
DOWN = frozenset({"TargetDown", "TelemetryStale"})
TIER_DOWN = DOWN | {"TierDown"}
VICTIM = 'replica="r1"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One row. `shows` is judged on the daemons of `on`; `metric` names what it looks at. `deserves` are alerts that may be posted.

    `needs` says whether it can be done here. `lasts` is how many turns the fault stays at least. `stops` says that no page is
    answered while it lasts, so that it shows afterwards. `turns` after its end all must be as before. What is seen in a
    time that the clock shows twice is not booked twice: `moves_clock`.
    `may_log`: what is logged may be a traceback.
    """

    name: str
    group: str
    do: Callable[[World], None]
    undo: Callable[[World], None]
    shows: Shows
    metric: str
    on: tuple[str, ...] = BOTH
    deserves: frozenset[str] = frozenset()
    needs: Callable[[World], bool] = lambda world: True
    lasts: int = 3
    turns: int = TURNS_TO_RECOVER
    moves_clock: bool = False
    may_log: bool = False
    stops: bool = False


def _grew(name: str, *having: str) -> Shows:
    return lambda before, now: total(now, name, *having) > total(before, name, *having)


def _is(name: str, value: float, *having: str) -> Shows:
    return lambda before, now: any(
        v == value for k, v in now.items() if k.partition("{")[0] == name and all(text in k for text in having)
    )


# ---- engines ----


def _act(name: str) -> Fault:
    fails = _grew("sizewatch_scrape_failures_total", VICTIM)
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


SHOWN_OTHERWISE: Mapping[str, tuple[Shows, str]] = {
    "back_in_time": (_fewer_requests, "sizewatch_requests_finished_total (does not fall)"),
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


# ---- the disk and the file ----

UNWRITABLE = _is("sizewatch_history_up", 0.0)


def _fill(world: World) -> None:
    """Every block that is left; the log begins anew first, or what it has on the disk would do for a while."""
    with closing(sqlite3.connect(world.standalone.history)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    with suppress(OSError), (world.standalone.history.parent / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(b"\0" * 65536)


def _empty(world: World) -> None:
    (world.standalone.history.parent / "filler").unlink(missing_ok=True)


def _disk_is(what: str) -> Callable[[World], None]:
    def told(world: World) -> None:
        world.standalone.bad_disk.write_text(what)

    return told


def _limit(kind: int, amount: Callable[[DaemonProcess], int]) -> Callable[[World], None]:
    def limited(world: World) -> None:
        pid = world.standalone.pid
        resource.prlimit(pid, kind, (amount(world.standalone), resource.prlimit(pid, kind)[1]))

    return limited


def _taken(daemon: DaemonProcess) -> int:
    """Every page of memory that the process has asked for so far."""
    return int((Path("/proc") / str(daemon.pid) / "statm").read_text().split()[0]) * resource.getpagesize()


def _unlimited(daemon: DaemonProcess) -> int:
    return resource.RLIM_INFINITY


def _lock(world: World) -> None:
    held = sqlite3.connect(world.standalone.history, isolation_level=None)
    held.execute("BEGIN IMMEDIATE")
    HELD.append(held)


def _unlock(world: World) -> None:
    for held in HELD:
        held.close()
    HELD.clear()


HELD: list[sqlite3.Connection] = []


# ---- the process and its time ----


def _signal(number: int) -> Callable[[World], None]:
    def sent(world: World) -> None:
        for daemon in world.daemons:
            os.kill(daemon.pid, number)

    return sent


def _shift(seconds: int) -> Callable[[World], None]:
    def shifted(world: World) -> None:
        for daemon in world.daemons:
            fresh = daemon.folder / "shift.new"
            fresh.write_text(str(seconds))
            fresh.replace(daemon.shift)

    return shifted


BUSY: list[subprocess.Popen[bytes]] = []


def _starve(world: World) -> None:
    for daemon in world.daemons:
        os.setpriority(os.PRIO_PROCESS, daemon.pid, 19)
    BUSY.extend(subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 2))


def _feed(world: World) -> None:
    for busy in BUSY:
        busy.kill()
        busy.wait()
    BUSY.clear()
    for daemon in world.daemons:
        with suppress(PermissionError):  # Only root may take a priority back.
            os.setpriority(os.PRIO_PROCESS, daemon.pid, 0)


def _turns_go_on(before: Metrics, now: Metrics) -> bool:
    return total(now, "sizewatch_turns_total") > total(before, "sizewatch_turns_total") + 2


def _nothing(before: Metrics, now: Metrics) -> bool:
    return True


# ---- others ----


def _manager(mode: str) -> Callable[[World], None]:
    def set_to(world: World) -> None:
        world.manager.mode = mode
        world.manager.released.set()
        world.manager.released.clear()

    return set_to


def _spoil(world: World) -> None:
    for daemon in world.daemons:
        daemon.config.rename(daemon.config.with_suffix(".good"))
        daemon.config.write_bytes(b"plan: [\x00\xff")
        os.kill(daemon.pid, signal.SIGHUP)


def _mend(world: World) -> None:
    for daemon in world.daemons:
        daemon.config.with_suffix(".good").rename(daemon.config)
        os.kill(daemon.pid, signal.SIGHUP)


def _has_disk(world: World) -> bool:
    return world.disk


def _has_shim(world: World) -> bool:
    return world.shim is not None


def _file(
    name: str, do: Callable[[World], None], undo: Callable[[World], None], needs: Callable[[World], bool]
) -> Fault:
    metric = "sizewatch_history_up"
    return Fault(name=name, group="file", do=do, undo=undo, shows=UNWRITABLE, metric=metric, on=STANDALONE, needs=needs)


def _process(
    name: str, do: Callable[[World], None], undo: Callable[[World], None], shows: Shows, metric: str, **more: bool
) -> Fault:
    return Fault(name=name, group="process", do=do, undo=undo, shows=shows, metric=metric, **more)


FILE = resource.RLIMIT_FSIZE
FAILURES = "sizewatch_scrape_failures_total"
LAST = "sizewatch_last_turn_timestamp_seconds"
MANAGER_UP = "sizewatch_alertmanager_up"

FAULTS: tuple[Fault, ...] = (
    *(_act(name) for name in ACTS),
    Fault(name="dies", group="engine", do=_one_dies, undo=_well, shows=_grew(FAILURES), metric=FAILURES, deserves=DOWN),
    Fault(name="all_die", group="engine", do=_all_die, undo=_well, shows=_grew(FAILURES), metric=FAILURES, deserves=TIER_DOWN),
    _gpu("gpu_lost", _0_gone=1),
    _gpu("gpu_hangs", **{"_0_hang.nvmlDeviceGetTotalEnergyConsumption": 1}),
    _gpu("gpu_call_fails", **{"_0_error.nvmlDeviceGetMemoryInfo_v2": 999}),
    # NVML is opened again after ten seconds, then later and later.
    _gpu("driver_away", turns=10_000, **{"_0_error.nvmlDeviceGetTemperatureV": 9, "error.nvmlInitWithFlags": 9}),
    _file("disk_full", _fill, _empty, _has_disk),
    _file("read_only", _disk_is("ro"), _disk_is(""), _has_shim),
    _file("disk_errors", _disk_is("io"), _disk_is(""), _has_shim),
    _process("slow_disk", _disk_is("slow"), _disk_is(""), _turns_go_on, "sizewatch_turn_duration_seconds"),
    _file("file_may_not_grow", _limit(FILE, lambda daemon: 4096), _limit(FILE, _unlimited), lambda world: True),
    _file("locked", _lock, _unlock, lambda world: True),
    _process("suspended", _signal(signal.SIGSTOP), _signal(signal.SIGCONT), _turns_go_on, "sizewatch_turns_total", stops=True),
    _process("clock_an_hour_ahead", _shift(3600), _shift(0), _turns_go_on, LAST, moves_clock=True),
    _process("clock_an_hour_back", _shift(-3600), _shift(0), _turns_go_on, LAST, moves_clock=True),
    _process("clock_a_minute_back", _shift(-60), _shift(0), _turns_go_on, LAST, moves_clock=True),
    Fault(
        name="no_more_memory", group="process", do=_limit(resource.RLIMIT_AS, _taken), undo=_limit(resource.RLIMIT_AS, _unlimited),
        shows=_turns_go_on, metric="sizewatch_turns_total", on=STANDALONE, may_log=True, lasts=10,
    ),
    _process("starved", _starve, _feed, _turns_go_on, "sizewatch_turn_overruns_total"),
    Fault(
        name="alertmanager_500", group="manager", do=_manager("500"), undo=_manager("well"),
        shows=_is(MANAGER_UP, 0.0), metric=MANAGER_UP, on=STANDALONE,
    ),
    Fault(
        name="alertmanager_hangs", group="manager", do=_manager("hangs"), undo=_manager("well"),
        shows=_is(MANAGER_UP, 0.0), metric=MANAGER_UP, on=STANDALONE,
    ),
    Fault(
        name="bad_configuration", group="config", do=_spoil, undo=_mend,
        shows=_is("sizewatch_config_last_reload_successful", 0.0), metric="sizewatch_config_last_reload_successful",
    ),
)  # fmt: skip
