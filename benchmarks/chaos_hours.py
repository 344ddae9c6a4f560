"""Faults that last an hour of the daemons' clock, and what is promised of what happens meanwhile.

Owns the two rows. After the store's hour the minutes that were missed are read and booked, to the last request; after the
Alertmanager's an alert that began meanwhile and lasts is posted with its own time, and one that is over is not posted as if
it fired. Seconds are of the sped clock where nothing else is said.
"""

from __future__ import annotations

import math
import time

from chaos_fault import FLEET, POSTING, RESEND_TURNS, TIER_DOWN, Fault, is_at
from chaos_store_faults import IN_SIGHT, blind, door_behaves, door_dies, has_fleet
from chaos_world import AGENTS_TIER, FLEET_TIERS, FLEET_TURN_SECONDS, TIER, DaemonProcess, World, wait_for

from agent.history.store import HistoryStore

HOUR_SECONDS = 3600.0
MINUTE_SECONDS = 60.0
RESEND_SECONDS = 60.0
"""`alerting.resend`; what was posted in vain is tried again after at most so long."""

NOT_ASKED_SECONDS = 180.0
"""Of an hour that the store was away its first minutes may be more than an hour ago when it is asked again: that is a gap."""

BOOKED_SECONDS = 30.0
"""Of the machine's time, until the minute after the hour is booked."""

SEEN_SECONDS = 120.0
"""Three scrapes of an engine that is dead, a turn, and what role fleet is behind."""

COVERED_SHARE = 0.9
"""Of the hour of all replicas; the collector of a busy machine misses scrapes."""

SHARE = 0.02
"""By which sums may differ: a scrape at both ends of an hour."""

COUNTED = {
    TIER: 'vllm:request_success_total{job="engines"}',
    AGENTS_TIER: f'sizewatch_requests_finished_total{{job="sizewatch",tier="{AGENTS_TIER}"}}',
}
"""What the store has of each tier's requests."""

TIER_IS_DOWN = is_at("sizewatch_verdict", 2.0, 'rule="TierDown"')


def _sleep_until(world: World, t: float) -> None:
    time.sleep(max(0.0, t - world.clock()) / world.clock.speed)


class StoresHour:
    """Nobody answers at the store's address for an hour; the store itself goes on taking samples."""

    def __init__(self) -> None:
        self._gone = self._back = 0.0

    def do(self, world: World) -> None:
        self._gone = world.clock()
        door_dies(world)

    def hour(self, world: World) -> None:
        _sleep_until(world, self._gone + HOUR_SECONDS)

    def undo(self, world: World) -> None:
        self._back = world.clock()
        door_behaves(world)

    def later(self, world: World) -> list[str]:
        """What differs between the minutes that the fleet booked of the hour and what the store holds of it."""
        assert world.fleet is not None
        last = self._back // MINUTE_SECONDS * MINUTE_SECONDS
        # A turn that reads an hour takes longer than one that reads a minute.
        wait_for(lambda: _booked(world.fleet, last + MINUTE_SECONDS), BOOKED_SECONDS)
        # With another fault it lasts longer than the hour.
        since = max(self._gone, self._back - HOUR_SECONDS)
        first = (since + NOT_ASKED_SECONDS) // MINUTE_SECONDS * MINUTE_SECONDS
        return [text for tier in FLEET_TIERS for text in self._differs(world, world.fleet, tier, first, last)]

    def _differs(self, world: World, fleet: DaemonProcess, tier: str, first: float, last: float) -> list[str]:
        with HistoryStore.open_reader(fleet.history) as reader:
            binned = reader.minutes(tier, first, last)
        covered = sum(one.window.covered_seconds for one in binned) / (len(world.engines) * (last - first))
        booked = sum(one.window.counters.get("requests_finished", 0.0) for one in binned)
        least, most = world.store.increase(COUNTED[tier], first, last)
        wrong = []
        if covered < COVERED_SHARE:
            wrong.append(f"{tier}: {covered:.0%} of the hour was booked")
        if not 0.0 < (1.0 - SHARE) * least <= booked <= (1.0 + SHARE) * most:
            wrong.append(
                f"{tier}: {booked:.0f} requests of the hour were booked, the store has {least:.0f} to {most:.0f}"
            )
        return wrong


