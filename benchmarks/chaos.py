"""Faults on purpose, against real daemons; what must hold is checked after each.

    python benchmarks/chaos.py [--seconds 120] [--seed N] [--kills 200] [--only FAULT] [--folder DIR]

Three daemons (standalone, node and fleet, as processes, fifty times as fast as life) watch engines that play a recording,
Alertmanagers and a real VictoriaMetrics. Each row of `chaos_faults` is done to them, in an order that the seed decides, all of
them again while there is time left. Up to half of the time goes to kill -9 before (`chaos_kills`). Prints a table; exit 1
where something did not hold. Without VictoriaMetrics there is no role fleet, and its faults are not tried.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import common
from chaos_faults import CYCLES, FAULTS, FLEET, Fault
from chaos_kills import kill_lives
from chaos_world import FLEET_BEHIND_CYCLES, FLEET_TIERS, DaemonProcess, World
from common import TIER, Metrics, total
from waiting import wait_for

from agent.history.store import HistoryStore

FINISHED = "sizewatch_requests_finished_total"
WARM_SECONDS = 10.0
ENDED = 143
"""Exit code of a shell's command that SIGTERM ended."""

MOST_CYCLES_MORE = 9
"""A fault stays for so many cycles more than it must, at most."""

SHOWN_SECONDS, NORMAL_SECONDS, MOST_SECONDS = 60.0, 60.0, 20.0
"""Of the machine's time: until a fault shows, until all is normal, and for the cycles of a fault (some make them long)."""

WARM_FAULTS = 12
MOST_GROWTH = (6, 6)
"""Open files and threads beyond those of a daemon that has seen WARM_FAULTS. Memory is printed: a page without end lifts the
allocator's peak once, and slow growth is `soak`'s."""

Normal = tuple[str, float, tuple[str, ...]]
NORMAL: tuple[Normal, ...] = (
    ("sizewatch_target_up", 3, ("standalone", "node", "fleet")),
    ("sizewatch_tier_in_sight", len(FLEET_TIERS), ("fleet",)),
    ("sizewatch_history_up", 1, ("standalone", "fleet")),
    ("sizewatch_alertmanager_up", 1, ("standalone", "fleet")),
    ("sizewatch_config_last_reload_successful", 1, ("standalone", "node", "fleet")),
)
"""Metric, its sum while all is normal, and the roles that have it."""


def find_abnormal(daemon: DaemonProcess, metrics: Metrics) -> str:
    """Return the metrics that are not as they should be; empty where all are."""
    names = [name for name, value, roles in NORMAL if daemon.role in roles and total(metrics, name) != value]
    return ", ".join(names)


