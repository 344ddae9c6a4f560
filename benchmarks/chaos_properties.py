"""What must hold of daemons besides that a fault shows and ends: no false alarm, no defect in a log, no growth, nothing lost.

Owns each property with what it remembers from fault to fault. A new one is a function or a class here, and a line of
`chaos_live.Live`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from chaos_world import FLEET_TIERS, TIER, DaemonProcess, Metrics, World, total

from agent.history.store import HistoryStore
from rules.plan.load_bins import BinnedWindow

MOST_GROWTH = (12.0, 6, 6)
"""MiB, open files and threads beyond those of a daemon that has seen WARM_FAULTS: it has loaded everything, and met most."""

WARM_FAULTS = 12

SETTLED_SECONDS = 300.0
"""Of the sped clock: all minutes before are booked."""


def normal(daemon: DaemonProcess, metrics: Metrics) -> str:
    """What is not as it should be; empty where all is."""
    wrong = []
    if total(metrics, "sizewatch_target_up") != 3:
        wrong.append("target_up")
    if daemon.role == "fleet" and total(metrics, "sizewatch_tier_in_sight") != len(FLEET_TIERS):
        wrong.append("tier_in_sight")
    if daemon.role != "node" and total(metrics, "sizewatch_history_up") != 1:
        wrong.append("history_up")
    if total(metrics, "sizewatch_alertmanager_up") != (daemon.role != "node"):
        wrong.append("alertmanager_up")
    if total(metrics, "sizewatch_gpu_problems"):
        wrong.append("gpu_problems")
    if total(metrics, "sizewatch_config_last_reload_successful") != 1:
        wrong.append("config")
    return ", ".join(wrong)


def false_alarms(world: World, deserved: frozenset[str], since: list[int]) -> list[str]:
    """Pages that were posted to each Alertmanager `since`, and verdicts that stand, which are not deserved."""
    told: set[str] = set()
    for manager, first in zip(world.managers, since, strict=True):
        # What was posted before and is sent again, or resolved, is no new one.
        known = {(one.name, one.starts) for one in manager.posted[:first]}
        pages = (one for one in manager.posted[first:] if one.labels["severity"] == "critical")
        told |= {one.name for one in pages if (one.name, one.starts) not in known} - deserved
    loud = [f"false alert {name}" for name in sorted(told)]
    for daemon in world.daemons:
        page = daemon.metrics()
        for name, value in page.items():
            certain = page.get(name.replace("sizewatch_verdict{", "sizewatch_verdict_certain{")) == 1.0
            if name.startswith("sizewatch_verdict{") and value == 2.0 and certain:
                loud += [f"{daemon.role} says critical: {name}"] if not any(d in name for d in deserved) else []
    return loud


class Logs:
    """Each daemon's, read up to where it was."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._read: dict[str, int] = {}

    def defects(self, may: bool) -> list[str]:
        """What they say that only a defect says; nothing where they `may`."""
        wrong = []
        for daemon in self._world.daemons:
            text = daemon.log.read_text(errors="replace")
            fresh, self._read[daemon.role] = text[self._read.get(daemon.role, 0) :], len(text)
            if "Traceback" in fresh and not may:
                last = fresh[fresh.index("Traceback") :][:100_000].splitlines()[-1]
                wrong.append(f"{daemon.role} logged a traceback: {last}")
        return wrong


class Sizes:
    """Memory, files and threads of daemons that have lived for a while."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lived = {daemon.role: 0 for daemon in world.daemons}
        self._base: dict[str, tuple[float, int, int]] = {}
        self._an_hour = False

    def begins_anew(self, daemon: DaemonProcess) -> None:
        self._lived[daemon.role] = 0
        self._base.pop(daemon.role, None)

    def lived(self, an_hour: bool) -> None:
        """Through one fault more. Role fleet is as large as it gets when it has read an hour that it missed."""
        self._an_hour = self._an_hour or an_hour
        for daemon in self._world.daemons:
            self._lived[daemon.role] += 1
            warm = self._lived[daemon.role] >= WARM_FAULTS and (self._an_hour or daemon.role != "fleet")
            if warm and daemon.role not in self._base:
                self._base[daemon.role] = daemon.size()

    def grown(self, say: Callable[[str], None]) -> list[str]:
        """Which of them are larger than when they were warm."""
        wrong = []
        for daemon in self._world.daemons:
            if daemon.role not in self._base:
                continue
            was, now = self._base[daemon.role], daemon.size()
            told = f"{was[0]:.1f} -> {now[0]:.1f} MiB, {was[1]} -> {now[1]} files, {was[2]} -> {now[2]} threads"
            say(f"{daemon.role}, {self._lived[daemon.role]} faults old: {told}")
            if any(after - before > most for before, after, most in zip(was, now, MOST_GROWTH, strict=True)):
                wrong.append(f"{daemon.role} grew: {told}")
        return wrong


class Booked:
    """The history of the standalone daemon, compared with what it counted. `compared` is how often that was."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held: dict[str, float] = {}
        self._exact_from = 0.0
        self._since = world.clock()
        self.compared = 0

    def again_for(self, seconds: float) -> None:
        """The clock shows a time twice for so long from now on, of which nothing is booked twice."""
        self._exact_from = self._world.clock() + seconds + SETTLED_SECONDS

    def compare(self) -> list[str]:
        """An orderly stop: what was counted since its start is in the history, and no more of it."""
        daemon, self.compared = self._world.standalone, self.compared + 1
        last: Metrics = daemon.metrics()
        counted = total(last, "sizewatch_requests_finished_total")
        dropped = total(last, "sizewatch_history_dropped_windows_total")
        wrong = [f"standalone ended with {code}"] if (code := daemon.stop()) else []
        with HistoryStore.open_reader(daemon.history) as reader:
            held = {
                "minutes": _requests(reader.minutes(TIER, 0.0, 1e11)),
                "hours": _requests(reader.bins(TIER, 0.0, 1e11)),
            }
        grew = {name: value - self._held.get(name, 0.0) for name, value in held.items()}
        self._held = held
        since, self._since = self._since, self._world.clock()
        # Between the last page and the end a turn or two may have come.
        least = counted if since >= self._exact_from and not dropped else 0.0
        if any(not least <= value <= 1.05 * counted + 100 for value in grew.values()):
            wrong.append(
                f"counted {counted:.0f} requests, dropped {dropped:.0f} minutes, and the history has {grew} more"
            )
        return wrong


def _requests(binned: Iterable[BinnedWindow]) -> float:
    return sum(one.window.counters.get("requests_finished", 0.0) for one in binned)
