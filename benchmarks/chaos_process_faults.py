"""Faults of the disk, the history's file, the process and its clock.

Owns the rows and how each is done: a full small disk, limits and signals of the system, and what `chaos_shim.c` makes of a file.
"""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from chaos_fault import EVERY, STANDALONE, Act, Fault, Shows, is_at, turns_go_on
from chaos_world import DaemonProcess, World

UNWRITABLE = is_at("sizewatch_history_up", 0.0)


def _fill(world: World) -> None:
    """Every block that is left; the log begins anew first, or what it has on the disk would do for a while."""
    with closing(sqlite3.connect(world.standalone.history)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    with suppress(OSError), (world.standalone.history.parent / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(b"\0" * 65536)


def _empty(world: World) -> None:
    (world.standalone.history.parent / "filler").unlink(missing_ok=True)


def _disk_is(what: str) -> Act:
    def told(world: World) -> None:
        world.standalone.bad_disk.write_text(what)

    return told


def _limit(kind: int, amount: Callable[[DaemonProcess], int]) -> Act:
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


def _signal(number: int) -> Act:
    def sent(world: World) -> None:
        for daemon in world.daemons:
            os.kill(daemon.pid, number)

    return sent


def _shift(seconds: int) -> Act:
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


def _has_disk(world: World) -> bool:
    return world.disk


def _has_shim(world: World) -> bool:
    return world.shim is not None


def _file(name: str, do: Act, undo: Act, needs: Callable[[World], bool]) -> Fault:
    metric = "sizewatch_history_up"
    return Fault(name=name, group="file", do=do, undo=undo, shows=UNWRITABLE, metric=metric, on=STANDALONE, needs=needs)


def _process(
    name: str, do: Act, undo: Act, shows: Shows, metric: str, moves_clock: bool = False, stops: bool = False
) -> Fault:
    return Fault(
        name=name,
        group="process",
        do=do,
        undo=undo,
        shows=shows,
        metric=metric,
        on=EVERY,
        moves_clock=moves_clock,
        stops=stops,
    )


FILE = resource.RLIMIT_FSIZE
LAST = "sizewatch_last_cycle_timestamp_seconds"
YEAR = 365 * 86_400

PROCESS_FAULTS: tuple[Fault, ...] = (
    _file("disk_full", _fill, _empty, _has_disk),
    _file("read_only", _disk_is("ro"), _disk_is(""), _has_shim),
    _file("disk_errors", _disk_is("io"), _disk_is(""), _has_shim),
    _process("slow_disk", _disk_is("slow"), _disk_is(""), turns_go_on, "sizewatch_cycle_duration_seconds"),
    _file("file_may_not_grow", _limit(FILE, lambda daemon: 4096), _limit(FILE, _unlimited), lambda world: True),
    _file("locked", _lock, _unlock, lambda world: True),
    _process("suspended", _signal(signal.SIGSTOP), _signal(signal.SIGCONT), turns_go_on, "sizewatch_cycles_total", stops=True),
    replace(
        _process("clock_an_hour_ahead", _shift(3600), _shift(0), turns_go_on, LAST, moves_clock=True), again_seconds=3600.0
    ),
    replace(
        _process("clock_two_minutes_ahead", _shift(120), _shift(0), turns_go_on, LAST, moves_clock=True), again_seconds=120.0
    ),
    # Nobody sees these times again, so nothing is seen twice.
    _process("clock_a_year_ahead", _shift(YEAR), _shift(0), turns_go_on, LAST, moves_clock=True),
    _process("clock_ten_years_ahead", _shift(10 * YEAR), _shift(0), turns_go_on, LAST, moves_clock=True),
    _process("clock_an_hour_back", _shift(-3600), _shift(0), turns_go_on, LAST, moves_clock=True),
    _process("clock_a_minute_back", _shift(-60), _shift(0), turns_go_on, LAST, moves_clock=True),
    Fault(
        name="no_more_memory", group="process", do=_limit(resource.RLIMIT_AS, _taken), undo=_limit(resource.RLIMIT_AS, _unlimited),
        shows=turns_go_on, metric="sizewatch_cycles_total", on=STANDALONE, may_log=True, lasts=10,
    ),
    _process("starved", _starve, _feed, turns_go_on, "sizewatch_cycle_overruns_total"),
)  # fmt: skip