def _booked(fleet: DaemonProcess | None, minute: float) -> bool:
    assert fleet is not None
    with HistoryStore.open_reader(fleet.history) as reader:
        return all(reader.minutes(tier, minute, math.inf) for tier in FLEET_TIERS)


class AlertmanagersHour:
    """Nobody answers at its address. All engines die for some minutes, one of them later for good."""

    def __init__(self) -> None:
        self._gone = self._back = self._died = 0.0
        self._wrong: list[str] = []

    def do(self, world: World) -> None:
        self._gone = world.clock()
        for manager in world.managers:
            manager.die()

    def hour(self, world: World) -> None:
        self._wrong = []
        _sleep_until(world, self._gone + 300.0)
        for engine in world.engines:
            engine.die()
        for daemon in _posting(world):
            if not wait_for(lambda d=daemon: TIER_IS_DOWN({}, d.metrics()), 15.0):  # type: ignore[misc]
                self._wrong.append(f"{daemon.role} did not see its tier die")
        for engine in world.engines:
            engine.revive()
        _sleep_until(world, self._gone + HOUR_SECONDS - 1200.0)
        self._died = world.clock()
        world.engines[1].die()
        _sleep_until(world, self._gone + HOUR_SECONDS)

    def undo(self, world: World) -> None:
        for manager in world.managers:
            manager.behave()
        self._back = world.clock()

    def promised(self, world: World) -> list[str]:
        """Who did not post in time what lasts, with its own time, or posted what was over. Then the engine is well again."""
        may = self._back + RESEND_SECONDS + 2 * FLEET_TURN_SECONDS
        _sleep_until(world, may)
        wrong = list(self._wrong)
        for manager, daemon, tiers in zip(world.managers, _posting(world), TIERS_OF, strict=False):
            posted = [one for one in manager.posted if one.at >= self._back and one.firing]
            for tier in tiers:
                began = [one.starts for one in posted if one.name == "TargetDown" and one.labels["tier"] == tier]
                if not began:
                    wrong.append(f"{daemon.role} did not post that an engine of {tier} is down")
                wrong += [
                    f"{daemon.role}: {tier} began {began_at - self._died:.0f} s after the engine died"
                    for began_at in began
                    if not 0.0 <= began_at - self._died <= SEEN_SECONDS
                ]
            wrong += sorted(
                {f"{daemon.role} posted {one.name}, which was over" for one in posted if one.name == "TierDown"}
            )
        world.engines[1].behave()
        return wrong


TIERS_OF = ((TIER,), FLEET_TIERS)
"""Whose engines each posts about."""


def _posting(world: World) -> list[DaemonProcess]:
    return [daemon for daemon in world.daemons if daemon.role in POSTING]


STORE, MANAGER = StoresHour(), AlertmanagersHour()
MANAGER_UP = "sizewatch_alertmanager_up"
MANAGER_AWAY = is_at(MANAGER_UP, 0.0)
NOT_WITH = frozenset({"process", "engine"})
"""They would change what is promised: the clock itself, and the engines that the hour is about."""

HOURS: tuple[Fault, ...] = (
    Fault(
        name="store_away_an_hour", group="hour", do=STORE.do, undo=STORE.undo, hour=STORE.hour, later=STORE.later,
        shows=blind, metric=IN_SIGHT, stays=True, on=FLEET, needs=has_fleet, apart=NOT_WITH | {"store"},
    ),
    Fault(
        name="alertmanager_away_an_hour", group="hour", do=MANAGER.do, undo=MANAGER.undo, hour=MANAGER.hour,
        promised=MANAGER.promised, shows=MANAGER_AWAY, metric=MANAGER_UP, stays=True, on=POSTING,
        deserves=TIER_DOWN, turns=RESEND_TURNS, apart=NOT_WITH | {"manager", "store"},
    ),
)  # fmt: skip