class Run:
    """Faults one after the other on daemons that go on living, and what must hold after each."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world, self._chance = world, chance
        self.faults = [fault for fault in FAULTS if world.fleet is not None or fault.on != FLEET]
        self.tries, self.cycles = Counter[str](), Counter[str]()
        self.failures: list[tuple[str, str]] = []
        self._log_sizes: dict[str, int] = {}
        self._warm: dict[str, tuple[float, int, int]] = {}

    def play(self, seconds: float, only: tuple[str, ...] = ()) -> None:
        """Try each fault once, and all again until so many seconds are over."""
        faults = [fault for fault in self.faults if not only or fault.name in only]
        started = time.monotonic()
        while not self.tries or time.monotonic() - started < seconds:
            self._chance.shuffle(faults)
            for fault in faults:
                self._try(fault)
        self._check_sizes()

    def _try(self, fault: Fault) -> None:
        began = time.monotonic()
        before = {daemon.role: daemon.metrics() for daemon in self._world.daemons}
        posted = [len(manager.posted) for manager in self._world.managers]
        wrong = self._do(fault, before)
        fault.undo(self._world)
        ends = {daemon.role: total(daemon.metrics(), CYCLES) for daemon in self._world.daemons}
        if fault.stops and not self._is_shown(fault, before):
            wrong.append(f"did not show in {fault.metric} afterwards")
        cycles, late = self._wait_for_normal(ends, fault.cycles)
        wrong += [*late, *self._find_false_alarms(fault.deserves, posted), *self._find_tracebacks()]
        text = "; ".join(wrong) or f"ok, as before after {cycles} cycles"
        sizes = ", ".join(f"{daemon.size()[0]:.0f}" for daemon in self._world.daemons)
        print(f"{fault.name}: {text} ({time.monotonic() - began:.0f} s; {sizes} MiB)", flush=True)
        self.tries[fault.name] += 1
        self.cycles[fault.name] = max(self.cycles[fault.name], cycles)
        self.failures += [(fault.name, text) for text in wrong]
        if self.tries.total() == WARM_FAULTS:
            self._warm = {daemon.role: daemon.size() for daemon in self._world.daemons}

    def _do(self, fault: Fault, before: dict[str, Metrics]) -> list[str]:
        fault.do(self._world)
        if fault.stops:
            time.sleep(self._chance.uniform(0.5, 3.0))
            return []
        wrong = []
        if not self._is_shown(fault, before):
            wrong.append(f"did not show in {fault.metric}")
        count = self._chance.randint(fault.lasts, fault.lasts + MOST_CYCLES_MORE)
        for daemon in self._daemons_of(fault):
            until = total(daemon.metrics(), CYCLES) + count
            wait_for(lambda d=daemon, u=until: total(d.metrics(), CYCLES) >= u or not d.is_alive, MOST_SECONDS)
        if fault.stays and not self._is_shown(fault, before):
            wrong.append(f"did not show in {fault.metric} at its end")
        return wrong

    def _daemons_of(self, fault: Fault) -> list[DaemonProcess]:
        return [daemon for daemon in self._world.daemons if daemon.role in fault.on]

    def _is_shown(self, fault: Fault, before: dict[str, Metrics]) -> bool:
        for daemon in self._daemons_of(fault):
            old = before[daemon.role]
            wait_for(lambda d=daemon, o=old: fault.shows(o, d.metrics()) or not d.is_alive, SHOWN_SECONDS)
            if not daemon.is_alive or not fault.shows(old, daemon.metrics()):
                return False
        return True

    def _wait_for_normal(self, ends: dict[str, float], may: int) -> tuple[int, list[str]]:
        """Return the most cycles that it took, not counting the cycle in progress, and what took too long."""
        most, wrong = 0, list[str]()
        for daemon in self._world.daemons:
            abnormal, last, until = "no page", 0.0, time.monotonic() + NORMAL_SECONDS
            while abnormal and daemon.is_alive and time.monotonic() < until:
                metrics = daemon.metrics()
                abnormal = find_abnormal(daemon, metrics) if metrics else "no page"
                if metrics and abnormal:
                    last = total(metrics, CYCLES) - ends[daemon.role]
                time.sleep(0.02)
            if not daemon.is_alive:
                wrong.append(f"{daemon.role} ended")
                daemon.start()
            elif abnormal:
                wrong.append(f"{daemon.role}: not as before after {last:.0f} cycles: {abnormal}")
            # What role fleet reads in a cycle is of a time before it.
            behind = FLEET_BEHIND_CYCLES if daemon.role == "fleet" else 0
            most = max(most, int(last) - behind)
        if most > may and not wrong:
            wrong.append(f"as before only after {most} cycles")
        return most, wrong

    def _find_false_alarms(self, deserved: frozenset[str], since: list[int]) -> list[str]:
        """Return undeserved pages that were posted `since`, and undeserved certain critical verdicts of now."""
        texts: set[str] = set()
        for manager, first in zip(self._world.managers, since, strict=True):
            # What was posted before and is sent again, or resolved, is no new alert.
            for name, severity, _ in set(manager.posted[first:]) - set(manager.posted[:first]):
                if severity == "critical" and not any(name.endswith(rule) for rule in deserved):
                    texts.add(f"false alert {name}")
        for daemon in self._world.daemons:
            page = daemon.metrics()
            for name, value in page.items():
                certain = page.get(name.replace("sizewatch_verdict{", "sizewatch_verdict_certain{")) == 1.0
                loud = name.startswith("sizewatch_verdict{") and value == 2.0 and certain
                if loud and not any(rule in name for rule in deserved):
                    texts.add(f"{daemon.role} is critical: {name}")
        return sorted(texts)

    def _find_tracebacks(self) -> list[str]:
        wrong = []
        for daemon in self._world.daemons:
            text = daemon.log.read_text(errors="replace")
            fresh, self._log_sizes[daemon.role] = text[self._log_sizes.get(daemon.role, 0) :], len(text)
            if "Traceback" in fresh:
                last = fresh[fresh.index("Traceback") :][:100_000].splitlines()[-1]
                wrong.append(f"{daemon.role} logged a traceback: {last}")
        return wrong

    def _check_sizes(self) -> None:
        for daemon in self._world.daemons:
            before, now = self._warm.get(daemon.role, daemon.size())[1:], daemon.size()[1:]
            if any(b - a > most for a, b, most in zip(before, now, MOST_GROWTH, strict=True)):
                self.failures.append((daemon.role, f"open files and threads grew: {before} to {now}"))

    def end(self) -> None:
        """Stop all in order. What was counted must be in the history, once."""
        daemon = self._world.standalone
        last = daemon.metrics()
        counted, dropped = total(last, FINISHED), total(last, "sizewatch_history_dropped_windows_total")
        for each in self._world.daemons:
            if code := each.stop():
                self.failures.append((each.role, f"ended with {code}"))
        with HistoryStore.open_reader(daemon.history) as reader:
            sums = {"minutes": reader.minutes(TIER, 0.0, 1e11), "hours": reader.bins(TIER, 0.0, 1e11)}
            for name, binned in sums.items():
                held = sum(part.window.counters.get("requests_finished", 0.0) for part in binned)
                print(f"history, {name}: {held:.0f} requests of {counted:.0f} counted, {dropped:.0f} minutes dropped")
                # Between the last page and the end a cycle or two may have come.
                if not (0.0 if dropped else counted) <= held <= 1.05 * counted + 100:
                    self.failures.append(("history", f"{name}: {held:.0f} requests of {counted:.0f}"))


def main() -> int:
    options = _options()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    print(f"seed {seed}: again with --seed {seed}", flush=True)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="sizewatch-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"logs and histories: {folder}", flush=True)
    failures: list[str] = []
    began = time.monotonic()
    if options.kills and not options.only:
        # Before the others: its children are made by fork, of a process without threads.
        failures += kill_lives(folder / "kills", options.seconds / 2, options.kills, random.Random(seed))
    left = options.seconds - (time.monotonic() - began)
    failures += _inject(folder, left, options.only, random.Random(seed))
    for text in failures:
        print(f"FAILED: {text}")
    print(f"{len(failures)} failures; seed {seed}; {(time.monotonic() - began) / 60:.1f} minutes")
    return 1 if failures else 0


def _inject(folder: Path, seconds: float, only: tuple[str, ...], chance: random.Random) -> list[str]:
    # Whoever ends the harness ends its daemons and the store, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ENDED))
    world = World(folder)
    try:
        world.start()
        time.sleep(WARM_SECONDS)
        run = Run(world, chance)
        run.play(seconds, only)
        run.end()
    finally:
        world.close()
    print(f"\n{'fault':<25} {'tried':>5} {'cycles':>6}  shows in")
    names = {name for name, _ in run.failures}
    for fault in FAULTS:
        failed = "; FAILED" if fault.name in names else ""
        print(f"{fault.name:<25} {run.tries[fault.name]:>5} {run.cycles[fault.name]:>6}  {fault.metric}{failed}")
    return [f"{name}: {text}" for name, text in run.failures]


def _options() -> argparse.Namespace:
    parser = common.build_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="at least; every fault comes at least once")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--kills", type=int, default=200, help="kills at most")
    parser.add_argument("--only", default="", help="these faults of the table (A,B) again and again")
    parser.add_argument("--folder", type=Path, help="where logs and histories are kept")
    options = parser.parse_args()
    options.only = tuple(filter(None, options.only.split(",")))
    names = tuple(fault.name for fault in FAULTS)
    if not set(options.only) <= set(names):
        parser.error(f"--only: no such fault; there are {', '.join(names)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
