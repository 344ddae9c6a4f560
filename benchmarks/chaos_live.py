"""Faults one after the other on daemons that go on living, and what must hold after each.

Owns the order (a shuffled deck, so that each fault comes as often), the waiting, and the properties: the fault shows, nothing is
paged that is not so, everything is as before within two turns of its end, nothing is logged that is a defect, and what was
counted is in the history at the end.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from chaos_faults import FAULTS, Fault
from chaos_world import TIER, DaemonProcess, Metrics, World, total, wait_for

from agent.history.store import Store

TURNS = "sizewatch_turns_total"
MOST_GROWTH = (12.0, 6, 6)
"""MiB, open files and threads beyond those of a daemon that has seen WARM_FAULTS: it has loaded everything, and met most."""

WARM_FAULTS = 12


@dataclass(slots=True)
class Tally:
    """What became of one fault: how often it was tried, the most turns until all was as before, and what did not hold."""

    tried: int = 0
    turns: int = 0
    failures: list[str] = field(default_factory=list)


def normal(daemon: DaemonProcess, metrics: Metrics) -> str:
    """What is not as it should be; empty where all is."""
    wrong = []
    if total(metrics, "sizewatch_target_up") != 3:
        wrong.append("target_up")
    if daemon.role == "standalone" and total(metrics, "sizewatch_history_up") != 1:
        wrong.append("history_up")
    if total(metrics, "sizewatch_gpu_problems"):
        wrong.append("gpu_problems")
    if total(metrics, "sizewatch_config_last_reload_successful") != 1:
        wrong.append("config")
    return ", ".join(wrong)


class Live:
    """The run. `say` gets a line for each fault."""

    def __init__(self, world: World, chance: random.Random, say: Callable[[str], None]) -> None:
        self._world, self._chance, self._say = world, chance, say
        self.tallies = {fault.name: Tally() for fault in FAULTS}
        self.skipped = tuple(fault.name for fault in FAULTS if not fault.needs(world))
        self.failures: list[str] = []
        self._logs: dict[str, int] = {}
        self._held: dict[str, float] = {}
        self._compared = 0
        self._lived = {daemon.role: 0 for daemon in world.daemons}
        self._base: dict[str, tuple[float, int, int]] = {}

    def run(self, seconds: float, only: str = "") -> None:
        """Until so many seconds are over, but each fault at least once where `only` names none."""
        started = time.monotonic()
        for several in self._deck(only):
            if time.monotonic() - started > seconds and all(t.tried for f, t in self._due(only)):
                break
            self._try(several)
            for daemon in self._world.daemons:
                self._lived[daemon.role] += 1
                if self._lived[daemon.role] == WARM_FAULTS:
                    self._base[daemon.role] = daemon.size()
        self._flat()

    def _due(self, only: str) -> list[tuple[Fault, Tally]]:
        return [
            (f, self.tallies[f.name]) for f in FAULTS if f.name not in self.skipped and (not only or f.name == only)
        ]

    def _deck(self, only: str) -> Iterator[tuple[Fault, ...]]:
        faults = [fault for fault, _ in self._due(only)]
        together = False
        while True:
            self._chance.shuffle(faults)
            for fault in faults:
                others = [one for one in faults if one.group != fault.group and not one.stops and not fault.stops]
                yield (fault, self._chance.choice(others)) if together and others else (fault,)
            together = True

    def _try(self, several: tuple[Fault, ...]) -> None:
        moved = any(fault.moves_clock for fault in several)
        if moved:
            self._compare(exactly=True)
            self._world.standalone.start()
        before = {daemon.role: daemon.metrics() for daemon in self._world.daemons}
        posted = len(self._world.manager.posted)
        wrong = [text for fault in several for text in self._do(fault, before)]
        for fault in reversed(several):
            fault.undo(self._world)
        ends = {daemon.role: total(daemon.metrics(), TURNS) for daemon in self._world.daemons}
        wrong += [
            f"{f.name} did not show in {f.metric} afterwards" for f in several if f.stops and not self._shown(f, before)
        ]
        turns, late = self._recovered(ends, max(fault.turns for fault in several))
        wrong += late + self._pages(several, posted) + self._defects(any(fault.may_log for fault in several))
        name = " + ".join(fault.name for fault in several)
        self._say(f"{name}: {'; '.join(wrong) or f'ok, as before after {turns} turns'}")
        for fault in several:
            tally = self.tallies[fault.name]
            tally.tried, tally.turns = tally.tried + 1, max(tally.turns, turns)
            tally.failures += wrong
        self.failures += [f"{name}: {text}" for text in wrong]
        if moved:
            self._compare(exactly=False)
            self._world.standalone.start()

    def _do(self, fault: Fault, before: dict[str, Metrics]) -> list[str]:
        fault.do(self._world)
        if fault.stops:
            time.sleep(self._chance.uniform(0.5, 3.0))
            return []
        wrong = [] if self._shown(fault, before) else [f"{fault.name} did not show in {fault.metric}"]
        self._turns(self._chance.randint(fault.lasts, 4 * fault.lasts))
        return wrong

    def _shown(self, fault: Fault, before: dict[str, Metrics]) -> bool:
        watching = [daemon for daemon in self._world.daemons if daemon.role in fault.on]
        return all(
            wait_for(lambda d=daemon: fault.shows(before[d.role], d.metrics()) or not d.alive, 30.0) and daemon.alive
            for daemon in watching
        )

    def _turns(self, count: int) -> None:
        for daemon in self._world.daemons:
            until = total(daemon.metrics(), TURNS) + count
            wait_for(lambda d=daemon, u=until: total(d.metrics(), TURNS) >= u or not d.alive)

    def _recovered(self, ends: dict[str, float], may: int) -> tuple[int, list[str]]:
        """The most turns that it took and what took longer than it may. A turn that had begun at the fault's end is not counted."""
        most, wrong, said = 0, [], set()
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
            most = max(most, int(total(late, TURNS) - ends[daemon.role]) if late is not None else 0)
        if most > may:
            wrong.append(f"as before only after {most} turns ({', '.join(sorted(said))})")
        return max(0, most), wrong

    def _pages(self, several: tuple[Fault, ...], since: int) -> list[str]:
        deserved = frozenset().union(*(fault.deserves for fault in several))
        posted = self._world.manager.posted
        # What was posted before and is sent again, or resolved, is no new one.
        known = {(one["alertname"], one["startsAt"]) for one in posted[:since]}
        pages = (one for one in posted[since:] if one["loudness"] == "page")
        told = {one["alertname"] for one in pages if (one["alertname"], one["startsAt"]) not in known} - deserved
        loud = [f"false alert {name}" for name in sorted(told)]
        for daemon in self._world.daemons:
            page = daemon.metrics()
            for name, value in page.items():
                certain = page.get(name.replace("sizewatch_verdict{", "sizewatch_verdict_certain{")) == 1.0
                if name.startswith("sizewatch_verdict{") and value == 2.0 and certain:
                    loud += [f"{daemon.role} says critical: {name}"] if not any(d in name for d in deserved) else []
        return loud

    def _defects(self, may: bool) -> list[str]:
        """What the logs say that only a defect says."""
        wrong = []
        for daemon in self._world.daemons:
            text = daemon.log.read_text(errors="replace")
            fresh, self._logs[daemon.role] = text[self._logs.get(daemon.role, 0) :], len(text)
            if "Traceback" in fresh and not may:
                wrong.append(
                    f"{daemon.role} logged a traceback: {fresh[fresh.index('Traceback') :][:100_000].splitlines()[-1]}"
                )
        return wrong

    def _flat(self) -> None:
        """Of daemons that have lived for a while: no larger than when they were warm."""
        for daemon in self._world.daemons:
            if daemon.role not in self._base:
                continue
            was, now = self._base[daemon.role], daemon.size()
            grew = [after - before for before, after in zip(was, now, strict=True)]
            told = f"{was[0]:.1f} -> {now[0]:.1f} MiB, {was[1]} -> {now[1]} files, {was[2]} -> {now[2]} threads"
            self._say(f"{daemon.role}, {self._lived[daemon.role]} faults old: {told}")
            if any(more > most for more, most in zip(grew, MOST_GROWTH, strict=True)):
                self.failures.append(f"{daemon.role} grew: {told}")

    def end(self) -> None:
        """An orderly end of both."""
        self._compare(exactly=True)
        if code := self._world.node.stop():
            self.failures.append(f"the node ended with {code}")
        self._say(f"{self._compared} orderly stops: all that was counted of whole windows was in the history, once")

    def _compare(self, exactly: bool) -> None:
        """An orderly stop: what the daemon counted since its start is in its history, and no more of it."""
        daemon, self._compared = self._world.standalone, self._compared + 1
        last = daemon.metrics()
        counted = total(last, "sizewatch_requests_finished_total")
        dropped = total(last, "sizewatch_history_dropped_windows_total")
        self._lived[daemon.role] = 0
        self._base.pop(daemon.role, None)
        if code := daemon.stop():
            self.failures.append(f"standalone ended with {code}")
        with Store.open_reader(daemon.history) as reader:
            held = {
                "minutes": _requests(reader.minutes(TIER, 0.0, 1e11)),
                "hours": _requests(reader.bins(TIER, 0.0, 1e11)),
            }
        grew = {name: value - self._held.get(name, 0.0) for name, value in held.items()}
        self._held = held
        # Between the last page and the end a turn or two may have come.
        least = counted if exactly and not dropped else 0.0
        if any(not least <= value <= 1.05 * counted + 100 for value in grew.values()):
            self.failures.append(
                f"counted {counted:.0f} requests, dropped {dropped:.0f} minutes, and the history has {grew} more"
            )


def _append(found: list[Metrics], daemon: DaemonProcess, said: set[str]) -> str:
    """What is not as it should be by the newest page, which is put with the others."""
    metrics = daemon.metrics()
    if not metrics:
        return "no page"
    found.append(metrics)
    wrong = normal(daemon, metrics)
    said.update({wrong} - {""})
    return wrong


def _requests(slices: object) -> float:
    return sum(one.window.counters.get("requests_finished", 0.0) for one in slices)  # type: ignore[attr-defined]
