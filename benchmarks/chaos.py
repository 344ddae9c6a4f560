"""Faults on purpose, against real daemons; what must hold is checked after each.

    python benchmarks/chaos.py [--seconds 120] [--seed N] [--kills 200] [--only FAULT,FAULT] [--folder DIR]

Three daemons (standalone, node and fleet, as processes, fifty times as fast as life) watch engines that play a recording,
Alertmanagers and a real VictoriaMetrics. Each row of FAULTS is done to them, in an order that the seed decides, all of
them again while there is time left. Up to half of the time goes to kill -9 before (`chaos_kills`). Prints a table; exit 1
where something did not hold. Without VictoriaMetrics there is no role fleet, and its faults are not tried.
"""

from __future__ import annotations

import math
import random
import resource
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import common
from chaos_kills import kill_lives
from chaos_servers import ENGINE_ACTS, SLOW_SECONDS, STORE_ACTS, Address, always, hang
from chaos_servers import Act as ServerAct
from chaos_world import FLEET_BEHIND_CYCLES, FLEET_CYCLE_SECONDS, FLEET_TIERS, SPEED, DaemonProcess, World
from common import TIER, Metrics, total
from waiting import wait_for

from agent.fleet.stored_pages import GONE_SECONDS
from agent.history.store import HistoryStore

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

    It lasts at least `lasts` cycles; `cycles` after its end all must be as before. `stops`: no page is answered while it
    lasts, so that it shows afterwards. `stays`: it shows as long as it lasts.
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

# ---- the run ----

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

NORMAL = (
    ("sizewatch_target_up", 3, EVERY),
    (IN_SIGHT, len(FLEET_TIERS), FLEET),
    (HISTORY_UP, 1, POSTING),
    (MANAGER_UP, 1, POSTING),
    (RELOADED, 1, EVERY),
)
"""Metric, its sum while all is normal, and the roles that have it."""


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
                names = [n for n, value, roles in NORMAL if daemon.role in roles and total(metrics, n) != value]
                abnormal = ", ".join(names)
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
    parser = common.build_parser(__doc__, seconds=120.0, seed=int, kills=200, only="", folder=Path)
    options = parser.parse_args()
    only, names = tuple(filter(None, options.only.split(","))), tuple(fault.name for fault in FAULTS)
    if not set(only) <= set(names):
        parser.error(f"--only: no such fault; there are {', '.join(names)}")
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    print(f"seed {seed}: again with --seed {seed}", flush=True)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="sizewatch-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"logs and histories: {folder}", flush=True)
    failures: list[str] = []
    began = time.monotonic()
    if options.kills and not only:
        failures += kill_lives(folder / "kills", options.seconds / 2, options.kills, random.Random(seed))
    left = options.seconds - (time.monotonic() - began)
    failures += _inject(folder, left, only, random.Random(seed))
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
    failed = {name for name, _ in run.failures}
    rows = []
    for fault in FAULTS:
        name = fault.name
        verdict = "FAILED" if name in failed else ""
        rows.append((name, fault.metric, verdict, str(run.tries[name]), str(run.cycles[name])))
    common.print_table(("fault", "shows in", "", "tried", "cycles"), rows, 3)
    return [f"{name}: {text}" for name, text in run.failures]


if __name__ == "__main__":
    sys.exit(main())
