"""Faults one after the other on daemons that go on living, and what must hold after each.

Owns the order (a shuffled deck, so that each fault comes as often), the waiting, whether a fault shows, and how many turns after
its end all is as before. What must hold besides is `chaos_properties`'.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from chaos_fault import FLEET, Fault
from chaos_faults import FAULTS
from chaos_properties import Booked, Logs, Sizes, false_alarms, normal
from chaos_world import FLEET_BEHIND_TURNS, DaemonProcess, Metrics, World, total, wait_for

TURNS = "sizewatch_cycles_total"
MOST_TURNS_MORE = 9
"""A fault stays for so many turns more than it must, at most."""

SHOWN_SECONDS = 60.0
"""Of the machine's time, until a fault shows."""

MOST_SECONDS = 20.0
"""Of the machine's time: some faults make turns long."""


@dataclass(slots=True)
class Tally:
    """What became of one fault: how often it was tried alone and with another, the most turns until all was as before, and what did
    not hold."""

    tried: int = 0
    paired: int = 0
    turns: int = 0
    failures: list[str] = field(default_factory=list)


class Live:
    """The run. `say` gets a line for each fault."""

    def __init__(self, world: World, chance: random.Random, say: Callable[[str], None]) -> None:
        self._world, self._chance, self._say = world, chance, say
        self.tallies = {fault.name: Tally() for fault in FAULTS}
        self.skipped = tuple(fault.name for fault in FAULTS if not fault.needs(world))
        self.failures: list[str] = []
        self._logs, self._sizes, self._booked = Logs(world), Sizes(world), Booked(world)

    def run(self, seconds: float, only: tuple[str, ...] = ()) -> None:
        """Until so many seconds are over; a deck that was begun is played to its end."""
        started = time.monotonic()
        for deck in self._decks(only):
            if time.monotonic() - started > seconds and all(t.tried for f, t in self._due(only)):
                break
            self._play(deck)
        self.failures += self._sizes.grown(self._say)

    def _play(self, deck: tuple[tuple[Fault, ...], ...]) -> None:
        """All of it: each fault comes alone as often as another, and is part of a pair."""
        for several in deck:
            self._try(several)
            self._sizes.lived(an_hour=any(fault.hour is not None and fault.on == FLEET for fault in several))

    def _due(self, only: tuple[str, ...]) -> list[tuple[Fault, Tally]]:
        return [
            (f, self.tallies[f.name]) for f in FAULTS if f.name not in self.skipped and (not only or f.name in only)
        ]

    def _decks(self, only: tuple[str, ...]) -> Iterator[tuple[tuple[Fault, ...], ...]]:
        """First each fault alone, then each with another, again and again."""
        faults = sorted((fault for fault, _ in self._due(only)), key=lambda one: only.index(one.name) if only else 0)
        if not only:
            self._chance.shuffle(faults)
        yield tuple((fault,) for fault in faults)
        while True:
            if not only:
                self._chance.shuffle(faults)
            yield tuple(self._pairs(faults))

    def _pairs(self, faults: list[Fault]) -> Iterator[tuple[Fault, ...]]:
        """Each fault with another, one that has none yet where there is one. What lets no page be answered comes last: then what
        the other shows has been seen."""
        alone = list(faults)
        while alone:
            fault = alone.pop(0)
            fitting = [one for one in faults if one.goes_with(fault)]
            other = self._chance.choice([one for one in alone if one in fitting] or fitting or [fault])
            alone = [one for one in alone if one is not other]
            yield tuple(sorted({fault.name: fault, other.name: other}.values(), key=lambda one: one.stops))

    def _try(self, several: tuple[Fault, ...]) -> None:
        moved = any(fault.moves_clock for fault in several)
        if moved:
            self._stop_standalone()
            self._world.standalone.start()
        began = time.monotonic()
        before = {daemon.role: daemon.metrics() for daemon in self._world.daemons}
        posted = [len(manager.posted) for manager in self._world.managers]
        wrong = [text for fault in several for text in self._do(fault, before)]
        for fault in reversed(several):
            fault.undo(self._world)
        wrong += [text for fault in several for text in fault.promised(self._world)]
        ends = {daemon.role: total(daemon.metrics(), TURNS) for daemon in self._world.daemons}
        wrong += [
            f"{f.name} did not show in {f.metric} afterwards" for f in several if f.stops and not self._shown(f, before)
        ]
        turns, late = self._recovered(ends, max(fault.turns for fault in several))
        wrong += late + [text for fault in several for text in fault.later(self._world)]
        deserved = frozenset().union(*(fault.deserves for fault in several))
        wrong += false_alarms(self._world, deserved, posted)
        wrong += self._logs.defects(any(fault.may_log for fault in several))
        name = " + ".join(fault.name for fault in several)
        text = "; ".join(wrong) or f"ok, as before after {turns} turns"
        self._say(f"{name}: {text} ({time.monotonic() - began:.0f} s)")
        for fault in several:
            tally = self.tallies[fault.name]
            tally.tried, tally.turns = tally.tried + 1, max(tally.turns, turns)
            tally.paired += len(several) > 1
            tally.failures += wrong
        self.failures += [f"{name}: {text}" for text in wrong]
        if moved:
            self._booked.again_for(max(fault.again_seconds for fault in several))
            self._stop_standalone()
            self._world.standalone.start()

    def _do(self, fault: Fault, before: dict[str, Metrics]) -> list[str]:
        fault.do(self._world)
        if fault.stops:
            time.sleep(self._chance.uniform(0.5, 3.0))
            return []
        wrong = [] if self._shown(fault, before) else [f"{fault.name} did not show in {fault.metric}"]
        if fault.hour is not None:
            fault.hour(self._world)
        else:
            self._turns(fault.on, self._chance.randint(fault.lasts, fault.lasts + MOST_TURNS_MORE))
        if fault.stays and not self._shown(fault, before):
            wrong.append(f"{fault.name} did not show in {fault.metric} at its end")
        return wrong

    def _shown(self, fault: Fault, before: dict[str, Metrics]) -> bool:
        watching = [daemon for daemon in self._world.daemons if daemon.role in fault.on]
        return all(
            wait_for(lambda d=daemon: fault.shows(before[d.role], d.metrics()) or not d.alive, SHOWN_SECONDS)
            and daemon.alive
            for daemon in watching
        )

    def _turns(self, roles: tuple[str, ...], count: int) -> None:
        for daemon in (one for one in self._world.daemons if one.role in roles):
            until = total(daemon.metrics(), TURNS) + count
            wait_for(lambda d=daemon, u=until: total(d.metrics(), TURNS) >= u or not d.alive, MOST_SECONDS)

    def _recovered(self, ends: dict[str, float], may: int) -> tuple[int, list[str]]:
        """The most turns that it took and what took longer than it may. A turn that had begun at the fault's end is not counted."""
        most, wrong = 0, list[str]()
        said: set[str] = set()
        for daemon in self._world.daemons:
            found: list[Metrics] = []
            wait_for(lambda d=daemon, f=found: not d.alive or _append(f, d, said) == "", 60.0)
            if not daemon.alive:
                wrong.append(f"{daemon.role} ended")
                daemon.start()
                continue
            what = normal(daemon, found[-1])
            if what:
                wrong.append(
                    f"{daemon.role}: not as before after {total(found[-1], TURNS) - ends[daemon.role]:.0f} turns: {what}"
                )
                continue
            # After this turn it was still not so, and the one under way at the end of the fault is not counted.
            late = found[-2] if len(found) > 1 else None
            # What role fleet is told in a turn is of a time before it.
            behind = FLEET_BEHIND_TURNS if daemon.role == "fleet" else 0
            took = int(total(late, TURNS) - ends[daemon.role]) if late is not None else 0
            most = max(most, took - behind)
        if most > may:
            wrong.append(f"as before only after {most} turns ({', '.join(sorted(said))})")
        return max(0, most), wrong

    def end(self) -> None:
        """An orderly end of all."""
        self._stop_standalone()
        for daemon in self._world.daemons:
            if daemon is not self._world.standalone and (code := daemon.stop()):
                self.failures.append(f"{daemon.role} ended with {code}")
        self._say(
            f"{self._booked.compared} orderly stops: all that was counted of whole windows was in the history, once"
        )

    def _stop_standalone(self) -> None:
        self._sizes.begins_anew(self._world.standalone)
        self.failures += self._booked.compare()


def _append(found: list[Metrics], daemon: DaemonProcess, said: set[str]) -> str:
    """What is not as it should be by the newest page, which is put with the others."""
    metrics = daemon.metrics()
    if not metrics:
        return "no page"
    found.append(metrics)
    wrong = normal(daemon, metrics)
    said.update({wrong} - {""})
    return wrong
