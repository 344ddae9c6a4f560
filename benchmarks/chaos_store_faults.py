"""Faults of the store that role fleet reads, and of what writes into it.

Owns the rows. What a store can answer is a row of `chaos_store.STORE_ACTS`, what a collector can do one of
`chaos_collector.MODES`.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping
from dataclasses import replace

from chaos_fault import DOWN, FLEET, VICTIM, Act, Fault, Shows, grew, is_at, turns_go_on
from chaos_store import SLOW_SECONDS, STORE_ACTS
from chaos_world import FLEET_TURN_SECONDS, SPEED, Metrics, World, total

from agent.fleet.stored_pages import GONE_SECONDS

IN_SIGHT, FAILURES, SECONDS = (
    "sizewatch_tier_in_sight",
    "sizewatch_store_failures_total",
    "sizewatch_store_query_seconds_total",
)
TARGET_UP, QUERIES = "sizewatch_target_up", "sizewatch_store_queries_total"

LONGER_THAN_GONE = math.ceil(GONE_SECONDS / FLEET_TURN_SECONDS) + 3
"""Turns after which replicas of which nothing is told are taken to be no more."""


def has_fleet(world: World) -> bool:
    return world.fleet is not None


def blind(before: Metrics, now: Metrics) -> bool:
    """No tier is seen, and why is counted."""
    return grew(FAILURES)(before, now) and total(now, IN_SIGHT) == 0.0


def _waits(before: Metrics, now: Metrics) -> bool:
    """Every answer came late, by the daemon's own clock, which is faster."""
    queries = total(now, QUERIES) - total(before, QUERIES)
    return queries > 0 and total(now, SECONDS) - total(before, SECONDS) >= SLOW_SECONDS * SPEED * queries / 2


def _unseen(before: Metrics, now: Metrics) -> bool:
    return total(now, IN_SIGHT) == 0.0


SHOWN_OTHERWISE: Mapping[str, tuple[Shows, str]] = {
    "slow": (_waits, SECONDS),
    "flaps": (grew(FAILURES), FAILURES),
    "nothing_found": (_unseen, IN_SIGHT),
    "an_hour_ago": (_unseen, IN_SIGHT),
}


def _answers(name: str) -> Fault:
    def do(world: World) -> None:
        world.door.act = STORE_ACTS[name]

    shows, metric = SHOWN_OTHERWISE.get(name, (blind, IN_SIGHT))
    found = _fault(f"store_{name}", do, door_behaves, shows, metric)
    return replace(found, stays=name != "flaps", lasts=LONGER_THAN_GONE if shows is _unseen else found.lasts)


def _fault(
    name: str, do: Act, undo: Act, shows: Shows, metric: str = IN_SIGHT, deserves: frozenset[str] = frozenset()
) -> Fault:
    return Fault(
        name=name, group="store", do=do, undo=undo, shows=shows, metric=metric, on=FLEET, needs=has_fleet, deserves=deserves
    )  # fmt: skip


def door_dies(world: World) -> None:
    world.door.die()


def door_behaves(world: World) -> None:
    world.door.behave()


def _killed(world: World) -> None:
    world.store.kill()


def _started(world: World) -> None:
    world.store.start()


def _sent(number: int) -> Act:
    return lambda world: world.store.send(number)


def _collects(mode: str) -> Act:
    def do(world: World) -> None:
        world.collector.mode = mode

    return do


def _late(world: World) -> None:
    world.collector.late = True


def _swapped(world: World) -> None:
    world.collector.swapped = True


def _collector_behaves(world: World) -> None:
    world.collector.behave()


STORE_FAULTS: tuple[Fault, ...] = (
    *(_answers(name) for name in STORE_ACTS),
    _fault("store_away", door_dies, door_behaves, blind),
    _fault("store_killed", _killed, _started, blind),
    _fault("store_suspended", _sent(signal.SIGSTOP), _sent(signal.SIGCONT), blind),
    replace(_fault("samples_missing", _collects("all_missing"), _collector_behaves, _unseen), stays=True, lasts=LONGER_THAN_GONE),
    _fault("samples_of_one_missing", _collects("one_missing"), _collector_behaves, is_at(TARGET_UP, 0.0, VICTIM), TARGET_UP, DOWN),
    _fault("samples_late", _late, _collector_behaves, _unseen),
    _fault("samples_swapped", _swapped, _collector_behaves, turns_go_on, "sizewatch_cycles_total"),
)  # fmt: skip
