"""The faults, one table: what is done, how it is undone, and by which of its own metrics sizewatch shows it.

A new fault is a row of FAULTS.
"""

from __future__ import annotations

import math
import resource
import signal
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from chaos_servers import ENGINE_ACTS, SLOW_SECONDS, STORE_ACTS, Address, always, hang
from chaos_servers import Act as ServerAct
from chaos_world import FLEET_CYCLE_SECONDS, SPEED, World
from common import Metrics, total

from agent.fleet.stored_pages import GONE_SECONDS

Shows = Callable[[Metrics, Metrics], bool]
"""Of a daemon's page before the fault and now."""

Act = Callable[[World], None]

STANDALONE, BOTH, FLEET = ("standalone",), ("standalone", "node"), ("fleet",)
POSTING = STANDALONE + FLEET
EVERY = BOTH + FLEET
DOWN = frozenset({"TargetDown", "TelemetryStale"})
TIER_DOWN = DOWN | {"TierDown"}
VICTIM = 'replica="r1"'
CYCLES_TO_RECOVER = 2
RESEND_CYCLES = CYCLES_TO_RECOVER + 6
"""What was posted in vain is posted again after at most a minute: six cycles of 10 s."""

LONGER_THAN_GONE = math.ceil(GONE_SECONDS / FLEET_CYCLE_SECONDS) + 3
"""Cycles after which replicas without any data are taken to be gone."""

SCRAPE_FAILURES, CYCLES = "sizewatch_scrape_failures_total", "sizewatch_cycles_total"
HISTORY_UP, MANAGER_UP = "sizewatch_history_up", "sizewatch_alertmanager_up"
RELOADED = "sizewatch_config_last_reload_successful"
IN_SIGHT, STORE_FAILURES = "sizewatch_tier_in_sight", "sizewatch_store_failures_total"
QUERIES, QUERY_SECONDS = "sizewatch_store_queries_total", "sizewatch_store_query_seconds_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One row. `shows` is evaluated on the daemons of `on`; `metric` names what it reads. `deserves` are alerts that may be posted.

    It lasts at least `lasts` cycles; `cycles` after its end all must be as
    before. `stops`: no page is answered while it lasts, so that it shows afterwards. `stays`: it shows as long as it lasts.
    """

    name: str
    do: Act
    undo: Act = World.behave
    shows: Shows
    metric: str
    on: tuple[str, ...] = BOTH
    deserves: frozenset[str] = frozenset()
    lasts: int = 3
    cycles: int = CYCLES_TO_RECOVER
    stops: bool = False
    stays: bool = False


def grew(name: str, *texts: str) -> Shows:
    return lambda before, now: total(now, name, *texts) > total(before, name, *texts)


def is_at(name: str, value: float) -> Shows:
    return lambda before, now: any(now[key] == value for key in now if key.partition("{")[0] == name)


def cycles_go_on(before: Metrics, now: Metrics) -> bool:
    return total(now, CYCLES) > total(before, CYCLES) + 2


def answer_by(find: Callable[[World], Iterable[Address]], act: ServerAct) -> Act:
    """Return what lets these servers answer by an act."""

    def do(world: World) -> None:
        for address in find(world):
            address.act = act

    return do


# ---- engines and Alertmanagers ----


def engines_die(world: World) -> None:
    for engine in world.engines:
        engine.die()


def engine_fault(name: str, do: Act, deserves: frozenset[str] = DOWN) -> Fault:
    return Fault(name=name, do=do, shows=grew(SCRAPE_FAILURES, VICTIM), metric=SCRAPE_FAILURES, deserves=deserves)


def manager_fault(name: str, act: ServerAct) -> Fault:
    do, shows = answer_by(lambda world: world.managers, act), is_at(MANAGER_UP, 0.0)
    return Fault(name=name, do=do, shows=shows, metric=MANAGER_UP, on=POSTING, cycles=RESEND_CYCLES)


# ---- the store ----


def sees_nothing(before: Metrics, now: Metrics) -> bool:
    return total(now, IN_SIGHT) == 0.0


def fails_and_sees_nothing(before: Metrics, now: Metrics) -> bool:
    return grew(STORE_FAILURES)(before, now) and sees_nothing(before, now)


def waits(before: Metrics, now: Metrics) -> bool:
    """Every response came late, by the daemon's own clock, which is faster."""
    queries = total(now, QUERIES) - total(before, QUERIES)
    seconds = total(now, QUERY_SECONDS) - total(before, QUERY_SECONDS)
    return queries > 0 and seconds >= SLOW_SECONDS * SPEED * queries / 2


STORE_SHOWS: Mapping[str, tuple[Shows, str]] = {
    "slow": (waits, QUERY_SECONDS),
    "flaps": (grew(STORE_FAILURES), STORE_FAILURES),
    "nothing_found": (sees_nothing, IN_SIGHT),
    "an_hour_ago": (sees_nothing, IN_SIGHT),
}


def store_fault(name: str, do: Act, undo: Act = World.behave) -> Fault:
    return Fault(name=name, do=do, undo=undo, shows=fails_and_sees_nothing, metric=IN_SIGHT, on=FLEET)


def store_act(name: str) -> Fault:
    shows, metric = STORE_SHOWS.get(name, (fails_and_sees_nothing, IN_SIGHT))
    fault = store_fault(f"store_{name}", answer_by(lambda world: [world.door], STORE_ACTS[name]))
    lasts = LONGER_THAN_GONE if shows is sees_nothing else fault.lasts
    return replace(fault, shows=shows, metric=metric, stays=name != "flaps", lasts=lasts)


# ---- files, processes, configuration ----

LOCKS: list[sqlite3.Connection] = []


def limit_files(bytes_at_most: int) -> Act:
    def limit(world: World) -> None:
        pid, kind = world.standalone.pid, resource.RLIMIT_FSIZE
        resource.prlimit(pid, kind, (bytes_at_most, resource.prlimit(pid, kind)[1]))

    return limit


def lock_history(world: World) -> None:
    connection = sqlite3.connect(world.standalone.history, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    LOCKS.append(connection)


def unlock_history(world: World) -> None:
    while LOCKS:
        LOCKS.pop().close()


def send_all(number: int) -> Act:
    def send(world: World) -> None:
        for daemon in world.daemons:
            daemon.send(number)

    return send


def spoil_configuration(world: World) -> None:
    for daemon in world.daemons:
        daemon.config.rename(daemon.config.with_suffix(".good"))
        daemon.config.write_bytes(b"plan: [\x00\xff")
        daemon.send(signal.SIGHUP)


def mend_configuration(world: World) -> None:
    for daemon in world.daemons:
        daemon.config.with_suffix(".good").rename(daemon.config)
        daemon.send(signal.SIGHUP)


def file_fault(name: str, do: Act, undo: Act) -> Fault:
    return Fault(name=name, do=do, undo=undo, shows=is_at(HISTORY_UP, 0.0), metric=HISTORY_UP, on=STANDALONE)


FAULTS: tuple[Fault, ...] = (
    *(engine_fault(name, answer_by(lambda world: [world.engines[1]], act)) for name, act in ENGINE_ACTS.items()),
    engine_fault("dies", lambda world: world.engines[1].die()),
    engine_fault("all_die", engines_die, TIER_DOWN),
    file_fault("file_may_not_grow", limit_files(4096), limit_files(resource.RLIM_INFINITY)),
    file_fault("locked", lock_history, unlock_history),
    Fault(
        name="suspended", do=send_all(signal.SIGSTOP), undo=send_all(signal.SIGCONT),
        shows=cycles_go_on, metric=CYCLES, on=EVERY, stops=True,
    ),
    manager_fault("alertmanager_500", always(b"boom\n", 500)),
    manager_fault("alertmanager_hangs", hang),
    Fault(
        name="bad_configuration", do=spoil_configuration, undo=mend_configuration,
        shows=is_at(RELOADED, 0.0), metric=RELOADED, on=EVERY,
    ),
    *(store_act(name) for name in STORE_ACTS),
    store_fault("store_away", lambda world: world.door.die()),
    store_fault("store_killed", lambda world: world.store.kill(), lambda world: world.store.start()),
    store_fault(
        "store_suspended", lambda world: world.store.send(signal.SIGSTOP), lambda world: world.store.send(signal.SIGCONT)
    ),
)  # fmt: skip
